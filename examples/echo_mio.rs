//! UDP echo on port 7777 over mio, until its input ends: `echo_mio packet:eth0`, set up as for
//! `echo.rs`.

mod args;

use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use linerate::prelude::*;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

const INPUT: Token = Token(usize::MAX);

fn main() -> Result<()> {
    let args = args::texts().map_err(Error::other)?;
    let text = args.first().ok_or_else(|| Error::other("usage: echo_mio PORT"))?;
    let mut port = Port::open(text)?;
    eprintln!("{}", port.obtained());
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(64));
    for (i, fd) in port.descriptors().enumerate() {
        // Readable means that the wanted event may have occurred: packets, or room.
        poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), Token(i), Interest::READABLE)?;
    }
    let ended = Arc::new(mio::Waker::new(poll.registry(), INPUT)?);
    let waker = ended.clone(); // a wake-up is lost if its waker is dropped
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        waker.wake()
    });
    let mut batch = Batch::with_capacity(64);
    while !events.iter().any(|event| event.token() == INPUT) {
        events.clear();
        if batch.is_empty() {
            port.rx(&mut batch);
            batch.retain(echo);
        }
        port.xmit(&mut batch);
        if port.health().ended() {
            break;
        }
        // False: the event has occurred already, so look for the end of the input only.
        let sleeps = port.arm(if batch.is_empty() { Want::Frames } else { Want::Room });
        match poll.poll(&mut events, (!sleeps).then_some(Duration::ZERO)) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {} // the program was stopped
            done => done?,
        }
    }
    batch.discard(DropReason::TX_FULL); // what a failed device has not taken
    println!("{}", port.ledger());
    drop(ended);
    Ok(port.health().check()?) // a deleted interface is an error
}

/// Turns a datagram to port 7777 into its answer.
fn echo(skb: &mut Skb) -> std::result::Result<(), DropReason> {
    let mut udp = skb.udp_mut()?;
    // Not from a service, such as another echo, and not to a group: see echo.rs.
    let is_service = udp.src_port() == 7777 || udp.src_port() < 1024;
    let is_ours = udp.dst_port() == 7777 && !udp.ends().dst().is_multicast();
    let is_asked = is_ours && !is_service;
    is_asked.then(|| udp.reply()).ok_or(DropReason::UNWANTED)
}
