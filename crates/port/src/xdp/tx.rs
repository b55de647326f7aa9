//! Sending: packets' frames into the transmit ring as they lie, and back when the device is done.

use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Span, Tally};
use linerate_sys::xdp::{CONTINUED, Desc};
use rustix::io::Errno;

use super::held::Held;
use super::rings::Rings;
use crate::host::{Link, PACKET_BYTES_MAX, RETRY};

/// Frames that one packet may have: what the kernel puts into an sk_buff, and its head.
///
/// Source: net/xdp/xsk.c `xsk_build_skb`, MAX_SKB_FRAGS.
const FRAMES_MAX: usize = 18;
/// The shortest frame: its header.
const ETHERNET_BYTES: usize = 14;
/// Completions worked on at once.
const STRIDE: usize = 64;
/// Kicks of one call: in copy mode each sends about 32 packets.
const KICKS_MAX: usize = 64;
/// Longest time for which a device may keep packets without returning one; then it counts as dead.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest sleep while a device has packets.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// The side of sending, beside its rings.
pub(super) struct Tx {
    pool: Pool,
    chunk_bytes: u64,
    done: Batch,
    tally: Tally,
    /// The kernel has not been told of what is in the ring, or had no place for it.
    untold: bool,
    retry_at: Option<Instant>,
    /// Since when the device has had packets and has given none back.
    waits_since: Option<Instant>,
    /// Frames for packets that are not where the device reads.
    copies: Local,
    scratch: Vec<u8>,
    /// Bytes copied into them.
    copied_bytes: u64,
}

impl Tx {
    /// Makes the state of a queue that sends from `pool`; `tally` counts the packets that the device has.
    pub fn new(pool: Pool, tally: Tally) -> Tx {
        let chunk_bytes = pool.frame_size() as u64;
        let done = Batch::with_capacity(STRIDE);
        let copies = pool.local_named("xdp copies", 0);
        Tx {
            pool,
            chunk_bytes,
            done,
            tally,
            untold: false,
            retry_at: None,
            waits_since: None,
            copies,
            scratch: Vec::new(),
            copied_bytes: 0,
        }
    }

    /// Sends from the front of `batch`.
    ///
    /// Shape:  batch[0..n) -> transmit ring; each is freed, as sent, when the device is done with it.
    ///         What can never be sent is dropped with its reason; the rest stays, in order.
    /// Cost:   one syscall where the kernel asks for it, in copy mode one for 32 packets; a copy of
    ///         packets that are not in the device's memory.
    pub fn send(
        &mut self,
        rings: &mut Rings,
        link: &mut Link,
        held: &mut Held,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        self.reap(rings, held, mem);
        if !link.is_up() {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            return Moved::default();
        }
        let mut moved = Moved::default();
        self.send_frames(rings, link, held, mem, batch, &mut moved);
        self.tell(rings, link, held, mem);
        moved
    }

    /// Puts packets into the ring until it is full.
    fn send_frames(
        &mut self,
        rings: &mut Rings,
        link: &mut Link,
        held: &mut Held,
        mem: &mut Local,
        batch: &mut Batch,
        moved: &mut Moved,
    ) {
        let mut spans = [Span::default(); FRAMES_MAX];
        loop {
            let Some(skb) = batch.iter().next() else { return };
            let (cut, len) = (self.cut(skb, rings.several, held, &mut spans), skb.len());
            match cut {
                Cut::Frames(n) if rings.tx.reserve(n as u32) < n as u32 => {
                    if !self.make_room(rings, link, held, mem, n as u32) {
                        return;
                    }
                }
                Cut::Frames(n) => {
                    moved.packets += 1;
                    moved.bytes += len as u64;
                    self.put(&spans[..n], rings, held, batch);
                }
                Cut::Copy => {
                    if !self.copy_first(mem, batch) {
                        return;
                    }
                }
                Cut::Never(reason) => batch.discard_first(1, reason, mem),
            }
        }
    }

