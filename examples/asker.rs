//! The client with which `echo_tokio` tests itself, at the other end of a ring.

use std::io::{Error, Result};

use linerate::prelude::*;
use tokio::io::{Interest, unix::AsyncFd};

const ROUNDS: u32 = 200;
const QUESTIONS: usize = 64;
/// UDP from 10.7.0.1 port 1000 to 10.7.0.9 port 7777, without a UDP checksum; four bytes follow.
const QUESTION: &[u8; 42] = b"\x02\0\0\0\0\x09\x02\0\0\0\0\x01\x08\0\
    \x45\0\0\x20\0\x01\0\0\x40\x11\x66\xb5\x0a\x07\0\x01\x0a\x07\0\x09\x03\xe8\x1e\x61\0\x0c\0\0";

/// Returns a port to serve, and the queue at the other end of it.
pub fn pair() -> Result<(Port, Option<Queue>)> {
    let pool = Pool::builder().frames(4096).build()?;
    let (port, other) = Port::pair(1024, &pool)?;
    Ok((port, other.into_queues().pop()))
}

/// Asks, and compares every answer.
pub async fn ask(queue: Queue) -> Result<()> {
    #[allow(deprecated, reason = "unsound for others: a queue's descriptor is the same for life")]
    let mut fd = AsyncFd::with_interest(queue, Interest::READABLE)?;
    let mut batch = Batch::with_capacity(QUESTIONS);
    for round in 0..ROUNDS {
        fd.get_mut().alloc(&mut batch, QUESTIONS);
        for skb in batch.iter_mut() {
            skb.put_slice(QUESTION);
            skb.put_slice(&round.to_be_bytes());
        }
        fd.get_mut().xmit(&mut batch); // the ring has room for all
        while batch.len() < QUESTIONS {
            if fd.get_mut().rx(&mut batch) == 0 && fd.get_mut().arm(Want::Frames) {
                fd.readable_mut().await?.clear_ready();
            }
        }
        let right = |skb: &Skb| {
            skb.udp()
                .is_ok_and(|udp| udp.src_port() == 7777 && udp.payload() == round.to_be_bytes())
        };
        if !batch.iter().all(right) {
            return Err(Error::other(format!("a wrong answer in round {round}")));
        }
        batch.clear();
    }
    println!("{} answers, all right", ROUNDS as usize * QUESTIONS);
    Ok(())
}
