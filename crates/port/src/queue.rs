//! One queue of a device, as applications use it.

mod sleep;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use linerate_skb::{Batch, Code, Error, Local, Pool, Result};
use linerate_sys::wait::TimerPair;

use crate::driver_queue::DriverQueue;
use crate::moderation::{CostMeter, Moderated, Moderation, Saving};
use crate::stats::{Counters, DriverCounts, QueueCounts, QueueStats};
use crate::waker::WakeEnd;
use sleep::Sleep;

pub use crate::health::{Health, HealthKind};
pub use crate::queue_ops::QueueOps;
pub use crate::want::Want;
pub(crate) use sleep::{cannot_wait, over, possible};

/// One queue of a device, with its own hot list, for one thread or task at a time.
///
/// When its descriptor is readable (poll, mio, tokio's `AsyncFd`), call [`Queue::rx`] or
/// [`Queue::xmit`]; after `arm` has returned true, sleep until then. A queue that was never armed is
/// readable.
pub struct Queue {
    ops: DriverQueue,
    mem: Local,
    /// Number of receives that had ended early for lack of a frame, at the last check.
    rx_nombuf: u64,
    /// True if the last receive returned nothing because the pool had no frame.
    starved: bool,
    sleep: Sleep,
    meter: CostMeter,
    saving: Saving,
    /// The alarms that end the holds of waits.
    alarms: TimerPair,
    /// The receiving end of a waker, if there is one.
    waker: Option<WakeEnd>,
}

impl Queue {
    /// Creates a queue of a driver, with its own hot list.
    #[must_use]
    pub fn new(ops: Box<dyn QueueOps>, mem: Local) -> Queue {
        Queue {
            ops: DriverQueue::new(ops),
            mem,
            rx_nombuf: 0,
            starved: false,
            sleep: Sleep::Awake,
            meter: CostMeter::default(),
            saving: Saving::default(),
            alarms: TimerPair::default(),
            waker: None,
        }
    }

    /// Returns the queue with its driver wrapped by `wrap`: see [`crate::wrap`].
    ///
    /// Shape:  hot list, packet counters and moderation stay; the descriptor becomes the wrapper's,
    ///         so wrap a queue before it is polled for. Packets that [wait](Queue::waiting) in it
    ///         stay, and leave through the wrapper; the bytes copied for segments and tags go on.
    ///
    /// # Errors
    /// Those of `wrap`; the queue is closed then, and packets that wait are dropped as `stopped`.
    pub fn wrap(
        self,
        wrap: impl FnOnce(Box<dyn QueueOps>) -> Result<Box<dyn QueueOps>>,
    ) -> Result<Queue> {
        Ok(Queue { ops: self.ops.wrap(wrap)?, ..self })
    }

    /// Receives as many packets as `batch` has room for; returns how many arrived.
    ///
    /// A full batch receives nothing, and the packets that wait in the device make [`Queue::wait`]
    /// return at once: empty the batch before the next call.
    ///
    /// Shape:  device -> batch[len..len+n]; the caller owns them. The call also gives free frames
    ///         to the device.
    /// Units:  packets; a packet's length is in bytes from the destination MAC, without FCS.
    /// Errors: none; losses are in the pool's ledger and in [`QueueCounts::rx_missed`], what waits
    ///         for want of a frame in [`QueueCounts::rx_nombuf`] and [`Health::Starved`].
    /// Cost:   no syscall if the receive ring is mapped (`xdp`, `memif`, `packet` with its ring), one a
    ///         packet on a TAP.
    pub fn rx(&mut self, batch: &mut Batch) -> usize {
        if self.sleep != Sleep::Awake {
            return self.rx_after_sleep(batch);
        }
        let (budget, dry) = (batch.spare(), self.mem.starved());
        let n = self.ops.rx(&mut self.mem, batch, budget);
        self.starved = n == 0 && self.mem.starved() != dry && {
            let rx_nombuf = self.ops.counters().rx_nombuf;
            std::mem::replace(&mut self.rx_nombuf, rx_nombuf) != rx_nombuf
        };
        n
    }

    /// Sends packets from the front of `batch`; returns how many left. The rest stays, in order. A
    /// packet that a driver multiplies counts as its copies: the batch's length says what left.
    ///
    /// Work that the device does not do is done first: a missing checksum is computed, a superframe
    /// is cut. It counts as its segments, when they leave; those for which there is no room yet go
    /// with the next call.
    pub fn xmit(&mut self, batch: &mut Batch) -> usize {
        self.ops.xmit(&mut self.mem, batch)
    }

