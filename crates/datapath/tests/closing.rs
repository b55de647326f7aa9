//! Checks what becomes of a worker's other devices if one panics at its close.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::Engine;
use linerate_port::wait::EventFd;
use linerate_port::{
    Driver, Needs, Obtained, OpenContext, Opened, Plan, QueueOps, Result, Spec, Want,
};
use linerate_skb::{Batch, Local, Moved};

/// Number of devices that were closed.
static CLOSED: AtomicUsize = AtomicUsize::new(0);

/// The driver of `closing:`, a device that is silent, and of `closing:panics`, which panics at its
/// close.
struct Closing;

impl Driver for Closing {
    fn name(&self) -> &'static str {
        "closing"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        Ok(Box::new(ClosingPlan { panics: spec.arg == "panics" }))
    }
}

struct ClosingPlan {
    panics: bool,
}

impl Plan for ClosingPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { queues: 1, packet_max_bytes: 1514, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let queue = Queue { event: EventFd::new()?, panics: self.panics };
        let obtained = Obtained::new("closing", "closing", 1514);
        Ok(Opened { queues: vec![Box::new(queue)], obtained })
    }
}

struct Queue {
    event: EventFd,
    panics: bool,
}

impl QueueOps for Queue {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    fn close(&mut self, _: Instant) {
        CLOSED.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "the device panics at its close");
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[test]
fn a_device_that_panics_at_its_close_is_an_error_and_the_others_are_closed() {
    let engine = Engine::builder().driver(&Closing).port("a", "closing:panics");
    let engine = engine.port("b", "closing:").wire("a", "b").build().unwrap();
    let stopped = engine.start().unwrap().stop(Duration::ZERO);
    let failed = stopped.failed.unwrap();
    assert!(failed.why.contains("the device panics at its close"), "{failed}");
    assert_eq!(CLOSED.load(Ordering::Relaxed), 2);
}
