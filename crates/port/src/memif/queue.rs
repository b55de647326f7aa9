//! A queue: a ring each way while there is a peer, and what becomes of packets and frames when there
//! is none.
//!
//! ```text
//!  outside ──► epoll ─┬─ the socket's side: a peer that connects, speaks or goes      (any queue's work)
//!                     ├─ news: another queue has dealt with it
//!                     ├─ the doorbell that the peer rings, if it is to                (edge-triggered:
//!                     └─ an alarm: what nobody announces                               never read)
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Error, Local, Moved, Pool, Result};
use linerate_sys::wait::{Epoll, EventFlags, NO_EVENT, TimerFd};

use super::copies::{Copies, Stop};
use super::link::Link;
use super::ring::Lie;
use super::room::Room;
use super::session::{Receiver, Sender, Session};
use crate::caps::Caps;
use crate::host::RETRY;
use crate::queue::{Health, QueueOps, Want};
use crate::stats::{Counters, DriverCounts};

/// Calls that found nothing, after which a busy queue looks at the socket.
const IDLE_CALLS: u32 = 256;

const CONTROL: u64 = 0;
const NEWS: u64 = 1;
const ALARM: u64 = 2;
const BELL: u64 = 3;

/// One queue of a port.
pub(super) struct MemifQueue {
    link: Arc<Link>,
    index: usize,
    pool: Pool,
    generation: u32,
    health: Health,
    session: Session,
    copies: Copies,
    scratch: Vec<u8>,
    /// Frames for copies, and of the rings when nobody calls with a hot list.
    home: Local,
    set: Epoll,
    timer: TimerFd,
    alarm: Option<Instant>,
    /// The queue was armed, and its descriptor has not been looked at since.
    armed: bool,
    /// The health has changed, and the caller does not know yet.
    news: bool,
    idle_calls: u32,
    /// The peer is to ring for what it sends.
    listens: bool,
    /// When a sleeper looks a second time: a peer may have published just before it saw that it is to ring.
    second_look: Option<Instant>,
    /// The pool had no frame for a copy of what is sent.
    retry_at: Option<Instant>,
    /// The pool had no frame for what waits in the ring: when to try again.
    starved_until: Option<Instant>,
    /// The wait for room on a ring, which no peer announces.
    room: Room,
    /// Descriptors that a peer had filled, and that were not read when it went.
    missed: u64,
    /// The room that was not enough for what is to be sent next.
    short: Option<u16>,
}

impl MemifQueue {
    pub fn new(link: Arc<Link>, index: usize, pool: &Pool) -> Result<MemifQueue> {
        let (set, timer) = (Epoll::new()?, TimerFd::new()?);
        let fail = |e| Error::os(Code::System, "cannot wait for a peer", "epoll_ctl", e);
        set.add(&*link.watch, CONTROL, EventFlags::IN).map_err(fail)?;
        set.add(link.news(index), NEWS, EventFlags::IN).map_err(fail)?;
        set.add(&timer, ALARM, EventFlags::IN).map_err(fail)?;
        // Readable for whoever waits before he arms.
        let alarm = Some(Instant::now());
        timer.set_at(alarm).map_err(fail)?;
        let name = format!("memif {}/{index}", link.config.path.display());
        let mut queue = MemifQueue {
            home: pool.local_named(&name, 0),
            pool: pool.clone(),
            generation: 0,
            health: Health::Up,
            session: Session { tx: None, rx: None },
            copies: Copies::default(),
            scratch: Vec::new(),
            set,
            timer,
            alarm,
            armed: true,
            news: false,
            idle_calls: 0,
            listens: false,
            second_look: None,
            retry_at: None,
            starved_until: None,
            room: Room::new(),
            missed: 0,
            short: None,
            link,
            index,
        };
        queue.change();
        queue.news = false;
        Ok(queue)
    }

