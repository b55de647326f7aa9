//! A queue of a port: what comes from the same queue of all peers, and what goes to it.
//!
//! ```text
//!  outside ──► epoll ─┬─ the roster's bell: a peer has come or gone
//!                     ├─ the device's events: a message came, or one was sent       while the caller waits for them
//!                     └─ an alarm: what no event announces
//! ```
//!
//! Owner: the queue has its pairs, its completion queues and the frames in them, so that its thread
//! is the only one that takes its completions. When it is dropped, its pairs end first, and then
//! the frames go back; the control thread ends with the last queue.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Error, Local, Moved, Pool, Result};
use linerate_sys::wait::{EventFlags, NO_EVENT, WaitSet, poll_readable};

use super::control::Control;
use super::nic::Nic;
use super::peers::{Gone, Peer, Peers};
use super::roster::{Change, Reports, Roster};
use super::rx::{Own, Rx};
use super::tx::Tx;
use crate::caps::Caps;
use crate::host::RETRY;
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::{Counters, DriverCounts};

const ALARM: u64 = 0;
const CHANGE: u64 = 1;
const EVENTS: u64 = 2;

/// Time until the next attempt to end the connections of peers that have gone.
const PAUSE: Duration = Duration::from_millis(10);
/// The same if the device has failed.
const PAUSE_FAILED: Duration = Duration::from_secs(1);

/// The parts of which a queue is made.
pub(super) struct Parts<N: Nic> {
    pub nic: N,
    pub control: Arc<Control>,
    pub roster: Arc<Roster<N::Peer, Gone<N::Peer>>>,
    pub pool: Pool,
    /// The port's text up to its options, for errors.
    pub name: String,
    pub rx_len: u32,
    pub tx_len: u32,
    /// Requests for received datagrams; 0 if none come.
    pub datagrams_len: u32,
    /// Longest packet that the port delivers.
    pub longest: usize,
    /// Most peers that have gone and keep their places.
    pub gone_max: usize,
    /// The remedy while there is no peer, and no queue of the port is closed.
    pub remedy: &'static str,
    /// Longest datagram to the group, and our pairs; `None` without a group.
    pub group: Option<(usize, Own)>,
}

/// A queue of a port.
pub(super) struct VerbsQueue<N: Nic> {
    /// `None` once the queue is closed.
    nic: Option<N>,
    roster: Arc<Roster<N::Peer, Gone<N::Peer>>>,
    /// Ended with the last queue.
    control: Arc<Control>,
    /// The registered memory. Declared behind `control`, so that it stays mapped until the control
    /// thread, which shares the registration, has ended.
    pool: Pool,
    name: String,
    rx_len: u32,
    gone_max: usize,
    remedy: &'static str,
    peers: Peers<N::Peer>,
    /// Peers that have gone, each with the last datagram that may name its way.
    leaving: Vec<(u32, Gone<N::Peer>)>,
    changes: Vec<Change<N::Peer>>,
    reports: Reports<Gone<N::Peer>>,
    generation: u32,
    /// Why there is no peer.
    why: String,
    rx: Rx,
    tx: Tx,
    /// Frames for the queues of requests, used when a call brings no hot list.
    home: Local,
    set: WaitSet,
    is_watched: bool,
    /// True if the caller may have slept since the queue last looked.
    armed: bool,
    /// True if the health has changed and the caller has not learned of it.
    changed: bool,
    /// True if the caller has learned that the device has failed.
    failure_reported: bool,
}

