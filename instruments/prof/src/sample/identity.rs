//! Which file it was that a process mapped, so that another at the same path is not taken for it.

/// What the kernel tells of a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    /// It is no file: anonymous memory, the vdso.
    None,
    /// A file, but nothing is told that would tell it from another.
    Unknown,
    /// What its linker wrote into it; the surest.
    BuildId(BuildId),
    /// Where it was. The number may go to another file once this one is deleted.
    Inode { major: u32, minor: u32, inode: u64 },
}

/// A GNU build ID: 20 bytes as a rule, fewer if the linker was asked for another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct BuildId {
    bytes: [u8; BUILD_ID_BYTES_MAX],
    len: u8,
}

impl Identity {
    /// By device and inode; inode 0 is no file.
    pub(super) fn of_inode(major: u32, minor: u32, inode: u64) -> Identity {
        if inode == 0 { Identity::None } else { Identity::Inode { major, minor, inode } }
    }
}

impl BuildId {
    /// `None` if it is empty or longer than the kernel would tell.
    pub(super) fn new(bytes: &[u8]) -> Option<BuildId> {
        let mut id =
            BuildId { bytes: [0; BUILD_ID_BYTES_MAX], len: u8::try_from(bytes.len()).ok()? };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        // A linker that is told to leave room for one fills it with zeros.
        bytes.iter().any(|&byte| byte != 0).then_some(id)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Source: include/linux/buildid.h, `BUILD_ID_SIZE_MAX`.
const BUILD_ID_BYTES_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_that_says_nothing_is_none() {
        assert_eq!(BuildId::new(&[]), None);
        assert_eq!(BuildId::new(&[0; 20]), None);
        assert_eq!(BuildId::new(&[7; 21]), None);
        assert_eq!(BuildId::new(&[7; 300]), None);
        assert_eq!(BuildId::new(&[7, 0, 8]).unwrap().as_bytes(), [7, 0, 8]);
    }
}
