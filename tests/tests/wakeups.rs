//! No wake-up is lost: a program that sleeps on a queue's descriptor as documented wakes up.
//!
//! A sender sends bursts with random pauses; sender and receiver sleep only on their descriptors,
//! by poll, mio (edge-triggered) or tokio. Everything must arrive, in order, and no sleep may last
//! until its time-out.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_port::{Health, Port, Queue, Want};
use linerate_skb::{Batch, Pool};
use linerate_tests::capture::frame;
use linerate_tests::or_skip;
use linerate_tests::topology::Hosts;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Length of a sleep that means a lost wake-up.
const LOST: Duration = Duration::from_secs(2);
/// Most bursts to send; fewer if the time is over before.
const BURSTS: u64 = 100_000;
/// Time for which bursts are sent.
const TIME: Duration = Duration::from_secs(4);
/// Fewest bursts for a meaningful test.
const BURSTS_MIN: u64 = 1000;
/// Fewest sleeps of the receiver for a meaningful test.
const SLEEPS_MIN: u64 = 100;
/// The same of a sender whose bursts are mostly longer than the ring.
const ROOM_SLEEPS_MIN: u64 = 10;
/// The longest burst, in packets.
const BURST_MAX: u64 = 40;
/// Most packets in flight: the ring of a packet socket always has room for that many.
const AHEAD_MAX: u64 = 4096;
/// Offset of a packet's number, behind the Ethernet header; the number of packets sent before it
/// follows.
const NUMBER_AT: usize = 14;
/// The number of the last packet.
const LAST: u64 = u64::MAX;

/// The next action of a receiver.
enum Next {
    Again,
    Sleep(Want),
    Done,
}

/// One end of the test, for any way to sleep.
trait Side: Send {
    /// Does everything that needs no waiting; returns the next action.
    fn step(&mut self, queue: &mut Queue) -> Next;
}

/// The side that sends bursts.
struct Sender {
    batch: Batch,
    template: Vec<u8>,
    sent: u64,
    bursts: u64,
    /// Frames that the last allocation returned.
    allocated: usize,
    random: u64,
    until: Instant,
    /// Latest time of a step: a sender that gets no frames any more never finishes.
    deadline: Instant,
    finished: bool,
    arrived: Arc<AtomicU64>,
}

impl Sender {
    fn new(arrived: &Arc<AtomicU64>) -> Sender {
        Sender {
            batch: Batch::with_capacity(BURST_MAX as usize),
            template: frame(0, 60),
            sent: 0,
            bursts: 0,
            allocated: 0,
            random: 0x2545_f491_4f6c_dd1d,
            until: Instant::now() + TIME,
            deadline: Instant::now() + TIME + 3 * LOST,
            finished: false,
            arrived: arrived.clone(),
        }
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Waits for no time, for a moment, for a yield, or long enough for the other end to fall
    /// asleep.
    fn pause(&mut self) {
        let random = self.random();
        match random % 8 {
            0..4 => {}
            4 | 5 => (0..random % 512).for_each(|_| std::hint::spin_loop()),
            6 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(random % 64)),
        }
    }

    /// Waits so that a receiver without CPU time is not overrun; a receiver that lost a wake-up
    /// fails by its own timeout.
    fn hold_back(&self) {
        let deadline = Instant::now() + 3 * LOST;
        while self.sent - self.arrived.load(Ordering::Relaxed) > AHEAD_MAX {
            assert!(Instant::now() < deadline, "nothing arrives any more");
            std::thread::yield_now();
        }
    }

    fn fill(&mut self, queue: &mut Queue) {
        let last = self.bursts == BURSTS || Instant::now() >= self.until;
        let packets = if last { 1 } else { 1 + self.random() % BURST_MAX };
        self.allocated = queue.alloc(&mut self.batch, packets as usize);
        for skb in self.batch.iter_mut() {
            let number = if last { LAST } else { self.sent };
            let numbers = [number, self.sent].map(u64::to_be_bytes).concat();
            self.template[NUMBER_AT..NUMBER_AT + numbers.len()].copy_from_slice(&numbers);
            assert!(skb.put_slice(&self.template));
            self.sent += 1;
        }
        self.bursts += 1;
        self.finished = last && self.allocated == 1;
    }
}

