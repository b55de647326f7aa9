//! A port as a tokio task.

use linerate::prelude::*;
use linerate_tokio::AsyncPort;

/// Sends each packet back that `answer` turns into an answer, until the device is gone. The task may
/// move from thread to thread.
pub(crate) async fn serve(
    port: Port,
    mut answer: impl FnMut(&mut Skb) -> Result<(), DropReason>,
) -> linerate::Result<()> {
    let mut port = AsyncPort::new(port)?;
    let mut batch = Batch::with_capacity(64);
    while port.readable().await? {
        port.rx(&mut batch);
        batch.retain(&mut answer);
        port.send(&mut batch).await?; // backpressure: nothing more until the batch has left
    }
    Ok(())
}
