//! The `linerate` command: moves packets between ports, and accounts for each of them.
//!
//! It is a library so that `linerate-lab`, the command of the instruments, has the same output,
//! errors and exit statuses.
#![forbid(unsafe_code)]

mod args;
mod circle;
mod counters;
mod doctor;
pub mod errors;
mod far;
pub mod flood;
mod forward;
mod r#gen;
mod outside;
mod phases;
mod place;
mod pool;
mod preface;
pub mod progress;
pub mod report;
mod run;
pub mod screen;
mod sends;
pub mod signals;
mod troubles;
mod tune;
pub mod undo;

use std::process::ExitCode;

use linerate::{Driver, Registry};

use args::{Args, Command};
use errors::Failure;
use screen::Screen;

pub use args::{cpu, refuse};

/// Returns the definition of the command line, for man pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    args::definition(&Registry::default())
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    main_with(&[])
}

/// Runs the command line of this process; port texts can also name `drivers`.
///
/// ```no_run
/// # struct Mine;
/// # impl linerate::Driver for Mine {
/// #     fn name(&self) -> &'static str { "mine" }
/// #     fn parse(&self, _: &linerate::Spec) -> linerate::Result<Box<dyn linerate::Plan>> {
/// #         linerate::text::plan("null:")
/// #     }
/// # }
/// fn main() -> std::process::ExitCode {
///     linerate_cli::main_with(&[&Mine]) // my_program forward mine:x sink:
/// }
/// ```
#[must_use]
pub fn main_with(drivers: &[&'static dyn Driver]) -> ExitCode {
    signals::survive_file_limit();
    if let Some(words) = outside::help_of(std::env::args_os().skip(1)) {
        return end(Screen::plain(false), outside::run(&words));
    }
    let drivers = Registry::with(drivers);
    let args = match Args::read(&drivers) {
        Ok(args) => args,
        Err(e) => return ExitCode::from(args::refuse(&e)),
    };
    let (screen, done) = match args.command {
        Command::Version => {
            let screen = Screen::plain(false);
            (screen, screen.line(concat!("linerate ", env!("CARGO_PKG_VERSION"))).map(|()| 0))
        }
        Command::Doctor(doctor) => {
            let screen = Screen::plain(doctor.json);
            (screen, doctor.run(&drivers, &screen))
        }
        Command::Tune(tune) => {
            let screen = Screen::plain(tune.json);
            (screen, tune.run(&screen))
        }
        Command::Forward(forward) => {
            let run = &forward.run;
            let screen = Screen::new(run.json, run.quiet, &forward.ports(), &drivers);
            (screen, forward::forward(&forward, &drivers, &screen))
        }
        Command::Gen(r#gen) => {
            let run = &r#gen.run;
            let screen = Screen::new(run.json, run.quiet, &[&r#gen.port], &drivers);
            (screen, r#gen::generate(&r#gen, &drivers, &screen))
        }
        Command::Outside(words) => {
            let json = words.iter().any(|word| word == "--json");
            (Screen::plain(json), outside::run(&words))
        }
    };
    end(screen, done)
}

/// Prints the failure, if `done` is one; returns the exit status.
pub fn end(screen: Screen, done: Result<u8, Failure>) -> ExitCode {
    ExitCode::from(done.unwrap_or_else(|failure| {
        screen.failure(&failure.error);
        failure.exit
    }))
}
