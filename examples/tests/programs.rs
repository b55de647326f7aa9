//! Tests the examples that read and write packets' headers against common tools. The peers are
//! kernels with default offloads: a packet to a port of this machine has a partial checksum.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use linerate::{Port, pcap};
use linerate_tests::capture::{Folder, Pcap};
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::{EAST, Hosts, WEST, wait_for_carrier};
use linerate_tests::traffic::{curl, ping, serve_http};
use linerate_tests::wait::{SOON, until, until_true};
use linerate_tests::{available, example, installed, or_skip, scenario};

/// An address that no host has: only a program answers for it.
const NO_HOST: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 9);
const NO_HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);
/// Longest time that a program may take to end on a busy machine.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn dig_is_answered_over_packet() {
    asked_by_dig("packet:w0");
}

#[test]
fn dig_is_answered_over_xdp() {
    asked_by_dig("xdp:w0,udp=53");
}

#[test]
fn dig_is_answered_over_tap() {
    asked_by_dig("tap:t0,up");
}

fn asked_by_dig(text: &str) {
    or_skip!(installed("dig"));
    or_skip!(installed("ethtool"));
    let hosts = or_skip!(Hosts::new());
    // Otherwise a veth accepts any checksum, as one that is still to be completed.
    without_checksums(&hosts.middle, "w0");
    let dns = or_skip!(start(&hosts.middle, example!("dns"), &[text], &[text]));
    let (asker, name) = asker(&hosts, text);
    or_skip!(turn_ipv6_on(asker, name));
    for address in [NO_HOST.to_string(), NO_HOST_V6.to_string()] {
        asker.ip(&format!("neigh add {address} lladdr 02:00:00:00:00:09 dev {name}"));
    }
    for server in [NO_HOST.to_string(), NO_HOST_V6.to_string()] {
        for (kind, address) in [("A", "192.0.2.53\n"), ("AAAA", "2001:db8::53\n"), ("TXT", "")] {
            let mut dig = Command::new("dig");
            dig.args([&format!("@{server}"), "+short", "+time=5", "+tries=1", "a.example", kind]);
            let done = asker.start(dig).finish(LONG);
            assert_eq!(done.stdout, address, "{server} {kind}: {done:?}");
        }
    }
    assert_whole(dns);
}

#[test]
fn curl_is_answered_by_smoltcp_over_packet() {
    asked_by_curl("packet:w0");
}

#[test]
fn curl_is_answered_by_smoltcp_over_xdp() {
    asked_by_curl("xdp:w0,all");
}

fn asked_by_curl(text: &str) {
    or_skip!(installed("curl"));
    let hosts = or_skip!(Hosts::new());
    let server = or_skip!(start(
        &hosts.middle,
        example!("smoltcp"),
        &[text, &format!("{NO_HOST}/24")],
        &[text]
    ));
    for bytes in [22; 9].into_iter().chain([2_200_000]) {
        // A client that leaves without a request does not keep its socket; there are eight.
        hosts.west.run(|| drop(TcpStream::connect((NO_HOST, 80)).unwrap()));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*"]);
        curl.arg(format!("http://{NO_HOST}/{bytes}"));
        let done = hosts.west.start(curl).finish(LONG * 2);
        let lines = done.stdout.lines().filter(|line| *line == "smoltcp over linerate").count();
        assert!(done.code() == 0 && lines == bytes / 22, "{}: {lines}", done.stderr);
        assert_eq!(done.stdout.len(), bytes);
    }
    assert_whole(server);
}

