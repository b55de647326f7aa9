//! What every port around a port is made of: a [`Layer`], and the queue that it stands on.
//!
//! ```text
//!  caller ──► Wrapped ──► Layer::rx ──► what the layer makes of it ──► below.rx
//!                    └──► Layer::pace, which it says nothing of ─────► below.pace
//! ```
//!
//! Each call of [`QueueOps`] is passed on in one place, the defaults of [`Layer`], and a wrapper has
//! only those that it changes. The defaults of `QueueOps` itself are a driver's, and would be lies
//! here: a wrapper that forgot `origin` would have its packets counted twice.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_skb::{Batch, Local, Moved};

use crate::findings::{Pace, Verified};
use crate::queue::{Health, Origin, QueueOps, Want};
use crate::stats::DriverCounts;

/// What is put around a queue: for each call, what to make of it with the queue `below`.
///
/// A call that it says nothing of goes to the queue below as it came, and the answer back. What it
/// changes keeps the contract of [`QueueOps`].
///
/// ```
/// use linerate_port::wrap::{Layer, Wrapped};
/// use linerate_port::{Port, QueueOps};
/// use linerate_skb::{Batch, Local, Moved};
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
/// # fn main() -> linerate_port::Result<()> {
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

    /// The descriptor that [`QueueOps::arm`] makes readable; the same for life.
    fn as_fd<'a>(&'a self, below: &'a dyn QueueOps) -> BorrowedFd<'a> {
        below.as_fd()
    }

    /// See [`QueueOps::reap`].
    fn reap(&mut self, below: &mut dyn QueueOps, mem: &mut Local) -> usize {
        below.reap(mem)
    }

    /// See [`QueueOps::health`].
    fn health(&self, below: &dyn QueueOps) -> Health {
        below.health()
    }

    /// See [`QueueOps::origin`].
    fn origin(&self, below: &dyn QueueOps) -> Origin {
        below.origin()
    }

    /// See [`QueueOps::missed`].
    fn missed(&mut self, below: &mut dyn QueueOps) -> u64 {
        below.missed()
    }

    /// See [`QueueOps::no_frame`].
    fn no_frame(&mut self, below: &mut dyn QueueOps) -> u64 {
        below.no_frame()
    }

    /// See [`QueueOps::counts`].
    fn counts(&mut self, below: &mut dyn QueueOps) -> DriverCounts {
        below.counts()
    }

    /// See [`QueueOps::verified`].
    fn verified(&self, below: &dyn QueueOps) -> Option<Verified> {
        below.verified()
    }

    /// See [`QueueOps::pace`].
    fn pace(&self, below: &dyn QueueOps) -> Option<Pace> {
        below.pace()
    }
}

/// A queue with a [`Layer`] around it, which is a queue again.
#[derive(Debug)]
pub struct Wrapped<L> {
    /// Before `below`, so that a layer which holds packets goes before the queue that gave them.
    pub(super) layer: L,
    below: Below,
}

impl<L: Layer> Wrapped<L> {
    /// Puts `layer` around a queue.
    #[must_use]
    pub fn around(below: Box<dyn QueueOps>, layer: L) -> Wrapped<L> {
        Wrapped { layer, below: Below(below) }
    }
}

/// The queue that a layer stands on.
struct Below(Box<dyn QueueOps>);

impl std::fmt::Debug for Below {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a queue")
    }
}

// A call that is missing here would have the trait's default in every wrapper: clippy refuses it.
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

    fn depth(&self) -> Option<u32> {
        self.below.0.depth()
    }

    fn announces_room(&self) -> bool {
        self.below.0.announces_room()
    }

    fn health(&self) -> Health {
        self.layer.health(self.below.0.as_ref())
    }

    fn origin(&self) -> Origin {
        self.layer.origin(self.below.0.as_ref())
    }

    fn missed(&mut self) -> u64 {
        self.layer.missed(self.below.0.as_mut())
    }

    fn no_frame(&mut self) -> u64 {
        self.layer.no_frame(self.below.0.as_mut())
    }

    fn counts(&mut self) -> DriverCounts {
        self.layer.counts(self.below.0.as_mut())
    }

    fn verified(&self) -> Option<Verified> {
        self.layer.verified(self.below.0.as_ref())
    }

    fn pace(&self) -> Option<Pace> {
        self.layer.pace(self.below.0.as_ref())
    }
}

