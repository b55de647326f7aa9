//! Probes a neighbour through an open port, and measures how long the link is down meanwhile.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Result};
use linerate_sys::netif::{FLAG_RUNNING, Interface};
use linerate_sys::wait::poll_readable;
use linerate_wire::{ArpOp, Mac, arp, arp_request};

use crate::port::Port;

/// Number of probes; the next constant is the time to wait for each answer.
pub(crate) const PROBES: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest time to wait for the link to come back.
const LINK: Duration = Duration::from_secs(10);
/// Interval at which the link is queried.
const STEP: Duration = Duration::from_millis(1);
/// The shortest Ethernet frame.
const FRAME_BYTES: usize = 60;

/// Sends ARP probes for `peer` from `mac` through `port` until one is answered; returns the time
/// until the answer.
///
/// A probe is a question of no address: no table of neighbours changes by it, and what comes back
/// can be told from what the host asked itself.
///
/// # Errors
/// Those of waiting at the port.
pub(crate) fn ask(port: &mut Port, mac: [u8; 6], peer: Ipv4Addr) -> Result<Option<Duration>> {
    let mut frame = [0; FRAME_BYTES];
    let probe = arp_request(Mac(mac), Ipv4Addr::UNSPECIFIED, peer);
    frame[..probe.len()].copy_from_slice(&probe);
    let (mut mem, mut batch) = (port.pool().local(), Batch::with_capacity(64));
    for _ in 0..PROBES {
        let since = Instant::now();
        if let Some(probe) = mem.alloc_copy(&frame) {
            let _ = batch.push(probe);
            port.xmit(&mut batch);
            batch.clear();
        }
        loop {
            let left = PATIENCE.saturating_sub(since.elapsed());
            port.wait(Some(left))?;
            port.rx(&mut batch);
            if batch.iter().any(|skb| answers(skb.data(), Mac(mac), peer)) {
                return Ok(Some(since.elapsed()));
            }
            batch.clear();
            if left.is_zero() {
                break;
            }
        }
    }
    Ok(None)
}

/// Returns true for an answer to a probe, and not for one to a question of the host's.
fn answers(frame: &[u8], mac: Mac, peer: Ipv4Addr) -> bool {
    arp(frame).is_ok_and(|arp| {
        let is_to_us = arp.target_mac() == mac && arp.target_ip() == Ipv4Addr::UNSPECIFIED;
        arp.op() == ArpOp::REPLY && arp.sender_ip() == peer && is_to_us
    })
}

/// A thread that queries the state of a link until this value is stopped or dropped.
pub(crate) struct LinkWatch {
    interface: Interface,
    was_running: bool,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Duration>>,
}

impl LinkWatch {
    /// Starts to watch `interface`.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    pub fn start(interface: &Interface) -> Result<LinkWatch> {
        let here = Interface::by_index(interface.index())?;
        let looked_at = Interface::by_index(interface.index())?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            let (mut down, mut last) = (Duration::ZERO, Instant::now());
            while !over.load(Ordering::Relaxed) {
                let _ = poll_readable(&[], Some(STEP));
                let now = Instant::now();
                if !is_running(&looked_at) {
                    down += now - last;
                }
                last = now;
            }
            down
        });
        let was_running = is_running(&here);
        Ok(LinkWatch { was_running, interface: here, is_over, thread: Some(thread) })
    }

    /// Waits at most 10 s until the link is in the state in which it started; returns true if it
    /// is.
    pub fn wait(&self) -> bool {
        let until = Instant::now() + LINK;
        while self.was_running && !is_running(&self.interface) {
            if Instant::now() >= until {
                return false;
            }
            let _ = poll_readable(&[], Some(STEP));
        }
        true
    }

    /// Returns how long the link was down.
    pub fn stop(mut self) -> Duration {
        self.end()
    }

    fn end(&mut self) -> Duration {
        self.is_over.store(true, Ordering::Relaxed);
        let down = self.thread.take().map(JoinHandle::join);
        down.and_then(std::result::Result::ok).unwrap_or_default()
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_running(interface: &Interface) -> bool {
    interface.flags().is_ok_and(|flags| flags & FLAG_RUNNING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{in_netns, ip, veth, wait_running};

    #[test]
    fn the_time_that_a_link_is_down_is_told() {
        in_netns(|| {
            veth(1500);
            let v0 = Interface::open("v0").unwrap();
            let watch = LinkWatch::start(&v0).unwrap();
            assert!(watch.wait());
            assert_eq!(watch.stop(), Duration::ZERO);
            let watch = LinkWatch::start(&v0).unwrap();
            ip("link set v1 down");
            std::thread::sleep(Duration::from_millis(200));
            ip("link set v1 up");
            wait_running("v0");
            assert!(watch.wait());
            let down = watch.stop();
            assert!(down > Duration::ZERO && down < Duration::from_secs(20), "{down:?}");
        });
    }
}
