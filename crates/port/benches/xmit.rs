//! Cost of transmit preparation for a packet whose checksum or segmentation is left to the device.
//!
//! Input: UDP packets of 1514 bytes with a partial checksum, and TCP superframes of 16 segments of
//! 1448 bytes, allocated, filled and sent by one queue, 64 frames a turn. `xdp` (real AF_XDP in
//! copy mode) and `memif` (copy mode) compute checksums and cut superframes in software; `packet`
//! and `tap` pass both on in a virtio header; `packet,vnet=off` computes the checksum
//! (`packet_finish`). `xdp_plain` has nothing to prepare. The interfaces live in a network
//! namespace of this process. The kernel's instructions are not counted.
//!
//! Prediction, in instructions (`cargo xtask count`): a checksum of 1480 bytes costs less than one
//! instruction a byte more than `xdp_plain`; a segment twice its checksum, for two copies.

use std::process::Command;
use std::time::{Duration, Instant};

use linerate_port::memif::Reader;
use linerate_port::{Health, Port, Queue, Want};
use linerate_skb::{Batch, Offload, Pool};
use rustix::thread::UnshareFlags;

const SEGMENTS: usize = 16;
const SEGMENT_BYTES: usize = 1448;
/// Number of packets that are sent on the wire in one turn.
const PACKETS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(5);

/// A case: its name for `--once`, the port, and the work that its packets leave to the device.
const CASES: [(&str, &str, Work); 10] = [
    ("xdp_plain", "xdp:v0", Work::Nothing),
    ("xdp_partial", "xdp:v0", Work::Checksum),
    ("xdp_super", "xdp:v0", Work::Cutting),
    ("packet_partial", "packet:v0", Work::Checksum),
    ("packet_super", "packet:v0", Work::Cutting),
    ("packet_finish", "packet:v0,vnet=off", Work::Checksum),
    ("tap_partial", "tap:t0,up", Work::Checksum),
    ("tap_super", "tap:t0,up", Work::Cutting),
    ("memif_partial", "memif:", Work::Checksum),
    ("memif_super", "memif:", Work::Cutting),
];

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Nothing,
    Checksum,
    Cutting,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // For an instruction counter of the whole process: run two lengths, and take the difference.
    if let [_, once, case, turns, ..] = args.as_slice()
        && once == "--once"
    {
        let (_, port, work) =
            CASES.iter().find(|known| known.0 == case).expect("--once CASE TURNS");
        return run(port, *work, turns.parse().expect("--once CASE TURNS"), |_| ());
    }
    let turns = if args.iter().any(|a| a == "--test") { 2 } else { 2000 };
    for (name, port, work) in CASES {
        run(port, work, turns, |took| {
            let ns = took.as_nanos() as f64 / (turns as f64 * PACKETS as f64);
            println!("{name:<16} {ns:8.1} ns/packet, the kernel's share included");
        });
    }
}

/// Sends `turns` batches through `port`, and passes the time that sending took to `took`.
fn run(port: &str, work: Work, turns: u64, took: impl FnOnce(Duration)) {
    let is_memif = port == "memif:";
    if !is_memif && !has_interfaces() {
        return;
    }
    let place = format!("memif:@linerate-xmit-{}", std::process::id());
    let mut reader = is_memif.then(|| Reader::open(&place).expect("a name of its own"));
    let client = format!("{place},role=client,zerocopy=no");
    let pool = Pool::builder().frames(8192).build().expect("a pool");
    let port = Port::open_with(if is_memif { &client } else { port }, &pool).expect("the port");
    let mut queue = port.into_queues().remove(0);
    let until = Instant::now() + PATIENCE;
    while queue.health() != Health::Up {
        // This thread runs both ends of a memif: call each in turn until the handshake is complete.
        if let Some(reader) = &mut reader {
            let _ = reader.arm();
        }
        queue.wait_for(Want::Frames, Some(Duration::from_millis(1))).expect("poll");
        assert!(Instant::now() < until, "{:?}", queue.health());
    }
    let packet = packet(work);
    let start = Instant::now();
    counted(&mut queue, reader.as_mut(), work, &packet, turns);
    took(start.elapsed());
    assert_eq!(pool.ledger().dropped_total(), 0, "{}", pool.ledger());
}