    /// Takes note of a connection that has come or gone.
    #[inline]
    fn follow(&mut self) {
        if self.link.generation() != self.generation {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        self.let_go();
        self.link.news(self.index).drain();
        let (generation, health, session) = self.link.take(self.index);
        self.news |= self.health != health;
        (self.generation, self.health) = (generation, health);
        match session {
            Some(session) => self.begin(session),
            None if self.health == Health::Up => {
                let what =
                    format!("memif {} queue {}", self.link.config.path.display(), self.index);
                let why = "the peer has fewer rings";
                self.health = Health::Down(Error::new(Code::DeviceDown, what, why));
            }
            None => {}
        }
    }

    /// Begins to work on rings: buffers are posted at once.
    fn begin(&mut self, mut session: Session) {
        if let Some(rx) = &mut session.rx {
            rx.want_bell(false);
            (self.listens, self.second_look) = (false, None);
            // Without it a sleeper would have to look, as it does for what is not announced.
            let interest = EventFlags::IN | EventFlags::ET;
            let _ = self.set.add(rx.bell(), BELL, interest);
            if let Receiver::Client(rx) = rx {
                rx.refill(&mut self.home, &mut self.copies);
            }
        }
        self.session = session;
    }

    /// Gives up the rings, and returns their frames to the pool.
    fn let_go(&mut self) {
        let Session { tx, rx } =
            std::mem::replace(&mut self.session, Session { tx: None, rx: None });
        if let Some(mut rx) = rx {
            // What it had sent goes with it, unseen.
            self.missed += u64::from(rx.ready().unwrap_or(0));
            let _ = self.set.delete(rx.bell());
            if let Receiver::Client(mut rx) = rx {
                rx.close(&mut self.home);
            }
        }
        if let Some(Sender::Client(mut tx)) = tx {
            // What it has taken is sent, also if it went right after; of a liar's word nothing is lost.
            let _ = tx.reap(&mut self.home);
            tx.close();
        }
        (self.retry_at, self.starved_until, self.room) = (None, None, Room::new());
        (self.short, self.copies.unfinished) = (None, 0);
    }

    /// Ends the connection with a peer that has lied.
    #[cold]
    fn accuse(&mut self, lie: Lie) {
        self.link.accuse(lie, self.generation);
        self.change();
    }

    /// Looks who rang.
    ///
    /// Cost: a syscall, and what there is to do.
    fn look(&mut self) {
        self.armed = false;
        let mut events = [NO_EVENT; 4];
        let n = self.set.wait(&mut events, Some(Duration::ZERO)).unwrap_or(0);
        // Copies, because the kernel's structure is packed.
        if events[..n].iter().any(|&e| { e.data }.u64() == CONTROL) {
            self.link.service();
        }
        self.follow();
    }

    /// Puts packets into the ring until it is full, or none are left, and lets the peer see them; adds to
    /// `moved` what they were, also where a lie ends it.
    fn send(
        &mut self,
        mem: &mut Local,
        batch: &mut Batch,
        moved: &mut Moved,
    ) -> std::result::Result<(), Lie> {
        let sent = self.fill(mem, batch, moved);
        if let Some(tx) = &mut self.session.tx {
            tx.post();
            self.short = matches!(sent, Ok(Stop::Full)).then(|| tx.room());
        }
        sent.map(|_| ())
    }

    fn fill(
        &mut self,
        mem: &mut Local,
        batch: &mut Batch,
        moved: &mut Moved,
    ) -> std::result::Result<Stop, Lie> {
        let Some(tx) = &mut self.session.tx else { return Ok(Stop::Empty) };
        tx.reap(mem)?;
        if self.room.waits() {
            self.room.found(tx.room().into(), tx.size(), Instant::now());
        }
        loop {
            let Some(tx) = &mut self.session.tx else { return Ok(Stop::Empty) };
            let (put, stop) = tx.put(batch, &mut self.copies, mem)?;
            *moved += put;
            match stop {
                Stop::Empty | Stop::Full | Stop::Offload => return Ok(stop),
                Stop::Never(reason) => batch.discard_first(1, reason, mem),
                Stop::Copy if !self.copy_first(mem, batch) => return Ok(stop),
                Stop::Copy => {}
            }
        }
    }

    /// Puts a copy in a frame of the pool in the place of the first packet; false without a frame.
    #[cold]
    fn copy_first(&mut self, mem: &mut Local, batch: &mut Batch) -> bool {
        let Some(skb) = batch.iter_mut().next() else { return false };
        if skb.len() > self.pool.packet_max_bytes() {
            batch.discard_first(1, DropReason::TOO_LONG, mem);
            return true;
        }
        self.scratch.resize(skb.len(), 0);
        let n = skb.copy_to(0, &mut self.scratch);
        let Some(copy) = self.home.alloc_copy(&self.scratch[..n]) else {
            self.retry_at = Instant::now().checked_add(RETRY);
            return false;
        };
        self.copies.bytes += n as u64;
        *skb = copy;
        true
    }

    /// Returns the time of the next look for events that have no doorbell: a packet that the peer
    /// is done with, room, a free frame.
    fn alarm(&mut self, want: Want, full: bool) -> Option<Instant> {
        let now = Instant::now();
        let sending = self.session.tx.as_ref().map_or(0, Sender::sending);
        let full = want.room() && full;
        let look = match sending > 0 || full {
            true => self.room.look_at(full, now),
            false => {
                self.room.end();
                None
            }
        };
        let starved = self.starved_until.filter(|_| want.frames());
        [look, starved, self.retry_at, self.second_look].into_iter().flatten().min()
    }
}

impl QueueOps for MemifQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        if self.armed {
            self.look();
        }
        self.follow();
        // Frames of another pool would be lent as if they were this one's.
        let home = *mem.pool() != self.pool;
        let Some(rx) = &mut self.session.rx else {
            self.idle();
            return Moved::default();
        };
        let starved = self.copies.no_frame;
        let (moved, lie) = match home {
            true => rx.receive(&mut self.copies, &mut self.home, out, budget),
            false => rx.receive(&mut self.copies, mem, out, budget),
        };
        self.starved_until = match self.copies.no_frame > starved {
            true => Instant::now().checked_add(RETRY),
            false => None,
        };
        if let Err(lie) = lie {
            self.accuse(lie);
        }
        if moved.packets == 0 {
            self.idle();
        } else {
            self.idle_calls = 0;
            if self.listens {
                self.work();
            }
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.follow();
        if self.session.tx.is_none() {
            // Who only sends looks nowhere else at the socket, and drops until there is a peer.
            self.link.service();
            self.follow();
        }
        if self.session.tx.is_none() {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            return Moved::default();
        }
        let mut moved = Moved::default();
        if let Err(lie) = self.send(mem, batch, &mut moved) {
            self.accuse(lie);
        } else if moved.packets > 0 {
            self.room.end();
        } else {
            self.idle();
        }
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        let again = self.armed;
        self.look();
        let now = Instant::now();
        self.retry_at = self.retry_at.filter(|at| *at > now);
        self.starved_until = self.starved_until.filter(|at| *at > now);
        if std::mem::take(&mut self.news) {
            return false;
        }
        match self.here(want, again) {
            Ok(None) => {}
            Ok(Some(alarm)) => {
                if alarm != self.alarm && self.timer.set_at(alarm).is_ok() {
                    self.alarm = alarm;
                }
                self.armed = true;
                return true;
            }
            Err(lie) => {
                self.accuse(lie);
                self.news = false;
            }
        }
        false
    }

