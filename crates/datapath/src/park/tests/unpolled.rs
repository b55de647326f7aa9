//! Outputs that a worker does not poll are called again while they or their devices have packets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use linerate_port::HealthKind;

use super::*;

/// An output whose wrapper withholds the packets that it takes, until a call without packets.
struct Late {
    fd: EventFd,
    withheld: Batch,
}

impl QueueOps for Late {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let (n, moved) = (batch.len(), batch.count_first(batch.len()));
        if n == 0 {
            self.withheld.sent(self.withheld.len(), mem);
        }
        batch.move_to(&mut self.withheld, n);
        moved
    }

    fn arm(&mut self, _: Want) -> bool {
        panic!("an output without a backlog is not armed");
    }

    fn withheld(&self) -> usize {
        self.withheld.len()
    }
}

impl AsFd for Late {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// In both modes, the worker sleeps after a turn in which packets moved.
#[test]
fn packets_that_a_wrapper_withholds_limit_the_sleep_and_the_hold_after_they_were_received() {
    let long = Some(Duration::from_secs(20));
    for mode in ["interrupt", "fixed:usecs=10000"] {
        let pool = Pool::builder().frames(256).build().unwrap();
        let fd = || EventFd::new().unwrap();
        let nic =
            Nic { fd: fd(), bursts: vec![5], here: 0, late: 0, polls: 0, calls: Arc::default() };
        let late = Late { fd: fd(), withheld: Batch::with_capacity(16) };
        let napi = |ops: Box<dyn QueueOps>, direction, i| {
            Napi::new(ops, direction, Napi::id(i), Egress::new(256, None), pool.tally("backlog"))
        };
        let mut nic = napi(Box::new(nic), Direction::Both, 0);
        nic.peer = Some(1);
        assert_eq!(nic.set_moderation(mode.parse().unwrap()), None);
        let napis = vec![nic, napi(Box::new(late), Direction::Sink, 1)];
        let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
        let mems = vec![pool.local()];
        let mut worker = Worker::new(napis, vec![Box::new(Xconnect)], mems, 64, slot).unwrap();
        // The rate is so low that 32 packets take longer than the hold, and the time is less than two
        // holds, so that it is not quiet.
        let turned = worker.turn(Instant::now() - Duration::from_millis(15));
        assert_eq!(turned, Turned::Idle);
        worker.park(turned, long).unwrap();
        let now = Instant::now();
        let turned = worker.turn(now);
        let soon = now + Duration::from_millis(1);
        let expected = if mode == "interrupt" { Turned::Idle } else { Turned::Until(soon) };
        assert_eq!((turned, worker.napis[1].withheld()), (expected, 5), "{mode}");
        assert_eq!(worker.unpolled_due, Some(soon), "{mode}");
        worker.park(turned, long).unwrap();
        worker.turn(Instant::now());
        assert_eq!(worker.napis[1].withheld(), 0, "{mode}");
    }
}

/// Lets a worker drain, which does not poll queues of devices.
#[test]
fn packets_that_a_wrapper_withholds_leave_while_their_queue_is_read_but_not_polled() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let fd = || EventFd::new().unwrap();
    let nic =
        Nic { fd: fd(), bursts: Vec::new(), here: 5, late: 0, polls: 0, calls: Arc::default() };
    let late = Late { fd: fd(), withheld: Batch::with_capacity(16) };
    let napi = |ops: Box<dyn QueueOps>, i| {
        let (egress, tally) = (Egress::new(256, None), pool.tally("backlog"));
        let mut napi = Napi::new(ops, Direction::Both, Napi::id(i), egress, tally);
        napi.peer = Some(1 - i);
        assert_eq!(napi.set_moderation(Moderation::Interrupt), None);
        napi
    };
    let napis = vec![napi(Box::new(nic), 0), napi(Box::new(late), 1)];
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let (mems, its) = (vec![pool.local()], slot.clone());
    let mut worker = Worker::new(napis, vec![Box::new(Xconnect)], mems, 64, its).unwrap();
    worker.turn(Instant::now());
    assert_eq!((worker.napis[1].withheld(), worker.unpolled_due), (5, None), "its polls send them");
    slot.set_phase(Phase::Drain);
    let now = Instant::now();
    let turned = worker.turn(now);
    let soon = Some(now + Duration::from_millis(1));
    assert_eq!((turned, worker.unpolled_due), (Turned::Idle, soon));
    worker.park(turned, Some(Duration::from_secs(20))).unwrap();
    worker.turn(Instant::now());
    assert_eq!(worker.napis[1].withheld(), 0);
}

