//! What a pool does where there is a choice. Fixed when it is made; each default was measured.

/// Who else can write the frames: fixed when the umem is made.
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

/// Where a packet's bytes come from.
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

/// When a packet's meta line is initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Init {
    /// Where it is allocated, which is where it is going to be used: the patch of post 004.
    #[default]
    AtAlloc,
    /// Where it was freed, for whoever allocates it next, which then writes only what the buffer
    /// it got decides: the constructor scheme that the patch of post 004 removes.
    ///
    /// It wins, by 7 %, where packets are freed on another core that only reads their metadata and
    /// the first one sets their length; it is equal where the other core writes it, and loses on one
    /// core (by 1.2 to 1.6 times) and where nobody looks. Measured in docs/adr/0006.
    AtFree,
}

/// Where a frame goes that is freed on another core than the one that allocated it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Return {
    /// Onto the hot list of the core that frees it.
    #[default]
    Local,
    /// Back to the core that allocated it, 64 at a time.
    Home,
}
