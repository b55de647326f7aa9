//! Two ports over one socket, and peers that do not keep to the protocol.

mod hostile;
mod liars;
mod model;
mod peer;
mod races;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Pool, Trust};

use super::*;
use crate::conformance::{Case, Ends, Rig};
use crate::registry;

/// A name of this test's own.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("@linerate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn open(text: &str, pool: &Pool) -> Opened {
    registry::open(&crate::parse(text).unwrap(), pool).unwrap()
}

/// Has both ends of a connection come to terms.
fn meet(pool: &Pool, ends: &mut [&mut Opened]) {
    let start = Instant::now();
    loop {
        let queues = || ends.iter().flat_map(|end| &end.queues);
        if queues().all(|queue| queue.health() == Health::Up) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no connection");
        // Not armed: a case wants to see a queue that never was.
        let mut mem = pool.local();
        for queue in ends.iter_mut().flat_map(|end| end.queues.iter_mut()) {
            (0..300).for_each(|_| {
                queue.rx(&mut mem, &mut Batch::with_capacity(1), 0);
            });
        }
    }
}

/// A server and a client with these options, in `pool`, connected.
fn joined(pool: &Pool, server: &str, client: &str) -> (Opened, Opened) {
    let name = name();
    let mut far = open(&format!("memif:{name},role=server{server}"), pool);
    let mut near = open(&format!("memif:{name},role=client{client}"), pool);
    meet(pool, &mut [&mut near, &mut far]);
    (near, far)
}

mod zero_copy {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, "", ",size=256");
            Ok(Ends::Pair(near, far))
        };
        case.on(Rig::new(open).trust(Trust::Exported).ring_frames(512));
    });
}

mod by_copies {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| {
            let (near, far) = joined(pool, "", ",size=256,zerocopy=no");
            Ok(Ends::Pair(far, near))
        };
        case.on(Rig::new(open));
    });
}
