//! Tests changes of a device's hold together with other settings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use linerate_datapath::{DeviceHold, Engine};
use linerate_port::moderation::HoldControl;
use linerate_port::wrap::{Layer, Wrapped};
use linerate_port::{Code, Error, QueueOps, Result};
use linerate_skb::{Batch, Local, Moved};

use super::{LONG, change, shown};
use crate::tune::target::Target;

/// The hold of a device that refuses each change; by then the worker has executed the orders given before.
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
