//! Common parts of the tests of ports of host interfaces: a network namespace for each test, and a
//! queue that is used as a program uses it.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Kind, Offload, Pool, Skb};
use linerate_sys::netns::Netns;
use linerate_sys::thread::{allowed_cpus, is_filtered, pin_to_cpu};
use linerate_sys::wait::poll_readable;
use linerate_sys::xdp::is_refused;
pub(crate) use linerate_testing::{Scratch, eventually, ip, wait_running};
use linerate_testing::{quiet, unless};
use linerate_wire::{checksum, stamp};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::conformance::Interface;
use crate::{Port, Queue, Want};

/// Longest wait of a test; every step takes far less.
pub(crate) const LONG: Duration = Duration::from_secs(5);

/// Runs `test` on its own thread in a new network namespace without IPv6, as
/// [`linerate_testing::in_netns`] does.
pub(crate) fn in_netns(test: impl FnOnce() + Send) {
    // With IPv6, an interface that comes up sends solicitations.
    linerate_testing::in_netns(|| {
        quiet();
        test();
    });
}

/// Most memory that a test of AF_XDP locks, with room for a test beside it.
const LOCKED_BYTES: u64 = 128 << 20;

/// Returns the limit of locked memory if it is too low for the tests of AF_XDP.
fn little_to_lock() -> Option<u64> {
    let privileged = capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK);
    getrlimit(Resource::Memlock).current.filter(|&bytes| !privileged && bytes < LOCKED_BYTES)
}

/// Does as `in_netns`, if the kernel has AF_XDP and lets this process lock the memory that it
/// takes.
pub(crate) fn in_netns_with_xdp(test: impl FnOnce() + Send) {
    if let Some(bytes) = little_to_lock() {
        let (most, kib) = (LOCKED_BYTES >> 10, bytes >> 10);
        return eprintln!(
            "skipped: AF_XDP locks up to {most} KiB in a test, and RLIMIT_MEMLOCK is {kib} KiB (fix: ulimit -l unlimited)"
        );
    }
    in_netns(|| {
        if has_xdp() {
            test();
        }
    });
}

/// Opens a port on AF_XDP in the namespace of the calling thread, once in a process that can;
/// returns false, and says why, if the kernel refuses it.
fn has_xdp() -> bool {
    static OPENED: AtomicBool = AtomicBool::new(false);
    if OPENED.load(Ordering::Relaxed) {
        return true;
    }
    ip("link add probe0 type veth peer name probe1");
    ip("link set probe0 up");
    let pool = Pool::builder().frames(1024).build().unwrap();
    let opened = Port::open_with("xdp:probe0,ring=64", &pool);
    if unless(opened, |e| e.kind() == Kind::Unsupported && is_refused(&e.why)).is_none() {
        return false;
    }
    assert_settled(&pool);
    ip("link del probe0");
    OPENED.store(true, Ordering::Relaxed);
    true
}

/// Runs `tc qdisc add` with `args`; returns false, and says why, if there is no `tc`, or no such
/// queue in this kernel.
pub(crate) fn adds_qdisc(args: &str) -> bool {
    let words = ["qdisc", "add"].into_iter().chain(args.split(' '));
    let done = match Command::new("tc").args(words).output() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: there is no `tc` command");
            return false;
        }
        done => done.unwrap(),
    };
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("qdisc kind is unknown") {
        eprintln!("skipped: this kernel lacks a queue: {args}: {}", said.trim());
        return false;
    }
    assert!(done.status.success(), "tc qdisc add {args}: {said}");
    true
}

/// Pins the thread to one CPU, because veth keeps only the order of packets that are sent on one
/// CPU; returns false, and says why, if a filter of system calls refuses to pin the thread.
pub(crate) fn stays_on_one_cpu() -> bool {
    unless(pin_to_cpu(allowed_cpus().unwrap()[0]), is_filtered).is_some()
}

