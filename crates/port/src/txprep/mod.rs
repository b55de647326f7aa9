//! Transmit preparation: does the offloads that a device lacks in software, before packets reach
//! its driver, and inserts VLAN tags that are in the metadata.
//!
//! ```text
//!   batch ──► nothing to do ─────────────────────────────────────────► driver
//!         └─► tags ─► checksums ─► cut ─► ready: up to 64 packets, in order ──► driver
//!                 a superframe waits in `under` until its last segment is in `ready`
//! ```
//!
//! Owner: one for each queue, above its driver and above what is wrapped around it, so that a tee
//! copies what leaves. What the driver refuses stays in `ready`, before all that is offered later;
//! it goes with the queue's next call, and is dropped as `stopped` with the queue. A device that is
//! down drops it itself.
//!
//! A queue that passes packets on in their frames can be kept to a pool: then a packet of another
//! pool is copied here, so that no frame of a wire gets to a peer of another one.
//!
//! Source: Linux net/core/dev.c `validate_xmit_skb`; DPDK `rte_eth_tx_prepare`.

#[cfg(test)]
mod leaving;
mod tag;
#[cfg(test)]
mod tests;

use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Offload, Pool, Skb};
use linerate_sys::vnet::GSO_UDP_L4;

use crate::caps::{Caps, TxOffload};
use crate::host::{Retry, copy_out, offload};
use crate::queue::QueueOps;
use crate::segment::{self, Cutter, copy_fields};

/// Number of packets prepared in one step, for one doorbell.
const STRIDE: usize = 64;

/// Most datagrams into which every kernel cuts a superframe: newer ones take 128.
const UDP_SEGMENTS: usize = 64;
const UDP_HEADER_BYTES: usize = 8;
/// The size of segments by which the kernel marks superframes whose segments differ in length; it
/// takes none from a program.
const GSO_BY_FRAGS: u16 = u16::MAX;

/// The reason why packets wait in the preparation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The device has no room.
    Room,
    /// The pool has no frame for a segment; the time is that of the next attempt.
    Frame(Instant),
}

/// Preparation for a device that lacks some offloads, and the packets in it.
pub(crate) struct TxPrep {
    checksum: TxOffload,
    gso: TxOffload,
    /// True if the queue passes VLAN tags on in the metadata.
    keeps_vlan: bool,
    /// True if the device does all offloads, and keeps VLAN tags.
    does_all: bool,
    /// True if there is nothing to prepare: the device does all offloads, and there is no border.
    passes: bool,
    /// True if the driver itself stops at packets whose offload it lacks.
    stops_at_offloads: bool,
    /// The packets in work; created for the first superframe.
    stage: Option<Box<Stage>>,
    /// The pool into which packets of other pools are copied.
    border: Option<Box<Border>>,
}

/// The pool to which a queue keeps: packets of other pools are copied into its frames.
struct Border {
    pool: Pool,
    scratch: Vec<u8>,
    copied_bytes: u64,
}

/// A superframe that is being cut, and packets that are prepared and not sent yet.
struct Stage {
    under: Option<(Skb, Cutter)>,
    ready: Batch,
    scratch: Vec<u8>,
    /// The next attempt, after the pool had no frame.
    starved: Retry,
    copied_bytes: u64,
}

impl TxPrep {
    /// Creates the preparation for a queue with these `caps`.
    pub fn new(caps: &Caps) -> TxPrep {
        let Caps { checksum, gso, keeps_vlan, stops_at_offloads, .. } = *caps;
        let does_all = (checksum, gso, keeps_vlan) == (TxOffload::All, TxOffload::All, true);
        TxPrep {
            checksum,
            gso,
            keeps_vlan,
            does_all,
            passes: does_all,
            stops_at_offloads,
            stage: None,
            border: None,
        }
    }

    /// Returns the preparation for a queue of other caps, with the packets that wait in this one,
    /// and its border.
    pub fn for_caps(self, caps: &Caps) -> TxPrep {
        let (TxPrep { stage, border, .. }, new) = (self, TxPrep::new(caps));
        let passes = new.passes && stage.is_none() && border.is_none();
        TxPrep { stage, border, passes, ..new }
    }

    /// Makes the preparation copy packets of other pools into frames of `pool`.
    pub fn keep_to(&mut self, pool: &Pool) {
        let border = Border { pool: pool.clone(), scratch: Vec::new(), copied_bytes: 0 };
        (self.border, self.passes) = (Some(border.into()), false);
    }

    /// Returns true if packets of other pools are copied.
    pub fn has_border(&self) -> bool {
        self.border.is_some()
    }

