//! Receiving and sending by copies, between packets of a pool and buffers that a peer can write.

use linerate_skb::{Batch, DropReason, Local, Moved, Skb, Trust};
use linerate_sys::peer::PeerMemory;

use super::config::{CHAIN_MAX, PACKET_BYTES_MAX};
use super::ring::{Checked, Desc, NEXT, ProtocolError};

/// Length of the shortest packet: its header.
pub(super) const ETHERNET_BYTES: usize = 14;
/// Most packets or frames that one step handles.
pub(super) const STRIDE: usize = 64;

/// The buffers of a ring that are ready, numbered by `i`, for the code that copies on either side.
pub(super) trait Buffers {
    /// Returns the number of the ring's buffers.
    fn len(&self) -> u16;

    /// Returns the highest number of buffers that are ready at one time: all of the ring, unless a
    /// peer posts fewer for a while.
    fn most(&self) -> u16 {
        self.len()
    }

    /// Returns the `i`-th buffer's checked descriptor, its memory, and its offset in that memory.
    ///
    /// # Errors
    /// What the peer says of it is impossible.
    fn buffer(&self, i: u16) -> Checked<(Desc, &PeerMemory, usize)>;

    /// Records that the `i`-th buffer was filled: `desc` is that of [`Buffers::buffer`] with the
    /// new length and flags, and `packet` the length of the packet that ends in the buffer, 0 if it
    /// continues.
    fn fill(&self, i: u16, desc: Desc, packet: u32);

    /// Removes the flag of a chain from `n` descriptors, from the `i`-th on, if the peer posts them
    /// again: see [`Shared::unchain`](super::ring::Shared::unchain).
    fn unchain(&self, _i: u16, _n: u16) {}
}

/// Scratch memory for copies, and their counters.
#[derive(Default)]
pub(super) struct Copies {
    scratch: Vec<u8>,
    /// Bytes copied so far.
    pub bytes: u64,
    /// Number of receives that ended early because the pool had no frame.
    pub no_frame: u64,
    /// Number of buffers that the last receive left in the ring, because the end of their packet
    /// has not arrived.
    pub unfinished: u16,
    /// True if the last packet did not lie in one buffer, or was longer than a frame. The next one
    /// is probably alike, so its descriptor is read before frames are taken for a run.
    is_apart: bool,
}

