//! To come.

use crate::scenario::{Bench, Figure, Knob, Place, Scenario};
use crate::settings::Settings;
use crate::{Code, Error, Result};

/// To come.
#[derive(Debug)]
pub(super) struct Engine;

impl Scenario for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn about(&self) -> &'static str {
        ""
    }

    fn knobs(&self) -> &'static [Knob] {
        &[]
    }

    fn figures(&self) -> &'static [Figure] {
        &[]
    }

    fn check(&self, _settings: &Settings, _place: &Place) -> Result<()> {
        Err(Error::new(Code::Unsupported, "cannot run engine", "not yet"))
    }

    fn open(&self, _settings: &Settings, _place: &Place) -> Result<Box<dyn Bench>> {
        Err(Error::new(Code::Unsupported, "cannot run engine", "not yet"))
    }
}
