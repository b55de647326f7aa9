//! The mapped receive ring of a packet socket (TPACKET_V3): the kernel fills blocks with frames and
//! delivers whole blocks.
//!
//! Owner: [`BlockRing`] owns the mapping. A block belongs to the kernel while its status lacks the
//! USER bit, and to us from the moment we read that bit until we store 0; the kernel does not write
//! a block of ours, which is why frames can be lent as slices.
//!
//! ```text
//! block     | block header 48 | frame | frame | ...            |   block_bytes
//! frame     | tpacket3_hdr 48 | sockaddr_ll 20 | .. | vnet 10 | data ... | ..
//!           ^ offset            ^ +48                 tp_mac-10 ^ tp_mac   ^ tp_next_offset
//! ```
//!
//! Invariant: no offset, length or count in a block is believed. Each is checked against the block
//! before it is used; a block that fails is given back with the rest of its frames unread and
//! counted.
//!
//! Source: include/uapi/linux/if_packet.h; net/packet/af_packet.c tpacket_rcv, prb_open_block.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags};

use super::rx_frame::{RxFrame, Vlan};
use crate::vnet::{VNET_HDR_BYTES, VnetHdr};

const STATUS_AT: usize =
    offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status);
const COUNT_AT: usize =
    offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, num_pkts);
const FIRST_AT: usize = offset_of!(libc::tpacket_block_desc, hdr)
    + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt);
const BLOCK_HDR_BYTES: usize = size_of::<libc::tpacket_block_desc>();
const FRAME_HDR_BYTES: usize = size_of::<libc::tpacket3_hdr>();
/// Offset of the packet type: the address follows the header, whose length is already a multiple of
/// the ABI's alignment.
const PKTTYPE_AT: usize = FRAME_HDR_BYTES + offset_of!(libc::sockaddr_ll, sll_pkttype);
const _: () = assert!(BLOCK_HDR_BYTES == 48);
const _: () =
    assert!(FRAME_HDR_BYTES == 48 && FRAME_HDR_BYTES.is_multiple_of(libc::TPACKET_ALIGNMENT));
const _: () = assert!(libc::TPACKET3_HDRLEN == 68);
const _: () = assert!(STATUS_AT.is_multiple_of(align_of::<AtomicU32>()));

/// Offset at which reading continues in the current block.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    /// Frames not yet read.
    left: u32,
    /// Offset of the next frame from the start of the block.
    offset: usize,
}

/// The receive ring of a packet socket.
#[derive(Debug)]
pub struct BlockRing {
    base: NonNull<u8>,
    block_bytes: usize,
    blocks: u32,
    vnet: bool,
    /// The block that is read now or next.
    current: u32,
    /// Position in the current block; `None` while the kernel owns the block.
    cursor: Option<Cursor>,
    /// Cursor before the frame that was read last, if that frame is in the current block.
    previous: Option<Cursor>,
    bad_blocks: u64,
    lost_frames: u64,
}

// SAFETY: the mapping is process-wide, and only this value gives access to it. Moving the value
// moves the right to read blocks and to return them, and neither depends on the thread.
unsafe impl Send for BlockRing {}