#[test]
fn smoltcp_waits_for_a_request_that_comes_in_pieces_but_not_for_ever() {
    let hosts = or_skip!(Hosts::new());
    let (text, address) = ("packet:w0", format!("{NO_HOST}/24"));
    let server = or_skip!(start(&hosts.middle, example!("smoltcp"), &[text, &address], &[text]));
    let connect = || hosts.west.run(|| TcpStream::connect((NO_HOST, 80)));

    let mut client = connect().unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(b"GET /4").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    client.write_all(b"4 HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    assert!(reply.ends_with(&"smoltcp over linerate\n".repeat(2)), "{reply}");
    drop(client);

    // Clients that send no request keep the eight sockets for ten seconds.
    let silent = [(); 8].map(|()| until("a socket", SOON, || connect().ok()));
    until_true("a free socket", LONG * 2, || connect().is_ok());
    drop(silent);
    assert_whole(server);
}

#[test]
fn smoltcp_refuses_a_port_with_two_queues() {
    let hosts = or_skip!(Hosts::with_queues(2));
    or_skip!(available(hosts.middle.run(|| Port::open("xdp:w0").map(drop))));
    let address = format!("{NO_HOST}/24");
    let mut command = Command::new(example!("smoltcp"));
    command.args(["xdp:w0,all", &address]);
    let refused = hosts.middle.start(command).finish(LONG);
    assert_eq!(refused.code(), 1, "{refused:?}");
    assert!(refused.stderr.contains("queues=0,rss=even"), "{refused:?}");
    let text = "xdp:w0,all,queues=0";
    assert_whole(or_skip!(start(&hosts.middle, example!("smoltcp"), &[text, &address], &[text])));
}

#[test]
fn ping_is_answered_over_packet() {
    asked_by_ping("packet:w0");
}

#[test]
fn ping_is_answered_over_xdp() {
    asked_by_ping("xdp:w0");
}

#[test]
fn ping_is_answered_over_tap() {
    asked_by_ping("tap:t0,up");
}

#[test]
fn ping_is_answered_beside_a_host_that_answers_its_own() {
    const MIDDLE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 5);
    for driver in ["xdp", "packet"] {
        let hosts = or_skip!(Hosts::new());
        hosts.middle.ip(&format!("addr add {MIDDLE}/24 dev w0"));
        let text = format!("{driver}:w0,dst={NO_HOST}");
        // The program ends after 20 answers: pings to its address, and the ARP request before them.
        // Any other packet that it took would count too.
        let args = [&text, &NO_HOST.to_string(), &NO_HOST_V6.to_string(), "20"];
        let responder = or_skip!(start(&hosts.middle, example!("responder"), &args, &[&text]));
        or_skip!(ping(&hosts.west, MIDDLE, 56, 20));
        or_skip!(ping(&hosts.west, NO_HOST, 56, 20));
        assert_whole(responder);
    }
}

fn asked_by_ping(text: &str) {
    let hosts = or_skip!(Hosts::new());
    let args = [text, &NO_HOST.to_string(), &NO_HOST_V6.to_string(), "70"];
    let responder = or_skip!(start(&hosts.middle, example!("responder"), &args, &[text]));
    let (asker, name) = asker(&hosts, text);
    or_skip!(turn_ipv6_on(asker, name));
    for size in [0, 56, 1400] {
        or_skip!(ping(asker, NO_HOST, size, 20));
    }
    or_skip!(ping(asker, NO_HOST_V6, 56, 10));
    assert_whole(responder);
}

#[test]
fn a_host_behind_one_address_is_served_over_packet() {
    hidden("packet:w0", "packet:e0");
}

#[test]
fn a_host_behind_one_address_is_served_over_xdp() {
    hidden("xdp:w0", "xdp:e0");
}

#[test]
fn a_host_behind_one_address_is_served_from_packet_to_xdp() {
    hidden("packet:w0", "xdp:e0");
}

/// Checks a program that hides west's address from the network of east.
fn hidden(inside: &str, outside: &str) {
    let hosts = or_skip!(Hosts::new());
    let args = [inside, outside, "10.7.0.254"];
    let nat = or_skip!(start(&hosts.middle, example!("nat"), &args, &[inside, outside]));
    let _server = serve_http(&hosts.east, EAST, "east");
    let line = or_skip!(curl(&hosts.west, WEST, EAST));
    assert!(line.starts_with("east serves 10.7.0.254:"), "{line}");
    or_skip!(scenario::tcp(&hosts.west, &hosts.east, EAST, "1"));
    or_skip!(scenario::datagrams(&hosts.west, &hosts.east, EAST, "1"));
    assert_whole(nat);
}

