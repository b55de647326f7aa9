//! A queue on an interface of the host: the state, descriptor and sleeping that these drivers
//! share.
//!
//! ```text
//!   HostQueue ─┬─ Host ─┬─ Link   up, down or gone
//!              │        └─ Bell   the descriptor that the caller sleeps on
//!              └─ HostDevice      packet, tap, xdp: how packets are exchanged with the kernel
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Weak;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local, Moved};

use crate::caps::Caps;
use crate::moderation::HoldControl;
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::Counters;

use super::{Bell, Link};

/// The interface of a queue, and the descriptor that its caller sleeps on.
pub(crate) struct Host {
    pub link: Link,
    pub bell: Bell,
}

/// The device of a queue: the part that differs between the drivers.
pub(crate) trait HostDevice: Send {
    /// Returns the descriptor to watch; `None` if there is none at present.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Receives as [`QueueOps::rx`] does.
    fn rx(&mut self, host: &mut Host, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved;

    /// Sends as [`QueueOps::xmit`] does; the caller has refreshed the link.
    fn xmit(&mut self, host: &mut Host, mem: &mut Local, batch: &mut Batch) -> Moved;

    /// Takes back sent packets as [`QueueOps::reap`] does; the caller has refreshed the link.
    fn reap(&mut self, host: &mut Host, mem: &mut Local) -> usize {
        let _ = (host, mem);
        0
    }

    /// Queries the interface, which is down; the query is due.
    fn query(&mut self, host: &mut Host) {
        host.link.look();
    }

    /// Closes the device as [`QueueOps::close`] does.
    fn close(&mut self, until: Instant) {
        let _ = until;
    }

    /// Finds out why an armed queue was woken without a packet.
    fn look(&mut self, host: &mut Host);

    /// Returns true if a wanted event has occurred: packets to receive, or room.
    fn is_ready(&mut self, host: &mut Host, want: Want) -> bool;

    /// Returns the wanted events that the descriptor signals, and the time at which the caller must
    /// check for the others.
    fn awaits(&mut self, link: &Link, want: Want) -> (Option<Want>, Option<Instant>);

    /// Returns the state of the queue.
    fn health(&self, link: &Link) -> Health {
        link.health().clone()
    }

    /// Returns the state as [`QueueOps::health_kind`] does.
    fn health_kind(&self, link: &Link) -> HealthKind {
        link.health().kind()
    }

    /// Returns the control of the device's hold as [`QueueOps::hold_control`] does.
    fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        None
    }

    /// Returns the counters as [`QueueOps::counters`] does.
    fn counters(&mut self) -> Counters;

    /// Returns the current capabilities of the queue.
    fn caps(&self) -> Caps;
}

/// One queue of an interface.
pub(crate) struct HostQueue<D> {
    pub host: Host,
    pub device: D,
    /// The events for which `arm` has returned true, if the cause of a wake-up since then was not
    /// checked yet.
    armed: Option<Want>,
    /// Time of the next check of an idle queue that is not armed.
    check_at: Option<Instant>,
}

/// Interval of checks of a queue that is neither polled nor armed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl<D: HostDevice> HostQueue<D> {
    /// Creates the queue of `device` on the interface of `link`; `bell` watches the device's
    /// descriptor.
    pub fn new(link: Link, bell: Bell, device: D) -> HostQueue<D> {
        HostQueue { host: Host { link, bell }, device, armed: None, check_at: None }
    }

    /// Records that the device had work although no caller waited for it.
    fn busy(&mut self) {
        if let Some(watched) = self.device.descriptor() {
            self.host.bell.busy(watched);
        }
    }

    /// Queries the interface if it is down and the query is due.
    ///
    /// Cost: as [`Link::is_query_due`]; then that of [`HostDevice::query`].
    fn refresh(&mut self) {
        if self.host.link.is_query_due() {
            self.device.query(&mut self.host);
        }
    }

    /// Checks the interface of a queue that nothing else checks: one that is only written is
    /// neither polled nor armed.
    ///
    /// Cost: a clock read; some syscalls once in [`CHECK_INTERVAL`].
    fn check_idle(&mut self) {
        let now = Instant::now();
        if self.check_at.is_some_and(|at| now < at) {
            return;
        }
        self.check_at = now.checked_add(CHECK_INTERVAL);
        if let Some(watched) = self.device.descriptor() {
            // The bell does not watch a device that was busy, and would not know of its errors. What
            // it rings for stays: a caller may be in a hold, or may never have armed.
            self.host.bell.watch_errors(watched);
        }
        self.device.look(&mut self.host);
        self.device.query(&mut self.host);
    }

    fn look(&mut self) {
        self.armed = None;
        self.device.look(&mut self.host);
    }
}

impl<D: HostDevice> QueueOps for HostQueue<D> {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let moved = self.device.rx(&mut self.host, mem, out, budget);
        if moved.packets > 0 {
            self.busy();
            self.armed = None;
        } else {
            self.refresh();
            if self.armed.is_some() {
                self.look();
            }
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.refresh();
        let moved = self.device.xmit(&mut self.host, mem, batch);
        let waits = match self.armed {
            // The room that was waited for was there.
            Some(Want::Room) => moved.packets == 0,
            Some(Want::Frames | Want::Both) => true,
            None => false,
        };
        if !waits {
            self.armed = None;
            self.busy();
        }
        moved
    }

    fn reap(&mut self, mem: &mut Local) -> usize {
        self.refresh();
        let left = self.device.reap(&mut self.host, mem);
        if left == 0 && self.armed.is_none() {
            self.check_idle();
        }
        left
    }

    fn arm(&mut self, want: Want) -> bool {
        self.refresh();
        if self.armed.is_some() {
            self.look();
        }
        let ready = self.device.is_ready(&mut self.host, want);
        let Host { link, bell } = &mut self.host;
        // There is always room in a device that is not up, because it drops the packets that it
        // accepts.
        if link.take_news() || ready || (want.room() && !link.is_up()) {
            return false;
        }
        let (watch, alarm) = self.device.awaits(link, want);
        let alarm = [alarm, link.query_at()].into_iter().flatten().min();
        match self.device.descriptor() {
            Some(watched) => bell.watch(watched, watch, alarm),
            None => bell.alarm(alarm),
        }
        self.armed = Some(want);
        true
    }

    fn close(&mut self, until: Instant) {
        self.device.close(until);
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.host.bell.no_later(at)
    }

    fn hold(&mut self, at: Instant) -> bool {
        self.device.descriptor().is_some_and(|watched| self.host.bell.hold(watched, at))
    }

    fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        self.device.hold_control()
    }

    fn health(&self) -> Health {
        self.device.health(&self.host.link)
    }

    fn health_kind(&self) -> HealthKind {
        self.device.health_kind(&self.host.link)
    }

    fn counters(&mut self) -> Counters {
        self.device.counters()
    }

    fn caps(&self) -> Caps {
        Caps { is_interface: true, ..self.device.caps() }
    }
}

impl<D> AsFd for HostQueue<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.host.bell.as_fd()
    }
}
