//! The time of a call, corrected for the cost of timing, and split into initialisation, allocator
//! and misses.

use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;

use linerate_skb::{Batch, Local, Pool};
use linerate_sys::tsc::{ticks, ticks_ordered};

use super::config::Config;
use crate::Result;

/// Time from which a call counts as interrupted, before the addition of [`INTERRUPTED_EACH`] for
/// each packet. The bound is fixed, so that the results do not decide which calls are left out.
const INTERRUPTED: Duration = Duration::from_micros(100);

/// Addition to that limit for each packet: about ten cache lines from another CPU, or an
/// allocator's slow path.
const INTERRUPTED_EACH: Duration = Duration::from_micros(1);

/// Number of empty calls whose median is the cost of timing.
const EMPTY_CALLS: usize = 1001;

/// A stopwatch for single calls.
///
/// Out-of-order CPUs return from a function before its stores are in the cache: a line that is
/// fetched from another CPU for a store is paid for later, in whatever waits for the store buffer.
/// A *settled* call waits for its own stores, and starts when those before it are done, so that
/// each call pays for the lines that it writes. Its readings of the clock keep their place by
/// fences of their own: a locked instruction keeps stores, and not `rdtsc`, in order. A *plain* one
/// is what a pair of `rdtsc` says, as in 2002.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    settled: bool,
    interrupted_ticks: u64,
    /// The measured time of an empty call.
    pub cost_ticks: u64,
}

/// Calls that were timed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Timed {
    /// Number of packets in the timed calls.
    pub packets: u64,
    /// The number of calls.
    pub calls: u64,
    /// Ticks of the timed calls, including the cost of timing.
    pub raw_ticks: u64,
    /// Packets in calls that took so long that they must have been interrupted; other figures do
    /// not include them.
    pub interrupted_packets: u64,
    /// The number of interrupted calls.
    pub interrupted_calls: u64,
}

impl Stopwatch {
    /// Measures the cost of timing on the calling thread's CPU, for calls of at most `batch`
    /// packets.
    pub fn calibrated(settled: bool, batch: usize, ticks_hz: f64) -> Stopwatch {
        let bound = INTERRUPTED + INTERRUPTED_EACH * u32::try_from(batch).unwrap_or(u32::MAX);
        let interrupted_ticks = (bound.as_secs_f64() * ticks_hz) as u64;
        let watch = Stopwatch { settled, interrupted_ticks, cost_ticks: 0 };
        let mut empty: Vec<u64> = (0..EMPTY_CALLS).map(|_| watch.time(|| ()).1).collect();
        empty.sort_unstable();
        let cost_ticks = empty.get(EMPTY_CALLS / 2).copied().unwrap_or(0);
        Stopwatch { cost_ticks, ..watch }
    }

    /// Runs `call`; returns its result and its duration in ticks.
    #[inline(always)]
    pub fn time<R>(&self, call: impl FnOnce() -> R) -> (R, u64) {
        let start = self.now();
        let result = call();
        (result, self.now().saturating_sub(start))
    }

    /// Reads the counter; if `settled`, after every earlier store has reached the cache, and before
    /// anything later.
    #[inline(always)]
    fn now(&self) -> u64 {
        if self.settled {
            fence(Ordering::SeqCst);
            ticks_ordered()
        } else {
            ticks()
        }
    }

    /// Runs `call`, which returns its number of packets, and counts it in `timed`. A call without
    /// packets does not count, because the pool was empty.
    #[inline(always)]
    pub fn count(&self, timed: &mut Timed, call: impl FnOnce() -> usize) -> usize {
        let (packets, ticks) = self.time(call);
        let n = packets as u64;
        match n {
            0 => {}
            _ if ticks > self.interrupted_ticks => {
                timed.interrupted_calls += 1;
                timed.interrupted_packets += n;
            }
            _ => {
                timed.calls += 1;
                timed.packets += n;
                timed.raw_ticks += ticks;
            }
        }
        packets
    }

    /// Returns the ticks of timed calls without the cost of timing: at least 0.
    pub fn ticks(&self, timed: &Timed) -> f64 {
        timed.raw_ticks.saturating_sub(timed.calls.saturating_mul(self.cost_ticks)) as f64
    }

    /// Returns the ticks for each packet; `None` if none was timed.
    pub fn per_packet(&self, timed: &Timed) -> Option<f64> {
        (timed.packets > 0).then(|| self.ticks(timed) / timed.packets as f64)
    }

    /// Returns the ticks of all packets; interrupted packets count with the mean of the others.
    pub fn of_all(&self, timed: &Timed) -> Option<f64> {
        self.per_packet(timed).map(|ticks| ticks * timed.all() as f64)
    }
}

