//! Two connected ports in this process: each receives the packets that the other sends, in the same
//! frames, without a copy.
//!
//! ```text
//!  end 0   tx ──────── ring of handles ────────► rx   end 1      packets in a ring are in flight:
//!          rx ◄──────── ring of handles ──────── tx              neither sent nor received yet
//!          bell 0                             bell 1
//! ```
//!
//! An end that sleeps says in its waiter word what for; the other rings its bell only then. An end
//! that is gone takes nothing more: what is sent to it is dropped as `peer_gone`, and what it had
//! not received is freed when the other end goes too.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use linerate_ring::{Consumer, Events, Heap, Producer, Waiter, Waker, heap, waiter};
use linerate_skb::{Batch, Code, DropReason, Error, Local, Moved, Pool, Result, Tally};
use linerate_sys::wait::EventFd;

use crate::caps::{Caps, Origin};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::obtained::Obtained;
use crate::queue::{Health, QueueOps, Want};
use crate::spec::Spec;

/// The driver's name.
pub const NAME: &str = "ring";
/// Default number of packets in each direction.
const LEN: u32 = 1024;
/// Length of the longest packet, a chain of frames, which passes as one handle.
const PACKET_MAX_BYTES: usize = 1 << 16;
/// Most handles that are popped in one step.
const STRIDE: usize = 64;

/// The driver of `ring:NAME[,len=1024]`: two ends with one name, in one process.
#[derive(Debug)]
pub struct Ring;

impl Driver for Ring {
    fn name(&self) -> &'static str {
        NAME
    }

    fn help(&self) -> DriverHelp {
        DriverHelp { usage: "ring:NAME", text: "one of the two ends of a ring in this process" }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { paired: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        let read = |text: &str| text.parse().map_err(|_| "a power of two, such as 1024");
        let len = spec.value("len", read)?.unwrap_or(LEN);
        spec.finish()?;
        Ok(Box::new(RingPlan { name: spec.arg.clone(), len }))
    }
}

struct RingPlan {
    name: String,
    len: u32,
}

impl Plan for RingPlan {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { ring_frames: frames(self.len), ..Needs::default() })
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        cx.meet(NAME, &self.name, |pool| pair(&self.name, self.len, pool))
    }
}

/// Returns the number of frames that a pair of rings of `len` packets in each direction can hold,
/// which each end reports.
#[must_use]
pub const fn frames(len: u32) -> usize {
    2 * len as usize
}

/// Returns both ends of a pair of rings of `len` packets in each direction. The ledger of `pool`
/// counts the packets in them, as `ring NAME forth` from the first end to the second, and as `ring
/// NAME back` for the other direction.
///
/// # Errors
/// `E-PORT-SYNTAX` unless `len` is a power of two; `E-SYSTEM` without descriptors.
pub fn pair(name: &str, len: u32, pool: &Pool) -> Result<(Opened, Opened)> {
    let ring = || {
        heap::<u32>(len).map_err(|e| {
            Error::new(Code::PortSyntax, format!("cannot make ring {name}"), e.to_string())
                .fix("a power of two, such as len=1024")
        })
    };
    let ((tx0, rx1), (tx1, rx0)) = (ring()?, ring()?);
    let ((waiter0, waker0), (waiter1, waker1)) = (waiter(), waiter());
    let link = Arc::new(Link {
        bells: [EventFd::new()?, EventFd::new()?],
        gone: [AtomicBool::new(false), AtomicBool::new(false)],
        parked: Mutex::new(Vec::new()),
    });
    // A queue starts readable: a caller that waits before it arms then finds no packet.
    link.bells.iter().for_each(EventFd::signal);
    let end = |side, tx, rx, waiter, waker| {
        let way = if side == 0 { "back" } else { "forth" };
        let inbox = Inbox { rx, tally: pool.tally(&format!("ring {name} {way}")), tallied: 0 };
        let (link, inbox) = (link.clone(), Some(inbox));
        let end = End { side, tx, inbox, waiter, waker, link, told_end: false, finished: false };
        let mode = format!("ring of {len}, zero copy");
        Opened::single(end, Obtained::new(name, mode, PACKET_MAX_BYTES))
    };
    Ok((end(0, tx0, rx0, waiter0, waker1), end(1, tx1, rx1, waiter1, waker0)))
}

