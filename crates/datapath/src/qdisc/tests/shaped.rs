//! Tests a discipline in front of a port of the program's own.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_port::wait::{EventFd, TimerFd};
use linerate_port::{
    Driver, Needs, Obtained, OpenContext, Opened, Plan, Port, QueueOps, Result, Spec, Want,
    wait_any,
};

use super::*;

#[test]
fn shaped_port_sends_what_is_due_and_says_when_to_come_back() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, mut b) = Port::pair(8, &pool).unwrap();
    let mut port = Shaped::new(a, Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(20))));
    let (mut mem, mut now) = (pool.local(), Instant::now());
    assert_eq!(port.timeout(now), None);
    let (mut batch, mut got) = (Batch::with_capacity(32), Batch::with_capacity(32));
    for _ in 0..12 {
        assert!(batch.push(udp(&mut mem, 1, 2, 3, 1000)).is_ok());
    }
    // Two packets are the burst; then one a millisecond.
    assert_eq!(port.xmit(&mut batch, now), 2);
    assert!(batch.is_empty());
    for _ in 0..3 {
        assert_eq!(port.timeout(now), Some(Duration::from_millis(1)));
        assert_eq!(port.xmit(&mut batch, now), 0);
        now += Duration::from_millis(1);
        assert_eq!(port.xmit(&mut batch, now), 1);
    }
    // The ring has room for eight: packets that are due and find no room are sent first later.
    now += Duration::from_secs(1);
    assert_eq!(port.xmit(&mut batch, now), 2);
    now += Duration::from_secs(1);
    assert_eq!(port.xmit(&mut batch, now), 1);
    assert_eq!((b.rx(&mut got), port.xmit(&mut batch, now)), (8, 1));
    assert!(port.timeout(now).is_some_and(|time| time <= Duration::from_millis(1)));
    drop(port.into_port());
    assert_eq!(pool.ledger().dropped(DropReason::STOPPED), 3);
    assert_eq!(b.rx(&mut got), 1);
    got.clear();
    assert_eq!(pool.ledger().in_flight, 0);
}

#[test]
fn packets_that_wait_in_a_shaped_port_that_is_dropped_are_counted_as_stopped() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, _b) = Port::pair(8, &pool).unwrap();
    let mut port = Shaped::new(a, Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(20))));
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(5));
    while batch.spare() > 0 {
        assert!(batch.push(udp(&mut mem, 1, 2, 3, 1000)).is_ok());
    }
    assert_eq!(port.xmit(&mut batch, Instant::now()), 2);
    drop(port);
    assert_eq!(pool.ledger().dropped(DropReason::STOPPED), 3);
}

/// The driver of a queue that the function makes; it is its own plan.
#[derive(Clone, Copy)]
struct Fake(fn(&Pool) -> Result<Box<dyn QueueOps>>);

impl Driver for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        Ok(Box::new(*self))
    }
}

impl Plan for Fake {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { queues: 1, packet_max_bytes: 1514, ..Needs::default() })
    }

    fn open(&self, context: &mut OpenContext<'_>) -> Result<Opened> {
        let queues = vec![(self.0)(context.pool())?];
        Ok(Opened { queues, obtained: Obtained::new("f", "fake", 1514) })
    }
}

/// A device that refuses a packet until another one is behind it.
struct PickyQueue(EventFd);

fn picky(_: &Pool) -> Result<Box<dyn QueueOps>> {
    Ok(Box::new(PickyQueue(EventFd::new()?)))
}

impl QueueOps for PickyQueue {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        if batch.len() < 2 {
            return Moved::default();
        }
        batch.discard_first(1, DropReason::WRITE_FAILED, mem);
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }
}

