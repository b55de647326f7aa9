//! The client's transmit ring: packets go in place, or by copies into the slots' buffers.

use std::cell::Cell;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Skb, Span, Tally};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::client::{DESCS_MAX, POOL, Slots};
use super::copies::{Buffers, Copies, ETHERNET_BYTES, STRIDE, Stop};
use super::ring::{Checked, ClientRing, Desc, NEXT};
use super::rings::TxRing;

/// Marks a slot that is not the last slot of a packet.
const NONE: u32 = 0;

/// Length of the shortest packet.
const SHORTEST: u32 = ETHERNET_BYTES as u32;

/// The client's transmit side.
pub(super) struct Tx {
    ring: ClientRing,
    bell: EventFd,
    /// The buffers for copies; `None` if packets are sent in place.
    slots: Option<Slots>,
    /// The packet whose last descriptor is in the slot, for each slot: its handle, or the length of
    /// its copy.
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
            // `put_plain` stopped because the next packet is not plain, or because there is no room
            // for it.
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
            let fits = |span: &&Span| (SHORTEST..=self.desc_bytes).contains(&span.len);
            let n = spans[..n].iter().take_while(fits).count();
            for (i, span) in (0u16..).zip(&spans[..n]) {
                // The cast loses nothing: the pool's region is below 4 GiB, as `Connector::new`
                // checks.
                let (len, offset) = (span.len, span.offset as u32);
                self.set(i, Desc { flags: 0, region: POOL, len, offset });
                moved.bytes += u64::from(len);
            }
            moved.packets += n;
            for &handle in &batch.handles()[..n] {
                self.keep(handle, 1);
            }
            // SAFETY: `packets` has the packets' handles; `reap` and `close` take each out once and
            // adopt it.
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

    /// Writes the descriptors of a packet of the pool into free slots; returns the number of slots
    /// used.
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
                // The cast loses nothing: the pool's region is below 4 GiB, as `Connector::new`
                // checks.
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
        let packets = Cell::from_mut(&mut *self.packets).as_slice_of_cells();
        let at = SlotsAt { ring: &self.ring, slots, packets, first: self.written };
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
        // Report room only if half of a short ring is free, or half of `DESCS_MAX` slots of a
        // longer one: waking for one slot is too costly.
        Ok(self.ring.free() >= self.ring.shared.len().min(DESCS_MAX as u16) / 2)
    }

    fn under_way(&self) -> usize {
        self.ring.posted().into()
    }

    fn sending(&self) -> usize {
        self.sending
    }

    fn close(&mut self) -> Moved {
        let mut dropped = Moved::default();
        if self.slots.is_some() {
            // The pool has counted these packets as sent when they were copied.
            let n = self.ring.posted() + std::mem::take(&mut self.written);
            for slot in (0..n).map(|i| self.ring.done_slot(i)) {
                let len = u64::from(self.packets[slot]);
                dropped += Moved { packets: usize::from(len > 0), bytes: len };
            }
            self.ring.take_back(self.ring.posted());
            return dropped;
        }
        let mut one: Batch = Batch::with_capacity(1);
        for place in &mut self.packets {
            let handle = std::mem::replace(place, NONE);
            if handle != NONE {
                // SAFETY: `keep` stored the handle when its packet left the batch, and it is now
                // out of the table.
                unsafe { one.adopt(&[handle]) };
                dropped += one.count_from(0);
                one.discard(DropReason::PEER_GONE);
            }
        }
        (self.sending, self.written) = (0, 0);
        self.tally.set(0);
        dropped
    }
}

/// The buffers of the free slots from `first` on.
struct SlotsAt<'a> {
    ring: &'a ClientRing,
    slots: &'a Slots,
    /// The length of the packet whose last buffer is in the slot, for each slot.
    packets: &'a [Cell<u32>],
    first: u16,
}

impl Buffers for SlotsAt<'_> {
    fn len(&self) -> u16 {
        self.ring.shared.len()
    }

    fn buffer(&self, i: u16) -> Checked<(Desc, &PeerMemory, usize)> {
        let at = self.slots.at(self.ring.free_slot(self.first + i));
        let desc = Desc { len: self.slots.buffer_bytes, offset: at as u32, ..Desc::default() };
        Ok((desc, &self.slots.memory, at))
    }

    fn fill(&self, i: u16, desc: Desc, packet: u32) {
        let slot = self.ring.free_slot(self.first + i);
        self.packets[slot].set(packet);
        self.ring.shared.set(slot as u16, desc);
    }
}
