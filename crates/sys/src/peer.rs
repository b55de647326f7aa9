//! Memory that a peer process can write at any moment, and copies into and out of it.
//!
//! Such bytes never become a `&[u8]`: a data race with a reference is undefined behaviour. They are
//! moved by instructions that the compiler knows nothing of (on x86-64), or by volatile accesses,
//! into memory of our own. What comes out may mix two of the peer's writes; it is then ours and
//! does not change. Indices and descriptors are atomics.
//!
//! Source: docs/adr/0012; Rust unsafe-code-guidelines issues 152 and 607.

mod seal;

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::error::{Code, Error, Result};
use crate::mem::Region;
use seal::{check, huge_page_bytes};

/// A shared mapping of a peer's file.
#[derive(Debug)]
pub struct PeerMemory {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    /// Memory of this process that a peer maps, too.
    Ours(Arc<Region>),
    /// A peer's memory, mapped by this process.
    Theirs,
}

/// The purpose of a mapping of a peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Mapped for reading only.
    Read,
    /// Mapped for reading and writing.
    Write,
}

// SAFETY: the value has the address and length of a mapping that lives as long as the value. Every
// access is atomic, or a copy that allows concurrent writes by others.
unsafe impl Send for PeerMemory {}
// SAFETY: as above.
unsafe impl Sync for PeerMemory {}

impl PeerMemory {
    /// Creates the value for memory of this process that a peer can write.
    ///
    /// # Safety
    /// No code makes a reference to a byte of it but an atomic's, while the value lives.
    #[must_use]
    pub unsafe fn shared(region: Arc<Region>) -> PeerMemory {
        let (base, len) = (region.base(), region.len());
        PeerMemory { base, len, access: Access::Write, owner: Owner::Ours(region) }
    }