/// Sends `turns` batches. `cargo xtask count` counts instructions in this function only, which it
/// finds by name.
#[inline(never)]
fn counted(
    queue: &mut Queue,
    mut reader: Option<&mut Reader>,
    work: Work,
    packet: &[u8],
    turns: u64,
) {
    let mut batch = Batch::with_capacity(PACKETS);
    for _ in 0..turns {
        fill(queue, &mut batch, work, packet);
        while !batch.is_empty() {
            if queue.xmit(&mut batch) == 0 {
                let room = queue.wait_for(Want::Room, Some(PATIENCE)).expect("poll");
                assert!(room || reader.is_some(), "no room is announced");
            }
            if let Some(reader) = &mut reader {
                reader.frames(PACKETS).for_each(drop);
            }
        }
    }
}

/// Fills `batch` with copies of `packet` that become [`PACKETS`] frames.
fn fill(queue: &mut Queue, batch: &mut Batch, work: Work, packet: &[u8]) {
    let (n, offload) = match work {
        Work::Nothing => (PACKETS, Offload::NONE),
        Work::Checksum => (PACKETS, PARTIAL),
        Work::Cutting => (PACKETS / SEGMENTS, SUPERFRAME),
    };
    while batch.len() < n {
        let Some(mut skb) = queue.local().alloc_copy(packet) else {
            // All frames are in flight: `reap` takes some back from the device.
            queue.reap();
            continue;
        };
        skb.set_offload(offload);
        assert!(batch.push(skb).is_ok(), "the batch has room for all");
    }
}

/// Offload header of a partial UDP checksum; the next constant is that of a TCP superframe.
const PARTIAL: Offload = Offload { flags: 1, csum_start: 34, csum_offset: 6, ..Offload::NONE };
const SUPERFRAME: Offload = Offload {
    flags: 1,
    gso_type: 1,
    hdr_len: 54,
    gso_size: SEGMENT_BYTES as u16,
    csum_start: 34,
    csum_offset: 16,
};

/// Returns an IPv4 packet of UDP that fills 1514 bytes, or of TCP that becomes [`SEGMENTS`] frames.
fn packet(work: Work) -> Vec<u8> {
    let (protocol, header, payload) = match work {
        Work::Cutting => (6, 20, SEGMENTS * SEGMENT_BYTES),
        _ => (17, 8, 1472),
    };
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0];
    frame.extend((20 + header + payload as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    frame.extend([0x30, 0x39, 0, 9]);
    match work {
        Work::Cutting => frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]),
        _ => {
            frame.extend((header + payload as u16).to_be_bytes());
            frame.extend([0, 0]);
        }
    }
    frame.extend((0..payload).map(|i| i as u8));
    frame
}

/// Creates a network namespace with a veth pair v0, v1 for this process, once; returns false, and
/// prints the reason, if privileges or tools are missing.
fn has_interfaces() -> bool {
    static MADE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *MADE.get_or_init(|| {
        // SAFETY: NEWNET changes only which interfaces this thread sees, which is the process's
        // only thread; its descriptors stay as they are.
        if let Err(e) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
            eprintln!("skipped: no network namespace: {e}");
            return false;
        }
        // Turn IPv6 off, because interfaces that come up with it send packets of their own.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let commands = ["link add v0 type veth peer name v1", "link set v0 up", "link set v1 up"];
        let done = commands.iter().all(|args| {
            Command::new("ip").args(args.split(' ')).status().is_ok_and(|status| status.success())
        });
        if !done {
            eprintln!("skipped: no `ip` command that makes a veth pair");
        }
        done
    })
}
