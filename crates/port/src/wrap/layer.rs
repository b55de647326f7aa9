//! The parts that all wrappers share: the trait [`Layer`], and the queue below a layer.
//!
//! ```text
//!  caller ──► Wrapped ──► Layer::rx ──► what the layer makes of it ──► below.rx
//!                    └──► Layer::caps, which it does not implement ──► below.caps
//! ```
//!
//! Each call of [`QueueOps`] is passed on in one place, the defaults of [`Layer`], and a wrapper
//! has only those that it changes. The defaults of `QueueOps` itself are a driver's, and would
//! report wrong values here: a wrapper that forgot `caps` would have its packets counted twice.
//!
//! Layers stand below transmit preparation: what they see sent is what the device is given, with
//! checksums, and superframes in pieces, where it does not do that itself.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Weak;
use std::time::Instant;

use linerate_skb::{Batch, Local, Moved};

use crate::caps::Caps;
use crate::moderation::HoldControl;
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::Counters;

/// A wrapper of a queue: each method handles one call of the queue, and can use the queue `below`.
///
/// A call that it does not implement goes to the queue below as it came, and the answer back. What
/// it changes keeps the contract of [`QueueOps`].
///
/// ```
/// # mod linerate { pub use linerate_port::*; pub use linerate_skb::{Batch, Local, Moved}; }
/// use linerate::wrap::{Layer, Wrapped};
/// use linerate::{Batch, Local, Moved, Port, QueueOps};
///
/// /// Counts calls that found nothing.
/// struct Idle(u64);
///
/// impl Layer for Idle {
///     fn rx(
///         &mut self,
///         below: &mut dyn QueueOps,
///         mem: &mut Local,
///         out: &mut Batch,
///         budget: usize,
///     ) -> Moved {
///         let moved = below.rx(mem, out, budget);
///         self.0 += u64::from(moved.packets == 0);
///         moved
///     }
/// }
///
/// # fn main() -> linerate::Result<()> {
/// let port = Port::open("null:")?.wrap(|ops, _| Ok(Box::new(Wrapped::around(ops, Idle(0)))))?;
/// # Ok(())
/// # }
/// ```
pub trait Layer: Send {
    /// See [`QueueOps::rx`].
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        below.rx(mem, out, budget)
    }

    /// See [`QueueOps::xmit`].
    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        below.xmit(mem, batch)
    }

    /// See [`QueueOps::arm`].
    fn arm(&mut self, below: &mut dyn QueueOps, want: Want) -> bool {
        below.arm(want)
    }

    /// See [`QueueOps::alarm`].
    fn alarm(&mut self, below: &mut dyn QueueOps, at: Instant) -> bool {
        below.alarm(at)
    }

    /// See [`QueueOps::hold`].
    fn hold(&mut self, below: &mut dyn QueueOps, at: Instant) -> bool {
        below.hold(at)
    }

    /// See [`QueueOps::hold_control`].
    fn hold_control(&self, below: &dyn QueueOps) -> Option<Weak<dyn HoldControl>> {
        below.hold_control()
    }

    /// Returns the descriptor that [`QueueOps::arm`] makes readable; it never changes.
    fn as_fd<'a>(&'a self, below: &'a dyn QueueOps) -> BorrowedFd<'a> {
        below.as_fd()
    }

    /// See [`QueueOps::reap`].
    fn reap(&mut self, below: &mut dyn QueueOps, mem: &mut Local) -> usize {
        below.reap(mem)
    }

    /// See [`QueueOps::close`].
    fn close(&mut self, below: &mut dyn QueueOps, until: Instant) {
        below.close(until);
    }

    /// See [`QueueOps::withheld`]; a layer that withholds packets adds its own.
    fn withheld(&self, below: &dyn QueueOps) -> usize {
        below.withheld()
    }

    /// See [`QueueOps::irq`].
    fn irq(&mut self, below: &mut dyn QueueOps) {
        below.irq();
    }

    /// See [`QueueOps::health`]. A layer that has its own must have its own
    /// [`health_kind`](Layer::health_kind), too: callers read either.
    fn health(&self, below: &dyn QueueOps) -> Health {
        below.health()
    }

    /// See [`QueueOps::health_kind`]. It does not use [`health`](Layer::health), which copies the
    /// error.
    fn health_kind(&self, below: &dyn QueueOps) -> HealthKind {
        below.health_kind()
    }

    /// See [`QueueOps::counters`].
    fn counters(&mut self, below: &mut dyn QueueOps) -> Counters {
        below.counters()
    }

    /// See [`QueueOps::caps`].
    fn caps(&self, below: &dyn QueueOps) -> Caps {
        below.caps()
    }
}

