//! Tests of a port that takes some UDP or TCP ports from its host, which keeps the others, with a
//! client in another network namespace.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use linerate_skb::{Batch, Code, Offload};
use linerate_sys::netns::Netns;
use linerate_wire::checksum;

use crate::host::testing::*;
use crate::{Port, Queue};

/// Sets up a host with 198.18.0.2 on v0 in this namespace, and a client with 198.18.0.1 on v1 in
/// its own namespace.
fn host_and_client() -> Netns {
    let client = Netns::new().unwrap();
    let path = client.path();
    ip(&format!("link add v0 type veth peer name v1 netns {path}"));
    ip("link set v0 address 02:00:00:00:00:02 up");
    ip("addr add 198.18.0.2/24 dev v0");
    client
        .run(|| {
            ip("link set v1 address 02:00:00:00:00:01 up");
            ip("addr add 198.18.0.1/24 dev v1");
            wait_running("v1");
        })
        .unwrap();
    wait_running("v0");
    client
}

fn address(port: u16) -> SocketAddr {
    ([198, 18, 0, 2], port).into()
}

/// Returns a socket of the client for datagrams to `port` of the host.
fn datagrams(client: &Netns, port: u16) -> UdpSocket {
    let socket = client.run(|| UdpSocket::bind(("198.18.0.1", 0)).unwrap()).unwrap();
    socket.connect(address(port)).unwrap();
    socket
}

/// Returns the reply that the client gets: bytes, an error, or `None` if none arrives within
/// `patience`.
fn answer(socket: &UdpSocket, patience: Duration) -> Option<Result<Vec<u8>, ErrorKind>> {
    socket.set_read_timeout(Some(patience)).unwrap();
    let mut bytes = vec![0; 100];
    match socket.recv(&mut bytes) {
        Ok(n) => {
            bytes.truncate(n);
            Some(Ok(bytes))
        }
        Err(e) if e.kind() == ErrorKind::WouldBlock => None,
        Err(e) => Some(Err(e.kind())),
    }
}

const REFUSED: Option<Result<Vec<u8>, ErrorKind>> = Some(Err(ErrorKind::ConnectionRefused));

/// Sends each datagram back to its sender; its checksum, complete or partial, stays correct.
fn echo(queue: &mut Queue, mut batch: Batch) {
    for skb in batch.iter_mut() {
        let data = skb.data_mut();
        for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            let (front, back) = data.split_at_mut(b);
            front[a..a + len].swap_with_slice(&mut back[..len]);
        }
    }
    assert_eq!(queue.xmit(&mut batch), 1);
}

/// Returns the ports for which the host has sent "unreachable" to the client, as seen in `capture`.
fn unreachable(capture: &mut Queue) -> Vec<u16> {
    let mut ports = Vec::new();
    let mut batch = Batch::with_capacity(64);
    while capture.wait(Some(Duration::from_millis(50))).unwrap() {
        capture.rx(&mut batch);
        for data in batch.iter().map(|skb| skb.data()) {
            let icmp = data.len() > 66 && data[12..14] == [8, 0] && data[23] == 1;
            if icmp && data[34..36] == [3, 3] {
                ports.push(u16::from_be_bytes([data[64], data[65]]));
            }
        }
        batch.clear();
    }
    ports
}

#[test]
fn datagrams_to_its_port_arrive_and_all_else_is_the_hosts() {
    in_netns(|| {
        let client = host_and_client();
        let (ours, theirs) = (datagrams(&client, 7777), datagrams(&client, 7778));
        ours.send(b"nobody").unwrap();
        assert_eq!(answer(&ours, LONG), REFUSED);

        let mut capture = client.run(|| queue("packet:v1")).unwrap();
        let mut port = queue("packet:v0,udp=7777");
        theirs.send(b"theirs").unwrap();
        assert_eq!(answer(&theirs, LONG), REFUSED);
        // The datagram is sent in two fragments.
        ours.send(&[1; 2000]).unwrap();
        client.run(|| assert_answers_ping("198.18.0.2")).unwrap();
        ours.send(b"ours").unwrap();
        let got = receive_if(&mut port, 1, |_| true);
        assert_eq!(got.iter().next().unwrap().data()[42..46], *b"ours");
        echo(&mut port, got);
        assert_eq!(answer(&ours, LONG), Some(Ok(b"ours".to_vec())));
        assert_eq!(port.counts().rx_packets, 1);
        assert_eq!(unreachable(&mut capture), [7778]);

        drop(port);
        eventually(|| {
            ours.send(b"nobody").unwrap();
            answer(&ours, Duration::from_millis(100)) == REFUSED
        });
    });
}

