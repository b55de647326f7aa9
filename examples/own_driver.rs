//! The `linerate` command with an additional driver: `own_driver forward imix:1000 sink:`.

use std::process::ExitCode;

use linerate::{Driver, DriverFlags, Plan, Result, Spec, text};

/// The driver of `imix:N`: a source of N frames of mixed lengths.
struct Imix;

impl Driver for Imix {
    fn name(&self) -> &'static str {
        "imix"
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { ends: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        text::plan(&format!("gen:size=imix,count={}", spec.arg))
    }
}

fn main() -> ExitCode {
    linerate_cli::main_with(&[&Imix])
}