impl BlockRing {
    /// Maps the ring of `socket`.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        block_bytes: usize,
        blocks: u32,
        vnet: bool,
    ) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let len = block_bytes.checked_mul(blocks as usize).ok_or(io::Errno::NOMEM)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases no Rust object; the
        // kernel maps the ring only if `len` is its exact size. The BlockRing owns and unmaps it.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, socket, 0) }?;
        Self::over(base, block_bytes, blocks, vnet)
    }

    /// Takes ownership of the mapping of `block_bytes * blocks` bytes at `base`.
    fn over(base: *mut c_void, block_bytes: usize, blocks: u32, vnet: bool) -> io::Result<Self> {
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::Errno::NOMEM)?;
        let (cursor, previous) = (None, None);
        Ok(BlockRing {
            base,
            block_bytes,
            blocks,
            vnet,
            current: 0,
            cursor,
            previous,
            bad_blocks: 0,
            lost_frames: 0,
        })
    }

    /// Returns the block to read: the unfinished one, else the next that the kernel has delivered.
    ///
    /// Shape:  a block of the kernel's becomes ours and stays so until its frames are all read or
    ///         it is released; `None` leaves every block with the kernel.
    /// Errors: none; a malformed block is given back, see [`BlockRing::bad_blocks`].
    /// Cost:   one Acquire load; no syscall.
    /// Source: packet_mmap.rst, "AF_PACKET TPACKET_V3 example".
    pub fn next_block(&mut self) -> Option<Block<'_>> {
        // Skip blocks without a readable frame, for at most one round of the ring.
        for _ in 0..self.blocks {
            if self.cursor.is_none() {
                let status = self.status().load(Ordering::Acquire);
                if status & libc::TP_STATUS_USER == 0 {
                    return None;
                }
                let cursor =
                    Cursor { left: self.word(COUNT_AT), offset: self.word(FIRST_AT) as usize };
                self.cursor = Some(cursor);
            }
            if self.cursor.is_some_and(|c| c.left > 0) {
                return Some(Block { ring: self });
            }
            self.give_back();
        }
        None
    }

    /// Returns the number of blocks with inconsistent contents, which were returned to the kernel
    /// with frames unread.
    #[must_use]
    pub fn bad_blocks(&self) -> u64 {
        self.bad_blocks
    }

    /// Returns the number of frames that were unread in those blocks: by the kernel's count, or as
    /// many as a block can hold if that is less.
    #[must_use]
    pub fn lost_frames(&self) -> u64 {
        self.lost_frames
    }

    /// Returns the number of blocks in the ring.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Reads the next frame and moves on; `None` at the end of the block.
    ///
    /// A place that the kernel counts and has not written is passed over. The kernel takes the
    /// place before it writes the offload header; if the header cannot express a superframe, it
    /// drops and counts the packet, and bytes of an earlier round stay there, which may be a
    /// sender's. Only the status is of this round.
    /// Source: net/packet/af_packet.c tpacket_rcv, prb_fill_vlan_info.
    fn next_frame(&mut self) -> Option<RxFrame<'_>> {
        loop {
            let cursor = self.cursor.filter(|c| c.left > 0)?;
            // SAFETY: there is a cursor, so this process owns the block. The frame borrows the ring
            // exclusively, as the signature states, so the block cannot be returned while the frame
            // exists.
            let Some((frame, next)) = (unsafe { self.frame_at(cursor.offset) }) else {
                return self.abandon();
            };
            let left = cursor.left - 1;
            // Each step must be at least as long as a header, so that reading a block ends whatever
            // its content is.
            if left > 0 && next < FRAME_HDR_BYTES {
                return self.abandon();
            }
            self.cursor = Some(Cursor { left, offset: cursor.offset.saturating_add(next) });
            if frame.is_some() {
                self.previous = Some(cursor);
                return frame;
            }
        }
    }

    fn abandon(&mut self) -> Option<RxFrame<'static>> {
        self.bad_blocks += 1;
        let left = self.cursor.map_or(0, |cursor| u64::from(cursor.left));
        self.lost_frames += left.min((self.block_bytes / FRAME_HDR_BYTES) as u64);
        self.previous = None;
        self.cursor = Some(Cursor { left: 0, offset: 0 });
        None
    }

    /// Returns the frame at `offset` of the current block and the distance to the next, if its
    /// lengths and offsets lie within the block. There is no frame in a place that is not written.
    ///
    /// # Safety
    /// The current block is ours, and `'a` ends before it is given back.
    unsafe fn frame_at<'a>(&self, offset: usize) -> Option<(Option<RxFrame<'a>>, usize)> {
        let room = self.block_bytes.checked_sub(offset)?;
        if offset < BLOCK_HDR_BYTES || room < libc::TPACKET3_HDRLEN {
            return None;
        }
        let at = self.block().wrapping_add(offset);
        // SAFETY: `at` and the header behind it lie inside the current block, as checked above. The
        // caller guarantees that this process owns the block, so the kernel does not write it.
        // Every bit pattern is a valid header, and the read requires no alignment.
        let hdr = unsafe { at.cast::<libc::tpacket3_hdr>().read_unaligned() };
        let next = hdr.tp_next_offset as usize;
        if hdr.tp_status & libc::TP_STATUS_USER == 0 {
            return Some((None, next));
        }
        // SAFETY: as above; PKTTYPE_AT is below the TPACKET3_HDRLEN bytes that were checked.
        let pkttype = unsafe { at.add(PKTTYPE_AT).read() };
        let (mac, snap) = (usize::from(hdr.tp_mac), hdr.tp_snaplen as usize);
        let reserved = libc::TPACKET3_HDRLEN + if self.vnet { VNET_HDR_BYTES } else { 0 };
        if mac < reserved || snap > room.checked_sub(mac)? {
            return None;
        }
        // SAFETY: [mac, mac + snap) lies inside the block, as checked above. The kernel does not
        // write it until the block is returned, and the caller guarantees that 'a ends before.
        let data = unsafe { std::slice::from_raw_parts(at.add(mac), snap) };
        let vnet = self.vnet.then(|| {
            // SAFETY: mac >= TPACKET3_HDRLEN + VNET_HDR_BYTES and mac <= room were checked above,
            // so the header lies between the frame's own headers and its data; bytes need no
            // alignment.
            let bytes =
                unsafe { at.add(mac - VNET_HDR_BYTES).cast::<[u8; VNET_HDR_BYTES]>().read() };
            VnetHdr::from_bytes(bytes)
        });
        let frame = RxFrame {
            data,
            len: hdr.tp_len,
            vnet,
            vlan: vlan(&hdr),
            status: hdr.tp_status,
            pkttype,
            sec: hdr.tp_sec,
            nsec: hdr.tp_nsec,
        };
        Some((Some(frame), next))
    }

    /// Returns the current block to the kernel and advances to the next.
    fn give_back(&mut self) {
        (self.cursor, self.previous) = (None, None);
        // Release: the reads of the block happen before the kernel sees that it may write the
        // block.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.current = if self.current + 1 == self.blocks { 0 } else { self.current + 1 };
    }

    fn block(&self) -> *mut u8 {
        // SAFETY: current < blocks, so the offset lies inside the mapping of block_bytes * blocks.
        unsafe { self.base.as_ptr().add(self.current as usize * self.block_bytes) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a block is page-aligned and at least a page long, so the word lies inside the
        // mapping and is aligned. This process accesses the word only through atomics, and the
        // mapping outlives `&self`.
        unsafe { AtomicU32::from_ptr(self.block().add(STATUS_AT).cast()) }
    }

    /// Returns a word of the current block's header; this process must own the block.
    fn word(&self, at: usize) -> u32 {
        // SAFETY: `at` is COUNT_AT or FIRST_AT, aligned and inside the header; the kernel does not
        // write a block that this process owns.
        unsafe { self.block().add(at).cast::<u32>().read() }
    }
}

