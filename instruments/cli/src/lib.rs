//! The `linerate-lab` command: reruns experiments, profiles CPU time, models cache-line transfers,
//! and searches for the highest rate without loss. `linerate` starts it for `linerate lab` and its
//! other commands.
//!
//! A library so that its man pages and completions are made of its own definition.
#![forbid(unsafe_code)]

mod lab;
mod lines;
mod ndr;
mod profile;
mod temporary;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
// The modules below use these names with the prefix `crate::`.
use linerate_cli::{errors, progress, report, screen, signals};

use screen::Screen;

#[derive(Debug, Parser)]
#[command(
    name = "linerate",
    // Users type this name: `linerate` starts this program.
    bin_name = "linerate",
    version,
    about = "Measures packet paths: experiments, profiles, and the highest rate without loss",
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Args {
    #[command(subcommand)]
    command: Instrument,
}

/// The commands that measure.
#[derive(Debug, Subcommand)]
enum Instrument {
    #[command(subcommand)]
    Profile(profile::Profile),
    Lab(lab::Lab),
    /// Show which functions move cache lines between threads, by a MODEL, not by measurement
    ///
    /// COMMAND runs in QEMU's user mode, tens of times slower, with a plugin that follows every
    /// memory access. Ports xdp: and packet: do not run there; ring:, memif:, pcap:, gen:, null:
    /// and plain sockets do.
    Lines(lines::Lines),
    Ndr(ndr::Ndr),
}

/// Returns the command line's definition.
#[must_use]
pub fn command() -> clap::Command {
    Args::command()
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    signals::survive_file_limit();
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => return ExitCode::from(linerate_cli::refuse(&e)),
    };
    let (screen, done) = match args.command {
        Instrument::Lab(lab) => {
            let screen = lab.screen();
            (screen, lab.run(&screen))
        }
        Instrument::Lines(lines) => {
            let screen = Screen::plain(lines.json);
            (screen, lines.run(&screen))
        }
        Instrument::Ndr(ndr) => {
            let screen = Screen::plain(ndr.json);
            (screen, ndr.run(&screen))
        }
        Instrument::Profile(profile) => {
            let screen = Screen::plain(profile.json());
            (screen, profile.run(&screen))
        }
    };
    linerate_cli::end(screen, done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_sound() {
        command().debug_assert();
    }
}