impl Timed {
    /// Returns the number of packets, including those of interrupted calls.
    pub fn all(&self) -> u64 {
        self.packets + self.interrupted_packets
    }

    /// Returns the sum of these times and `other`.
    pub fn plus(&self, other: &Timed) -> Timed {
        Timed {
            packets: self.packets + other.packets,
            calls: self.calls + other.calls,
            raw_ticks: self.raw_ticks + other.raw_ticks,
            interrupted_packets: self.interrupted_packets + other.interrupted_packets,
            interrupted_calls: self.interrupted_calls + other.interrupted_calls,
        }
    }
}

// At the end of a window, three loops run over a few packets of a separate pool:
//
// ```text
//  warm   one CPU      alloc, free, alloc, free …     every line in its cache      init + allocator
//  init   one CPU      renew, renew …                 the same lines, only init    init
//  cold   two CPUs     renew there, renew here …      lines that the other wrote   init + miss
// ```
//
// *Allocator* is warm less init. *Miss* is the cost of a packet of the window above the warm cost:
// cache lines from other caches, lists to refill, and other costs of crossing CPUs.

/// Rounds of a measurement: with 32 packets a call they take about 100 µs, less than 1 % of a short
/// window.
const ROUNDS: usize = 32;
/// Number of first rounds that do not count, because they refill the cache after the window.
const UNCOUNTED: usize = 4;

/// The first CPU's part of the probe, which splits the cost of a call.
pub(super) struct Probe {
    mem: Local,
    batch: Batch,
    packets: usize,
}

/// The parts of the cost, in calls and packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Split {
    pub warm_alloc: Timed,
    pub warm_free: Timed,
    pub init: Timed,
    /// Initialisation by the second CPU.
    pub init_cold: Timed,
}

/// A path for packets from one CPU to another and back.
pub(super) struct Way {
    pub to: SyncSender<Batch>,
    pub from: Receiver<Batch>,
}

impl Probe {
    /// Creates a probe with its own pool, which has the policies of `config`, so that the side's
    /// accounting covers only its own traffic.
    pub fn new(config: &Config) -> Result<(Pool, Probe)> {
        // The product fits: a batch has at most 1024 packets.
        let pool = config.pool(4 * config.batch as u32)?;
        let mem = pool.local_named("split", config.batch);
        let (batch, packets) = (Batch::with_capacity(config.batch), config.batch);
        Ok((pool, Probe { mem, batch, packets }))
    }

    /// Measures the parts of the cost that one CPU can measure alone.
    pub fn measure(&mut self, watch: &Stopwatch) -> Split {
        let mut split = Split::default();
        let (batch, mem, packets) = (&mut self.batch, &mut self.mem, self.packets);
        for round in 0..ROUNDS {
            let mut rest = Split::default();
            let split = if round < UNCOUNTED { &mut rest } else { &mut split };
            watch.count(&mut split.warm_alloc, || mem.alloc(batch, packets));
            watch.count(&mut split.warm_free, || consume(batch, mem));
        }
        mem.alloc(batch, packets);
        for round in 0..ROUNDS {
            let mut rest = Timed::default();
            let timed = if round < UNCOUNTED { &mut rest } else { &mut split.init };
            watch.count(timed, || batch.renew());
        }
        batch.consume(mem);
        split
    }

    /// Sends cache lines that it has just written to the other CPU and receives them back, until
    /// all rounds are done or the other CPU has ended.
    pub fn serve(&mut self, way: &Way) {
        self.mem.alloc(&mut self.batch, self.packets);
        for _ in 0..ROUNDS {
            self.batch.renew();
            let batch = std::mem::replace(&mut self.batch, Batch::with_capacity(1));
            if way.to.send(batch).is_err() {
                break;
            }
            match taken(&way.from) {
                Some(batch) => self.batch = batch,
                None => break,
            }
        }
        self.batch.consume(&mut self.mem);
    }
}

/// Returns the second CPU's part: initialises lines that the first has just written.
pub(super) fn measure_cold(way: &Way, own: &mut Batch, watch: &Stopwatch) -> Timed {
    let mut timed = Timed::default();
    for round in 0..ROUNDS {
        let Some(mut batch) = taken(&way.from) else { break };
        let mut rest = Timed::default();
        let timed = if round < UNCOUNTED { &mut rest } else { &mut timed };
        // Move the handles before the timing starts: their cache lines came from the other CPU,
        // too, and are not part of the measured cost.
        batch.move_to(own, usize::MAX);
        watch.count(timed, || own.renew());
        own.move_to(&mut batch, usize::MAX);
        if way.to.send(batch).is_err() {
            break;
        }
    }
    timed
}