#[test]
fn host_leaves_the_datagrams_of_a_member_of_a_bridge_to_its_port() {
    in_netns(|| {
        let client = host_and_client();
        // The host's stack receives the packets of v0 as those of the bridge.
        ip("addr del 198.18.0.2/24 dev v0");
        ip("link add br0 address 02:00:00:00:00:02 type bridge");
        ip("link add w0 type veth peer name w1");
        for change in ["v0 master br0", "w0 master br0 up", "w1 up", "br0 up"] {
            ip(&format!("link set {change}"));
        }
        ip("addr add 198.18.0.2/24 dev br0");
        let (ours, theirs) = (datagrams(&client, 7777), datagrams(&client, 7778));
        ours.send(b"nobody").unwrap();
        assert_eq!(answer(&ours, LONG), REFUSED);

        let mut capture = client.run(|| queue("packet:v1")).unwrap();
        let mut port = queue("packet:v0,udp=7777");
        let _other_member = queue("packet:w0,udp=7777");
        ours.send(b"ours").unwrap();
        theirs.send(b"theirs").unwrap();
        assert_eq!(answer(&theirs, LONG), REFUSED);
        assert_eq!(receive_if(&mut port, 1, |_| true).len(), 1);
        assert_eq!(unreachable(&mut capture), [7778]);
    });
}

#[test]
fn echo_requests_and_arp_reach_the_ports_that_ask_for_them_and_nothing_else_does() {
    in_netns(|| {
        let client = host_and_client();
        let port = Port::open("packet:v0,icmp,queues=2").unwrap();
        assert!(port.obtained().to_string().contains("only icmp, which the host receives, too"));
        let mut icmp = port.into_queues();
        let (mut arp, mut to) = (queue("packet:v0,arp"), queue("packet:v0,dst=198.18.0.9"));
        // The host answers the datagram after it has resolved the sender's address.
        datagrams(&client, 7777).send(b"neither").unwrap();
        let other = client.run(|| UdpSocket::bind(("198.18.0.1", 0)).unwrap()).unwrap();
        // Nobody answers the neighbour request that precedes the datagram.
        other.send_to(b"question", ("198.18.0.9", 7777)).unwrap();
        let mut raw = client.run(|| queue("packet:v1")).unwrap();
        let [mut ping, mut error] = [ipv4(1, 20), ipv4(1, 20)];
        (ping[34], error[34]) = (8, 3);
        send(&mut raw, &[ipv4(17, 20), error, ping], Offload::NONE);

        let mut batch = Batch::with_capacity(64);
        let is_question = |data: &[u8]| data[12..14] == [8, 6] && data[38..42] == [198, 18, 0, 9];
        let (mut asked, mut seen, mut echoes) = (false, false, 0);
        eventually(|| {
            to.rx(&mut batch);
            asked |= !batch.is_empty();
            assert!(batch.iter().all(|skb| is_question(skb.data())));
            batch.clear();
            arp.rx(&mut batch);
            seen |= batch.iter().any(|skb| is_question(skb.data()));
            assert!(batch.iter().all(|skb| skb.data()[12..14] == [8, 6]));
            batch.clear();
            for queue in &mut icmp {
                queue.rx(&mut batch);
            }
            echoes += batch.len();
            assert!(batch.iter().all(|skb| skb.data()[12..14] == [8, 0] && skb.data()[34] == 8));
            batch.clear();
            asked && seen && echoes == 1
        });
    });
}

#[test]
fn several_queues_share_the_reserved_port_until_the_last_is_closed() {
    in_netns(|| {
        let client = host_and_client();
        let ours = datagrams(&client, 7777);
        let mut queues = Port::open("packet:v0,udp=7776+7777,queues=2").unwrap().into_queues();
        drop(queues.remove(0));
        ours.send(b"ours").unwrap();
        let got = receive_if(&mut queues[0], 1, |_| true);
        echo(&mut queues[0], got);
        assert_eq!(answer(&ours, LONG), Some(Ok(b"ours".to_vec())));
        let e = Port::open("packet:v0,udp=7777").unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.why.contains("UDP port 7777") && e.fix.contains("ss -ulpn"), "{e}");
        drop(queues);
        eventually(|| Port::open("packet:v0,udp=7777").is_ok());
    });
}

