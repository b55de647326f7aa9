//! Tests of every port of this crate by the suite.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use linerate_skb::{Pool, Result};

use crate::conformance::{Case, Ends, Interface, Rig};
use crate::driver::Opened;
use crate::host::testing::{Scratch, Veth, in_netns, in_netns_with_xdp, ip, veth};
use crate::{r#gen, null, packet, pcap, registry, ring, sink};

fn open(text: &str, pool: &Pool) -> Result<Opened> {
    registry::open(text, pool)
}

mod rings {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| ring::pair("test", 256, pool).map(|(a, b)| Ends::Pair(a, b));
        case.on(Rig::new(open).ring_frames(ring::frames(256)))
    });
}

mod short_rings {
    use super::*;

    crate::conformance!(|case: Case| {
        let open = |pool: &Pool| ring::pair("short", 2, pool).map(|(a, b)| Ends::Pair(a, b));
        case.on(Rig::new(open).window(2))
    });
}

mod null_port {
    use super::*;

    crate::conformance!(|case: Case| case.on(Rig::alone(null::Null, "null:")));
}

mod sinks {
    use super::*;

    crate::conformance!(|case: Case| case.on(Rig::alone(sink::Sink, "sink:,blind")));
}

mod generators {
    use super::*;

    crate::conformance!(|case: Case| case.on(Rig::alone(r#gen::Gen, "gen:,count=5k,size=imix")));
}

mod paced_generators {
    use super::*;

    crate::conformance!(|case: Case| case.on(Rig::alone(r#gen::Gen, "gen:,rate=100kpps")));
}

/// Tests a capture that is written, and read when it is complete.
mod capture_files {
    use super::*;

    crate::conformance!(|case: Case| {
        let scratch = Scratch::new();
        let path = scratch.0.join("stored.pcapng");
        let open = move |pool: &Pool| {
            let (near, path) =
                (open(&format!("pcap:{},write", path.display()), pool)?, path.clone());
            let later = move |pool: &Pool| open_read(&path, pool);
            Ok(Ends::Stored(near, Box::new(later)))
        };
        case.on(Rig::new(open));
        drop(scratch);
    });

    fn open_read(path: &Path, pool: &Pool) -> Result<Opened> {
        open(&format!("pcap:{},read", path.display()), pool)
    }
}

/// Tests a capture that is read.
mod capture_sources {
    use super::*;

    crate::conformance!(|case: Case| {
        let scratch = Scratch::new();
        let path = scratch.0.join("source.pcapng");
        let frame = |i: usize| pcap::Frame { stamp_ns: i as u64, bytes: vec![0x5a; 60 + i % 1400] };
        pcap::write_all(&path, &(0..500).map(frame).collect::<Vec<_>>()).unwrap();
        case.on(Rig::alone(pcap::Pcap, &format!("pcap:{},read", path.display())));
    });
}

/// Tests a capture that is read while it is written.
mod capture_streams {
    use super::*;

    /// Bytes that a pipe can hold without privilege.
    const PIPE_BYTES: usize = 1 << 20;

    crate::conformance!(|case: Case| {
        let rig = Rig::new(|pool| {
            let scratch = Scratch::new();
            let path = scratch.fifo();
            let far = open(&format!("pcap:{path},read"), pool)?;
            let pipe = fs::File::options().read(true).write(true).open(&path).unwrap();
            rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES).unwrap();
            let near = open(&format!("pcap:{path},write"), pool)?;
            Ok(Ends::Pair(near, far))
        });
        case.on(rig.longest(9000).blocks_when_full());
    });
}

/// Runs `case` on ports at both ends of a veth pair, in a network namespace of its own.
fn on_veth(case: Case, near: &'static str, far: &'static str) {
    in_netns(move || {
        veth(1500);
        case.on(Rig::ports(near, far).longest(1514).drops_unread().interface(Veth));
    });
}

mod packet_sockets {
    use super::*;

    crate::conformance!(|case: Case| on_veth(case, "packet:v0", "packet:v1"));
}

mod packet_sockets_without_a_ring {
    use super::*;

    crate::conformance!(|case: Case| on_veth(case, "packet:v0,retire=0", "packet:v1,retire=0"));
}

mod packet_sockets_past_the_qdisc {
    use super::*;

    crate::conformance!(|case: Case| on_veth(
        case,
        "packet:v0,bypass,vnet=off",
        "packet:v1,vnet=off"
    ));
}

mod packet_sockets_of_two_queues {
    use super::*;

    crate::conformance!(|case: Case| on_veth(case, "packet:v0,queues=2", "packet:v1,queues=2"));
}

/// Tests the loopback interface, which returns the packets that it takes.
mod packet_sockets_on_lo {
    use super::*;

    crate::conformance!(|case: Case| in_netns(move || {
        ip("link set lo up");
        case.on(Rig::looped(packet::Packet, "packet:lo").longest(4000).drops_unread());
    }));
}

/// The interface t0 of a TAP port.
struct Tun;

impl Interface for Tun {
    fn down(&mut self) {
        ip("link set t0 down");
    }

    fn up(&mut self) {
        ip("link set t0 up");
    }

    fn delete(&mut self) {
        ip("link del t0");
    }

    fn set_mtu(&mut self, mtu_bytes: usize) {
        ip(&format!("link set t0 mtu {mtu_bytes}"));
    }
}

/// Tests TAP ports, with a packet socket on the host's side of the interface.
mod taps {
    use super::*;

    crate::conformance!(|case: Case| in_netns(move || {
        case.on(Rig::ports("tap:t0,up", "packet:t0").longest(1514).drops_unread().interface(Tun));
    }));
}

mod taps_of_two_queues {
    use super::*;

    crate::conformance!(|case: Case| in_netns(move || {
        let rig = Rig::ports("tap:t0,up,queues=2", "packet:t0");
        case.on(rig.longest(1514).drops_unread().interface(Tun));
    }));
}

/// Tests TAP ports whose packets have no offload header.
mod taps_without_an_offload_header {
    use super::*;

    crate::conformance!(|case: Case| in_netns(move || {
        let rig = Rig::ports("tap:t0,up,vnet=off", "packet:t0");
        case.on(rig.longest(1514).drops_unread().interface(Tun));
    }));
}

/// Runs a case as `on_veth` does, if AF_XDP is available.
fn on_xdp(case: Case, near: &'static str, far: &'static str) {
    in_netns_with_xdp(move || {
        veth(1500);
        // The device's rings hold frames of the pool.
        case.on(Rig::ports(near, far)
            .longest(1514)
            .drops_unread()
            .ring_frames(2048)
            .interface(Veth));
    });
}

mod xdp_sockets {
    use super::*;

    crate::conformance!(|case: Case| on_xdp(case, "xdp:v0,ring=256", "xdp:v1,ring=256"));
}

mod busy_xdp_sockets {
    use super::*;

    crate::conformance!(|case: Case| on_xdp(case, "xdp:v0,busy,ring=256", "xdp:v1,busy,ring=256"));
}

mod generic_xdp_and_packet_sockets {
    use super::*;

    crate::conformance!(|case: Case| on_xdp(case, "xdp:v0,mode=generic,ring=256", "packet:v1"));
}

/// Runs a case on two cards that a cable connects and whose driver has zero-copy:
/// `LINERATE_TEST_CARDS=eth0,eth1`. Most machines have no such cards; `cargo xtask qemu zerocopy`
/// has emulated ones (docs/qemu.md).
fn on_cards(case: Case) {
    let Ok(cards) = std::env::var("LINERATE_TEST_CARDS") else {
        return eprintln!("skipped: LINERATE_TEST_CARDS names no cards");
    };
    let (near, far) = cards.split_once(',').unwrap();
    let texts = [near, far].map(|card| format!("xdp:{card},mode=zerocopy,ring=256"));
    let carriers = [near, far].map(|card| format!("/sys/class/net/{card}/carrier"));
    let rig = Rig::new(move |pool| {
        let ends = Ends::Pair(open(&texts[0], pool)?, open(&texts[1], pool)?);
        // Wait: a card whose rings were just created has no link for some seconds.
        let begun = Instant::now();
        while !carriers.iter().all(|file| fs::read_to_string(file).is_ok_and(|up| up == "1\n")) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no link: {carriers:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(ends)
    });
    // An igb pads shorter packets, and cuts packets longer than 1 KiB with frames of 2048: the
    // cards have an MTU of 1000.
    case.on(rig.shortest(60).longest(1014).drops_unread().ring_frames(2048));
}

mod zero_copy_xdp_sockets {
    use super::*;

    crate::conformance!(on_cards);
}
