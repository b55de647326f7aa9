//! Conformance of ports wrapped by all wrappers that do not change packets, together.

use std::io::Sink;
use std::sync::Mutex;
use std::time::Duration;

use linerate_skb::Result;

use super::fault::{Fault, Faulty, Plan};
use super::tee::{Limits, Tee, TeeWriter};
use crate::conformance::{Case, Ends, Rig};
use crate::driver::Opened;
use crate::host::testing::{Veth, in_netns, in_netns_with_xdp, veth};
use crate::queue::QueueOps;
use crate::{registry, ring};

/// Wraps each queue by `wrap`.
fn wrapped(
    opened: Opened,
    wrap: impl Fn(Box<dyn QueueOps>) -> Result<Box<dyn QueueOps>>,
) -> Result<Opened> {
    let queues = opened.queues.into_iter().map(wrap).collect::<Result<_>>()?;
    Ok(Opened { queues, ..opened })
}

/// Captures that last as long as their queues, and whose copies are never written.
static CAPTURES: Mutex<Vec<TeeWriter<Sink>>> = Mutex::new(Vec::new());

/// Wraps a port in a fault plan without faults, and in a tee whose copies are never read.
fn watched(opened: Opened) -> Result<Opened> {
    wrapped(opened, |ops| {
        let ops = Box::new(Faulty::new(ops, &Plan::new(1))?);
        let limits = Limits { snaplen_bytes: 128, queue_bytes: 1 << 16, ..Limits::default() };
        let tee = Tee::new(limits)?;
        let ops = tee.wrap(ops, "watched")?;
        CAPTURES.lock().unwrap().push(tee.start(std::io::sink())?);
        Ok(ops)
    })
}

/// Makes a queue delay, stall and refuse received packets, and keep their order. Sent packets are
/// not affected: those that wait need another call of the sender, but the suite's senders do not
/// call again when all their packets are accepted.
fn troubled(opened: Opened) -> Result<Opened> {
    wrapped(opened, |ops| {
        let (late, stall) = (Fault::Delay(Duration::from_micros(50)), Duration::from_micros(200));
        let plan =
            Plan::new(1).rx(late, 40).rx(Fault::DelayTurns(2), 50).rx(Fault::Stall(stall), 30);
        Ok(Box::new(Faulty::new(ops, &plan.rx(Fault::Refuse { calls: 2 }, 20))?))
    })
}

fn rings(wrap: fn(Opened) -> Result<Opened>) -> Rig {
    let rig = Rig::new(move |pool| {
        let (a, b) = ring::pair("wrapped", 256, pool)?;
        Ok(Ends::Pair(wrap(a)?, wrap(b)?))
    });
    rig.ring_frames(ring::frames(256))
}

mod watched_rings {
    use super::*;

    crate::conformance!(|case: Case| case.on(rings(watched)));
}

mod troubled_rings {
    use super::*;

    crate::conformance!(|case: Case| case.on(rings(troubled)));
}

mod watched_interfaces {
    use super::*;

    crate::conformance!(|case: Case| in_netns(move || {
        veth(1500);
        let open = |text: &str, pool: &_| watched(registry::open(text, pool)?);
        let pair =
            move |pool: &_| Ok(Ends::Pair(open("packet:v0", pool)?, open("packet:v1", pool)?));
        case.on(Rig::new(pair).longest(1514).drops_unread().interface(Veth));
    }));
}

/// Opens both ends of a veth pair by AF_XDP, on frames of the pool.
fn on_xdp(case: Case, wrap: fn(Opened) -> Result<Opened>) {
    in_netns_with_xdp(move || {
        veth(1500);
        let open = move |text: &str, pool: &_| wrap(registry::open(text, pool)?);
        let pair = move |pool: &_| {
            Ok(Ends::Pair(open("xdp:v0,ring=256", pool)?, open("xdp:v1,ring=256", pool)?))
        };
        let rig = Rig::new(pair).longest(1514).drops_unread().ring_frames(2048);
        case.on(rig.interface(Veth));
    });
}

mod watched_xdp {
    use super::*;

    crate::conformance!(|case: Case| on_xdp(case, watched));
}

mod troubled_xdp {
    use super::*;

    crate::conformance!(|case: Case| on_xdp(case, troubled));
}