/// The state that both ends share.
struct Link {
    bells: [EventFd; 2],
    gone: [AtomicBool; 2],
    /// Receiving halves of the ends that were closed.
    parked: Mutex<Vec<Inbox>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        // Both ends are closed, so that no packet can enter the rings any more.
        let parked = std::mem::take(self.parked.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut batch = Batch::with_capacity(STRIDE);
        for mut inbox in parked {
            while inbox.pop(&mut batch, STRIDE) > 0 {
                batch.discard(DropReason::PEER_GONE);
            }
        }
    }
}

/// The receiving half of a ring.
struct Inbox {
    rx: Consumer<Heap<u32>>,
    /// The ledger's count of the packets that wait here, as of the end's last check.
    tally: Tally,
    tallied: u32,
}

impl Inbox {
    /// Moves up to `budget` packets to `out`, which has room for them.
    fn pop(&mut self, out: &mut Batch, budget: usize) -> usize {
        let mut handles = [0; STRIDE];
        let mut n = 0;
        while n < budget {
            let want = (budget - n).min(STRIDE);
            let got = self.rx.pop_slice(&mut handles[..want]);
            if got == 0 {
                break;
            }
            // SAFETY: `End::xmit`, the only producer, pushed these handles and called `took` for
            // them. The ring returns each handle once. n + got <= budget <= spare.
            unsafe { out.adopt(&handles[..got]) };
            n += got;
        }
        self.report(self.rx.known());
        n
    }

    /// Returns the number of packets that wait in the ring.
    fn waiting(&mut self) -> u32 {
        let waiting = self.rx.available();
        self.report(waiting);
        waiting
    }

    /// Tells the ledger that `waiting` packets wait here.
    fn report(&mut self, waiting: u32) {
        if waiting != self.tallied {
            self.tally.set(waiting as usize);
            self.tallied = waiting;
        }
    }
}

struct End {
    side: usize,
    tx: Producer<Heap<u32>>,
    /// `None` once the end is closed.
    inbox: Option<Inbox>,
    /// This end's sleep flag; the next field is that of the other end.
    waiter: Waiter,
    waker: Waker,
    link: Arc<Link>,
    /// True if `arm` has reported that the peer is closed and no packet is left. It reports this
    /// once; otherwise its caller would loop without end.
    told_end: bool,
    /// True if the peer was closed and the ring was empty.
    finished: bool,
}

impl End {
    fn wake_peer(&self, have: Events) {
        if self.waker.should_wake(have) {
            self.link.bells[1 - self.side].signal();
        }
    }

    fn peer_gone(&self) -> bool {
        self.link.gone[1 - self.side].load(Ordering::Acquire)
    }

    fn waiting(&mut self) -> u32 {
        self.inbox.as_mut().map_or(0, Inbox::waiting)
    }

    /// Tells the peer that this end takes nothing more; does nothing if the end is closed already.
    fn leave(&mut self) {
        self.waiting();
        let Some(inbox) = self.inbox.take() else { return };
        self.link.parked.lock().unwrap_or_else(PoisonError::into_inner).push(inbox);
        self.link.gone[self.side].store(true, Ordering::Release);
        self.link.bells[1 - self.side].signal();
    }
}