impl<N: Nic> VerbsQueue<N> {
    /// Makes a queue, and posts frames.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(parts: Parts<N>) -> Result<VerbsQueue<N>> {
        let Parts { mut nic, control, roster, pool, rx_len, tx_len, group, .. } = parts;
        let mut set = WaitSet::new(ALARM)?;
        let fail = |e| Error::os(Code::System, "cannot wait for an RDMA device", "epoll_ctl", e);
        set.add(&roster.queue_bell, CHANGE, EventFlags::IN).map_err(fail)?;
        // Readable at once, for callers that wait before they arm.
        set.alarm(Some(Instant::now())).map_err(fail)?;
        let mut home = pool.local_named(&parts.name, 0);
        let (most, own) = group.unzip();
        let mut rx = Rx::new(&pool, parts.datagrams_len, parts.longest, own);
        let mut peers = Peers::new(&pool, [rx_len, tx_len]);
        rx.refill(&mut nic, &mut peers, &mut home);
        Ok(VerbsQueue {
            nic: Some(nic),
            generation: roster.generation().wrapping_sub(1),
            roster,
            control,
            tx: Tx::new(&pool, tx_len, most),
            pool,
            name: parts.name,
            rx_len,
            gone_max: parts.gone_max,
            remedy: parts.remedy,
            peers,
            leaving: Vec::new(),
            changes: Vec::new(),
            reports: Reports::default(),
            why: String::new(),
            rx,
            home,
            set,
            is_watched: false,
            armed: true,
            changed: false,
            failure_reported: false,
        })
    }

    /// Waits until `until` for the first peer, so that the port's properties show whether there is
    /// one.
    ///
    /// Cost: blocks. For the opening of a port, never for a worker.
    pub fn meet(&mut self, until: Instant) {
        while self.peers.len() == 0 {
            let left = until.saturating_duration_since(Instant::now());
            let bell = self.roster.queue_bell.as_fd();
            if left.is_zero() || poll_readable(&[bell], Some(left)).is_err() {
                break;
            }
            self.follow();
        }
    }

    /// Returns how often the lock of the roster was taken when the queue needed it.
    #[cfg(test)]
    pub fn contended(&self) -> u64 {
        self.roster.contended.load(Ordering::Relaxed)
    }

    /// Takes the changes of the peers, and gives back what is of no use any more.
    #[inline]
    fn follow(&mut self) {
        let is_new = self.roster.generation() != self.generation;
        if is_new || !self.reports.is_empty() || !self.leaving.is_empty() {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        let kind = self.health_kind();
        if let Some(nic) = &mut self.nic {
            // What a peer took before it left is sent.
            self.tx.reap(nic, &mut self.peers, &mut self.home, &mut self.reports);
        }
        let tx = &self.tx;
        let is_named = |(last, _): &(u32, _)| tx.has_datagram(*last);
        let (still, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(is_named);
        self.leaving = still;
        self.reports.gone.extend(gone.into_iter().map(|(_, gone)| gone));
        let taken = self.roster.exchange(&mut self.changes, &mut self.why, &mut self.reports);
        let Some(generation) = taken else { return };
        self.generation = generation;
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Joined(joined) => self.peers.add(joined),
                Change::Left(id) => {
                    // A caller that does not receive takes no completions, and each peer keeps its
                    // frames.
                    if self.peers.gone() >= self.gone_max
                        && let Some(peer) = self.peers.take_gone(u64::MAX)
                    {
                        self.remove(peer);
                    }
                    let last = self.rx.last(&self.peers);
                    self.peers.leave(id, last);
                }
            }
        }
        if let Some(nic) = &mut self.nic {
            self.rx.refill(nic, &mut self.peers, &mut self.home);
        }
        self.changed |= self.health_kind() != kind || self.peers.len() == 0;
    }

    /// Removes peers that have gone, and of whose messages none is left after `taken` completions.
    fn remove_gone(&mut self, taken: u64) {
        while let Some(peer) = self.peers.take_gone(taken) {
            self.remove(peer);
        }
    }

    /// Removes a peer; packets that it has not taken are dropped when its connection has ended.
    fn remove(&mut self, peer: Peer<N::Peer>) {
        self.tx.forget(&peer);
        let gone = Gone::of(peer);
        match self.tx.last_datagram() {
            Some(last) => self.leaving.push((last, gone)),
            None => self.reports.gone.push(gone),
        }
    }

    /// Reads and clears the events of the descriptor.
    ///
    /// Cost: a syscall; one more for each event.
    fn look(&mut self) {
        self.armed = false;
        let mut events = [NO_EVENT; 4];
        let n = self.set.wait(&mut events, Some(Duration::ZERO)).unwrap_or(0);
        // Copy the field, because the kernel's structure is packed.
        let has_events = events[..n].iter().any(|event| { event.data }.u64() == EVENTS);
        if let (Some(nic), true) = (&mut self.nic, has_events) {
            nic.drain();
        }
    }

    /// Watches the device's events, or does not; returns true if that was done.
    fn watch(&mut self, wanted: bool) -> bool {
        let Some(nic) = &self.nic else { return !wanted };
        if wanted != self.is_watched {
            let done = match wanted {
                true => self.set.add(nic.events(), EVENTS, EventFlags::IN).is_ok(),
                false => self.set.delete(nic.events()).is_ok(),
            };
            self.is_watched ^= done;
        }
        wanted == self.is_watched
    }

    /// Asks for events of what is wanted; returns true if it has occurred already.
    fn ask(&mut self, want: Want) -> bool {
        let Some(nic) = &mut self.nic else { return false };
        nic.drain();
        let asked = match (want.frames(), want.room()) {
            (true, true) => nic.arm_received().and(nic.arm_sent()),
            (true, false) => nic.arm_received(),
            _ => nic.arm_sent(),
        };
        if let Err(e) = asked {
            self.rx.failed.get_or_insert(format!("it gives no events: {e}"));
            return true;
        }
        // What came before makes no event.
        self.tx.reap(nic, &mut self.peers, &mut self.home, &mut self.reports);
        let frames = want.frames() && self.rx.look(nic);
        if want.frames() && !frames {
            self.remove_gone(u64::MAX);
        }
        frames || (want.room() && self.tx.has_room(&self.peers))
    }

    /// Returns true if the device has failed, once.
    fn is_news(&mut self) -> bool {
        self.failed().is_some() && !std::mem::replace(&mut self.failure_reported, true)
    }

    fn failed(&self) -> Option<&str> {
        self.rx.failed.as_deref().or(self.tx.failed.as_deref())
    }
}

