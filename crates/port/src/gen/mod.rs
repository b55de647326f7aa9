//! A source of paced, numbered, verifiable packets; [`sink`](crate::sink) verifies them.

mod pacer;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Result, Trust};
use linerate_sys::wait::TimerFd;
use linerate_wire::{Mac, stamp};

pub use pacer::Pacer;

use crate::driver::{Driver, Opened};
use crate::findings::Pace;
use crate::host::RETRY;
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
        if traffic.pps().is_some_and(|pps| pps > pacer::PPS_MAX) {
            let why =
                format!("more than {:e} packets a second cannot be told apart", pacer::PPS_MAX);
            return Err(spec.error(why).fix("a lower rate, or none: as fast as they are taken"));
        }
        Ok(traffic)
    }

    fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(stamp::FRAME_LEN_MIN)
    }

    fn mean_bytes(&self) -> f64 {
        self.sizes.iter().sum::<usize>() as f64 / self.sizes.len() as f64
    }

    /// Packets a second, if there is a pace to keep.
    fn pps(&self) -> Option<f64> {
        self.rate.map(|rate| rate.pps(self.mean_bytes()))
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
        if pool.trust() == Trust::Exported {
            let why = "frames are written in place, and a peer can write those of this pool";
            return Err(spec.error(why).fix("a pool that is not exported: Trust::Private"));
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
    /// The pool had no frame: when to try again.
    retry_at: Option<Instant>,
    /// `arm` has said that there will be no more.
    told_end: bool,
}

impl GenQueue {
    fn new(traffic: Traffic) -> Result<GenQueue> {
        let timer = TimerFd::new()?;
        // Readable from the start, for whoever waits before he arms. It cannot fail: the
        // descriptor is a timer.
        let _ = timer.set_at(Some(Instant::now()));
        Ok(GenQueue {
            pacer: traffic.pps().map(Pacer::rate),
            timer,
            made: 0,
            seq: vec![0; traffic.flows as usize],
            epoch: Instant::now(),
            retry_at: None,
            told_end: false,
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
            Some(pacer) => pacer.peek(now, most),
            None => most,
        };
        let before = out.len();
        let n = mem.alloc(out, due);
        // Those without a frame stay due, and are late once: when they are made.
        if let Some(pacer) = &mut self.pacer {
            pacer.issue(n, now);
        }
        self.retry_at = if n == 0 && due > 0 { now.checked_add(RETRY) } else { None };
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
        if self.left() == 0 {
            return std::mem::replace(&mut self.told_end, true);
        }
        if !want.frames() {
            return true;
        }
        let now = Instant::now();
        if let Some(at) = self.retry_at.filter(|&at| at > now) {
            return self.timer.set_at(Some(at)).is_ok();
        }
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
    fn a_wait_returns_once_when_the_last_packet_was_made() {
        let mut port = Port::open("gen:,count=1").unwrap();
        assert_eq!(port.rx(&mut Batch::with_capacity(4)), 1);
        // Without a bound: were it not told of the end, it would sleep for ever.
        assert!(port.wait(None).unwrap());
        assert_eq!(port.health(), Health::Finished);
        assert!(!port.wait(Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_packet_is_late_once_however_long_it_waits_for_a_frame() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let spec = crate::parse("gen:,rate=1Mpps").unwrap();
        let mut queue = GenQueue::new(Traffic::of(&spec).unwrap()).unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
        assert_eq!(queue.rx(&mut mem, &mut batch, 64), 1);
        std::thread::sleep(Duration::from_millis(1));
        let more: usize = (0..100).map(|_| queue.rx(&mut mem, &mut batch, 64)).sum();
        let pace = queue.pace().unwrap();
        // A median is stated from 20 observations on.
        assert_eq!((more, pace.asked, pace.late_p50_ns), (3, 4, None));
    }

    #[test]
    fn without_a_frame_it_sleeps_and_tries_again() {
        let pool = Pool::builder().frames(4).build().unwrap();
        for text in ["gen:", "gen:,rate=1Gpps"] {
            let mut port = Port::open_with(text, &pool).unwrap();
            let mut held = Batch::with_capacity(64);
            while port.rx(&mut held) > 0 || held.len() < 4 {}
            assert!(port.arm(Want::Frames), "{text}");
            assert!(port.wait(Some(Duration::from_secs(5))).unwrap(), "{text}");
            held.discard(DropReason::UNSENT);
            assert!(port.rx(&mut held) > 0, "{text}");
        }
    }

    #[test]
    fn a_pool_that_a_peer_writes_is_refused() {
        let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
        let e = Port::open_with("gen:", &pool).unwrap_err();
        assert!(e.why.contains("a peer can write"), "{e}");
    }

    #[test]
    fn impossible_traffic_is_refused() {
        for text in ["gen:,size=59", "gen:,size=70k", "gen:,flows=0", "gen:,rate=1", "gen:,n=1"] {
            assert!(Port::open(text).is_err(), "{text}");
        }
        for rate in ["1001Gpps", "1000000Gbps"] {
            let e = Port::open(&format!("gen:,rate={rate}")).unwrap_err();
            assert!(e.why.contains("1e12 packets"), "{e}");
        }
    }
}