    /// Returns the packets that left a batch and wait in the queue for room or for a frame: the
    /// segments of a superframe that did not all fit. The next [`Queue::xmit`] sends them first,
    /// also with an empty batch.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ops.waiting()
    }

    /// Takes back the packets that the device has sent; returns how many packets the device still
    /// holds. It holds none if the kernel copies packets when they are sent, as for `packet` and
    /// `tap`.
    ///
    /// Sending does this too. Call it to wait until everything has left, or to get the frames back.
    /// Sleep between the calls, and limit the time: a slow device may hold packets for long.
    pub fn reap(&mut self) -> usize {
        self.ops.reap(&mut self.mem)
    }

    /// Appends up to `want` empty packets to `batch`; fewer if `batch` has no room or the pool has
    /// no frame.
    pub fn alloc(&mut self, batch: &mut Batch, want: usize) -> usize {
        self.mem.alloc(batch, want)
    }

    /// Sets the moderation mode, which decides when [`Queue::wait`] and [`Queue::arm`] poll the
    /// queue again. The default is `adaptive`. [`Moderation::clamped`] bounds its numbers.
    pub fn set_moderation(&mut self, mode: Moderation) {
        self.ops.moderator().set_mode(mode);
    }

    /// Returns the state of the queue's moderation, with the reason for it.
    pub fn moderated(&mut self) -> Moderated {
        self.ops.moderator().moderated()
    }

    /// Returns the state of the device, or [`Health::Starved`] if the pool had no frame at the last
    /// receive.
    ///
    /// Cost: that of the driver's answer; for [`Health::Starved`] also a reading of the pool's ledger.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.ops.health() {
            Health::Up if self.starved => Health::Starved(starved(self.mem.pool())),
            health => health,
        }
    }

    /// Returns the state of the device, as the driver reports it.
    pub(crate) fn device_health(&self) -> Health {
        self.ops.health()
    }

    /// Returns the pool that the queue receives into.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.mem.pool()
    }

    /// Returns the hot list that the queue allocates from.
    pub fn local(&mut self) -> &mut Local {
        &mut self.mem
    }

    /// Returns the queue's live counters.
    #[must_use]
    pub fn stats(&self) -> Arc<QueueStats> {
        self.ops.stats().clone()
    }

    /// Returns the driver's counters other than packets: causes of losses, bytes copied.
    pub fn driver_counts(&mut self) -> DriverCounts {
        self.ops.counters().driver
    }

    /// Returns the counts since the queue was opened.
    pub fn counts(&mut self) -> QueueCounts {
        let Counters { rx_missed, rx_nombuf, .. } = self.ops.counters();
        QueueCounts { rx_missed, rx_nombuf, ..self.ops.stats().counts() }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ops.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("stats", self.ops.stats()).finish_non_exhaustive()
    }
}

/// Returns the error of a queue without frames, which has the number of packets that the program
/// holds.
#[cold]
fn starved(pool: &Pool) -> Error {
    let ledger = pool.ledger();
    let program = ledger.held().last().map_or(0, |(_, n)| *n);
    no_frame(program, ledger.frames)
}

/// Returns the error of a queue without frames, if the program holds `program` packets of a pool of
/// `frames`.
fn no_frame(program: u64, frames: u64) -> Error {
    let (held, fix) = match program {
        0 => (
            ": the rings of ports and the hot lists have them",
            "open the ports in a larger pool, or xdp ports with shorter rings: ring=256",
        ),
        _ => ("", "send or drop received packets, or open the port in a larger pool"),
    };
    let why = format!(
        "starved: the program holds {program} packets, and no frame of {frames} is free{held}"
    );
    Error::new(Code::Memory, "cannot receive", why).fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_without_a_frame_depends_on_whether_the_program_holds_packets() {
        let (none, some) = (no_frame(0, 2048), no_frame(3, 2048));
        assert!(none.why.contains("holds 0 packets, and no frame of 2048 is free: the rings of"));
        assert!(none.fix.contains("ring=256") && !none.fix.contains("drop"), "{none}");
        assert!(some.why.ends_with("holds 3 packets, and no frame of 2048 is free"), "{some}");
        assert!(some.fix.starts_with("send or drop received packets"), "{some}");
    }

    use linerate_skb::Moved;
    use linerate_sys::wait::EventFd;

    /// A driver that returns one packet and reports three.
    struct Liar(EventFd);

    impl QueueOps for Liar {
        fn rx(&mut self, mem: &mut Local, out: &mut Batch, _: usize) -> Moved {
            assert_eq!(mem.alloc(out, 1), 1);
            Moved { packets: 3, bytes: 0 }
        }

        fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
            Moved::default()
        }

        fn arm(&mut self, _: Want) -> bool {
            true
        }
    }

    impl AsFd for Liar {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    #[test]
    fn rx_counts_the_packets_in_the_batch_whatever_the_driver_reports() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut queue = Queue::new(Box::new(Liar(EventFd::new().unwrap())), pool.local());
        let mut batch = Batch::with_capacity(4);
        assert_eq!((queue.rx(&mut batch), queue.counts().rx_packets), (1, 1));
        assert_eq!(pool.ledger().received, 1);
    }
}
