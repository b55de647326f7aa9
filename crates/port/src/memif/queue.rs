//! A queue: it exchanges packets through a pair of rings while a peer is connected, and drops
//! packets to send while none is.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Result};

use super::closer::Waste;
use super::config::{Role, Sharing};
use super::control::{CLOSE_TIMEOUT, QUEUE_CLOSED};
use super::copies::{Copies, Stop};
use super::endpoint::Endpoint;
use super::link::Link;
use super::ring::{Checked, ProtocolError};
use super::rings::{LateRings, Rings};
use super::room::Room;
use crate::caps::Caps;
use crate::host::RETRY;
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::{Counters, DriverCounts};

/// Time for which a packet waits for more free slots than there are, while a client that may hold
/// back all others posts none.
pub(super) const SHORT_MAX: Duration = Duration::from_secs(1);

/// One queue of a port.
pub(super) struct MemifQueue {
    end: Endpoint,
    index: usize,
    pool: Pool,
    rings: Rings,
    copies: Copies,
    /// Frames for copies, and for the rings in calls that bring no hot list.
    home: Local,
    /// Time of the next attempt to copy a packet for sending, after the pool had no frame for the
    /// copy.
    retry_at: Option<Instant>,
    /// Time of the next attempt, after the pool had no frame for a packet that waits in the ring.
    starved_until: Option<Instant>,
    /// The wait for room in the ring, which a peer does not signal.
    room: Room,
    /// Packets that a peer had sent and that were not received before it disconnected.
    missed: u64,
    /// Number of free slots at the last attempt, if they were too few for the next packet.
    short: Option<u16>,
    /// Number of free slots that were too few for the next packet, and the time at which it is given
    /// up unless that changes. `None` for a full ring and for a peer that will free the other slots,
    /// for which packets wait without limit.
    stuck: Option<(u16, Instant)>,
    /// Packets that were accepted, and dropped because the peer was lost.
    tx_lost: Moved,
    /// Number of times that packets were published to the peer.
    doorbells: u64,
    is_closed: bool,
}

impl MemifQueue {
    pub fn new(link: Arc<Link>, index: usize, pool: &Pool) -> Result<MemifQueue> {
        let name = format!("memif {}/{index}", link.config.path.display());
        let mut queue = MemifQueue {
            end: Endpoint::new(link, index..index + 1)?,
            index,
            home: pool.local_named(&name, 0),
            pool: pool.clone(),
            rings: Rings::default(),
            copies: Copies::default(),
            retry_at: None,
            starved_until: None,
            room: Room::new(),
            missed: 0,
            short: None,
            stuck: None,
            tx_lost: Moved::default(),
            doorbells: 0,
            is_closed: false,
        };
        while queue.end.is_stale() {
            queue.change();
        }
        queue.end.take_changed();
        Ok(queue)
    }

