//! Sending: puts packets' frames into the transmit ring without a copy, and takes them back when
//! the device has sent them.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Span, Tally};
use linerate_sys::xdp::{CONTINUED, Desc};
use rustix::io::Errno;

use super::held::Held;
use super::rings::Socket;
use crate::host::{Link, RETRY, Retry, copy_out};

/// Most frames of a packet: the limit of an sk_buff's fragments. Each frame is a fragment for a
/// device that takes packets in pages (IFF_TX_SKB_NO_LINEAR, as virtio_net); others take one frame
/// more.
///
/// Source: net/xdp/xsk.c `xsk_build_skb`, `xsk_build_skb_zerocopy`, MAX_SKB_FRAGS.
pub(super) const FRAMES_MAX: usize = 17;
/// Length of the shortest frame: its header.
const ETHERNET_BYTES: usize = 14;
/// Completions that one step handles.
const STRIDE: usize = 64;
/// Most kicks of one call: in copy mode each sends up to 256 packets (rings.rs, `TX_BUDGET`), 32
/// before Linux 6.17.
const KICKS_MAX: usize = 64;
/// Longest time for which a device may keep packets without returning one; a device that exceeds it
/// counts as dead.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest sleep while a device has packets.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Transmit state, apart from the rings.
pub(super) struct Tx {
    pool: Pool,
    chunk_bytes: u64,
    done: Batch,
    tally: Tally,
    /// True if the kernel was not notified of packets in the ring, or had no room for them.
    unannounced: bool,
    /// Time of the next notification, if the last one failed.
    retry: Retry,
    /// Time until which there was no frame for the copy of a packet, so that nothing can be sent.
    starved: Retry,
    /// Start of the time in which the device has had packets and returned none.
    waits_since: Option<Instant>,
    scratch: Vec<u8>,
    /// Bytes copied so far, of packets that the device cannot read in place.
    pub copied_bytes: u64,
    /// System calls that notified the kernel of packets.
    pub doorbells: u64,
}

impl Tx {
    /// Creates the state of a queue that sends from `pool`; `tally` counts the packets that the
    /// device has.
    pub fn new(pool: Pool, tally: Tally) -> Tx {
        let chunk_bytes = pool.frame_size() as u64;
        let done = Batch::with_capacity(STRIDE);
        Tx {
            pool,
            chunk_bytes,
            done,
            tally,
            unannounced: false,
            retry: Retry::default(),
            starved: Retry::default(),
            waits_since: None,
            scratch: Vec::new(),
            copied_bytes: 0,
            doorbells: 0,
        }
    }

    /// Sends from the front of `batch`; `home` has the frames for copies.
    ///
    /// Shape:  batch[0..n) -> transmit ring; each is freed, as sent, when the device is done with
    ///         it. What can never be sent is dropped with its reason; the rest stays, in order.
    /// Cost:   one syscall where the kernel asks for it, in copy mode one each time that the
    ///         kernel's limit of one kick is reached; a copy of packets that are not in the
    ///         device's memory.
    pub fn send(
        &mut self,
        socket: &mut Socket,
        link: &mut Link,
        home: &mut Local,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        self.reap(socket, mem);
        if !link.is_up() {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            return Moved::default();
        }
        let moved = self.send_frames(socket, link, home, mem, batch);
        self.kick(socket, link, mem);
        self.publish(&socket.held);
        moved
    }