#[test]
fn clients_are_spread_over_two_servers_over_packet() {
    balanced(["packet:w0", "packet:b0"], ["packet:d0", "packet:e0"]);
}

#[test]
fn clients_are_spread_over_two_servers_over_xdp() {
    balanced(["xdp:w0", "xdp:b0"], ["xdp:d0", "xdp:e0"]);
}

#[test]
fn clients_are_spread_over_two_servers_into_an_xdp_tunnel() {
    balanced(["packet:w0", "xdp:b0"], ["xdp:d0", "packet:e0"]);
}

#[test]
fn clients_are_spread_over_two_servers_from_a_packet_tunnel_to_xdp() {
    balanced(["packet:w0", "packet:b0"], ["xdp:d0", "xdp:e0"]);
}

/// ```text
///  west ── w0 (middle) b0 ════ d0 (far) e0 ── eth0 (east) ── mv0 (second)
/// ```
fn balanced(near: [&str; 2], far: [&str; 2]) {
    const ADDRESS: &str = "10.7.0.100";
    let address: Ipv4Addr = ADDRESS.parse().unwrap();
    let hosts = or_skip!(Hosts::new());
    let (tunnel, second) = (or_skip!(Netns::new()), or_skip!(Netns::new()));
    hosts.middle.ip(&format!("link set dev e0 netns {}", tunnel.path()));
    // The MTU leaves room for one more header.
    let peer = format!("type veth peer name d0 mtu 1600 netns {}", tunnel.path());
    hosts.middle.ip(&format!("link add dev b0 mtu 1600 {peer}"));
    hosts.east.ip("link set dev eth0 address 02:00:00:00:01:01");
    let macvlan = "name mv0 address 02:00:00:00:01:02 type macvlan mode bridge";
    or_skip!(hosts.east.try_ip(&format!("link add link eth0 netns {} {macvlan}", second.path())));
    second.ip("addr add 10.7.0.3/24 dev mv0");
    for (netns, name) in [(&tunnel, "e0"), (&tunnel, "d0"), (&hosts.middle, "b0"), (&second, "mv0")]
    {
        netns.ip(&format!("link set dev {name} up"));
    }
    for (netns, name) in [(&tunnel, "e0"), (&tunnel, "d0"), (&hosts.middle, "b0"), (&second, "mv0")]
    {
        wait_for_carrier(netns, name);
    }
    hosts.west.ip(&format!("neigh add {ADDRESS} lladdr 02:00:00:00:01:00 dev eth0"));

    let servers = ["02:00:00:00:01:01=10.9.0.1", "02:00:00:00:01:02=10.9.0.2"];
    let args = [&near[..], &[ADDRESS], &servers].concat();
    let balancer = or_skip!(start(&hosts.middle, example!("balancer"), &args, &near));
    let args = [&far[..], &["10.9.0.1", "10.9.0.2"]].concat();
    let decap = or_skip!(start(&tunnel, example!("decap"), &args, &far));

    let mut served = BTreeMap::new();
    let _servers = [(&hosts.east, "east"), (&second, "second")].map(|(netns, name)| {
        netns.ip(&format!("addr add {ADDRESS}/32 dev lo"));
        serve_http(netns, address, name)
    });
    for last in 20..28 {
        let client = Ipv4Addr::new(10, 7, 0, last);
        hosts.west.ip(&format!("addr add {client}/24 dev eth0"));
        let line = or_skip!(curl(&hosts.west, client, address));
        let (name, asked) = line.split_once(" serves ").unwrap();
        assert!(asked.starts_with(&format!("{client}:")), "{line}");
        served.insert(name.to_owned(), client);
    }
    assert_eq!(served.len(), 2, "{served:?}");
    let (name, client) = served.pop_first().unwrap();
    assert_eq!(name, "east");
    hosts.west.ip(&format!("route add {ADDRESS}/32 dev eth0 src {client}"));
    or_skip!(scenario::tcp(&hosts.west, &hosts.east, address, "1"));
    or_skip!(scenario::datagrams(&hosts.west, &hosts.east, address, "1"));
    assert_whole(balancer);
    assert_whole(decap);
}