impl Copies {
    /// Copies up to `budget` packets from `ready` buffers into `out`; returns the number of
    /// buffers.
    ///
    /// Shape:  buffers [0..n) -> out[len..], in order. Without a free frame the rest stays. A
    ///         packet that is dropped, because it is empty or too long, counts against the budget.
    /// Errors: a lie of the peer's; what came before it is in `out`, and counted.
    /// Cost:   one copy; a packet in several buffers, or longer than a frame, is copied twice.
    pub fn receive(
        &mut self,
        ring: &impl Buffers,
        ready: u16,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (u16, Checked<()>) {
        if ready > 0 && ready == self.unfinished {
            // Nothing was posted behind the packet without an end: do not read it again.
            return (0, Ok(()));
        }
        let (mut at, mut left) = (0, budget.min(out.spare()));
        self.unfinished = 0;
        while at < ready && left > 0 {
            let (want, before) = (usize::from(ready - at).min(left).min(STRIDE), out.len());
            let run = match mem.pool().trust() {
                Trust::Private if !self.is_apart || is_plain(ring, at, mem.pool().data_room()) => {
                    self.receive_run(ring, at, want, mem, out)
                }
                _ => Ok(0),
            };
            self.is_apart = run == Ok(0);
            let n = match run {
                Ok(0) => self.receive_one(ring, at, ready, mem, out),
                run => run,
            };
            match n {
                Ok(0) => break,
                Ok(n) => at += n,
                Err(lie) => return (at, Err(lie)),
            }
            left -= (out.len() - before).max(1);
        }
        (at, Ok(()))
    }

    /// Copies packets that have one buffer each, up to the first packet that has several.
    fn receive_run(
        &mut self,
        ring: &impl Buffers,
        at: u16,
        want: usize,
        mem: &mut Local,
        out: &mut Batch,
    ) -> Checked<u16> {
        let (before, mut n, mut lie) = (out.len(), 0, None);
        mem.alloc(out, want);
        let filled = out.fill_from(before, |room| match ring.buffer(at + n) {
            Ok((desc, memory, offset)) => {
                let len = desc.len as usize;
                let room = room.get_mut(..len).filter(|_| len > 0 && desc.flags & NEXT == 0)?;
                n += 1;
                memory.read(offset, room).then_some(len)
            }
            Err(found) => {
                lie = Some(found);
                None
            }
        });
        self.bytes += filled.bytes;
        out.truncate_to(before + filled.packets, mem);
        match lie {
            // Report the violation at the next call, because the packets before it are valid.
            Some(lie) if filled.packets == 0 => Err(lie),
            _ => Ok(filled.packets as u16),
        }
    }

    /// Copies one packet, and returns the number of its buffers: 0 if its end has not arrived or
    /// the pool has no frame.
    fn receive_one(
        &mut self,
        ring: &impl Buffers,
        at: u16,
        ready: u16,
        mem: &mut Local,
        out: &mut Batch,
    ) -> Checked<u16> {
        self.scratch.clear();
        let mut n = 0;
        loop {
            if at + n == ready {
                self.unfinished = n;
                return if n == ring.len() { Err(ProtocolError::Chain) } else { Ok(0) };
            }
            let (desc, memory, offset) = ring.buffer(at + n)?;
            let (from, len) = (self.scratch.len(), desc.len as usize);
            if from + len > PACKET_BYTES_MAX {
                return Err(ProtocolError::TooLong);
            }
            self.scratch.resize(from + len, 0);
            if !memory.read(offset, &mut self.scratch[from..]) {
                return Err(ProtocolError::Outside);
            }
            n += 1;
            if desc.flags & NEXT == 0 {
                break;
            }
            if n == CHAIN_MAX {
                return Err(ProtocolError::TooLong);
            }
        }
        // An empty packet, or a packet too long for any chain of the pool's frames: it counts as
        // received, and is dropped.
        let reason = match self.scratch.len() {
            0 => Some(DropReason::MALFORMED),
            len if len > mem.pool().packet_max_bytes() => Some(DropReason::TOO_LONG),
            _ => None,
        };
        if let Some(reason) = reason {
            let Some(skb) = mem.alloc_one() else {
                self.no_frame += 1;
                return Ok(0);
            };
            mem.count_received(1);
            skb.discard(reason);
            ring.unchain(at, n - 1);
            return Ok(n);
        }
        let Some(skb) = mem.alloc_copy(&self.scratch) else {
            self.no_frame += 1;
            return Ok(0);
        };
        self.bytes += self.scratch.len() as u64;
        // `push` cannot fail: `out` has room for `budget` packets.
        let _ = out.push(skb);
        ring.unchain(at, n - 1);
        Ok(n)
    }

    /// Copies packets from the front of `batch` into `ready` buffers and frees the packets as sent.
    /// Returns the number of buffers used, the packets' counts, and the reason why it stopped.
    ///
    /// Errors: a lie of the peer's; nothing was sent then.
    /// Cost:   one copy; a packet in several frames, in memory that a peer writes, or longer than a
    ///         buffer, is copied twice.
    pub fn send_run(
        &mut self,
        ring: &impl Buffers,
        ready: u16,
        mem: &mut Local,
        batch: &mut Batch,
    ) -> Checked<(u16, Moved, Stop)> {
        let (mut worked, mut moved) = (0, Moved::default());
        loop {
            let sent = batch.plain_data(|data| {
                let taken = worked < ready && put(ring, worked, data);
                worked += u16::from(taken);
                taken
            });
            batch.free_sent(sent.packets, mem);
            self.bytes += sent.bytes;
            moved += sent;
            // The run stopped because the next packet is not plain, or because there is no room for
            // it.
            let Some(skb) = batch.iter().next() else { return Ok((worked, moved, Stop::Empty)) };
            if let Some(stop) = Stop::of(skb) {
                return Ok((worked, moved, stop));
            }
            match self.send(ring, worked, ready - worked, skb) {
                Ok(Some(n)) => {
                    worked += n;
                    moved += batch.sent(1, mem);
                }
                // The packet is longer than all buffers that were ever ready at once, and none of
                // them is in use.
                Ok(None) if worked == 0 && ready == ring.most() && ready > 0 => {
                    return Ok((worked, moved, Stop::Never(DropReason::TOO_LONG)));
                }
                Ok(None) => return Ok((worked, moved, Stop::Full)),
                // Count the packets that were sent before the violation; the next call finds the
                // violation again.
                Err(_) if moved.packets > 0 => return Ok((worked, moved, Stop::Full)),
                Err(lie) => return Err(lie),
            }
        }
    }

    /// Replaces the first packet by a copy in frames of `mem`'s pool; returns false if no frame is
    /// free. A packet that needs more frames than the pool has is dropped.
    #[cold]
    pub fn replace_first(&mut self, mem: &mut Local, batch: &mut Batch) -> bool {
        let Some(skb) = batch.iter_mut().next() else { return false };
        if skb.len() > mem.pool().packet_max_bytes() {
            batch.discard_first(1, DropReason::TOO_LONG, mem);
            return true;
        }
        self.scratch.resize(skb.len(), 0);
        let n = skb.copy_to(0, &mut self.scratch);
        let Some(copy) = mem.alloc_copy(&self.scratch[..n]) else { return false };
        self.bytes += n as u64;
        *skb = copy;
        true
    }

    /// Copies any `skb` into the `left` free buffers from the `i`-th on; returns the number of
    /// buffers used, `None` if they are too few.
    #[cold]
    fn send(&mut self, ring: &impl Buffers, i: u16, left: u16, skb: &Skb) -> Checked<Option<u16>> {
        self.scratch.resize(skb.len(), 0);
        skb.copy_to(0, &mut self.scratch);
        let (mut rest, mut n) = (self.scratch.as_slice(), 0);
        while !rest.is_empty() {
            if n == left {
                return Ok(None);
            }
            let (desc, memory, offset) = ring.buffer(i + n)?;
            let (piece, behind) = rest.split_at(rest.len().min(desc.len as usize));
            if piece.is_empty() || !memory.write(offset, piece) {
                return Err(ProtocolError::Buffer);
            }
            let (flags, packet) = if behind.is_empty() { (0, skb.len()) } else { (NEXT, 0) };
            let filled = Desc { flags, len: piece.len() as u32, ..desc };
            ring.fill(i + n, filled, packet as u32);
            rest = behind;
            n += 1;
        }
        self.bytes += skb.len() as u64;
        Ok(Some(n))
    }
}

/// The reason why the rest of a batch was not put into a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// No packet is left.
    Empty,
    /// No room is left.
    Full,
    /// The first packet's bytes are in memory that the peer does not map.
    Copy,
    /// The first packet has an offload or a VLAN tag in its metadata, which memif cannot describe
    /// to a peer.
    Offload,
    /// The first packet can never be sent.
    Never(DropReason),
}

