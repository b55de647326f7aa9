//! Split of a packet's cost into initialisation, the allocator, and cache misses.
//!
//! Three loops over a few packets of a pool of their own, at the end of a window:
//!
//! ```text
//!  warm   one CPU      alloc, free, alloc, free …     every line in its cache      init + allocator
//!  init   one CPU      renew, renew …                 the same lines, only init    init
//!  cold   two CPUs     renew there, renew here …      lines that the other wrote   init + miss
//! ```
//!
//! *Allocator* is warm less init. What a packet of the window costs beyond warm is *miss*: lines
//! that were elsewhere, lists that had to be refilled, whatever crossing CPUs brings.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};

use linerate_skb::{Batch, Local, Pool};

use super::config::Config;
use super::stopwatch::{Stopwatch, Timed};
use crate::Result;

/// Times round: with 32 packets a call about 100 µs together, less than 1 % of a short window.
const ROUNDS: usize = 32;
/// The number of first rounds that do not count: they refill the cache after the window.
const UNCOUNTED: usize = 4;

/// The first CPU's part.
pub(super) struct Probe {
    mem: Local,
    batch: Batch,
    packets: usize,
}

/// The results, in calls and packets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Split {
    pub warm_alloc: Timed,
    pub warm_free: Timed,
    pub init: Timed,
    /// By the second CPU.
    pub init_cold: Timed,
}

/// A way for packets from a CPU to another and back.
pub(super) struct Way {
    pub to: SyncSender<Batch>,
    pub from: Receiver<Batch>,
}

impl Probe {
    /// Creates a probe and its own pool with the policies of `config`, so that the side's
    /// accounting covers its traffic only.
    pub fn new(config: &Config) -> Result<(Pool, Probe)> {
        // Fits: a batch has at most 1024.
        let pool = config.pool(4 * config.batch as u32)?;
        let mem = pool.local_named("split", config.batch);
        let (batch, packets) = (Batch::with_capacity(config.batch), config.batch);
        Ok((pool, Probe { mem, batch, packets }))
    }

    /// Measures the parts that one CPU can measure alone.
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

    /// Gives lines that it has just written to the other CPU, and takes them back, until all rounds
    /// are done or the other one is gone.
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

/// The second CPU's part: initialises lines that the first has just written.
pub(super) fn measure_cold(way: &Way, own: &mut Batch, watch: &Stopwatch) -> Timed {
    let mut timed = Timed::default();
    for round in 0..ROUNDS {
        let Some(mut batch) = taken(&way.from) else { break };
        let mut rest = Timed::default();
        let timed = if round < UNCOUNTED { &mut rest } else { &mut timed };
        // The handles are copied first: they came from the other CPU too, and are not what is timed.
        batch.move_to(own, usize::MAX);
        watch.count(timed, || own.renew());
        own.move_to(&mut batch, usize::MAX);
        if way.to.send(batch).is_err() {
            break;
        }
    }
    timed
}

/// Waits for the next batch; returns `None` if no sender is left. It spins, as the window that it
/// belongs to does.
fn taken(from: &Receiver<Batch>) -> Option<Batch> {
    loop {
        match from.try_recv() {
            Ok(batch) => return Some(batch),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// Frees all packets; returns how many.
pub(super) fn consume(batch: &mut Batch, mem: &mut Local) -> usize {
    let packets = batch.len();
    batch.consume(mem);
    packets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use std::sync::mpsc::sync_channel;

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
            assert_eq!((pool.ledger().in_flight, pool.ledger().difference()), (0, 0));
        }
    }

    #[test]
    fn a_peer_that_is_gone_ends_it_without_losing_a_packet() {
        let config = Config::of(&Settings::new()).unwrap();
        let (pool, mut probe) = Probe::new(&config).unwrap();
        let (first, second) = ways();
        drop(second);
        probe.serve(&first);
        assert_eq!((pool.ledger().in_flight, pool.ledger().difference()), (0, 0));
        let (first, second) = ways();
        drop(first);
        let watch = Stopwatch::calibrated(false, 1, 1e9);
        assert_eq!(measure_cold(&second, &mut Batch::with_capacity(1), &watch).all(), 0);
    }
}
