//! The waits of ports: of one port, and of several at once.
//!
//! A queue that waits alone sleeps by itself. Several queues are armed, and one poll(2) waits for
//! them and for their wakers. If one of them is polled without a sleep, all are.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linerate_skb::Result;
use linerate_sys::wait::poll_each;

use super::Port;
use crate::queue::{Health, Queue, Want, cannot_wait, over, possible};

/// Sleeps until one of `ports` has packets to receive, or for `timeout`; returns false after the
/// timeout, or without a timeout, if all ports have ended and everything was received, or there is
/// none. A [waker](Port::waker) of one of the ports ends the sleep, too.
///
/// # Errors
/// Those of a device that has failed for good, until its port is left out; whatever poll(2) says.
///
/// Cost: a syscall to sleep; for several queues two allocations.
///
/// A program that waits for a descriptor of its own as well arms the ports and polls all
/// descriptors itself. Each queue's [`Moderation`](crate::Moderation) holds packets as in this
/// call:
///
/// ```
/// # mod linerate { pub use linerate_port::*; pub use linerate_skb::Batch; }
/// use std::net::UdpSocket;
/// use std::os::fd::AsFd;
///
/// use linerate::wait::poll_readable;
/// use linerate::{Batch, Port, Want};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut port = Port::open("gen:,rate=1kpps,count=3")?; // or packet:eth0
/// let socket = UdpSocket::bind("127.0.0.1:0")?;
/// socket.set_nonblocking(true)?;
/// # UdpSocket::bind("127.0.0.1:0")?.send_to(b"a message", socket.local_addr()?)?;
/// # let (mut packets, mut messages) = (0, 0);
/// let mut batch = Batch::with_capacity(64);
/// loop {
///     // Read before `arm`, which reports the packets that came before the end.
///     let has_ended = port.health().ended();
///     // False: there are packets already.
///     if port.arm(Want::Frames) {
///         if has_ended {
///             break;
///         }
///         let fds: Vec<_> = port.descriptors().chain([socket.as_fd()]).collect();
///         poll_readable(&fds, None)?;
///     }
///     port.rx(&mut batch);
///     # packets += batch.len();
///     batch.clear();
///     let mut message = [0; 64];
///     while let Ok(n) = socket.recv(&mut message) {
///         println!("{:?}", &message[..n]);
///         # messages += 1;
///     }
/// }
/// # assert_eq!((packets, messages), (3, 1));
/// # Ok(())
/// # }
/// ```
pub fn wait_any(ports: &mut [&mut Port], timeout: Option<Duration>) -> Result<bool> {
    wait_on(ports, Want::Frames, timeout)
}

pub(super) fn wait_on(
    ports: &mut [&mut Port],
    want: Want,
    timeout: Option<Duration>,
) -> Result<bool> {
    // Most callers have one queue; this path needs no allocation for it.
    let mut queues = ports.iter_mut().flat_map(|p| &mut p.queues);
    match (queues.next(), queues.next()) {
        (Some(one), None) => return one.wait_for(want, timeout),
        // Nothing could end a sleep.
        (None, _) if timeout.is_none() => return Ok(false),
        _ => {}
    }
    if any_woken(ports, Queue::waker_used) {
        return Ok(false);
    }
    if ports.iter_mut().flat_map(|p| &mut p.queues).any(Queue::is_busy) {
        return spin_on(ports, want, timeout);
    }
    // Read the health before `arm`, so that `arm` reports a packet that arrived before the end.
    let health = Health::worst(ports.iter().flat_map(|p| &p.queues).map(Queue::device_health));
    let want = possible(&health, want)?;
    let ended = match ports.iter_mut().all(|p| p.arm(want)) {
        true => over(health, want, timeout).map(|is_over| is_over.then_some(false)),
        false => Ok(Some(true)),
    };
    if ended != Ok(None) {
        ports.iter_mut().flat_map(|p| &mut p.queues).for_each(Queue::stay_awake);
    }
    if let Some(result) = ended? {
        return Ok(result);
    }
    sleep_on(ports, want, timeout)
}

/// Sleeps on the queues that are armed for `want`, and on the wakers; returns true if a queue ended
/// the sleep.
fn sleep_on(ports: &mut [&mut Port], want: Want, timeout: Option<Duration>) -> Result<bool> {
    // Only the first queue of a port is armed for room.
    let armed = if want.frames() { usize::MAX } else { 1 };
    let (start, mut left) = (Instant::now(), timeout);
    loop {
        let (by, is_rung) = poll_queues(ports, armed, left)?;
        let is_woken = is_rung && any_woken(ports, Queue::waker_used_polled);
        let is_readable = by.contains(&true) && !is_woken;
        if is_rung && !is_woken && !is_readable {
            // The doorbell rang late: an earlier wait has returned for this use of the waker.
            left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            continue;
        }
        let queues = ports.iter_mut().flat_map(|p| p.queues.iter_mut().take(armed));
        queues.zip(by).for_each(|(queue, by)| queue.woken(is_readable && by));
        return Ok(is_readable);
    }
}

/// Polls the first `armed` queues of each port, and all wakers; returns which of the queues are
/// readable, and whether a waker's doorbell rang.
fn poll_queues(
    ports: &[&mut Port],
    armed: usize,
    timeout: Option<Duration>,
) -> Result<(Vec<bool>, bool)> {
    let queues = ports.iter().flat_map(|p| p.queues.iter().take(armed));
    let mut fds: Vec<BorrowedFd<'_>> = queues.map(Queue::as_fd).collect();
    let n = fds.len();
    fds.extend(ports.iter().flat_map(|p| &p.queues).filter_map(Queue::wake_fd));
    let mut by = vec![false; fds.len()];
    poll_each(&fds, timeout, |i| by[i] = true).map_err(cannot_wait)?;
    let is_rung = by.drain(n..).any(|rang| rang);
    Ok((by, is_rung))
}

/// Polls several queues for `want` without sleeping, for up to `timeout`, because one of them is
/// polled so.
fn spin_on(ports: &mut [&mut Port], want: Want, timeout: Option<Duration>) -> Result<bool> {
    let start = Instant::now();
    loop {
        // Read the health first, as in `wait_on`.
        let health = Health::worst(ports.iter().flat_map(|p| &p.queues).map(Queue::device_health));
        let want = possible(&health, want)?;
        if ports.iter_mut().any(|port| port.has(want)) {
            return Ok(true);
        }
        let is_late = timeout.is_some_and(|timeout| start.elapsed() >= timeout);
        if over(health, want, timeout)? || is_late || any_woken(ports, Queue::waker_used) {
            return Ok(false);
        }
        std::hint::spin_loop();
    }
}

/// Returns true if the waker of one of the ports was used.
///
/// A port's waker counts a use at each queue in order, so that all have it once the last queue has.
/// One use ends only one wait: only the last queue decides, and the use is taken from the others as
/// well.
fn any_woken(ports: &mut [&mut Port], waker_used: fn(&mut Queue) -> bool) -> bool {
    ports.iter_mut().fold(false, |any, port| {
        let Some((last, others)) = port.queues.split_last_mut() else { return any };
        let is_used = waker_used(last);
        others.iter_mut().for_each(|queue| _ = waker_used(queue));
        is_used | any
    })
}
