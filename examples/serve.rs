//! A tokio task that serves a port.

use linerate::prelude::*;
use linerate_tokio::AsyncPort;

/// Sends back each packet that `answer` turns into an answer, until the device fails. The task may
/// move between threads.
pub(crate) async fn serve(
    port: Port,
    mut answer: impl FnMut(&mut Skb) -> Result<(), DropReason>,
) -> linerate::Result<()> {
    let mut port = AsyncPort::new(port)?;
    let mut batch = Batch::with_capacity(64);
    while port.readable().await? {
        port.rx(&mut batch);
        batch.retain(&mut answer);
        // Backpressure: receives no more until the batch is sent.
        let sent = port.send(&mut batch).await;
        batch.discard(DropReason::TX_FULL); // what a failed device has not taken
        sent?;
    }
    Ok(())
}