/// Waits for the next batch; returns `None` if no sender is left. Waiting spins, as in the window
/// before.
fn taken(from: &Receiver<Batch>) -> Option<Batch> {
    loop {
        match from.try_recv() {
            Ok(batch) => return Some(batch),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// Frees all packets of the batch; returns their number.
pub(super) fn consume(batch: &mut Batch, mem: &mut Local) -> usize {
    let packets = batch.len();
    batch.consume(mem);
    packets
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    use crate::settings::Settings;

    fn watch(cost_ticks: u64) -> Stopwatch {
        Stopwatch { settled: true, interrupted_ticks: u64::MAX, cost_ticks }
    }

    #[test]
    fn cost_of_timing_is_measured_and_bounded() {
        for settled in [true, false] {
            let watch = Stopwatch::calibrated(settled, 32, 1e9);
            // Even on a slow machine and without optimization the cost of timing is far below 100
            // µs.
            assert!(watch.cost_ticks < watch.interrupted_ticks, "{watch:?}");
        }
    }

    #[test]
    fn a_longer_batch_may_take_longer() {
        let bound = |batch| Stopwatch::calibrated(true, batch, 1e9).interrupted_ticks;
        assert_eq!((bound(1), bound(1024)), (101_000, 1_124_000));
    }

    #[test]
    fn no_subtraction_makes_a_time_negative() {
        let timed = Timed { packets: 32, calls: 3, raw_ticks: 100, ..Timed::default() };
        assert_eq!(watch(20).ticks(&timed), 40.0);
        assert_eq!(watch(20).per_packet(&timed), Some(1.25));
        for cost_ticks in [34, 1 << 40, u64::MAX] {
            assert_eq!(watch(cost_ticks).ticks(&timed), 0.0);
        }
    }

    #[test]
    fn an_interrupted_call_counts_its_packets_and_not_its_ticks() {
        let mut timed = Timed::default();
        let watch = Stopwatch { interrupted_ticks: 0, ..watch(0) };
        let long = || {
            // Every clock measures this sleep as more than 0.
            std::thread::sleep(std::time::Duration::from_millis(1));
            32
        };
        assert_eq!(watch.count(&mut timed, long), 32);
        assert_eq!((timed.calls, timed.packets, timed.raw_ticks), (0, 0, 0));
        assert_eq!((timed.interrupted_calls, timed.all()), (1, 32));
        assert_eq!(watch.of_all(&timed), None);
        let timed = Timed { packets: 32, calls: 1, raw_ticks: 64, ..timed };
        assert_eq!(watch.of_all(&timed), Some(128.0));
    }

    #[test]
    fn a_call_that_found_nothing_is_no_call() {
        let mut timed = Timed::default();
        watch(0).count(&mut timed, || 0);
        assert_eq!(timed, Timed::default());
    }

    fn ways() -> (Way, Way) {
        let ((there, here), (back, home)) = (sync_channel(1), sync_channel(1));
        (Way { to: there, from: home }, Way { to: back, from: here })
    }

    #[test]
    fn every_counted_round_is_of_a_whole_batch_and_nothing_stays_out() {
        for init in ["at_alloc", "at_free"] {
            let config = Config::of(&Settings::new().with("init", init).with("batch", 7)).unwrap();
            let (pool, mut probe) = Probe::new(&config).unwrap();
            let watch = Stopwatch::calibrated(true, config.batch, 1e15);
            let split = probe.measure(&watch);
            let expected = (7 * (ROUNDS - UNCOUNTED)) as u64;
            for timed in [split.warm_alloc, split.warm_free, split.init] {
                assert_eq!(timed.all(), expected);
            }
            let (first, second) = ways();
            let far = std::thread::spawn(move || {
                measure_cold(&second, &mut Batch::with_capacity(7), &watch)
            });
            probe.serve(&first);
            assert_eq!(far.join().unwrap().all(), expected);
            assert!(pool.ledger().is_drained(), "{}", pool.ledger());
        }
    }

    #[test]
    fn a_peer_that_is_gone_ends_it_without_losing_a_packet() {
        let config = Config::of(&Settings::new()).unwrap();
        let (pool, mut probe) = Probe::new(&config).unwrap();
        let (first, second) = ways();
        drop(second);
        probe.serve(&first);
        assert!(pool.ledger().is_drained(), "{}", pool.ledger());
        let (first, second) = ways();
        drop(first);
        let watch = Stopwatch::calibrated(false, 1, 1e9);
        assert_eq!(measure_cold(&second, &mut Batch::with_capacity(1), &watch).all(), 0);
    }
}
