//! A queue of the client, which owns the memory: it posts packets, and empty buffers that the server fills.
//!
//! ```text
//!   zero copy   packet ── its frames' places in descriptors ──► ring ──► peer ──► tail: freed as sent
//!               free frame ── lent ──► ring ──► peer fills it ──► tail: a packet, the same frame
//!   by copies   packet ── copied ──► the slot's buffer ──► ring      and back; a buffer a slot
//! ```
//!
//! Which frame is at which slot is in tables of ours: what stands in a descriptor that we wrote is
//! never read back. Of a buffer that was filled, the length and the flags are read once.

use std::sync::Arc;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Span, Tally};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::config::PACKET_BYTES_MAX;
use super::copies::{Buffers, Copies, Stop};
use super::ring::{Checked, ClientRing, Desc, NEXT, ProtocolError, Shared};
use super::rings::{RxRing, TxRing};

/// Number of the region that contains the pool. Region 0 contains the rings and buffers.
pub(super) const POOL: u16 = 1;
/// Most packets or frames that one step handles.
const STRIDE: usize = 64;
/// Most descriptors of one packet: the longest packet in frames of the usual size needs fewer.
pub(super) const DESCS_MAX: usize = 64;

/// Length of the shortest packet: its header.
const ETHERNET_BYTES: u32 = 14;
/// Marks a slot that is not the last slot of a packet.
const NONE: u32 = 0;

/// Buffers in the region of the rings, one for each slot.
pub(super) struct Slots {
    pub memory: Arc<PeerMemory>,
    /// Offset of the first buffer's first byte.
    pub offset: usize,
    pub buffer_bytes: u32,
}

impl Slots {
    fn at(&self, slot: usize) -> usize {
        self.offset + slot * self.buffer_bytes as usize
    }
}

/// The client's transmit side.
pub(super) struct Tx {
    ring: ClientRing,
    bell: EventFd,
    /// The buffers for copies; `None` if packets are sent in place.
    slots: Option<Slots>,
    /// The packet whose last descriptor is in the slot, for each slot.
    packets: Box<[u32]>,
    /// Number of packets in the ring.
    sending: usize,
    pool: Pool,
    /// Longest descriptor that a peer is expected to accept, in bytes.
    desc_bytes: u32,
    done: Batch,
    tally: Tally,
    /// Number of descriptors that are written and not posted yet.
    written: u16,
}

impl Tx {
    pub fn new(
        ring: ClientRing,
        bell: EventFd,
        slots: Option<Slots>,
        pool: &Pool,
        desc_bytes: u32,
        tally: Tally,
    ) -> Tx {
        let packets = vec![NONE; usize::from(ring.shared.len())].into();
        let (pool, done) = (pool.clone(), Batch::with_capacity(STRIDE));
        Tx { ring, bell, slots, packets, sending: 0, pool, desc_bytes, done, tally, written: 0 }
    }

    fn put_as_they_lie(&mut self, batch: &mut Batch) -> (Moved, Stop) {
        let mut moved = Moved::default();
        loop {
            self.put_plain(batch, &mut moved);
            // `put_plain` stopped because the next packet is not plain, or because there is no room for it.
            let (Some(skb), Some(&handle)) = (batch.iter().next(), batch.handles().first()) else {
                return (moved, Stop::Empty);
            };
            let len = skb.len();
            let written = match Stop::of(skb) {
                Some(reason) => Err(reason),
                None if !skb.is_of(&self.pool) => Err(Stop::Copy),
                None => self.write(skb, self.ring.free() - self.written),
            };
            match written {
                Ok(descs) => {
                    self.keep(handle, descs);
                    // SAFETY: `packets` has the packet's handle; `reap` and `close` take it out
                    // once and adopt it.
                    unsafe { batch.took(1) };
                    moved += Moved { packets: 1, bytes: len as u64 };
                }
                Err(reason) => return (moved, reason),
            }
        }
    }

