//! `linerate gen --to`: a kernel's socket receives the datagrams complete, in order, with correct
//! checksums.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use linerate::wire::stamp;
use linerate_tests::command::linerate;
use linerate_tests::netns::Netns;
use linerate_tests::process::Finished;
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until_true};
use linerate_tests::{or_skip, possible};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// Fewer than the kernel queues for a CPU (`netdev_max_backlog`), so that none is lost there.
const COUNT: usize = 900;
const FLOWS: usize = 3;
/// Room for all of them, as the kernel counts it.
const RECEIVE_BYTES: usize = 32 << 20;

/// Returns two hosts; the middle has addresses on w0 with which it reaches the western host.
fn hosts() -> Result<Hosts, String> {
    let hosts = Hosts::new()?;
    hosts.middle.ip("addr add 10.7.0.9/24 dev w0");
    for (netns, name, address) in [(&hosts.middle, "w0", 9), (&hosts.west, "eth0", 1)] {
        let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        match netns.run(|| fs::write(&path, "0")) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ReadOnlyFilesystem) => {
                return Err(format!("no IPv6: {path}: {e}"));
            }
            done => done.expect("no reason to skip"),
        }
        netns.ip(&format!("-6 addr add fd00::{address}/64 dev {name} nodad"));
    }
    Ok(hosts)
}

fn generate(from: &Netns, args: &str) -> Finished {
    let mut command = Command::new(linerate());
    command.arg("gen").args(args.split(' '));
    from.start(command).finish(SOON * 3)
}

/// Returns the number of datagrams that the kernel has dropped for a wrong checksum.
fn checksum_errors(netns: &Netns) -> u64 {
    let read = |file| netns.run(|| fs::read_to_string(file)).unwrap_or_default();
    let v6 = read("/proc/thread-self/net/snmp6");
    let v6 = v6.lines().find_map(|line| line.strip_prefix("Udp6InCsumErrors"));
    let v4 = read("/proc/thread-self/net/snmp");
    let mut v4 = v4.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (v4.next().unwrap(), v4.next().unwrap());
    let mut v4 = names.split(' ').zip(values.split(' '));
    let v4 = v4.find(|(name, _)| *name == "InCsumErrors").unwrap().1;
    v4.parse::<u64>().unwrap() + v6.unwrap().trim().parse::<u64>().unwrap()
}

#[test]
fn a_receiver_that_answers_no_arp_is_an_error_that_says_so() {
    let hosts = or_skip!(Hosts::new());
    hosts.middle.ip("addr add 10.7.0.9/24 dev w0");
    let done = generate(&hosts.middle, "packet:w0 --to 10.7.0.77:7777 --count 1");
    assert_eq!(done.code(), 1, "{done:?}");
    let told = "cannot find the MAC address of 10.7.0.77, the next hop to 10.7.0.77 by w0";
    assert!(done.stderr.contains(told), "{done:?}");
    for part in ["no answer to ARP on the link", "ping 10.7.0.77", "--mac MAC"] {
        assert!(done.stderr.contains(part), "{part}: {done:?}");
    }
}

#[test]
fn a_kernels_socket_receives_every_datagram_whole_and_in_order() {
    let hosts = or_skip!(hosts());
    let sizes = [60, 590, 60, 60, 590, 60, 1514, 60, 590, 60, 60, 590];
    for port in ["packet:w0", "xdp:w0"] {
        for (to, headers, shortest) in [("10.7.0.1:7777", 42, 70), ("[fd00::1]:7777", 62, 90)] {
            let socket = match hosts.west.run(|| UdpSocket::bind(to)) {
                Err(e) if to.starts_with('[') && e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                    eprintln!("skipped in part: no IPv6: {e}");
                    continue;
                }
                bound => bound.unwrap(),
            };
            set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES).unwrap();
            socket.set_read_timeout(Some(SOON)).unwrap();
            let words = format!(
                "{port} --to {to} --rate 50kpps --count {COUNT} --size imix --flows {FLOWS}"
            );
            let done = match possible(generate(&hosts.middle, &words)) {
                Err(why) if port.starts_with("xdp") => {
                    eprintln!("skipped in part: {why}");
                    continue;
                }
                done => done.unwrap(),
            };
            assert!(done.code() == 0 && done.stdout.contains("OK"), "{words}: {done:?}");

            let (mut bytes, mut froms) = ([0; 2048], HashMap::<u32, SocketAddr>::new());
            for i in 0..COUNT {
                let (len, from) =
                    socket.recv_from(&mut bytes).unwrap_or_else(|e| panic!("{words}: {i}: {e}"));
                assert_eq!(len, sizes[i % 12].max(shortest) - headers, "{words}: {i}");
                let stamp = stamp::read_payload(&bytes[..len]).unwrap();
                assert_eq!((stamp.flow as usize, stamp.seq as usize), (i % FLOWS, i / FLOWS));
                assert_eq!(*froms.entry(stamp.flow).or_insert(from), from);
            }
            let mut ports: Vec<u16> = froms.values().map(SocketAddr::port).collect();
            ports.sort_unstable();
            assert_eq!(ports, [49_152, 49_153, 49_154]);
            assert_eq!(checksum_errors(&hosts.west), 0, "{words}");
        }
    }
}