#[test]
fn kernel_at_the_other_end_of_a_vxlan_tunnel_is_reached_over_packet() {
    tunnelled("packet:w0", "packet:e0,udp=4789", &[]);
}

#[test]
fn kernel_at_the_other_end_of_a_vxlan_tunnel_at_port_8472_is_reached_over_xdp() {
    tunnelled("xdp:w0,all", "xdp:e0,udp=8472", &["8472"]);
}

/// Pings, and sends TCP and UDP both ways, from a host in front of the tunnel to the kernel's own
/// tunnel behind it.
fn tunnelled(inside: &str, outside: &str, udp: &[&str]) {
    const MACS: [&str; 2] = ["02:00:00:00:02:01", "02:00:00:00:02:02"];
    let east: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
    let hosts = or_skip!(Hosts::new());
    hosts.west.ip("link set dev eth0 mtu 1450");
    hosts.west.ip("addr add 10.8.0.1/24 dev eth0");
    hosts.middle.ip(&format!("link set dev e0 address {}", MACS[0]));
    hosts.east.ip(&format!("link set dev eth0 address {}", MACS[1]));
    hosts.east.ip("addr add 192.0.2.2/24 dev eth0");
    hosts.east.ip(&format!("neigh add 192.0.2.1 lladdr {} dev eth0", MACS[0]));
    let tunnel = "name tun0 type vxlan id 7 local 192.0.2.2 remote 192.0.2.1 dev eth0 dstport";
    let udp_port = udp.first().unwrap_or(&"4789");
    or_skip!(hosts.east.try_ip(&format!("link add {tunnel} {udp_port}")));
    hosts.east.ip(&format!("addr add {east}/24 dev tun0"));
    hosts.east.ip("link set dev tun0 up");
    let args = [inside, outside, "192.0.2.1", MACS[0], "192.0.2.2", MACS[1], "7"];
    let args = [&args[..], udp].concat();
    let ports = [inside, outside];
    let program = or_skip!(start(&hosts.middle, example!("vxlan"), &args, &ports));
    for size in [0, 1000, 1422] {
        or_skip!(ping(&hosts.west, east, size, 20));
    }
    or_skip!(scenario::tcp(&hosts.west, &hosts.east, east, "1"));
    or_skip!(scenario::datagrams(&hosts.west, &hosts.east, east, "1"));
    assert_whole(program);
}

#[test]
fn tunnels_start_and_end_at_their_own_port_and_address_only() {
    let folder = Folder::new();
    let packets = [[10, 9, 0, 1], [10, 9, 0, 2]].map(in_tunnel);
    let capture = packets.iter().fold(Pcap::new(), |pcap, packet| pcap.record(1, packet));
    let read = format!("pcap:{},read", folder.file("in.pcap", &capture.0));
    let written = folder.path("out.pcapng");
    let write = format!("pcap:{written},write");
    let (read, write, end) = (read.as_str(), write.as_str(), "10.9.0.1");
    for (program, args, first) in [
        (example!("decap"), &[read, write, end][..], &datagram(0)),
        (example!("decap"), &[write, read, end], &packets[0]),
        (example!("balancer"), &[write, read, end, "02:00:00:00:01:01=10.9.9.9"], &packets[0]),
    ] {
        let mut command = Command::new(program);
        command.args(args);
        let mut process = Process::start(command, |mut command| command.spawn());
        until_true("the end of the capture", LONG, || !process.runs());
        assert_whole(process);
        let frames = pcap::read_all(&written).unwrap();
        let found: Vec<&[u8]> = frames.iter().map(|frame| &frame.bytes[..]).collect();
        assert_eq!(found, [&first[..], &packets[1][..]], "{program} {args:?}");
    }
}

/// Returns [`datagram`] 0 in a tunnel to the address `end`.
fn in_tunnel(end: [u8; 4]) -> Vec<u8> {
    let inside = datagram(0);
    let (ethernet, inside) = inside.split_at(14);
    let mut frame = ethernet.to_vec();
    frame.extend([0x45, 0, 0, 52, 0, 0, 0, 0, 64, 4, 0, 0, 10, 7, 0, 100]);
    frame.extend(end);
    frame.extend(inside);
    frame
}

