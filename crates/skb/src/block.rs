//! Packet data from the system's allocator, one block for each packet: the baseline of post 000.
//!
//! Owner: the frame whose entry of the umem's block table points to it, from allocation to free.
//! `std::alloc::System` and not the program's global allocator, so that its own account of a block
//! can be asked for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;

/// Bytes of the header that the allocator keeps before each block.
///
/// Source: glibc malloc.c, "Minimum overhead per allocated chunk: 4 or 8 bytes".
const ALLOCATOR_BYTES: usize = size_of::<usize>();
/// Default alignment of `malloc`, in bytes.
const ALIGN: usize = 16;

/// A block of memory from the allocator, or no block ([`Block::NONE`]).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Block {
    start: *mut u8,
    /// Bytes that the packet may use.
    pub bytes: u32,
    /// Bytes that the allocator took for the block, with its own header.
    pub truesize: u32,
}

impl Block {
    pub const NONE: Block = Block { start: std::ptr::null_mut(), bytes: 0, truesize: 0 };

    /// Allocates a block of `bytes`; returns `None` if there is no memory.
    ///
    /// Its bytes are arbitrary, as a frame's are, and initialised as far as the language goes.
    pub fn new(bytes: u32) -> Option<Block> {
        let layout = Layout::from_size_align(bytes.max(1) as usize, ALIGN).ok()?;
        // SAFETY: the layout is not of size 0.
        let start = unsafe { fresh(layout) };
        if start.is_null() {
            return None;
        }
        Some(Block { start, bytes, truesize: taken(start, layout) })
    }

    /// Returns the block to the allocator.
    ///
    /// # Safety
    /// It came from `new`, is given back once, and its bytes are not used any more.
    pub unsafe fn free(self) {
        // SAFETY: `new` allocated the block with this layout; the caller guarantees the rest.
        unsafe {
            let bytes = self.bytes.max(1) as usize;
            System.dealloc(self.start, Layout::from_size_align_unchecked(bytes, ALIGN));
        }
    }

    /// Returns the address of the block's first byte; for [`Block::NONE`] the address is dangling
    /// and must not be used.
    pub fn start(&self) -> NonNull<u8> {
        NonNull::new(self.start).unwrap_or(NonNull::dangling())
    }
}

/// Allocates memory that may be read before it is written.
///
/// # Safety
/// The layout is not of size 0.
#[cfg(not(miri))]
unsafe fn fresh(layout: Layout) -> *mut u8 {
    // SAFETY: the caller guarantees a layout that is not of size 0.
    let start = unsafe { System.alloc(layout) };
    // The program may read bytes that were never written, as with the kernel's kmalloc. The empty
    // instruction makes them defined for the language: the compiler must assume that it stores
    // something. Zeroing would add a cost to the baseline.
    // SAFETY: the instruction is empty; the block, which it may have written for the compiler, has
    // no other user yet.
    unsafe { std::arch::asm!("/* {0} */", in(reg) start, options(nostack, preserves_flags)) };
    start
}

/// Allocates zeroed memory, because Miri runs no assembly.
#[cfg(miri)]
unsafe fn fresh(layout: Layout) -> *mut u8 {
    // SAFETY: the caller guarantees a layout that is not of size 0.
    unsafe { System.alloc_zeroed(layout) }
}

/// Returns the number of bytes that the allocator took for a block.
#[cfg(not(miri))]
fn taken(start: *mut u8, _: Layout) -> u32 {
    // SAFETY: `System` takes the block from the C library, by malloc or, if it is shorter than its
    // alignment, by posix_memalign; the block was just made.
    unsafe { (linerate_sys::mem::usable_bytes(start) + ALLOCATOR_BYTES) as u32 }
}

#[cfg(miri)]
fn taken(_: *mut u8, layout: Layout) -> u32 {
    (layout.size() + ALLOCATOR_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_as_large_as_asked_and_its_true_size_larger() {
        for bytes in [0, 1, 60, 1770, 65_536] {
            let block = Block::new(bytes).unwrap();
            assert_eq!(block.bytes, bytes);
            assert!(block.truesize >= bytes + 8, "{} of {bytes}", block.truesize);
            // SAFETY: just made, and not used.
            unsafe { block.free() };
        }
    }
}