/// Asserts that `address` answers an echo request, if a program for echo requests is installed.
pub(crate) fn assert_answers_ping(address: &str) {
    match Command::new("ping").args(["-c1", "-w5", address]).output() {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            eprintln!("skipped in part: there is no `ping` command");
        }
        Err(e) => panic!("ping: {e}"),
    }
}

/// Creates a veth pair v0, v1 that is up.
pub(crate) fn veth(mtu: u32) {
    ip(&format!("link add v0 mtu {mtu} type veth peer name v1 mtu {mtu}"));
    ip("link set v0 up");
    ip("link set v1 up");
    wait_running("v0");
    wait_running("v1");
}

/// Moves `interface` to another network namespace and back, and sets it up.
pub(crate) fn move_away_and_back(interface: &str) {
    let there = Netns::new().unwrap();
    let here = fs::File::open("/proc/thread-self/ns/net").unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), here.as_raw_fd());
    ip(&format!("link set {interface} netns {}", there.path()));
    there.ip(&format!("link set {interface} netns {path}")).unwrap();
    ip(&format!("link set {interface} up"));
    wait_running(interface);
}

/// The end v0 of the pair that `veth` creates, for the conformance suite.
pub(crate) struct Veth;

impl Interface for Veth {
    fn down(&mut self) {
        ip("link set v0 down");
    }

    fn up(&mut self) {
        ip("link set v0 up");
        wait_running("v0");
        wait_running("v1");
    }

    fn delete(&mut self) {
        ip("link del v0");
    }

    fn set_mtu(&mut self, mtu_bytes: usize) {
        for name in ["v0", "v1"] {
            ip(&format!("link set {name} mtu {mtu_bytes}"));
        }
    }
}

/// Opens a port of one queue.
pub(crate) fn queue(text: &str) -> Queue {
    Port::open(text).unwrap().into_queues().remove(0)
}

/// Opens a port of one queue that receives into `pool`.
pub(crate) fn queue_in(text: &str, pool: &Pool) -> Queue {
    Port::open_with(text, pool).unwrap().into_queues().remove(0)
}

/// Returns frame number `seq`, of `len` bytes.
pub(crate) fn stamped(seq: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    stamp::write(&mut frame, 0, seq, 0).unwrap();
    frame
}

/// Returns all bytes of a packet.
pub(crate) fn bytes(skb: &Skb) -> Vec<u8> {
    let mut bytes = vec![0; skb.len()];
    assert_eq!(skb.copy_to(0, &mut bytes), skb.len());
    bytes
}

/// Sends `frames` with `offload`, and waits for room when necessary.
pub(crate) fn send(queue: &mut Queue, frames: &[Vec<u8>], offload: Offload) {
    let mut batch = Batch::with_capacity(64);
    let deadline = Instant::now() + LONG;
    for part in frames.chunks(64) {
        for frame in part {
            let mut skb = queue.local().alloc_copy(frame).unwrap();
            skb.set_offload(offload);
            batch.push(skb).unwrap();
        }
        queue.xmit(&mut batch);
        while !batch.is_empty() {
            assert!(Instant::now() < deadline, "{} are never taken", batch.len());
            queue.wait_for(Want::Room, Some(LONG)).unwrap();
            queue.xmit(&mut batch);
        }
    }
}

/// Receives until `count` packets that `wanted` accepts have arrived.
pub(crate) fn receive_if(queue: &mut Queue, count: usize, wanted: impl Fn(&[u8]) -> bool) -> Batch {
    let mut got = Batch::with_capacity(count);
    let mut batch = Batch::with_capacity(64);
    let deadline = Instant::now() + LONG;
    while got.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{} of {count} came", got.len());
        queue.wait(Some(left)).unwrap();
        queue.rx(&mut batch);
        for skb in batch.drain().filter(|skb| wanted(skb.data())) {
            assert!(got.push(skb).is_ok(), "more than {count} came");
        }
    }
    got
}

/// Receives `count` stamped frames.
pub(crate) fn receive(queue: &mut Queue, count: usize) -> Batch {
    receive_if(queue, count, |data| data[12..14] == stamped(0, 60)[12..14])
}

