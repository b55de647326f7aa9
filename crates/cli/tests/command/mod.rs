//! Runs the command as its users run it.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program of the crate to which these tests belong: `linerate-lab`, or `linerate`.
const PROGRAM: &str = match option_env!("CARGO_BIN_EXE_linerate-lab") {
    Some(program) => program,
    None => match option_env!("CARGO_BIN_EXE_linerate") {
        Some(program) => program,
        None => "linerate",
    },
};

/// Returns the command with `words`, separated by spaces.
pub fn command(words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words.split_whitespace());
    command
}

/// Runs the command to its end.
pub fn run(words: &str) -> Ended {
    Ended::from(command(words).stdin(Stdio::null()).output().unwrap())
}

/// The outcome of a finished command.
#[derive(Debug)]
pub struct Ended {
    pub exit: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            exit: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Parses the only document on stdout.
    pub fn document(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}
