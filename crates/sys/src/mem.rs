//! Memory that devices and peers can map: one memfd, one shared mapping.
//!
//! Owner: [`Region`]; the mapping lives exactly as long as it. The memory comes from 2 MiB pages
//! when there are some and from ordinary pages otherwise, and [`Region::pages`] says which. Huge
//! pages are allocated when the region is created: at the first access, a cgroup's limit of huge
//! pages would be a SIGBUS.
//! The file is sealed against growing and shrinking, so that no holder of the descriptor can turn
//! an access into SIGBUS by its length. With [`Others::Write`] a holder can still free pages (punch
//! a hole), which are allocated again at the next access: that is a SIGBUS if the machine, or the
//! cgroup, has no huge page left then. A region of [`Others::Read`] refuses holes, too.
//!
//! Source: memfd_create(2), fcntl(2) F_ADD_SEALS, Documentation/admin-guide/mm/hugetlbpage.rst.

use std::ffi::c_void;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Code, Error, Result};

/// Size of a huge page in bytes, as requested (`MFD_HUGE_2MB`).
pub const HUGE_BYTES: usize = 2 << 20;
/// Most bytes that one call of fallocate(2) fills: older kernels undo a call when a signal arrives.
const FILL_BYTES: usize = HUGE_BYTES;
/// Most attempts at one step, if signals interrupt it.
const FILL_TRIES: usize = 100;

/// The page size to use for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Huge {
    /// Huge pages if the machine has enough free ones, else ordinary pages.
    #[default]
    Try,
    /// Ordinary pages only.
    Never,
    /// Huge pages only: creating the region fails if the machine has too few.
    Require,
}

/// The pages a region was obtained with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pages {
    /// 2 MiB pages.
    Huge2M,
    /// Ordinary pages.
    Base,
}

/// The access that other processes get to a region whose descriptor they receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// Other processes can map and write the region.
    Write,
    /// Other processes can only read the region: it is sealed against new writable mappings and
    /// against write(2).
    Read,
}

/// Returns the numbers of 2 MiB pages that the machine has set aside, of those that are free, and
/// of the free ones that are reserved; 0 if unknown.
///
/// Source: Documentation/admin-guide/mm/hugetlbpage.rst.
fn huge_pages() -> [usize; 3] {
    ["nr_hugepages", "free_hugepages", "resv_hugepages"].map(|file| {
        let folder = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB");
        let text = fs::read_to_string(folder.join(file));
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    })
}

/// Returns the number of pages that the machine has to set aside so that `needed` are available,
/// with [`huge_pages`] as they are.
fn huge_pages_for(needed: usize, [all, free, reserved]: [usize; 3]) -> usize {
    let used = all.saturating_sub(free.saturating_sub(reserved));
    used.saturating_add(needed)
}

/// Calls `step` with the offset and the number of bytes of each step of `len` bytes, again if a
/// signal has interrupted it.
fn fill(
    len: usize,
    mut step: impl FnMut(u64, u64) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    for at in (0..len).step_by(FILL_BYTES) {
        let bytes = FILL_BYTES.min(len - at);
        let mut tries = (0..FILL_TRIES).map(|_| step(at as u64, bytes as u64));
        tries.find(|done| *done != Err(Errno::INTR)).unwrap_or(Err(Errno::INTR))?;
    }
    Ok(())
}

/// Beginnings of the reasons where the machine has no huge pages left: the kernel has none of this
/// size, others use them, or a cgroup limits them.
const NO_HUGE_PAGES: [&str; 5] = [
    "memfd_create: Function not implemented",
    "memfd_create: No such device",
    "mmap: Cannot allocate memory",
    "fallocate: Cannot allocate memory",
    "fallocate: No space left on device",
];

/// Returns true if `e`, of a region that requires huge pages, says that the machine has none left.
/// Tests skip by it.
#[doc(hidden)]
#[must_use]
pub fn lacks_huge_pages(e: &Error) -> bool {
    e.code == Code::Memory && NO_HUGE_PAGES.iter().any(|words| e.why.starts_with(words))
}