    /// Takes the rings of a new connection, or releases those of a lost one.
    #[inline]
    fn follow(&mut self) {
        if self.end.is_stale() {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        self.detach();
        let why = "the peer has fewer rings";
        let mut rings = self.end.attach(|_| true, why, "set rings= to one number at both ends");
        if let Some(rings) = rings.pop() {
            self.begin(rings);
        }
    }

    /// Starts using rings, and posts buffers.
    fn begin(&mut self, mut rings: Rings) {
        if let Some(rx) = &mut rings.rx {
            rx.shared().want_bell(false);
            // If watching the doorbell fails, the endpoint wakes a sleeper at intervals.
            let _ = self.end.watch(rx.bell());
            rx.refill(&mut self.home, &mut self.copies);
        }
        self.rings = rings;
    }

    /// Releases the rings, and returns their frames to the pool.
    fn detach(&mut self) {
        let mut rings = self.take_rings();
        self.tx_lost += rings.close(&mut self.home);
        if rings.tx.is_some() || rings.rx.is_some() {
            self.end.retire(rings);
        }
        (self.retry_at, self.starved_until, self.room) = (None, None, Room::new());
        (self.short, self.stuck, self.copies.unfinished) = (None, None, 0);
    }

    /// Takes the rings out of the queue. Packets in them that it has not received are lost, and
    /// counted.
    fn take_rings(&mut self) -> Rings {
        let mut rings = std::mem::take(&mut self.rings);
        if let Some(rx) = &mut rings.rx {
            self.missed += rx.unread() as u64;
            self.end.forget(rx.bell());
        }
        rings
    }

    /// Ends the connection with a peer that violates the protocol.
    #[cold]
    fn disconnect(&mut self, error: ProtocolError) {
        self.end.disconnect(error);
        self.change();
    }

    /// Puts packets into the ring until the ring is full or no packet is left, and publishes them
    /// to the peer; adds them to `moved`, even if it then returns an error.
    fn send(&mut self, mem: &mut Local, batch: &mut Batch, moved: &mut Moved) -> Checked<()> {
        let (before, some) = (moved.packets, !batch.is_empty());
        let sent = self.fill(mem, batch, moved);
        if let Some(tx) = &mut self.rings.tx {
            self.doorbells += u64::from(tx.post());
            self.short = matches!(sent, Ok(Stop::Full)).then(|| tx.room());
            if some {
                let short = self.short.filter(|room| *room > 0).zip(tx.patience());
                let same = self.stuck.filter(|(room, _)| {
                    short.is_some_and(|(now, _)| now == *room) && moved.packets == before
                });
                let begun = |(room, patience)| Some((room, Instant::now().checked_add(patience)?));
                self.stuck = same.or_else(|| short.and_then(begun));
            }
        }
        sent.map(drop)
    }

    fn fill(&mut self, mem: &mut Local, batch: &mut Batch, moved: &mut Moved) -> Checked<Stop> {
        let Some(tx) = &mut self.rings.tx else { return Ok(Stop::Empty) };
        tx.reap(mem)?;
        if self.room.waits() {
            self.room.found(tx.room().into(), tx.size(), Instant::now());
        }
        if !batch.is_empty() {
            self.retry_at = None;
        }
        // Copies need frames of this queue's pool, as in `rx`.
        let is_own = *mem.pool() == self.pool;
        let mut stuck =
            self.stuck.filter(|(room, until)| *room == tx.room() && Instant::now() >= *until);
        loop {
            let (put, stop) = tx.put(batch, &mut self.copies, mem)?;
            *moved += put;
            match stop {
                // The packet needs more slots than the peer may ever free. Those behind it may need
                // fewer.
                Stop::Full if put.packets == 0 && stuck.take().is_some() => {
                    self.stuck = None;
                    batch.discard_first(1, DropReason::TOO_LONG, mem);
                }
                Stop::Empty | Stop::Full | Stop::Offload => return Ok(stop),
                Stop::Never(reason) => batch.discard_first(1, reason, mem),
                Stop::Copy => {
                    let from = if is_own { &mut *mem } else { &mut self.home };
                    if !self.copies.replace_first(from, batch) {
                        self.retry_at = Instant::now().checked_add(RETRY);
                        return Ok(stop);
                    }
                }
            }
        }
    }

    /// Returns the time of the next check for events without a doorbell: a packet that the peer has
    /// processed, room in the ring, a free frame of the pool.
    fn next_look(&mut self, want: Want, full: bool, now: Instant) -> Option<Instant> {
        let sending = self.rings.tx.as_ref().is_some_and(|tx| tx.sending() > 0);
        let full = want.room() && full;
        let look = if sending || full {
            self.room.look_at(full, now)
        } else {
            self.room.end();
            None
        };
        let starved = self.starved_until.filter(|_| want.frames());
        let retry = self.retry_at.filter(|_| want.room());
        let stuck = self.stuck.filter(|_| want.room()).map(|(_, until)| until);
        [look, starved, retry, stuck, self.end.second_look].into_iter().flatten().min()
    }
}

impl QueueOps for MemifQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        if self.end.armed {
            self.end.look();
        }
        self.follow();
        let Some(rx) = &mut self.rings.rx else { return Moved::default() };
        let starved = self.copies.no_frame;
        // Use only frames of this queue's pool: the ring would treat a frame of another pool as one
        // of this pool.
        let mem = if *mem.pool() == self.pool { mem } else { &mut self.home };
        let (moved, received) = rx.receive(&mut self.copies, mem, out, budget);
        self.starved_until = match self.copies.no_frame > starved {
            true => Instant::now().checked_add(RETRY),
            false => None,
        };
        if let Err(error) = received {
            self.disconnect(error);
        }
        if moved.packets > 0 && self.end.belled {
            self.work();
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.follow();
        if self.rings.tx.is_none() {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            return Moved::default();
        }
        let mut moved = Moved::default();
        if let Err(error) = self.send(mem, batch, &mut moved) {
            self.disconnect(error);
        } else if moved.packets > 0 {
            self.room.end();
        }
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        let again = self.end.armed;
        self.end.look();
        self.follow();
        let now = Instant::now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        // Without enough posted frames no packet arrives, and no event says that a frame is free:
        // only `rx` posts frames.
        let is_due = want.frames() && self.starved_until.take_if(|at| *at <= now).is_some();
        // A change that could not be followed has rung its bell already, and does not ring again.
        if self.end.is_stale() || self.end.take_changed() || is_due {
            return false;
        }
        match self.has_work(want, again, now) {
            Ok((true, _)) => false,
            Ok((false, full)) => {
                let alarm = self.next_look(want, full, now);
                self.end.sleep(alarm);
                true
            }
            Err(error) => {
                self.disconnect(error);
                self.end.take_changed();
                false
            }
        }
    }

