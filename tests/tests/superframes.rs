//! Superframes of a kernel at another kernel: those of UDP keep the boundaries of their datagrams,
//! and those of TCP the marks by which a discipline reports congestion.

use std::net::UdpSocket;

use linerate_port::doctor::kernel;
use linerate_tests::command::Report;
use linerate_tests::netns::Netns;
use linerate_tests::or_skip;
use linerate_tests::topology::{EAST, Hosts, WEST};
use linerate_tests::traffic::{send_in_superframes, transfer};
use linerate_tests::wait::SOON;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// Length of a datagram.
const DATAGRAM: usize = 1200;
/// Number of bytes that a call sends: 40 datagrams, and a shorter one.
const CALL: usize = 40 * DATAGRAM + 500;
/// Number of calls that send before their datagrams are received, and how often that is done.
const CALLS: usize = 4;
const ROUNDS: usize = 5;
/// Number of datagrams in all.
const DATAGRAMS: u64 = (ROUNDS * CALLS * CALL.div_ceil(DATAGRAM)) as u64;
/// Room for the datagrams of a round, as the kernel counts it.
const RECEIVE_BYTES: usize = 4 << 20;
/// Counts of a kernel that stay 0 while all headers and checksums are right.
const ERRORS: [&str; 5] =
    ["IpInHdrErrors", "IpExtInCsumErrors", "TcpInCsumErrors", "UdpInErrors", "UdpInCsumErrors"];

fn assert_no_errors(netns: &Netns) {
    assert_eq!(ERRORS.map(|name| netns.count(name)), [0; 5], "{ERRORS:?}");
}

/// Returns the bytes of a call. Those of every datagram differ from those of the others.
fn payload(call: usize) -> Vec<u8> {
    let byte = |at: usize| ((at as u32).wrapping_mul(0x9e37_79b1) >> 24) as u8;
    (call * CALL..(call + 1) * CALL).map(byte).collect()
}

/// Returns a sender in the west, and a receiver in the east to which it is connected.
fn sockets(hosts: &Hosts) -> (UdpSocket, UdpSocket) {
    let receiver = hosts.east.run(|| UdpSocket::bind((EAST, 0))).expect("a free port");
    receiver.set_read_timeout(Some(SOON)).expect("a timeout above zero");
    set_socket_recv_buffer_size_force(&receiver, RECEIVE_BYTES).expect("this is root");
    let sender = hosts.west.run(|| UdpSocket::bind((WEST, 0))).expect("a free port");
    sender.connect(receiver.local_addr().expect("it is bound")).expect("a route");
    send_in_superframes(&sender, DATAGRAM);
    (sender, receiver)
}

/// Sends the calls of a round, and checks that exactly their datagrams arrive, in any order.
fn exchange(sender: &UdpSocket, receiver: &UdpSocket, round: usize) {
    let calls: Vec<Vec<u8>> = (round * CALLS..(round + 1) * CALLS).map(payload).collect();
    for call in &calls {
        assert_eq!(sender.send(call).expect("the kernel takes a superframe"), CALL);
    }
    let mut sent: Vec<&[u8]> = calls.iter().flat_map(|call| call.chunks(DATAGRAM)).collect();
    let mut received: Vec<Vec<u8>> = Vec::new();
    while received.len() < sent.len() {
        let mut bytes = vec![0; 1 << 16];
        let got = receiver.recv(&mut bytes);
        let n = got.unwrap_or_else(|e| panic!("{} of {}: {e}", received.len(), sent.len()));
        bytes.truncate(n);
        received.push(bytes);
    }
    sent.sort_unstable();
    received.sort_unstable();
    for (got, sent) in received.iter().zip(&sent) {
        let same = got == sent;
        assert!(same, "round {round}: {} bytes, other than the {} sent", got.len(), sent.len());
    }
}

/// Sends superframes of UDP across a join of these two ports; returns the report, and the number of
/// packets in which the eastern kernel received [`DATAGRAMS`].
fn carry(west: &str, east: &str) -> Result<(Report, u64), String> {
    if kernel::version() < Some((6, 2)) {
        return Err("before Linux 6.2 a packet socket gets no superframes of UDP".into());
    }
    let hosts = Hosts::new()?;
    let forward = hosts.join(west, east)?;
    let (sender, receiver) = sockets(&hosts);
    let before = hosts.east.count("IpInReceives");
    (0..ROUNDS).for_each(|round| exchange(&sender, &receiver, round));
    let packets = hosts.east.count("IpInReceives") - before;
    assert_eq!(hosts.east.count("UdpInDatagrams"), DATAGRAMS);
    assert_no_errors(&hosts.east);
    Ok((forward.interrupt(), packets))
}

#[test]
fn superframes_of_udp_pass_whole_from_packet_to_packet() {
    let (report, packets) = or_skip!(carry("packet:w0", "packet:e0"));
    assert!(packets < DATAGRAMS / 2, "{packets} packets of {DATAGRAMS} datagrams: {report:?}");
}

#[test]
fn superframes_of_udp_are_cut_at_their_boundaries_from_packet_to_xdp() {
    let (report, _) = or_skip!(carry("packet:w0", "xdp:e0"));
    assert!(report.ledger("created") >= DATAGRAMS, "some were not cut: {report:?}");
}

#[test]
fn superframes_that_fq_codel_marks_are_marked_and_right_at_the_receiver() {
    let hosts = or_skip!(Hosts::new());
    for host in [&hosts.west, &hosts.east] {
        or_skip!(host.set("net/ipv4/tcp_ecn", "1"));
    }
    // Reno fills a queue until it sees a loss or a mark, and every kernel has it.
    or_skip!(hosts.west.set("net/ipv4/tcp_congestion_control", "reno"));
    let east = "packet:e0,shape=20Mbit,qdisc=fq_codel";
    let forward = or_skip!(hosts.join("packet:w0", east));
    transfer(&hosts.west, &hosts.east, EAST, 2_000_000);
    let report = forward.interrupt();
    let (packets, bytes) = (report.port(0, "rx", "packets"), report.port(0, "rx", "bytes"));
    assert!(bytes > 1514 * packets, "no superframes: {report:?}");
    let marked = report.0["ports"][1]["qdisc"]["marked"].as_u64().expect("a count of marks");
    assert!(marked > 0, "{report:?}");
    // The kernel counts a superframe as its segments.
    let seen = hosts.east.count("IpExtInCEPkts");
    assert!(seen >= marked, "{marked} packets marked, {seen} seen: {report:?}");
    assert_no_errors(&hosts.east);
}
