//! Tests ports of several queues: what they wait for, and what they tell.

use super::*;
use crate::driver::Needs;
use crate::health::HealthKind;
use linerate_skb::{Local, Moved};
use linerate_sys::wait::{EventFd, WaitSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

#[test]
fn a_split_port_is_one_for_each_queue() {
    let port = Port::open("null:,queues=3").unwrap();
    assert_eq!(port.descriptors().count(), 3);
    let (pool, obtained) = (port.pool().clone(), port.obtained().clone());
    let mut ports = port.split();
    assert_eq!(ports.len(), 3);
    for port in &mut ports {
        let mut batch = Batch::with_capacity(8);
        assert_eq!((port.descriptors().count(), port.rx(&mut batch)), (1, 8));
        assert_eq!(port.obtained(), &obtained);
        assert!(batch.iter().all(|skb| skb.is_of(&pool)));
    }
}

/// A queue whose health the test sets.
struct FixedHealth(EventFd, Health);

impl QueueOps for FixedHealth {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, want: Want) -> bool {
        // A device that has failed takes all packets, and drops them.
        !(want.room() && matches!(self.1, Health::Failed(_)))
    }

    fn health(&self) -> Health {
        self.1.clone()
    }
}

impl AsFd for FixedHealth {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn a_queue_has_a_name_and_a_hot_list_for_its_rings() {
    let pool = Pool::builder().frames(1 << 15).build().unwrap();
    let lists = || -> Vec<(String, u64)> {
        let cores = pool.stats().cores.into_iter().filter(|c| c.alive);
        cores.map(|c| (c.name, c.hot_list_len)).collect()
    };
    let _gen = Port::open_with("g=gen:", &pool).unwrap();
    assert_eq!(lists(), [("g/0".into(), 1024)]);
    let _ends = Port::pair(4096, &pool).unwrap();
    assert_eq!(lists()[1..], [("pair-a/0".into(), 8192), ("pair-b/0".into(), 8192)]);
}

#[test]
fn pool_of_a_port_has_frames_beside_the_hot_lists_of_its_queues() {
    for (queues, frames) in [(1, 4096), (8, 3072 + 8 * 1024)] {
        let port = Port::open(&format!("null:,queues={queues}")).unwrap();
        let lists: u64 = port.pool().stats().cores.iter().map(|c| c.hot_list_len).sum();
        assert_eq!((lists, port.pool().frames()), (queues * 1024, frames));
    }
}

/// A driver that the registry does not know.
struct Foreign;

impl Driver for Foreign {
    fn name(&self) -> &'static str {
        "foreign"
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish()?;
        Ok(Box::new(ForeignPlan(spec.arg.clone())))
    }
}

struct ForeignPlan(String);

impl Plan for ForeignPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { packet_max_bytes: 64, ..Needs::default() })
    }

    fn open(&self, _: &mut OpenContext<'_>) -> Result<Opened> {
        let queue = FixedHealth(EventFd::new()?, Health::Up);
        Ok(Opened::single(queue, Obtained::new(&self.0, "foreign", 64)))
    }
}

#[test]
fn a_driver_from_elsewhere_opens_a_port() {
    let port = Port::open_driver(&Foreign, "f=foreign:x").unwrap();
    assert_eq!(port.obtained().to_string(), "x foreign");
    let pool = Pool::builder().frames(64).build().unwrap();
    assert!(Port::open_driver_with(&Foreign, "foreign:x", &pool).is_ok());
    assert!(Port::open_driver(&Foreign, "null:").is_err());
    // Every port has a moderation, also where no name stands before it.
    Port::open_driver(&crate::null::Null, "null:moderation=busy").unwrap();
    assert!(Port::open("foreign:x").is_err());
}

fn port_of(healths: &[Health]) -> Port {
    let pool = Pool::builder().frames(64).build().unwrap();
    let queue = |health: &Health| {
        let ops = FixedHealth(EventFd::new().unwrap(), health.clone());
        Queue::new(Box::new(ops), pool.local())
    };
    let queues = healths.iter().map(queue).collect();
    Port { queues, turn: 0, obtained: Obtained::new("told", "told", 64), pool }
}

