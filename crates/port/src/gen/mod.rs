//! A source of paced, numbered, verifiable packets; [`sink`](crate::sink) verifies them.

mod burst;
mod pacer;
mod target;
mod traffic;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use linerate_skb::{Batch, Data, DropReason, Local, Moved, Pool, Result, Skb, Trust};
use linerate_sys::clock::now_and_ns;
use linerate_sys::wait::TimerFd;
use linerate_wire::{Mac, UdpEnds, stamp};

pub(crate) use pacer::Lateness;
pub use pacer::Pacer;
pub use traffic::mean_frame_bytes;

use crate::caps::{Caps, Origin};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::host::RETRY;
use crate::obtained::{Direction, Obtained};
use crate::queue::{Health, QueueOps, Want};
use crate::spec::Spec;
use crate::stats::{Counters, Pace};
use burst::Burst;
use traffic::Traffic;

/// Most flows, each with its own sequence numbers.
pub const FLOWS_MAX: u64 = 1 << 16;
/// Most packets that the option `burst` can let leave together.
pub const BURST_MAX: u64 = 1024;

/// The driver of `gen:[rate=1Mpps[,rate_for=1s][,burst=N]][,size=60|imix][,flows=1][,count=N]`,
/// with the further options `to=ADDR:PORT[,dev=eth0][,mac=MAC][,from=ADDR:PORT]`. The rate holds
/// for `rate_for`, or to the end; after that time packets are generated as fast as they are
/// accepted.
#[derive(Debug)]
pub struct Gen;

impl Driver for Gen {
    fn name(&self) -> &'static str {
        "gen"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "gen:[rate=1Mpps[,rate_for=1s][,burst=N]][,size=60|imix][,flows=1][,count=N]",
            text: "a source of numbered packets; UDP datagrams with\n\
                to=ADDR:PORT,dev=eth0[,mac=MAC][,from=ADDR:PORT]",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { nameless: true, ends: true, generates: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(GenPlan { traffic: Traffic::of(spec)?, spec: spec.clone() }))
    }
}

struct GenPlan {
    spec: Spec,
    traffic: Traffic,
}

impl Plan for GenPlan {
    fn needs(&self) -> Result<Needs> {
        let packet_max_bytes = self.traffic.longest();
        Ok(Needs { packet_max_bytes, direction: Direction::Source, ..Needs::default() })
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let traffic = &self.traffic;
        let (longest, room) = (traffic.longest(), room(cx.pool()));
        if longest > room {
            let why = format!("size {longest}: a frame of the pool holds {room} bytes");
            let fix = "use smaller packets, or larger frames: --fit or --jumbo";
            return Err(self.spec.error(why).fix(fix));
        }
        let rate = traffic.rate.map_or("no pause".to_owned(), |r| r.to_string());
        let then = traffic.rate_for.map(|time| format!(" for {time:?}, then at the highest rate"));
        let burst = Burst::new(traffic.burst, traffic.pps().unwrap_or_default());
        let bursts = match traffic.burst {
            Some(n) if n > 1 => format!(" in bursts of {n}"),
            None if burst.gathers() => " in bursts of up to 1 ms".into(),
            _ => String::new(),
        };
        let ends = traffic.to.as_ref().map(|to| to.ends(&self.spec, longest)).transpose()?;
        let to = ends.map_or(String::new(), |ends| {
            format!(" from {} to {} by {}", ends.src, ends.dst, ends.dst_mac)
        });
        let mode = format!("gen at {rate}{bursts}{}{to}", then.unwrap_or_default());
        let obtained = Obtained::new(&self.spec.name, mode, longest).direction(Direction::Source);
        Ok(Opened::single(GenQueue::new(traffic.clone(), ends)?, obtained))
    }
}

/// Returns the length of the longest packet that fits in one frame of the pool.
fn room(pool: &Pool) -> usize {
    match pool.data_from() {
        Data::Frames => pool.data_room().max(pool.jumbo_room()),
        Data::General => usize::MAX,
    }
}