    /// Sends packets from the front of `batch`, after those that already wait in the preparation.
    ///
    /// Shape:  batch[0..n) -> device, or waits here; the rest stays, in order. What cannot be
    ///         prepared is dropped with its reason.
    /// Units:  what the device took, in packets and bytes: segments, not superframes.
    /// Errors: none; a packet that is too short for a VLAN tag, or contradicts what it leaves to
    ///         the device, is counted as `malformed`, a copy without a free frame as `no_frame`,
    ///         one that the pool can never hold as `too_long`.
    /// Cost:   nothing for a device that does all work; else a look at each packet, a pass over the
    ///         payload of those without a checksum, two copies of superframes, and a move of 12
    ///         bytes for a VLAN tag, or two copies of the packet without headroom.
    pub fn xmit(&mut self, ops: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        if self.passes {
            return ops.xmit(mem, batch);
        }
        if let Some(border) = &mut self.border {
            border.copy_others(mem, batch);
            if self.does_all && !self.is_busy() {
                return ops.xmit(mem, batch);
            }
        }
        if !self.is_busy() {
            if self.stops_at_offloads {
                let mut sent = ops.xmit(mem, batch);
                let first = batch.iter().next();
                if !first.is_some_and(|skb| skb.offload().is_pending() || skb.vlan().is_some()) {
                    return sent;
                }
                sent += self.prepare(ops, mem, batch);
                return sent;
            }
            if !batch.any_offload(|skb, left| self.is_left(skb, left)) {
                return ops.xmit(mem, batch);
            }
        }
        self.prepare(ops, mem, batch)
    }

    /// Returns true if there is no work on any packet of `batch`, and none waits here.
    #[inline]
    pub fn has_none_of(&self, batch: &Batch) -> bool {
        let is_open = self.border.is_none() && !self.is_busy();
        self.passes || is_open && !batch.any_offload(|skb, left| self.is_left(skb, left))
    }

    /// Returns true while packets wait in the preparation.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.stage.as_ref().is_some_and(|stage| stage.is_busy())
    }

    /// Returns the number of packets that wait in the preparation; a superframe counts as one.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.stage.as_ref().map_or(0, |s| s.ready.len() + usize::from(s.under.is_some()))
    }

    /// Returns the reason why packets wait, if any do.
    pub fn waits(&self) -> Option<Waits> {
        let stage = self.stage.as_ref().filter(|stage| stage.is_busy())?;
        Some(stage.starved.at().map_or(Waits::Room, Waits::Frame))
    }

    /// Returns the bytes copied so far: into segments, into packets with a VLAN tag, and for
    /// packets of other pools.
    pub fn copied_bytes(&self) -> u64 {
        let over = self.border.as_ref().map_or(0, |border| border.copied_bytes);
        over + self.stage.as_ref().map_or(0, |stage| stage.copied_bytes)
    }

    /// Returns true if there is work on `skb` before the driver can have it.
    #[inline]
    fn is_left(&self, skb: &Skb, left: Offload) -> bool {
        let has_tag = !self.keeps_vlan && skb.vlan().is_some();
        has_tag || left.is_pending() && is_left(skb, left, self.checksum, self.gso)
    }

    #[cold]
    fn prepare(&mut self, ops: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let (checksum, gso, keeps_vlan) = (self.checksum, self.gso, self.keeps_vlan);
        let mut cut = self.is_busy();
        let stage = &mut self.stage;
        batch.retain(|skb| {
            if let Some(tag) = skb.vlan().filter(|_| !keeps_vlan) {
                let stage = stage.get_or_insert_default();
                stage.copied_bytes += tag::insert(skb, tag, mem, &mut stage.scratch)?;
            }
            let left = skb.offload();
            if !left.is_pending() || !is_left(skb, left, checksum, gso) {
                return Ok(());
            }
            cut |= left.is_gso();
            if left.is_gso() { Ok(()) } else { offload::finish_one(skb, left) }
        });
        let cuts = |skb: &Skb| {
            let left = skb.offload();
            left.is_gso() && is_left(skb, left, checksum, gso)
        };
        if !cut {
            return ops.xmit(mem, batch);
        }
        let mut sent = Moved::default();
        loop {
            if !self.is_busy() && !batch.iter().any(cuts) {
                if !batch.is_empty() {
                    sent += ops.xmit(mem, batch);
                }
                return sent;
            }
            let stage = self.stage.get_or_insert_default();
            stage.fill(mem, batch, cuts);
            sent += ops.xmit(mem, &mut stage.ready);
            if stage.is_busy() && (!stage.ready.is_empty() || stage.starved.at().is_some()) {
                return sent;
            }
        }
    }
}

/// Returns true if the offload `left` of `skb` must be done in software, because the device does
/// only `checksum` and `gso`.
#[inline]
fn is_left(skb: &Skb, left: Offload, checksum: TxOffload, gso: TxOffload) -> bool {
    let by = if left.is_gso() { gso } else { checksum };
    match by {
        TxOffload::All => false,
        TxOffload::None => true,
        TxOffload::Untunnelled | TxOffload::UntunnelledTcp => {
            offload::is_tunnelled(skb, left) || left.is_gso() && refuses_kind(by, skb.len(), left)
        }
    }
}