impl Stop {
    /// Returns the reason why no ring can send the packet, if there is one.
    #[inline]
    pub fn of(skb: &Skb) -> Option<Stop> {
        if skb.offload().is_pending() || skb.vlan().is_some() {
            return Some(Stop::Offload);
        }
        let len = skb.len();
        if (ETHERNET_BYTES..=PACKET_BYTES_MAX).contains(&len) {
            return None;
        }
        let short = len < ETHERNET_BYTES;
        Some(Stop::Never(if short { DropReason::MALFORMED } else { DropReason::TOO_LONG }))
    }
}

/// Copies a packet in one frame into the `i`-th buffer; returns false if it does not fit or is too
/// short.
#[inline]
fn put(ring: &impl Buffers, i: u16, data: &[u8]) -> bool {
    let Ok((desc, memory, offset)) = ring.buffer(i) else { return false };
    let fits = (ETHERNET_BYTES..=desc.len as usize).contains(&data.len());
    if !fits || !memory.write(offset, data) {
        return false;
    }
    let len = data.len() as u32;
    ring.fill(i, Desc { flags: 0, len, ..desc }, len);
    true
}

/// Returns true if a packet lies in the `i`-th buffer and fits into a frame of `room` bytes.
fn is_plain(ring: &impl Buffers, i: u16, room: usize) -> bool {
    ring.buffer(i)
        .is_ok_and(|(desc, ..)| desc.flags & NEXT == 0 && (1..=room).contains(&(desc.len as usize)))
}
