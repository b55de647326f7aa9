//! Writes the man pages and the shells' completions of `linerate` into a folder: `linerate-dist
//! FOLDER`.
//!
//! A program of its own, so that neither the command nor `xtask` is built with what makes them.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: linerate-dist FOLDER")?;
    let folder = Path::new(&folder);
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut listed(&whole()), "linerate", folder)?;
    }
    let mut command = whole().disable_help_subcommand(true);
    command.build();
    write_pages(&command, &pages)
}

/// Returns the command with the commands of `linerate-lab`, because users call both as `linerate`.
fn whole() -> Command {
    let instruments = linerate_lab_cli::command();
    let behind = instruments.get_subcommands().cloned().enumerate();
    linerate_cli::command().subcommands(behind.map(|(i, below)| below.display_order(100 + i)))
}

/// Returns the command without hidden commands and options, which completions would offer
/// otherwise.
fn listed(command: &Command) -> Command {
    // clap needs a name of static lifetime. The leak is small, and the program ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(listed);
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(name)
        .about(about)
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
        .subcommands(below)
}

/// Writes `linerate-forward.1` and so on: one page for each command that the help lists.
fn write_pages(command: &Command, folder: &Path) -> Result<(), Box<dyn Error>> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, folder)?;
    }
    let notes = command.get_after_long_help().or_else(|| command.get_after_help());
    let notes = notes.map(ToString::to_string).unwrap_or_default();
    // The notes have columns, which a paragraph would join, so they are written below in a section
    // without filling.
    let page = Man::new(command.clone().after_help(None::<&str>).after_long_help(None::<&str>));
    let mut file = File::create(folder.join(page.get_filename()))?;
    page.manual("linerate").render(&mut file)?;
    if !notes.is_empty() {
        write!(file, "{}", as_it_is(&notes))?;
    }
    Ok(())
}

/// Returns a roff section in which lines keep their breaks and blanks.
fn as_it_is(text: &str) -> String {
    let mut section = String::from(".SH NOTES\n.nf\n");
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // roff reads a point or a quotation mark at the start of a line as a request; `\&` prevents
        // that.
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        section += &format!("{guard}{line}\n");
    }
    section + ".fi\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_the_help_lists_has_a_page_and_a_completion() {
        let folder = std::env::temp_dir().join(format!("linerate-dist-{}", std::process::id()));
        let mut command = whole();
        command.build();
        fs::create_dir_all(&folder).unwrap();
        write_pages(&command, &folder).unwrap();
        let page = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        for name in ["forward", "gen", "doctor", "lab-run", "profile-record", "lines", "ndr"] {
            assert!(page(&format!("linerate-{name}.1")).contains(".SH NAME"), "{name}");
        }
        assert!(page("linerate.1").contains("\n  xdp:"), "the ports are listed line by line");
        assert!(page("linerate-lab-sample.1").is_empty(), "a hidden command has no page");
        fs::remove_dir_all(&folder).unwrap();
        let mut bash = Vec::new();
        clap_complete::generate(Shell::Bash, &mut listed(&whole()), "linerate", &mut bash);
        let bash = String::from_utf8(bash).unwrap();
        for word in ["--tx-batch", "doctor", "profile"] {
            assert!(bash.contains(word), "{word}");
        }
        for word in ["flood", "--beside"] {
            assert!(!bash.contains(word), "{word} is hidden");
        }
    }

    #[test]
    fn service_has_a_folder_outside_that_of_the_records_of_root() {
        let unit = include_str!("../linerate@.service");
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let folder = value("RuntimeDirectory=");
        assert_eq!(folder.split('/').next(), Some("linerate-%i"), "root's is /run/linerate");
        assert_eq!(value("Environment=XDG_RUNTIME_DIR="), format!("%t/{folder}"));
    }

    #[test]
    fn what_roff_would_read_is_guarded() {
        assert_eq!(as_it_is(".x\n a\\b"), ".SH NOTES\n.nf\n\\&.x\n a\\eb\n.fi\n");
    }
}
