//! Tests ports on no wire that are served beside a wire.

use std::time::Duration;

use linerate_datapath::{Engine, PortId, Stage, Turn};
use linerate_port::Code;
use linerate_skb::{Batch, DropReason};

/// Sends a copy of each packet to the port of its worker, and drops the packet.
struct Tap(PortId);

impl Stage for Tap {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        batch.retain(|skb| {
            turn.send(self.0, skb.share());
            Err(DropReason::UNWANTED)
        });
    }
}

#[test]
fn a_stage_of_each_worker_can_send_to_a_port_beside_its_wire() {
    let two = || {
        let builder = Engine::builder().port("a", "gen:,count=100").port("b", "sink:,blind");
        let builder = builder.port("c", "gen:,count=200").port("d", "sink:,blind");
        let builder = builder.port("drops0", "sink:,blind").port("drops1", "sink:,blind");
        builder.wire("a", "b").wire("c", "d").workers(2)
    };
    let builder = two().beside("drops0", "b").beside("drops1", "c");
    let running = builder.stage(|cx| Tap(cx.port(&format!("drops{}", cx.worker())))).build();
    let (running, long) = (running.unwrap().start().unwrap(), Duration::from_secs(20));
    assert!(running.wait(long).unwrap());
    let stopped = running.stop(long);
    let sent =
        |name: &str| stopped.ports.iter().find(|port| port.name == name).unwrap().counts.tx_packets;
    assert_eq!(["b", "drops0", "d", "drops1"].map(sent), [0, 100, 0, 200]);
    for (port, other, why) in [
        ("b", "c", "'b' cannot be served beside 'c'"),
        ("drops0", "none", "a port is served beside 'none', and there is no such port"),
    ] {
        let e = two().beside(port, other).build().unwrap_err();
        assert_eq!((e.code, &*e.why), (Code::Topology, why));
    }
    for (kept, other) in [("drops0", "c"), ("drops1", "drops1")] {
        let e = two().keep(kept).beside("drops0", other).build().unwrap_err();
        assert_eq!(e.why, format!("'drops0' cannot be served beside '{other}'"));
    }
    for other in ["c", "drops0", "drops1"] {
        let e = two().beside("drops1", other).beside("drops0", "drops1").build().unwrap_err();
        assert_eq!(e.code, Code::Topology);
        assert!(e.why.contains("which is itself beside"), "{e}");
    }
}