#[test]
fn a_port_reports_its_worst_queue_and_is_finished_only_when_all_are() {
    let error = |why: &str| Error::new(Code::NoDevice, "told", why);
    let (failed, down) = (Health::Failed(error("failed")), Health::Down(error("down")));
    let (up, finished) = (Health::Up, Health::Finished);
    let health =
        |all: &[&Health]| port_of(&all.iter().map(|&h| h.clone()).collect::<Vec<_>>()).health();
    assert_eq!(health(&[&finished, &up, &down, &failed]), failed);
    assert_eq!(health(&[&finished, &up, &down]), down);
    assert_eq!(health(&[&finished, &up]), up);
    assert_eq!(health(&[&finished, &finished]), finished);
    assert_eq!(health(&[]), up);
}

#[test]
fn a_wait_on_a_failed_device_returns_its_error_each_time() {
    let error = Error::new(Code::NoDevice, "cannot use eth0", "it was deleted");
    let failed = || port_of(&[Health::Up, Health::Failed(error.clone())]);
    let (mut port, mut other) = (failed(), port_of(&[Health::Up]));
    let mut alone = port_of(&[Health::Failed(error.clone())]);
    for timeout in [None, Some(Duration::ZERO), None] {
        assert_eq!(port.wait(timeout), Err(error.clone()));
        for want in [Want::Room, Want::Both] {
            assert_eq!(port.wait_for(want, timeout), Err(error.clone()));
            assert_eq!(alone.wait_for(want, timeout), Err(error.clone()));
        }
        assert_eq!(wait_any(&mut [&mut other, &mut port], timeout), Err(error.clone()));
    }
    alone.set_moderation(Moderation::Busy);
    port.set_moderation(Moderation::Busy);
    for want in [Want::Room, Want::Both] {
        assert_eq!(port.wait_for(want, None), Err(error.clone()));
        assert_eq!(alone.wait_for(want, None), Err(error.clone()));
    }
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut has_packets, _) = holding(&pool, Health::Failed(error.clone()));
    assert_eq!(has_packets.wait_for(Want::Both, None), Ok(true));
    assert_eq!(has_packets.wait_for(Want::Room, None), Err(error.clone()));
    let mut queues = failed().into_queues();
    assert_eq!(queues[1].wait(None), Err(error));
    assert_eq!(queues[0].wait(Some(Duration::ZERO)), Ok(false));
}

/// A queue that always has a packet, which its moderation holds; a look at its health uses the
/// waker.
struct Holding(WaitSet, Health, Arc<OnceLock<Waker>>);

impl QueueOps for Holding {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, _: usize) -> Moved {
        Moved { packets: mem.alloc(out, 1), bytes: 0 }
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, want: Want) -> bool {
        self.0.alarm(None).unwrap();
        !want.frames()
    }

    fn hold(&mut self, at: Instant) -> bool {
        self.0.near(Instant::now(), at).is_ok()
    }

    fn health(&self) -> Health {
        self.1.clone()
    }

    fn health_kind(&self) -> HealthKind {
        self.2.get().inspect(|waker| waker.wake());
        self.1.kind()
    }
}

impl AsFd for Holding {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a queue that has received a packet and is held, and the place of its waker.
fn holding(pool: &Pool, health: Health) -> (Queue, Arc<OnceLock<Waker>>) {
    let waker = Arc::default();
    let ops = Holding(WaitSet::new(0).unwrap(), health, Arc::clone(&waker));
    let mut queue = Queue::new(Box::new(ops), pool.local());
    queue.set_moderation(Moderation::Fixed { usecs: 10_000, frames: 1 << 16 });
    assert_eq!(queue.rx(&mut Batch::with_capacity(8)), 1);
    (queue, waker)
}

/// A queue whose device holds so many packets.
struct Unsent(EventFd, usize);

impl QueueOps for Unsent {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    fn reap(&mut self, _: &mut Local) -> usize {
        self.1
    }
}

impl AsFd for Unsent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn unsent_packets_of_all_queues_are_counted() {
    let mut port = port_of(&[]);
    let queue = |held| {
        let ops = Unsent(EventFd::new().unwrap(), held);
        Queue::new(Box::new(ops), port.pool.local())
    };
    port.queues = [3, 0, 4].map(queue).into();
    assert_eq!(port.reap(), 7);
}

#[test]
fn a_wake_during_a_hold_ends_the_wait() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut queue, waker) = holding(&pool, Health::Up);
    waker.set(queue.waker().unwrap()).unwrap();
    assert_eq!(queue.wait(None), Ok(false));
}

