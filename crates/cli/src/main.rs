//! The `linerate` command with the drivers of this tree.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    linerate_cli::main()
}
