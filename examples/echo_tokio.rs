//! UDP echo on port 7777 as tokio tasks: `echo_tokio packet:eth0 [10s]`, set up as for `echo.rs`.
//!
//! Without arguments it also sends the questions: over a ring in this process, without privileges.

mod args;
mod asker;
mod serve;

use std::io::{Error, Result};

use linerate::{prelude::*, units};
use tokio::{task, time};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = args::texts().map_err(Error::other)?.into_iter();
    let (port, asker) = match args.next() {
        Some(text) => (Port::open(&text)?, None),
        None => asker::pair()?,
    };
    let run = units::duration(&args.next().unwrap_or("10s".into())).map_err(Error::other)?;
    eprintln!("{}", port.obtained());
    let (pool, mut tasks) = (port.pool().clone(), task::JoinSet::new());
    port.split().into_iter().for_each(|queue| _ = tasks.spawn(serve::serve(queue, echo)));
    asker.into_iter().for_each(|port| _ = tasks.spawn(asker::ask(port)));

    let end = time::Instant::now() + run;
    while let Ok(Some(ended)) = time::timeout_at(end, tasks.join_next()).await {
        ended??; // the device has failed, or the client is done
    }
    tasks.shutdown().await;
    println!("{}", pool.ledger());
    Ok(())
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
