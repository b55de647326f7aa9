//! A source of paced, numbered, verifiable packets; [`sink`](crate::sink) verifies them.

mod pacer;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Result};
use linerate_sys::wait::TimerFd;
use linerate_wire::{Mac, stamp};

pub use pacer::{Pace, Pacer};

use crate::driver::{Driver, Opened};
use crate::obtained::{Direction, Obtained};
use crate::queue::{Health, Origin, QueueOps, Want};
use crate::spec::Spec;
use crate::units::{self, Rate};

/// Most flows numbered apart.
pub const FLOWS_MAX: u64 = 1 << 16;
/// Simple IMIX: 7 small, 4 middle and 1 full frame of every 12, in bytes without FCS.
const IMIX: [usize; 12] = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 60, 590];

/// The driver of `gen:[,rate=1Mpps][,size=60|imix][,flows=1][,count=N]`.
#[derive(Debug)]
pub struct Gen;

/// What is to be generated.
#[derive(Debug, Clone, PartialEq)]
struct Traffic {
    rate: Option<Rate>,
    sizes: Vec<usize>,
    flows: u64,
    count: u64,
}

/// A frame size in bytes without FCS, or `imix`.
fn sizes(text: &str) -> std::result::Result<Vec<usize>, String> {
    if text == "imix" {
        return Ok(IMIX.to_vec());
    }
    let n = units::count(text)? as usize;
    if (stamp::FRAME_LEN_MIN..=65_536).contains(&n) {
        Ok(vec![n])
    } else {
        Err(format!("a frame has {} to 65536 bytes without FCS", stamp::FRAME_LEN_MIN))
    }
}

fn flows(text: &str) -> std::result::Result<u64, String> {
    let n = units::count(text)?;
    if (1..=FLOWS_MAX).contains(&n) { Ok(n) } else { Err(format!("1 to {FLOWS_MAX}")) }
}

impl Traffic {
    fn of(spec: &Spec) -> Result<Traffic> {
        let traffic = Traffic {
            rate: spec.value("rate", units::rate)?,
            sizes: spec.value("size", sizes)?.unwrap_or(vec![stamp::FRAME_LEN_MIN]),
            flows: spec.value("flows", flows)?.unwrap_or(1),
            count: spec.value("count", units::count)?.unwrap_or(u64::MAX),
        };
        spec.finish()?;
        Ok(traffic)
    }

    fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(stamp::FRAME_LEN_MIN)
    }

    fn mean_bytes(&self) -> f64 {
        self.sizes.iter().sum::<usize>() as f64 / self.sizes.len() as f64
    }
}

impl Driver for Gen {
    fn name(&self) -> &'static str {
        "gen"
    }

    fn packet_max_bytes(&self, spec: &Spec) -> Result<usize> {
        Ok(Traffic::of(spec)?.longest())
    }

    fn open(&self, spec: &Spec, pool: &Pool) -> Result<Opened> {
        let traffic = Traffic::of(spec)?;
        let longest = traffic.longest();
        if longest > pool.data_room() {
            let why = format!("size {longest}: a frame of the pool holds {}", pool.data_room());
            return Err(spec.error(why).fix("generate smaller frames"));
        }
        let rate = traffic.rate.map_or("no pause".to_owned(), |r| r.to_string());
        let mode = format!("gen at {rate}");
        let obtained = Obtained::new(spec.name.clone(), mode, longest).direction(Direction::Source);
        Ok(Opened::single(GenQueue::new(traffic)?, obtained))
    }
}

struct GenQueue {
    traffic: Traffic,
    pacer: Option<Pacer>,
    timer: TimerFd,
    made: u64,
    /// Next sequence number of each flow.
    seq: Vec<u64>,
    epoch: Instant,
}

impl GenQueue {
    fn new(traffic: Traffic) -> Result<GenQueue> {
        let timer = TimerFd::new()?;
        // Readable from the start, for whoever waits before he arms. It cannot fail: the
        // descriptor is a timer.
        let _ = timer.set_at(Some(Instant::now()));
        Ok(GenQueue {
            pacer: traffic.rate.map(|r| Pacer::rate(r.pps(traffic.mean_bytes()))),
            timer,
            made: 0,
            seq: vec![0; traffic.flows as usize],
            epoch: Instant::now(),
            traffic,
        })
    }

