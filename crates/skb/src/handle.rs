//! The handle: the number that stands for a packet, and the meaning of its bits.
//!
//! ```text
//!   31      30 .. 26    25 .. 20    19 .. 0
//!   flag    umem        core        frame
//! ```
//!
//! *flag*: the meta line must be read before the frame is freed, because the packet is shared, has
//! fragments, is of the jumbo class or holds something. *core*: the number of the `Local` that
//! allocated it, so that a free on another core is counted without touching the packet; 0 stands
//! for an allocator without a number. On free lists the core's bits mean nothing, but in a pool
//! that returns frames to their cores: there they name the depot that a frame on a list returns to.

/// Flag: the meta line must be read before freeing.
pub(crate) const FLAG: u32 = 1 << 31;
/// Lowest bit of the umem's id.
const UMEM_SHIFT: u32 = 26;
/// Lowest bit of the core number.
const CORE_SHIFT: u32 = 20;
/// Mask of the frame index.
pub(crate) const INDEX: u32 = (1 << CORE_SHIFT) - 1;
/// Ids 1 to 31; 0 is no umem, so that no handle is 0.
pub(crate) const IDS: usize = 32;
/// Number of core numbers: 1 to 63, and 0 for all other cores.
pub(crate) const CORES: usize = 64;
/// Most frames of a umem; a jumbo frame counts as the ordinary frames whose place it takes.
pub(crate) const FRAMES_MAX: u32 = INDEX + 1;
/// Number of entries in a table indexed by [`table_index`].
pub(crate) const TABLE: usize = 2 * IDS;

/// Returns the upper bits of all handles of one core's packets: the umem's id and the core's
/// number.
pub(crate) const fn tag(umem: u32, core: u32) -> u32 {
    umem << UMEM_SHIFT | core << CORE_SHIFT
}

/// Returns `tag` combined with the frame of `handle`.
#[inline]
pub(crate) const fn retag(handle: u32, tag: u32) -> u32 {
    handle & INDEX | tag
}

#[inline]
pub(crate) const fn frame(handle: u32) -> u32 {
    handle & INDEX
}

#[inline]
pub(crate) const fn umem(handle: u32) -> usize {
    (handle >> UMEM_SHIFT) as usize % IDS
}

#[inline]
pub(crate) const fn core(handle: u32) -> usize {
    (handle >> CORE_SHIFT) as usize % CORES
}

/// Returns the umem's id as a table index; the index of a flagged handle is in the upper half.
#[inline]
pub(crate) const fn table_index(handle: u32) -> usize {
    (handle >> UMEM_SHIFT) as usize
}

/// Returns true if both handles are of one umem and their packets were allocated by one core; flags
/// are ignored.
#[inline]
pub(crate) fn same_core(a: u32, b: u32) -> bool {
    (a ^ b) & !FLAG & !INDEX == 0
}

/// Returns true if both handles are of one umem.
#[inline]
pub(crate) fn same_umem(a: u32, b: u32) -> bool {
    umem(a) == umem(b)
}

/// The bits that many handles have in common, found without a branch for each handle.
#[derive(Clone, Copy)]
pub(crate) struct Common {
    pub or: u32,
    pub and: u32,
}

impl Common {
    #[inline]
    pub fn of(handles: &[u32]) -> Common {
        // Use two passes, because the compiler turns each of them into vector code.
        let or = handles.iter().fold(0, |or, h| or | h);
        let and = handles.iter().fold(!0, |and, h| and & h);
        Common { or, and }
    }

    /// Returns true if any handle is flagged.
    #[inline]
    pub fn flagged(self) -> bool {
        self.or & FLAG != 0
    }

    /// Returns the id of the umem, if all handles belong to one umem.
    #[inline]
    pub fn umem(self) -> Option<usize> {
        // For an empty slice, the id is 0 in `or` and 31 in `and`, so the result is `None`.
        same_umem(self.or, self.and).then_some(umem(self.or))
    }

    /// Returns the number of the core that allocated all packets, if they are of one umem.
    #[inline]
    pub fn core(self) -> Option<usize> {
        same_core(self.or, self.and).then_some(core(self.or))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_its_parts_apart() {
        let handle = retag(FRAMES_MAX - 1, tag(31, 63)) | FLAG;
        assert_eq!((frame(handle), umem(handle), core(handle)), (FRAMES_MAX - 1, 31, 63));
        assert_eq!(handle, u32::MAX);
        assert_eq!(retag(handle, tag(1, 2)), tag(1, 2) | (FRAMES_MAX - 1));
    }

    #[test]
    fn common_bits_are_found_over_any_handles() {
        let of = |handles: &[u32]| Common::of(handles);
        let (a, b) = (tag(3, 5) | 7, tag(3, 5) | 0xfffff);
        assert_eq!((of(&[a, b]).umem(), of(&[a, b]).core()), (Some(3), Some(5)));
        assert_eq!(of(&[a, tag(3, 6)]).umem(), Some(3));
        assert_eq!(of(&[a, tag(3, 6)]).core(), None);
        assert_eq!(of(&[a, tag(4, 5)]).umem(), None);
        assert_eq!((of(&[]).umem(), of(&[]).core()), (None, None));
        assert!(of(&[a, b | FLAG]).flagged() && !of(&[a, b]).flagged());
        assert_eq!(of(&[a, b | FLAG]).core(), Some(5));
    }
}