impl<L: Layer> AsFd for Wrapped<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.layer.as_fd(self.below.0.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::AsRawFd;
    use std::sync::{Arc, Mutex};

    use linerate_skb::{Code, Error, Pool};
    use linerate_sys::wait::EventFd;

    use super::super::fault::{Faulty, Plan};
    use super::super::tee::{Limits, Tee};
    use super::super::trace::Traced;
    use super::*;

    /// The calls of the trait, as its source has them.
    fn calls_in_source() -> BTreeSet<&'static str> {
        let source = include_str!("../queue.rs");
        let (_, from) = source.split_once("pub trait QueueOps").unwrap();
        let (body, _) = from.split_once("\n}\n").unwrap();
        let name = |line: &'static str| line.strip_prefix("    fn ")?.split('(').next();
        body.lines().filter_map(name).collect()
    }

    /// A queue no answer of which is the trait's default, and that notes what it was asked.
    struct Told {
        bell: EventFd,
        asked: Arc<Mutex<BTreeSet<&'static str>>>,
    }

    impl Told {
        fn note(&self, call: &'static str) {
            self.asked.lock().unwrap().insert(call);
        }
    }

    // So that a new call is in this test, too.
    #[deny(clippy::missing_trait_methods)]
    impl QueueOps for Told {
        fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
            self.note("rx");
            let packets = mem.alloc(out, budget);
            Moved { packets, bytes: 0 }
        }

        fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
            self.note("xmit");
            batch.sent(1, mem)
        }

        fn arm(&mut self, _: Want) -> bool {
            self.note("arm");
            false
        }

        fn reap(&mut self, _: &mut Local) -> usize {
            self.note("reap");
            13
        }

        fn depth(&self) -> Option<u32> {
            self.note("depth");
            Some(37)
        }

        fn announces_room(&self) -> bool {
            self.note("announces_room");
            false
        }

        fn health(&self) -> Health {
            self.note("health");
            Health::Down(Error::new(Code::NoDevice, "told", "down"))
        }

        fn origin(&self) -> Origin {
            self.note("origin");
            Origin::Created
        }

        fn missed(&mut self) -> u64 {
            self.note("missed");
            17
        }

        fn no_frame(&mut self) -> u64 {
            self.note("no_frame");
            19
        }

        fn counts(&mut self) -> DriverCounts {
            self.note("counts");
            DriverCounts { copied_bytes: Some(23), resets: 29, ..DriverCounts::default() }
        }

        fn verified(&self) -> Option<Verified> {
            self.note("verified");
            Some(Verified::default())
        }

        fn pace(&self) -> Option<Pace> {
            self.note("pace");
            Some(Pace { asked: 31, sent: 30, unsent: 1, late_p50_ns: None, late_p99_ns: None })
        }
    }

    impl AsFd for Told {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.bell.as_fd()
        }
    }

    /// Puts something around a queue.
    type Around = fn(Box<dyn QueueOps>) -> Box<dyn QueueOps>;

    /// One that says nothing of any call.
    struct Mute;

    impl Layer for Mute {}

    const WRAPPERS: [(&str, Around); 4] = [
        ("mute", |ops| Box::new(Wrapped::around(ops, Mute))),
        ("trace", |ops| Box::new(Traced::new(ops, 8).unwrap().0)),
        ("tee", |ops| Tee::new(Limits::default()).unwrap().wrap(ops, "told").unwrap()),
        ("fault", |ops| Box::new(Faulty::new(ops, &Plan::new(1)).unwrap())),
    ];

    #[test]
    fn every_call_of_a_queue_reaches_the_one_below_and_its_answer_comes_back() {
        let pool = Pool::builder().frames(64).build().unwrap();
        for (name, around) in WRAPPERS {
            let asked = Arc::new(Mutex::new(BTreeSet::new()));
            let told = Told { bell: EventFd::new().unwrap(), asked: asked.clone() };
            let below = told.as_fd().as_raw_fd();
            let mut ops = around(Box::new(told));
            asked.lock().unwrap().clear();
            let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
            assert_eq!(ops.rx(&mut mem, &mut batch, 3).packets, 3, "{name}");
            assert_eq!((ops.xmit(&mut mem, &mut batch).packets, batch.len()), (1, 2), "{name}");
            assert!(!ops.arm(Want::Room), "{name}");
            assert_eq!((ops.reap(&mut mem), ops.depth()), (13, Some(37)), "{name}");
            assert!(!ops.announces_room(), "{name}");
            assert!(matches!(ops.health(), Health::Down(_)), "{name}");
            assert_eq!(ops.origin(), Origin::Created, "{name}");
            assert_eq!((ops.missed(), ops.no_frame()), (17, 19), "{name}");
            let counts = ops.counts();
            assert_eq!((counts.copied_bytes, counts.resets), (Some(23), 29), "{name}");
            assert!(ops.verified().is_some() && ops.pace().is_some(), "{name}");
            // A fault that waits has a descriptor of its own, around the one below.
            assert_eq!(ops.as_fd().as_raw_fd() == below, name != "fault", "{name}");
            // A call that is new in the trait is missing in what was asked.
            assert_eq!(*asked.lock().unwrap(), calls_in_source(), "{name}");
        }
    }
}