impl QueueOps for End {
    fn rx(&mut self, _: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        // Read this first: packets that the peer sent before it closed are then in the ring.
        let gone = self.peer_gone();
        let Some(inbox) = self.inbox.as_mut() else { return Moved::default() };
        let before = out.len();
        let most = budget.min(out.spare());
        let n = inbox.pop(out, most);
        self.finished |= gone && n == 0 && most > 0;
        if n > 0 {
            self.wake_peer(Events::ROOM);
        }
        out.count_from(before)
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        if self.peer_gone() {
            batch.discard_first(batch.len(), DropReason::PEER_GONE, mem);
            return Moved::default();
        }
        let free = self.tx.reserve(batch.len() as u32) as usize;
        let moved = batch.count_first(free);
        let n = self.tx.push_slice(&batch.handles()[..moved.packets]);
        debug_assert_eq!(n, moved.packets);
        // SAFETY: the ring has the first n handles. `pop` adopts each handle once, at this end's
        // peer or when the link is dropped.
        unsafe { batch.took(n) };
        if n > 0 {
            self.wake_peer(Events::FRAMES);
        }
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        let bell = &self.link.bells[self.side];
        bell.drain();
        self.waiter.prepare(match want {
            Want::Frames => Events::FRAMES,
            Want::Room => Events::ROOM,
            Want::Both => Events::FRAMES | Events::ROOM,
        });
        // Read this after the drain: a peer that closes later rings again.
        let gone = self.peer_gone();
        let waiting = self.waiting() > 0;
        self.finished |= gone && !waiting;
        let news = self.finished && !std::mem::replace(&mut self.told_end, self.finished);
        let room = gone || self.tx.free() > 0;
        let here = news || (want.frames() && waiting) || (want.room() && room);
        if here {
            self.waiter.cancel();
        }
        !here
    }

    fn close(&mut self, _: Instant) {
        self.leave();
    }

    fn health(&self) -> Health {
        if self.finished { Health::Finished } else { Health::Up }
    }

