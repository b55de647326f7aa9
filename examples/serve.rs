//! A queue as a tokio task.

use std::io::Result;

use linerate::prelude::*;
use tokio::io::{Interest, unix::AsyncFd};

/// Sends each packet back that `answer` turns into an answer, until the device is gone. The task may
/// move from thread to thread.
pub(crate) async fn serve(
    queue: Queue,
    mut answer: impl FnMut(&mut Skb) -> std::result::Result<(), DropReason>,
) -> Result<()> {
    // tokio's own AsyncFd: linerate knows no runtime. Readable means "call me".
    #[allow(deprecated, reason = "unsound for others: a queue's descriptor is the same for life")]
    let mut fd = AsyncFd::with_interest(queue, Interest::READABLE)?;
    let mut batch = Batch::with_capacity(64);
    loop {
        let mut ready = fd.readable_mut().await?;
        let queue = ready.get_inner_mut();
        if batch.is_empty() {
            queue.rx(&mut batch); // backpressure: nothing more until the last batch has left
            batch.retain(&mut answer);
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
