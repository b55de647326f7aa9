//! Checks that waiting for ports that are down uses no CPU time, whatever the state of their
//! queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::Engine;
use linerate_port::wait::EventFd;
use linerate_port::{
    Code, Driver, Error, Health, Needs, Obtained, OpenContext, Opened, Plan, QueueOps, Result,
    Spec, Want,
};
use linerate_skb::{Batch, Local, Moved};

/// Number of times that a queue was armed.
static ARMED: AtomicU64 = AtomicU64::new(0);

/// The driver of `stuck:`: its queue is down and refuses to be armed, because an old packet waits
/// in it. After a number of attempts it is up.
struct Stuck;

impl Driver for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(StuckPlan(spec.arg.parse().unwrap())))
    }
}

struct StuckPlan(u64);

impl Plan for StuckPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { queues: 1, packet_max_bytes: 60, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let queue = Queue { bell: EventFd::new()?, until: self.0 };
        let obtained = Obtained::new("stuck", "stuck", 60);
        Ok(Opened { queues: vec![Box::new(queue)], obtained })
    }
}

struct Queue {
    bell: EventFd,
    until: u64,
}

impl QueueOps for Queue {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, _: Want) -> bool {
        ARMED.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn health(&self) -> Health {
        match ARMED.load(Ordering::Relaxed) < self.until {
            true => Health::Down(Error::new(Code::DeviceDown, "stuck", "it is a test")),
            false => Health::Up,
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[test]
fn waiting_for_a_port_that_cannot_be_slept_on_is_no_busy_loop() {
    let engine = |times: &str| {
        let engine = Engine::builder().driver(&Stuck).port("a", &format!("stuck:{times}"));
        engine.port("sink", "sink:,blind").wire("a", "sink").build().unwrap()
    };
    let (start, mut never) = (Instant::now(), engine("1000000"));
    let before = ARMED.load(Ordering::Relaxed);
    assert!(!never.wait_until_up(Duration::from_millis(100)));
    // One attempt in 10 ms, computed from the elapsed time, because the machine may be slow.
    let armed = u128::from(ARMED.load(Ordering::Relaxed) - before);
    assert!((2..=2 + start.elapsed().as_millis() / 10).contains(&armed), "{armed}");
    let times = ARMED.load(Ordering::Relaxed) + 3;
    assert!(engine(&times.to_string()).wait_until_up(Duration::from_secs(20)));
}