#[test]
fn packets_that_are_held_come_before_the_failure_of_their_device() {
    let error = Error::new(Code::NoDevice, "cannot use eth0", "it was deleted");
    let mut port = port_of(&[Health::Up]);
    let (queue, _waker) = holding(&port.pool, Health::Failed(error));
    port.queues.push(queue);
    assert!(!port.arm(Want::Frames));
    assert_eq!(port.wait(None), Ok(true));
}

/// A queue that has no room, or always has.
struct Sender(EventFd, bool);

impl QueueOps for Sender {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
        Moved::default()
    }

    fn arm(&mut self, want: Want) -> bool {
        !want.room() || !self.1
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn a_port_waits_for_room_in_the_queue_that_sends() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let queue = |has_room| {
        let ops = Sender(EventFd::new().unwrap(), has_room);
        Queue::new(Box::new(ops), pool.local())
    };
    let port = |queues| Port {
        queues,
        turn: 0,
        obtained: Obtained::new("told", "told", 64),
        pool: pool.clone(),
    };
    let mut full = port(vec![queue(false), queue(true)]);
    let (start, time) = (Instant::now(), Duration::from_millis(20));
    for want in [Want::Room, Want::Both] {
        assert_eq!(full.wait_for(want, Some(time)), Ok(false));
    }
    assert!(start.elapsed() >= 2 * time);
    // Packets in the other queue make its descriptor readable, and do not end a wait for room.
    let bell = EventFd::new().unwrap();
    bell.signal();
    let other = Queue::new(Box::new(Sender(bell, false)), pool.local());
    let mut one = port(vec![queue(false), other]);
    assert!(one.arm(Want::Room));
    let is_readable = |fd| linerate_sys::wait::poll_readable(&[fd], Some(Duration::ZERO)).unwrap();
    assert_eq!(one.descriptors().map(is_readable).collect::<Vec<_>>(), [false, true]);
    assert_eq!(one.wait_for(Want::Room, Some(time)), Ok(false));
    assert_eq!(port(vec![queue(true), queue(false)]).wait_for(Want::Room, None), Ok(true));
}

#[test]
fn any_number_of_queues_can_be_waited_for() {
    let mut port = port_of(&vec![Health::Up; 65]);
    assert_eq!(port.wait(Some(Duration::from_millis(1))), Ok(false));
}

#[test]
fn a_wait_on_finished_sources_returns_at_once_only_without_a_timeout() {
    let mut port = port_of(&[Health::Finished, Health::Finished]);
    let mut other = port_of(&[Health::Finished]);
    assert_eq!((port.wait(None), port.wait(None)), (Ok(false), Ok(false)));
    assert_eq!(wait_any(&mut [&mut other, &mut port], None), Ok(false));
    assert_eq!(other.into_queues()[0].wait(None), Ok(false));
    let (start, time) = (Instant::now(), Duration::from_millis(20));
    assert_eq!(port.wait(Some(time)), Ok(false));
    assert!(start.elapsed() >= time);
    // A wait for room does not end with the device: without a timeout it would sleep.
    assert_eq!(port.wait_for(Want::Room, Some(Duration::ZERO)), Ok(false));
}

#[test]
fn a_wait_without_queues_returns_at_once_or_after_its_time() {
    let mut none = port_of(&[]);
    for want in [Want::Frames, Want::Room] {
        assert_eq!(none.wait_for(want, None), Ok(false));
    }
    assert_eq!((wait_any(&mut [], None), wait_any(&mut [&mut none], None)), (Ok(false), Ok(false)));
    let (start, time) = (Instant::now(), Duration::from_millis(20));
    assert_eq!(wait_any(&mut [], Some(time)), Ok(false));
    assert!(start.elapsed() >= time);
}

#[test]
fn the_secret_of_a_port_that_is_refused_is_not_shown() {
    let secret = "memif:/run/x.sock,secret=hunter2,no_option=1";
    let e = Port::first_of([secret, "null:,no_option=1"]).unwrap_err();
    assert!(e.why.contains("secret=***") && !format!("{e} {e:?}").contains("hunter2"), "{e}");
    let port = Port::first_of([secret, "null:"]).unwrap();
    let refused = port.obtained().refused.join(" ");
    assert!(refused.contains("no_option") && !refused.contains("hunter2"), "{refused}");
}

#[test]
fn a_loop_on_wait_receives_all_and_ends_with_its_source() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut port = Port::open_with("gen:,count=100", &pool).unwrap();
    let (mut batch, mut got) = (Batch::with_capacity(16), 0);
    while port.wait(None).unwrap() {
        got += port.rx(&mut batch);
        batch.clear();
    }
    assert_eq!((got, port.health()), (100, Health::Finished));
}

