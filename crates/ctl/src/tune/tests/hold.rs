//! Tests changes of a device's hold together with other settings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use linerate_datapath::{DeviceHold, Engine};
use linerate_port::moderation::HoldControl;
use linerate_port::wrap::{Layer, Wrapped};
use linerate_port::{Code, Error, QueueOps, Result};
use linerate_skb::{Batch, Local, Moved};

use super::{LONG, change, shown};
use crate::tune::target::Target;

/// The hold of a device that refuses each change; by then the worker has executed the orders given
/// before.
#[derive(Debug, Default)]
struct Refusing {
    polls: AtomicU64,
}

impl HoldControl for Refusing {
    fn hold(&self) -> Option<DeviceHold> {
        Some(DeviceHold::default())
    }

    fn set_hold(&self, _: DeviceHold) -> Result<()> {
        let (polls, start) = (self.polls.load(Ordering::Relaxed), Instant::now());
        while self.polls.load(Ordering::Relaxed) < polls + 2 {
            assert!(start.elapsed() < LONG, "the worker polls");
            std::thread::yield_now();
        }
        Err(Error::new(Code::Unsupported, "cannot set the hold", "the device has another"))
    }
}

struct Held(Arc<Refusing>);

impl Layer for Held {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        self.0.polls.fetch_add(1, Ordering::Relaxed);
        below.rx(mem, out, budget)
    }

    fn hold_control(&self, _: &dyn QueueOps) -> Option<Weak<dyn HoldControl>> {
        let hold: Arc<dyn HoldControl> = self.0.clone();
        Some(Arc::downgrade(&hold))
    }
}

#[test]
fn nothing_of_a_change_is_made_if_the_device_refuses_its_hold() {
    let refusing = Arc::new(Refusing::default());
    let engine = Engine::builder().port("west", "gen:").port("east", "sink:").wire("west", "east");
    let engine = engine
        .wrap("west", move |ops, _| Ok(Box::new(Wrapped::around(ops, Held(refusing.clone())))));
    let engine = engine.build().unwrap();
    let stats = engine.stats();
    let running = engine.start().unwrap();
    let mut target = Target::new(running.control(), stats, Box::new(|_, _| {}));
    let mut both = change("west", ("moderation", "napi"), None);
    both.settings.insert("hold".into(), "1ms".into());
    let e = target.begin(&both, Instant::now()).unwrap_err();
    assert_eq!((&*e.code, &*e.what), ("E-UNSUPPORTED", "cannot set the hold"), "{e:?}");
    assert_eq!(shown(&target, "moderation"), "adaptive:latency=250us");
    running.stop(LONG).check().unwrap();
}

/// The index of the interface that a device is.
const INDEX: u32 = 7;

/// The hold of the device of one queue, which refuses each change if it has a fixed one.
#[derive(Debug)]
struct MaybeFixed {
    hold: Mutex<DeviceHold>,
    is_fixed: bool,
}

impl HoldControl for MaybeFixed {
    fn hold(&self) -> Option<DeviceHold> {
        Some(*self.hold.lock().unwrap())
    }

    fn interface(&self) -> Option<u32> {
        Some(INDEX)
    }

    fn set_hold(&self, hold: DeviceHold) -> Result<()> {
        if self.is_fixed {
            return Err(Error::new(Code::Permission, "cannot set the hold", "not permitted"));
        }
        *self.hold.lock().unwrap() = hold;
        Ok(())
    }
}

/// Gives a queue the hold of `device`.
struct HeldBy(Arc<dyn HoldControl>);

impl Layer for HeldBy {
    fn hold_control(&self, _: &dyn QueueOps) -> Option<Weak<dyn HoldControl>> {
        Some(Arc::downgrade(&self.0))
    }
}

fn held_by(ops: Box<dyn QueueOps>, device: Arc<dyn HoldControl>) -> Result<Box<dyn QueueOps>> {
    Ok(Box::new(Wrapped::around(ops, HeldBy(device))))
}

/// Returns an engine whose western queues have devices of their own: only the first changes its
/// hold.
fn first_only(west: &str, east: &str) -> Engine {
    let opened = AtomicU64::new(0);
    let engine = Engine::builder().port("west", west).port("east", east).wire("west", "east");
    let engine = engine.wrap("west", move |ops, _| {
        let is_fixed = opened.fetch_add(1, Ordering::Relaxed) > 0;
        held_by(ops, Arc::new(MaybeFixed { hold: Mutex::new(DeviceHold::default()), is_fixed }))
    });
    engine.build().unwrap()
}

