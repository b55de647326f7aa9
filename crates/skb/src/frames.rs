//! The frames of a umem: their addresses, and the work when a packet is allocated and freed.
//!
//! All of it is constant while the umem lives; what changes is behind the addresses.

use std::ptr::NonNull;

use linerate_sys::mem::Region;

use crate::block::Block;
use crate::bulk::{self, Bulk, Line, Lines};
use crate::handle::{self, Common};
use crate::lanes::Cold;
use crate::memory::Memory;
use crate::meta::Meta;
use crate::page::Page;
use crate::policy::{Data, Init, Return, Trust};
use crate::shape::Shape;

/// The location of a frame's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub start: NonNull<u8>,
    pub bytes: u32,
    pub trust: Trust,
}

/// The values that are constant while an id is in use. They have cache lines of their own: every
/// core reads them for every packet.
#[repr(align(128))]
pub(crate) struct Frames {
    data: *mut u8,
    meta: *mut Meta,
    cold: *mut Cold,
    /// The location of each packet's data, if the allocator provides the data.
    blocks: *mut Block,
    /// Limit of the plain frames: a frame below it is private, ordinary and in the region, and
    /// needs no further checks.
    plain: u32,
    shift: u32,
    headroom: u32,
    /// True if a policy of the pool requires work for each frame that is freed or allocated.
    retires: bool,
    /// True if a free frame of an ordinary packet can be put on any list without further work.
    frees_plainly: bool,
    data_from: Data,
    init: Init,
    return_to: Return,
    trust: Trust,
    bulk: &'static Bulk,
    /// The hot line of a new packet.
    blank: Line,
    pub id: u32,
    /// Generation of the id. With it, thread caches distinguish this umem from earlier umems with
    /// this id.
    pub serial: u64,
    /// Number of ordinary frames.
    pub frames: u32,
    jumbo_frames: u32,
    jumbo_bytes: u32,
}

impl Frames {
    pub const VACANT: Frames = Frames {
        data: std::ptr::null_mut(),
        meta: std::ptr::null_mut(),
        cold: std::ptr::null_mut(),
        blocks: std::ptr::null_mut(),
        plain: 0,
        shift: 0,
        headroom: 0,
        retires: false,
        frees_plainly: true,
        data_from: Data::Frames,
        init: Init::AtAlloc,
        return_to: Return::Local,
        trust: Trust::Private,
        bulk: &bulk::PORTABLE,
        blank: Line([0; 8]),
        id: 0,
        serial: 0,
        frames: 0,
        jumbo_frames: 0,
        jumbo_bytes: 0,
    };

    pub fn new(shape: &Shape, memory: &Memory, id: u32, serial: u64) -> Frames {
        let base =
            |region: Option<&Region>| region.map_or(std::ptr::null_mut(), |r| r.base().as_ptr());
        let [meta, cold, blocks] = memory.apart.each_ref().map(|region| base(region.as_ref()));
        let retires = shape.data == Data::General || shape.init == Init::AtFree;
        let simple = shape.trust == Trust::Private && shape.data == Data::Frames;
        Frames {
            data: base(memory.frames.as_deref()),
            meta: meta.cast(),
            cold: cold.cast(),
            blocks: blocks.cast(),
            plain: if simple { shape.frames } else { 0 },
            shift: shape.frame_bytes.trailing_zeros(),
            headroom: shape.headroom_bytes,
            retires,
            frees_plainly: !retires && shape.return_to == Return::Local,
            data_from: shape.data,
            init: shape.init,
            return_to: shape.return_to,
            trust: shape.trust,
            bulk: bulk::best(),
            blank: Line(Meta::new(shape.headroom_bytes).words()),
            id,
            serial,
            frames: shape.frames,
            jumbo_frames: shape.jumbo_frames,
            jumbo_bytes: shape.jumbo_bytes,
        }
    }

    /// Returns the location of the frame `handle`, in the region or in its block; the handle must
    /// be one of this umem.
    #[inline]
    pub fn place(&self, handle: u32) -> Place {
        let index = handle::frame(handle);
        if index >= self.plain {
            return self.place_apart(index);
        }
        let start = self.data.wrapping_add((index as usize) << self.shift);
        // SAFETY: a mapping is never at 0, and the end of a frame never wraps around the address
        // space.
        let start = unsafe { NonNull::new_unchecked(start) };
        Place { start, bytes: 1 << self.shift, trust: Trust::Private }
    }