#[test]
fn a_capture_is_split_by_flow_without_a_loss() {
    let folder = Folder::new();
    let frames: Vec<_> = (0..20_000).map(datagram).collect();
    let all = frames.iter().zip(1..).fold(Pcap::new(), |pcap, (frame, i)| pcap.record(i, frame));
    let all = folder.file("all.pcap", &all.0);
    let parts = ["one.pcapng", "other.pcapng"].map(|name| folder.path(name));
    let mut splitter = Command::new(example!("splitter"));
    splitter.arg(format!("pcap:{all}")).args(&parts);
    let splitter = Process::start(splitter, |mut command| command.spawn());
    let ledger = assert_whole(splitter);
    assert!(ledger.contains("received 20000 "), "{ledger}");

    let parts = parts.map(|path| pcap::read_all(path).unwrap());
    let lens = parts.each_ref().map(Vec::len);
    assert!(lens.iter().sum::<usize>() == 20_000 && lens.iter().all(|len| *len > 2000), "{lens:?}");
    let mut seen = BTreeMap::new();
    for (part, frames) in parts.iter().enumerate() {
        for frame in frames {
            let number = u32::from_be_bytes(frame.bytes[42..46].try_into().unwrap());
            assert_eq!(frame.bytes, datagram(number));
            let before = seen.insert(number % 64, (part, number));
            assert!(before.is_none_or(|before| before < (part, number) && before.0 == part));
        }
    }
    assert_eq!(seen.len(), 64);
}

/// Returns a datagram of one of 64 flows, in one of both directions; it carries `number`.
fn datagram(number: u32) -> Vec<u8> {
    let client = [10, 0, 0, (number % 64) as u8];
    let (mut ends, mut ports) = ([client, [10, 9, 9, 9]], [[0x9c, 0x40], [0, 53]]);
    if number / 64 % 2 == 1 {
        ends.reverse();
        ports.reverse();
    }
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend(ends.concat());
    frame.extend(ports.concat());
    frame.extend([0, 12, 0, 0]);
    frame.extend(number.to_be_bytes());
    frame
}

/// Returns the host that can reach a port, and the interface's name; the interface of a tap is in
/// the program's namespace.
fn asker<'a>(hosts: &'a Hosts, text: &str) -> (&'a Netns, &'static str) {
    if !text.starts_with("tap:") {
        return (&hosts.west, "eth0");
    }
    hosts.middle.ip("addr add 10.7.0.5/24 dev t0");
    (&hosts.middle, "t0")
}

/// Starts a program and waits until its ports are open; returns the reason to skip if a port cannot
/// be opened.
fn start(netns: &Netns, program: &str, args: &[&str], ports: &[&str]) -> Result<Process, String> {
    for text in ports {
        available(netns.run(|| Port::open(text).map(drop)))?;
    }
    let mut command = Command::new(program);
    command.args(args);
    let process = netns.start(command);
    until_true("the ports", SOON, || process.stderr().ends_with('\n'));
    Ok(process)
}

/// Gives the interface an IPv6 address; IPv6 is off in a test's namespace by default.
fn turn_ipv6_on(netns: &Netns, name: &str) -> Result<(), String> {
    let switch = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    netns.run(|| fs::write(switch, "0")).map_err(|e| e.to_string())?;
    netns.try_ip(&format!("addr add fd00::1/64 nodad dev {name}")).map(drop)
}

/// Turns off the checksum offload of the interface by `ethtool`, so that it sends no partial
/// checksums.
fn without_checksums(netns: &Netns, name: &str) {
    let mut ethtool = Command::new("ethtool");
    ethtool.args(["-K", name, "tx", "off"]);
    assert_eq!(netns.start(ethtool).finish(SOON).code(), 0);
}

/// Ends a program's input, and returns its ledger, which must balance with nothing in flight.
fn assert_whole(program: Process) -> String {
    let done = program.finish(LONG);
    let ledger = done.stdout.lines().last().unwrap_or_default().to_owned();
    assert!(done.code() == 0 && ledger.ends_with("+ in flight 0   OK"), "{done:?}");
    ledger
}
