//! The client with which `echo_tokio` tests itself over a ring.

use std::io::Error;

use linerate::{Result, prelude::*};
use linerate_tokio::AsyncPort;

const ROUNDS: u32 = 200;
const QUESTIONS: usize = 64;
/// A UDP datagram from 10.7.0.1 port 40000 to 10.7.0.9 port 7777, without a UDP checksum; the
/// payload of four bytes follows.
const QUESTION: &[u8; 42] = b"\x02\0\0\0\0\x09\x02\0\0\0\0\x01\x08\0\
    \x45\0\0\x20\0\x01\0\0\x40\x11\x66\xb5\x0a\x07\0\x01\x0a\x07\0\x09\x9c\x40\x1e\x61\0\x0c\0\0";

/// Returns a port for the server, and the other end of the ring for the client.
pub fn pair() -> Result<(Port, Option<Port>)> {
    let pool = Pool::builder().frames(4096).build()?;
    let (port, other) = Port::pair(1024, &pool)?;
    Ok((port, Some(other)))
}

/// Sends questions, and compares every answer.
pub async fn ask(port: Port) -> Result<()> {
    let mut port = AsyncPort::new(port)?;
    let mut batch = Batch::with_capacity(QUESTIONS);
    for round in 0..ROUNDS {
        port.port_mut().alloc(&mut batch, QUESTIONS);
        for skb in batch.iter_mut() {
            assert!(skb.put_slice(QUESTION) && skb.put_slice(&round.to_be_bytes()));
        }
        port.send(&mut batch).await?;
        while batch.len() < QUESTIONS && port.readable().await? {
            port.rx(&mut batch);
        }
        let right = |skb: &Skb| {
            skb.udp()
                .is_ok_and(|udp| udp.src_port() == 7777 && udp.payload() == round.to_be_bytes())
        };
        if batch.len() < QUESTIONS || !batch.iter().all(right) {
            return Err(
                Error::other(format!("a wrong answer, or too few, in round {round}")).into()
            );
        }
        batch.clear();
    }
    println!("{} answers, all right", ROUNDS as usize * QUESTIONS);
    Ok(())
}
