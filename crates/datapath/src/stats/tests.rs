//! Tests that readers see the reports of devices.

use super::*;
use crate::egress::Egress;
use crate::napi::Napi;
use crate::worker::{Turned, Worker};
use crate::worker_slot::WorkerSlot;
use linerate_port::wait::EventFd;
use linerate_port::{Caps, Code, Counters, Direction, Error, Moderation, QueueOps, Want};
use linerate_skb::{Batch, Local, Moved};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A device that loses a packet, for lack of room, at every query, and is down once it is closed.
struct Losing {
    bell: EventFd,
    counts: DriverCounts,
    copies: Copies,
    down: Arc<AtomicBool>,
    /// True if the device fails when it is closed.
    fails: bool,
    /// The times until which closing it might have waited.
    closed: Arc<Mutex<Vec<Instant>>>,
}

impl Losing {
    fn new(copied_bytes: Option<u64>, resets: u64) -> Losing {
        let mut counts = DriverCounts::default();
        (counts.copied_bytes, counts.resets, counts.bad_descs) = (copied_bytes, resets, 5);
        let (bell, copies) = (EventFd::new().unwrap(), Copies::default());
        let (down, closed) = (Arc::default(), Arc::default());
        Losing { bell, counts, copies, down, fails: false, closed }
    }
}

impl QueueOps for Losing {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    fn counters(&mut self) -> Counters {
        self.counts.missed_ring_full += 1;
        let mut counters = Counters::default();
        (counters.rx_missed, counters.driver) = (self.counts.missed_ring_full, self.counts);
        counters
    }

    fn close(&mut self, until: Instant) {
        self.down.store(true, Ordering::Relaxed);
        self.closed.lock().unwrap().push(until);
        self.counts.missed_unread += 9;
    }

    fn caps(&self) -> Caps {
        Caps { copies: self.copies, ..Caps::default() }
    }

    fn health(&self) -> Health {
        let error = Error::new(Code::DeviceDown, "losing", "it is a test");
        match (self.down.load(Ordering::Relaxed), self.fails) {
            (true, false) => Health::Down(error),
            (true, true) => Health::Failed(error),
            (false, _) => Health::Up,
        }
    }
}

impl AsFd for Losing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Returns a port of these queues, and the worker that has them.
fn port(queues: Vec<Losing>) -> (Entry, Worker) {
    let pool = Pool::builder().frames(2048).build().unwrap();
    let napi = |ops| {
        Napi::new(
            Box::new(ops),
            Direction::Both,
            Napi::id(0),
            Egress::new(64, None),
            pool.tally("backlog"),
        )
    };
    let napis: Vec<Napi> = queues.into_iter().map(napi).collect();
    let queues = napis.iter().map(Napi::readings).collect();
    let obtained = Obtained::new("losing", "losing", 1514);
    let entry = Entry {
        name: "p".into(),
        driver: "losing".into(),
        flags: DriverFlags::default(),
        obtained,
        queues,
        rings: Vec::new(),
    };
    let slot = WorkerSlot::new(&Arc::default(), Vec::new()).unwrap();
    (entry, Worker::new(napis, Vec::new(), vec![pool.local()], 64, slot).unwrap())
}

#[test]
fn driver_counters_are_reported_by_port_while_it_runs_and_at_the_end() {
    let (entry, mut worker) = port(vec![Losing::new(None, 2), Losing::new(Some(70), 1)]);
    assert_eq!(PortStats::read(&entry).driver_counts, DriverCounts::default());
    worker.turn(Instant::now());
    let read = || {
        let port = PortStats::read(&entry);
        let c = port.driver_counts;
        assert_eq!((c.copied_bytes, c.bad_descs, c.resets), (Some(70), 10, 3));
        let of_queues = port.queues.iter().map(|queue| queue.counts.rx_missed);
        assert_eq!(of_queues.collect::<Vec<_>>(), [port.counts.rx_missed / 2; 2]);
        (c.missed_ring_full, port.counts.rx_missed)
    };
    // Each reading finds one more lost packet, with its cause.
    assert_eq!(read(), (4, 4));
    drop(worker);
    assert_eq!(read(), (6, 6));
}

#[test]
fn queues_of_a_worker_are_closed_by_one_deadline_and_counted_after_it() {
    let closed = Arc::<Mutex<Vec<Instant>>>::default();
    let losing = || Losing { closed: closed.clone(), ..Losing::new(None, 0) };
    let (entry, mut worker) = port(vec![losing(), losing()]);
    worker.turn(Instant::now());
    drop(worker);
    let read = PortStats::read(&entry);
    assert_eq!((read.driver_counts.missed_unread, read.health), (18, Health::Up));
    let closed = closed.lock().unwrap();
    assert!(closed.len() == 2 && closed[0] == closed[1], "{closed:?}");
}

