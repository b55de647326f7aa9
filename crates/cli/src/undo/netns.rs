//! The network namespace of a change.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// The identity of a network namespace.
///
/// The kernel gives the inode number of a deleted namespace to a new one, which may have the same
/// names and indices of interfaces: containers and scripts use them again and again. It never
/// repeats a cookie before the next boot, after which there are no records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Netns {
    pub inode: u64,
    /// `None` before Linux 5.14, and in records of the former forms.
    pub cookie: Option<u64>,
}

impl Netns {
    /// Returns the network namespace of the calling thread.
    pub fn here() -> Option<Netns> {
        let inode = fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
        Some(Netns { inode, cookie: linerate_sys::netns::cookie() })
    }

    /// Parses what [`fmt::Display`] writes: `4026531840` or `4026531840:1`.
    pub fn of(text: &str) -> Option<Netns> {
        let (inode, cookie) = match text.split_once(':') {
            Some((inode, cookie)) => (inode, Some(cookie.parse().ok()?)),
            None => (text, None),
        };
        Some(Netns { inode: inode.parse().ok()?, cookie })
    }

    /// Returns true unless the inodes or the cookies, where both are known, differ.
    pub fn is_same(self, other: Netns) -> bool {
        let cookies = self.cookie.zip(other.cookie);
        self.inode == other.inode && cookies.is_none_or(|(one, other)| one == other)
    }

    /// Returns true if this is the namespace of the calling thread.
    pub fn is_here(self) -> bool {
        Netns::here().is_some_and(|here| here.is_same(self))
    }
}

impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Netns { inode, cookie } = self;
        match cookie {
            Some(cookie) => write!(f, "{inode}:{cookie}"),
            None => write!(f, "{inode}"),
        }
    }
}
