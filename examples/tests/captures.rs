//! The content of `captures/`, frame by frame. This command writes the files again: `cargo test -p
//! linerate-examples --test captures -- --ignored`.

use linerate::pcap::{Frame, read_all, write_all};

const HOST: [u8; 4] = [10, 0, 0, 1];
const BLOCKED: [u8; 4] = [192, 0, 2, 7];
const PEER: [u8; 4] = [10, 0, 0, 2];
const UDP: u8 = 17;
const TCP: u8 = 6;
/// DSCP's expedited forwarding.
const EF: u8 = 46;

/// Returns the traffic: UDP, TCP, ARP, IPv6, a VLAN, three packets from a blocked source, one with
/// a wrong length, and one that is longer than a frame of the pool.
fn mixed() -> Vec<Frame> {
    numbered(vec![
        ethernet(&[], 0x0800, &ipv4(HOST, EF, UDP, &udp(b"expedited"))),
        ethernet(&[], 0x0800, &ipv4(HOST, 0, TCP, &tcp(b"segment"))),
        ethernet(&[], 0x0806, &arp()),
        ethernet(&[], 0x86dd, &ipv6(&udp(b"over IPv6"))),
        ethernet(&[], 0x0800, &ipv4(BLOCKED, 0, UDP, &udp(b"blocked"))),
        ethernet(&[0x81, 0, 0, 100], 0x0800, &ipv4(HOST, 10, UDP, &udp(b"in VLAN 100"))),
        ethernet(&[0x81, 0, 0, 100], 0x0800, &ipv4(BLOCKED, EF, TCP, &tcp(b"blocked too"))),
        ethernet(&[], 0x0800, &ipv4(BLOCKED, 0, UDP, &udp(&[1; 3000]))),
        ethernet(&[], 0x0800, &ipv4(HOST, EF, UDP, &udp(&[2; 3000]))),
        ethernet(&[], 0x0800, &ipv4(HOST, 0, UDP, &udp(&[3; 500]))[..200]),
        ethernet(&[], 0x0800, &ipv4(HOST, EF, TCP, &tcp(b""))),
    ])
}

/// Returns the frames that the guard lets pass, with DSCP cleared.
fn expected() -> Vec<Frame> {
    numbered(vec![
        ethernet(&[], 0x0800, &ipv4(HOST, 0, UDP, &udp(b"expedited"))),
        ethernet(&[], 0x0800, &ipv4(HOST, 0, TCP, &tcp(b"segment"))),
        ethernet(&[], 0x0806, &arp()),
        ethernet(&[], 0x86dd, &ipv6(&udp(b"over IPv6"))),
        ethernet(&[0x81, 0, 0, 100], 0x0800, &ipv4(HOST, 0, UDP, &udp(b"in VLAN 100"))),
        ethernet(&[], 0x0800, &ipv4(HOST, 0, UDP, &udp(&[2; 3000]))),
        ethernet(&[], 0x0800, &ipv4(HOST, 0, TCP, &tcp(b""))),
    ])
}

/// Returns the frames that the guard mirrors: every fifth, unchanged.
fn mirrored() -> Vec<Frame> {
    mixed().into_iter().skip(4).step_by(5).collect()
}

#[test]
fn the_captures_hold_what_this_file_says() {
    for (path, frames) in files() {
        let found = read_all(path).unwrap();
        assert_eq!(found.len(), frames.len(), "{path}");
        for (i, (found, frame)) in found.iter().zip(&frames).enumerate() {
            assert!(found.bytes == frame.bytes, "frame {i} of {path}");
        }
    }
}

#[test]
#[ignore = "writes the captures"]
fn the_captures_are_written() {
    for (path, frames) in files() {
        write_all(path, &frames).unwrap();
    }
}

fn files() -> [(&'static str, Vec<Frame>); 3] {
    [
        ("captures/mixed.pcapng", mixed()),
        ("captures/expected.pcapng", expected()),
        ("captures/mirrored.pcapng", mirrored()),
    ]
}

/// Adds time stamps to the frames, ten milliseconds apart.
fn numbered(frames: Vec<Vec<u8>>) -> Vec<Frame> {
    let stamp_ns = (0..).map(|i| 1_700_000_000_000_000_000 + i * 10_000_000);
    stamp_ns.zip(frames).map(|(stamp_ns, bytes)| Frame { stamp_ns, bytes }).collect()
}

/// Returns a frame of at least 60 bytes, padded with zeros.
fn ethernet(tag: &[u8], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let ends = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let mut frame = [&ends, tag, &ether_type.to_be_bytes(), payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn ipv4(src: [u8; 4], dscp: u8, protocol: u8, segment: &[u8]) -> Vec<u8> {
    let len = (20 + segment.len() as u16).to_be_bytes();
    let mut header = vec![0x45, dscp << 2, len[0], len[1], 0, 1, 0, 0, 64, protocol, 0, 0];
    header.extend([src, PEER].concat());
    let check = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&check);
    [header, segment.to_vec()].concat()
}

fn ipv6(segment: &[u8]) -> Vec<u8> {
    let len = (segment.len() as u16).to_be_bytes();
    let ends = [[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]; 2].concat();
    [&[0x60, 0, 0, 0, len[0], len[1], UDP, 64], &ends[..], segment].concat()
}

/// Returns a UDP datagram without a checksum.
fn udp(payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len() as u16).to_be_bytes();
    [&[3, 232, 30, 97, len[0], len[1], 0, 0], payload].concat()
}

/// Returns a TCP segment with a checksum of zero, which nothing checks.
fn tcp(payload: &[u8]) -> Vec<u8> {
    let header = [3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    [&header, payload].concat()
}

fn arp() -> Vec<u8> {
    let sender = [2, 0, 0, 0, 0, 1, 10, 0, 0, 1];
    [&[0, 1, 8, 0, 6, 4, 0, 1][..], &sender, &[0; 6], &PEER].concat()
}

/// Returns the checksum of RFC 1071, computed word by word; not with the library, which the stage
/// uses.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}
