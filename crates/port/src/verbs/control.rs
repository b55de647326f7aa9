//! The control thread of a port, which its queues share.
//!
//! ```text
//!   queue, queue, ... ──► Control ──► Thread: meets peers by TCP, and makes the ways to them      thread.rs
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::EventFd;

use super::config::Config;
use super::nic::Fabric;
use super::roster::Roster;
use super::thread::{Shared, Thread};

/// The rosters of a port's queues.
pub(super) type Rosters<P, G> = Vec<Arc<Roster<P, G>>>;

/// A thread that was started, with the roster of each queue.
pub(super) type Started<P, G> = (Arc<Control>, Rosters<P, G>);

/// The thread, for as long as there is a queue.
pub(super) struct Control {
    /// True if a queue of the port is closed, so that no peer can come any more.
    pub has_closed: AtomicBool,
    bell: Arc<EventFd>,
    is_closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Starts the thread: it listens or connects as `config` says, and makes ways by `fabrics`, one
    /// for each queue.
    ///
    /// # Errors
    /// `E-BUSY` if another program listens at the address, `E-SYSTEM` otherwise.
    pub fn start<F: Fabric + 'static, G: Send + 'static>(
        config: &Config,
        fabrics: Vec<F>,
        longest_bytes: usize,
    ) -> Result<Started<F::Peer, G>> {
        let (bell, is_closing) = (Arc::new(EventFd::new()?), Arc::new(AtomicBool::new(false)));
        let rosters = fabrics.iter().map(|_| Ok(Arc::new(Roster::new(&bell)?)));
        let rosters = rosters.collect::<Result<Rosters<_, _>>>()?;
        let shared =
            Shared { rosters: rosters.clone(), bell: bell.clone(), is_closing: is_closing.clone() };
        let thread = Thread::new(config, fabrics, longest_bytes, shared)?;
        let builder = std::thread::Builder::new().name("verbs-control".into());
        let thread = builder.spawn(move || thread.run()).map_err(|e| {
            Error::new(Code::System, "cannot start the control thread of verbs", e.to_string())
        })?;
        let (has_closed, thread) = (AtomicBool::new(false), Some(thread));
        Ok((Arc::new(Control { has_closed, bell, is_closing, thread }), rosters))
    }
}

impl Drop for Control {
    /// Ends the thread; afterwards it uses no object of the device.
    ///
    /// Cost: blocks, for as long as the kernel looks for a neighbour.
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Release);
        self.bell.signal();
        if let Some(thread) = self.thread.take() {
            // What the thread had is dropped, also if it has panicked.
            let _ = thread.join();
        }
    }
}
