//! A bench of the engine: its windows, its profile, its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_datapath::Worker;
use linerate_prof::profile::Profile;
use linerate_prof::sample::{Recorder, Target, What};
use linerate_prof::{cpu_time, ticks};
use linerate_skb::Ledger;

use super::beyond::{self, Beyond};
use super::config::Config;
use super::device::Link;
use super::irq::Irq;
use super::path::Reading;
use super::path::{self, Gauge};
use super::turning::{Done, empty, nanos};
use crate::far::Seen;
use crate::scenario::crew::Crew;
use crate::scenario::{Bench, Finished, LEAD_IN, Ledger as Books, check, free_matrix, pages};
use crate::window::Window;
use crate::{Code, Error, Result};

/// Samples for each second of CPU time: a prime number, so that they do not run in step with the
/// kernel's timers.
const HZ: u32 = 1999;
/// Share of a window by which the source of packets may be late.
const LATE_MAX: f64 = 0.01;
/// The longest wait for another process to empty its ring, in each of the [`DRAINS`] rounds.
const TAKEN: Duration = Duration::from_millis(100);
/// Most rounds in which a path is emptied at its end; each round empties up to a full ring.
const DRAINS: u32 = 64;

/// The note for a side whose buffers come from the system's allocator.
const TRIMMED: &str = "general buffers: where a burst is freed at once, glibc gives the memory at the top \
     of its arena back to the kernel and takes it again for the next one; that is in the cost, and may be \
     most of it";

/// The note for a side with a device.
const OF_A_DEVICE: &str = "the device writes into frames on either side; general: each packet is then copied into a block of the \
     allocator's, as by a driver that copies out of its ring";

/// The note for a side whose device is a veth pair.
const OF_VETH: &str = "a veth pair has no wire and no interrupt: the kernel copies each packet into AF_XDP's frame on the \
     sender's CPU, and that is in no cost here";

/// The note for a side whose device is a card.
const OF_CARDS: &str = "cards: an interrupt of a card is in the cost if it comes on the measured thread's CPU while that thread runs";

/// The note for a side whose adapter holds its interrupt.
const OF_AN_IRQ: &str =
    "MODEL: the adapter's interrupt is an eventfd and a timer of Linux, and no interrupt of a CPU";

/// One side, ready to run.
pub(super) struct EngineBench {
    crew: Crew<Duration, Done>,
    gauge: Gauge,
    irq: Option<Arc<Irq>>,
    /// The counts of all windows.
    done: Done,
    threads: usize,
    beyond: Option<Beyond>,
    /// The link of a device, dropped last.
    link: Option<Link>,
    /// The CPUs of the path and of the other process. Empty without another process, because the
    /// threads then report their CPUs.
    cpus: Vec<usize>,
    /// The results of the other process in all windows.
    seen: Seen,
    /// The fault at the other process since the last window began, if there was one: it also voids
    /// the next window, because a lead-in and a warm-up count nowhere themselves.
    fault: Option<String>,
}

impl EngineBench {
    /// Sets up the side; its threads wait.
    pub fn open(
        config: &Config,
        cpus: &[usize],
        beyond: Option<Beyond>,
        link: Option<Link>,
    ) -> Result<EngineBench> {
        let irq = config.hold_usecs.map(|usecs| Irq::new(usecs, config.hold_frames)).transpose()?;
        let (crew, gauge) =
            path::build(config, cpus, beyond.as_ref(), link.as_ref(), irq.as_ref())?;
        let mut all = cpus.to_vec();
        all.extend(beyond.as_ref().map(Beyond::cpu).filter(|cpu| !cpus.contains(cpu)));
        Ok(EngineBench {
            crew,
            gauge,
            irq,
            done: Done::default(),
            threads: config.threads,
            // If all threads are in this process, they report their CPUs themselves.
            cpus: if beyond.is_some() { all } else { Vec::new() },
            beyond,
            link,
            seen: Seen::default(),
            fault: None,
        })
    }

