//! Commands in separate programs: `linerate lab` runs `linerate-lab lab`, as cargo and git run
//! their subcommands.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::errors::{Failure, RUNTIME, UNSUPPORTED, USAGE};

/// The program with the measuring commands.
const PROGRAM: &str = "linerate-lab";
/// The command that installs it.
const INSTALL: &str = "cargo install --locked --path instruments/cli, in linerate's repository";
/// Names of the commands in that program.
pub const COMMANDS: [&str; 4] = ["lab", "lines", "ndr", "profile"];

/// Words with which users ask for the state of a run.
const OF_A_RUN: [&str; 5] = ["counters", "show", "stat", "stats", "status"];

/// Returns `WORD.. --help` for the arguments `help WORD..`, if the separate program has the
/// command.
pub fn help_of(mut words: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    words.next().filter(|first| first == "help")?;
    let mut words: Vec<OsString> = words.collect();
    COMMANDS.iter().find(|command| words.first().is_some_and(|word| word == **command))?;
    words.push("--help".into());
    Some(words)
}

/// Executes the command `words` in the separate program, from this program's folder, else from the
/// `PATH`.
///
/// # Errors
/// `E-USAGE` for an unknown command; `E-UNSUPPORTED` if the program is not installed.
pub fn run(words: &[OsString]) -> Result<u8, Failure> {
    let asked = words.first().and_then(|word| word.to_str()).unwrap_or_default();
    if !COMMANDS.contains(&asked) {
        return Err(unknown(asked));
    }
    let what = format!("cannot run linerate {asked}");
    let Some(program) = find() else {
        let why = format!("{PROGRAM} is neither beside this program nor on the PATH");
        return Err(Failure::new(UNSUPPORTED, "E-UNSUPPORTED", &what, why, INSTALL));
    };
    // `exec` returns only if it failed.
    let error = Command::new(&program).args(words).exec();
    let why = format!("{}: {error}", program.display());
    Err(Failure::new(RUNTIME, "E-SYSTEM", &what, why, ""))
}

/// Refuses a word that is a command of neither program.
fn unknown(word: &str) -> Failure {
    let known = ["forward", "gen", "doctor", "tune", "version", "help"].into_iter().chain(COMMANDS);
    let near = linerate::text::nearest(word, known);
    let fix = match near {
        _ if OF_A_RUN.contains(&word) => {
            "linerate tune PATH -S shows the counters of a run that was started with --control PATH"
                .into()
        }
        Some(near) => format!("linerate {near}"),
        None => "linerate --help".to_owned(),
    };
    let why = format!("there is no command {word:?}");
    Failure::new(USAGE, "E-USAGE", "cannot understand the command", why, &fix)
}

/// Finds the program in this program's folder or in the `PATH`.
fn find() -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let path = env::var_os("PATH").unwrap_or_default();
    let listed = env::split_paths(&path).map(|folder| folder.join(PROGRAM));
    beside.into_iter().chain(listed.collect::<Vec<_>>()).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_for_a_command_is_asked_of_the_program_that_has_it() {
        let of = |words: &str| help_of(words.split_whitespace().map(OsString::from));
        assert_eq!(of("help lab").unwrap(), ["lab", "--help"]);
        assert_eq!(of("help lab run").unwrap(), ["lab", "run", "--help"]);
        for words in ["", "help", "help forward", "lab --help", "lab help"] {
            assert_eq!(of(words), None, "{words}");
        }
    }
}