/// Returns the total memory of the machine in bytes.
fn machine_bytes() -> usize {
    if cfg!(miri) {
        // Miri does not support this call.
        return usize::MAX;
    }
    // SAFETY: sysconf(3) takes a number and accesses no memory of this program.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // The call does not fail on Linux; if it failed, no size would be refused.
    usize::try_from(pages).map_or(usize::MAX, |n| n.saturating_mul(rustix::param::page_size()))
}

/// Returns the lowest memory limit of this process's cgroup and its ancestors, in bytes; `None`
/// without a limit.
///
/// Source: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, cgroups(7)
///         /proc/PID/cgroup.
pub(crate) fn cgroup_bytes() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    // cgroup version 1 has lines such as `4:memory:/some/path`, version 2 `0::/some/path`.
    let fields = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let fields: Vec<(&str, &str)> = fields.collect();
    let limits = |of: &str, root: &str, file: &str| {
        let is_of = |names: &str| names.split(',').any(|name| name == of);
        // In a container, the process's own cgroup may be the only one visible, mounted as the
        // root.
        let path = fields.iter().find(|(names, _)| is_of(names)).map_or("/", |(_, path)| path);
        let folders = Path::new(path).ancestors().filter_map(|at| at.strip_prefix("/").ok());
        let texts = folders.map(|at| fs::read_to_string(Path::new(root).join(at).join(file)));
        texts.filter_map(|text| text.ok()?.trim().parse().ok()).min()
    };
    let first: Option<usize> = limits("memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes");
    first.into_iter().chain(limits("", "/sys/fs/cgroup", "memory.max")).min()
}

/// Returns the part of `name` that a memory file can have as its name: names of ports are paths,
/// which may be longer.
///
/// Source: mm/memfd.c `MFD_NAME_MAX_LEN`.
#[cfg(not(miri))]
fn file_name(name: &str) -> &str {
    const NAME_BYTES_MAX: usize = 249;
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// Adds the memory limits to an error, because a limit may be the reason although the machine has
/// the memory.
fn limits(error: Error) -> Error {
    error.fix(
        "request less, or raise the limits of this process (ulimit -v, ulimit -n, ulimit -f, memory.max of its cgroup)",
    )
}

/// Returns the number of usable bytes in a block of the system's allocator: the requested number,
/// rounded up.
///
/// # Safety
/// `block` came from the system's malloc, with no alignment asked for beyond malloc's own, and has
/// not been freed.
#[must_use]
pub unsafe fn usable_bytes(block: *mut u8) -> usize {
    // SAFETY: the caller guarantees a live block of malloc, which is all that malloc_usable_size(3)
    // requires.
    unsafe { libc::malloc_usable_size(block.cast()) }
}

/// A shared, sealed, zeroed memory region.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    pages: Pages,
    fd: OwnedFd,
}

// SAFETY: a Region only holds an address and a descriptor, both valid on every thread. It gives out
// the address but never dereferences it, so sharing or sending the Region accesses no memory.
unsafe impl Send for Region {}
// SAFETY: as above; no method changes the Region itself through `&self`.
unsafe impl Sync for Region {}

impl Region {
    /// Maps at least `len` bytes of zeroed memory; /proc/PID/maps shows it as `name`, of which a
    /// memory file has the first 249 bytes.
    ///
    /// # Errors
    /// `E-MEMORY` with the failing call, and how to make huge pages available if they were
    /// required.
    ///
    /// Cost: huge pages are allocated and zeroed now, on the NUMA node of the calling thread;
    /// ordinary pages at their first access.
    pub fn new(name: &str, len: usize, huge: Huge) -> Result<Self> {
        Region::for_others(name, len, huge, Others::Write)
    }

