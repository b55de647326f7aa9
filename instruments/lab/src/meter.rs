//! Measurement of the calling thread: time on a CPU, time waiting for a CPU, events.
//!
//! A window has two edges, and what an edge reads is nested: the counters of the CPU innermost,
//! then the wall, then what the kernel accounts. So the events are those of the window's code and
//! of no clock, and the run delay is that of the wall time or of a little more. An edge costs a few
//! system calls, which are not subtracted.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use linerate_prof::pmu::{Counting, Counts, Event, Quantity, capacity};
use linerate_sys::thread::{Account, Accounted};

use crate::window::{PmuCount, ThreadTime};
use crate::{Code, Error, Result};

/// The events to count, as many as can be counted together: first those of every CPU, then those of
/// cache lines moving between cores, then those of posts 000 and 003.
const WANTED: [Quantity; 7] = [
    Quantity::Instructions,
    Quantity::Cycles,
    Quantity::LinesFromOtherCore,
    Quantity::L2LinesOut,
    Quantity::L2LinesIn,
    Quantity::L1dMisses,
    Quantity::LlcMisses,
];

/// A meter of the thread that created it. The meter cannot move to another thread.
#[derive(Debug)]
pub struct Meter {
    role: String,
    cpu: Option<usize>,
    measured: bool,
    account: Result<Account>,
    counting: Result<Counting>,
    begun: Option<(Accounted, Instant)>,
}

impl Meter {
    /// Creates a meter of the calling thread, which its creator has pinned to `cpu`; `measured` is
    /// true if the thread's cost belongs to the side.
    ///
    /// Cost: opens a file and some counters, and where there are counters the first one of a
    /// process finds out for some milliseconds which of them count. Not for a window.
    #[must_use]
    pub fn of_this_thread(role: &str, cpu: Option<usize>, measured: bool) -> Meter {
        let account = Account::of_this_thread();
        let counting = countable().as_ref().map_err(Error::clone);
        let counting = counting.and_then(|events| Counting::of_this_thread(events));
        Meter { role: role.into(), cpu, measured, account, counting, begun: None }
    }

    /// Begins a window.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` where the kernel does not account for it.
    pub fn start(&mut self) -> Result<()> {
        let accounted = self.account.as_ref().map_err(Error::clone)?.read()?;
        self.begun = Some((accounted, Instant::now()));
        if let Ok(counting) = &mut self.counting {
            counting.start()?;
        }
        Ok(())
    }

    /// Ends the window and returns its cost.
    ///
    /// # Errors
    /// As above, and `E-SYSTEM` if it was not begun.
    pub fn stop(&mut self) -> Result<ThreadTime> {
        let counts = match &mut self.counting {
            Ok(counting) => Some(counting.read_shared()?),
            Err(_) => None,
        };
        let end = Instant::now();
        let after = self.account.as_ref().map_err(Error::clone)?.read()?;
        let Some((before, start)) = self.begun.take() else {
            let why = "it was not begun";
            return Err(Error::new(Code::System, "cannot end a measurement", why));
        };
        Ok(ThreadTime {
            role: self.role.clone(),
            cpu: self.cpu,
            wall_ns: ns(end.duration_since(start)),
            cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
            run_delay_ns: after.run_delay_ns.saturating_sub(before.run_delay_ns),
            runs: after.runs.saturating_sub(before.runs),
            nivcsw: after.preemptions.saturating_sub(before.preemptions),
            pmu: counts.iter().flat_map(named).collect(),
            measured: self.measured,
        })
    }
}

/// Returns the events of [`WANTED`] that this machine can count together; the first call determines
/// them.
fn countable() -> &'static Result<Vec<Event>> {
    static COUNTABLE: OnceLock<Result<Vec<Event>>> = OnceLock::new();
    COUNTABLE.get_or_init(|| {
        let mut events: Vec<Event> = Vec::new();
        for event in WANTED.iter().filter_map(|quantity| Event::of(*quantity).ok()) {
            events.push(event);
            if !capacity().holds(&events) {
                events.pop();
            }
        }
        // The number of events fits the counters, but a counter may not support an event: try, and
        // drop the last event until counting starts.
        loop {
            match Counting::of_this_thread(&events) {
                Ok(_) => return Ok(events),
                Err(_) if events.len() > 1 => events.pop(),
                Err(why) => return Err(why_none(why)),
            };
        }
    })
}

/// Returns the machine's reason why it cannot count events, if known; else `error`.
fn why_none(error: Error) -> Error {
    match &capacity().why_none {
        Some(why) => Error::new(Code::Unsupported, "cannot count a CPU's events", why.as_str())
            .fix("run on hardware, or give the virtual machine a PMU"),
        None => error,
    }
}

fn named(counts: &Counts) -> impl Iterator<Item = (String, PmuCount)> {
    // Events that were counted for all but a thousandth of the enabled time are exact: report 100
    // %.
    let running_pct = if counts.is_whole() { 100.0 } else { counts.running_pct() };
    let count =
        move |(event, value): (&Event, u64)| (event.name.clone(), PmuCount { value, running_pct });
    counts.counted.iter().map(|counted| (&counted.event, counted.count)).map(count)
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(meter: &mut Meter) -> bool {
        linerate_testing::unless(meter.start(), linerate_sys::thread::keeps_no_account).is_some()
    }

    #[test]
    fn a_thread_is_on_a_cpu_or_waits_for_one_or_sleeps() {
        let mut meter = Meter::of_this_thread("worker 0", None, true);
        if !begun(&mut meter) {
            return;
        }
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        let spun = meter.stop().unwrap();
        assert_eq!((spun.role.as_str(), spun.cpu, spun.measured), ("worker 0", None, true));
        assert!(spun.wall_ns >= 20_000_000, "{spun:?}");
        // This thread never sleeps, so it is on a CPU or waits for one. The rest of the wall time
        // was taken by the host or by interrupts.
        assert!(spun.cpu_ns + spun.run_delay_ns <= spun.wall_ns + 1_000_000, "{spun:?}");
        assert!(spun.cpu_ns > 0, "{spun:?}");
        assert!(begun(&mut meter));
        std::thread::sleep(Duration::from_millis(20));
        let slept = meter.stop().unwrap();
        assert!(slept.wall_ns >= 20_000_000 && slept.cpu_ns < slept.wall_ns / 2, "{slept:?}");
    }

    #[test]
    fn window_that_was_not_begun_cannot_end() {
        let mut meter = Meter::of_this_thread("worker 0", None, true);
        assert_eq!(meter.stop().unwrap_err().why, "it was not begun");
        if begun(&mut meter) {
            meter.stop().unwrap();
            assert!(meter.stop().is_err());
        }
    }

    #[test]
    fn events_are_counted_or_there_is_a_reason() {
        let mut meter = Meter::of_this_thread("worker 0", None, true);
        if !begun(&mut meter) {
            return;
        }
        let mut sum = 0u64;
        for turn in 0..1_000_000u64 {
            sum = std::hint::black_box(sum ^ turn);
        }
        let time = meter.stop().unwrap();
        match countable() {
            Ok(events) => {
                assert_eq!(time.pmu.len(), events.len());
                let counted = time.pmu.get("instructions").is_none_or(|n| n.value > 1_000_000);
                assert!(counted, "{time:?}");
            }
            Err(e) => assert!(time.pmu.is_empty() && !e.why.is_empty() && !e.fix.is_empty(), "{e}"),
        }
    }
}