    /// Puts packets from the front of the batch into the ring, up to the first packet that is not
    /// plain or until no descriptor is free.
    fn put_plain(&mut self, batch: &mut Batch, moved: &mut Moved) {
        let mut spans = [Span::default(); STRIDE];
        loop {
            let room = usize::from(self.ring.free() - self.written).min(STRIDE);
            let n = batch.plain_spans(&self.pool, &mut spans[..room]);
            let fits = |span: &&Span| (ETHERNET_BYTES..=self.desc_bytes).contains(&span.len);
            let n = spans[..n].iter().take_while(fits).count();
            for (i, span) in (0u16..).zip(&spans[..n]) {
                // The cast loses nothing: the pool's region is below 4 GiB, as `Connector::new` checks.
                let (len, offset) = (span.len, span.offset as u32);
                self.set(i, Desc { flags: 0, region: POOL, len, offset });
                moved.bytes += u64::from(len);
            }
            moved.packets += n;
            for &handle in &batch.handles()[..n] {
                self.keep(handle, 1);
            }
            // SAFETY: `packets` has the packets' handles; `reap` and `close` take each out once and adopt it.
            unsafe { batch.took(n) };
            if n < STRIDE {
                return;
            }
        }
    }

    /// Records the packet in the last of the next `descs` slots, which describe it.
    #[inline]
    fn keep(&mut self, handle: u32, descs: u16) {
        self.written += descs;
        self.packets[self.ring.free_slot(self.written - 1)] = handle;
        self.sending += 1;
    }

    /// Writes the descriptors of a packet of the pool into free slots; returns the number of slots used.
    fn write(&self, skb: &Skb, free: u16) -> Result<u16, Stop> {
        let (mut n, mut bytes) = (0u16, 0);
        let mut last: Option<Desc> = None;
        let most = free.min(DESCS_MAX as u16);
        for span in skb.spans() {
            let mut left = span;
            while left.len > 0 {
                let len = left.len.min(self.desc_bytes);
                if let Some(desc) = last.take() {
                    self.set(n - 1, Desc { flags: NEXT, ..desc });
                }
                if n == most {
                    let long = most < free || usize::from(most) == self.packets.len();
                    return Err(if long { Stop::Never(DropReason::TOO_LONG) } else { Stop::Full });
                }
                // The cast loses nothing: the pool's region is below 4 GiB, as `Connector::new` checks.
                let offset = left.offset as u32;
                last = Some(Desc { flags: 0, region: POOL, len, offset });
                n += 1;
                bytes += len as usize;
                left = Span { offset: left.offset + u64::from(len), len: left.len - len };
            }
        }
        if bytes != skb.len() {
            // Some bytes of the packet are not in the pool's frames, which are the only ones that
            // the peer maps.
            return Err(Stop::Copy);
        }
        if let Some(desc) = last {
            self.set(n - 1, desc);
        }
        Ok(n)
    }

    fn set(&self, i: u16, desc: Desc) {
        self.ring.shared.set(self.ring.free_slot(self.written + i) as u16, desc);
    }
}

impl TxRing for Tx {
    fn put(
        &mut self,
        batch: &mut Batch,
        copies: &mut Copies,
        mem: &mut Local,
    ) -> Checked<(Moved, Stop)> {
        let Some(slots) = &self.slots else { return Ok(self.put_as_they_lie(batch)) };
        let free = self.ring.free() - self.written;
        let at = SlotsAt { ring: &self.ring, slots, first: self.written };
        let (written, moved, stop) = copies.send_run(&at, free, mem, batch)?;
        self.written += written;
        Ok((moved, stop))
    }

    fn post(&mut self) -> bool {
        if self.written == 0 {
            return false;
        }
        self.ring.post(std::mem::take(&mut self.written));
        if self.slots.is_none() {
            self.tally.set(self.sending);
        }
        if self.ring.shared.rings() {
            self.bell.signal_shared();
        }
        true
    }

