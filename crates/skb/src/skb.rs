//! The packet: an owned 4-byte handle on a frame, or on a chain of frames.
//!
//! ```text
//!  frame   [ headroom | data ............ | tailroom ]   push takes headroom, put takes tailroom
//!                      off        off+len
//!  chain   head ─next→ fragment ─next→ fragment          len() counts all, data() is the head's
//! ```
//!
//! Types govern access: a [`Unique`] packet is written through `&mut`, a [`Shared`] one is only
//! read. A bit of the handle governs freeing: unless it is set, nothing about the frame needs to be
//! looked at. A unique packet of which a shared handle exists is copied on the first write.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use crate::chain;
use crate::frames::Place;
use crate::handle::FLAG;
use crate::lanes::lane;
use crate::meta::Meta;
use crate::page::Fate;
use crate::policy::Trust;
use crate::pool::Pool;
use crate::reason::DropReason;
use crate::refs;
use crate::segments::Segments;
use crate::thread;
use crate::umem::Umem;

/// State of an [`Skb`] that may be written.
#[derive(Debug)]
pub struct Unique(());
/// State of an [`Skb`] whose bytes other handles can read too.
#[derive(Debug)]
pub struct Shared(());

/// A packet, owned by this handle. The last owner frees it exactly once, on any thread.
///
/// A plain drop counts the packet as *consumed*; [`discard`](Skb::discard) names a reason.
///
/// # Copies
///
/// A packet whose bytes are shared is copied by the first call that writes to it. The frames for
/// the copy come from the calling thread's cache and from the depot. Free frames on the hot list of
/// a [`Local`](crate::Local) are not used, because only the list's owner has access to them. Where
/// a method's page says that the pool has *no frame for a copy*, these two places have none.
#[repr(transparent)]
pub struct Skb<S = Unique> {
    handle: NonZeroU32,
    state: PhantomData<fn() -> S>,
}

const _: () = assert!(size_of::<Option<Skb>>() == 4);

impl<S> Skb<S> {
    /// Creates a packet from a handle that the caller owns.
    ///
    /// # Safety
    /// `handle` came from `into_raw` of an `Skb` in the same state, or from a free list with its
    /// meta line initialised, and has no other owner.
    pub(crate) unsafe fn from_raw(handle: u32) -> Skb<S> {
        debug_assert!(handle != 0);
        // SAFETY: ids start at 1, so no handle is 0.
        Skb { handle: unsafe { NonZeroU32::new_unchecked(handle) }, state: PhantomData }
    }

    /// Returns the handle without freeing the packet.
    pub(crate) fn into_raw(self) -> u32 {
        ManuallyDrop::new(self).raw()
    }

    pub(crate) fn raw(&self) -> u32 {
        self.handle.get()
    }