impl AsFd for PickyQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn packet_that_is_refused_alone_gets_the_next_one_behind_it() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let port = Port::open_driver_with(&Fake(picky), "fake:", &pool).unwrap();
    let mut port = Shaped::new(port, Fifo::new(Limit::packets(20)));
    let (mut mem, mut batch, now) = (pool.local(), Batch::with_capacity(4), Instant::now());
    for sent in [0, 0, 1] {
        assert!(batch.push(udp(&mut mem, 1, 2, 3, 100)).is_ok());
        assert_eq!(port.xmit(&mut batch, now), sent);
        // The second one waits behind the first, where the driver finds it next time.
        assert_eq!(port.counts().queued.packets, 0);
    }
    assert_eq!(pool.ledger().dropped(DropReason::WRITE_FAILED), 1);
}

/// A device that does not send at once what its driver has accepted: the driver offers it again
/// when it is armed, from `retry_at` on.
struct LateQueue {
    ring: Batch,
    mem: Local,
    retry: TimerFd,
    retry_at: Option<Instant>,
}

fn late(pool: &Pool) -> Result<Box<dyn QueueOps>> {
    let (ring, mem, retry) = (Batch::with_capacity(4), pool.local(), TimerFd::new()?);
    Ok(Box::new(LateQueue { ring, mem, retry, retry_at: None }))
}

impl QueueOps for LateQueue {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, _: &mut Local, batch: &mut Batch) -> Moved {
        let moved = batch.count_first(self.ring.spare());
        batch.move_to(&mut self.ring, moved.packets);
        self.retry_at = Some(Instant::now() + Duration::from_millis(1));
        moved
    }

    fn arm(&mut self, _: Want) -> bool {
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.ring.sent(self.ring.len(), &mut self.mem);
            self.retry_at = None;
        }
        self.retry.set_at(self.retry_at).is_ok()
    }
}

impl AsFd for LateQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.retry.as_fd()
    }
}

#[test]
fn loop_that_waits_on_a_shaped_port_lets_its_driver_offer_accepted_packets_again() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut lan, _silent) = Port::pair(8, &pool).unwrap();
    let port = Port::open_driver_with(&Fake(late), "fake:", &pool).unwrap();
    let mut wan = Shaped::new(port, Fifo::new(Limit::packets(20)));
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
    assert!(batch.push(udp(&mut mem, 1, 2, 3, 100)).is_ok());
    assert_eq!(wan.xmit(&mut batch, Instant::now()), 1);
    // The driver has the packet, so the discipline names no time for it.
    assert_eq!((pool.ledger().sent, wan.timeout(Instant::now())), (0, None));
    let deadline = Instant::now() + Duration::from_secs(10);
    while pool.ledger().sent == 0 {
        assert!(Instant::now() < deadline, "{}", pool.ledger());
        // The example's loop, but for this limit: nothing else ends the sleep after the packet was
        // sent.
        let time = wan.timeout(Instant::now()).unwrap_or(Duration::from_millis(20));
        wait_any(&mut [wan.port(), &mut lan], Some(time)).unwrap();
        lan.rx(&mut batch);
        wan.xmit(&mut batch, Instant::now());
    }
}

/// A discipline of a program that names a time which has passed, and gives nothing.
struct Empty;

impl Qdisc for Empty {
    fn enqueue(&mut self, batch: &mut Batch, n: usize, _: Instant, mem: &mut Local) {
        batch.discard_first(n, DropReason::QUEUE_LIMIT, mem);
    }

    fn dequeue(&mut self, _: &mut Batch, _: Moved, _: Instant, _: &mut Local) -> Moved {
        Moved::default()
    }

    fn deadline(&self) -> Option<Instant> {
        Some(Instant::now())
    }

    fn counts(&self) -> QdiscCounts {
        QdiscCounts::default()
    }

    fn purge(&mut self, _: DropReason, _: &mut Local) {}
}

#[test]
fn discipline_that_gives_nothing_at_its_time_is_asked_once_a_call() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, _b) = Port::pair(8, &pool).unwrap();
    let mut port = Shaped::new(a, Empty);
    let later = Instant::now() + Duration::from_secs(1);
    assert_eq!(port.xmit(&mut Batch::with_capacity(1), later), 0);
    assert_eq!(port.timeout(later), Some(Duration::ZERO));
}
