//! Faults injected on the path, each in one of the four places that a triage distinguishes.
//!
//! ```text
//!  core      a stage that reorders where there are batches
//!  driver    a queue that lies or reorders where it is given batches
//!  device    an interface of the eastern host that loses packets
//!  receiver  programs of the eastern host that read slowly, from small buffers; or hosts that are overrun
//! ```
//!
//! The first two do nothing with a cap of one packet, as a fault of batching does, and the last one
//! with as many as a host takes at once.

use std::time::Duration;

use linerate_datapath::{Stage, Turn, TxBatch};
use linerate_port::QueueOps;
use linerate_port::wrap::{Layer, Wrapped};
use linerate_skb::{Batch, Local, Moved};
use linerate_sys::bpf::{If, Insn, Link, Mode, Program, Reg, XDP_PASS};
use linerate_sys::netif::Interface;
use linerate_sys::netns::Netns;

use super::config::Port;
use crate::Result;

/// Bytes of a slow receiver's buffers.
pub(super) const SLOW_BUFFER_BYTES: usize = 8 << 10;
/// Longest batch, which is the upper limit of the setting.
const BATCH_MAX: usize = 1024;
/// BPF helper of the kernel that returns a random number of 32 bits.
///
/// Source: include/uapi/linux/bpf.h, `bpf_get_prandom_u32`.
const HELPER_RANDOM: i32 = 7;
/// The verdict of an XDP program that drops the packet.
const XDP_DROP: i32 = 1;
/// Offset of a TCP packet's destination port, after Ethernet and IPv4 without options.
const PORT_AT: usize = 14 + 20 + 2;
/// Priority of pfifo_fast's first band.
///
/// Source: include/uapi/linux/pkt_sched.h, `TC_PRIO_INTERACTIVE`.
const INTERACTIVE: u32 = 6;
/// A MAC address of no host: the IP layer of the host that receives such a packet ignores the
/// packet without counting it.
const NOBODY: [u8; 6] = [2, 0, 0, 0xff, 0xff, 0xff];
/// The bits of a random number that are used: without the sign bit, because comparisons are signed.
const RANDOM_MASK: i32 = i32::MAX;

/// Faults that are planted on a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Faults {
    /// The engine swaps one in this many pairs of packets.
    core_reorders: Option<u32>,
    /// The engine gives one in this many connections a higher priority, if the queueing discipline
    /// has bands.
    pub core_prefers: Option<u32>,
    /// The driver with the fault, the fault, and the number of packets of which one has it.
    driver: Option<(Port, Lie, u32)>,
    /// One packet in this many is lost on its way to the eastern host.
    device_loses: Option<u32>,
    /// Programs of the eastern host sleep for this long after each read.
    pub receiver_sleeps: Option<Duration>,
    /// A host accepts this many packets of each doorbell, and loses the others for lack of room.
    receiver_takes: Option<u32>,
}

/// The fault of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Reports a packet as sent without sending it.
    Lose,
    /// Sends a packet after the next one.
    Reorder,
}

impl Faults {
    /// Parses faults separated by blanks.
    pub fn parse(text: &str) -> std::result::Result<Faults, String> {
        let mut faults = Faults::default();
        for word in text.split_whitespace().filter(|word| *word != "none") {
            let unknown = || {
                format!(
                    "{word:?} is no fault: core:reorder=N, core:prefer=N, xdp:lose=N, xdp:reorder=N, packet:lose=N, \
                     packet:reorder=N, device:lose=N, receiver:sleep=MICROSECONDS or receiver:overrun=N"
                )
            };
            let (what, n) = word.split_once('=').ok_or_else(unknown)?;
            let n: u32 =
                n.parse().ok().filter(|n| (1..=1_000_000).contains(n)).ok_or_else(|| {
                    format!("{word:?}: the number is one in so many, so many, or microseconds: 1 to 1000000")
                })?;
            match what {
                "core:reorder" => faults.core_reorders = Some(n),
                "core:prefer" => faults.core_prefers = Some(n),
                "xdp:lose" => faults.driver = Some((Port::Xdp, Lie::Lose, n)),
                "xdp:reorder" => faults.driver = Some((Port::Xdp, Lie::Reorder, n)),
                "packet:lose" => faults.driver = Some((Port::Packet, Lie::Lose, n)),
                "packet:reorder" => faults.driver = Some((Port::Packet, Lie::Reorder, n)),
                "device:lose" => faults.device_loses = Some(n),
                "receiver:sleep" => {
                    faults.receiver_sleeps = Some(Duration::from_micros(n.into()));
                }
                "receiver:overrun" => faults.receiver_takes = Some(n),
                _ => return Err(unknown()),
            }
        }
        Ok(faults)
    }

    /// Returns a function that creates the stage with the core's fault.
    pub fn stage(&self, cap: TxBatch) -> Option<impl Fn() -> Swaps + use<>> {
        let one_in = self.core_reorders.filter(|_| cap != TxBatch::Packets(1))?;
        Some(move || Swaps::new(one_in))
    }

    /// Returns the wrapper with the driver's fault, for a port of `driver`.
    pub fn queue(
        &self,
        driver: Port,
    ) -> Option<impl Fn(Box<dyn QueueOps>) -> Box<dyn QueueOps> + use<>> {
        let (_, lie, one_in) = self.driver.filter(|(of, ..)| *of == driver)?;
        Some(move |ops| -> Box<dyn QueueOps> {
            let own = Batch::with_capacity(1);
            Box::new(Wrapped::around(ops, Liar { lie, swaps: Swaps::new(one_in), own }))
        })
    }

