//! The wait for a run's end, with notes on ports in trouble meanwhile.

use std::time::{Duration, Instant};

use linerate::{Health, PortStats, QueueCounts, Running, Stats};
use linerate_ctl::poor_use::poorly_used;

use super::{Ended, Path};
use crate::errors;
use crate::phases::{self, Phases};
use crate::progress::{Progress, REDRAW};
use crate::screen::Screen;
use crate::signals::{self, Signals};

/// Shortest time between two checks of a run that may end by itself.
const CHECK_MIN: Duration = Duration::from_micros(100);
/// Interval of checks for a path that may end by itself.
const CHECK_OFTEN: Duration = Duration::from_millis(10);
/// Interval of checks for a path that does not end by itself: short enough to notice a port in
/// trouble, long enough to let an idle machine sleep. With the wake-ups of two xdp ports, the
/// process wakes less than twice a second.
pub(super) const CHECK_SELDOM: Duration = Duration::from_secs(2);
/// Shortest time over which the packets and irqs of a port are judged: figures of a shorter time
/// are not representative.
const JUDGED: Duration = Duration::from_secs(1);

/// Waits until the run must end, and shows its progress.
pub(super) fn watch(
    running: &Running,
    path: &Path,
    phases: &mut Phases,
    screen: &Screen,
    signals: &Signals,
) -> Ended {
    let start = Instant::now();
    let mut progress = (!screen.quiet).then(|| Progress::new(path.time)).flatten();
    let ends = running.stats().ports().iter().any(|port| port.flags.ends);
    let often = path.count.is_some() || ends;
    let interval = match (&progress, often) {
        (_, true) => CHECK_OFTEN,
        (Some(_), false) => REDRAW,
        (None, false) => CHECK_SELDOM,
    };
    let (mut down, mut poor) = (Vec::new(), PoorPorts::default());
    loop {
        let left = path.time.map_or(interval, |time| time.saturating_sub(start.elapsed()));
        // The end of a short run is found within a sixteenth of its time: rates are by that time.
        let soon = if often { (start.elapsed() / 16).max(CHECK_MIN) } else { interval };
        match signals.wait(left.min(interval).min(soon).min(phases.left())) {
            Some(signals::HANGUP) => return Ended::Done,
            Some(signal) => return Ended::Signal(signal),
            None => phases.look(running.stats()),
        }
        let out = packets_out(running.stats());
        if let Some(progress) = &mut progress {
            progress.draw(out);
        }
        // Check this first: if all workers ended early, `finished` would also return true.
        if running.failed() {
            return Ended::Failed;
        }
        let over = path.time.is_some_and(|time| start.elapsed() >= time);
        if over || path.count.is_some_and(|count| out >= count) || running.finished() {
            return Ended::Done;
        }
        if troubled(running.stats(), &mut down, screen) {
            return Ended::Failed;
        }
        for note in poor.check(running.stats().ports(), start.elapsed()) {
            screen.passing_note(&note);
        }
    }
}

fn packets_out(stats: &Stats) -> u64 {
    phases::sent(stats).packets
}

/// Returns true if a port has failed; prints a message each time that a port goes down.
fn troubled(stats: &Stats, down: &mut Vec<String>, screen: &Screen) -> bool {
    for port in stats.ports() {
        let was_down = down.contains(&port.name);
        match port.health {
            Health::Failed(_) => return true,
            Health::Down(e) if !was_down => {
                let e = errors::to_type(&e.to_string());
                screen.passing_note(&format!("note: port '{}' is down: {e}\n", port.name));
                down.push(port.name);
            }
            Health::Down(_) => {}
            _ => down.retain(|name| *name != port.name),
        }
    }
    false
}

/// The search for ports whose irqs carry too few packets, or whose rings end their holds, while a
/// run goes on.
#[derive(Debug, Default)]
pub(super) struct PoorPorts {
    /// The time of the last check, from the start of the run.
    checked: Duration,
    /// The counts of each port at that check.
    before: Vec<QueueCounts>,
    /// The names of the ports already noted, for few packets and for their rings.
    said: Vec<String>,
    said_cut: Vec<String>,
    /// The names of the ports whose rings ended a hold at the last check.
    cut: Vec<String>,
}

impl PoorPorts {
    /// Returns notes on ports whose irqs carry too few packets, or whose rings end holds earlier than
    /// their mode says; one of each kind for each port. `time` is the time since the start of the
    /// run. Judges the packets and irqs since the last check, because an average of the whole run
    /// hides for long that a port's use has become poor.
    pub fn check(&mut self, mut ports: Vec<PortStats>, time: Duration) -> Vec<String> {
        let passed = time.saturating_sub(self.checked);
        if passed < JUDGED {
            return Vec::new();
        }
        let now: Vec<QueueCounts> = ports.iter().map(|port| port.counts).collect();
        let mut notes = Vec::new();
        for (i, port) in ports.iter_mut().enumerate() {
            let before = self.before.get(i).copied().unwrap_or_default();
            for (count, before) in [
                (&mut port.counts.rx_packets, before.rx_packets),
                (&mut port.counts.wakeups, before.wakeups),
                (&mut port.counts.hold_ends, before.hold_ends),
            ] {
                *count = count.saturating_sub(before);
            }
            if !self.said.contains(&port.name)
                && let Some(why) = poorly_used(port, passed)
            {
                notes.push(format!("note: port '{}': {why}\n", port.name));
                self.said.push(port.name.clone());
            }
            // One hold may be that of a burst: the last check must have found one, too.
            let why = port.queues.iter().find_map(|queue| queue.moderation.cut_by_ring());
            let was_cut = self.cut.contains(&port.name);
            self.cut.retain(|name| *name != port.name);
            let Some(why) = why.filter(|_| !self.said_cut.contains(&port.name)) else { continue };
            self.cut.push(port.name.clone());
            if was_cut {
                notes.push(format!("note: port '{}': {why}\n", port.name));
                self.said_cut.push(port.name.clone());
            }
        }
        (self.checked, self.before) = (time, now);
        notes
    }
}