    /// Creates a region as [`Region::new`] does, with the access of other processes limited to
    /// `others`.
    ///
    /// # Errors
    /// As [`Region::new`].
    pub fn for_others(name: &str, len: usize, huge: Huge, others: Others) -> Result<Self> {
        if len == 0 {
            return Err(Error::new(Code::Memory, "cannot map memory", "0 bytes were asked for"));
        }
        if len > machine_bytes() {
            // The mapping would succeed, and the kernel would kill the program at the first page
            // above the limit.
            let why = format!("this machine has {} bytes in all", machine_bytes());
            let what = format!("cannot map {len} bytes for {name}");
            return Err(Error::new(Code::Memory, what, why).fix("ask for less"));
        }
        match huge {
            Huge::Never => Self::with_pages(name, len, Pages::Base, others).map_err(limits),
            Huge::Require => Self::with_pages(name, len, Pages::Huge2M, others).map_err(|e| {
                if !e.fix.is_empty() {
                    // The machine has the pages, and a limit prevents their allocation.
                    return e;
                }
                // The setting is the total: those that other programs have are part of it.
                let n = huge_pages_for(len.div_ceil(HUGE_BYTES), huge_pages());
                e.fix(format!("allow ordinary pages, or: sysctl -w vm.nr_hugepages={n}"))
            }),
            // A region that is much smaller than a huge page would waste most of the page.
            Huge::Try if len < HUGE_BYTES / 2 => {
                Self::with_pages(name, len, Pages::Base, others).map_err(limits)
            }
            Huge::Try => Self::with_pages(name, len, Pages::Huge2M, others)
                .or_else(|_| Self::with_pages(name, len, Pages::Base, others))
                .map_err(limits),
        }
    }

    /// Allocates ordinary memory, because Miri supports neither memfds nor shared mappings; Miri
    /// can then check the code that uses a region.
    #[cfg(miri)]
    fn with_pages(_: &str, len: usize, _: Pages, _: Others) -> Result<Self> {
        let fd = std::fs::File::open("/dev/null").expect("miri runs without isolation").into();
        let layout = std::alloc::Layout::from_size_align(len, 4096).expect("a sane length");
        // SAFETY: the layout is not of size 0 (`new` checked).
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Ok(Region { base, len, pages: Pages::Base, fd })
    }

