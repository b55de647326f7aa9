//! The `linerate-lab` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    linerate_lab_cli::main()
}
