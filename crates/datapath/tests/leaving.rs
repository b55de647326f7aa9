//! Checks what is said of packets that have not left yet: by a drained worker, and by a shaped
//! port.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use linerate_datapath::Engine;
use linerate_datapath::qdisc::{Fifo, Limit, Shaped};
use linerate_port::wait::EventFd;
use linerate_port::{
    Driver, Moderation, Needs, Obtained, OpenContext, Opened, Plan, Port, QueueOps, Result, Spec,
    Want,
};
use linerate_skb::{Batch, Local, Moved, Offload, Pool};

const LONG: Duration = Duration::from_secs(20);

/// True while the device has no room.
static IS_FULL: AtomicBool = AtomicBool::new(true);
/// Number of times that the device reports packets that it has not sent.
static UNSENT: AtomicUsize = AtomicUsize::new(5);

/// The driver of `late:N`, a device that accepts N packets a call; and of `late:gated`, which
/// accepts none or all, and sends them some time later.
struct Late;

impl Driver for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        Ok(Box::new(LatePlan(spec.arg.parse().ok())))
    }
}

struct LatePlan(Option<usize>);

impl Plan for LatePlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { queues: 1, packet_max_bytes: 1514, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let queue = Queue(EventFd::new()?, self.0);
        let obtained = Obtained::new("late", "late", 1514);
        Ok(Opened { queues: vec![Box::new(queue)], obtained })
    }
}

struct Queue(EventFd, Option<usize>);

impl QueueOps for Queue {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let gate = if IS_FULL.load(Ordering::Relaxed) { 0 } else { usize::MAX };
        batch.sent(self.1.unwrap_or(gate).min(batch.len()), mem)
    }

    fn reap(&mut self, _: &mut Local) -> usize {
        if self.1.is_some() {
            return 0;
        }
        let less = |n: usize| Some(n.saturating_sub(1));
        UNSENT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The turn that empties the backlog moves packets: the device must be asked after it, too.
#[test]
fn a_drained_worker_waits_until_its_device_has_sent_all() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let engine = Engine::builder().driver(&Late).pool(&pool);
    let held = "fixed:usecs=10000".parse().unwrap();
    let engine = engine.moderation(held).port("a", "gen:").port("b", "late:gated").wire("a", "b");
    let mut worker = engine.build().unwrap().into_workers().remove(0);
    worker.turn(Instant::now());
    assert!(pool.ledger().sent == 0 && pool.ledger().in_flight > 0, "{}", pool.ledger());
    IS_FULL.store(false, Ordering::Relaxed);
    assert!(worker.drain(LONG).unwrap());
    assert_eq!((UNSENT.load(Ordering::Relaxed), pool.ledger().in_flight), (0, 0));
}

#[test]
fn a_worker_that_never_sleeps_ends_its_drain() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let engine = Engine::builder().moderation(Moderation::Busy).pool(&pool);
    let engine = engine.port("a", "gen:").port("b", "sink:").wire("a", "b");
    let mut worker = engine.build().unwrap().into_workers().remove(0);
    worker.turn(Instant::now());
    let start = Instant::now();
    assert!(worker.drain(LONG).unwrap());
    assert!(start.elapsed() < LONG / 2 && pool.ledger().in_flight == 0, "{}", pool.ledger());
}

/// The device takes a part of a superframe's segments: the port must be asked for the rest.
#[test]
fn a_shaped_port_comes_back_for_the_rest_of_a_superframe() {
    let pool = Pool::builder().frames(64).frame_size(8192).build().unwrap();
    let port = Port::open_driver_with(&Late, "late:2", &pool).unwrap();
    let mut port = Shaped::new(port, Fifo::new(Limit::packets(8)));
    let mut frame = vec![0; 54 + 5 * 1000];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&5040_u16.to_be_bytes());
    (frame[22], frame[23], frame[46]) = (64, 6, 0x50);
    let mut skb = pool.local().alloc_copy(&frame).unwrap();
    let (gso_size, csum_start, csum_offset) = (1000, 34, 16);
    skb.set_offload(Offload {
        flags: 1,
        gso_type: 1,
        hdr_len: 54,
        gso_size,
        csum_start,
        csum_offset,
    });
    let (mut batch, now) = (Batch::with_capacity(1), Instant::now());
    assert!(batch.push(skb).is_ok());
    for left in [3, 1] {
        assert_eq!(port.xmit(&mut batch, now), 2);
        assert_eq!((batch.len(), port.port().waiting()), (0, left));
        assert!(port.timeout(now).is_some_and(|time| time <= Duration::from_millis(1)));
    }
    assert_eq!((port.xmit(&mut batch, now), port.timeout(now)), (1, None));
    drop(port);
    assert_eq!((pool.ledger().sent, pool.ledger().in_flight), (5, 0));
}
