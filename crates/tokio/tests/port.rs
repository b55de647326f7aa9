//! A port in tokio: packets wake the task, other events leave it asleep, and a dropped wait loses
//! nothing.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use linerate::prelude::*;
use linerate::wrap::{Layer, Wrapped};
use linerate::{QueueOps, Turned, Worker};
use linerate_tokio::AsyncPort;
use tokio::io::unix::AsyncFd;

/// Longest time for an event that comes at once, on a machine that is busy with other work.
const SOON: Duration = Duration::from_secs(20);

fn pair(len: u32) -> (AsyncPort, AsyncPort) {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let (a, b) = Port::pair(len, &pool).unwrap();
    (AsyncPort::new(a).unwrap(), AsyncPort::new(b).unwrap())
}

/// Fills `batch` with packets numbered from `first` on.
fn fill(port: &mut AsyncPort, batch: &mut Batch, first: u32) {
    let room = batch.spare();
    port.port_mut().alloc(batch, room);
    for (number, skb) in (first..).zip(batch.iter_mut()) {
        assert!(skb.put_slice(&number.to_be_bytes()));
    }
}

fn numbers(batch: &Batch) -> Vec<u32> {
    batch.iter().map(|skb| u32::from_be_bytes(skb.data().try_into().unwrap())).collect()
}

#[tokio::test]
async fn packets_wake_their_receiver_and_room_its_sender() {
    let (mut sender, mut receiver) = pair(8);
    let sending = async {
        let mut batch = Batch::with_capacity(50);
        for round in 0..20 {
            fill(&mut sender, &mut batch, round * 50);
            sender.send(&mut batch).await.unwrap();
            assert!(batch.is_empty());
        }
    };
    let receiving = async {
        let (mut batch, mut seen) = (Batch::with_capacity(3), Vec::new());
        while seen.len() < 1000 {
            assert!(receiver.readable().await.unwrap());
            receiver.rx(&mut batch);
            seen.extend(numbers(&batch));
            batch.clear();
        }
        seen
    };
    let both = async { tokio::join!(sending, receiving).1 };
    let seen = tokio::time::timeout(SOON, both).await.expect("no sleep is for ever");
    assert!(seen.into_iter().eq(0..1000));
}

#[tokio::test]
async fn a_wait_that_is_dropped_or_repeated_loses_nothing() {
    let (mut sender, mut receiver) = pair(64);
    let mut batch = Batch::with_capacity(4);
    for round in 0..20 {
        // Nothing has arrived: the wait is dropped, and the queue stays armed.
        let short = Duration::from_millis(1);
        let waited = tokio::time::timeout(short, receiver.readable()).await;
        assert!(waited.is_err(), "{waited:?}");
        fill(&mut sender, &mut batch, round * 4);
        sender.send(&mut batch).await.unwrap();
        for _ in 0..3 {
            let waited = tokio::time::timeout(SOON, receiver.readable()).await;
            assert!(waited.expect("it was told before").unwrap());
        }
        // A wait for room also reports packets that have arrived.
        receiver.ready_for(Want::Room).await.unwrap();
        assert!(tokio::time::timeout(SOON, receiver.readable()).await.unwrap().unwrap());
        while batch.is_empty() {
            receiver.rx(&mut batch);
        }
        assert_eq!(numbers(&batch), (round * 4..round * 4 + 4).collect::<Vec<_>>());
        batch.clear();
        assert_eq!(receiver.rx(&mut batch), 0);
    }
}

#[tokio::test]
async fn a_wait_for_room_does_not_end_with_packets_that_wait() {
    let (mut sender, mut receiver) = pair(4);
    let (mut batch, mut answer) = (Batch::with_capacity(16), Batch::with_capacity(1));
    fill(&mut receiver, &mut answer, 0);
    fill(&mut sender, &mut batch, 0);
    while sender.port_mut().xmit(&mut batch) > 0 {}
    let both = async { tokio::join!(sender.readable(), receiver.send(&mut answer)) };
    let (woken, sent) = tokio::time::timeout(SOON, both).await.expect("a packet wakes");
    assert_eq!((woken, sent), (Ok(true), Ok(())));
    let mut polls = 0;
    {
        let mut sending = std::pin::pin!(sender.send(&mut batch));
        let counted = std::future::poll_fn(|cx| {
            polls += 1;
            sending.as_mut().poll(cx)
        });
        let waited = tokio::time::timeout(Duration::from_millis(50), counted).await;
        assert!(waited.is_err(), "{waited:?}");
    }
    assert_eq!(batch.len(), 12);
    assert!(polls <= 5, "it sleeps, and is polled {polls} times");
}

