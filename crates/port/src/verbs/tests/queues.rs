//! Ports with several queues, each on a thread of its own, while peers come and go.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use linerate_skb::Skb;
use linerate_sys::thread::{allowed_cpus, current_cpu, is_filtered, pin_to_cpu};
use linerate_testing::unless;

use super::super::nic::Nic;
use super::*;

const QUEUES: usize = 4;
/// Packets that are under way on a queue: fewer than its requests, so that none is dropped.
const WINDOW: u32 = 16;
/// Peers that come and go meanwhile.
const VISITS: u64 = 5;
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until all queues of all `ends` have a peer.
fn meet_all<N: Nic>(ends: &mut [&mut Vec<VerbsQueue<N>>]) {
    let until = Instant::now() + Duration::from_secs(30);
    for queue in ends.iter_mut().flat_map(|end| end.iter_mut()) {
        queue.meet(until);
        assert_eq!(queue.health(), Health::Up);
    }
}

fn number(skb: &Skb) -> u32 {
    let mut bytes = [0; 4];
    skb.copy_to(14, &mut bytes);
    u32::from_be_bytes(bytes)
}

/// Sends numbered packets and expects each back, in order, until `is_over`; returns how many, and
/// the calls of the queue.
fn ask<N: Nic>(queue: &mut VerbsQueue<N>, pool: &Pool, is_over: &AtomicBool) -> (u32, u64) {
    let (mut mem, start) = (pool.local(), Instant::now());
    let (mut out, mut came) = (Batch::with_capacity(64), Batch::with_capacity(64));
    let (mut sent, mut back, mut calls) = (0u32, 0u32, 0);
    while sent > back || !is_over.load(Ordering::Relaxed) {
        while sent == back || sent % WINDOW > 0 {
            let mut skb = packet(&mut mem, 9, 1, 60, 0);
            skb.data_mut()[14..18].copy_from_slice(&sent.to_be_bytes());
            assert!(out.push(skb).is_ok());
            sent += 1;
        }
        queue.xmit(&mut mem, &mut out);
        queue.rx(&mut mem, &mut came, 64);
        if came.is_empty() {
            std::thread::yield_now();
        }
        for skb in came.iter() {
            assert_eq!(number(skb), back, "in order, and once");
            back += 1;
        }
        came.consume(&mut mem);
        calls += 2;
        let health = queue.health_kind();
        assert!(start.elapsed() < PATIENCE, "{sent} were sent, {back} came back, {health:?}");
    }
    (back, calls)
}

/// Binds this thread to the `i`th CPU of this process, or to the first again behind the last; notes
/// the CPU on which it runs then.
fn bind(i: usize, ran: &Mutex<BTreeSet<usize>>) {
    let cpus = allowed_cpus().unwrap();
    if unless(pin_to_cpu(cpus[i % cpus.len()]), is_filtered).is_some() {
        ran.lock().unwrap().insert(current_cpu());
    }
}

/// A thread that asks; its end is counted also if it panics.
struct Asking<'a>(&'a AtomicUsize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns what comes to where it came from, until no thread asks.
fn answer<N: Nic>(queue: &mut VerbsQueue<N>, pool: &Pool, asking: &AtomicUsize) -> u64 {
    let (mut mem, start, mut calls) = (pool.local(), Instant::now(), 0);
    let (mut out, mut came) = (Batch::with_capacity(64), Batch::with_capacity(64));
    while asking.load(Ordering::Relaxed) > 0 {
        let room = out.spare();
        queue.rx(&mut mem, &mut came, room);
        if came.is_empty() {
            std::thread::yield_now();
        }
        for skb in came.iter() {
            let mut skb = mem.alloc_copy(skb.data()).unwrap();
            let (to, from) = skb.data_mut()[..12].split_at_mut(6);
            to.swap_with_slice(from);
            assert!(out.push(skb).is_ok());
        }
        came.consume(&mut mem);
        queue.xmit(&mut mem, &mut out);
        calls += 2;
        assert!(start.elapsed() < PATIENCE);
    }
    calls
}

/// Exchanges packets on all queues of two ports, each end of each queue on a thread, while other
/// ports of the same kind meet the second one and leave it. `open` opens a port. The threads are
/// spread over the CPUs of this process, so that completions are taken on all of them at once.
pub(super) fn stress<N: Nic + 'static>(open: impl Fn(&str, &Pool) -> Vec<VerbsQueue<N>>) {
    let pool = Pool::builder().frames(16384).build().unwrap();
    let at = address();
    let options = format!(",queues={QUEUES},rx=64,tx=64");
    let mut far = open(&format!("listen={at},peers=2{options}"), &pool);
    let mut near = open(&format!("connect={at}{options}"), &pool);
    meet_all(&mut [&mut near, &mut far]);
    let (is_over, asking) = (AtomicBool::new(false), AtomicUsize::new(QUEUES));
    let ran = Mutex::new(BTreeSet::new());
    let (asked, calls) = std::thread::scope(|scope| {
        let (pool, is_over, asking, ran) = (&pool, &is_over, &asking, &ran);
        let answer = |(i, queue): (usize, _)| {
            scope.spawn(move || {
                bind(i + 1, ran);
                answer(queue, pool, asking)
            })
        };
        let answers: Vec<_> = far.iter_mut().enumerate().map(answer).collect();
        let ask = |(i, queue): (usize, _)| {
            scope.spawn(move || {
                let _asking = Asking(asking);
                bind(i, ran);
                ask(queue, pool, is_over)
            })
        };
        let asks: Vec<_> = near.iter_mut().enumerate().map(ask).collect();
        for _ in 0..VISITS {
            let mut visitor = open(&format!("connect={at}{options}"), pool);
            meet_all(&mut [&mut visitor]);
            // Packets pass while the visitor is there.
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        let asked: Vec<_> = asks.into_iter().map(|thread| thread.join().unwrap()).collect();
        let answered: u64 = answers.into_iter().map(|thread| thread.join().unwrap()).sum();
        (
            asked.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
            asked.iter().map(|(_, n)| *n).sum::<u64>() + answered,
        )
    });
    assert!(asked.iter().all(|n| *n >= WINDOW), "{asked:?}");
    let left: u64 = far.iter_mut().map(|queue| queue.counters().driver.resets).sum();
    assert!((VISITS - 1..=VISITS).contains(&left), "the last visitor may be leaving still");
    let contended: u64 = near.iter().chain(&far).map(VerbsQueue::contended).sum();
    let cpus = ran.lock().unwrap().len();
    assert!(cpus == 0 || cpus == allowed_cpus().unwrap().len().min(2 * QUEUES), "{cpus}");
    eprintln!(
        "{asked:?} packets, {calls} calls on {cpus} CPUs, {contended} found the lock of the peers taken"
    );
    // A control thread that loses its CPU under the lock may keep it for a while, in an emulated
    // guest for most of a visit.
    assert!(contended * 2 <= calls, "{contended} of {calls} calls");
    drop((near, far));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.in_flight == 0, "{ledger}");
}