    pub(crate) fn umem(&self) -> &'static Umem {
        Umem::of(self.raw())
    }

    pub(crate) fn meta(&self) -> &Meta {
        // SAFETY: the line was initialised at allocation. While other handles can reach it, no
        // thread writes it, except `refs` and `refused`, which are atomic: every other writer
        // calls `meta_mut`, which needs `&mut` and a frame that is not shared.
        unsafe { self.umem().meta(self.raw()).as_ref() }
    }

    /// Returns the processes that can write the bytes.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.umem().trust()
    }

    /// Returns true if the packet's first frame is one of that pool.
    #[must_use]
    pub fn is_of(&self, pool: &Pool) -> bool {
        std::ptr::eq(self.umem(), pool.umem())
    }

    /// Returns the length in bytes, from the destination MAC, without FCS, over all fragments.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        let meta = self.meta();
        (meta.len + meta.data_len) as usize
    }

    /// Returns true if the packet has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if all bytes are in one frame.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        self.meta().frags == 0
    }

    /// Returns the number of frames behind the first one.
    #[must_use]
    pub fn fragments(&self) -> usize {
        usize::from(self.meta().frags)
    }

    /// Returns the number of bytes free before the data.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.meta().off as usize
    }

    /// Returns the number of bytes free behind the data of the first frame.
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let meta = self.meta();
        (self.umem().place(self.raw()).bytes - meta.off - meta.len) as usize
    }

    /// Returns the bytes of the first frame; all bytes if the packet [is linear](Skb::is_linear).
    ///
    /// Empty if a peer can write the memory (such bytes cannot be borrowed): [`Skb::copy_to`] reads
    /// either kind.
    #[must_use]
    #[inline]
    pub fn data(&self) -> &[u8] {
        let (place, meta) = (self.umem().place(self.raw()), self.meta());
        if place.trust == Trust::Exported {
            return &[];
        }
        // SAFETY: off + len <= frame_bytes holds for every line (each setter checks). The frame is
        // initialised memory (the mapping is zeroed), private, and in no ring, because this handle
        // owns it. A writer needs `&mut` of the only handle, so the frame does not change under
        // `&self`.
        unsafe {
            let start = place.start.add(meta.off as usize);
            std::slice::from_raw_parts(start.as_ptr(), meta.len as usize)
        }
    }

    /// Returns the bytes, frame by frame, for gathering writes. The iterator is empty if a peer can
    /// write the memory.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        // SAFETY: the chain belongs to this packet, which is borrowed for as long as the segments
        // exist.
        unsafe { Segments::new(self.raw(), self.fragments() + 1) }
    }

    /// Copies bytes, from offset `from`, into `to`; returns the number of bytes copied.
    ///
    /// Cost: volatile word copies if a peer can write the memory, else memcpy, a frame each.
    pub fn copy_to(&self, from: usize, to: &mut [u8]) -> usize {
        chain::copy_to(self.umem(), self.raw(), from, to)
    }

    /// Returns the memory of the packet in bytes: its frames or blocks, with their metadata.
    ///
    /// Exact: over all packets that a pool can make it adds up to the memory of the pool, except
    /// what its regions were rounded up to whole pages, and except the places for frames in the
    /// depots of single cores under [`Return::Home`](crate::Return::Home).
    #[must_use]
    pub fn truesize(&self) -> usize {
        chain::truesize(self.umem(), self.raw())
    }

    /// Records that a queue has left the packet to its caller. A handle alone does not identify the
    /// packet when it is offered again: it may be that of a later packet in the same frame.
    #[doc(hidden)]
    pub fn note_refusal(&self) {
        self.meta().refused.store(1, Ordering::Relaxed);
    }

    /// Returns true if a queue has refused the packet since it was allocated.
    #[doc(hidden)]
    #[must_use]
    pub fn was_refused(&self) -> bool {
        self.meta().refused.load(Ordering::Relaxed) != 0
    }

    /// Frees the packet and counts it as dropped for `reason`.
    pub fn discard(self, reason: DropReason) {
        thread::free_slow(&[self.into_raw()], Fate::Dropped(reason));
    }
}

impl Skb<Unique> {
    /// Returns the meta line for writing; `None` if the bytes are shared and could not be copied.
    #[inline]
    pub(crate) fn meta_mut(&mut self) -> Option<&mut Meta> {
        self.own()?;
        // SAFETY: `own` made this the only handle on the frame, and `&mut self` borrows it.
        Some(unsafe { self.umem().meta(self.raw()).as_mut() })
    }

    /// Returns the meta line for writing, and the frame's location; `None` if the bytes are shared
    /// and could not be copied.
    #[inline]
    fn parts(&mut self) -> Option<(&mut Meta, Place)> {
        self.own()?;
        let (umem, handle) = (self.umem(), self.raw());
        // SAFETY: as in `meta_mut`.
        Some((unsafe { umem.meta(handle).as_mut() }, umem.place(handle)))
    }

    /// Makes this handle the only one on its bytes; copies them if they are shared.
    #[inline]
    fn own(&mut self) -> Option<()> {
        if self.raw() & FLAG == 0 { Some(()) } else { self.own_flagged() }
    }

    #[cold]
    fn own_flagged(&mut self) -> Option<()> {
        if refs::is_only(&self.meta().refs) {
            return Some(());
        }
        let copy = chain::copy(self.umem(), self.raw())?;
        // SAFETY: `chain::copy` returns the only handle on the copy.
        let shared = std::mem::replace(self, unsafe { Skb::from_raw(copy) });
        chain::release(shared.into_raw());
        Some(())
    }