/// A layer whose `arm` never reports packets that are there: the descriptor alone does.
struct Quiet;

impl Layer for Quiet {
    fn arm(&mut self, below: &mut dyn QueueOps, want: Want) -> bool {
        let _ = below.arm(want);
        true
    }
}

#[tokio::test]
async fn a_use_of_the_port_between_the_event_and_the_wait_loses_no_event() {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let (a, b) = Port::pair(8, &pool).unwrap();
    let a = a.wrap(|ops, _| Ok(Box::new(Wrapped::around(ops, Quiet)))).unwrap();
    let mut receiver = AsyncPort::new(a).unwrap();
    let mut sender = AsyncPort::new(b).unwrap();
    let mut batch = Batch::with_capacity(4);
    fill(&mut sender, &mut batch, 0);
    // A queue that was never armed is readable: wait until the runtime has reported that.
    let short = Duration::from_millis(1);
    while tokio::time::timeout(short, receiver.readable()).await.is_ok() {
        receiver.rx(&mut Batch::with_capacity(1));
    }
    let both = async { tokio::join!(receiver.readable(), sender.send(&mut batch)) };
    let (woken, sent) = tokio::time::timeout(SOON, both).await.expect("packets wake");
    assert_eq!((woken, sent), (Ok(true), Ok(())));
    assert_eq!(receiver.port_mut().alloc(&mut batch, 1), 1);
    batch.clear();
    let waited = tokio::time::timeout(SOON, receiver.readable()).await;
    assert_eq!(waited.expect("the event is remembered"), Ok(true));
    // It is remembered for one wait only, because this receives without the wait's knowledge.
    assert_eq!(receiver.port_mut().rx(&mut batch), 4);
    let waited = tokio::time::timeout(short, receiver.readable()).await;
    assert!(waited.is_err(), "{waited:?}");
}

#[tokio::test]
async fn a_source_ends_once_everything_was_received() {
    for text in ["gen:,rate=1kpps,count=10", "gen:,count=10,moderation=busy"] {
        let mut port = AsyncPort::new(Port::open(text).unwrap()).unwrap();
        let (mut batch, mut n) = (Batch::with_capacity(64), 0);
        let all = async {
            while port.readable().await.unwrap() {
                n += port.rx(&mut batch);
                batch.clear();
            }
        };
        tokio::time::timeout(SOON, all).await.expect(text);
        assert_eq!((n, port.port().health()), (10, Health::Finished), "{text}");
        assert_eq!(port.ready_for(Want::Room).await, Ok(true), "{text}: there is room");
    }
}

#[tokio::test]
async fn the_other_end_gone_ends_the_wait_and_the_sending() {
    let (mut sender, mut receiver) = pair(4);
    drop(receiver.into_port());
    let mut batch = Batch::with_capacity(16);
    let ended = async {
        while matches!(sender.readable().await, Ok(true)) {
            sender.rx(&mut batch);
        }
    };
    tokio::time::timeout(SOON, ended).await.expect("the end wakes");
    let (a, b) = pair(4);
    (sender, receiver) = (a, b);
    fill(&mut sender, &mut batch, 0);
    let ends = async { tokio::join!(sender.send(&mut batch), async { drop(receiver) }) };
    let _ = tokio::time::timeout(SOON, ends).await.expect("there is no room to wait for");
}