#[test]
fn hold_that_only_the_first_of_two_devices_accepted_is_made_in_part_and_reverted() {
    let engine = first_only("null:,queues=2", "null:,queues=2");
    let stats = engine.stats();
    let running = engine.start().unwrap();
    let mut target = Target::new(running.control(), stats, Box::new(|_, _| {}));
    let mut both = change("west", ("moderation", "napi"), Some(Duration::from_secs(60)));
    both.settings.insert("hold".into(), "1ms".into());
    let now = Instant::now();
    let pending = target.begin(&both, now).unwrap();
    let e = target.finish(&pending, now).unwrap().unwrap_err();
    assert_eq!((&*e.code, &*e.what), ("E-PERM", "'west' was set in part"), "{e:?}");
    assert!(target.revert_at().is_some(), "the device that accepted it is reverted");
    assert_ne!(shown(&target, "moderation"), "napi", "nothing is ordered after a refusal");
    running.stop(LONG).check().unwrap();
}

#[test]
fn time_in_which_a_hold_is_recorded_is_not_that_of_the_workers() {
    let engine = first_only("gen:count=1", "sink:");
    let stats = engine.stats();
    // The worker makes no turn.
    let worker = engine.into_workers().remove(0);
    let record = |_: u32, _: DeviceHold| std::thread::sleep(Duration::from_millis(50));
    let mut target = Target::new(worker.control(), stats, Box::new(record));
    let mut both = change("west", ("moderation", "napi"), None);
    both.settings.insert("hold".into(), "1ms".into());
    let now = Instant::now();
    let pending = target.begin(&both, now).unwrap();
    assert!(target.finish(&pending, now + Duration::from_secs(1)).is_none());
    let e = target.finish(&pending, now + LONG).unwrap().unwrap_err();
    assert_eq!((&*e.code, &*e.what), ("E-BUSY", "'west' was set in part"), "{e:?}");
}

#[test]
fn revert_of_a_hold_ends_once_the_device_has_the_former_one() {
    let engine = first_only("null:,queues=2", "null:,queues=2");
    let stats = engine.stats();
    let running = engine.start().unwrap();
    let mut target = Target::new(running.control(), stats, Box::new(|_, _| {}));
    let hold = change("west", ("hold", "1ms"), Some(Duration::from_secs(60)));
    let now = Instant::now();
    let pending = target.begin(&hold, now).unwrap();
    let e = target.finish(&pending, now).unwrap().unwrap_err();
    assert_eq!(&*e.code, "E-PERM", "{e:?}");
    let mut at = now + Duration::from_secs(100);
    for is_pending in [true, false] {
        target.revert(at, Duration::ZERO);
        target.settle(at);
        assert_eq!(target.revert_at().is_some(), is_pending);
        at += Duration::from_secs(10);
    }
    running.stop(LONG).check().unwrap();
}

/// The hold of a device that counts no packets.
#[derive(Debug, Default)]
struct Uncounted(Mutex<DeviceHold>);

impl HoldControl for Uncounted {
    fn hold(&self) -> Option<DeviceHold> {
        Some(*self.0.lock().unwrap())
    }

    fn interface(&self) -> Option<u32> {
        Some(INDEX)
    }

    fn check(&self, hold: DeviceHold) -> Result<()> {
        match hold.frames {
            None => Ok(()),
            Some(_) => Err(Error::new(Code::Unsupported, "cannot set the hold", "no packets")),
        }
    }

    fn set_hold(&self, hold: DeviceHold) -> Result<()> {
        self.check(hold)?;
        *self.0.lock().unwrap() = hold;
        Ok(())
    }
}

#[test]
fn hold_is_recorded_before_it_is_set_and_not_if_it_is_refused() {
    let device = Arc::new(Uncounted::default());
    let engine = Engine::builder().port("west", "gen:count=1").port("east", "sink:");
    let engine = engine.wire("west", "east").wrap("west", {
        let device = device.clone();
        move |ops, _| held_by(ops, device.clone())
    });
    let engine = engine.build().unwrap();
    let stats = engine.stats();
    let worker = engine.into_workers().remove(0);
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let record = {
        let (recorded, device) = (recorded.clone(), device.clone());
        move |index: u32, hold: DeviceHold| {
            recorded.lock().unwrap().push((index, hold, device.hold().unwrap()));
        }
    };
    let mut target = Target::new(worker.control(), stats, Box::new(record));
    let now = Instant::now();
    let e = target.begin(&change("west", ("hold", "1ms,frames=8"), None), now).unwrap_err();
    assert_eq!((&*e.code, recorded.lock().unwrap().len()), ("E-UNSUPPORTED", 0));
    let mut of_queue = change("west", ("hold", "1ms"), None);
    of_queue.queue = Some(0);
    assert_eq!(target.begin(&of_queue, now).unwrap_err().code, "E-USAGE");
    let pending = target.begin(&change("west", ("hold", "1ms"), None), now).unwrap();
    target.finish(&pending, now).unwrap().unwrap();
    let hold: DeviceHold = "1ms".parse().unwrap();
    assert_eq!(*recorded.lock().unwrap(), [(INDEX, hold, DeviceHold::default())]);
    assert_eq!(device.hold(), Some(hold));
}