/// The source address of the packets below, by which a test recognises its own packets.
const SOURCE: [u8; 4] = [198, 18, 0, 1];

/// Returns true for packets that [`ipv4`] made.
pub(crate) fn is_ipv4(data: &[u8]) -> bool {
    data.len() > 34 && data[26..30] == SOURCE
}

/// Returns a frame with an IPv4 packet of TCP (6) or UDP (17) and `payload` bytes; its transport
/// checksum is the sum of the pseudo header, as for an offload.
pub(crate) fn ipv4(protocol: u8, payload: usize) -> Vec<u8> {
    let header = if protocol == 6 { 20 } else { 8 };
    let len = (20 + header + payload) as u16;
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45, 0];
    f.extend(len.to_be_bytes());
    f.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    f.extend(SOURCE);
    f.extend([198, 18, 0, 2]);
    let mut transport = vec![0; header];
    transport[..4].copy_from_slice(&[0x30, 0x39, 0, 9]);
    match protocol {
        6 => transport[12..14].copy_from_slice(&[0x50, 0x10]),
        _ => transport[4..6].copy_from_slice(&((header + payload) as u16).to_be_bytes()),
    }
    let (pseudo, at) = (pseudo(protocol, header + payload), if protocol == 6 { 16 } else { 6 });
    transport[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
    f.extend(transport);
    f.extend((0..payload).map(|i| i as u8));
    f
}

/// Returns a packet as veth delivers it: its UDP checksum is left to a device.
pub(crate) fn unfinished(pool: &Pool, payload: usize) -> Skb {
    let mut frame = ipv4(17, payload);
    let check = checksum::finish(checksum::sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    let mut skb = pool.local().alloc_copy(&frame).unwrap();
    skb.set_offload(PARTIAL);
    skb
}

/// Returns a frame with an IPv6 packet of TCP (6), UDP (17) or SCTP (132) with `payload` bytes
/// behind the extension headers `chain`, the first of which is of kind `first`; its checksum is the
/// sum of the pseudo header, as for an offload, and 0 in SCTP.
pub(crate) fn ipv6(first: u8, chain: &[u8], protocol: u8, payload: usize) -> Vec<u8> {
    let mut transport = ipv4(protocol, payload).split_off(34);
    let len = transport.len() as u16;
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0];
    f.extend((len + chain.len() as u16).to_be_bytes());
    f.extend([first, 64]);
    f.extend([7; 16]);
    f.extend([8; 16]);
    let sum =
        linerate_wire::checksum::sum(&[&f[22..54], &len.to_be_bytes(), &[0, protocol]].concat());
    match protocol {
        6 => transport[16..18].copy_from_slice(&sum.to_be_bytes()),
        17 => transport[6..8].copy_from_slice(&sum.to_be_bytes()),
        _ => transport[8..12].fill(0),
    }
    f.extend(chain);
    f.extend(transport);
    f
}

/// Extension headers of IPv6 that are stepped over, with the kind of the first; the header after
/// them is of kind `next`: options, an atomic fragment, a source route with no segment left,
/// segment routing with one left.
pub(crate) fn chains(next: u8) -> [(u8, Vec<u8>); 4] {
    let mut options = vec![60, 0, 1, 4, 0, 0, 0, 0, next, 1, 1, 4, 0, 0, 0, 0];
    options.extend([1, 6, 0, 0, 0, 0, 0, 0]);
    let mut segments = vec![next, 2, 4, 1, 0, 0, 0, 0];
    segments.extend([8; 16]);
    let route = vec![next, 2, 0, 0, 0, 0, 0, 0].into_iter().chain([9; 16]).collect();
    [(0, options), (44, vec![next, 0, 0, 0, 1, 2, 3, 4]), (43, route), (43, segments)]
}

/// Returns the IPv4 packet of `frame` under way by a loose source route: the header has the address
/// of the next hop, and the option has the destination's.
pub(crate) fn source_routed(mut frame: Vec<u8>) -> Vec<u8> {
    let route = [131, 7, 4, frame[30], frame[31], frame[32], frame[33], 0];
    frame[30..34].copy_from_slice(&[10, 0, 0, 9]);
    frame.splice(34..34, route);
    frame[14] = 0x47;
    let len = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    frame
}