/// A queue wrapped in a [`Layer`]; it is a queue itself.
#[derive(Debug)]
pub struct Wrapped<L> {
    /// The layer. It is declared before `below`, so that packets it holds are dropped before their
    /// queue.
    pub(super) layer: L,
    below: Below,
}

impl<L: Layer> Wrapped<L> {
    /// Wraps a queue in `layer`.
    #[must_use]
    pub fn around(below: Box<dyn QueueOps>, layer: L) -> Wrapped<L> {
        Wrapped { layer, below: Below(below) }
    }
}

/// The queue below a layer.
struct Below(Box<dyn QueueOps>);

impl std::fmt::Debug for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a queue")
    }
}

// Let clippy refuse a missing method, for which every wrapper would silently have the trait's
// default.
#[deny(clippy::missing_trait_methods)]
impl<L: Layer> QueueOps for Wrapped<L> {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        self.layer.rx(self.below.0.as_mut(), mem, out, budget)
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.layer.xmit(self.below.0.as_mut(), mem, batch)
    }

    fn arm(&mut self, want: Want) -> bool {
        self.layer.arm(self.below.0.as_mut(), want)
    }

    fn reap(&mut self, mem: &mut Local) -> usize {
        self.layer.reap(self.below.0.as_mut(), mem)
    }

    fn close(&mut self, until: Instant) {
        self.layer.close(self.below.0.as_mut(), until);
    }

    fn withheld(&self) -> usize {
        self.layer.withheld(self.below.0.as_ref())
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.layer.alarm(self.below.0.as_mut(), at)
    }

    fn hold(&mut self, at: Instant) -> bool {
        self.layer.hold(self.below.0.as_mut(), at)
    }

    fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        self.layer.hold_control(self.below.0.as_ref())
    }

    fn irq(&mut self) {
        self.layer.irq(self.below.0.as_mut());
    }

    fn health(&self) -> Health {
        self.layer.health(self.below.0.as_ref())
    }

    fn health_kind(&self) -> HealthKind {
        self.layer.health_kind(self.below.0.as_ref())
    }

    fn counters(&mut self) -> Counters {
        self.layer.counters(self.below.0.as_mut())
    }

    fn caps(&self) -> Caps {
        // Packets are prepared before they reach the layer, so that the layer handles the packets
        // that leave.
        Caps { stops_at_offloads: false, ..self.layer.caps(self.below.0.as_ref()) }
    }
}