impl<N: Nic> QueueOps for VerbsQueue<N> {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        if self.armed {
            self.look();
        }
        self.follow();
        // A caller that polls sees a new peer by its packets; the end of all peers is for `arm` to
        // tell.
        self.changed &= self.peers.len() == 0;
        let Some(nic) = &mut self.nic else { return Moved::default() };
        // Frames of another pool would be lent as if they were this one's.
        let mem = if *mem.pool() == self.pool { mem } else { &mut self.home };
        self.tx.reap(nic, &mut self.peers, mem, &mut self.reports);
        let (moved, is_dry) =
            self.rx.receive(nic, &mut self.peers, mem, out, budget, &mut self.reports);
        self.remove_gone(if is_dry { u64::MAX } else { self.rx.taken });
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.follow();
        let is_down = self.peers.len() == 0 || self.failed().is_some();
        let Some(nic) = self.nic.as_mut().filter(|_| !is_down) else {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            return Moved::default();
        };
        self.tx.reap(nic, &mut self.peers, mem, &mut self.reports);
        self.tx.send(nic, &mut self.peers, mem, batch, &mut self.reports)
    }

    fn reap(&mut self, mem: &mut Local) -> usize {
        self.follow();
        let Some(nic) = &mut self.nic else { return 0 };
        self.tx.reap(nic, &mut self.peers, mem, &mut self.reports);
        if self.failed().is_some() { 0 } else { self.tx.sending() }
    }

    fn arm(&mut self, want: Want) -> bool {
        self.look();
        self.follow();
        let now = Instant::now();
        // A change that could not be followed has rung its bell already.
        let is_stale = self.roster.generation() != self.generation;
        if is_stale || std::mem::take(&mut self.changed) || self.is_news() {
            return false;
        }
        let has_failed = self.failed().is_some();
        // Packets to send are dropped at once.
        if want.room() && (self.peers.len() == 0 || has_failed) {
            return false;
        }
        // A device that has failed makes no event for what it received before.
        if has_failed && want.frames() && self.nic.as_mut().is_some_and(|nic| self.rx.look(nic)) {
            return false;
        }
        // Without posted frames no packet arrives, and no event says that a frame is free: only
        // `rx` posts frames.
        let is_due = want.frames() && self.rx.starved.is_due();
        if !has_failed && (is_due || self.ask(want) || self.is_news()) {
            return false;
        }
        let is_watched = self.watch(!has_failed);
        if !is_watched && self.nic.is_none() {
            return false;
        }
        // A device that has failed may complete no datagram more.
        let pause = if has_failed && self.reports.is_empty() { PAUSE_FAILED } else { PAUSE };
        let times = [
            self.rx.starved.at().filter(|_| want.frames() && !has_failed),
            self.tx.starved_until().filter(|_| want.room()),
            self.tx.look_at().filter(|_| !want.room() && !has_failed),
            (!self.reports.is_empty() || !self.leaving.is_empty()).then_some(now + pause),
            // epoll refuses a watch if the user has too many: then no event ends the sleep.
            (!is_watched).then_some(now + RETRY),
        ];
        // Setting the alarm cannot fail, because its descriptor is a timer.
        let _ = self.set.alarm(times.into_iter().flatten().min());
        self.armed = true;
        true
    }

    fn close(&mut self, _: Instant) {
        self.end();
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.set.no_later(at)
    }

    fn hold(&mut self, at: Instant) -> bool {
        self.watch(false);
        self.armed = true;
        self.set.near(Instant::now(), at).is_ok()
    }

    fn health(&self) -> Health {
        let error = |code, why: &str| Error::new(code, format!("cannot use {}", self.name), why);
        match self.failed() {
            Some(why) => Health::Failed(error(Code::System, why)),
            None if self.peers.len() == 0 => {
                let why = format!("no peer: {}", self.why);
                let has_closed = self.control.has_closed.load(Ordering::Relaxed);
                let fix = if has_closed { "open the port again" } else { self.remedy };
                Health::Down(error(Code::DeviceDown, &why).fix(fix))
            }
            None => Health::Up,
        }
    }

    fn health_kind(&self) -> HealthKind {
        match self.failed() {
            Some(_) => HealthKind::Failed,
            None if self.peers.len() == 0 => HealthKind::Down,
            None => HealthKind::Up,
        }
    }

    fn counters(&mut self) -> Counters {
        let driver = DriverCounts {
            copied_bytes: Some(self.tx.copied_bytes),
            doorbells: Some(self.tx.doorbells),
            bad_descs: self.rx.bad_completions,
            resets: self.roster.ended.load(Ordering::Relaxed),
            ..DriverCounts::default()
        };
        let (rx_missed, rx_nombuf) = (self.rx.missed, self.rx.rx_nombuf);
        Counters { rx_missed, rx_nombuf, tx_lost: self.tx.lost, driver, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps { rx_ring_len: Some(self.rx_len), ..Caps::default() }
    }
}

impl<N: Nic> VerbsQueue<N> {
    /// Ends the pairs, and then gives the frames back; a second call does nothing.
    fn end(&mut self) {
        if self.nic.is_none() {
            return;
        }
        self.control.has_closed.store(true, Ordering::Relaxed);
        // Ways that the queue has not taken hold no frames; the rest of a peer ends its pair before
        // its frames go back.
        let rest = self.roster.close();
        if let Some(nic) = &self.nic {
            let _ = self.set.delete(nic.events());
        }
        // The UD queue pair ends before the addresses that its requests name.
        self.nic = None;
        drop(rest);
        while let Some(peer) = self.peers.pop() {
            self.tx.forget(&peer);
            let has_failed = peer.has_failed;
            let reason = if has_failed { DropReason::PEER_GONE } else { DropReason::DEVICE_DOWN };
            Gone::of(peer).end(reason);
        }
        self.leaving.clear();
        self.reports = Reports::default();
        // All pairs have ended: what is in the tables goes back to the pool as they are dropped.
        self.tx.end();
    }
}

impl<N: Nic> Drop for VerbsQueue<N> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<N: Nic> AsFd for VerbsQueue<N> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