#[test]
fn a_connection_that_the_port_accepts_is_not_reset_by_the_host() {
    in_netns(|| {
        let client = host_and_client();
        let connect = |patience| move || TcpStream::connect_timeout(&address(7777), patience);
        let unanswered = Duration::from_millis(100);
        let refused = client.run(connect(LONG)).unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);

        let mut port = queue("packet:v0,tcp=7777");
        let silent = client.run(connect(unanswered)).unwrap().unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        let ours = client.spawn("client", connect(LONG)).unwrap();
        // Use the last SYN that arrives; the earlier ones belong to an attempt that was given up.
        while !ours.is_finished() {
            let mut batch = Batch::with_capacity(64);
            port.wait(Some(Duration::from_millis(10))).unwrap();
            port.rx(&mut batch);
            for syn in batch.iter().filter(|skb| skb.data()[47] == 2) {
                let reply = syn_ack(syn.data());
                send(&mut port, &[reply], TCP_PARTIAL);
            }
        }
        let mut stream = ours.join().unwrap().unwrap().unwrap();
        stream.write_all(b"hello").unwrap();
        let got = receive_if(&mut port, 1, |data| data.ends_with(b"hello"));
        assert_eq!(got.iter().next().unwrap().data()[36..38], 7777u16.to_be_bytes());
        // The segments also reach the host's stack, which would have reset the connection by now.
        stream.set_read_timeout(Some(unanswered)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);

        let e = Port::open("packet:v0,tcp=7777").unwrap_err();
        assert!(e.code == Code::Busy && e.fix.contains("ss -tapn"), "{e}");
        drop(port);
        eventually(|| {
            let again = client.run(connect(unanswered)).unwrap();
            again.unwrap_err().kind() == ErrorKind::ConnectionRefused
        });
    });
}

/// Offload header of a TCP packet over IPv4 with a partial checksum.
const TCP_PARTIAL: Offload = Offload { flags: 1, csum_start: 34, csum_offset: 16, ..Offload::NONE };

/// Returns the SYN-ACK that answers a SYN.
fn syn_ack(syn: &[u8]) -> Vec<u8> {
    let mut f = Vec::with_capacity(54);
    f.extend(&syn[6..12]);
    f.extend(&syn[..6]);
    f.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    f.extend(&syn[30..34]);
    f.extend(&syn[26..30]);
    let check = checksum::finish(checksum::sum(&f[14..34]));
    f[24..26].copy_from_slice(&check.to_be_bytes());
    f.extend(&syn[36..38]);
    f.extend(&syn[34..36]);
    let theirs = u32::from_be_bytes([syn[38], syn[39], syn[40], syn[41]]);
    f.extend(1000u32.to_be_bytes());
    f.extend(theirs.wrapping_add(1).to_be_bytes());
    f.extend([0x50, 0x12, 0xff, 0xff]);
    f.extend(pseudo(6, 20).to_be_bytes());
    f.extend([0, 0]);
    f
}

#[test]
fn filtered_port_receives_only_matching_packets_of_its_interface() {
    in_netns(|| {
        veth(1500);
        let mut a = queue("packet:v0");
        let udp = |port: u16, mark: u8| {
            let mut frame = ipv4(17, 20);
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            frame[42] = mark;
            frame
        };
        let mut tagged = udp(7777, 0);
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        let mut fragment = udp(7777, 0);
        fragment[20] = 0x20;
        let mut tcp = udp(7777, 0);
        tcp[23] = 6;
        for text in ["packet:v1,udp=7777+80", "packet:v1,udp=80+7777,queues=2"] {
            let mut queues = Vec::new();
            eventually(|| {
                queues = Port::open(text).map(Port::into_queues).unwrap_or_default();
                !queues.is_empty()
            });
            let frames = [
                stamped(0, 60),
                tagged.clone(),
                udp(7777, 1),
                fragment.clone(),
                udp(7778, 0),
                tcp.clone(),
                udp(80, 2),
            ];
            send(&mut a, &frames, Offload::NONE);
            let mut marks = Vec::new();
            let mut batch = Batch::with_capacity(8);
            while marks.len() < 2 {
                for queue in &mut queues {
                    queue.wait(Some(Duration::from_millis(10))).unwrap();
                    queue.rx(&mut batch);
                    marks.extend(batch.iter().map(|skb| skb.data()[42]));
                    batch.clear();
                }
            }
            marks.sort_unstable();
            assert_eq!(marks, [1, 2]);
        }
    });
}
