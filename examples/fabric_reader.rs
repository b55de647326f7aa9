//! Reads packets in the memory of the process that received them: `fabric_reader /run/fabric.sock
//! [frames]`.
//!
//! It waits on the socket for memif clients, one after the other, such as `linerate forward
//! xdp:eth0,udp=7777 memif:/run/fabric.sock`. Options may follow the path, as in
//! `memif:/run/fabric.sock,secret=s`. Once a second, and at the end, it prints what arrived. Only
//! the bytes that it reads are copied.

mod args;

use std::time::{Duration, Instant};

use linerate::memif::Reader;
use linerate::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = args::texts()?;
    let [place, frames @ ..] = &args[..] else {
        return Err("usage: fabric_reader /run/fabric.sock [frames]".into());
    };
    let most: u64 = frames.first().map_or(Ok(u64::MAX), |n| n.parse())?;
    let mut reader = match place.starts_with("memif:") {
        true => Reader::open(place)?,
        false => Reader::listen(place)?,
    };
    eprintln!("waiting at {place}");

    let (mut dns, mut head) = (0_u64, [0; 64]);
    let mut next = Instant::now() + Duration::from_secs(1);
    while reader.counts().frames < most {
        let left = most - reader.counts().frames;
        reader.wait(Some(next.saturating_duration_since(Instant::now())))?;
        for frame in reader.frames(left.min(64) as usize) {
            if frame.u16_be(12) == Some(0x0800) {
                // Copy the header: the producer may change the original while we parse it.
                let n = frame.copy_to(0, &mut head);
                dns += u64::from(is_dns(&head[..n]));
            }
        } // dropped: returned to the producer
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_secs(1);
            report(&reader, dns);
        }
    }
    report(&reader, dns);
    Ok(())
}

/// Returns true for a UDP datagram over IPv4 to port 53.
fn is_dns(head: &[u8]) -> bool {
    let Some((ip, udp)) = head.get(14).map(|b| (14, 14 + 4 * usize::from(b & 15))) else {
        return false;
    };
    head.get(ip + 9) == Some(&17) && head.get(udp + 2..udp + 4) == Some(&[0, 53])
}

fn report(reader: &Reader, dns: u64) {
    let counts = reader.counts();
    let peer = if reader.health() == Health::Up { "connected" } else { "no producer" };
    println!(
        "{peer}: frames {} bytes {} dns {dns} copied out {} protocol errors {}",
        counts.frames, counts.bytes, counts.copied_out, counts.protocol_errors
    );
}