    /// Puts packets into the ring until it is full, and publishes them together.
    fn send_frames(
        &mut self,
        socket: &mut Socket,
        link: &mut Link,
        home: &mut Local,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Moved {
        let (mut moved, mut spans) = (Moved::default(), [Span::default(); FRAMES_MAX]);
        // Number of descriptors that are written and not published.
        let mut written = 0;
        self.starved = Retry::default();
        while let Some(skb) = batch.iter().next() {
            let (cut, len) = (self.cut(skb, socket, &mut spans), skb.len());
            match cut {
                Cut::Frames(n)
                    if socket.rings.tx.reserve(written + n as u32) < written + n as u32 =>
                {
                    // The kernel may free ring space.
                    self.submit(&mut written, socket);
                    self.kick(socket, link, mem);
                    if socket.rings.tx.reserve(n as u32) < n as u32 {
                        break;
                    }
                }
                Cut::Frames(n) => {
                    moved += Moved { packets: 1, bytes: len as u64 };
                    write(&spans[..n], written, socket, batch);
                    written += n as u32;
                }
                Cut::Copy => {
                    if !self.copy_first(home, mem, batch) {
                        break;
                    }
                }
                Cut::Never(reason) => batch.discard_first(1, reason, mem),
            }
        }
        self.submit(&mut written, socket);
        moved
    }

    /// Publishes the written descriptors to the device.
    fn submit(&mut self, written: &mut u32, socket: &mut Socket) {
        self.unannounced |= *written > 0;
        socket.rings.tx.submit(std::mem::take(written));
    }

    /// Takes back the packets that the device has sent, and notifies it again of those for which it
    /// had no room.
    pub fn poll(&mut self, socket: &mut Socket, link: &mut Link, mem: &mut Local) {
        self.reap(socket, mem);
        // A driver may ask to be notified just after its request was read; the packets wait in the
        // ring then.
        let is_missed = self.waits_since.is_some() && self.retry.at().is_none();
        if is_missed && socket.rings.tx.free() < socket.rings.tx.len_descs() {
            self.unannounced = true;
        }
        if self.retry.is_due() || (is_missed && self.unannounced) {
            self.kick(socket, link, mem);
        }
    }

    /// Does as [`Tx::poll`], but notifies the device at once; returns true if packets remain of
    /// which it was not notified, unless its interface is down.
    pub fn flush(&mut self, socket: &mut Socket, mem: &mut Local) -> bool {
        self.reap(socket, mem);
        self.announce(socket, mem) && self.unannounced
    }

    /// Takes back the packets that the device has sent.
    ///
    /// Cost: nothing while it has nothing; else an Acquire load.
    pub fn reap(&mut self, socket: &mut Socket, mem: &mut Local) {
        let Socket { rings, held } = socket;
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
    fn cut(&self, skb: &Skb, socket: &Socket, spans: &mut [Span; FRAMES_MAX]) -> Cut {
        // The kernel would refuse this descriptor, and all descriptors behind it, forever.
        if skb.len() < ETHERNET_BYTES {
            return Cut::Never(DropReason::MALFORMED);
        }
        if !skb.is_of(&self.pool) {
            return Cut::Copy;
        }
        let (mut n, mut bytes, most) = (0, 0, socket.rings.tx_frames_max);
        for span in skb.spans() {
            bytes += span.len as usize;
            // A jumbo frame lies in several chunks, and a descriptor in one.
            let mut left = span;
            while left.len > 0 {
                let room = self.chunk_bytes - left.offset % self.chunk_bytes;
                let len = u64::from(left.len).min(room) as u32;
                // In this queue's ring already: a packet that is shared.
                if !socket.held.is_free(left.offset) {
                    return Cut::Copy;
                }
                let Some(place) = spans.get_mut(n) else {
                    return self.gathered(skb.len(), most);
                };
                *place = Span { offset: left.offset, len };
                (left.offset, left.len) = (left.offset + u64::from(len), left.len - len);
                n += 1;
            }
        }
        match n {
            // Some of its bytes are not in the pool's frames.
            _ if bytes != skb.len() => Cut::Copy,
            n if n <= most => Cut::Frames(n),
            _ => self.gathered(skb.len(), most),
        }
    }

    /// Decides on a packet of `len` bytes that lies in too many frames: a copy may lie in fewer, at
    /// most `frames_max`.
    fn gathered(&self, len: usize, frames_max: usize) -> Cut {
        if len <= frames_max * self.pool.data_room() {
            Cut::Copy
        } else {
            Cut::Never(DropReason::TOO_LONG)
        }
    }

    /// Replaces the first packet by a copy in frames of `home`; returns false without a free frame.
    #[cold]
    fn copy_first(&mut self, home: &mut Local, mem: &mut Local, batch: &mut Batch) -> bool {
        let Some(skb) = batch.iter_mut().next() else { return false };
        let fits = skb.len() <= self.pool.packet_max_bytes();
        let Some(bytes) = copy_out(skb, &mut self.scratch).filter(|_| fits) else {
            batch.discard_first(1, DropReason::TOO_LONG, mem);
            return true;
        };
        let Some(copy) = home.alloc_copy(bytes) else {
            self.starved = Retry::later();
            return false;
        };
        self.copied_bytes += bytes.len() as u64;
        *skb = copy;
        true
    }

    /// Notifies the kernel of packets in the ring, and looks at the interface if it is down or
    /// gone.
    fn kick(&mut self, socket: &mut Socket, link: &mut Link, mem: &mut Local) {
        if !self.announce(socket, mem) {
            link.look();
        }
    }

    /// Notifies the kernel of packets in the ring, as often as it requires and makes progress;
    /// returns false if the interface is down or gone.
    ///
    /// Source: net/xdp/xsk.c `__xsk_generic_xmit`.
    fn announce(&mut self, socket: &mut Socket, mem: &mut Local) -> bool {
        self.retry = Retry::default();
        if !self.unannounced {
            return true;
        }
        // Publish the packets before the kernel's request is read: a driver that has found the ring
        // empty sets its request and looks again.
        fence(Ordering::SeqCst);
        if !socket.rings.tx_map.wants_wakeup() {
            self.unannounced = false;
            return true;
        }
        let mut is_up = true;
        for _ in 0..KICKS_MAX {
            let (free, sending) = (socket.rings.tx.free(), socket.held.sending);
            let done = socket.rings.socket.wake_tx();
            self.doorbells += 1;
            self.reap(socket, mem);
            let moved = socket.rings.tx.free() > free || socket.held.sending < sending;
            match done {
                Ok(()) => {
                    self.unannounced = false;
                    return true;
                }
                Err(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    is_up = false;
                    break;
                }
                // EAGAIN: the kernel's limit of one kick was reached, and more are to come.
                // EBUSY: the device dropped one, which the kernel completes as if it was sent, and
                // the kernel stops there.
                Err(_) if moved => {}
                // The device has no space now, or the completion ring is full: there is no
                // notification when that ends.
                Err(_) => break,
            }
        }
        self.retry = Retry::later();
        is_up
    }

    /// Returns true if a packet can be put into the ring, and there may be a frame for its copy if
    /// it needs one.
    ///
    /// Cost: a clock read after the pool had no frame.
    pub fn has_room(&mut self, socket: &mut Socket) -> bool {
        let tx = &mut socket.rings.tx;
        !self.starved.is_pending()
            && tx.free() >= FRAMES_MAX.min(tx.len_descs() as usize / 2) as u32
    }

    /// Returns the time at which there may be a frame for a copy again; `None` unless the pool had
    /// none.
    pub fn starved_until(&self) -> Option<Instant> {
        self.starved.at()
    }

    /// Returns the time of the next check for completions, which no event signals. The interval
    /// grows while there are none.
    pub fn check_at(&mut self, held: &Held) -> Option<Instant> {
        if held.sending == 0 {
            return self.retry.at();
        }
        let now = Instant::now();
        let waited = now.saturating_duration_since(*self.waits_since.get_or_insert(now));
        let check_at = now.checked_add(waited.clamp(RETRY, SLEEP_MAX));
        [check_at, self.retry.at()].into_iter().flatten().min()
    }

    /// Returns true if the device has kept packets for so long that it counts as dead.
    ///
    /// Cost: a clock read, if nothing came since it was last asked.
    pub fn check_stuck(&mut self, held: &Held) -> bool {
        if held.sending == 0 {
            self.waits_since = None;
            return false;
        }
        let now = Instant::now();
        let since = *self.waits_since.get_or_insert(now);
        now.saturating_duration_since(since) >= PATIENCE
    }

    /// Restarts the wait for the device to return packets.
    pub fn waits_on(&mut self) {
        self.waits_since = Some(Instant::now());
    }

    /// Resets the state after the rings are gone. The packets in them stay in the tally.
    pub fn reset(&mut self) {
        (self.unannounced, self.waits_since) = (false, None);
        (self.retry, self.starved) = (Retry::default(), Retry::default());
    }

    /// Leaves the packets that the device has to another tally.
    pub fn forget(&mut self) {
        self.tally.set(0);
    }

    /// Updates the tally of packets that the device has.
    pub fn publish(&mut self, held: &Held) {
        self.tally.set(held.sending);
    }
}

/// Decision on how a packet is sent.
enum Cut {
    /// From its frames, as this many spans.
    Frames(usize),
    /// As a copy, because the device cannot read its bytes in place.
    Copy,
    /// Not at all; it is dropped for this reason.
    Never(DropReason),
}

/// Writes descriptors of the first packet behind `written` others, for which there is room, and
/// moves the packet into the table.
fn write(spans: &[Span], written: u32, socket: &mut Socket, batch: &mut Batch) {
    let Socket { rings, held } = socket;
    for (span, i) in spans.iter().zip(1..) {
        let options = if i < spans.len() { CONTINUED } else { 0 };
        let desc = Desc { addr: span.offset, len: span.len, options };
        rings.tx.write(written + i as u32 - 1, desc);
    }
    held.send(spans.iter().map(|span| span.offset), batch);
}