impl Side for Sender {
    fn step(&mut self, queue: &mut Queue) -> Next {
        if self.batch.is_empty() {
            if self.finished {
                assert!(self.bursts > BURSTS_MIN, "{} bursts in {TIME:?}", self.bursts);
                return Next::Done;
            }
            let (now, n) = (Instant::now(), self.allocated);
            let late = now.saturating_duration_since(self.until);
            assert!(now < self.deadline, "unfinished {late:?} after the end; the last alloc: {n}");
            self.pause();
            self.hold_back();
            self.fill(queue);
        }
        queue.xmit(&mut self.batch);
        if self.batch.is_empty() { Next::Again } else { Next::Sleep(Want::Room) }
    }
}

/// The side that receives everything, and checks that nothing is missing.
struct Receiver {
    batch: Batch,
    expected: u64,
    arrived: Arc<AtomicU64>,
}

impl Receiver {
    fn new(arrived: &Arc<AtomicU64>) -> Receiver {
        Receiver { batch: Batch::with_capacity(64), expected: 0, arrived: arrived.clone() }
    }
}

impl Side for Receiver {
    fn step(&mut self, queue: &mut Queue) -> Next {
        if queue.rx(&mut self.batch) == 0 {
            return Next::Sleep(Want::Frames);
        }
        let mut numbers = [[0; 2]; 64];
        let n = self.batch.len();
        for (numbers, skb) in numbers.iter_mut().zip(self.batch.iter()) {
            let mut bytes = [0; 16];
            assert_eq!(skb.copy_to(NUMBER_AT, &mut bytes), 16);
            let both = u128::from_be_bytes(bytes);
            *numbers = [(both >> 64) as u64, both as u64];
        }
        self.batch.clear();
        for &[number, sent_before] in &numbers[..n] {
            if number == LAST {
                assert_eq!(self.expected, sent_before, "packets are missing before the last one");
                return Next::Done;
            }
            assert_eq!(number, self.expected);
            self.expected += 1;
        }
        self.arrived.store(self.expected, Ordering::Relaxed);
        Next::Again
    }
}

/// The result of a side: its queue, and the number of its sleeps.
type Slept = (Queue, u64);

/// Drives one side to its end, sleeping by poll(2).
fn by_poll(mut queue: Queue, mut side: impl Side) -> Slept {
    let mut sleeps = 0;
    let fd = queue.as_raw_fd();
    let time = Timespec { tv_sec: LOST.as_secs() as i64, tv_nsec: 0 };
    loop {
        assert_eq!(queue.as_raw_fd(), fd, "the descriptor is the same for life");
        match side.step(&mut queue) {
            Next::Done => return (queue, sleeps),
            Next::Again => {}
            Next::Sleep(want) => {
                if queue.arm(want) {
                    let mut fds = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
                    let n = rustix::event::poll(&mut fds, Some(&time)).unwrap();
                    assert!(n == 1, "slept {LOST:?} for {want:?}");
                    sleeps += 1;
                }
            }
        }
    }
}

/// Drives one side to its end with mio, which reports only changes.
fn by_mio(mut queue: Queue, mut side: impl Side) -> Slept {
    let mut sleeps = 0;
    let fd: RawFd = queue.as_raw_fd();
    let mut poll = mio::Poll::new().unwrap();
    let mut source = mio::unix::SourceFd(&fd);
    poll.registry().register(&mut source, mio::Token(0), mio::Interest::READABLE).unwrap();
    let mut events = mio::Events::with_capacity(4);
    loop {
        assert_eq!(queue.as_raw_fd(), fd, "the descriptor is the same for life");
        match side.step(&mut queue) {
            Next::Done => return (queue, sleeps),
            Next::Again => {}
            Next::Sleep(want) => {
                if queue.arm(want) {
                    poll.poll(&mut events, Some(LOST)).unwrap();
                    assert!(!events.is_empty(), "slept {LOST:?} for {want:?}");
                    sleeps += 1;
                }
            }
        }
    }
}

/// Drives one side to its end with tokio, which waits again after the queue was found empty.
fn by_tokio(queue: Queue, side: impl Side) -> Slept {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(tokio_side(queue, side))
}

async fn tokio_side(queue: Queue, mut side: impl Side) -> Slept {
    let mut sleeps = 0;
    let raw = queue.as_raw_fd();
    // SAFETY: the queue owns its descriptor, which stays open with a constant number as long as the
    // queue exists; AsyncFd owns the queue.
    let fd = unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE) };
    let mut fd = fd.unwrap();
    // What can be done at once. Then everything is done when the descriptor is readable.
    loop {
        match side.step(fd.get_mut()) {
            Next::Done => return (fd.into_inner(), sleeps),
            Next::Again => {}
            Next::Sleep(want) => {
                if fd.get_mut().arm(want) {
                    break;
                }
            }
        }
    }
    loop {
        assert_eq!(fd.as_raw_fd(), raw, "the descriptor is the same for life");
        let readable = tokio::time::timeout(LOST, fd.readable_mut()).await;
        let mut ready = readable.unwrap_or_else(|_| panic!("slept {LOST:?}")).unwrap();
        loop {
            match side.step(ready.get_inner_mut()) {
                Next::Done => return (fd.into_inner(), sleeps),
                Next::Again => {}
                Next::Sleep(want) => {
                    if ready.get_inner_mut().arm(want) {
                        ready.clear_ready();
                        sleeps += 1;
                        break;
                    }
                }
            }
        }
    }
}