/// Returns a frame with the IPv4 packet of `frame` inside another IPv4 packet, whose checksum is
/// correct.
pub(crate) fn ipip(mut frame: Vec<u8>) -> Vec<u8> {
    let len = (frame.len() - 14 + 20) as u16;
    let mut outer = vec![0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 4, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2];
    outer[2..4].copy_from_slice(&len.to_be_bytes());
    let check = checksum::finish(checksum::sum(&outer));
    outer[10..12].copy_from_slice(&check.to_be_bytes());
    frame.splice(14..14, outer);
    frame
}

/// Returns `packet` in a tunnel over UDP to `port`, whose header is `header`; the outer checksum is
/// the sum of its pseudo header.
pub(crate) fn over_udp(v6: bool, port: u16, header: &[u8], packet: &[u8]) -> Vec<u8> {
    let payload = [header, packet].concat();
    let mut f = match v6 {
        true => ipv6(17, &[], 17, payload.len()),
        false => ipv4(17, payload.len()),
    };
    let at = f.len() - payload.len();
    f[at - 6..at - 4].copy_from_slice(&port.to_be_bytes());
    f[at..].copy_from_slice(&payload);
    f
}

/// Returns `packet` in a tunnel of GRE over IPv4, whose header is `header`.
pub(crate) fn over_gre(header: &[u8], packet: &[u8]) -> Vec<u8> {
    let payload = [header, packet].concat();
    let mut f = ipv4(47, payload.len() - 8);
    f[34..].copy_from_slice(&payload);
    f
}

/// The header of VXLAN; the next constants are one of Geneve with an option, and two of GRE with a
/// checksum and a key, for Ethernet frames: the kernel does not write the checksum's word in a
/// superframe.
pub(crate) const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 7, 0];
pub(crate) const GENEVE: [u8; 12] = [1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4];
pub(crate) const GRE_CHECKED: [u8; 12] = [0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 5];
pub(crate) const GRE_STALE: [u8; 12] = [0xa0, 0, 0x65, 0x58, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 5];

/// Returns the sum of the pseudo header of a packet that [`ipv4`] made.
pub(crate) fn pseudo(protocol: u8, len: usize) -> u16 {
    let mut header = Vec::from(SOURCE);
    header.extend([198, 18, 0, 2, 0, protocol]);
    header.extend((len as u16).to_be_bytes());
    checksum::sum(&header)
}

/// Offload header of a UDP packet with a partial checksum.
pub(crate) const PARTIAL: Offload =
    Offload { flags: 1, csum_start: 34, csum_offset: 6, ..Offload::NONE };
/// Offload header of a superframe of TCP over IPv4.
pub(crate) const SUPERFRAME: Offload =
    Offload { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 1448, csum_start: 34, csum_offset: 16 };

/// Returns frame number `seq` of `flow`: a datagram whose ports distinguish it from other flows.
pub(crate) fn of_flow(flow: u16, seq: u32) -> Vec<u8> {
    let mut frame = ipv4(17, 64);
    frame[34..36].copy_from_slice(&(FLOW_PORT + flow).to_be_bytes());
    // Zero means that UDP has no checksum.
    frame[40..42].copy_from_slice(&[0, 0]);
    frame[42..46].copy_from_slice(&seq.to_be_bytes());
    frame
}

const FLOW_PORT: u16 = 20_000;
/// Number of flows of [`of_flow`] in tests: enough that each of a few queues gets some.
pub(crate) const FLOWS: u16 = 64;

/// Returns frame number `seq` of every flow.
pub(crate) fn round(seq: u32) -> Vec<Vec<u8>> {
    (0..FLOWS).map(|flow| of_flow(flow, seq)).collect()
}

/// Frames of the flows that have arrived, with the queue of each.
#[derive(Default)]
pub(crate) struct Seen {
    /// Queue, flow and number of each frame, in the order of arrival.
    pub frames: Vec<(usize, u16, u32)>,
}

