//! Requirements of an experiment, and a check that this machine can run it.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Cell, Experiment};
use crate::scenario::{Place, Scenario, named};
use crate::settings::wrong;
use crate::{Error, Result};

/// Number of windows in a unit: both sides and the control.
const UNIT: u64 = 3;

/// The part of an experiment that can run on this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Here {
    /// Number of cells that can run.
    pub cells: usize,
    /// Number of all cells.
    pub of: usize,
    /// Reasons why the other cells cannot run, each once.
    pub obstacles: Vec<Obstacle>,
}

/// The reason why some cells cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Obstacle {
    /// The number of cells with this obstacle.
    pub cells: usize,
    /// The first of these cells, such as `case=host-joined`.
    pub first: String,
    /// The code of the error.
    pub code: &'static str,
    /// The reason.
    pub why: String,
    /// A way to remove the obstacle; empty if none is known.
    pub fix: String,
}

impl Experiment {
    /// Returns the cells that can run at `place`, as far as is known without starting a program.
    #[must_use]
    pub fn here(&self, place: &Place) -> Here {
        let mut here = Here { cells: 0, of: self.cells.len(), obstacles: Vec::new() };
        for cell in &self.cells {
            match cell.check(place) {
                Ok(()) => here.cells += 1,
                Err(e) => here.add(cell, e),
            }
        }
        here
    }

    /// Returns the time of a run if every cell reaches its last look and no pair is repeated;
    /// `None` if it is unknown, because windows last as long as a program runs.
    #[must_use]
    pub fn planned(&self, quick: bool) -> Option<Duration> {
        self.planned_for(self.cells(quick).map(|(_, cell)| cell), quick)
    }

    /// Returns the same time of a run of some of the experiment's cells.
    #[must_use]
    pub fn planned_for<'a>(
        &self,
        cells: impl IntoIterator<Item = &'a Cell>,
        quick: bool,
    ) -> Option<Duration> {
        let last = self.plan.looks(quick).last().copied().unwrap_or(0);
        cells.into_iter().try_fold(Duration::ZERO, |sum, cell| {
            let windows = UNIT.saturating_mul(self.windows(cell, quick, last));
            let cell_ns = cell.window_ns(quick).saturating_mul(windows);
            cell.keeps_time().then(|| sum.saturating_add(Duration::from_nanos(cell_ns)))
        })
    }
}

impl Cell {
    /// Returns true if the length of the cell's windows can be set.
    fn keeps_time(&self) -> bool {
        let keeps =
            |scenario: &dyn Scenario| scenario.keeps_time(&self.a) && scenario.keeps_time(&self.b);
        named(&self.scenario).is_none_or(keeps)
    }

    /// Checks that the cell's scenario can run both sides at `place`. Starts no program.
    ///
    /// # Errors
    /// As [`Scenario::check`].
    pub fn check(&self, place: &Place) -> Result<()> {
        let scenario = self.scenario()?;
        scenario.check(&self.a, place).and_then(|()| scenario.check(&self.b, place))
    }

    /// Checks the cell as [`Cell::check`] does, and also starts the programs of both sides.
    ///
    /// # Errors
    /// As [`Scenario::probe`].
    pub fn probe(&self, place: &Place) -> Result<()> {
        self.check(place)?;
        let scenario = self.scenario()?;
        scenario.probe(&self.a, place).and_then(|()| scenario.probe(&self.b, place))
    }

    fn scenario(&self) -> Result<&'static dyn Scenario> {
        let unknown = || wrong(0, format!("there is no scenario {:?}", self.scenario));
        named(&self.scenario).ok_or_else(unknown)
    }
}

/// Returns the commands that a run of `cells` starts, without repetition.
pub fn commands<'a>(cells: impl IntoIterator<Item = &'a Cell>, place: &Place) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for cell in cells {
        let Ok(scenario) = cell.scenario() else { continue };
        for one in [&cell.a, &cell.b].into_iter().flat_map(|side| scenario.commands(side, place)) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    all
}

impl Here {
    /// Returns the result in a word or two: `yes`, `no`, `9 of 13 cells`.
    #[must_use]
    pub fn in_short(&self) -> String {
        match self.cells {
            0 => "no".into(),
            cells if cells == self.of => "yes".into(),
            cells => format!("{cells} of {} cells", self.of),
        }
    }

    fn add(&mut self, cell: &Cell, e: Error) {
        let known = self.obstacles.iter_mut().find(|one| one.why == e.why && one.fix == e.fix);
        match known {
            Some(known) => known.cells += 1,
            None => self.obstacles.push(Obstacle {
                cells: 1,
                first: cell.name(),
                code: e.code.as_str(),
                why: e.why,
                fix: e.fix,
            }),
        }
    }
}

/// Displays the reason, the number of cells, and the remedy.
impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cells, self.first.as_str()) {
            (_, "") => {}
            (1, first) => write!(f, "{first} cannot be run here: ")?,
            (cells, first) => {
                write!(f, "{cells} cells, as {first}, cannot be run here: ")?;
            }
        }
        f.write_str(&self.why)?;
        if self.fix.is_empty() { Ok(()) } else { write!(f, " (fix: {})", self.fix) }
    }
}

/// Formats an upper bound of the planned time in windows, such as `at most 45 s in windows`, or the
/// reason why it is unknown. Set-ups and repeated pairs are in addition.
#[must_use]
pub fn at_most(planned: Option<Duration>) -> String {
    match planned {
        Some(time) => {
            format!("at most {} in windows, and set-ups and repeated pairs", lasting(time))
        }
        None => "unknown: a window takes as long as its program does".into(),
    }
}

/// Formats a planned or remaining time in two units: `45 s`, `2 min 5 s`, `1 h 10 min`.
#[must_use]
pub fn lasting(time: Duration) -> String {
    let s = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match s {
        0..60 => format!("{s} s"),
        60..3600 if s.is_multiple_of(60) => format!("{} min", s / 60),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_two_parts_at_most_and_is_never_nothing() {
        for (ms, text) in [
            (0, "0 s"),
            (1, "1 s"),
            (59_000, "59 s"),
            (60_000, "1 min"),
            (125_000, "2 min 5 s"),
            (4_200_000, "1 h 10 min"),
        ] {
            assert_eq!(lasting(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_reason_is_told_once_with_the_cells_that_it_holds_for() {
        let cell = |at: &str| Cell {
            fresh: false,
            at: vec![("rate".into(), at.into())],
            scenario: "nowhere".into(),
            window_ns: 50_000_000,
            quick_window_ns: 10_000_000,
            a: crate::settings::Settings::new(),
            b: crate::settings::Settings::new(),
            quick: at == "max",
        };
        let mut here = Here { cells: 0, of: 3, obstacles: Vec::new() };
        for at in ["max", "fixed", "low"] {
            let cell = cell(at);
            here.add(&cell, cell.check(&Place::default()).unwrap_err());
        }
        let [one] = here.obstacles.as_slice() else { panic!("{here:?}") };
        assert_eq!((one.cells, one.first.as_str()), (3, "rate=max"));
        assert_eq!(one.why, "there is no scenario \"nowhere\"");
    }
}
