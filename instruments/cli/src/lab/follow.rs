//! Progress of a lab run on stderr: the status line, remarks, and the signals that end the run.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use linerate_lab::experiment::lasting;
use linerate_lab::record::Effect;
use linerate_lab::runner::{Observer, Progress};

use crate::errors::{Failure, RUNTIME};
use crate::progress::Line;
use crate::screen::{Screen, one_line};
use crate::signals::Signals;

/// Columns of the line: a longer one would not be overwritten as a whole.
const WIDTH: usize = 79;

/// An observer that prints the progress of a run.
#[derive(Debug)]
pub struct Follower<'a> {
    experiment: &'a str,
    screen: &'a Screen,
    signals: Signals,
    /// The signal that has come, if one has.
    signal: Cell<Option<i32>>,
    line: Option<Line>,
}

impl<'a> Follower<'a> {
    /// Follows a run of `experiment` from now on.
    ///
    /// # Errors
    /// If signals cannot be watched.
    pub fn new(
        experiment: &'a str,
        stop: &Arc<AtomicBool>,
        screen: &'a Screen,
    ) -> Result<Follower<'a>, Failure> {
        let signals = Signals::telling(stop).map_err(|e| {
            Failure::new(RUNTIME, "E-SYSTEM", "cannot watch for signals", e.to_string(), "")
        })?;
        let line = if screen.quiet || screen.json { None } else { Line::new() };
        Ok(Follower { experiment, screen, signals, signal: Cell::new(None), line })
    }

    /// Ends it: the line is wiped away.
    pub fn end(self) -> Option<i32> {
        self.interrupted();
        self.signal.get()
    }
}

impl Observer for Follower<'_> {
    fn progress(&mut self, progress: &Progress<'_>) {
        if let Some(line) = &mut self.line {
            line.draw(|| drawn(self.experiment, progress));
        }
    }

    fn note(&mut self, text: &str) {
        if let Some(line) = &mut self.line {
            line.clear();
        }
        if !self.screen.quiet {
            self.screen.note(&format!("{}\n", one_line(text)));
        }
    }

    fn interrupted(&self) -> bool {
        if self.signal.get().is_none() {
            self.signal.set(self.signals.wait(Duration::ZERO));
        }
        self.signal.get().is_some()
    }
}

/// `pool 3/6 change=both rate=max  pairs 15/17  -12.1 % [-12.6, -11.4]  ETA 2 min 5 s`
fn drawn(experiment: &str, progress: &Progress<'_>) -> String {
    let Progress { cell_number, cells, accepted, attempted, .. } = progress;
    let front = format!("{experiment} {cell_number}/{cells} ");
    let mut behind = format!("  pairs {accepted}/{attempted}");
    behind += &progress.effect.map(change).unwrap_or_default();
    behind += &progress.left.map(|left| format!("  ETA {}", lasting(left))).unwrap_or_default();
    let room = WIDTH.saturating_sub(front.chars().count() + behind.chars().count());
    let cell: String = progress.cell.chars().take(room).collect();
    format!("{front}{cell}{behind}").chars().take(WIDTH).collect()
}

fn change(effect: &Effect) -> String {
    let (from, to) = effect.ci95_pct;
    format!("  {:+.1} % [{from:+.1}, {to:+.1}]", effect.change_pct)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_lab::record::Verdict;

    fn progress<'a>(cell: &'a str, effect: Option<&'a Effect>) -> Progress<'a> {
        let left = Some(Duration::from_secs(125));
        Progress { cell, cell_number: 3, cells: 6, accepted: 15, attempted: 17, effect, left }
    }

    fn effect() -> Effect {
        Effect {
            unit: "ns/packet".into(),
            better_when: None,
            a: 100.0,
            b: 88.0,
            change_pct: -12.04,
            ci95_pct: (-12.61, -11.38),
            n_pairs: 15,
            censored_below: None,
            aa_half_width_pct: None,
            aa_pct: None,
            p_holm: None,
            expected: None,
            verdict: Verdict::Better,
        }
    }

    #[test]
    fn the_line_says_where_it_is_what_is_known_and_how_long() {
        let line = drawn("pool", &progress("rate=max", Some(&effect())));
        assert_eq!(line, "pool 3/6 rate=max  pairs 15/17  -12.0 % [-12.6, -11.4]  ETA 2 min 5 s");
        assert_eq!(drawn("pool", &progress("", None)), "pool 3/6   pairs 15/17  ETA 2 min 5 s");
    }

    #[test]
    fn a_line_is_never_longer_than_a_screen() {
        let cell = "change=both ".repeat(20);
        let line = drawn("pool", &progress(&cell, Some(&effect())));
        assert_eq!(line.chars().count(), WIDTH);
        assert!(line.ends_with("ETA 2 min 5 s"), "{line}");
    }
}