struct GenQueue {
    traffic: Traffic,
    /// The addresses of the first flow's datagrams, if packets are datagrams.
    ends: Option<UdpEnds>,
    longest: usize,
    pacer: Option<Pacer>,
    burst: Burst,
    /// The pacer whose time has ended, kept for the report.
    paced: Option<Pacer>,
    /// Buffer in which a packet is built if a peer can write its frame; the finished packet is
    /// copied to the frame.
    scratch: Vec<u8>,
    timer: TimerFd,
    made: u64,
    /// Index of the next size; the next field is the index of the next flow.
    size: usize,
    flow: usize,
    /// Next sequence number of each flow.
    seq: Vec<u64>,
    /// A moment, with its value on the monotonic clock, which all processes of the machine share.
    epoch: Instant,
    epoch_ns: u64,
    /// Time of the next attempt, after the pool had no frame.
    retry_at: Option<Instant>,
    rx_nombuf: u64,
    /// True if `arm` has reported the end.
    told_end: bool,
}

impl GenQueue {
    fn new(traffic: Traffic, ends: Option<UdpEnds>) -> Result<GenQueue> {
        let timer = TimerFd::new()?;
        let (epoch, epoch_ns) = now_and_ns();
        // Start readable, for callers that wait before they arm. Setting the timer cannot fail.
        let _ = timer.set_at(Some(Instant::now()));
        Ok(GenQueue {
            ends,
            longest: traffic.longest(),
            pacer: traffic.pps().map(Pacer::rate),
            burst: Burst::new(traffic.burst, traffic.pps().unwrap_or_default()),
            paced: None,
            scratch: Vec::new(),
            timer,
            made: 0,
            size: 0,
            flow: 0,
            seq: vec![0; traffic.flows as usize],
            epoch,
            epoch_ns,
            retry_at: None,
            rx_nombuf: 0,
            told_end: false,
            traffic,
        })
    }

    fn left(&self) -> u64 {
        self.traffic.count - self.made
    }

    /// Appends up to `want` empty packets, each in one frame with room for its size.
    fn alloc(&self, mem: &mut Local, out: &mut Batch, want: usize) -> usize {
        if self.longest <= mem.pool().data_room() {
            return mem.alloc(out, want);
        }
        // Allocate packets that need a longer frame than the usual one by one.
        let sizes = self.traffic.sizes.iter().cycle().skip(self.size).take(want);
        sizes.map_while(|&size| mem.alloc_len(size).and_then(|skb| out.push(skb).ok())).count()
    }

    /// Ends the pace if its time is over.
    fn end_pace(&mut self, now: Instant) {
        let over = |pacer: &mut Pacer| {
            let begun = pacer.intended(0).map(|at| now.saturating_duration_since(at));
            begun.zip(self.traffic.rate_for).is_some_and(|(since, time)| since >= time)
        };
        if let Some(pacer) = self.pacer.take_if(over) {
            self.paced = Some(pacer);
        }
    }

    /// Returns the time to write into packet `i` of the pacer: its intended time, or the present
    /// time without a pacer.
    #[inline(always)]
    fn time_ns(&self, i: u64, now_ns: u64) -> u64 {
        let meant = self.pacer.as_ref().and_then(|pacer| pacer.intended(i));
        meant.map_or(now_ns, |at| self.clock_ns(at))
    }

    /// Returns a moment as a value of CLOCK_MONOTONIC, which the packet's receiver can read as well.
    #[inline(always)]
    fn clock_ns(&self, at: Instant) -> u64 {
        self.epoch_ns + at.saturating_duration_since(self.epoch).as_nanos() as u64
    }