    /// Returns the location of a frame that is not private, not ordinary or not in the region.
    #[cold]
    fn place_apart(&self, index: u32) -> Place {
        if self.data_from == Data::General {
            // SAFETY: the table has an entry for each frame. The owner of this handle wrote the
            // entry last, and no other thread writes it.
            let block = unsafe { self.blocks.wrapping_add(index as usize).read() };
            return Place { start: block.start(), bytes: block.bytes, trust: self.trust };
        }
        let start = self.data.wrapping_add((index as usize) << self.shift);
        let bytes = if index < self.frames { 1 << self.shift } else { self.jumbo_bytes };
        // SAFETY: as in `place`.
        let start = unsafe { NonNull::new_unchecked(start) };
        Place { start, bytes, trust: self.trust }
    }

    /// Returns the address of a frame's hot line, which is in its region if `handle` is one of this
    /// umem.
    #[inline]
    pub fn meta(&self, handle: u32) -> NonNull<Meta> {
        let line = self.meta.wrapping_add(handle::frame(handle) as usize);
        // SAFETY: a mapping is never at 0, and the end of a line never wraps around the address
        // space.
        unsafe { NonNull::new_unchecked(line) }
    }

    /// Returns the address of a frame's cold line, which is in its region if `handle` is one of
    /// this umem.
    #[inline]
    pub fn cold(&self, handle: u32) -> NonNull<Cold> {
        let line = self.cold.wrapping_add(handle::frame(handle) as usize);
        // SAFETY: as for `meta`.
        unsafe { NonNull::new_unchecked(line) }
    }