#[tokio::test]
async fn a_device_that_has_failed_ends_the_sending() {
    let (reader, writer) = std::io::pipe().unwrap();
    let text = format!("pcap:/proc/self/fd/{},write", writer.as_raw_fd());
    let mut port = AsyncPort::new(Port::open(&text).unwrap()).unwrap();
    let mut batch = Batch::with_capacity(4);
    fill(&mut port, &mut batch, 0);
    port.send(&mut batch).await.unwrap();
    drop(reader);
    // It takes the packets, and drops them.
    for _ in 0..2 {
        fill(&mut port, &mut batch, 0);
        let e = port.send(&mut batch).await.unwrap_err();
        assert!(e.why.contains("Broken pipe") && batch.is_empty(), "{e}");
    }
    let waited = async {
        // The first wait may tell that something has changed.
        while let Ok(true) = port.readable().await {}
        port.readable().await
    };
    let e = tokio::time::timeout(SOON, waited).await.expect("the failure wakes").unwrap_err();
    assert!(e.why.contains("Broken pipe"), "{e}");
    for want in [Want::Room, Want::Both] {
        let e = tokio::time::timeout(SOON, port.ready_for(want)).await.expect("it does not wait");
        assert!(e.unwrap_err().why.contains("Broken pipe"), "{want:?}");
    }
}

#[tokio::test]
async fn every_queue_of_a_port_wakes_its_task() {
    let port = Port::open("null:,queues=3").unwrap();
    let n = port.descriptors().count();
    let registered = format!("{:?}", AsyncPort::new(port).unwrap());
    assert_eq!((n, registered.matches("AsyncFd {").count()), (3, 3), "{registered}");
}

#[tokio::test]
async fn a_port_that_always_has_something_leaves_others_their_time() {
    let mut port = AsyncPort::new(Port::open("gen:").unwrap()).unwrap();
    let mut batch = Batch::with_capacity(1);
    let greedy = async {
        while port.readable().await.unwrap() {
            port.rx(&mut batch);
            batch.clear();
        }
    };
    let other = tokio::time::sleep(Duration::from_millis(5));
    tokio::select! {
        () = greedy => panic!("it has no end"),
        () = other => {}
    }
}

#[tokio::test]
async fn a_port_that_always_has_room_leaves_others_their_time() {
    let mut port = AsyncPort::new(Port::open("null:").unwrap()).unwrap();
    let mut batch = Batch::with_capacity(1);
    let start = Instant::now();
    let greedy = async {
        while start.elapsed() < Duration::from_secs(20) {
            assert_eq!(port.port_mut().alloc(&mut batch, 1), 1);
            port.send(&mut batch).await.unwrap();
        }
    };
    let other = tokio::time::sleep(Duration::from_millis(5));
    tokio::select! {
        () = greedy => panic!("the other task never ran"),
        () = other => {}
    }
}

/// Turns a worker in a task: whenever its descriptor is readable, and without a timer of the task.
async fn turn_until_ended(worker: &mut Worker) {
    let descriptor = worker.as_fd().try_clone_to_owned().unwrap();
    #[expect(deprecated, reason = "its successor is unsafe, and this descriptor is closed last")]
    let descriptor = AsyncFd::new(descriptor).unwrap();
    loop {
        match worker.turn(Instant::now()) {
            Turned::Ended => return,
            Turned::Again => tokio::task::yield_now().await,
            Turned::Idle | Turned::Until(_) => {
                if worker.arm().unwrap() {
                    descriptor.readable().await.unwrap().clear_ready();
                }
            }
        }
    }
}

#[tokio::test]
async fn packets_that_wait_for_their_time_wake_the_task_of_a_shaped_port() {
    // Every packet after the first is due 8 ms after the previous one, and nothing else happens
    // meanwhile.
    let engine = Engine::builder().port("gen", "gen:,count=20,size=1000");
    let engine = engine.port("out", "null:,shape=1Mbit,burst=1000").wire("gen", "out");
    let engine = engine.build().unwrap();
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    let turns = tokio::time::timeout(SOON, turn_until_ended(&mut worker));
    turns.await.expect("its time wakes it");
    assert_eq!(stats.ports()[1].counts.tx_packets, 20);
}