    fn measure(&mut self, time: Duration) -> Result<Window> {
        let earlier = self.fault.take();
        if let Some(beyond) = &mut self.beyond {
            let between = beyond.begin()?;
            self.seen += &between;
            self.fault = between.fault();
        }
        let before = Reading::of(&self.gauge, self.irq.as_ref());
        let (start, from) = (Instant::now(), ticks());
        self.crew.order(&time);
        let collected = self.crew.collect();
        let (wall_ns, to) = (nanos(start.elapsed()).max(1), ticks());
        let (times, each) = collected?;
        let mut done = Done::default();
        each.into_iter().for_each(|one| done += one);
        let after = Reading::of(&self.gauge, self.irq.as_ref());
        let seen = self.beyond.as_mut().map(Beyond::end).transpose()?;
        self.done += done;
        let tick_hz = to.wrapping_sub(from) as f64 * 1e9 / wall_ns as f64;
        let mut window = Window::of(times);
        after.since(&before, &done, tick_hz, &mut window);
        if let Some(seen) = seen {
            self.seen += &seen;
            self.fault = seen.fault().or(self.fault.take());
            beyond::tell(seen, &mut window);
        }
        // The runner discards some windows, whose faults count nowhere else.
        let before = || earlier.map(|why| format!("before this window: {why}"));
        window.void = self.fault.clone().or_else(before);
        window.disturbed = disturbed(&window, &done);
        Ok(window)
    }
}

/// Returns the reason why a window's rates do not count: its source of packets was late, and the
/// path was not the cause.
///
/// Packets that were lost or not sent are no reason: a slow path also loses and delays packets, and
/// the window measures that ([`unsent`](super::reading)). The runner checks whether a thread lacked
/// its CPU.
fn disturbed(window: &Window, done: &Done) -> Option<String> {
    // Late bursts are counted separately. If they are most of a window, too few others remain.
    if done.late > done.offered / 2 {
        let (late, offered) = (done.late, done.offered);
        return Some(format!(
            "the wire's own thread was late in bursts of {late} packets of {offered}, lost or not"
        ));
    }
    let limit_ns = window.wall_ns as f64 * LATE_MAX;
    if done.due > 0 && done.late_ns as f64 > limit_ns {
        let late_us = done.late_ns / 1000;
        return Some(format!("a burst was late by {late_us} us: its thread was woken so late"));
    }
    None
}

impl Bench for EngineBench {
    fn window(&mut self, time: Duration) -> Result<Window> {
        self.measure(time)
    }

    fn lead_in(&mut self) -> Result<()> {
        // The lead-in counts nowhere, so its fault and that of the window before it void the next.
        let earlier = self.fault.clone();
        self.measure(LEAD_IN)?;
        self.fault = self.fault.take().or(earlier);
        Ok(())
    }

    fn cpus(&self) -> Vec<usize> {
        self.cpus.clone()
    }

    fn pages(&self) -> Option<String> {
        pages(self.gauge.pool())
    }

    fn profile(&mut self, time: Duration) -> Result<Vec<Profile>> {
        let mut recording = Recorder::new(What::Time { hz: HZ }).start(Target::ThisProcess)?;
        // No polls are needed during the window: the kernel's buffers hold the samples of several
        // seconds.
        let from = cpu_time();
        let window = self.measure(time);
        recording.poll(Duration::ZERO)?;
        let cpu_ns = nanos(cpu_time().saturating_sub(from));
        let mut profile = recording.finish()?;
        profile.conditions.cpu_ns = Some(cpu_ns);
        profile.conditions.packets = Some(window?.packets);
        check(&mut profile, HZ, "all threads of the path");
        Ok(vec![profile])
    }

    fn finish(self: Box<Self>) -> Result<Finished> {
        let EngineBench { crew, gauge, irq, done, threads, beyond, mut seen, link, .. } = *self;
        let matrix = gauge.memory().matrix;
        let cpus = matrix.cpus().to_vec();
        let mut totals = totals(&gauge);
        let patience = if beyond.is_some() { TAKEN } else { Duration::ZERO };
        drain(crew.dismiss()?, patience)?;
        let is_alone = beyond.is_none();
        if let Some(mut beyond) = beyond {
            seen += &beyond.end()?;
            totals.extend(seen.totals());
        }
        let ledger = gauge.ledger();
        totals.insert("outstanding_at_rest".to_owned(), ledger.in_flight as f64);
        let rows = cpus.iter().enumerate();
        totals.extend(rows.map(|(i, cpu)| (format!("free_matrix_cpu: row {i}"), *cpu as f64)));
        let mut notes = Vec::new();
        if threads == 2 {
            notes.push("two threads: the cost has the way between their CPUs in it".to_owned());
        }
        if let Some(link) = &link {
            notes.push(if link.is_veth() { OF_VETH } else { OF_CARDS }.to_owned());
            notes.push(OF_A_DEVICE.to_owned());
        }
        if irq.is_some() {
            notes.push(OF_AN_IRQ.to_owned());
        }
        if let Some(stats) = gauge.engine() {
            notes.extend(warnings(stats.warnings()));
        }
        if cfg!(target_env = "gnu") && gauge.has_general() {
            notes.push(TRIMMED.to_owned());
        }
        let ledger = books(&gauge, &ledger, &done, is_alone);
        Ok(Finished { ledger, matrices: free_matrix(&matrix), totals, notes })
    }
}

