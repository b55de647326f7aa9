//! Marks: stores to a special page with which a program tells the plugin when to count. In a guest,
//! another program may store them.
//!
//! A mark is a store of one byte into a page that nothing else uses, at an address by which the
//! plugin knows it, in QEMU's user mode as in a guest. It needs no privilege, and without the
//! plugin it does nothing.
//!
//! ```text
//! MARKS + 0    FOLLOW   follow lines, count nothing: caches get warm
//!       + 64   BEGIN    count from here
//!       + 128  END      count no more
//!       + 1 K  PACKETS  + n: n packets more
//! ```

use std::sync::atomic::{AtomicU8, Ordering};

/// Address of the page of marks.
pub const MARKS: u64 = 0x11e5_0000_0000;
/// Length of the page in bytes.
pub const BYTES: u64 = 4096;

const FOLLOW: u64 = 0;
const BEGIN: u64 = 64;
const END: u64 = 128;
const PACKETS: u64 = 1024;
/// Most packets that one store can report.
const MOST: u64 = BYTES - PACKETS - 1;

/// A message of a program to the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Start following lines.
    Follow,
    /// Start following lines and counting transfers.
    Begin,
    /// Stop counting.
    End,
    /// This many packets have passed since the last such mark.
    Packets(u64),
}

impl Mark {
    /// Returns the mark for a store to `address`.
    #[must_use]
    pub const fn at(address: u64) -> Option<Mark> {
        match address.wrapping_sub(MARKS) {
            FOLLOW => Some(Mark::Follow),
            BEGIN => Some(Mark::Begin),
            END => Some(Mark::End),
            n if n > PACKETS && n < BYTES => Some(Mark::Packets(n - PACKETS)),
            _ => None,
        }
    }

    /// Returns the offset in the page at which the store for this mark is made; at most [`MOST`]
    /// packets at a time.
    const fn offset(self) -> u64 {
        match self {
            Mark::Follow => FOLLOW,
            Mark::Begin => BEGIN,
            Mark::End => END,
            Mark::Packets(n) => PACKETS + if n < MOST { n } else { MOST },
        }
    }
}

/// The page of marks, mapped in this process until it ends.
#[derive(Debug)]
pub struct Page(());

impl Page {
    /// Maps the page.
    ///
    /// # Errors
    /// The kernel's, if something is mapped there or no memory is left.
    pub fn map() -> std::io::Result<Page> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this creates a new mapping of memory without a file. It replaces no other
        // mapping, because of MAP_FIXED_NOREPLACE.
        let page = unsafe {
            libc::mmap(MARKS as *mut libc::c_void, BYTES as usize, protection, flags, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        if page as u64 != MARKS {
            // Kernels before 4.17 treat the flag's address as a hint only.
            return Err(std::io::Error::other("the page of marks is taken"));
        }
        Ok(Page(()))
    }

    /// Sends `mark`.
    pub fn say(&self, mut mark: Mark) {
        while mark != Mark::Packets(0) {
            let at = (MARKS + mark.offset()) as *mut AtomicU8;
            // SAFETY: the offset is within the page, which `map` mapped for writing and which is
            // never unmapped. This is the only place that accesses the page, by an atomic of one
            // byte, for which any address is aligned.
            unsafe { (*at).store(1, Ordering::Relaxed) };
            let Mark::Packets(n) = mark else { return };
            mark = Mark::Packets(n.saturating_sub(MOST));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_known_by_its_address_and_nothing_else_is_one() {
        let marks = [Mark::Follow, Mark::Begin, Mark::End, Mark::Packets(1), Mark::Packets(3071)];
        for mark in marks {
            assert_eq!(Mark::at(MARKS + mark.offset()), Some(mark));
        }
        for nothing in [0, MARKS - 1, MARKS + 1, MARKS + PACKETS, MARKS + BYTES, u64::MAX] {
            assert_eq!(Mark::at(nothing), None, "{nothing:#x}");
        }
        assert_eq!(Mark::at(MARKS + Mark::Packets(9999).offset()), Some(Mark::Packets(3071)));
    }

    #[test]
    fn a_mark_without_the_plugin_does_nothing() {
        let page = Page::map().unwrap();
        page.say(Mark::Begin);
        page.say(Mark::Packets(64));
        assert!(Page::map().is_err(), "mapped once more");
    }
}