#[test]
fn a_wake_up_counts_on_the_queues_that_are_readable() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut a, mut a_end) = Port::pair(4, &pool).unwrap();
    let (mut b, _b_end) = Port::pair(4, &pool).unwrap();
    let woken = |port: &mut Port| port.counts().wakeups;
    assert!(!wait_any(&mut [&mut a, &mut b], Some(Duration::ZERO)).unwrap());
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let mut batch = Batch::with_capacity(1);
        a_end.alloc(&mut batch, 1);
        assert_eq!(a_end.xmit(&mut batch), 1);
        a_end
    });
    assert!(wait_any(&mut [&mut a, &mut b], None).unwrap());
    assert_eq!((woken(&mut a), woken(&mut b)), (1, 0));
    let mut got = Batch::with_capacity(4);
    assert_eq!(a.rx(&mut got), 1);
    let a_end = sender.join().unwrap();
    let closer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(a_end);
    });
    assert!(a.wait(None).unwrap());
    closer.join().unwrap();
    assert_eq!(woken(&mut a), 2);
}

#[test]
fn queue_that_was_armed_and_did_not_sleep_counts_no_wake_up() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut idle, _idle_end) = Port::pair(4, &pool).unwrap();
    let (mut busy, mut busy_end) = Port::pair(4, &pool).unwrap();
    let mut batch = Batch::with_capacity(4);
    busy_end.alloc(&mut batch, 1);
    busy_end.xmit(&mut batch);
    // The first port is armed before the second one reports its packet.
    assert_eq!(wait_any(&mut [&mut idle, &mut busy], None), Ok(true));
    assert_eq!((idle.rx(&mut batch), idle.counts().irqs()), (0, 0));
    let queues = [idle, busy].into_iter().flat_map(Port::into_queues).collect();
    let mut both = Port { queues, turn: 0, obtained: Obtained::default(), pool };
    assert!(!both.arm(Want::Frames));
    assert_eq!((both.rx(&mut batch), both.counts().irqs()), (1, 0));
    // A wait that ends with an error was no sleep, either.
    let failed = Health::Failed(Error::new(Code::NoDevice, "told", "failed"));
    for healths in [vec![failed.clone()], vec![Health::Up, failed]] {
        let mut port = port_of(&healths);
        assert!(port.wait(None).is_err());
        assert_eq!((port.rx(&mut batch), port.counts().irqs()), (0, 0));
    }
}

#[test]
fn wait_on_several_queues_in_busy_mode_ends_with_the_sources_or_after_its_time() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let open = |text| Port::open_with(text, &pool).unwrap();
    let (mut a, mut b) = (open("gen:,count=50,moderation=busy"), open("gen:,count=20"));
    let (mut batch, mut got, mut waits) = (Batch::with_capacity(16), 0, 0);
    while wait_any(&mut [&mut a, &mut b], None).unwrap() {
        got += a.rx(&mut batch) + b.rx(&mut batch);
        batch.clear();
        waits += 1;
        assert!(waits < 1000, "both sources have ended, and the wait does not say so");
    }
    assert_eq!(got, 70);
    let error = Error::new(Code::NoDevice, "cannot use eth0", "it was deleted");
    let mut failed = port_of(&[Health::Up, Health::Failed(error.clone())]);
    let mut silent = port_of(&[Health::Up, Health::Up]);
    failed.set_moderation(Moderation::Busy);
    silent.set_moderation(Moderation::Busy);
    assert_eq!(failed.wait(None), Err(error));
    let (start, time) = (Instant::now(), Duration::from_millis(20));
    assert_eq!(silent.wait(Some(time)), Ok(false), "nothing came");
    assert!(start.elapsed() >= time);
    silent.waker().unwrap().wake();
    assert_eq!(silent.wait(None), Ok(false));
}

#[test]
fn queue_in_busy_mode_can_be_slept_on_once_its_source_has_ended() {
    let mut port = Port::open("gen:,count=1,moderation=busy").unwrap();
    let mut batch = Batch::with_capacity(4);
    assert!(!port.arm(Want::Frames));
    assert_eq!(port.rx(&mut batch), 1);
    assert!(!port.arm(Want::Frames), "the end is told once");
    assert!(port.arm(Want::Frames), "nothing can come any more");
}
