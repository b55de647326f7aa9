//! The policies of a pool. They are fixed when it is made; each default was measured.

/// The other writers of the frames: fixed when the umem is made.
///
/// It decides whether a `&[u8]` of a frame may exist at all. See docs/adr/0001.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Only this process and the kernel, which keeps the protocol of its rings.
    #[default]
    Private,
    /// A peer has the frames mapped writable and may write any of them at any time: they are
    /// copied, never borrowed.
    Exported,
}

/// The source of a packet's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Data {
    /// A frame of the umem, of a fixed size, for good: `alloc_skb_frame` of post 000.
    #[default]
    Frames,
    /// The system's allocator, once a packet, freed with it: `alloc_skb` of post 000 "as is". Only
    /// the header comes from a hot list. It is the baseline that frames are compared with: no
    /// device can share such memory.
    General,
}

/// The time at which a packet's meta line is initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Init {
    /// On allocation, on the core that is going to use it: the patch of post 004.
    #[default]
    AtAlloc,
    /// On freeing, for the next allocation, which then writes only the fields that depend on it: the
    /// constructor scheme that the patch of post 004 removes.
    ///
    /// It is 7 % faster where packets are freed on another core that only reads their metadata and
    /// the first core sets their length; it is equal where the other core writes it, and slower on
    /// one core (by 1.2 to 1.6 times) and where no core reads it. Measured in docs/adr/0006.
    AtFree,
}

/// The destination of a frame that is freed on another core than the one that allocated it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Return {
    /// Onto the hot list of the core that frees it.
    #[default]
    Local,
    /// Back to the core that allocated it, 64 at a time.
    Home,
}