impl Drop for BlockRing {
    fn drop(&mut self) {
        let len = self.block_bytes * self.blocks as usize;
        // SAFETY: base and len are those of the mapping that `over` took. It is unmapped only here,
        // and every reference into it borrows the BlockRing.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), len) };
    }
}

/// A block that the kernel has delivered.
///
/// Dropping it keeps the place: the next [`BlockRing::next_block`] continues behind the last frame
/// read. Once its frames are all read, dropping it gives it back to the kernel.
#[derive(Debug)]
pub struct Block<'a> {
    ring: &'a mut BlockRing,
}

impl Block<'_> {
    /// Returns the next frame, or `None` at the end of the block.
    ///
    /// Shape:  the frame is lent until the next call; the block stays ours.
    /// Errors: none; a frame that reaches outside the block ends it, see [`BlockRing::bad_blocks`].
    /// Cost:   reads the frame's headers (two cache lines); no syscall, no fence.
    pub fn next_frame(&mut self) -> Option<RxFrame<'_>> {
        self.ring.next_frame()
    }

    /// Moves back by one frame, so that [`Block::next_frame`] returns the frame read last again.
    /// This works once, until another frame is read.
    pub fn unread(&mut self) {
        if let Some(previous) = self.ring.previous.take() {
            self.ring.cursor = Some(previous);
        }
    }

    /// Returns the number of unread frames, according to the kernel's count.
    #[must_use]
    pub fn frames_left(&self) -> u32 {
        self.ring.cursor.map_or(0, |c| c.left)
    }

    /// Returns the block to the kernel with its remaining frames unread.
    pub fn release(self) {
        self.ring.previous = None;
        if let Some(cursor) = &mut self.ring.cursor {
            cursor.left = 0;
        }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        if self.frames_left() == 0 {
            self.ring.give_back();
        }
    }
}

fn vlan(hdr: &libc::tpacket3_hdr) -> Option<Vlan> {
    // The kernel stores a 16-bit value in this wider field.
    Vlan::of(hdr.tp_status, hdr.hv1.tp_vlan_tci as u16, hdr.hv1.tp_vlan_tpid)
}

#[cfg(test)]
mod tests;