/// Returns the engine's warnings without repetition, because each worker has the same.
fn warnings(warnings: &[String]) -> BTreeSet<String> {
    let of_worker = |warning: &String| match warning.split_once(": ") {
        Some((worker, what)) if worker.starts_with("worker ") => what.to_owned(),
        _ => warning.clone(),
    };
    warnings.iter().map(of_worker).collect()
}

/// Returns the figures of the whole side: memory, frames, packets outstanding, hot lists.
fn totals(gauge: &Gauge) -> BTreeMap<String, f64> {
    let (pool, stats, ledger) = (gauge.pool(), gauge.memory(), gauge.ledger());
    let mut totals = BTreeMap::from([
        ("memory_bytes".to_owned(), stats.memory_bytes() as f64),
        ("mapped_bytes".to_owned(), stats.mapped_bytes as f64),
        ("pool_frames".to_owned(), pool.frames() as f64),
        ("frame_bytes".to_owned(), pool.frame_size() as f64),
        ("outstanding".to_owned(), ledger.in_flight as f64),
    ]);
    for core in stats.cores.iter().filter(|core| core.alive && core.hot_list_len > 0) {
        totals.insert(format!("hot_list_len: {}", core.name), core.hot_list_len as f64);
    }
    for (holder, packets) in ledger.held().iter().filter(|(_, packets)| *packets > 0) {
        totals.insert(format!("outstanding: {holder}"), *packets as f64);
    }
    totals
}

/// Sends the packets that are still in flight and ends the workers, the source's first in each
/// round.
fn drain(mut workers: Vec<Worker>, patience: Duration) -> Result<()> {
    let failed =
        |e: std::io::Error| Error::new(Code::System, "cannot drain a worker", e.to_string());
    for _ in 0..DRAINS {
        let mut left = true;
        for worker in &mut workers {
            left &= worker.drain(patience).map_err(failed)?;
            empty(worker);
        }
        if left {
            break;
        }
    }
    // Empty every worker again: in the loop, a receiver may have been emptied before the source's
    // last packets reached it.
    workers.iter_mut().for_each(empty);
    Ok(())
}

/// Builds the ledger of all packets of a side whose workers have ended; `is_alone` is true without
/// another process.
fn books(gauge: &Gauge, ledger: &Ledger, done: &Done, is_alone: bool) -> Books {
    let mut books = Books::from(ledger);
    let overruns = [
        ("ring_full", done.ring_full),
        ("ring_no_frame", done.no_frame),
        ("wire_late", done.wire_late),
    ];
    let mut lost = 0;
    for (cause, n) in overruns.into_iter().filter(|(_, n)| *n > 0) {
        books.dropped.insert(cause.to_owned(), n);
        lost += n;
    }
    // Packets lost by overruns also count as received, because the pool's ledger does not include
    // them.
    books.received += lost;
    // A packet that is left has leaked. In a side with another process it may be one that memif's
    // control thread still has, which frees such packets after the end of the connection.
    books.balanced = ledger.is_drained() || !is_alone && ledger.difference() == 0;
    match gauge {
        Gauge::Engine(stats) | Gauge::Device(stats, _) => {
            let verified = stats.ports().into_iter().find_map(|port| port.verified);
            books.reordered = verified.map(|found| found.reordered);
            books.duplicated = verified.map(|found| found.duplicated);
        }
        Gauge::Pool(..) => {
            books.offered = Some(done.offered);
            books.balanced &= done.offered == done.packets + done.fabric_full + lost;
        }
    }
    books
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_datapath::Engine;

    #[test]
    fn a_packet_that_is_left_withholds_the_results_of_a_side_without_another_process() {
        let ports = Engine::builder().port("in", "null:").port("out", "null:");
        let engine = ports.wire("in", "out").build().unwrap();
        let gauge = Gauge::Engine(engine.stats());
        let skb = gauge.pool().local().alloc_one();
        let ledger = gauge.ledger();
        assert_eq!((ledger.in_flight, ledger.difference()), (1, 0), "{ledger}");
        let is_balanced = |is_alone| books(&gauge, &ledger, &Done::default(), is_alone).balanced;
        assert_eq!([true, false].map(is_balanced), [false, true]);
        drop(skb);
        assert!(books(&gauge, &gauge.ledger(), &Done::default(), true).balanced);
    }
}