#[test]
fn queue_of_a_worker_that_never_ran_is_not_closed() {
    let losing = Losing::new(None, 0);
    let closed = losing.closed.clone();
    let (entry, worker) = port(vec![losing]);
    drop(worker);
    assert!(closed.lock().unwrap().is_empty());
    assert_eq!(PortStats::read(&entry).health, Health::Up);
}

#[test]
fn failure_of_a_device_at_its_close_is_reported() {
    let losing = Losing { fails: true, ..Losing::new(None, 0) };
    let (entry, mut worker) = port(vec![losing]);
    worker.turn(Instant::now());
    assert_eq!(PortStats::read(&entry).health, Health::Up);
    drop(worker);
    let health = PortStats::read(&entry).health;
    assert!(matches!(health, Health::Failed(_)), "{health:?}");
}

#[test]
fn bytes_copied_are_unknown_if_no_queue_counts_them() {
    let (entry, mut worker) = port(vec![Losing::new(None, 0), Losing::new(None, 0)]);
    worker.turn(Instant::now());
    assert_eq!(PortStats::read(&entry).driver_counts.copied_bytes, None);
    let (entry, mut worker) = port(vec![Losing::new(Some(1), 0), Losing::new(Some(0), 0)]);
    worker.turn(Instant::now());
    assert_eq!(PortStats::read(&entry).driver_counts.copied_bytes, Some(1));
}

#[test]
fn port_copies_some_packets_if_its_queues_differ() {
    let (never, always, some) = (Copies::Never, Copies::Always, Copies::Sometimes);
    for (queues, of_port) in [
        ([never; 3], never),
        ([always; 3], always),
        ([always, never, never], some),
        ([never, never, always], some),
    ] {
        let losing = queues.map(|copies| Losing { copies, ..Losing::new(None, 0) });
        let (entry, worker) = port(losing.into());
        drop(worker);
        assert_eq!(PortStats::read(&entry).copies, of_port, "{queues:?}");
    }
}

#[test]
fn each_queue_of_a_port_is_read_with_its_own_moderation() {
    let (entry, mut worker) = port(vec![Losing::new(None, 0), Losing::new(None, 0)]);
    worker.napis[1].set_moderation(Moderation::Dim);
    worker.turn(Instant::now());
    drop(worker);
    let modes = PortStats::read(&entry).queues.into_iter().map(|queue| queue.moderation.mode);
    assert_eq!(modes.collect::<Vec<_>>(), [Moderation::default(), Moderation::Dim]);
}

/// Turns a worker on another thread, so that a turn that waits fails the test instead of hanging.
fn turn_elsewhere(mut worker: Worker) -> (Turned, Worker) {
    let (to, turned) = mpsc::channel();
    thread::spawn(move || {
        let turned = worker.turn(Instant::now());
        let _ = to.send(Box::new((turned, worker)));
    });
    *turned.recv_timeout(Duration::from_secs(20)).expect("a turn waits for a reader")
}

#[test]
fn turn_waits_for_no_reader_and_the_next_one_publishes_a_change_of_health() {
    let device = Losing::new(None, 0);
    let down = device.down.clone();
    let (entry, mut worker) = port(vec![device]);
    worker.turn(Instant::now());
    down.store(true, Ordering::Relaxed);
    let reader = entry.queues[0].1.report.lock().unwrap();
    let (turned, worker) = turn_elsewhere(worker);
    let known = reader.health.clone();
    // A worker that ends waits for readers, also when this test fails.
    drop(reader);
    assert_eq!((turned, known), (Turned::Again, Health::Up));
    let (turned, _worker) = turn_elsewhere(worker);
    let health = PortStats::read(&entry).health;
    assert!(turned != Turned::Again && matches!(health, Health::Down(_)), "{turned:?}, {health:?}");
}

#[test]
fn packets_in_the_disciplines_of_all_queues_are_counted() {
    let (entry, _worker) = port(vec![Losing::new(None, 0), Losing::new(None, 0)]);
    for (_, slot) in &entry.queues {
        let counts = QdiscCounts { marked: 1, ..QdiscCounts::default() };
        slot.report.lock().unwrap().qdisc = Some(counts);
    }
    assert_eq!(PortStats::read(&entry).qdisc.unwrap().marked, 2);
}