impl Seen {
    /// Receives waiting packets from `queues`; returns the number of frames of the flows.
    pub fn take(&mut self, queues: &mut [Queue]) -> usize {
        let before = self.frames.len();
        let mut batch = Batch::with_capacity(64);
        for (i, queue) in queues.iter_mut().enumerate() {
            while queue.rx(&mut batch) > 0 {
                let ours = batch.iter().map(Skb::data).filter(|data| is_ipv4(data));
                self.frames.extend(ours.map(|data| {
                    let port = u16::from_be_bytes([data[34], data[35]]);
                    let seq = u32::from_be_bytes([data[42], data[43], data[44], data[45]]);
                    (i, port - FLOW_PORT, seq)
                }));
                batch.clear();
            }
        }
        self.frames.len() - before
    }

    /// Receives from `queues` until `count` frames have arrived in total.
    pub fn wait(&mut self, queues: &mut [Queue], count: usize) {
        let deadline = Instant::now() + LONG;
        while self.frames.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} came", self.frames.len());
            if self.take(queues) == 0 && queues.iter_mut().all(|q| q.arm(Want::Frames)) {
                let fds: Vec<_> = queues.iter().map(|q| q.as_fd()).collect();
                poll_readable(&fds, Some(LONG)).unwrap();
            }
        }
    }

    /// Asserts that all frames of every flow, numbers 0 to `rounds`, arrived exactly once.
    pub fn assert_once(&self, rounds: u32) {
        let mut got: Vec<_> = self.frames.iter().map(|&(_, flow, seq)| (flow, seq)).collect();
        got.sort_unstable();
        let all = (0..FLOWS).flat_map(|flow| (0..rounds).map(move |seq| (flow, seq)));
        assert!(got.iter().copied().eq(all), "{} of {}", got.len(), u32::from(FLOWS) * rounds);
    }

    /// Asserts that each flow arrived on one queue and in order, and that each of `queues` received
    /// some.
    pub fn assert_divided(&self, queues: usize) {
        for flow in 0..FLOWS {
            let its: Vec<_> = self.frames.iter().filter(|(_, of, _)| *of == flow).collect();
            assert!(its.windows(2).all(|w| w[0].0 == w[1].0 && w[0].2 < w[1].2), "{flow}: {its:?}");
        }
        for queue in 0..queues {
            assert!(self.frames.iter().any(|(of, ..)| *of == queue), "{queue} had nothing");
        }
    }
}

/// Asserts that `open` waits for an object that was opened before, and is closed a little later.
pub(crate) fn assert_waits_for_close<T: Send + 'static>(
    open: impl Fn() -> linerate_skb::Result<T>,
) {
    let deadline = Instant::now() + LONG;
    loop {
        let (held, start) = (open().unwrap(), Instant::now());
        let closing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            drop(held);
            start.elapsed()
        });
        let (opened, closed) = (open(), closing.join().unwrap());
        // On a busy machine the other thread may be too late.
        let late = closed > Duration::from_millis(100) && Instant::now() < deadline;
        match opened {
            Err(e) if !late => panic!("closed after {closed:?}: {e}"),
            Err(_) => {}
            Ok(_) => return,
        }
    }
}

/// Asserts that the pool's ledger balances, and that no packet is in flight.
pub(crate) fn assert_settled(pool: &Pool) {
    let ledger = pool.ledger();
    assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
}

/// Asserts that the armed, idle queue wakes a thread that sleeps on its descriptor at most `most`
/// times a second, even if the queue has failed.
pub(crate) fn assert_silent(queue: &mut Queue, most: u64) {
    let mut batch = Batch::with_capacity(64);
    let (mut wakeups, end) = (0, Instant::now() + Duration::from_secs(1));
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now());
        if queue.arm(Want::Frames) && poll_readable(&[queue.as_fd()], Some(left)).unwrap() {
            wakeups += 1;
        }
        queue.rx(&mut batch);
        batch.clear();
    }
    assert!(wakeups <= most, "{wakeups} wake-ups in a second");
}