    fn left(&self) -> u64 {
        self.traffic.count - self.made
    }
}

/// Locally administered addresses of the generator and of whoever listens.
const ENDS: [[u8; 6]; 2] = [Mac([2, 0, 0, 0, 0, 2]).0, Mac([2, 0, 0, 0, 0, 1]).0];

impl QueueOps for GenQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> usize {
        let now = Instant::now();
        let most = budget.min(out.spare()).min(usize::try_from(self.left()).unwrap_or(usize::MAX));
        let first = self.pacer.as_ref().map_or(0, Pacer::issued);
        let due = match &mut self.pacer {
            Some(pacer) => pacer.due_up_to(now, most),
            None => most,
        };
        let before = out.len();
        let n = mem.alloc(out, due);
        if let Some(pacer) = &mut self.pacer {
            pacer.put_back(due - n);
        }
        let now_ns = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        for (i, skb) in out.iter_mut().skip(before).enumerate() {
            let size = self.traffic.sizes[(self.made % self.traffic.sizes.len() as u64) as usize];
            let flow = (self.made % self.traffic.flows) as usize;
            let meant = self.pacer.as_ref().and_then(|p| p.intended(first + i as u64));
            let time_ns = meant
                .map_or(now_ns, |at| at.saturating_duration_since(self.epoch).as_nanos() as u64);
            let Some(frame) = skb.put(size) else { continue };
            frame[..6].copy_from_slice(&ENDS[0]);
            frame[6..12].copy_from_slice(&ENDS[1]);
            // Cannot fail: sizes are at least FRAME_LEN_MIN.
            let _ = stamp::write(frame, flow as u32, self.seq[flow], time_ns);
            self.seq[flow] += 1;
            self.made += 1;
        }
        n
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.discard_first(batch.len(), DropReason::UNSUPPORTED, mem);
        Moved::default()
    }

    fn arm(&mut self, want: Want) -> bool {
        self.timer.drain();
        if !want.frames() || self.left() == 0 {
            return true;
        }
        let now = Instant::now();
        match self.pacer.as_ref().map(|p| p.next(now)) {
            None => false,
            Some(after) if after.is_zero() => false,
            // If the timer cannot be set, it is better to be called too often than never.
            Some(after) => self.timer.set_at(now.checked_add(after)).is_ok(),
        }
    }

    fn health(&self) -> Health {
        if self.left() == 0 { Health::Finished } else { Health::Up }
    }

    fn origin(&self) -> Origin {
        Origin::Created
    }

    fn pace(&self) -> Option<Pace> {
        self.pacer.as_ref().map(Pacer::report)
    }
}

impl AsFd for GenQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Port;
    use std::time::Duration;

    #[test]
    fn frames_are_numbered_per_flow_and_verify() {
        let mut port = Port::open("gen:,size=imix,flows=3,count=24").unwrap();
        let mut batch = Batch::with_capacity(64);
        assert_eq!(port.rx(&mut batch), 24);
        for (i, skb) in batch.iter().enumerate() {
            let s = stamp::read(skb.data()).unwrap();
            assert_eq!((s.flow as usize, s.seq as usize), (i % 3, i / 3));
            assert_eq!(skb.len(), IMIX[i % 12]);
        }
        assert_eq!(port.health(), Health::Finished);
        assert_eq!(port.ledger().created, 24);
    }

    #[test]
    fn the_descriptor_is_readable_when_a_packet_is_due() {
        let mut port = Port::open("gen:,rate=100pps").unwrap();
        let mut batch = Batch::with_capacity(8);
        let start = Instant::now();
        let mut n = 0;
        while n < 4 {
            assert!(port.wait(Some(Duration::from_secs(5))).unwrap());
            n += port.rx(&mut batch);
        }
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert!(port.counts().polls_empty <= 1, "{:?}", port.counts());
    }

    #[test]
    fn impossible_traffic_is_refused() {
        for text in ["gen:,size=59", "gen:,size=70k", "gen:,flows=0", "gen:,rate=1", "gen:,n=1"] {
            assert!(Port::open(text).is_err(), "{text}");
        }
    }
}