    fn reap(&mut self, mem: &mut Local) -> Checked<()> {
        if self.ring.posted() == 0 {
            return Ok(());
        }
        let done = self.ring.poll()?;
        if self.slots.is_none() {
            let mut i = 0;
            while i < done {
                let (mut handles, mut n) = ([NONE; STRIDE], 0);
                while i < done && n < STRIDE {
                    let slot = self.ring.done_slot(i);
                    handles[n] = std::mem::replace(&mut self.packets[slot], NONE);
                    n += usize::from(handles[n] != NONE);
                    i += 1;
                }
                // SAFETY: `keep` stored each handle when its packet left the batch, and each is now
                // out of the table. `done` is empty and has room for `STRIDE` packets.
                unsafe { self.done.adopt(&handles[..n]) };
                self.done.free_sent(n, mem);
                self.sending -= n;
            }
            self.tally.set(self.sending);
        }
        self.ring.take_back(done);
        Ok(())
    }

    fn room(&self) -> u16 {
        self.ring.free()
    }

    fn size(&self) -> usize {
        self.ring.shared.len().into()
    }

    fn has_room(&mut self) -> Checked<bool> {
        // Report room only at half of the ring or `DESCS_MAX` slots: waking for one slot is too
        // costly, and a slow peer may hold half of a short ring.
        Ok(self.ring.free() >= self.ring.shared.len().min(DESCS_MAX as u16) / 2)
    }

    fn under_way(&self) -> usize {
        self.ring.posted().into()
    }

    fn sending(&self) -> usize {
        self.sending
    }

    fn close(&mut self) {
        for place in &mut self.packets {
            let handle = std::mem::replace(place, NONE);
            if handle != NONE {
                let mut one: Batch = Batch::with_capacity(1);
                // SAFETY: `keep` stored the handle when its packet left the batch, and it is now
                // out of the table.
                unsafe { one.adopt(&[handle]) };
                one.discard(DropReason::PEER_GONE);
            }
        }
        (self.sending, self.written) = (0, 0);
        self.tally.set(0);
    }
}

/// The buffers of the free slots from `first` on.
struct SlotsAt<'a> {
    ring: &'a ClientRing,
    slots: &'a Slots,
    first: u16,
}

impl Buffers for SlotsAt<'_> {
    fn len(&self) -> u16 {
        self.ring.shared.len()
    }

    fn buffer(&self, i: u16) -> Checked<(Desc, &PeerMemory, usize)> {
        let at = self.slots.at(self.ring.free_slot(self.first + i));
        let desc = Desc { len: self.slots.buffer_bytes, ..Desc::default() };
        Ok((desc, &self.slots.memory, at))
    }

    fn fill(&self, i: u16, len: u32, flags: u16) {
        let slot = self.ring.free_slot(self.first + i);
        let offset = self.slots.at(slot) as u32;
        self.ring.shared.set(slot as u16, Desc { flags, region: 0, len, offset });
    }
}

/// The client's receive side.
pub(super) struct Rx {
    ring: ClientRing,
    bell: EventFd,
    /// The buffers for copies; `None` if the peer writes frames of the pool.
    slots: Option<Slots>,
    /// The frame that is posted in the slot, for each slot.
    frames: Box<[u64]>,
    /// Offset in a frame at which a packet begins; the next field is the longest packet that fits.
    headroom: u64,
    room: u32,
}

impl Rx {
    pub fn new(ring: ClientRing, bell: EventFd, slots: Option<Slots>, pool: &Pool) -> Rx {
        let frames = vec![0; usize::from(ring.shared.len())].into();
        let (headroom, room) = (pool.headroom() as u64, pool.data_room() as u32);
        Rx { ring, bell, slots, frames, headroom, room }
    }

