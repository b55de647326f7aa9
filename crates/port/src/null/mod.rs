//! The null device, whose packets are all allocated, initialised, dispatched, freed and counted.
//!
//! It shows what the path itself costs. The payload is not touched.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use linerate_skb::{Batch, Local, Moved, Result};
use linerate_sys::wait::TimerFd;

use crate::caps::Caps;
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::host::Retry;
use crate::obtained::Obtained;
use crate::queue::{QueueOps, Want};
use crate::spec::Spec;
use crate::stats::Counters;
use crate::units;

/// Ethernet's minimum frame length without FCS.
const SIZE_BYTES: u64 = 60;

/// Most queues of a port.
const QUEUES_MAX: u32 = 64;

/// The driver of `null:[size=60][,queues=1]`.
#[derive(Debug)]
pub struct Null;

impl Driver for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "null:[size=60][,queues=1]",
            text: "sends unwritten packets, frees received ones: shows the engine's cost",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { nameless: true, unwritten: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        let size_bytes = spec.value("size", units::count)?.unwrap_or(SIZE_BYTES) as usize;
        let queues = spec.queues(QUEUES_MAX)?;
        spec.finish()?;
        Ok(Box::new(NullPlan { spec: spec.clone(), size_bytes, queues }))
    }
}

struct NullPlan {
    spec: Spec,
    size_bytes: usize,
    queues: usize,
}

impl Plan for NullPlan {
    fn needs(&self) -> Result<Needs> {
        let (queues, packet_max_bytes) = (self.queues, self.size_bytes);
        Ok(Needs { queues, packet_max_bytes, ..Needs::default() })
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let (size_bytes, room) = (self.size_bytes, cx.pool().data_room());
        if size_bytes == 0 || size_bytes > room {
            let why = format!("size={size_bytes}: a frame holds 1 to {room} bytes");
            return Err(self.spec.error(why));
        }
        let open = |_| {
            let timer = TimerFd::new()?;
            // Setting the timer cannot fail.
            let _ = timer.set_at(Some(Instant::now()));
            let queue = NullQueue { timer, size_bytes, starved: Retry::default(), rx_nombuf: 0 };
            Ok(Box::new(queue) as Box<dyn QueueOps>)
        };
        let mut obtained = Obtained::new(&self.spec.name, format!("null, {size_bytes} B"), room);
        obtained.queues = self.queues;
        let queues = (0..self.queues).map(open).collect::<Result<_>>()?;
        Ok(Opened { queues, obtained })
    }
}

struct NullQueue {
    /// Timer that has fired and is never drained, because there is always work, unless the pool has
    /// no frame.
    timer: TimerFd,
    size_bytes: usize,
    /// The next attempt, after the pool had no frame.
    starved: Retry,
    rx_nombuf: u64,
}

impl QueueOps for NullQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let before = out.len();
        let want = budget.min(out.spare());
        let n = mem.alloc(out, want);
        out.commit_from(before, self.size_bytes);
        self.rx_nombuf += u64::from(n < want);
        self.starved = if n == 0 && want > 0 { Retry::later() } else { Retry::default() };
        Moved { packets: n, bytes: (n * self.size_bytes) as u64 }
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, want: Want) -> bool {
        // If the timer cannot be set, return false, so that the caller polls too often and not too
        // rarely.
        want == Want::Frames
            && self.starved.is_pending()
            && self.timer.set_at(self.starved.at()).is_ok()
    }

    fn counters(&mut self) -> Counters {
        Counters { rx_nombuf: self.rx_nombuf, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps::IN_PROCESS
    }
}

impl AsFd for NullQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Health, Port};
    use linerate_skb::{DropReason, Pool};
    use std::time::Duration;

    #[test]
    fn without_a_frame_it_sleeps_and_tries_again() {
        let pool = Pool::builder().frames(4).build().unwrap();
        let mut port = Port::open_with("null:", &pool).unwrap();
        let mut held = Batch::with_capacity(64);
        while port.rx(&mut held) > 0 {}
        assert!(port.arm(Want::Frames));
        assert!(port.wait(Some(Duration::from_secs(5))).unwrap());
        // 4 of 64 packets are made, and then none, because the pool is empty.
        assert_eq!(port.counts().rx_nombuf, 2);
        let Health::Starved(e) = port.health() else { panic!("{:?}", port.health()) };
        assert!(e.why.contains("the program holds 4 packets, and no frame of 4 is free"), "{e}");
        assert!(e.fix.starts_with("send or drop received packets"), "{e}");
        assert!(port.health().check().is_err() && !port.health().ended());
        held.discard(DropReason::UNSENT);
        assert!(port.rx(&mut held) > 0);
        assert_eq!(port.health(), Health::Up);
        assert!(!port.arm(Want::Frames) && !port.arm(Want::Room));
    }
}