    /// Maps a peer's file, which must be sealed so that the peer cannot truncate it.
    ///
    /// `trusted` takes a file that is not sealed, or is of huge pages that have holes or into which
    /// its owner may punch some: such an owner can kill this process by SIGBUS.
    ///
    /// # Errors
    /// `E-MEMORY` with what is wrong with the file.
    pub fn map(fd: &OwnedFd, len: u64, access: Access, trusted: bool) -> Result<PeerMemory> {
        let what = || format!("cannot map a peer's memory of {len} bytes");
        let refuse = |why: String| Error::new(Code::Memory, what(), why);
        let fail = |call: &'static str| move |e| Error::os(Code::Memory, what(), call, e);
        // Read the seals first: without one the file can shrink after its size was read.
        let may_have_holes = !trusted
            && check(fd, len).map_err(|why| {
                refuse(why).fix("if the peer is trusted not to do so, add trust=yes")
            })?;
        let size = rustix::fs::fstat(fd).map_err(fail("fstat"))?.st_size;
        if len == 0 || u64::try_from(size).is_ok_and(|size| size < len) || size < 0 {
            return Err(refuse(format!("its file has {size} bytes")));
        }
        // The kernel maps whole huge pages, and unmaps nothing if the length is not that of whole
        // ones.
        if let Some(page) = huge_page_bytes(fd).map_err(fail("fstatfs"))?
            && !len.is_multiple_of(page)
        {
            return Err(refuse(format!(
                "its file has pages of {page} bytes, and it is no multiple"
            )));
        }
        let bytes = usize::try_from(len).map_err(|_| refuse("it is too large".into()))?;
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases no Rust object. The
        // value owns and unmaps it.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd.as_fd(), 0)
        }
        .map_err(fail("mmap"))?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| refuse("mapped at address 0".into()))?;
        let memory = PeerMemory { base, len: bytes, access, owner: Owner::Theirs };
        if may_have_holes {
            memory.fill_holes().map_err(|e| {
                fail("madvise(MADV_POPULATE_READ)")(e).fix(
                    "before Linux 5.14, or without a free huge page, if the peer is trusted: add trust=yes",
                )
            })?;
        }
        Ok(memory)
    }

    /// Gives each huge page of the mapping its memory, so that no later access can be a SIGBUS.
    ///
    /// # Errors
    /// EFAULT if no huge page is free, EINVAL before Linux 5.14.
    fn fill_holes(&self) -> rustix::io::Result<()> {
        let advice = rustix::mm::Advice::LinuxPopulateRead;
        // SAFETY: base and len are those of the mapping made in `map`. The call reads its pages
        // only.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
    }

    /// Removes the write access to a peer's memory permanently.
    ///
    /// # Errors
    /// `E-MEMORY` with what mprotect(2) says.
    pub fn restrict(&mut self) -> Result<()> {
        if matches!(self.owner, Owner::Theirs) && self.is_writable() {
            // SAFETY: base and len are those of the mapping made in `map`. The value is exclusively
            // borrowed, so no reference into the mapping exists; its own methods check in `access`
            // whether they may write.
            unsafe {
                rustix::mm::mprotect(self.base.as_ptr().cast(), self.len, MprotectFlags::READ)
            }
            .map_err(|e| {
                let what = "cannot make a peer's memory read-only";
                Error::os(Code::Memory, what, "mprotect", e)
            })?;
            self.access = Access::Read;
        }
        Ok(())
    }

    /// Returns true if the memory can be written.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.access == Access::Write
    }

    /// Returns the number of mapped bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false, because no mapping has 0 bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes at `offset` into `to`; returns false, and does nothing, if they are outside the
    /// memory.
    #[inline]
    #[must_use]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.has(offset, to.len()) {
            return false;
        }
        // SAFETY: the range was just checked to lie in the mapping, and `to` is exclusively
        // borrowed.
        unsafe { copy(self.base.as_ptr().add(offset), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies `from` to `offset`; returns false, and does nothing, if the range is outside the
    /// memory, or the memory was mapped for reading only.
    #[inline]
    #[must_use]
    pub fn write(&self, offset: usize, from: &[u8]) -> bool {
        if !self.has(offset, from.len()) || !self.is_writable() {
            return false;
        }
        // SAFETY: as in `read`.
        unsafe { copy(from.as_ptr(), self.base.as_ptr().add(offset), from.len()) };
        true
    }

    /// Returns true if `len` bytes at `offset` are within the memory.
    #[inline]
    #[must_use]
    pub fn has(&self, offset: usize, len: usize) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// Returns `n` half-words at `offset`; `None` if they are outside the memory or not aligned.
    #[must_use]
    pub fn half_words(&self, offset: usize, n: usize) -> Option<&[AtomicU16]> {
        self.atomics(offset, n)
    }

    /// Returns `n` words at `offset`, as [`PeerMemory::half_words`].
    #[must_use]
    pub fn words(&self, offset: usize, n: usize) -> Option<&[AtomicU32]> {
        self.atomics(offset, n)
    }

    /// Returns `n` double words at `offset`, as [`PeerMemory::half_words`].
    #[must_use]
    pub fn double_words(&self, offset: usize, n: usize) -> Option<&[AtomicU64]> {
        self.atomics(offset, n)
    }

    /// Returns `n` atomics of type `T` at `offset`; `None` if they are outside the memory or not
    /// aligned.
    fn atomics<T>(&self, offset: usize, n: usize) -> Option<&[T]> {
        let bytes = n.checked_mul(size_of::<T>())?;
        // Code can store to an atomic, so the memory must be writable.
        if !self.is_writable()
            || !self.has(offset, bytes)
            || !(self.base.addr().get() + offset).is_multiple_of(align_of::<T>())
        {
            return None;
        }
        // SAFETY: the range was just checked to be in the mapping and aligned. Every bit pattern is
        // a valid integer, also one that a peer's store has written in part; callers check it.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast::<T>(), n) })
    }

    /// Returns the region if the memory belongs to this process.
    #[must_use]
    pub fn region(&self) -> Option<&Arc<Region>> {
        match &self.owner {
            Owner::Ours(region) => Some(region),
            Owner::Theirs => None,
        }
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Theirs) {
            // SAFETY: base and len are those of the mapping made in `map`; everything borrowed from
            // the mapping borrows `self`, and so has ended.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

/// Copies `n` bytes, even if a peer writes either side at the same time.
///
/// # Safety
/// Both ranges are mapped and stay so; they do not overlap. What is written is not borrowed, or
/// by the caller alone.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller guarantees both ranges, as `# Safety` requires.
    unsafe {
        if n >= 16 { blocks(from, to, n) } else { few(from, to, n) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller guarantees both ranges, as `# Safety` requires.
    unsafe {
        volatile(from, to, n)
    }
}

/// Copies at least 16 bytes, in blocks of 64 and of 16 bytes; the last block ends where the range
/// ends, and may overlap the block before.
///
/// # Safety
/// As [`copy`]; `n >= 16`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn blocks(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: every address is within its range: each block advances both pointers by the bytes
    // that it copied, and the last block begins 16 bytes before the end, with n >= 16.
    unsafe {
        std::arch::asm!(
            "cmp {n}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{s}]",
            "movups {b}, [{s} + 16]",
            "movups {c}, [{s} + 32]",
            "movups {e}, [{s} + 48]",
            "movups [{d}], {a}",
            "movups [{d} + 16], {b}",
            "movups [{d} + 32], {c}",
            "movups [{d} + 48], {e}",
            "add {s}, 64",
            "add {d}, 64",
            "sub {n}, 64",
            "cmp {n}, 64",
            "jae 2b",
            "3:",
            "cmp {n}, 16",
            "jb 5f",
            "4:",
            "movups {a}, [{s}]",
            "movups [{d}], {a}",
            "add {s}, 16",
            "add {d}, 16",
            "sub {n}, 16",
            "cmp {n}, 16",
            "jae 4b",
            "5:",
            "test {n}, {n}",
            "jz 6f",
            "movups {a}, [{s} + {n} - 16]",
            "movups [{d} + {n} - 16], {a}",
            "6:",
            s = inout(reg) from => _,
            d = inout(reg) to => _,
            n = inout(reg) n => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            e = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies fewer than 16 bytes.
///
/// # Safety
/// As [`copy`]; `n < 16`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn few(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: each branch makes two accesses of a size that is at most n: the first begins where
    // the range begins, and the second ends where it ends.
    unsafe {
        if n >= 8 {
            std::arch::asm!(
                "mov {a}, [{s}]", "mov {b}, [{s} + {n} - 8]",
                "mov [{d}], {a}", "mov [{d} + {n} - 8], {b}",
                s = in(reg) from, d = in(reg) to, n = in(reg) n,
                a = out(reg) _, b = out(reg) _, options(nostack, preserves_flags),
            );
        } else {
            for i in 0..n {
                to.add(i).write_volatile(from.add(i).read_volatile());
            }
        }
    }
}

/// Copies a machine word at a time where alignment allows, else a byte.
///
/// # Safety
/// As [`copy`].
#[cfg(any(test, miri, not(target_arch = "x86_64")))]
unsafe fn volatile(from: *const u8, to: *mut u8, n: usize) {
    const WORD: usize = size_of::<u64>();
    let mut i = 0;
    while i < n {
        // SAFETY: i < n, so both addresses are inside the ranges that the caller guarantees; a word
        // is copied only if both addresses are aligned and it ends inside the ranges.
        unsafe {
            let (s, d) = (from.add(i), to.add(i));
            if s.addr() % WORD == 0 && d.addr() % WORD == 0 && n - i >= WORD {
                d.cast::<u64>().write_volatile(s.cast::<u64>().read_volatile());
                i += WORD;
            } else {
                d.write_volatile(s.read_volatile());
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Huge;
    use rustix::fs::MemfdFlags;
    use rustix::io::Errno;

    #[test]
    fn every_offset_and_length_is_copied_exactly() {
        let source: Vec<u8> = (0..=255).cycle().take(400).collect();
        for copy in [copy, volatile] {
            for (s, d) in [(0, 0), (1, 0), (0, 3), (5, 13), (8, 8), (15, 1)] {
                for n in (0..180).chain([255, 256, 257, 300]) {
                    let mut to = vec![0xee; 400];
                    // SAFETY: both ranges lie in their vectors, which only this test uses.
                    unsafe { copy(source.as_ptr().add(s), to.as_mut_ptr().add(d), n) };
                    assert_eq!(to[d..d + n], source[s..s + n], "{n} from {s} to {d}");
                    assert!(to[..d].iter().chain(&to[d + n..]).all(|b| *b == 0xee));
                }
            }
        }
    }

    fn ours(bytes: usize) -> PeerMemory {
        let region = Arc::new(Region::new("test", bytes, Huge::Never).unwrap());
        // SAFETY: the tests look into it by the value only.
        unsafe { PeerMemory::shared(region) }
    }

    #[test]
    fn nothing_outside_is_touched() {
        let memory = ours(4096);
        assert!(memory.write(4090, &[7; 6]) && !memory.write(4091, &[7; 6]));
        let mut back = [0; 6];
        assert!(memory.read(4090, &mut back) && back == [7; 6]);
        assert!(!memory.read(usize::MAX, &mut back) && !memory.read(4096, &mut back));
        assert!(memory.read(4096, &mut []) && !memory.has(4097, 0));
        assert!(memory.half_words(4094, 1).is_some() && memory.half_words(4094, 2).is_none());
        assert!(memory.half_words(1, 1).is_none() && memory.double_words(4, 1).is_none());
        assert!(memory.words(0, usize::MAX / 4 + 2).is_none());
    }

    #[test]
    fn both_mappings_of_a_file_share_their_bytes() {
        let ours = ours(8192);
        let fd = ours.region().unwrap().as_fd().try_clone_to_owned().unwrap();
        let theirs = PeerMemory::map(&fd, 8192, Access::Write, false).unwrap();
        assert!(theirs.write(5000, b"hello"));
        let mut back = [0; 5];
        assert!(ours.read(5000, &mut back) && &back == b"hello");
        let reader = PeerMemory::map(&fd, 8192, Access::Read, false).unwrap();
        assert!(reader.read(5000, &mut back) && &back == b"hello");
        assert!(!reader.write(5000, b"no") && reader.words(0, 1).is_none());
    }

    #[test]
    fn restricted_mapping_is_readable_and_not_writable() {
        let ours = ours(8192);
        let fd = ours.region().unwrap().as_fd().try_clone_to_owned().unwrap();
        let mut theirs = PeerMemory::map(&fd, 8192, Access::Write, false).unwrap();
        assert!(theirs.write(0, b"x"));
        theirs.restrict().unwrap();
        assert!(theirs.read(0, &mut [0]) && !theirs.write(0, b"y"));
        assert!(theirs.half_words(0, 1).is_none());
    }

    pub(super) fn memfd(bytes: u64, flags: MemfdFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    #[test]
    fn a_part_of_a_huge_page_is_not_mapped_even_for_a_trusted_peer() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        match rustix::fs::memfd_create("test", flags) {
            Err(e @ (Errno::NOSYS | Errno::NODEV)) => {
                return eprintln!("skipped: no files of huge pages: {e}");
            }
            made => drop(made.unwrap()),
        }
        let fd = memfd(2 << 20, flags);
        // The kernel would map a whole page for each of these, and not unmap it by the shorter
        // length.
        for len in [4096, (2 << 20) - 1] {
            let why = PeerMemory::map(&fd, len, Access::Read, true).unwrap_err().why;
            assert_eq!(why, "its file has pages of 2097152 bytes, and it is no multiple");
        }
    }

    #[test]
    fn a_file_shorter_than_it_is_said_to_be_is_refused() {
        let fd = memfd(4096, MemfdFlags::ALLOW_SEALING);
        for len in [0, 4097, 1 << 40, u64::MAX] {
            assert!(PeerMemory::map(&fd, len, Access::Write, true).is_err(), "{len}");
        }
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(PeerMemory::map(&pipe, 4096, Access::Read, true).is_err());
    }
}