    fn caps(&self) -> Caps {
        Caps { origin: Origin::Internal, ..Caps::IN_PROCESS }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.bells[self.side].as_fd()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Port;
    use linerate_skb::Pool;

    use std::time::Duration;

    fn pair(len: u32) -> (Pool, Port, Port) {
        let pool = Pool::builder().frames(256).build().unwrap();
        let (a, b) = Port::pair(len, &pool).unwrap();
        (pool, a, b)
    }

    fn send(port: &mut Port, numbers: std::ops::Range<u8>) -> Batch {
        let mut batch = Batch::with_capacity(numbers.len());
        assert_eq!(port.alloc(&mut batch, numbers.len()), numbers.len());
        for (skb, n) in batch.iter_mut().zip(numbers) {
            assert!(skb.put_slice(&[n]));
        }
        port.xmit(&mut batch);
        batch
    }

    #[test]
    fn packets_arrive_in_order_and_the_sender_keeps_those_without_room() {
        let (pool, mut a, mut b) = pair(8);
        let rest = send(&mut a, 0..10);
        assert_eq!(rest.iter().map(|s| s.data()[0]).collect::<Vec<_>>(), [8, 9]);
        assert_eq!(pool.ledger().in_flight, 10);
        let mut got = Batch::with_capacity(16);
        assert_eq!(b.rx(&mut got), 8);
        assert_eq!(got.iter().map(|s| s.data()[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((a.counts().tx_packets, b.counts().rx_bytes), (8, 8));
        drop((rest, got));
        assert!(pool.ledger().balanced() && pool.ledger().in_flight == 0);
    }

    #[test]
    fn the_ledger_names_the_ring_that_has_the_packets() {
        let (pool, mut a, mut b) = pair(8);
        let held = |name: &str| {
            let ledger = pool.ledger();
            ledger.held().iter().find(|(known, _)| known == name).map(|(_, n)| *n)
        };
        assert_eq!((held("ring pair forth"), held("ring pair back")), (Some(0), Some(0)));
        assert!(send(&mut a, 0..7).is_empty());
        let mut got = Batch::with_capacity(3);
        assert_eq!(b.rx(&mut got), 3);
        assert_eq!((held("ring pair forth"), held("the program")), (Some(4), Some(3)));
        assert!(send(&mut a, 7..9).is_empty());
        // The reader is closed, and the count of the remaining packets is still correct.
        drop(b);
        assert_eq!((held("ring pair forth"), held("the program")), (Some(6), Some(3)));
        drop(a);
        assert_eq!((held("ring pair forth"), held("the program")), (None, Some(3)));
    }

    #[test]
    fn packets_to_a_dead_end_are_dropped_with_the_reason() {
        let (pool, mut a, b) = pair(8);
        assert!(send(&mut a, 0..3).is_empty());
        drop(b);
        assert_eq!(a.rx(&mut Batch::with_capacity(1)), 0);
        assert_eq!(a.health(), Health::Finished);
        assert!(send(&mut a, 0..3).is_empty());
        drop(a);
        let ledger = pool.ledger();
        assert_eq!(ledger.dropped(DropReason::PEER_GONE), 6);
        assert!(ledger.is_drained(), "{ledger}");
    }

    #[test]
    fn a_peer_that_goes_is_told_of_once() {
        let (_pool, mut a, b) = pair(4);
        assert!(a.arm(Want::Frames));
        drop(b);
        assert!(a.wait(Some(Duration::from_secs(10))).unwrap());
        assert_eq!(a.rx(&mut Batch::with_capacity(1)), 0);
        assert_eq!(a.health(), Health::Finished);
        assert!(a.arm(Want::Frames) || a.arm(Want::Frames));
        assert!(!a.wait(Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn the_end_is_told_after_the_last_packet() {
        let (_pool, mut a, mut b) = pair(4);
        assert!(send(&mut b, 0..3).is_empty());
        drop(b);
        let mut got = Batch::with_capacity(4);
        assert!(a.wait(None).unwrap());
        assert_eq!((a.rx(&mut got), a.health()), (3, Health::Up));
        // No timeout: if the end were not reported, this would sleep without end.
        assert!(a.wait(None).unwrap());
        assert_eq!(a.health(), Health::Finished);
        assert!(!a.wait(Some(Duration::ZERO)).unwrap());
    }

    #[test]
    fn a_full_batch_does_not_end_a_ring_in_which_packets_wait() {
        let pool = Pool::builder().frames(256).build().unwrap();
        let (mut near, mut far) = super::pair("r", 4, &pool).unwrap();
        let (mut mem, mut sent) = (pool.local(), Batch::with_capacity(3));
        assert_eq!(mem.alloc(&mut sent, 3), 3);
        assert_eq!(far.queues[0].xmit(&mut mem, &mut sent).packets, 3);
        drop(far);
        let (queue, mut got) = (&mut near.queues[0], Batch::with_capacity(2));
        for packets in [2, 0] {
            assert_eq!(queue.rx(&mut mem, &mut got, 4).packets, packets);
            assert_eq!(queue.health(), Health::Up);
        }
        got.clear();
        for (packets, health) in [(1, Health::Up), (0, Health::Finished)] {
            assert_eq!(queue.rx(&mut mem, &mut got, 4).packets, packets);
            assert_eq!(queue.health(), health);
        }
    }

    #[test]
    fn end_that_is_closed_has_gone_before_it_is_dropped() {
        let pool = Pool::builder().frames(256).build().unwrap();
        let (mut near, mut far) = super::pair("r", 4, &pool).unwrap();
        let (mut mem, mut sent) = (pool.local(), Batch::with_capacity(3));
        assert_eq!(mem.alloc(&mut sent, 3), 3);
        far.queues[0].close(Instant::now());
        assert_eq!(near.queues[0].xmit(&mut mem, &mut sent).packets, 0);
        assert!(sent.is_empty() && !near.queues[0].arm(Want::Frames));
        assert_eq!(near.queues[0].health(), Health::Finished);
        drop((near, far));
        let ledger = pool.ledger();
        assert_eq!(ledger.dropped(DropReason::PEER_GONE), 3);
        assert!(ledger.is_drained(), "{ledger}");
    }

    #[test]
    fn a_length_that_is_no_power_of_two_is_refused() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let e = Port::pair(1000, &pool).unwrap_err();
        assert!(e.fix.contains("power of two"), "{e}");
    }
}