    fn lines(&self) -> Lines<'_> {
        Lines { table: self.meta, blank: &self.blank }
    }

    /// Writes the line of a new packet for each handle.
    ///
    /// # Safety
    /// The frames are in no skb, and the caller alone has them.
    pub unsafe fn write_lines(&self, handles: &[u32]) {
        // SAFETY: handles of this umem have their lines in the table; the caller guarantees the
        // rest.
        unsafe { (self.bulk.write)(self.lines(), handles) }
    }

    /// Returns the bits that all handles share.
    #[inline]
    pub fn common(&self, handles: &[u32]) -> Common {
        (self.bulk.common)(handles)
    }

    /// Returns a bit mask of those handles, of at most 64, that are flagged.
    #[inline]
    pub fn flagged(&self, handles: &[u32]) -> u64 {
        (self.bulk.flagged)(handles)
    }

    /// Initialises free frames as empty packets, and stores each frame's handle, with `tag`, in a
    /// slot; returns false, and does nothing, if the allocator has no memory.
    ///
    /// # Safety
    /// The caller has just taken the frames from a free list: they are in no skb, so no handle
    /// reads or writes their lines.
    #[inline]
    pub unsafe fn begin(&self, frames: &[u32], slots: &mut [u32], tag: u32, page: &Page) -> bool {
        if self.retires {
            for (slot, &frame) in slots.iter_mut().zip(frames) {
                *slot = handle::retag(frame, tag);
            }
            // SAFETY: the caller guarantees what `begin_apart` requires.
            return unsafe { self.begin_apart(frames, self.frame_bytes(), page) };
        }
        // SAFETY: as above, the caller guarantees that it has just taken the frames from a free
        // list.
        unsafe { (self.bulk.begin)(self.lines(), frames, slots, tag) };
        true
    }

    /// Initialises a free frame as an empty packet; if the data comes from the allocator, allocates
    /// `bytes` for it, headroom included. Returns false, and does nothing, if the allocator has no
    /// memory.
    ///
    /// # Safety
    /// As for [`Frames::begin`].
    #[inline]
    pub unsafe fn begin_one(&self, frame: u32, bytes: u32, page: &Page) -> bool {
        // SAFETY: the caller guarantees what the called functions require.
        unsafe {
            if self.retires {
                return self.begin_apart(&[frame], bytes, page);
            }
            self.lines().write(frame);
        }
        true
    }

    /// Initialises frames, whose data comes from the allocator, as empty packets.
    ///
    /// # Safety
    /// As for [`Frames::begin`].
    #[cold]
    unsafe fn begin_apart(&self, handles: &[u32], bytes: u32, page: &Page) -> bool {
        if self.data_from == Data::General {
            for (i, &h) in handles.iter().enumerate() {
                let Some(block) = Block::new(bytes) else {
                    self.free_blocks(&handles[..i], page);
                    return false;
                };
                page.blocks_bytes.add(u64::from(block.truesize));
                // SAFETY: the table has an entry for each frame, and the caller owns this frame.
                unsafe { self.blocks.wrapping_add(handle::frame(h) as usize).write(block) };
            }
        }
        if self.init == Init::AtAlloc {
            // SAFETY: the caller guarantees what `write_lines` requires.
            unsafe { self.write_lines(handles) };
            return true;
        }
        for &h in handles {
            // SAFETY: the line was written when the frame was last freed, and only the caller has
            // the frame now.
            unsafe { self.meta(h).as_mut().begin(self.headroom) };
        }
        true
    }

    /// Returns true if a free frame can be put on any list without further work.
    #[inline]
    pub fn frees_plainly(&self) -> bool {
        self.frees_plainly
    }

    /// Returns true if [`Frames::retire`] has something to do.
    #[inline]
    pub fn retires(&self) -> bool {
        self.retires
    }

    /// Applies the pool's policies for freed frames: frees their blocks, initialises their lines.
    ///
    /// # Safety
    /// The caller owned the last handle on each frame, and puts them on a free list next.
    #[cold]
    pub unsafe fn retire(&self, handles: &[u32], page: &Page) {
        if self.data_from == Data::General {
            self.free_blocks(handles, page);
        }
        // SAFETY: the caller guarantees what `initialise_freed` requires.
        unsafe { self.initialise_freed(handles) };
    }

    /// Initialises the lines of freed frames, if the pool's policy is [`Init::AtFree`].
    ///
    /// # Safety
    /// As for [`Frames::retire`].
    #[inline]
    pub unsafe fn initialise_freed(&self, frames: &[u32]) {
        if self.init == Init::AtFree {
            // SAFETY: the caller guarantees what `write_lines` requires.
            unsafe { self.write_lines(frames) };
        }
    }

    fn free_blocks(&self, handles: &[u32], page: &Page) {
        for &h in handles {
            let entry = self.blocks.wrapping_add(handle::frame(h) as usize);
            // SAFETY: the caller owns the entry's frame, and `begin_apart` wrote the entry; the
            // value that replaces it has no block to free.
            unsafe {
                let block = entry.replace(Block::NONE);
                page.blocks_bytes.subtract(u64::from(block.truesize));
                block.free();
            }
        }
    }

    /// Returns the memory of a frame in bytes, with its metadata.
    pub fn truesize(&self, handle: u32) -> usize {
        let index = handle::frame(handle);
        let mut places = 1;
        let data = match self.data_from {
            Data::General => {
                // SAFETY: as in `place_apart`.
                let block = unsafe { self.blocks.wrapping_add(index as usize).read() };
                block.truesize as usize + size_of::<Block>()
            }
            Data::Frames if index < self.frames => 1 << self.shift,
            Data::Frames => {
                places = (self.jumbo_bytes >> self.shift) as usize;
                self.jumbo_bytes as usize
            }
        };
        // The last term is the frame's number in the depot.
        data + places * Shape::overhead_bytes() as usize + size_of::<u32>()
    }

    /// Returns true if the frame is of the jumbo class.
    #[inline]
    pub fn is_jumbo(&self, handle: u32) -> bool {
        handle::frame(handle) >= self.frames
    }

    /// Returns the size of an ordinary frame in bytes.
    #[inline]
    pub fn frame_bytes(&self) -> u32 {
        1 << self.shift
    }

    #[inline]
    pub fn headroom(&self) -> u32 {
        self.headroom
    }

    /// Returns the frame size of unflagged handles, if all have the same: jumbo frames are flagged.
    #[inline]
    pub fn unflagged_bytes(&self) -> Option<u32> {
        (self.data_from == Data::Frames).then(|| self.frame_bytes())
    }

    /// Returns the number of ordinary frames.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the number of jumbo frames, and their size in bytes.
    pub fn jumbo(&self) -> (u32, u32) {
        (self.jumbo_frames, self.jumbo_bytes)
    }

    #[inline]
    pub fn trust(&self) -> Trust {
        self.trust
    }

    pub fn data_from(&self) -> Data {
        self.data_from
    }

    pub fn init(&self) -> Init {
        self.init
    }

    #[inline]
    pub fn return_to(&self) -> Return {
        self.return_to
    }

    #[inline]
    pub fn id(&self) -> u32 {
        self.id
    }
}

#[cfg(test)]
mod tests;
