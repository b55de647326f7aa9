//! Cost of a discipline alone, without a port, for each packet.
//!
//! Input: 64 UDP packets of 64 bytes, enqueued and dequeued as a batch, over and over; a simulated
//! clock that gives each the time it needs. Of one flow each, but `flow_tbf`: its packets are of
//! 100,000 flows in turn, and `flow_tbf_evict`'s of twice as many as it keeps.
//!
//! Prediction: fifo at most 3 ns a packet, pfifo_fast 6, tbf 12, fq_codel 40, flow_tbf at most 60
//! ns with a cache miss a flow, and as much where each packet has a flow forgotten. The wake-up of
//! a shaped queue is not in these.

use std::time::{Duration, Instant};

use linerate_datapath::qdisc::{
    Fifo, FlowTbf, FqCodel, FqCodelConfig, Key, Limit, PfifoFast, Qdisc, Tbf,
};
use linerate_port::clock;
use linerate_skb::{Batch, Local, Moved, Pool};

const REPETITIONS: usize = 9;
const TURNS: u64 = 20_000;
/// Turns before those that are counted, enough for a packet of every flow. The two runs of a count
/// have other seeds for their flows' numbers, so whatever both count makes the difference less
/// exact.
const FIRST_TURNS: u64 = 3200;
const PACKETS: usize = 64;
const FLOWS: u32 = 100_000;
const BYTES: usize = 64;

/// A name, its discipline, and the number of flows among its packets.
type Case = (&'static str, fn() -> Box<dyn Qdisc>, u32);
const CASES: [Case; 6] = [
    ("qdisc_fifo", || Box::new(Fifo::new(Limit::packets(1000))), 1),
    ("qdisc_pfifo_fast", || Box::new(PfifoFast::new(Limit::packets(1000))), 1),
    ("qdisc_tbf", || Box::new(Tbf::new(5_000_000_000, 65_536, Fifo::new(Limit::packets(1000)))), 1),
    ("qdisc_fq_codel", || Box::new(FqCodel::new(FqCodelConfig::default())), 1),
    ("qdisc_flow_tbf", || Box::new(flow_tbf()), FLOWS),
    ("qdisc_flow_tbf_evict", || Box::new(flow_tbf()), 2 * FLOWS),
];

fn flow_tbf() -> FlowTbf {
    FlowTbf::new(Key::SrcIp, 10_000_000, 65_536, FLOWS as usize)
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // Runs one case, for an external counter of instructions: two runs of different length give the
    // cost of a turn.
    if let [_, once, case, turns, ..] = args.as_slice()
        && once == "--once"
    {
        let case = CASES.iter().find(|(name, ..)| name == case).expect("--once CASE TURNS");
        let mut path = Loop::new(case);
        path.pass(FIRST_TURNS);
        return path.counted(turns.parse().expect("--once CASE TURNS"));
    }
    let turns = if args.iter().any(|a| a == "--test") { 20 } else { TURNS };
    for case in &CASES {
        let mut path = Loop::new(case);
        path.counted(turns / 4);
        let mut cost: Vec<f64> = (0..REPETITIONS).map(|_| path.time(turns)).collect();
        cost.sort_by(f64::total_cmp);
        let (low, mid, high) = (cost[0], cost[REPETITIONS / 2], cost[REPETITIONS - 1]);
        println!("{:<22} {mid:7.2} ns/packet  [{low:.2}, {high:.2}]  n = {REPETITIONS}", case.0);
    }
}

/// A discipline with packets that pass through it again and again.
struct Loop {
    qdisc: Box<dyn Qdisc>,
    batch: Batch,
    out: Batch,
    mem: Local,
    now: Instant,
    flow: u32,
    flows: u32,
    _pool: Pool,
}

impl Loop {
    fn new((_, make, flows): &Case) -> Loop {
        let pool = Pool::builder().frames(1024).build().expect("a small pool");
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(PACKETS);
        let mut frame = [0; BYTES];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[16..18].copy_from_slice(&50u16.to_be_bytes());
        frame[22..24].copy_from_slice(&[64, 17]);
        frame[38..40].copy_from_slice(&30u16.to_be_bytes());
        while batch.spare() > 0 {
            batch.push(mem.alloc_copy(&frame).expect("frames")).expect("room");
        }
        let out = Batch::with_capacity(PACKETS);
        let (now, flow) = (Instant::now(), 0);
        Loop { qdisc: make(), batch, out, mem, now, flow, flows: *flows, _pool: pool }
    }

    /// Calls [`Loop::pass`]. `cargo xtask count` counts in this function alone, by its name.
    #[inline(never)]
    fn counted(&mut self, turns: u64) {
        self.pass(turns);
    }

    /// Passes all packets through the discipline, `turns` times.
    fn pass(&mut self, turns: u64) {
        const ALL: Moved = Moved { packets: PACKETS, bytes: u64::MAX };
        for _ in 0..turns {
            if self.flows > 1 {
                for skb in self.batch.iter_mut() {
                    self.flow = (self.flow + 1) % self.flows;
                    // Scatter the flows' numbers, so that consecutive packets use entries that are
                    // not adjacent in memory.
                    let source = self.flow.wrapping_mul(0x9e37_79b1);
                    skb.data_mut()[26..30].copy_from_slice(&source.to_be_bytes());
                }
            }
            self.now += Duration::from_micros(20);
            self.qdisc.enqueue(&mut self.batch, PACKETS, self.now, &mut self.mem);
            self.qdisc.dequeue(&mut self.out, ALL, self.now, &mut self.mem);
            assert_eq!(self.out.len(), PACKETS, "each turn leaves time for its packets");
            std::mem::swap(&mut self.batch, &mut self.out);
        }
    }

    /// Returns nanoseconds of CPU time for each packet, which do not include time slices of other
    /// programs.
    fn time(&mut self, turns: u64) -> f64 {
        let start = clock::thread_cpu_ns();
        self.counted(turns);
        (clock::thread_cpu_ns() - start) as f64 / (turns * PACKETS as u64) as f64
    }
}