/// An output whose kernel refuses the doorbell of the last packets, and takes them when the queue
/// is called again.
struct Refused {
    fd: EventFd,
    unsent: Batch,
    /// Number of further calls that change nothing.
    refusals: usize,
    is_down: Arc<AtomicBool>,
}

impl QueueOps for Refused {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        panic!("an output is not polled");
    }

    fn xmit(&mut self, _: &mut Local, batch: &mut Batch) -> Moved {
        let moved = batch.count_first(batch.len());
        batch.move_to(&mut self.unsent, moved.packets);
        moved
    }

    fn reap(&mut self, mem: &mut Local) -> usize {
        match self.refusals.checked_sub(1) {
            Some(refusals) => self.refusals = refusals,
            None => {
                self.unsent.sent(self.unsent.len(), mem);
            }
        }
        self.unsent.len()
    }

    fn arm(&mut self, _: Want) -> bool {
        panic!("an output without a backlog is not armed");
    }

    fn health_kind(&self) -> HealthKind {
        if self.is_down.load(Ordering::Relaxed) { HealthKind::Down } else { HealthKind::Up }
    }
}

impl AsFd for Refused {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns a worker between a device and an output that refuses so many calls; the device has five
/// packets, and three more when it is armed.
fn worker_of_refused(pool: &Pool, refusals: usize, is_down: &Arc<AtomicBool>) -> Worker {
    let fd = || EventFd::new().unwrap();
    let nic = Nic { fd: fd(), bursts: vec![3], here: 5, late: 0, polls: 0, calls: Arc::default() };
    let (unsent, is_down) = (Batch::with_capacity(16), is_down.clone());
    let refused = Refused { fd: fd(), unsent, refusals, is_down };
    let napi = |ops: Box<dyn QueueOps>, direction, i| {
        Napi::new(ops, direction, Napi::id(i), Egress::new(256, None), pool.tally("backlog"))
    };
    let mut nic = napi(Box::new(nic), Direction::Both, 0);
    nic.peer = Some(1);
    assert_eq!(nic.set_moderation(Moderation::Interrupt), None);
    let napis = vec![nic, napi(Box::new(refused), Direction::Sink, 1)];
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    Worker::new(napis, vec![Box::new(Xconnect)], vec![pool.local()], 64, slot).unwrap()
}

/// Turns a worker whenever it would call its output; returns the times between, in milliseconds.
fn calls(worker: &mut Worker, now: &mut Instant, most: usize) -> Vec<u128> {
    let mut waits = Vec::new();
    while waits.len() < most {
        assert_eq!(worker.turn(*now), Turned::Idle);
        let Some(due) = worker.unpolled_due else { break };
        waits.push((due - *now).as_millis());
        *now = due;
    }
    waits
}

#[test]
fn an_output_whose_device_has_packets_is_called_again_at_growing_intervals_without_new_ones() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut worker = worker_of_refused(&pool, 5, &Arc::default());
    assert_eq!(calls(&mut worker, &mut Instant::now(), 100), [1, 1, 2, 4, 8]);
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn new_packets_make_the_interval_of_such_calls_short_again() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut worker, mut now) = (worker_of_refused(&pool, 100, &Arc::default()), Instant::now());
    let waits = calls(&mut worker, &mut now, 14);
    assert_eq!(waits[8..], [128, 256, 512, 1000, 1000, 1000]);
    assert!(worker.arm().unwrap(), "three packets come now");
    assert_eq!(calls(&mut worker, &mut now, 4), [1, 1, 2, 4]);
}

#[test]
fn packets_that_a_discipline_releases_make_the_interval_short_again() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut mem, mut now) = (pool.local(), Instant::now());
    let (fd, unsent) = (EventFd::new().unwrap(), Batch::with_capacity(16));
    let refused = Refused { fd, unsent, refusals: 100, is_down: Arc::default() };
    // The second packet leaves ten seconds after the first.
    let tbf = Tbf::new(800, 1000, Fifo::new(Limit::packets(9)));
    let egress = Egress::new(64, Some(Box::new(tbf)));
    let tally = pool.tally("backlog");
    let mut napi = Napi::new(Box::new(refused), Direction::Sink, Napi::id(0), egress, tally);
    let mut batch = Batch::with_capacity(2);
    for _ in 0..2 {
        assert!(batch.push(mem.alloc_copy(&[0; 1000]).unwrap()).is_ok());
    }
    napi.enqueue(&mut batch, 2, now, &mut mem);
    let second = now + Duration::from_secs(10);
    let soon = Duration::from_millis(1);
    assert!(napi.xmit(now, &mut mem));
    let mut wait = Duration::ZERO;
    while now < second {
        assert!(!napi.xmit(now, &mut mem), "it waits for tokens");
        let at = napi.reap_unpolled(false, now, &mut mem).unwrap();
        (wait, now) = (at - now, at.min(second));
    }
    assert_eq!(wait, Duration::from_secs(1));
    assert!(napi.xmit(now, &mut mem));
    assert_eq!(napi.reap_unpolled(false, now, &mut mem), Some(now + soon));
    napi.purge(&mut mem);
}