    /// Returns the bytes of the first frame, for writing.
    ///
    /// Empty if a peer can write the memory, or if the bytes are shared and the pool has no frame
    /// [for a copy](Skb#copies).
    #[must_use]
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let Some((meta, place)) = self.parts() else { return &mut [] };
        if place.trust == Trust::Exported {
            return &mut [];
        }
        let (off, len) = (meta.off as usize, meta.len as usize);
        // SAFETY: as in `data`; `own` made this the only handle and `&mut self` borrows it.
        unsafe { std::slice::from_raw_parts_mut(place.start.as_ptr().add(off), len) }
    }

    /// Overwrites the packet's bytes from offset `at` with `bytes`, even if others can write the
    /// memory. Returns the number of bytes written, which ends at the packet's end; 0 if the bytes
    /// are shared and the pool has no frame for a copy.
    ///
    /// Cost: a copy a frame.
    pub fn copy_from(&mut self, at: usize, bytes: &[u8]) -> usize {
        if self.own().is_none() {
            return 0;
        }
        chain::copy_from(self.umem(), self.raw(), at, bytes)
    }

    /// Returns the tailroom of the first frame, to receive into; [`Skb::commit`] then adds it to
    /// the data.
    ///
    /// It holds the bytes that the frame held before, never uninitialised memory. Empty for a
    /// chain, if a peer can write the memory, or if the bytes are shared and the pool has no frame
    /// for a copy.
    #[must_use]
    pub fn spare_mut(&mut self) -> &mut [u8] {
        let Some((meta, place)) = self.parts() else { return &mut [] };
        if place.trust == Trust::Exported || meta.frags > 0 {
            return &mut [];
        }
        let end = (meta.off + meta.len) as usize;
        let room = place.bytes as usize - end;
        // SAFETY: end + room is the frame's end; otherwise as in `data_mut`.
        unsafe { std::slice::from_raw_parts_mut(place.start.as_ptr().add(end), room) }
    }

    /// Adds `bytes` of the tailroom to the data; a larger number adds all of the tailroom. Does
    /// nothing for a chain, because its end is not in its first frame, and nothing if the bytes are
    /// shared and the pool has no frame for a copy: [`Skb::len`] is then as before.
    #[inline]
    pub fn commit(&mut self, bytes: usize) {
        if let Some((meta, place)) = self.parts()
            && meta.frags == 0
        {
            let room = place.bytes - meta.off - meta.len;
            meta.len += bytes.min(room as usize) as u32;
        }
    }

    /// Appends `bytes` to the data; returns false, and does nothing, if the tailroom is too short,
    /// the packet is a chain, a peer can write the memory, or the bytes are shared and the pool has
    /// no frame for a copy.
    #[must_use = "false: nothing was done"]
    pub fn put_slice(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.spare_mut().get_mut(..bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.commit(bytes.len());
        true
    }

    /// Extends the data by `bytes` at its end and returns the new bytes; returns `None`, and does
    /// nothing, if the tailroom is too short, the packet is a chain, a peer can write the memory,
    /// or the bytes are shared and the pool has no frame for a copy.
    pub fn put(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let (meta, place) = self.parts()?;
        let end = (meta.off + meta.len) as usize;
        let linear = meta.frags == 0 && place.trust == Trust::Private;
        if !linear || place.bytes as usize - end < bytes {
            return None;
        }
        meta.len += bytes as u32;
        // SAFETY: end + bytes <= the frame's end; otherwise as in `data_mut`.
        Some(unsafe { std::slice::from_raw_parts_mut(place.start.as_ptr().add(end), bytes) })
    }

    /// Extends the data by `bytes` at its start and returns the new bytes; returns `None`, and does
    /// nothing, if the headroom is too short, a peer can write the memory, or the bytes are shared
    /// and the pool has no frame for a copy.
    ///
    /// Work that is left to the device stays with its header: [`Skb::offload`] counts from the new
    /// start.
    pub fn push(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let (meta, place) = self.parts()?;
        if place.trust == Trust::Exported {
            return None;
        }
        let off = (meta.off as usize).checked_sub(bytes)?;
        if meta.lanes & lane::OFFLOAD != 0 {
            let pushed = self.offload().pushed(bytes)?;
            self.set_offload(pushed);
        }
        let meta = self.meta_mut()?;
        meta.len += bytes as u32;
        meta.off = off as u32;
        // SAFETY: off + bytes was the start of the data, which is in the frame; otherwise as in
        // `data_mut`.
        Some(unsafe { std::slice::from_raw_parts_mut(place.start.as_ptr().add(off), bytes) })
    }

    /// Removes `bytes` from the start of the first frame; returns false, and does nothing, if the
    /// frame has fewer bytes, or the bytes are shared and the pool has no frame for a copy.
    ///
    /// Without its header a checksum is not left to the device any more, and a superframe is a
    /// packet that every port drops.
    #[must_use = "false: nothing was done"]
    pub fn pull(&mut self, bytes: usize) -> bool {
        let meta = self.meta_mut().filter(|meta| bytes <= meta.len as usize);
        let Some(meta) = meta else { return false };
        meta.off += bytes as u32;
        meta.len -= bytes as u32;
        if meta.lanes & lane::OFFLOAD != 0 {
            self.set_offload(self.offload().pulled(bytes));
        }
        true
    }

    /// Cuts a linear packet to `bytes`; returns false, and does nothing, if the packet is shorter
    /// or a chain, or the bytes are shared and the pool has no frame for a copy.
    ///
    /// A checksum whose field is cut off is not left to the device any more; a superframe cut to
    /// one segment is an ordinary packet.
    #[must_use = "false: nothing was done"]
    pub fn trim(&mut self, bytes: usize) -> bool {
        let meta = self.meta_mut().filter(|m| m.frags == 0 && bytes <= m.len as usize);
        let Some(meta) = meta else { return false };
        meta.len = bytes as u32;
        if meta.lanes & lane::OFFLOAD != 0 {
            self.set_offload(self.offload().trimmed(bytes));
        }
        true
    }

    /// Sets the headroom of an empty packet; returns false, and does nothing, if the packet has
    /// data, the frame is too short, or the frame is shared and the pool has none for a copy.
    #[must_use = "false: nothing was done"]
    pub fn reserve(&mut self, headroom_bytes: usize) -> bool {
        match self.parts() {
            Some((meta, place)) if meta.len == 0 && meta.frags == 0 => {
                let fits = headroom_bytes <= place.bytes as usize;
                if fits {
                    meta.off = headroom_bytes as u32;
                }
                fits
            }
            _ => false,
        }
    }

    /// Appends `fragment` after the packet's last byte. The fragment's offload becomes the
    /// packet's. The fragment's other metadata is lost, such as a VLAN tag, the stamp and the mark.
    ///
    /// # Errors
    /// Hands `fragment` back if it is of another pool, if either one is shared, if both leave a
    /// checksum or a cut to the device, which does one of them, if the packet is so long that the
    /// offsets in the fragment's offload no longer fit, or if the two together have more than 260
    /// frames or 1 GiB.
    pub fn append(&mut self, fragment: Skb) -> Result<(), Skb> {
        let Some(offload) = self.offload_with(&fragment) else { return Err(fragment) };
        let handle = fragment.into_raw();
        match chain::append(self.umem(), self.raw(), handle) {
            Some(head) => {
                // SAFETY: ids are never 0; the handle is of the same frame, now flagged.
                self.handle = unsafe { NonZeroU32::new_unchecked(head) };
                if offload.is_pending() {
                    self.set_offload(offload);
                }
                Ok(())
            }
            // SAFETY: `chain::append` refused the fragment and left it unchanged.
            None => Err(unsafe { Skb::from_raw(handle) }),
        }
    }

    /// Flags the handle, so that freeing the packet reads its meta line.
    pub(crate) fn flag(&mut self) {
        // SAFETY: ids are never 0; the handle is of the same frame, now flagged.
        self.handle = unsafe { NonZeroU32::new_unchecked(self.raw() | FLAG) };
    }

    /// Returns an additional handle on the same bytes. The bytes are copied when either handle is
    /// written.
    #[must_use]
    pub fn share(&mut self) -> Skb<Shared> {
        let umem = self.umem();
        chain::retain(umem, self.raw());
        self.flag();
        // SAFETY: the reference counted above belongs to the new handle.
        unsafe { Skb::from_raw(self.raw()) }
    }
}