#[test]
fn a_sink_at_the_other_end_verifies_datagrams() {
    let hosts = or_skip!(hosts());
    let mut sink = Command::new(linerate());
    sink.args(["forward", "packet:eth0,udp=7777", "sink:", "--json", "--count", "900"]);
    let sink = hosts.west.start(sink);
    until_true("its socket", SOON, || hosts.west.packet_sockets("eth0") > 0);
    let words = "packet:w0 --to 10.7.0.1:7777 --rate 50kpps --count 900 --from 10.7.0.9:5000";
    let done = generate(&hosts.middle, words);
    assert!(done.code() == 0, "{done:?}");
    let done = sink.finish(SOON);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(done.code(), 0, "{done:?}");
    assert!(report.to_string().contains("\"corrupted\":0"), "{report}");
    assert!(report.to_string().contains("\"foreign\":0"), "{report}");
}

/// Answers datagrams to 7776 with the same bytes to 7777 of the sender's host, each tenth with a
/// wrong last byte.
fn relay_with_damage(socket: &UdpSocket, count: usize) {
    let mut bytes = [0; 2048];
    for n in 0..count {
        let (len, from) = socket.recv_from(&mut bytes).expect("the generator sends");
        if n % 10 == 0 {
            bytes[len - 1] ^= 1;
        }
        socket.send_to(&bytes[..len], SocketAddr::new(from.ip(), 7777)).expect("room to send");
    }
}

#[test]
fn damaged_datagrams_of_another_process_s_generator_fail_the_sink() {
    let hosts = or_skip!(hosts());
    let mut sink = Command::new(linerate());
    sink.args(["forward", "packet:w0,udp=7777", "sink:", "--json", "--count", "900"]);
    let sink = hosts.middle.start(sink);
    until_true("its socket", SOON, || hosts.middle.packet_sockets("w0") > 0);
    let socket = hosts.west.run(|| UdpSocket::bind("10.7.0.1:7776")).unwrap();
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let relay = hosts.west.spawn(move || relay_with_damage(&socket, COUNT));
    let words = "packet:w0 --to 10.7.0.1:7776 --rate 50kpps --count 900 --from 10.7.0.9:5000";
    let done = generate(&hosts.middle, words);
    assert!(done.code() == 0, "{done:?}");
    relay.join().unwrap();
    let done = sink.finish(SOON);
    assert_eq!(done.code(), 3, "{done:?}");
    let report: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(report["error"]["code"], "E-VERIFY", "{report}");
    assert_eq!(report["error"]["why"], "90 corrupted, beside 810 whole ones", "{report}");
}

#[test]
fn a_receiver_that_cannot_be_reached_is_said_with_what_to_do() {
    let hosts = or_skip!(hosts());
    hosts.middle.run(|| {
        for (file, value) in [("mcast_solicit", "1"), ("retrans_time_ms", "20")] {
            fs::write(format!("/proc/sys/net/ipv4/neigh/w0/{file}"), value).unwrap();
        }
    });
    for (to, says) in [
        ("10.7.0.77:7777", "no answer to ARP on the link"),
        ("10.7.0.9:7777", "belongs to this machine"),
        ("[2001:db8::1]:7777", "unreachable"),
        ("10.7.0.1:7777 --size 1515", "frames of up to 1514 bytes"),
    ] {
        let done = generate(&hosts.middle, &format!("packet:w0 --count 1 --to {to}"));
        assert!(matches!(done.code(), 1 | 2) && done.stderr.contains(says), "{to}: {done:?}");
        assert!(done.stderr.contains("fix"), "{to}: {done:?}");
    }
    hosts.middle.ip("link set dev w0 down");
    let done = generate(&hosts.middle, "packet:w0 --count 1 --to 10.7.0.1:7777");
    assert!(done.code() == 1 && done.stderr.contains("ip link set dev w0 up"), "{done:?}");
    let done = generate(&hosts.middle, "sink: --count 1 --to 10.7.0.1:7777");
    assert!(done.code() == 2 && done.stderr.contains("--mac MAC and --from"), "{done:?}");
}