#[test]
fn an_output_that_is_down_is_called_until_it_is_up_also_without_packets_in_its_device() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let is_down = Arc::new(AtomicBool::new(true));
    let (mut worker, mut now) = (worker_of_refused(&pool, 0, &is_down), Instant::now());
    assert_eq!(calls(&mut worker, &mut now, 4), [1, 1, 2, 4]);
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
    is_down.store(false, Ordering::Relaxed);
    assert_eq!(calls(&mut worker, &mut now, 4), [0; 0]);
}

/// An output that counts the calls that take back what it has sent.
struct Reaped(EventFd, Arc<AtomicU64>);

impl QueueOps for Reaped {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn reap(&mut self, _: &mut Local) -> usize {
        self.1.fetch_add(1, Ordering::Relaxed);
        1
    }

    fn arm(&mut self, _: Want) -> bool {
        panic!("an output without a backlog is not armed");
    }
}

impl AsFd for Reaped {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn output_beside_a_wire_that_always_moves_packets_is_called_again_soon() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let calls = Arc::<AtomicU64>::default();
    let fd = || EventFd::new().unwrap();
    let nic =
        Nic { fd: fd(), bursts: vec![], here: 1 << 20, late: 0, polls: 0, calls: Arc::default() };
    let napi = |ops: Box<dyn QueueOps>, direction, i| {
        Napi::new(ops, direction, Napi::id(i), Egress::new(256, None), pool.tally("backlog"))
    };
    let mut nic = napi(Box::new(nic), Direction::Both, 0);
    nic.peer = Some(0);
    assert_eq!(nic.set_moderation(Moderation::Napi), None);
    let output = napi(Box::new(Reaped(fd(), calls.clone())), Direction::Sink, 1);
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    let (napis, mems) = (vec![nic, output], vec![pool.local()]);
    let mut worker = Worker::new(napis, vec![Box::new(Xconnect)], mems, 64, slot).unwrap();
    for _ in 0..300 {
        assert_eq!(worker.turn(Instant::now()), Turned::Again);
    }
    assert!(calls.load(Ordering::Relaxed) > 0, "its device may have refused the last doorbell");
}

#[test]
fn last_figures_of_a_burst_are_published_before_a_long_sleep() {
    let (mut worker, _) = worker_of_nic(vec![3, 5]);
    let now = Instant::now();
    assert_eq!(worker.turn(now), Turned::Idle);
    // The first turn has published, the packets come after it.
    assert!(worker.arm().unwrap());
    let due = worker.ask_at;
    while worker.turn(Instant::now()) != Turned::Idle {}
    assert_eq!((worker.napis[0].counts().rx_packets, worker.ask_at), (5, due));
    assert!(worker.passed() != worker.published);
    worker.park(Turned::Idle, Some(Duration::from_secs(20))).unwrap();
    while worker.turn(Instant::now()) != Turned::Idle {}
    worker.park(Turned::Idle, Some(Duration::from_secs(20))).unwrap();
    while worker.turn(Instant::now()) != Turned::Idle {}
    assert_eq!(worker.passed(), worker.published, "the sleep ended for it");
    assert!(now.elapsed() < Duration::from_secs(20));
}

#[test]
fn checks_for_room_become_rare_while_a_device_takes_nothing() {
    let (mut worker, _, _) = dense(false, 1);
    let now = Instant::now();
    let mut interval = |after_us| {
        let at = now + Duration::from_secs(1) + Duration::from_micros(after_us);
        worker.napis[0].room_interval(at).as_micros()
    };
    // `dense` has looked before.
    assert_eq!(interval(0), 10_000);
    worker.napis[0].readings().0.count_tx(1, 60);
    let mut interval = |after_us| {
        let at = now + Duration::from_secs(1) + Duration::from_micros(after_us);
        worker.napis[0].room_interval(at).as_micros()
    };
    assert_eq!([0, 0, 50, 100, 300, 1 << 20].map(&mut interval), [50, 50, 50, 100, 300, 10_000]);
}