    /// Makes packets from the frames that the peer has filled.
    fn adopt(
        &mut self,
        ready: u16,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
        bytes: &mut u64,
    ) -> Checked<()> {
        let (mut at, end) = (0, out.len() + budget.min(out.spare()));
        copies.unfinished = 0;
        while at < ready && out.len() < end {
            let want = usize::from(ready - at).min(end - out.len()).min(STRIDE);
            let (mut spans, mut n, mut lie) = ([Span::default(); STRIDE], 0, None);
            while n < want {
                match self.span(n as u16) {
                    Ok((span, 0)) if span.len > 0 => {
                        spans[n] = span;
                        *bytes += u64::from(span.len);
                    }
                    Ok(_) => break,
                    Err(found) => {
                        lie = Some(found);
                        break;
                    }
                }
                n += 1;
            }
            // SAFETY: `refill` lent each of these frames to the slot that it comes from, and
            // `take_back` below removes it from there. The peer may still write it, which exported
            // memory allows.
            unsafe { mem.receive(&spans[..n], out) };
            self.ring.take_back(n as u16);
            at += n as u16;
            if let Some(lie) = lie {
                return Err(lie);
            }
            if n == 0 {
                let before = out.len();
                match self.adopt_chain(ready - at, mem, out)? {
                    0 => {
                        copies.unfinished = ready - at;
                        break;
                    }
                    n => at += n,
                }
                *bytes += out.bytes_behind(before);
            }
        }
        Ok(())
    }

    /// Makes a packet from several descriptors, or discards them; returns the number of slots used,
    /// 0 if the packet's end has not arrived.
    #[cold]
    fn adopt_chain(&mut self, ready: u16, mem: &mut Local, out: &mut Batch) -> Checked<u16> {
        let (mut n, mut bytes) = (0, 0);
        loop {
            if n == ready {
                return if n == self.ring.shared.len() { Err(ProtocolError::Chain) } else { Ok(0) };
            }
            let (span, flags) = self.span(n)?;
            bytes += span.len as usize;
            if bytes > PACKET_BYTES_MAX {
                return Err(ProtocolError::Chain);
            }
            n += 1;
            if flags & NEXT == 0 {
                break;
            }
            if usize::from(n) == DESCS_MAX {
                return Err(ProtocolError::Chain);
            }
        }
        let (mut head, mut one): (Option<Skb>, _) = (None, Batch::with_capacity(1));
        for i in 0..n {
            // This is a second reading, so check again, because the peer may have changed the descriptor:
            // each part must be in its frame, and all parts together no longer than a packet.
            let (mut span, _) = self.span(i).unwrap_or((self.empty(i), 0));
            let so_far = head.as_ref().map_or(0, Skb::len);
            span.len = span.len.min((PACKET_BYTES_MAX - so_far) as u32);
            // SAFETY: `refill` lent the frame to its slot, and `take_back` removes it from there.
            // The peer may still write it, which exported memory allows.
            unsafe { mem.receive(&[span], &mut one) };
            let Some(frame) = one.pop() else { continue };
            match &mut head {
                None => head = Some(frame),
                Some(head) => {
                    if let Err(frame) = head.append(frame) {
                        mem.count_received(1);
                        frame.discard(DropReason::TOO_LONG);
                    }
                }
            }
        }
        self.ring.take_back(n);
        match head {
            Some(head) if !head.is_empty() => {
                let _ = out.push(head);
            }
            Some(nothing) => {
                mem.count_received(1);
                nothing.discard(DropReason::MALFORMED);
            }
            None => {}
        }
        Ok(n)
    }

    /// Returns the location and the `NEXT` flag of the `i`-th filled slot.
    fn span(&self, i: u16) -> Checked<(Span, u16)> {
        let empty = self.empty(i);
        let desc = self.ring.shared.desc(self.ring.done_slot(i) as u16);
        if desc.len > self.room {
            return Err(ProtocolError::Length);
        }
        Ok((Span { len: desc.len, ..empty }, desc.flags & NEXT))
    }