type Drive<S> = fn(Queue, S) -> Slept;

/// Runs both sides, each on a thread of its own; returns the number of the sender's sleeps.
fn run(tx: Queue, rx: Queue, send: Drive<Sender>, receive: Drive<Receiver>) -> u64 {
    let arrived = Arc::new(AtomicU64::new(0));
    let (sender, receiver) = (Sender::new(&arrived), Receiver::new(&arrived));
    // Both queues outlive both threads: another test covers an end that closes.
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || send(tx, sender));
        let receiving = scope.spawn(move || receive(rx, receiver));
        let ends = [receiving, sending]
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let [(_, slept), (_, sender_slept)] = ends;
        assert!(slept > SLEEPS_MIN, "the receiver slept {slept} times: nothing is shown");
        sender_slept
    })
}

/// Runs both sides on the ends of a ring much shorter than the bursts: they wait for each other all
/// the time.
fn over_a_ring(send: Drive<Sender>, receive: Drive<Receiver>) {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (a, b) = Port::pair(16, &pool).unwrap();
    let slept = run(a.into_queues().remove(0), b.into_queues().remove(0), send, receive);
    assert!(slept > ROOM_SLEEPS_MIN, "the sender slept {slept} times: nothing is shown");
    let ledger = pool.ledger();
    assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger}");
}

#[test]
fn a_ring_wakes_by_poll() {
    over_a_ring(by_poll, by_poll);
}

#[test]
fn a_ring_wakes_by_mio() {
    over_a_ring(by_mio, by_mio);
}

#[test]
fn a_ring_wakes_by_tokio() {
    over_a_ring(by_tokio, by_tokio);
}

/// Runs both sides on packet sockets: on a host's interface, and on the other end of its veth pair
/// in the middle.
fn over_packet_sockets(send: Drive<Sender>, receive: Drive<Receiver>) {
    let hosts = or_skip!(Hosts::new());
    let tx = hosts.west.run(|| Port::open("packet:eth0")).unwrap();
    let rx = hosts.middle.run(|| Port::open("packet:w0")).unwrap();
    let pools = [tx.pool().clone(), rx.pool().clone()];
    let _ = run(tx.into_queues().remove(0), rx.into_queues().remove(0), send, receive);
    for pool in pools {
        let ledger = pool.ledger();
        assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger}");
    }
}

#[test]
fn a_packet_socket_wakes_by_poll() {
    over_packet_sockets(by_poll, by_poll);
}

#[test]
fn a_packet_socket_wakes_by_mio() {
    over_packet_sockets(by_mio, by_mio);
}

#[test]
fn a_packet_socket_wakes_by_tokio() {
    over_packet_sockets(by_tokio, by_tokio);
}

/// A queue that was never armed: a program may wait for its descriptor first.
#[test]
fn a_fresh_queue_is_readable_when_packets_come() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut a, b) = Port::pair(16, &pool).unwrap();
    let b = b.into_queues().remove(0);
    let mut batch = Batch::with_capacity(1);
    assert_eq!(a.alloc(&mut batch, 1), 1);
    assert!(batch.iter_mut().all(|skb| skb.put_slice(&frame(0, 60))));
    assert_eq!(a.xmit(&mut batch), 1);
    assert!(readable(&b, LOST), "packets wait, and no event came");
}

/// The end of a peer is an event, whenever it happens.
#[test]
fn a_sleeper_is_woken_when_its_peer_goes() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, b) = Port::pair(16, &pool).unwrap();
    let mut b = b.into_queues().remove(0);
    // The program has found the queue empty before it decides to sleep.
    assert_eq!(b.rx(&mut Batch::with_capacity(4)), 0);
    assert_eq!(b.health(), Health::Up);
    drop(a);
    assert!(!b.arm(Want::Frames) || readable(&b, LOST), "no event says that the peer has gone");
    assert_eq!(b.health(), Health::Finished);
}

fn readable(queue: &Queue, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&time)).unwrap() == 1
}
