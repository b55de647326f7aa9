//! The bytes of a packet, frame by frame: borrowed where that is sound, copied where a peer may
//! write them.

use std::marker::PhantomData;

use crate::policy::Trust;
use crate::snapshot;
use crate::umem::Umem;

/// The frames of a packet, each as a slice of its bytes.
#[derive(Debug)]
pub struct Segments<'a> {
    next: u32,
    left: usize,
    packet: PhantomData<&'a [u8]>,
}

impl Segments<'_> {
    /// Returns an iterator over the bytes of a chain.
    ///
    /// # Safety
    /// `head` is the first of at least `frames` frames of a chain that is borrowed for the
    /// lifetime that the caller gives the result.
    pub(crate) unsafe fn new(head: u32, frames: usize) -> Self {
        Segments { next: head, left: frames, packet: PhantomData }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 || self.next == 0 {
            return None;
        }
        let umem = Umem::of(self.next);
        let place = umem.place(self.next);
        if place.trust == Trust::Exported {
            return None;
        }
        // SAFETY: `new`'s caller guarantees that the packet borrowed for 'a owns the chain, so the
        // line is initialised and no thread writes it or its frame meanwhile (see `Skb::meta`,
        // `Skb::data`).
        let segment = unsafe {
            let meta = umem.meta(self.next).as_ref();
            let start = place.start.add(meta.off as usize);
            self.next = meta.next;
            std::slice::from_raw_parts(start.as_ptr(), meta.len as usize)
        };
        self.left -= 1;
        Some(segment)
    }
}

/// Reads one frame into `to`, even while a peer writes the frame.
pub(crate) fn read_frame(umem: &Umem, handle: u32, off: usize, to: &mut [u8]) {
    let place = umem.place(handle);
    debug_assert!(off + to.len() <= place.bytes as usize);
    // SAFETY: off + to.len() is inside the frame: callers limit it by the meta line, whose setters
    // keep the line's values inside the frame. An exported frame is read without forming a
    // reference; the caller's handle owns a private frame, which is not written meanwhile.
    unsafe {
        let from = place.start.as_ptr().add(off);
        match place.trust {
            Trust::Exported => snapshot::copy_out(from, to),
            Trust::Private => std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()),
        }
    }
}

/// Writes the bytes of `from` into one frame, even while a peer reads the frame.
pub(crate) fn write_frame(umem: &Umem, handle: u32, off: usize, from: &[u8]) {
    let place = umem.place(handle);
    debug_assert!(off + from.len() <= place.bytes as usize);
    // SAFETY: as in `read_frame`; the caller's handle is the only one on this frame.
    unsafe {
        let to = place.start.as_ptr().add(off);
        match place.trust {
            Trust::Exported => snapshot::copy_in(from, to),
            Trust::Private => std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()),
        }
    }
}