    /// Writes the next packet into `frame`, which has the right size, and counts the packet.
    #[inline(always)]
    fn write(&mut self, frame: &mut [u8], time_ns: u64) {
        let (flow, seq) = (self.flow as u32, self.seq[self.flow]);
        // These writes cannot fail: sizes are at least those that traffic.rs allows.
        if let Some(ends) = &self.ends {
            target::write(ends, frame, flow, seq, time_ns);
        } else {
            frame[..6].copy_from_slice(&ENDS[0]);
            frame[6..12].copy_from_slice(&ENDS[1]);
            let _ = stamp::write(frame, flow, seq, time_ns);
        }
        self.step();
    }

    /// Writes packets directly into their frames; returns the sum of their bytes.
    fn write_in_place<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a mut Skb>,
        first: u64,
        now_ns: u64,
    ) -> u64 {
        let mut bytes = 0;
        for (i, skb) in packets.enumerate() {
            let size = self.traffic.sizes[self.size];
            let time_ns = self.time_ns(first + i as u64, now_ns);
            let Some(frame) = skb.put(size) else { continue };
            self.write(frame, time_ns);
            bytes += size as u64;
        }
        bytes
    }

    /// Writes packets whose frames a peer can write: builds each in a buffer and copies it.
    #[cold]
    fn write_apart<'a>(
        &mut self,
        packets: impl Iterator<Item = &'a mut Skb>,
        first: u64,
        now_ns: u64,
    ) -> u64 {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(self.longest, 0);
        let mut bytes = 0;
        for (i, skb) in packets.enumerate() {
            let size = self.traffic.sizes[self.size];
            let time_ns = self.time_ns(first + i as u64, now_ns);
            let frame = &mut scratch[..size];
            self.write(frame, time_ns);
            skb.commit(size);
            bytes += skb.copy_from(0, frame) as u64;
        }
        self.scratch = scratch;
        bytes
    }

    /// Counts a packet, and advances to the next size and flow.
    fn step(&mut self) {
        self.seq[self.flow] += 1;
        self.made += 1;
        self.size = if self.size + 1 < self.traffic.sizes.len() { self.size + 1 } else { 0 };
        self.flow = if self.flow + 1 < self.seq.len() { self.flow + 1 } else { 0 };
    }
}

/// Locally administered MAC addresses of the generator and of the receiver.
const ENDS: [[u8; 6]; 2] = [Mac([2, 0, 0, 0, 0, 2]).0, Mac([2, 0, 0, 0, 0, 1]).0];

impl QueueOps for GenQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.burst.asked();
        let now = Instant::now();
        self.end_pace(now);
        let most = budget.min(out.spare()).min(usize::try_from(self.left()).unwrap_or(usize::MAX));
        let first = self.pacer.as_ref().map_or(0, Pacer::issued);
        let due = match &mut self.pacer {
            Some(pacer) => pacer.peek(now, most),
            None => most,
        };
        let before = out.len();
        let n = self.alloc(mem, out, due);
        // Packets without a frame stay due; their lateness is recorded once, when they are made.
        if let Some(pacer) = &mut self.pacer {
            pacer.issue(n, now);
        }
        self.rx_nombuf += u64::from(n < due);
        self.retry_at = if n == 0 && due > 0 { now.checked_add(RETRY) } else { None };
        let now_ns = self.clock_ns(now);
        let packets = out.iter_mut().skip(before);
        let bytes = match mem.pool().trust() {
            Trust::Private => self.write_in_place(packets, first, now_ns),
            Trust::Exported => self.write_apart(packets, first, now_ns),
        };
        if n > 0 && self.pacer.is_some() {
            self.burst.made();
        }
        Moved { packets: n, bytes }
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
        let together = self.burst.packets().min(self.left());
        match self.pacer.as_ref().map(|p| p.next_of(together, now)) {
            None => false,
            Some(after) if after.is_zero() => false,
            Some(after) => {
                self.burst.sleeps();
                // If the timer cannot be set, return false, so that the caller polls too often and
                // not too rarely.
                self.timer.set_at(now.checked_add(after)).is_ok()
            }
        }
    }

    fn health(&self) -> Health {
        if self.left() == 0 { Health::Finished } else { Health::Up }
    }

    fn counters(&mut self) -> Counters {
        // Every packet that is issued is made, and leaves the source.
        let report = |pacer: &Pacer| Pace { sent: pacer.issued(), ..pacer.report() };
        let pace = self.pacer.as_ref().or(self.paced.as_ref()).map(report);
        Counters { rx_nombuf: self.rx_nombuf, pace, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps { origin: Origin::Created, ..Caps::IN_PROCESS }
    }
}

