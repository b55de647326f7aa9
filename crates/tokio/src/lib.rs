//! linerate's ports for tokio: [`AsyncPort`] offers waiting, receiving and sending as futures.
//!
//! ```
//! use linerate::prelude::*;
//! use linerate_tokio::AsyncPort;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> linerate::Result<()> {
//! let mut port = AsyncPort::new(Port::open("gen:,count=100")?)?; // or packet:eth0, xdp:eth0,udp=7777
//! let (mut batch, mut packets) = (Batch::with_capacity(64), 0);
//! while port.readable().await? {
//!     packets += port.rx(&mut batch);
//!     batch.clear(); // or change them, and port.send(&mut batch).await?
//! }
//! assert_eq!(packets, 100);
//! # Ok(())
//! # }
//! ```
//!
//! Several queues: a task each, `port.split()` gives a port for each of them.
#![deny(unsafe_op_in_unsafe_fn)]

use std::future::poll_fn;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::Poll;

use linerate::{Batch, Health, Port, Result, Want};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::consume_budget;

/// A port whose waits are futures. A future may be dropped at any time: no packet and no event is
/// lost.
///
/// To end a wait from elsewhere, drop its future, as `tokio::select!` does: a
/// [`Waker`](linerate::Waker) does not end it.
#[derive(Debug)]
pub struct AsyncPort {
    /// A descriptor for each queue; the runtime reports only changes of its state.
    fds: Vec<AsyncFd<OwnedFd>>,
    port: Port,
    event: Event,
}

/// An event that the runtime has reported, and whose packets may wait. The runtime does not report
/// it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// No event.
    None,
    /// An event whose packets were not received yet.
    Certain,
    /// An event whose packets the program may have received by way of [`AsyncPort::port_mut`].
    Suspect,
}

impl AsyncPort {
    /// Registers `port` with the current tokio runtime.
    ///
    /// # Errors
    /// `E-SYSTEM` if a descriptor cannot be duplicated or registered.
    ///
    /// # Panics
    /// Outside of a runtime, or in one without I/O, as everything of tokio's that waits for
    /// descriptors.
    pub fn new(port: Port) -> Result<AsyncPort> {
        let fds = port.descriptors().map(register).collect::<io::Result<_>>()?;
        Ok(AsyncPort { fds, port, event: Event::None })
    }

    /// Waits until there are packets to receive. Returns false if the source has ended and
    /// everything was received.
    ///
    /// Receive after it: until then it returns true at once.
    ///
    /// # Errors
    /// The error of a device that has failed for good. If a device is down but may recover, the
    /// call waits.
    pub async fn readable(&mut self) -> Result<bool> {
        self.ready_for(Want::Frames).await
    }

    /// Waits until `want` occurs, as [`AsyncPort::readable`] waits for packets; a wait for room
    /// never returns false. A device that is down has room at once, because it drops what it is
    /// given: wait for room only with packets to send.
    ///
    /// # Errors
    /// As [`AsyncPort::readable`].
    pub async fn ready_for(&mut self, want: Want) -> Result<bool> {
        // Yield from time to time: a task whose port always has packets would otherwise starve the
        // other tasks.
        consume_budget().await;
        if self.event != Event::None && want.frames() {
            if self.event == Event::Suspect {
                self.event = Event::None;
            }
            return Ok(true);
        }
        // Read the health before arming: `arm` then reports packets that came before the end.
        let health = self.port.health();
        let want = match &health {
            // Such a device has room, and packets that came before.
            Health::Failed(error) if want == Want::Room => return Err(error.clone()),
            Health::Failed(_) => Want::Frames,
            _ => want,
        };
        if !self.port.arm(want) {
            return Ok(true);
        }
        match health {
            Health::Failed(error) => return Err(error),
            Health::Finished if want == Want::Frames => return Ok(false),
            _ => {}
        }
        let fds = &self.fds;
        poll_fn(|cx| {
            let mut changed = false;
            for fd in fds {
                // Poll all descriptors, because each must register the task's waker.
                if let Poll::Ready(mut ready) = fd.poll_read_ready(cx)? {
                    ready.clear_ready();
                    changed = true;
                }
            }
            if changed { Poll::Ready(io::Result::Ok(())) } else { Poll::Pending }
        })
        .await?;
        self.event = Event::Certain;
        Ok(true)
    }

    /// Receives as many packets as `batch` has room for; returns the number received. Never waits.
    pub fn rx(&mut self, batch: &mut Batch) -> usize {
        self.event = Event::None;
        self.port.rx(batch)
    }

    /// Sends all packets of `batch`, in order, and waits for room as often as necessary. Packets
    /// that were not sent when the future is dropped stay in the batch; the rest of a superframe of
    /// which a part was sent stays in the port, and goes with the next call.
    ///
    /// # Errors
    /// The error of a device that has failed for good. It drops packets, and the ledger has the
    /// reason; those that it did not take stay in the batch.
    pub async fn send(&mut self, batch: &mut Batch) -> Result<()> {
        // As for packets: a port that always has room would starve the other tasks.
        consume_budget().await;
        loop {
            self.port.xmit(batch);
            if let Health::Failed(error) = self.port.health() {
                return Err(error);
            }
            if batch.is_empty() && self.port.waiting() == 0 {
                return Ok(());
            }
            self.ready_for(Want::Room).await?;
        }
    }

    /// Returns the port, for its properties, pool and health.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns the port, for everything that does not wait: allocation, counts, moderation, sending
    /// without waiting. Receive with [`AsyncPort::rx`], or until no packet is left: if packets had
    /// arrived before this call, the next wait for packets returns true at once, and the wait after
    /// it assumes that all packets were received.
    pub fn port_mut(&mut self) -> &mut Port {
        if self.event == Event::Certain {
            self.event = Event::Suspect;
        }
        &mut self.port
    }

    /// Removes the port from the runtime.
    #[must_use]
    pub fn into_port(self) -> Port {
        self.port
    }
}

/// Registers a duplicate of a queue's descriptor, which stays open for the runtime independently of
/// the port.
fn register(fd: BorrowedFd<'_>) -> io::Result<AsyncFd<OwnedFd>> {
    let fd = fd.try_clone_to_owned()?;
    // SAFETY: the descriptor must stay open, and keep its number, until the AsyncFd is dropped. The
    // OwnedFd keeps it open with a constant number, the AsyncFd owns the OwnedFd, and nothing in
    // this crate takes it out or changes it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
