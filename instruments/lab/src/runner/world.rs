//! Access to the outside world, in one place, so that a test can replace it.

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

    /// Describes the current machine.
    fn here(&self, place: &Place) -> Value;

    /// Runs a window, and adds the activity of the machine on `cpus` during it.
    fn watched(&self, cpus: &[usize], window: &mut dyn FnMut() -> Result<Window>)
    -> Result<Window>;

    /// Decides if windows that belong together may be used, by the machine's activity in them.
    fn admit(&self, windows: &[&Window]) -> Admission;

    /// Measures the distance between two CPUs.
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