impl AsFd for GenQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::traffic::IMIX;
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
    fn packets_of_a_burst_leave_by_one_wake_up_and_their_lateness_says_so() {
        let mut port = Port::open("gen:,rate=50kpps,burst=20,count=410").unwrap();
        assert_eq!(port.obtained().mode, "gen at 50kpps in bursts of 20");
        let (mut batch, mut wakes) = (Batch::with_capacity(64), Vec::new());
        while port.health() != Health::Finished {
            assert!(port.wait(Some(Duration::from_secs(5))).unwrap());
            if port.rx(&mut batch) > 0 {
                let meant = |skb: &Skb| stamp::read(skb.data()).unwrap().time_ns;
                let times: Vec<u64> = batch.iter().map(meant).collect();
                wakes.push((batch.len(), times[times.len() - 1] - times[0]));
            }
            batch.discard(DropReason::UNSENT);
        }
        // The first packet is due at once, and the rest of the last burst when its last packet is due.
        assert_eq!(wakes[0], (1, 0));
        let whole = &wakes[1..wakes.len() - 1];
        assert!(whole.iter().all(|(n, apart)| *n >= 20 && *apart >= 379_000), "{wakes:?}");
        let single = Port::open("gen:,rate=50kpps,burst=1").unwrap();
        assert_eq!(single.obtained().mode, "gen at 50kpps");
        let paced = Port::open("gen:,rate=50kpps,rate_for=1s").unwrap();
        let mode = "gen at 50kpps in bursts of up to 1 ms for 1s, then at the highest rate";
        assert_eq!(paced.obtained().mode, mode);
        assert!(Port::open("gen:,burst=8").unwrap_err().why.contains("burst needs a rate"));
    }

    #[test]
    fn a_wait_returns_once_when_the_last_packet_was_made() {
        let mut port = Port::open("gen:,count=1").unwrap();
        assert_eq!(port.rx(&mut Batch::with_capacity(4)), 1);
        // No timeout: if the end were not reported, this would sleep without end.
        assert!(port.wait(None).unwrap());
        assert_eq!(port.health(), Health::Finished);
        assert!(!port.wait(Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_packet_is_late_once_however_long_it_waits_for_a_frame() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let spec = crate::parse("gen:,rate=1Mpps").unwrap();
        let mut queue = GenQueue::new(Traffic::of(&spec).unwrap(), None).unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(64));
        assert_eq!(queue.rx(&mut mem, &mut batch, 64).packets, 1);
        std::thread::sleep(Duration::from_millis(1));
        let more: usize = (0..100).map(|_| queue.rx(&mut mem, &mut batch, 64).packets).sum();
        let pace = queue.counters().pace.unwrap();
        // The median is reported from 20 observations on.
        assert_eq!((more, pace.asked, pace.late_p50_ns), (3, 4, None));
        assert_eq!((pace.sent, pace.unsent), (4, 0));
    }

    #[test]
    fn a_packet_longer_than_a_frame_is_made_in_a_jumbo_frame_or_refused() {
        let pool = Pool::builder().frames(8);
        let open = |pool: &Pool| Port::open_with("gen:,size=9000", pool);
        let e = open(&pool.clone().build().unwrap()).unwrap_err();
        assert!(e.why.contains("holds 1792") && e.fix.contains("--jumbo"), "{e}");
        for pool in [pool.clone().jumbo(3, 16_384), pool.data(Data::General)] {
            let pool = pool.build().unwrap();
            let mut port = open(&pool).unwrap();
            let mut batch = Batch::with_capacity(64);
            // A batch can have as many packets as the pool has frames of that kind.
            let n = if pool.jumbo_frames() > 0 { 3 } else { 8 };
            assert_eq!((port.rx(&mut batch), port.counts().rx_nombuf), (n, 1));
            assert!(batch.iter().all(|skb| skb.is_linear() && stamp::read(skb.data()).is_ok()));
            assert_eq!(port.counts().rx_bytes, 9000 * n as u64);
        }
    }

    #[test]
    fn in_memory_that_a_peer_writes_the_bytes_are_the_same() {
        let made = |trust| {
            let pool = Pool::builder().frames(64).jumbo(8, 16_384).trust(trust).build().unwrap();
            let frames = |text| {
                let mut port = Port::open_with(text, &pool).unwrap();
                let mut batch = Batch::with_capacity(32);
                port.rx(&mut batch);
                let bytes: usize = batch.iter().map(|skb| skb.len()).sum();
                assert_eq!(port.counts().rx_bytes, bytes as u64, "{text}");
                let copied = batch.iter().map(|skb| {
                    assert_eq!((skb.trust(), skb.is_linear()), (trust, true), "{text}");
                    let mut frame = vec![0; skb.len()];
                    assert_eq!(skb.copy_to(0, &mut frame), frame.len());
                    let stamp = stamp::read(&frame).unwrap();
                    // The time in the stamp depends on the run: clear it.
                    stamp::write(&mut frame, stamp.flow, stamp.seq, 0).unwrap();
                    frame
                });
                copied.collect::<Vec<_>>()
            };
            ["gen:,size=imix,flows=3,count=24", "gen:,size=9000,count=5"].map(frames)
        };
        let private = made(Trust::Private);
        assert_eq!((private[0].len(), private[1].len()), (24, 5));
        assert!(private == made(Trust::Exported), "frames differ");
    }

    #[test]
    fn packets_are_unpaced_after_the_paced_time_has_ended() {
        let mut port = Port::open("gen:,rate=10pps,rate_for=50ms").unwrap();
        assert_eq!(port.obtained().mode, "gen at 10pps for 50ms, then at the highest rate");
        let mut batch = Batch::with_capacity(64);
        assert_eq!((port.rx(&mut batch), port.rx(&mut batch)), (1, 0));
        // The second packet would be due after 100 ms.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(port.rx(&mut batch), 63);
        let numbers: Vec<u64> = batch.iter().map(|p| stamp::read(p.data()).unwrap().seq).collect();
        assert!(numbers.iter().copied().eq(0..64), "{numbers:?}");
        assert!(Port::open("gen:,rate_for=1s").unwrap_err().why.contains("rate"));
    }

    #[test]
    fn datagrams_verify_and_each_flow_has_a_port_of_its_own() {
        let target = "mac=02:00:00:00:00:09";
        for (to, from, shortest) in [
            ("192.0.2.7:7777", "192.0.2.1:65534", 70),
            ("[2001:db8::7]:7777", "[2001:db8::1]:65534", 90),
        ] {
            let text = format!("gen:,to={to},{target},from={from},flows=3,count=24,size=imix");
            let mut port = Port::open(&text).unwrap();
            let mode = format!("gen at no pause from {from} to {to} by 02:00:00:00:00:09");
            assert_eq!(port.obtained().mode, mode);
            let mut batch = Batch::with_capacity(64);
            assert_eq!(port.rx(&mut batch), 24);
            for (i, skb) in batch.iter().enumerate() {
                let s = stamp::read(skb.data()).unwrap();
                assert_eq!((s.flow as usize, s.seq as usize), (i % 3, i / 3));
                assert_eq!(skb.len(), IMIX[i % 12].max(shortest));
                let udp = linerate_wire::udp(skb.data()).unwrap();
                assert!(udp.checksum_ok() && udp.dst_addr() == to.parse().unwrap());
                assert_eq!(udp.src_port(), [65_534, 65_535, 1024][i % 3]);
            }
        }
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