    /// Returns the wrapper that makes a host lose packets, for a port that leads to the host.
    pub fn overrun(&self) -> Option<impl Fn(Box<dyn QueueOps>) -> Box<dyn QueueOps> + use<>> {
        let takes = self.receiver_takes? as usize;
        Some(move |ops| -> Box<dyn QueueOps> { Box::new(Wrapped::around(ops, Overrun(takes))) })
    }

    /// Plants the device's fault at an interface of `host`; dropping the returned link removes it.
    pub fn device(&self, host: &Netns, interface: &str) -> Result<Option<Link>> {
        let Some(one_in) = self.device_loses else { return Ok(None) };
        let lost = RANDOM_MASK / i32::try_from(one_in).unwrap_or(i32::MAX);
        let program = [
            Insn::call(HELPER_RANDOM),
            Insn::and(Reg::R0, RANDOM_MASK),
            Insn::jump_if(If::Below, Reg::R0, lost).to(2),
            Insn::set(Reg::R0, XDP_PASS),
            Insn::exit(),
            Insn::set(Reg::R0, XDP_DROP),
            Insn::exit(),
        ];
        let attach = || -> Result<Link> {
            let index = Interface::open(interface)?.index();
            let attached = Program::load(&program, false)?.attach(index, Mode::Generic);
            attached.map_err(|e| {
                let what = format!("cannot plant a fault at {interface}");
                crate::Error::new(crate::Code::Unsupported, what, e.to_string())
            })
        };
        host.run(attach)?.map(Some)
    }
}

/// Stage that gives the packets of one in this many connections the highest priority.
pub(super) struct Prefers(pub u32);

impl Stage for Prefers {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        for skb in batch.iter_mut() {
            let mut port = [0; 2];
            skb.copy_to(PORT_AT, &mut port);
            // The kernel gives connections only every second port number, so halve the number
            // first.
            if (u32::from(u16::from_be_bytes(port)) / 2).is_multiple_of(self.0) {
                skb.set_priority(INTERACTIVE);
            }
        }
    }
}

/// Stage that swaps one in this many pairs of neighbouring packets.
pub(super) struct Swaps {
    one_in: u32,
    seen: u32,
    spare: Batch,
}

impl Swaps {
    fn new(one_in: u32) -> Swaps {
        Swaps { one_in, seen: 0, spare: Batch::with_capacity(BATCH_MAX) }
    }

    /// Returns true in one of every `one_in` calls.
    fn turn(&mut self) -> bool {
        self.seen = (self.seen + 1) % self.one_in;
        self.seen == 0
    }

    fn swap(&mut self, batch: &mut Batch) {
        let n = batch.len();
        batch.move_to(&mut self.spare, n);
        while !self.spare.is_empty() {
            let first = self.spare.pop();
            let second = if self.turn() { self.spare.pop() } else { None };
            for skb in second.into_iter().chain(first) {
                // The batch has room: this packet was in it before.
                let _ = batch.push(skb);
            }
        }
    }
}

impl Stage for Swaps {
    fn run(&mut self, batch: &mut Batch, _: &mut Turn<'_>) {
        self.swap(batch);
    }
}

/// A driver that is faulty when it is given several packets.
struct Liar {
    lie: Lie,
    swaps: Swaps,
    /// A batch for the packet that is lost.
    own: Batch,
}

impl Layer for Liar {
    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        if batch.len() < 2 {
            return below.xmit(mem, batch);
        }
        let mut lost = Moved::default();
        match self.lie {
            Lie::Reorder => self.swaps.swap(batch),
            Lie::Lose => {
                let n = batch.len();
                batch.move_to(&mut self.swaps.spare, n);
                while let Some(skb) = self.swaps.spare.pop() {
                    if self.swaps.turn() {
                        let _ = self.own.push(skb);
                        lost += self.own.sent(1, mem);
                    } else {
                        let _ = batch.push(skb);
                    }
                }
            }
        }
        lost += below.xmit(mem, batch);
        lost
    }
}

/// Layer that sends all but the first packets of a doorbell to [`NOBODY`]: the device counts them,
/// and no host does.
struct Overrun(usize);

impl Layer for Overrun {
    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        for skb in batch.iter_mut().skip(self.0) {
            skb.copy_from(0, &NOBODY);
        }
        below.xmit(mem, batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_by_place_and_others_are_told() {
        let faults = Faults::parse("core:reorder=8 xdp:lose=50 receiver:sleep=300").unwrap();
        assert_eq!(faults.core_reorders, Some(8));
        assert_eq!(faults.receiver_sleeps, Some(Duration::from_micros(300)));
        assert!(faults.queue(Port::Xdp).is_some() && faults.queue(Port::Packet).is_none());
        assert!(
            faults.stage(TxBatch::Packets(1)).is_none() && faults.stage(TxBatch::Auto).is_some()
        );
        assert_eq!(Faults::parse("none"), Ok(Faults::default()));
        for wrong in ["core", "core:lose=3", "xdp:lose=0", "xdp:lose=x", "device:lose=99999999"] {
            let why = Faults::parse(wrong).unwrap_err();
            assert!(why.contains(wrong), "{why}");
        }
    }
}