#[test]
fn several_queues_work_on_threads_of_their_own_while_peers_come_and_go() {
    for options in ["", ",datagrams"] {
        stress(|text, pool| soft_queues(&format!("verbs:soft,{text}{options}"), pool).0);
    }
}

#[test]
fn a_packet_goes_to_the_queue_of_its_number_and_one_to_a_group_to_the_first() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let mut mem = pool.local();
    let (mut near, mut far) = joined(&pool, ",queues=3,datagrams,group=239.1.2.3");
    for i in 0..3 {
        for (to, n) in [(9, 10 + i as u8), (255, 20 + i as u8)] {
            let mut batch = Batch::with_capacity(1);
            assert!(batch.push(packet(&mut mem, to, 1, 60, n)).is_ok());
            assert_eq!(near.queues[i].xmit(&mut mem, &mut batch).packets, 1);
        }
    }
    let came = |end: &mut Opened, mem: &mut Local| -> Vec<Vec<u8>> {
        let take = |queue: &mut Box<dyn QueueOps>| {
            let mut batch = Batch::with_capacity(64);
            queue.rx(mem, &mut batch, 64);
            let last = batch.iter().map(|skb| skb.data()[skb.len() - 1]).collect();
            batch.consume(mem);
            last
        };
        end.queues.iter_mut().map(take).collect()
    };
    assert_eq!(came(&mut far, &mut mem), [vec![10, 20, 21, 22], vec![11], vec![12]]);
    assert_eq!(came(&mut near, &mut mem), [[0u8; 0]; 3], "nothing that it sent itself");
}

/// Polls `end` until the reason why it has no peer has `words`.
fn is_down_for(end: &mut Opened, mem: &mut Local, words: &str) {
    let start = Instant::now();
    loop {
        end.queues[0].rx(mem, &mut Batch::with_capacity(1), 1);
        match end.queues[0].health() {
            Health::Down(e) if e.why.contains(words) => return,
            health => assert!(start.elapsed() < Duration::from_secs(10), "{health:?}"),
        }
    }
}

#[test]
fn ports_with_different_numbers_of_queues_say_so() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let _far = open(&format!("verbs:soft,listen={at},queues=2"), &pool);
    for queues in [1, 3] {
        let mut near = open(&format!("verbs:soft,connect={at},queues={queues}"), &pool);
        is_down_for(&mut near, &mut mem, "different numbers of queues");
    }
}

#[test]
fn a_port_with_a_closed_queue_says_that_it_has_to_be_opened_again() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (mut near, far) = joined(&pool, ",queues=2");
    drop(near.queues.remove(1));
    drop(far);
    is_down_for(&mut near, &mut pool.local(), "a queue of this port is closed");
    let Health::Down(e) = near.queues[0].health() else { panic!("it has no peer") };
    assert_eq!(e.fix, "open the port again", "{e}");
}

#[test]
fn a_queue_that_is_closed_leaves_the_others_at_work_until_a_peer_sends_to_it() {
    let pool = Pool::builder().frames(16384).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let mut far = open(&format!("verbs:soft,listen={at},queues=2"), &pool);
    let mut near = open(&format!("verbs:soft,connect={at},queues=2"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    drop(far.queues.remove(1));
    let skb = packet(&mut mem, 9, 1, 60, 7);
    send(&mut near, &mut mem, [skb]);
    assert_eq!(receive(&mut far, &mut mem, 1), [7]);
    // What is sent to the closed queue is not lost without a word.
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(packet(&mut mem, 9, 1, 60, 8)).is_ok());
    near.queues[1].xmit(&mut mem, &mut batch);
    let start = Instant::now();
    while near.queues[1].health() == Health::Up || near.queues[0].health() == Health::Up {
        near.queues.iter_mut().for_each(|queue| {
            queue.rx(&mut mem, &mut Batch::with_capacity(1), 1);
        });
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let lost = linerate_skb::Moved { packets: 1, bytes: 60 };
    assert_eq!(near.queues[1].counters().tx_lost, lost);
    assert_eq!(pool.ledger().dropped(linerate_skb::DropReason::PEER_GONE), 1);
    is_down_for(&mut near, &mut mem, "a queue of the port is closed");
    let mut other = open(&format!("verbs:soft,connect={at},queues=2"), &pool);
    is_down_for(&mut other, &mut mem, "a queue of the port is closed");
    drop((near, far, other, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.in_flight == 0, "{ledger}");
}