    fn reap(&mut self, mem: &mut Local) -> usize {
        // Nobody else looks whether the peer has gone meanwhile.
        self.link.service();
        self.xmit(mem, &mut Batch::with_capacity(0));
        self.session.tx.as_ref().map_or(0, Sender::under_way)
    }

    fn alarm(&mut self, at: Instant) -> bool {
        if self.alarm.is_none_or(|alarm| at < alarm) && self.timer.set_at(Some(at)).is_ok() {
            self.alarm = Some(at);
        }
        self.alarm.is_some_and(|alarm| alarm <= at)
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    fn counters(&mut self) -> Counters {
        // What is the connection's is told by one queue.
        let once = |count: u64| if self.index == 0 { count } else { 0 };
        let driver = DriverCounts {
            copied_bytes: Some(self.copies.bytes),
            bad_descs: once(self.link.lies.load(Ordering::Relaxed)),
            resets: once(self.link.ended.load(Ordering::Relaxed)),
            ..DriverCounts::default()
        };
        let (rx_missed, rx_nombuf) = (self.missed, self.copies.no_frame);
        Counters { rx_missed, rx_nombuf, driver, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        let rx_ring_len = self.session.rx.as_ref().map(|rx| rx.size().into());
        Caps { rx_ring_len, notifies_tx_space: false, stops_at_offloads: true, ..Caps::default() }
    }
}

impl MemifQueue {
    /// Looks at the socket, once in many calls that found nothing: who polls is not woken by it.
    #[inline]
    fn idle(&mut self) {
        self.idle_calls += 1;
        if self.idle_calls >= IDLE_CALLS {
            self.idle_calls = 0;
            self.link.service();
        }
    }

    /// `None` if what is wanted is there, else when to be woken at the latest: the peer is to ring now.
    fn here(
        &mut self,
        want: Want,
        again: bool,
    ) -> std::result::Result<Option<Option<Instant>>, Lie> {
        let (mut full, now) = (false, Instant::now());
        // Whoever waits for room that was not enough tries again now and then: what is to be sent may
        // be another packet.
        let due = again && self.alarm.is_some_and(|at| at <= now);
        if let Some(tx) = &mut self.session.tx {
            let before = tx.sending();
            tx.reap(&mut self.home)?;
            if tx.sending() < before {
                self.room.end();
            }
            let room = tx.has_room()?;
            let short = self.short == Some(tx.room()) && !due;
            full = !room || short;
        }
        // Without a peer, what is sent is dropped at once.
        if want.room() && !full {
            return Ok(None);
        }
        // What waits for a frame is not worth a call before there may be one.
        if self.listen(want.frames() && self.starved_until.is_none(), now)? {
            return Ok(None);
        }
        Ok(Some(self.alarm(want, full)))
    }

    /// Has the peer ring for what it sends, if that is `wanted`; true, and it does not ring, if there is
    /// something already.
    fn listen(&mut self, wanted: bool, now: Instant) -> std::result::Result<bool, Lie> {
        let Some(rx) = &mut self.session.rx else { return Ok(false) };
        if wanted != self.listens {
            rx.want_bell(wanted);
            self.listens = wanted;
            // Once after it fell asleep, not each time it looks.
            self.second_look = if wanted { now.checked_add(RETRY) } else { None };
        }
        // The beginning of a packet, whose end a peer may never send, is nothing.
        if wanted && rx.ready()? > self.copies.unfinished {
            self.work();
            return Ok(true);
        }
        self.second_look = self.second_look.filter(|at| *at > now);
        Ok(false)
    }

    /// Has the peer not ring: there is work.
    fn work(&mut self) {
        if let (true, Some(rx)) = (self.listens, &self.session.rx) {
            rx.want_bell(false);
        }
        (self.listens, self.second_look) = (false, None);
    }
}

impl Drop for MemifQueue {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl AsFd for MemifQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