/// Returns true if a device that cuts superframes as `by` says refuses one of `len` bytes of this
/// kind.
///
/// Source: include/linux/virtio_net.h, `virtio_net_hdr_to_skb`.
fn refuses_kind(by: TxOffload, len: usize, left: Offload) -> bool {
    if !segment::is_udp(left) {
        return segment::is_unknown(left) || left.gso_size == GSO_BY_FRAGS;
    }
    // The kernel refuses superframes of UDP whose checksum is complete, as rx-gro-list makes them.
    let has_udp_gso = by == TxOffload::Untunnelled && left.needs_checksum();
    let payload = len.saturating_sub(usize::from(left.csum_start) + UDP_HEADER_BYTES);
    let is_usual = left.gso_type == GSO_UDP_L4 && left.gso_size != GSO_BY_FRAGS;
    !has_udp_gso || !is_usual || payload > UDP_SEGMENTS * usize::from(left.gso_size)
}

impl Default for Stage {
    fn default() -> Stage {
        let (ready, scratch) = (Batch::with_capacity(STRIDE), Vec::new());
        Stage { under: None, ready, scratch, starved: Retry::default(), copied_bytes: 0 }
    }
}

impl Stage {
    fn is_busy(&self) -> bool {
        self.under.is_some() || !self.ready.is_empty()
    }

    /// Moves packets from the front of `batch` to `ready` and cuts superframes. Stops when `ready`
    /// is full, the pool has no frame, or `ready` is empty and the remaining packets need no work.
    ///
    /// Packets that need no work follow others into `ready`, because a driver may learn only from a
    /// packet behind a refused one that the device never takes that one.
    #[cold]
    fn fill(&mut self, mem: &mut Local, batch: &mut Batch, cuts: impl Fn(&Skb) -> bool) {
        self.starved = Retry::default();
        while self.ready.spare() > 0 {
            if self.under.is_some() {
                if !self.cut(mem) {
                    return;
                }
                continue;
            }
            let superframe = batch.iter().position(&cuts);
            match superframe {
                None if self.ready.is_empty() => return,
                None => {
                    batch.move_to(&mut self.ready, batch.len());
                    return;
                }
                Some(0) => self.begin(mem, batch),
                Some(plain) => drop(batch.move_to(&mut self.ready, plain)),
            }
        }
    }

    /// Takes the first packet of `batch`, which is a superframe, to cut it; drops it if this is
    /// impossible.
    fn begin(&mut self, mem: &mut Local, batch: &mut Batch) {
        let first = batch.iter().next().map(Cutter::of);
        match first {
            // The pool never has frames for such a segment: it would wait for them for ever.
            Some(Ok(cutter)) if cutter.longest() > mem.pool().packet_max_bytes() => {
                batch.discard_first(1, DropReason::TOO_LONG, mem);
            }
            Some(Ok(cutter)) => self.under = batch.pop().map(|skb| (skb, cutter)),
            Some(Err(reason)) => batch.discard_first(1, reason, mem),
            None => {}
        }
    }

    /// Appends segments to `ready`; returns false if the pool has no frame for the next segment.
    fn cut(&mut self, mem: &mut Local) -> bool {
        let Some((skb, cutter)) = &mut self.under else { return true };
        let before = self.ready.len();
        let ended = cutter.cut(skb, mem, &mut self.scratch, &mut self.ready);
        self.copied_bytes += self.ready.count_from(before).bytes;
        self.ready.iter_mut().skip(before).for_each(|segment| copy_fields(skb, segment));
        if ended {
            self.under = None;
        } else if self.ready.spare() > 0 {
            self.starved = Retry::later();
            return false;
        }
        true
    }
}

impl Border {
    /// Replaces packets of other pools by copies; drops a packet if there is no frame for its copy,
    /// or the pool can never hold it.
    ///
    /// Cost: a look at each packet; a copy of those of other pools.
    fn copy_others(&mut self, mem: &mut Local, batch: &mut Batch) {
        if batch.iter().all(|skb| skb.is_of(&self.pool)) {
            return;
        }
        let longest = mem.pool().packet_max_bytes();
        batch.retain(|skb| {
            if skb.is_of(&self.pool) {
                return Ok(());
            }
            let bytes = copy_out(skb, &mut self.scratch).filter(|bytes| bytes.len() <= longest);
            let bytes = bytes.ok_or(DropReason::TOO_LONG)?;
            let mut copy = mem.alloc_copy(bytes).ok_or(DropReason::NO_FRAME)?;
            copy_fields(skb, &mut copy);
            copy.set_offload(skb.offload());
            self.copied_bytes += bytes.len() as u64;
            *skb = copy;
            Ok(())
        });
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some((skb, _)) = self.under.take() {
            skb.discard(DropReason::STOPPED);
        }
        self.ready.discard(DropReason::STOPPED);
    }
}