    /// Takes back what the device is done with, and tells it again of what it had no place for.
    pub fn poll(&mut self, rings: &mut Rings, link: &mut Link, held: &mut Held, mem: &mut Local) {
        self.reap(rings, held, mem);
        if self.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.tell(rings, link, held, mem);
        }
    }

    /// Takes back what the device is done with.
    ///
    /// Cost: nothing while it has nothing; else an Acquire load.
    fn reap(&mut self, rings: &mut Rings, held: &mut Held, mem: &mut Local) {
        if held.sending == 0 {
            return;
        }
        let before = held.sending;
        loop {
            let mut frames = [0; STRIDE];
            let got = rings.completion.pop_slice(&mut frames);
            frames[..got].iter().for_each(|frame| held.sent(*frame, &mut self.done));
            self.done.sent(self.done.len(), mem);
            if got < STRIDE {
                break;
            }
        }
        if held.sending < before {
            self.waits_since = None;
            self.tally.set(held.sending);
        }
    }

    /// Decides how a packet is sent: from its frames, as a copy, or not at all.
    fn cut(&self, skb: &Skb, several: bool, held: &Held, spans: &mut [Span; FRAMES_MAX]) -> Cut {
        // The kernel would refuse it, and all behind it, for ever.
        if skb.len() < ETHERNET_BYTES {
            return Cut::Never(DropReason::MALFORMED);
        }
        if !skb.is_of(&self.pool) {
            return Cut::Copy;
        }
        let (mut n, mut bytes) = (0, 0);
        for span in skb.spans() {
            bytes += span.len as usize;
            // A jumbo frame lies in several chunks, and a descriptor in one.
            let mut left = span;
            while left.len > 0 {
                let room = self.chunk_bytes - left.offset % self.chunk_bytes;
                let len = u64::from(left.len).min(room) as u32;
                // In this queue's ring already: a packet that is shared.
                if !held.is_free(left.offset) {
                    return Cut::Copy;
                }
                let Some(place) = spans.get_mut(n) else { return Cut::Never(DropReason::TOO_LONG) };
                *place = Span { offset: left.offset, len };
                (left.offset, left.len) = (left.offset + u64::from(len), left.len - len);
                n += 1;
            }
        }
        match n {
            // Not all of it is in the pool's frames.
            _ if bytes != skb.len() => Cut::Copy,
            1 => Cut::Frames(1),
            _ if several => Cut::Frames(n),
            _ if skb.len() <= self.pool.data_room() => Cut::Copy,
            _ => Cut::Never(DropReason::TOO_LONG),
        }
    }

    /// Puts the first packet into the ring, where there is room for it.
    fn put(&mut self, spans: &[Span], rings: &mut Rings, held: &mut Held, batch: &mut Batch) {
        let last = spans.len().saturating_sub(1);
        for (i, span) in spans.iter().enumerate() {
            let options = if i < last { CONTINUED } else { 0 };
            rings.tx.write(i as u32, Desc { addr: span.offset, len: span.len, options });
        }
        rings.tx.submit(spans.len() as u32);
        held.send(spans.iter().map(|span| span.offset), batch);
        self.untold = true;
    }

    /// Puts a copy in a frame of our own in the place of the first packet; false without a frame.
    #[cold]
    fn copy_first(&mut self, mem: &mut Local, batch: &mut Batch) -> bool {
        let Some(skb) = batch.iter_mut().next() else { return false };
        if skb.len() > self.pool.packet_max_bytes().min(PACKET_BYTES_MAX) {
            batch.discard_first(1, DropReason::TOO_LONG, mem);
            return true;
        }
        self.scratch.resize(skb.len(), 0);
        let n = skb.copy_to(0, &mut self.scratch);
        let Some(copy) = self.copies.alloc_copy(&self.scratch[..n]) else {
            self.retry_at = Instant::now().checked_add(RETRY);
            return false;
        };
        self.copied_bytes += n as u64;
        *skb = copy;
        true
    }

    /// Has the kernel work on a ring without room, in the hope of some; whether there is.
    fn make_room(
        &mut self,
        rings: &mut Rings,
        link: &mut Link,
        held: &mut Held,
        mem: &mut Local,
        want: u32,
    ) -> bool {
        self.tell(rings, link, held, mem);
        rings.tx.reserve(want) >= want
    }

    /// Tells the kernel of what is in the ring, as often as it asks for and it helps.
    ///
    /// Source: net/xdp/xsk.c `__xsk_generic_xmit`.
    fn tell(&mut self, rings: &mut Rings, link: &mut Link, held: &mut Held, mem: &mut Local) {
        self.retry_at = None;
        if !self.untold {
            return;
        }
        if !rings.tx_map.wants_wakeup() {
            self.untold = false;
            return;
        }
        for _ in 0..KICKS_MAX {
            let (free, sending) = (rings.tx.free(), held.sending);
            let told = rings.socket.wake_tx();
            self.reap(rings, held, mem);
            let moved = rings.tx.free() > free || held.sending < sending;
            match told {
                Ok(()) => {
                    self.untold = false;
                    return;
                }
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    link.look();
                    break;
                }
                // EAGAIN: about 32 were sent, and more are to come. EBUSY: the device took one and
                // dropped it, and the kernel stops there.
                Err(_) if moved => {}
                // The device has no place now, or the completion ring is full: nobody announces that
                // there is.
                Err(_) => break,
            }
        }
        self.retry_at = Instant::now().checked_add(RETRY);
    }

    /// Returns true if a packet can be put into the ring.
    pub fn has_room(&self, rings: &mut Rings) -> bool {
        rings.tx.free() >= FRAMES_MAX.min(rings.tx.len_descs() as usize / 2) as u32
    }

    /// Returns the time of the next poll for completions, which no event announces. The interval grows while
    /// none come.
    pub fn look_at(&mut self, held: &Held) -> Option<Instant> {
        if held.sending == 0 {
            return self.retry_at;
        }
        let now = Instant::now();
        let waited = now.saturating_duration_since(*self.waits_since.get_or_insert(now));
        let look_at = now.checked_add(waited.clamp(RETRY, LOOK_MAX));
        [look_at, self.retry_at].into_iter().flatten().min()
    }

    /// Returns true if the device has had packets for so long that it will not give them back.
    ///
    /// Cost: a clock read, if nothing came since it was last asked.
    pub fn is_stuck(&mut self, held: &Held) -> bool {
        if held.sending == 0 {
            self.waits_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *self.waits_since.get_or_insert(now);
        now.saturating_duration_since(since) >= PATIENCE
    }

    /// Resets the state after the rings are gone, when the device has no packets any more.
    pub fn reset(&mut self) {
        (self.untold, self.retry_at, self.waits_since) = (false, None, None);
        self.tally.set(0);
    }

    /// Says how many packets the device has.
    pub fn publish(&mut self, held: &Held) {
        self.tally.set(held.sending);
    }

    /// Bytes copied so far, of packets that the device could not read where they lay.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

/// Decision on how a packet is sent.
enum Cut {
    /// Its frames go into the ring: so many spans.
    Frames(usize),
    /// Its bytes are not where the device reads.
    Copy,
    /// It is dropped.
    Never(DropReason),
}
