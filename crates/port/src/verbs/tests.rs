//! Tests of ports on a device in memory, and on RDMA devices of the machine where it has two.

mod devices;
mod hostile;
mod leaving;
mod queues;
mod soft;
mod ways;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local, Pool};

use super::*;
use crate::conformance::{Case, Ends, Rig};
use soft::{SoftFabric, SoftNic};

/// Returns an address of this host that no other test uses.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (pid, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let (high, low) = (n / 250, n % 250 + 1);
    format!("127.{}.{}.{}", 16 + pid % 200, high + pid / 200 % 200, low)
}

/// Opens the queues of the port of `text` on a device in memory; returns them with the port's
/// longest packet.
fn soft_queues(text: &str, pool: &Pool) -> (Vec<VerbsQueue<SoftNic>>, usize) {
    let spec = Spec::parse(text, &["verbs"]).unwrap();
    let config = Config::of(&spec).unwrap();
    let ways = SoftFabric::open(&config, pool);
    let longest = if config.is_connected { config.longest_bytes } else { soft::MTU };
    let pairs = ways.iter().map(|(_, nic)| nic.pair()).collect();
    let own = Own { gid: ways[0].1.gid(), pairs };
    let group = config.group.map(|_| (soft::MTU, own));
    (queues(&config, ways, pool, longest, group).unwrap(), longest)
}

/// Opens the port of `text` on a device in memory.
fn open(text: &str, pool: &Pool) -> Opened {
    let (queues, longest) = soft_queues(text, pool);
    let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueueOps>);
    Opened { queues: queues.collect(), obtained: Obtained::new("soft", "soft", longest) }
}

/// Polls until each of `ends` is up.
fn meet(pool: &Pool, ends: &mut [&mut Opened]) {
    let (start, mut mem) = (Instant::now(), pool.local());
    loop {
        // Not armed: one case needs a queue that never was.
        let mut queues: Vec<_> = ends.iter_mut().flat_map(|end| end.queues.iter_mut()).collect();
        queues.iter_mut().for_each(|queue| {
            queue.rx(&mut mem, &mut Batch::with_capacity(1), 0);
        });
        let said: Vec<_> = queues.iter().map(|queue| queue.health()).collect();
        if said.iter().all(|said| *said == Health::Up) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{said:?}");
        std::thread::yield_now();
    }
}

/// Returns two ports that have met, with `options` at both.
fn joined(pool: &Pool, options: &str) -> (Opened, Opened) {
    let at = address();
    let mut far = open(&format!("verbs:soft,listen={at}{options}"), pool);
    let mut near = open(&format!("verbs:soft,connect={at}{options}"), pool);
    meet(pool, &mut [&mut near, &mut far]);
    (near, far)
}

#[test]
fn a_port_needs_the_frames_of_the_requests_of_all_its_queues() {
    let text = "verbs:rxe0,listen=10.0.0.1,queues=2,peers=1,packet_mtu=9000,rx=64,tx=32";
    let config = Config::of(&Spec::parse(text, &["verbs"]).unwrap()).unwrap();
    let needs = config.needs().unwrap();
    let frames = 2 * (64 + 32 + 64);
    assert_eq!((needs.queues, needs.packet_max_bytes, needs.ring_frames), (2, 9018, frames));
}

mod datagrams {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, ",datagrams,rx=256,tx=256");
            Ok(Ends::Pair(near, far))
        };
        case.on(Rig::new(open).ring_frames(1024).drops_unread());
    });
}

mod connections {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, ",rx=256,tx=256");
            Ok(Ends::Pair(far, near))
        };
        case.on(Rig::new(open).ring_frames(2048));
    });
}

/// Returns the number of the pool's frames that devices have to fill.
fn lent(pool: &Pool) -> u64 {
    let ledger = pool.ledger();
    ledger.holders().iter().find(|(name, _)| *name == "device rings").map_or(0, |(_, n)| *n)
}

/// Returns a packet to `to` of `len` bytes, numbered `n`.
fn packet(mem: &mut Local, to: u8, from: u8, len: usize, n: u8) -> linerate_skb::Skb {
    let mut bytes = vec![n; len];
    bytes[..6].copy_from_slice(&[if to == 255 { 255 } else { 2 }, 0, 0, 0, 0, to]);
    bytes[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    mem.alloc_copy(&bytes).unwrap()
}

/// Sends `packets` whole.
fn send(end: &mut Opened, mem: &mut Local, packets: impl IntoIterator<Item = linerate_skb::Skb>) {
    let mut batch = Batch::with_capacity(64);
    packets.into_iter().for_each(|skb| assert!(batch.push(skb).is_ok()));
    let start = Instant::now();
    while !batch.is_empty() {
        end.queues[0].xmit(mem, &mut batch);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// Receives until `n` packets are there; returns the last byte of each.
fn receive(end: &mut Opened, mem: &mut Local, n: usize) -> Vec<u8> {
    let (start, mut batch) = (Instant::now(), Batch::with_capacity(64));
    while batch.len() < n && start.elapsed() < Duration::from_secs(5) {
        let room = batch.spare();
        end.queues[0].rx(mem, &mut batch, room);
    }
    let last = batch.iter().map(|skb| {
        let mut byte = [0];
        skb.copy_to(skb.len() - 1, &mut byte);
        byte[0]
    });
    let last = last.collect();
    batch.consume(mem);
    last
}
