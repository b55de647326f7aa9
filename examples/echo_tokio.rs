//! UDP echo on port 7777 as tokio tasks: `echo_tokio packet:eth0 [10s]`, set up as for `echo.rs`.
//!
//! Without arguments it also sends the questions: over a ring in this process, without privileges.

mod asker;

use std::io::{Error, Result};

use linerate::{prelude::*, units};
use tokio::io::{Interest, unix::AsyncFd};
use tokio::{task, time};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (port, asker) = match args.next() {
        Some(text) => (Port::open(&text)?, None),
        None => asker::pair()?,
    };
    let run = units::duration(&args.next().unwrap_or("10s".into())).map_err(Error::other)?;
    eprintln!("{}", port.obtained());
    let (pool, mut tasks) = (port.pool().clone(), task::JoinSet::new());
    port.into_queues().into_iter().for_each(|queue| _ = tasks.spawn(serve(queue)));
    asker.into_iter().for_each(|queue| _ = tasks.spawn(asker::ask(queue)));

    let end = time::Instant::now() + run;
    while let Ok(Some(ended)) = time::timeout_at(end, tasks.join_next()).await {
        ended??; // the device is gone, or the asker content
    }
    tasks.shutdown().await;
    println!("{}", pool.ledger());
    Ok(())
}

/// Answers until the device is gone. The task may move from thread to thread.
async fn serve(queue: Queue) -> Result<()> {
    // tokio's own AsyncFd: linerate knows no runtime. Readable means "call me".
    #[allow(deprecated, reason = "unsound for others: a queue's descriptor is the same for life")]
    let mut fd = AsyncFd::with_interest(queue, Interest::READABLE)?;
    let mut batch = Batch::with_capacity(64);
    loop {
        let mut ready = fd.readable_mut().await?;
        let queue = ready.get_inner_mut();
        if batch.is_empty() {
            queue.rx(&mut batch); // backpressure: nothing more until the last batch has left
            batch.retain(|skb| {
                let mut udp = skb.udp_mut()?;
                let ours = udp.dst_port() == 7777;
                ours.then(|| udp.swap_ends()).ok_or(DropReason::UNWANTED)
            });
        }
        queue.xmit(&mut batch);
        if queue.health().ended() {
            return Ok(queue.health().check()?);
        }
        let want = if batch.is_empty() { Want::Frames } else { Want::Room };
        if queue.arm(want) {
            ready.clear_ready(); // false: it came meanwhile, go round
        }
    }
}