    fn reap(&mut self, mem: &mut Local) -> usize {
        self.follow();
        // Not as `xmit` does: the room stays too short for the packet that waits for it.
        if let Some(Err(error)) = self.rings.tx.as_mut().map(|tx| tx.reap(mem)) {
            self.disconnect(error);
        }
        self.rings.tx.as_ref().map_or(0, |tx| tx.under_way())
    }

    /// Waits for the control thread, not for the peer: as [`Endpoint::hang_up`] does, which waits
    /// for a moment even if `until` has passed, so that the frames return to the pool at once.
    fn close(&mut self, until: Instant) {
        self.give_up(until);
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.end.set.no_later(at)
    }

    /// Cost: as every driver's; the next `rx` reads the events of the descriptor, a syscall.
    fn hold(&mut self, at: Instant) -> bool {
        self.work();
        // The peer may have rung just before. That event ends this hold, and the next `rx` clears
        // it.
        self.end.armed = true;
        self.end.set.near(Instant::now(), at).is_ok()
    }

    fn health(&self) -> Health {
        self.end.health.clone()
    }

    fn health_kind(&self) -> HealthKind {
        self.end.health.kind()
    }

    fn counters(&mut self) -> Counters {
        // Only the first queue reports the counts of the connection, so that a sum over queues
        // counts them once.
        let once = |count: u64| if self.index == 0 { count } else { 0 };
        let link = &self.end.link;
        let driver = DriverCounts {
            copied_bytes: Some(self.copies.bytes),
            doorbells: Some(self.doorbells),
            missed_unread: self.missed,
            bad_descs: once(link.errors.load(Ordering::Relaxed)),
            resets: once(link.ended.load(Ordering::Relaxed)),
            ..DriverCounts::default()
        };
        let (rx_missed, rx_nombuf) = (self.missed, self.copies.no_frame);
        Counters { rx_missed, rx_nombuf, tx_lost: self.tx_lost, driver, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        let rx_ring_len = self.rings.rx.as_ref().map(|rx| rx.shared().len().into());
        Caps { rx_ring_len, notifies_tx_space: false, stops_at_offloads: true, ..Caps::default() }
    }
}

impl MemifQueue {
    /// Returns true if a wanted event has occurred; otherwise requests the peer's doorbell. The
    /// second value is true if the transmit ring is full.
    fn has_work(&mut self, want: Want, again: bool, now: Instant) -> Checked<(bool, bool)> {
        let mut full = false;
        // If the free slots were too few for the packet, report room again from time to time: the
        // caller's next packet may be shorter.
        let due = again && self.end.set.is_due(now);
        if let Some(tx) = &mut self.rings.tx {
            let before = tx.sending();
            tx.reap(&mut self.home)?;
            if tx.sending() < before {
                self.room.end();
            }
            // A packet that has waited for long enough is dropped by the next `xmit`.
            let given_up = self.stuck.is_some_and(|(_, until)| now >= until);
            let is_short = !tx.has_room()? || (self.short == Some(tx.room()) && !due);
            full = is_short && !given_up;
        }
        // Without a peer there is room, because packets to send are dropped at once. While the next
        // packet waits for a frame for its copy, waking the caller is useless before a frame can be
        // free.
        if want.room() && !full && self.retry_at.is_none() {
            return Ok((true, full));
        }
        // While a received packet waits for a frame, waking the caller is useless before a frame
        // can be free.
        let has_frames = self.rings.rx.as_ref().is_some_and(|rx| rx.has_frames());
        let listens = want.frames() && (has_frames || self.starved_until.is_none());
        let frames = self.listen(listens, now)?;
        Ok((frames, full))
    }

