//! Compares the transmit entries of post 002, in instructions for each packet.
//!
//! Input: 64 packets of a pool, allocated, handed to a device that frees them as sent, over and
//! over. `one` calls the entry for each; `list` moves them to an allocated list and calls once, as
//! the worker does with a cap; `static` has the list inside the device; `merged` has one entry for
//! both, in which no packet means "your list", and `merged_one` calls it with each packet; `always`
//! takes the way over the list even for a single packet, 64 times.
//!
//! Prediction: `one`, `merged_one` and `always` take several times as much as the others; `list`,
//! `static` and `merged` differ by less than one instruction a packet, because each is a call a
//! batch. (The post measured 1 % for `static`.)

use std::hint::black_box;

use linerate_skb::{Batch, Local, Moved, Pool, Skb};

const PACKETS: usize = 64;
const TURNS: u64 = 20_000;
const CASES: [&str; 6] =
    ["entry_one", "entry_list", "entry_static", "entry_merged", "entry_merged_one", "entry_always"];

/// The transmit entries of a device, as alternatives.
trait Device {
    /// Sends a list of one or more packets: the entry that linerate has.
    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved;
    /// Returns the list inside the device.
    fn list(&mut self) -> &mut Batch;
    /// Sends the list inside the device.
    fn xmit_list(&mut self, mem: &mut Local) -> Moved;
    /// Sends a packet, or the list inside the device.
    fn xmit_merged(&mut self, mem: &mut Local, skb: Option<Skb>) -> Moved;
}

/// A device that completes each packet immediately.
struct Null {
    list: Batch,
    one: Batch,
}

impl Device for Null {
    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn list(&mut self) -> &mut Batch {
        &mut self.list
    }

    fn xmit_list(&mut self, mem: &mut Local) -> Moved {
        self.list.sent(self.list.len(), mem)
    }

    fn xmit_merged(&mut self, mem: &mut Local, skb: Option<Skb>) -> Moved {
        let Some(skb) = skb else { return self.xmit_list(mem) };
        // Never refused: the list of one packet is empty here, because the line below empties it.
        let _ = self.one.push(skb);
        self.one.sent(1, mem)
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // Runs one case, for an external counter of instructions: two runs of different length give the
    // cost of a turn.
    if let [_, once, case, turns, ..] = args.as_slice()
        && once == "--once"
    {
        return counted(case, turns.parse().expect("--once CASE TURNS"));
    }
    let turns = if args.iter().any(|a| a == "--test") { 100 } else { TURNS };
    for case in CASES {
        let start = linerate_port::clock::thread_cpu_ns();
        counted(case, turns);
        let ns = (linerate_port::clock::thread_cpu_ns() - start) as f64;
        println!("{case:<14} {:6.2} ns/packet", ns / (turns * PACKETS as u64) as f64);
    }
}

/// Sends the packets of `turns` turns by the entry of a case. `cargo xtask count` counts in this
/// function alone, by its name.
#[inline(never)]
fn counted(case: &str, turns: u64) {
    let pool = Pool::builder().frames(256).build().expect("a small pool");
    let batch = || Batch::with_capacity(PACKETS);
    let (mut mem, mut fifo, mut list) = (pool.local(), batch(), Some(batch()));
    let mut device: Box<dyn Device> = black_box(Box::new(Null { list: batch(), one: batch() }));
    let list = list.as_mut().expect("a cap was set");
    for _ in 0..turns {
        mem.alloc(&mut fifo, PACKETS);
        match case {
            "entry_one" => {
                while fifo.move_to(list, 1) > 0 {
                    device.xmit(&mut mem, list);
                }
            }
            "entry_list" => {
                fifo.move_to(list, PACKETS);
                device.xmit(&mut mem, list);
            }
            "entry_static" => {
                fifo.move_to(device.list(), PACKETS);
                device.xmit_list(&mut mem);
            }
            "entry_merged" => {
                fifo.move_to(device.list(), PACKETS);
                device.xmit_merged(&mut mem, None);
            }
            "entry_merged_one" => {
                while let Some(skb) = fifo.pop() {
                    device.xmit_merged(&mut mem, Some(skb));
                }
            }
            "entry_always" => {
                while fifo.move_to(device.list(), 1) > 0 {
                    device.xmit_merged(&mut mem, None);
                }
            }
            other => panic!("no case {other}"),
        }
    }
}