    fn empty(&self, i: u16) -> Span {
        Span { offset: self.frames[self.ring.done_slot(i)] + self.headroom, len: 0 }
    }
}

impl RxRing for Rx {
    fn shared(&self) -> &Shared {
        &self.ring.shared
    }

    fn bell(&self) -> &EventFd {
        &self.bell
    }

    fn ready(&mut self) -> Checked<u16> {
        if self.ring.posted() == 0 { Ok(0) } else { self.ring.poll() }
    }

    fn receive(
        &mut self,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (Moved, Checked<()>) {
        let (packets, copied, mut bytes) = (out.len(), copies.bytes, 0);
        let received = match (self.ready(), &self.slots) {
            (Err(lie), _) => Err(lie),
            (Ok(0), _) => Ok(()),
            (Ok(ready), Some(slots)) => {
                let at = DoneSlots { ring: &self.ring, slots };
                let (n, received) = copies.receive(&at, ready, mem, out, budget);
                self.ring.take_back(n);
                bytes = copies.bytes - copied;
                received
            }
            (Ok(ready), None) => self.adopt(ready, copies, mem, out, budget, &mut bytes),
        };
        if received.is_ok() {
            self.refill(mem, copies);
        }
        (Moved { packets: out.len() - packets, bytes }, received)
    }

    fn refill(&mut self, mem: &mut Local, copies: &mut Copies) {
        let free = self.ring.free();
        if let Some(slots) = &self.slots {
            for i in 0..free {
                let slot = self.ring.free_slot(i);
                let offset = slots.at(slot) as u32;
                let desc = Desc { flags: 0, region: 0, len: slots.buffer_bytes, offset };
                self.ring.shared.set(slot as u16, desc);
            }
            return if free > 0 {
                self.ring.post(free)
            };
        }
        let mut posted = 0;
        while posted < free {
            let mut frames = [0; STRIDE];
            let want = usize::from(free - posted).min(STRIDE);
            let n = mem.lend(&mut frames[..want]);
            for &frame in &frames[..n] {
                let slot = self.ring.free_slot(posted);
                self.frames[slot] = frame;
                // The cast loses nothing: the pool's region is below 4 GiB, as `Connector::new` checks.
                let offset = (frame + self.headroom) as u32;
                self.ring
                    .shared
                    .set(slot as u16, Desc { flags: 0, region: POOL, len: self.room, offset });
                posted += 1;
            }
            if n < want {
                break;
            }
        }
        if posted > 0 {
            self.ring.post(posted);
        } else if self.ring.posted() == 0 {
            // Without posted frames no packet can arrive, and no event signals a free frame: count
            // this, so that the caller tries again.
            copies.no_frame += 1;
        }
    }

    fn close(&mut self, home: &mut Local) {
        if self.slots.is_some() {
            return;
        }
        let n = self.ring.posted();
        let frames: Vec<u64> = (0..n).map(|i| self.frames[self.ring.done_slot(i)]).collect();
        self.ring.take_back(n);
        // SAFETY: `refill` lent each frame to a slot, which is taken back only now. The peer may
        // still write it, which exported memory allows.
        unsafe { home.reclaim(&frames) };
    }
}

/// The buffers of slots that the peer has filled.
struct DoneSlots<'a> {
    ring: &'a ClientRing,
    slots: &'a Slots,
}

impl Buffers for DoneSlots<'_> {
    fn len(&self) -> u16 {
        self.ring.shared.len()
    }

    fn buffer(&self, i: u16) -> Checked<(Desc, &PeerMemory, usize)> {
        let slot = self.ring.done_slot(i);
        let desc = self.ring.shared.desc(slot as u16);
        if desc.len > self.slots.buffer_bytes {
            return Err(ProtocolError::Length);
        }
        Ok((desc, &self.slots.memory, self.slots.at(slot)))
    }

    fn fill(&self, _: u16, _: u32, _: u16) {}
}
