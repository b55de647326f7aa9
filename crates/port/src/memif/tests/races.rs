//! Queues of one port, each on its own thread, while the port's connection ends and begins again.

use std::sync::atomic::AtomicBool;

use linerate_skb::DropReason;

use super::super::config::Config;
use super::super::link::{Event, Link};
use super::super::queue::MemifQueue;
use super::super::ring::ProtocolError;
use super::hostile::settled;
use super::*;
use crate::queue::Want;

const QUEUES: usize = 2;
const CONNECTIONS: u64 = 12;

fn queues(text: &str, pool: &Pool) -> (std::sync::Arc<Link>, Vec<MemifQueue>) {
    let config = Config::of(&crate::parse(text).unwrap()).unwrap();
    let link = Link::open(config, pool).unwrap();
    let queues = (0..QUEUES).map(|i| MemifQueue::new(link.clone(), i, pool).unwrap()).collect();
    (link, queues)
}

/// Sends, receives and sleeps, as fast as it can.
fn run(mut queue: MemifQueue, pool: &Pool, stop: &AtomicBool) {
    let (mut mem, mut batch) = (pool.local_with(8), Batch::with_capacity(16));
    while !stop.load(Ordering::Relaxed) {
        queue.rx(&mut mem, &mut batch, 16);
        batch.consume(&mut mem);
        for _ in 0..4 {
            let Some(skb) = mem.alloc_copy(&[9; 200]) else { break };
            batch.push(skb).unwrap();
        }
        queue.xmit(&mut mem, &mut batch);
        batch.discard(DropReason::DEVICE_DOWN);
        if queue.arm(Want::Both) {
            std::thread::yield_now();
        }
    }
}

/// Other threads report violations by the peers of both sides at random moments, for any past or
/// present connection.
#[test]
fn a_connection_that_ends_at_any_moment_is_over_for_every_queue() {
    for sharing in ["yes", "no"] {
        let pool = Pool::builder().frames(1024).trust(Trust::Exported).build().unwrap();
        let name = name();
        let (server, far) = queues(&format!("memif:{name},role=server,rings=2"), &pool);
        let text = format!("memif:{name},size=64,rings=2,zerocopy={sharing}");
        let (client, near) = queues(&text, &pool);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let queues = near.into_iter().chain(far);
            let threads: Vec<_> =
                queues.map(|queue| scope.spawn(|| run(queue, &pool, &stop))).collect();
            let (start, ended) = (Instant::now(), |link: &Link| link.ended.load(Ordering::Relaxed));
            let (mut last, mut turns) = ([u32::MAX; 2], 0u32);
            while ended(&client) < CONNECTIONS && start.elapsed() < Duration::from_secs(60) {
                for (link, last) in [&client, &server].into_iter().zip(&mut last) {
                    // End every connection once, after different amounts of traffic.
                    let generation = link.generation();
                    turns = turns.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (0..turns >> 28).for_each(|_| std::thread::yield_now());
                    if *last != generation && turns >> 16 & 1 == 0 {
                        *last = generation;
                        link.disconnect(ProtocolError::Index, generation);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            // Join: the scope waits for the threads' closures, but not until their caches of frames are
            // empty.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(client.ended.load(Ordering::Relaxed) >= CONNECTIONS);
        drop((client, server));
        settled(&pool);
    }
}

/// Checks a poller that is told of changes only: the bell of this one has rung, and does not wake it again.
#[test]
fn queue_that_could_not_follow_its_connection_does_not_sleep() {
    let pool = Pool::builder().frames(256).trust(Trust::Exported).build().unwrap();
    let (link, mut queues) = queues(&format!("memif:{},rings=2", name()), &pool);
    let ended = || link.publish(Some(Event::Ended("told".into())), &mut Vec::new());
    ended();
    let armed = link.locked(|| queues[0].arm(Want::Frames));
    assert!(!armed, "it sleeps, and does not have the state of its connection");
    assert!(!queues[0].arm(Want::Frames), "the change is reported");
}