impl Skb<Shared> {
    /// Returns the packet for writing, if this is the last handle on it.
    ///
    /// # Errors
    /// Hands it back while there are others.
    pub fn try_unique(self) -> Result<Skb<Unique>, Skb<Shared>> {
        if !refs::is_only(&self.meta().refs) {
            return Err(self);
        }
        // SAFETY: `into_raw` releases the handle, which is taken once here.
        Ok(unsafe { Skb::from_raw(self.into_raw()) })
    }

    /// Converts the handle into one that can write; the first write copies the packet if other
    /// handles still exist.
    ///
    /// It is what a transmit queue takes.
    #[must_use]
    pub fn into_unique(self) -> Skb<Unique> {
        // SAFETY: `into_raw` releases the handle, which is taken once here. A Unique handle,
        // whatever its history, writes only after `own` has checked that it is the only one.
        unsafe { Skb::from_raw(self.into_raw()) }
    }
}

impl From<Skb<Shared>> for Skb<Unique> {
    fn from(skb: Skb<Shared>) -> Self {
        skb.into_unique()
    }
}

impl Clone for Skb<Shared> {
    fn clone(&self) -> Self {
        chain::retain(self.umem(), self.raw());
        // SAFETY: the reference counted above belongs to the new handle.
        unsafe { Skb::from_raw(self.raw()) }
    }
}

impl<S> Drop for Skb<S> {
    #[inline]
    fn drop(&mut self) {
        thread::free(self.raw());
    }
}

impl<S> std::fmt::Debug for Skb<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Skb")
            .field("len", &self.len())
            .field("fragments", &self.fragments())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
