//! The conditions under which memory of a peer's file can be accessed without a SIGBUS.

use std::os::fd::OwnedFd;

use rustix::fs::SealFlags;

/// File system type of files of huge pages, as statfs(2) returns it. Source:
/// include/uapi/linux/magic.h.
const HUGETLBFS: i64 = 0x9584_58f6;

/// Returns true if the kernel may refuse to fill a hole in a memory file when memory is short; the
/// access is a SIGBUS then.
fn counts_commitments(mode: std::io::Result<String>) -> bool {
    mode.is_ok_and(|mode| mode.trim() == "2")
}

/// Returns the size of the pages of a file of huge pages; `None` for other files.
///
/// # Errors
/// Those of fstatfs(2).
pub(super) fn huge_page_bytes(fd: &OwnedFd) -> rustix::io::Result<Option<u64>> {
    let system = rustix::fs::fstatfs(fd)?;
    let bytes = u64::try_from(system.f_bsize).ok().filter(|bytes| *bytes > 0);
    Ok(bytes.filter(|_| system.f_type == HUGETLBFS))
}

/// Checks that no access to the first `len` bytes of the file can be a SIGBUS, except when the
/// memory of a cgroup is exhausted, which kills its processes. Returns true for a file of huge
/// pages: the caller must fill the holes of the mapped part.
///
/// The owner must have sealed the file against truncation, as libmemif, VPP and DPDK do when they
/// create it. Adding a seal takes the lock of the file (`memfd_add_seals` in mm/memfd.c), which a
/// thread of the peer can hold in write(2) for as long as it likes. Reading the seals takes no
/// lock.
pub(super) fn check(fd: &OwnedFd, len: u64) -> std::result::Result<bool, String> {
    if counts_commitments(std::fs::read_to_string("/proc/sys/vm/overcommit_memory")) {
        return Err("with vm.overcommit_memory=2 a hole in it can be a SIGBUS".into());
    }
    // Only memory files support seals. Other files are refused without a call to their file system:
    // a peer may serve that file system, and never answer.
    let sealed = |any| rustix::fs::fcntl_get_seals(fd).is_ok_and(|s| s.intersects(any));
    if !sealed(SealFlags::SHRINK) {
        return Err("its file is not sealed against truncation".into());
    }
    if huge_page_bytes(fd).map_err(|e| format!("fstatfs: {e}"))?.is_none() {
        return Ok(false);
    }
    // A seal against writing also protects a file of huge pages against new holes:
    // hugetlbfs_punch_hole in fs/hugetlbfs/inode.c. A file with fewer blocks, of 512 bytes each,
    // than the mapping has holes in it. A file with more blocks may have some, because they may be
    // elsewhere.
    if !sealed(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err("its owner can punch holes into a file of huge pages".into());
    }
    let blocks = rustix::fs::fstat(fd).map_err(|e| format!("fstat: {e}"))?.st_blocks;
    match u64::try_from(blocks).is_ok_and(|n| n.saturating_mul(512) >= len) {
        true => Ok(true),
        false => Err("its file of huge pages has holes".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use rustix::fs::MemfdFlags;

    use super::super::tests::memfd;
    use super::super::{Access, PeerMemory};
    use super::*;
    use crate::mem::{Huge, Region};

    #[test]
    fn memory_is_refused_where_commitments_are_counted() {
        let mode = |text: &str| counts_commitments(Ok(text.to_owned()));
        assert!(mode("2\n") && !mode("0\n") && !mode("1\n"));
        assert!(!counts_commitments(Err(std::io::ErrorKind::NotFound.into())));
    }

    /// Another thread holds the lock of the file in fallocate(2) for some time.
    #[test]
    fn a_file_is_mapped_or_refused_at_once_while_its_owner_holds_its_lock() {
        use std::sync::atomic::{AtomicBool, Ordering};
        const BYTES: u64 = 1 << 28;
        let answered_meanwhile = |seals: SealFlags| {
            let fd = memfd(BYTES, MemfdFlags::ALLOW_SEALING);
            rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let flags = rustix::fs::FallocateFlags::empty();
                    let filled = rustix::fs::fallocate(&fd, flags, 0, BYTES);
                    done.store(true, Ordering::SeqCst);
                    filled.unwrap();
                });
                let bytes = || rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512;
                while bytes() == 0 && !done.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let mapped = PeerMemory::map(&fd, 4096, Access::Write, false);
                assert_eq!(mapped.is_ok(), !seals.is_empty());
                bytes() < BYTES
            })
        };
        // On a busy machine this thread may not run before the other one has finished.
        for seals in [SealFlags::SHRINK, SealFlags::empty()] {
            assert!((0..10).any(|_| answered_meanwhile(seals)), "{seals:?}");
        }
    }

    #[test]
    fn a_file_that_could_be_cut_short_is_refused_unless_its_owner_is_trusted() {
        let map = |fd: &OwnedFd, trusted| PeerMemory::map(fd, 4096, Access::Write, trusted);
        let sealable = memfd(4096, MemfdFlags::ALLOW_SEALING);
        for unsealed in [&sealable, &memfd(4096, MemfdFlags::empty())] {
            let e = map(unsealed, false).unwrap_err();
            assert!(e.why.contains("not sealed") && e.fix.contains("trust=yes"), "{e}");
            assert!(map(unsealed, true).is_ok());
        }
        rustix::fs::fcntl_add_seals(&sealable, SealFlags::SHRINK).unwrap();
        assert!(map(&sealable, false).is_ok());
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert!(map(&file, false).is_err());
    }

    /// Returns two regions of huge pages, writable and read-only for others; `None`, with one
    /// message, if the machine has none.
    fn huge() -> Option<[Region; 2]> {
        use crate::mem::{HUGE_BYTES, Others, lacks_huge_pages};
        let region = |others| Region::for_others("test", HUGE_BYTES, Huge::Require, others);
        match (region(Others::Write), region(Others::Read)) {
            (Ok(written), Ok(read)) => Some([written, read]),
            (Err(e), _) | (_, Err(e)) => {
                assert!(lacks_huge_pages(&e), "{e}");
                eprintln!("skipped: no huge pages: {e}");
                None
            }
        }
    }

    #[test]
    fn huge_pages_are_mapped_if_no_hole_can_be_in_them() {
        let Some([written, read]) = huge() else { return };
        let map = |region: &Region, trusted| {
            let fd = region.as_fd().try_clone_to_owned().unwrap();
            PeerMemory::map(&fd, region.len() as u64, Access::Read, trusted)
        };
        let why = map(&written, false).unwrap_err().why;
        assert_eq!(why, "its owner can punch holes into a file of huge pages");
        let bytes = read.len() as u64;
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let holes = memfd(bytes, flags);
        let seals = SealFlags::SHRINK | SealFlags::FUTURE_WRITE;
        rustix::fs::fcntl_add_seals(&holes, seals).unwrap();
        let why = PeerMemory::map(&holes, bytes, Access::Read, false).unwrap_err().why;
        assert_eq!(why, "its file of huge pages has holes");
        let mut byte = [1];
        assert!(map(&read, false).unwrap().read(read.len() - 1, &mut byte) && byte == [0]);
        assert!(map(&written, true).is_ok());
        let hole = |region: &Region| {
            use rustix::fs::FallocateFlags as Flags;
            let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
            rustix::fs::fallocate(region.as_fd(), flags, 0, region.len() as u64)
        };
        assert_eq!((hole(&written), hole(&read)), (Ok(()), Err(rustix::io::Errno::PERM)));
    }

    /// The pages of the file lie behind the part that is mapped.
    #[test]
    fn hole_in_the_mapped_part_of_a_file_of_huge_pages_is_filled_or_refused() {
        use crate::mem::HUGE_BYTES;
        use rustix::fs::FallocateFlags;
        if huge().is_none() {
            return;
        }
        let page = HUGE_BYTES as u64;
        let fd = memfd(2 * page, MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB);
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), page, page).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::FUTURE_WRITE).unwrap();
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512;
        assert_eq!(blocks(), page);
        if PeerMemory::map(&fd, page, Access::Read, false).is_ok() {
            assert_eq!(blocks(), 2 * page);
        }
    }

    /// Checks by reading the last byte of each mapping: after a truncation that would be a SIGBUS.
    #[test]
    fn a_file_that_changes_its_size_meanwhile_is_mapped_whole_or_not_at_all() {
        let mut mapped = 0;
        for _ in 0..300 {
            let fd = memfd(4096, MemfdFlags::ALLOW_SEALING);
            let theirs = fd.try_clone().unwrap();
            let start = Arc::new(std::sync::Barrier::new(2));
            let begun = start.clone();
            let peer = std::thread::spawn(move || {
                begun.wait();
                for _ in 0..20 {
                    let _ = rustix::fs::ftruncate(&theirs, 0);
                    let _ = rustix::fs::ftruncate(&theirs, 4096);
                }
                rustix::fs::fcntl_add_seals(&theirs, SealFlags::SHRINK).unwrap();
                rustix::fs::ftruncate(&theirs, 0).unwrap_err();
            });
            start.wait();
            while !peer.is_finished() {
                if let Ok(memory) = PeerMemory::map(&fd, 4096, Access::Write, false) {
                    assert!(memory.read(4095, &mut [0]));
                    mapped += 1;
                }
            }
            peer.join().unwrap();
            mapped += usize::from(PeerMemory::map(&fd, 4096, Access::Write, false).is_ok());
        }
        assert!(mapped >= 300);
    }
}
