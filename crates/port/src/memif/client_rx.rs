//! The client's receive ring: the peer fills lent frames of the pool, or the slots' buffers.

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Span};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::client::{DESCS_MAX, POOL, Slots};
use super::config::PACKET_BYTES_MAX;
use super::copies::{Buffers, Copies, STRIDE};
use super::ring::{Checked, ClientRing, Desc, NEXT, ProtocolError, Shared};
use super::rings::RxRing;

/// The client's receive side.
pub(super) struct Rx {
    ring: ClientRing,
    bell: EventFd,
    /// The buffers for copies; `None` if the peer writes frames of the pool.
    slots: Option<Slots>,
    /// The frame that is posted in the slot, for each slot.
    frames: Box<[u64]>,
    /// Slots that the longest packet takes: with fewer posted, the peer cannot send it.
    packet_slots: usize,
    /// Offset in a frame at which a packet begins; the next field is the longest packet that fits.
    headroom: u64,
    room: u32,
    /// The frame that is added to a packet of several descriptors.
    one: Batch,
}

impl Rx {
    pub fn new(ring: ClientRing, bell: EventFd, slots: Option<Slots>, pool: &Pool) -> Rx {
        let frames = vec![0; usize::from(ring.shared.len())].into();
        let longest = PACKET_BYTES_MAX.min(pool.packet_max_bytes());
        let slots_max = DESCS_MAX.min(ring.shared.len().into());
        let packet_slots = longest.div_ceil(pool.data_room()).min(slots_max);
        let (headroom, room) = (pool.headroom() as u64, pool.data_room() as u32);
        let one = Batch::with_capacity(1);
        Rx { ring, bell, slots, frames, packet_slots, headroom, room, one }
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
        let (mut at, mut left) = (0, budget.min(out.spare()));
        copies.unfinished = 0;
        while at < ready && left > 0 {
            let want = usize::from(ready - at).min(left).min(STRIDE);
            let (mut spans, mut n, mut error) = ([Span::default(); STRIDE], 0, None);
            while n < want {
                match self.span(n as u16) {
                    Ok((span, 0)) if span.len > 0 => {
                        spans[n] = span;
                        *bytes += u64::from(span.len);
                    }
                    Ok(_) => break,
                    Err(found) => {
                        error = Some(found);
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
            left -= n;
            if let Some(error) = error {
                return Err(error);
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
                // A packet that was discarded counts, too: it takes as long as another one.
                left -= 1;
                *bytes += out.count_from(before).bytes;
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
            if n == ready && n == self.ring.shared.len() {
                return Err(ProtocolError::Chain);
            }
            if usize::from(n) == DESCS_MAX {
                return Err(ProtocolError::TooLong);
            }
            if n == ready {
                return Ok(0);
            }
            let (span, flags) = self.span(n)?;
            bytes += span.len as usize;
            if bytes > PACKET_BYTES_MAX {
                return Err(ProtocolError::TooLong);
            }
            n += 1;
            if flags & NEXT == 0 {
                break;
            }
        }
        let mut head: Option<Skb> = None;
        for i in 0..n {
            // This is a second reading, so check again, because the peer may have changed the
            // descriptor: each part must be in its frame, and all parts together no longer than a
            // packet.
            let (mut span, _) = self.span(i).unwrap_or((self.empty(i), 0));
            let so_far = head.as_ref().map_or(0, Skb::len);
            span.len = span.len.min((PACKET_BYTES_MAX - so_far) as u32);
            // SAFETY: `refill` lent the frame to its slot, and `take_back` removes it from there.
            // The peer may still write it, which exported memory allows.
            unsafe { mem.receive(&[span], &mut self.one) };
            let Some(frame) = self.one.pop() else { continue };
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

    fn unread(&mut self) -> usize {
        let ready = self.ready().unwrap_or(0);
        let flags = |i| self.ring.shared.desc(self.ring.done_slot(i) as u16).flags;
        (0..ready).filter(|i| flags(*i) & NEXT == 0).count()
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
            (Err(error), _) => Err(error),
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
        let (mut posted, mut is_short) = (0, false);
        while posted < free && !is_short {
            let mut frames = [0; STRIDE];
            let want = usize::from(free - posted).min(STRIDE);
            let n = mem.lend(&mut frames[..want]);
            for &frame in &frames[..n] {
                let slot = self.ring.free_slot(posted);
                self.frames[slot] = frame;
                // The cast loses nothing: the pool's region is below 4 GiB, as `Connector::new`
                // checks.
                let offset = (frame + self.headroom) as u32;
                self.ring
                    .shared
                    .set(slot as u16, Desc { flags: 0, region: POOL, len: self.room, offset });
                posted += 1;
            }
            is_short = n < want;
        }
        if posted > 0 {
            self.ring.post(posted);
        }
        if is_short && usize::from(self.ring.posted()) < self.packet_slots {
            // A packet that takes more slots cannot arrive, and no event signals a free frame:
            // count this, so that the caller tries again.
            copies.no_frame += 1;
        }
    }

    fn has_frames(&self) -> bool {
        self.slots.is_none()
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

    fn fill(&self, _: u16, _: Desc, _: u32) {}
}