    /// Requests the peer's doorbell if `wanted`; returns true, and requests nothing, if packets
    /// have already arrived.
    fn listen(&mut self, wanted: bool, now: Instant) -> Checked<bool> {
        let Some(rx) = &mut self.rings.rx else { return Ok(false) };
        if self.end.set_belled(wanted, Some(now)) {
            rx.shared().want_bell(wanted);
        }
        // A packet without its end does not count as work, because the peer may never send the end.
        if wanted && rx.ready()? > self.copies.unfinished {
            self.work();
            return Ok(true);
        }
        self.end.second_look = self.end.second_look.filter(|at| *at > now);
        Ok(false)
    }

    /// Stops requesting the peer's doorbell, because the queue has work or is held.
    fn work(&mut self) {
        if self.end.set_belled(false, None)
            && let Some(rx) = &self.rings.rx
        {
            rx.shared().want_bell(false);
        }
    }
}

impl MemifQueue {
    /// Returns true if the connection must end before the rings of a client are given up. Either a
    /// peer that keeps to the protocol may still read or write frames of the pool in them; or this
    /// is the port's only queue, and the peer may still take copies, which would count as lost. A
    /// peer learns of the end a moment later: docs/ports/memif.md says what it can do until then.
    fn must_hang_up(&self) -> bool {
        let config = &self.end.link.config;
        let has_rings = self.rings.tx.is_some() || self.rings.rx.is_some();
        let ends = config.sharing != Sharing::Nothing || config.rings == 1;
        has_rings && config.role == Role::Client && ends
    }

    /// Gives up the rings of a queue that is closed; a second call does nothing.
    fn give_up(&mut self, until: Instant) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.end.link.close_queue();
        }
        // Other queues may keep the connection. So end it before the frames return to the pool:
        // they will belong to other packets. Do not wait for the peer, which could hold up this
        // thread.
        if self.must_hang_up() && !self.end.hang_up(QUEUE_CLOSED, until) {
            // The control thread is late: it will end the connection first, and then have the rings
            // dropped. Packets to send count as sent, because the peer may still take them.
            let rings = LateRings { rings: self.take_rings(), home: self.pool.local_with(0) };
            self.end.link.dispose(Waste::rings(rings));
        }
        self.detach();
    }
}

impl Drop for MemifQueue {
    fn drop(&mut self) {
        self.give_up(Instant::now() + CLOSE_TIMEOUT);
    }
}

impl AsFd for MemifQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}
