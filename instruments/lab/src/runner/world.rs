//! What a run touches of the world outside, in one place, so that a test can have another world.

use serde_json::Value;

use crate::Result;
use crate::environment;
use crate::place;
use crate::scenario::{self, Place, Scenario};
use crate::watch::{self, Admission, Watch};
use crate::window::Window;

/// The machine and the code that runs on it.
pub(super) trait World {
    /// The scenario of that name.
    fn scenario(&self, name: &str) -> Option<&dyn Scenario>;

    /// What machine it is, now.
    fn here(&self, place: &Place) -> Value;

    /// A window, with what the machine did on `cpus` meanwhile.
    fn watched(&self, cpus: &[usize], window: &mut dyn FnMut() -> Result<Window>)
    -> Result<Window>;

    /// Whether windows that belong together may be used, by what the machine did.
    fn admit(&self, windows: &[&Window]) -> Admission;

    /// How far two CPUs are from each other.
    fn round_trip_ticks(&self, one: usize, other: usize) -> Result<f64>;
}

/// This machine.
#[derive(Debug)]
pub(super) struct Machine;

impl World for Machine {
    fn scenario(&self, name: &str) -> Option<&dyn Scenario> {
        scenario::named(name)
    }

    fn here(&self, place: &Place) -> Value {
        environment::here(place)
    }

    fn watched(
        &self,
        cpus: &[usize],
        window: &mut dyn FnMut() -> Result<Window>,
    ) -> Result<Window> {
        let watch = Watch::start(cpus)?;
        let mut window = window()?;
        watch.stop(&mut window)?;
        Ok(window)
    }

    fn admit(&self, windows: &[&Window]) -> Admission {
        watch::admit(windows)
    }

    fn round_trip_ticks(&self, one: usize, other: usize) -> Result<f64> {
        place::round_trip_ticks(one, other)
    }
}