    #[cfg(not(miri))]
    fn with_pages(name: &str, len: usize, pages: Pages, others: Others) -> Result<Self> {
        let what = || format!("cannot map {len} bytes for {name}");
        let sys = |call: &'static str| move |e| Error::os(Code::Memory, what(), call, e);
        let (unit, flags) = match pages {
            Pages::Huge2M => (HUGE_BYTES, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB),
            Pages::Base => (rustix::param::page_size(), MemfdFlags::empty()),
        };
        let len = len.checked_next_multiple_of(unit).ok_or_else(|| {
            Error::new(Code::Memory, what(), "the length does not fit the address space")
        })?;
        let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(file_name(name), flags).map_err(sys("memfd_create"))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(sys("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(sys("fcntl(F_ADD_SEALS)"))?;
        let (prot, map) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases no Rust object. Its
        // length is the file's, which the seals above make permanent. `Region` owns and unmaps it.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, map, &fd, 0) }
            .map_err(sys("mmap"))?;
        let base = NonNull::new(base.cast::<u8>())
            .ok_or_else(|| Error::new(Code::Memory, what(), "mmap returned the null page"))?;
        let region = Region { base, len, pages, fd };
        if pages == Pages::Huge2M {
            region.populate()?;
        }
        // Seal the file after this mapping is made, so that this mapping stays writable.
        let last = match others {
            Others::Write => SealFlags::SEAL,
            Others::Read => SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        };
        rustix::fs::fcntl_add_seals(&region.fd, last).map_err(sys("fcntl(F_ADD_SEALS)"))?;
        Ok(region)
    }

    /// Allocates every page now, so that no process that maps the region accesses a hole. Signals
    /// to the thread do not end it, unless they come in an endless burst.
    ///
    /// # Errors
    /// `E-MEMORY` if there is not enough.
    #[cfg(not(miri))]
    fn populate(&self) -> Result<()> {
        let step = |at, bytes| fallocate(&self.fd, FallocateFlags::empty(), at, bytes);
        fill(self.len, step).map_err(|e| {
            let what = format!("cannot fill a region of {} bytes", self.len);
            Error::os(Code::Memory, what, "fallocate", e).fix(
                "request less, or raise the limits of this process's cgroup (hugetlb.2MB.max, \
                 memory.max)",
            )
        })
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the mapped length in bytes: the requested one, rounded up to whole pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false, because no region has 0 bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the pages obtained.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(miri)]
        {
            let layout = std::alloc::Layout::from_size_align(self.len, 4096).expect("as before");
            // SAFETY: `with_pages` allocated the memory with this layout.
            return unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
        // SAFETY: base and len are those of the mapping made in `with_pages`, which is unmapped
        // only here. Users of `base()` guarantee, in their own SAFETY comments, that they do not
        // outlive the Region.
        #[cfg(not(miri))]
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_limit_that_can_refuse_memory_is_named() {
        let e = limits(Error::new(Code::Memory, "a", "b"));
        // A memory file is subject to the limit of file sizes, too.
        for limit in ["ulimit -v", "ulimit -n", "ulimit -f", "memory.max"] {
            assert!(e.fix.contains(limit), "{e}");
        }
    }

    #[test]
    fn a_region_is_zeroed_and_writable() {
        let r = Region::new("test", 10_000, Huge::Never).unwrap();
        assert_eq!(r.pages(), Pages::Base);
        assert_eq!(r.len() % rustix::param::page_size(), 0);
        // SAFETY: the offset is inside the mapping and nothing else refers to it.
        unsafe {
            let p = r.base().as_ptr().add(r.len() - 1);
            assert_eq!(p.read(), 0);
            p.write(7);
            assert_eq!(p.read(), 7);
        }
    }

    #[test]
    fn region_is_named_by_the_beginning_of_a_name_that_is_too_long_for_a_file() {
        // The last character that fits is cut, because it has two bytes.
        let name = format!("/{}", "\u{e9}".repeat(200));
        let r = Region::new(&name, 8192, Huge::Never).unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", r.fd.as_raw_fd())).unwrap();
        assert_eq!(link.to_str(), Some(&*format!("/memfd:/{} (deleted)", "\u{e9}".repeat(124))));
    }

    #[test]
    fn a_region_cannot_be_cut_short_by_a_holder_of_its_descriptor() {
        let r = Region::new("test", 8192, Huge::Never).unwrap();
        assert_eq!(rustix::fs::ftruncate(r.as_fd(), 0), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn a_region_for_readers_cannot_be_written_by_them() {
        let r = Region::for_others("test", 8192, Huge::Never, Others::Read).unwrap();
        assert_eq!(rustix::io::write(r.as_fd(), b"x"), Err(rustix::io::Errno::PERM));
        // SAFETY: the offset is inside the mapping and nothing else refers to it.
        unsafe { r.base().as_ptr().write(7) };
        let map = |access| {
            let fd = r.as_fd().try_clone_to_owned().unwrap();
            crate::peer::PeerMemory::map(&fd, 8192, access, false)
        };
        assert!(map(crate::peer::Access::Write).is_err());
        let mut byte = [0];
        assert!(map(crate::peer::Access::Read).unwrap().read(0, &mut byte) && byte == [7]);
    }

    #[test]
    fn huge_pages_fall_back_or_fail_with_the_remedy() {
        let r = Region::new("test", 64 << 20, Huge::Try).unwrap();
        assert!(r.len() >= 64 << 20);
        // No machine gives all of its memory to huge pages.
        if let Err(e) = Region::new("test", machine_bytes(), Huge::Require) {
            let (_, advice) = e.fix.split_once("vm.nr_hugepages=").unwrap();
            let n: usize = advice.split(' ').next().unwrap().parse().unwrap();
            // Other programs use and free pages meanwhile.
            let need = machine_bytes().div_ceil(HUGE_BYTES);
            assert!((need..=need + huge_pages()[0]).contains(&n), "{e}");
        }
    }

    #[test]
    fn an_error_is_a_lack_of_huge_pages_only_for_the_errno_of_one() {
        let failed = |call, errno| Error::os(Code::Memory, "cannot map 9 bytes", call, errno);
        assert!(lacks_huge_pages(&failed("mmap", Errno::NOMEM)));
        assert!(lacks_huge_pages(&failed("memfd_create", Errno::NODEV)));
        assert!(!lacks_huge_pages(&failed("mmap", Errno::INVAL)));
        assert!(!lacks_huge_pages(&failed("ftruncate", Errno::NOMEM)));
    }

    #[test]
    fn huge_pages_are_allocated_before_their_first_access() {
        match Region::new("test", 2 * HUGE_BYTES, Huge::Require) {
            Ok(r) => {
                let blocks = rustix::fs::fstat(r.as_fd()).unwrap().st_blocks as usize;
                assert_eq!((blocks * 512, r.len()), (2 * HUGE_BYTES, 2 * HUGE_BYTES));
            }
            Err(e) if lacks_huge_pages(&e) => eprintln!("skipped: no huge pages: {e}"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn the_advised_number_of_huge_pages_includes_those_that_are_in_use_or_reserved() {
        assert_eq!(huge_pages_for(8, [0, 0, 0]), 8);
        assert_eq!(huge_pages_for(8, [100, 0, 0]), 108);
        assert_eq!(huge_pages_for(8, [100, 100, 0]), 8);
        assert_eq!(huge_pages_for(8, [100, 30, 10]), 88);
        assert_eq!(huge_pages_for(8, [1, 4, 0]), 8, "numbers of different moments");
        assert_eq!(huge_pages_for(8, [4, 1, 3]), 12, "numbers of different moments");
        assert_eq!(huge_pages_for(usize::MAX, [4, 0, 0]), usize::MAX);
    }

    #[test]
    fn a_step_that_signals_interrupt_is_made_again_up_to_a_limit() {
        let step = FILL_BYTES as u64;
        let fill_with = |interruptions: usize| {
            let (mut left, mut steps) = (interruptions, Vec::new());
            let filled = fill(2 * FILL_BYTES + 4096, |at, bytes| {
                if at == step && left > 0 {
                    left -= 1;
                    return Err(Errno::INTR);
                }
                steps.push((at, bytes));
                Ok(())
            });
            (filled, steps)
        };
        let steps = [(0, step), (step, step), (2 * step, 4096)];
        assert_eq!(fill_with(0), (Ok(()), steps.to_vec()));
        assert_eq!(fill_with(99), (Ok(()), steps.to_vec()));
        assert_eq!(fill_with(100), (Err(Errno::INTR), steps[..1].to_vec()));
        let mut calls = 0;
        let filled = fill(1, |_, _| {
            calls += 1;
            Err(Errno::NOSPC)
        });
        assert_eq!((filled, calls), (Err(Errno::NOSPC), 1), "only an interrupted step is repeated");
    }

    #[test]
    fn nothing_cannot_be_mapped() {
        assert_eq!(Region::new("test", 0, Huge::Try).unwrap_err().code, Code::Memory);
    }

    #[test]
    fn impossible_size_is_refused_with_the_remedy() {
        let error = Region::new("test", 1 << 60, Huge::Never).unwrap_err();
        assert_eq!(error.code, Code::Memory);
        assert!(error.why.contains("this machine has") && !error.fix.is_empty(), "{error}");
    }

    #[test]
    fn holder_of_the_descriptor_can_add_no_seals() {
        for others in [Others::Write, Others::Read] {
            let region = Region::for_others("sealed", 4096, Huge::Never, others).unwrap();
            let seals = rustix::fs::fcntl_get_seals(&region.fd).unwrap();
            assert!(seals.contains(SealFlags::SEAL), "{others:?}");
        }
    }
}
