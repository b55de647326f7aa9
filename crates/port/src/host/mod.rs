//! Common parts of the ports of the host's own interfaces: state, descriptor, the offload header of
//! their frames, and the traffic that they take from the host's stack.

mod bell;
pub(crate) mod crc32c;
pub(crate) mod filter;
pub(crate) mod flow;
pub(crate) mod headers;
mod late;
mod link;
pub(crate) mod offload;
pub(crate) mod partial;
pub(crate) mod place;
mod queue;
mod reserve;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod tunnel;

use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Skb, Trust};
use linerate_sys::wait::poll_readable;

pub use bell::Bell;
pub(crate) use late::{Late, Losses};
pub(crate) use link::{LINK_HEADER_BYTES, Link, both_names, check_ethernet, longest_frame};
pub(crate) use queue::{Host, HostDevice, HostQueue};
pub(crate) use reserve::Reservation;

/// Longest packet that is exchanged: with the Ethernet header, the longest that Linux allows by
/// default for a superframe, or for `lo`, whose MTU is 65,536.
pub(crate) const PACKET_BYTES_MAX: usize = 65_550;

/// Interval of retries for resources whose release no event signals: a free frame, room in a
/// device's queue.
pub(crate) const RETRY: Duration = Duration::from_millis(1);

/// Longest wait for an object that another owner has closed.
const GOING: Duration = Duration::from_millis(200);
/// Interval of the attempts during such a wait.
const GOING_STEP: Duration = Duration::from_millis(2);

/// Calls `open`, and calls it again for up to 200 ms while its error says that the object is in
/// use.
///
/// An object that was closed stays open for a moment if another thread has started a process: the
/// child keeps its parent's descriptors between its fork and its exec. Nothing signals their end.
///
/// Cost: blocks. For the opening of ports, never for a worker.
pub(crate) fn open_when_closed<T, E>(
    is_in_use: impl Fn(&E) -> bool,
    open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    retry_for(GOING, is_in_use, open)
}

/// Calls `attempt`, and calls it again for up to `longest` while its error says that the object is
/// in use.
///
/// Cost: blocks. For opening, closing and examining ports.
pub(crate) fn retry_for<T, E>(
    longest: Duration,
    is_in_use: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let until = Instant::now() + longest;
    loop {
        match attempt() {
            Err(e) if is_in_use(&e) && Instant::now() < until => {
                let _ = poll_readable(&[], Some(GOING_STEP));
            }
            done => return done,
        }
    }
}

/// Returns true if the object of a failed open is in use.
pub(crate) fn is_busy(e: &Error) -> bool {
    e.code == Code::Busy
}

/// Returns true if a peer can write the packet's memory, so that the packet cannot be lent to the
/// kernel.
pub(crate) fn is_exported(skb: &Skb) -> bool {
    skb.trust() == Trust::Exported
}

/// Copies a packet to `scratch`; returns `None` if it is longer than [`PACKET_BYTES_MAX`].
pub(crate) fn copy_out<'a>(skb: &Skb, scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
    if skb.len() > PACKET_BYTES_MAX {
        return None;
    }
    scratch.resize(skb.len(), 0);
    let n = skb.copy_to(0, scratch);
    Some(&scratch[..n])
}

/// The time of the next attempt at an operation whose success no event signals.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Retry(Option<Instant>);

impl Retry {
    /// Returns a retry after [`RETRY`].
    pub fn later() -> Retry {
        Retry(Instant::now().checked_add(RETRY))
    }

    /// Returns the time of the next attempt, if one is scheduled.
    pub fn at(self) -> Option<Instant> {
        self.0
    }

    /// Returns true if the scheduled time has come.
    pub fn is_due(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// Returns true until the scheduled time; at that time it clears the schedule.
    pub fn is_pending(&mut self) -> bool {
        if self.is_due() {
            self.0 = None;
        }
        self.0.is_some()
    }
}