impl<L: Layer> AsFd for Wrapped<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.layer.as_fd(self.below.0.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use linerate_skb::{Code, Error, Pool};
    use linerate_sys::wait::EventFd;

    use super::super::fault::{Faulty, Plan};
    use super::super::tee::{Limits, Tee};
    use super::*;
    use std::time::Duration;

    use crate::caps::{Copies, Gathers, Origin, TxOffload};
    use crate::moderation::DeviceHold;

    /// A test queue that overrides every method of the trait; its `health` fails if the last field
    /// is false.
    struct Scripted(EventFd, u64, bool);

    /// The hold of a test queue.
    #[derive(Debug)]
    struct Never;

    impl HoldControl for Never {
        fn hold(&self) -> Option<DeviceHold> {
            None
        }

        fn set_hold(&self, _: DeviceHold) -> linerate_skb::Result<()> {
            Ok(())
        }
    }

    // Let clippy refuse a missing method, so that a new method must be added to this test.
    #[deny(clippy::missing_trait_methods)]
    impl QueueOps for Scripted {
        fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
            Moved { packets: mem.alloc(out, budget), bytes: 0 }
        }

        fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
            batch.sent(1, mem)
        }

        fn arm(&mut self, _: Want) -> bool {
            false
        }

        fn alarm(&mut self, _: Instant) -> bool {
            true
        }

        fn hold(&mut self, _: Instant) -> bool {
            true
        }

        fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
            Some(Weak::<Never>::new())
        }

        fn reap(&mut self, _: &mut Local) -> usize {
            13
        }

        fn close(&mut self, _: Instant) {
            self.1 += 100;
        }

        fn withheld(&self) -> usize {
            23
        }

        fn irq(&mut self) {
            self.1 += 1;
        }

        fn health(&self) -> Health {
            assert!(self.2, "the error is copied");
            Health::Down(Error::new(Code::NoDevice, "told", "down"))
        }

        fn health_kind(&self) -> HealthKind {
            HealthKind::Down
        }

        fn counters(&mut self) -> Counters {
            Counters { rx_missed: 17, rx_nombuf: 19 + self.1, ..Counters::default() }
        }

        fn caps(&self) -> Caps {
            Caps {
                copies: Copies::Always,
                rx_ring_len: Some(37),
                rx_gathers: Gathers { time: Duration::from_millis(2), bytes: 4096 },
                notifies_tx_space: false,
                checksum: TxOffload::Untunnelled,
                gso: TxOffload::All,
                keeps_vlan: false,
                stops_at_offloads: false,
                origin: Origin::Created,
                is_interface: true,
            }
        }
    }

    impl AsFd for Scripted {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    /// A function that wraps a queue.
    type Around = fn(Box<dyn QueueOps>) -> Box<dyn QueueOps>;

    /// A layer that changes no call.
    struct Mute;

    impl Layer for Mute {}

    const WRAPPERS: [(&str, Around); 3] = [
        ("mute", |ops| Box::new(Wrapped::around(ops, Mute))),
        ("tee", |ops| Tee::new(Limits::default()).unwrap().wrap(ops, "told").unwrap()),
        ("fault", |ops| Box::new(Faulty::new(ops, &Plan::new(1)).unwrap())),
    ];

    #[test]
    fn health_without_its_error_copies_no_error() {
        for (name, around) in WRAPPERS {
            let ops = around(Box::new(Scripted(EventFd::new().unwrap(), 0, false)));
            assert_eq!(ops.health_kind(), HealthKind::Down, "{name}");
        }
    }

    #[test]
    fn every_call_of_a_queue_reaches_the_one_below_and_its_answer_comes_back() {
        let pool = Pool::builder().frames(64).build().unwrap();
        for (name, around) in WRAPPERS {
            let mut told = Scripted(EventFd::new().unwrap(), 0, true);
            let (below, counters, caps) = (told.as_fd().as_raw_fd(), told.counters(), told.caps());
            let mut ops = around(Box::new(told));
            let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
            assert_eq!(ops.rx(&mut mem, &mut batch, 3).packets, 3, "{name}");
            assert_eq!((ops.xmit(&mut mem, &mut batch).packets, batch.len()), (1, 2), "{name}");
            assert!(!ops.arm(Want::Room) && ops.alarm(Instant::now()), "{name}");
            // A fault layer has its own timers and refuses a hold.
            assert_eq!(ops.hold(Instant::now()), name != "fault", "{name}");
            assert!(ops.hold_control().is_some(), "{name}");
            assert_eq!((ops.reap(&mut mem), ops.withheld()), (13, 23), "{name}");
            assert!(matches!(ops.health(), Health::Down(_)), "{name}");
            assert_eq!(ops.health_kind(), HealthKind::Down, "{name}");
            assert_eq!((ops.counters(), ops.caps()), (counters, caps), "{name}");
            ops.irq();
            assert_eq!(ops.counters().rx_nombuf, 20, "{name}");
            ops.close(Instant::now());
            assert_eq!(ops.counters().rx_nombuf, 120, "{name}");
            // A waiting fault layer has its own descriptor, which watches the one below.
            assert_eq!(ops.as_fd().as_raw_fd() == below, name != "fault", "{name}");
        }
    }
}
