//! The policies of a pool. They are fixed when it is made; each default was measured.

/// The processes that can write the frames; decided when the umem is created.
///
/// It decides whether a `&[u8]` of a frame may exist at all. See docs/adr/0001.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Only this process and the kernel, which follows the protocol of its rings.
    #[default]
    Private,
    /// A peer that has mapped the frames writable and can write them at any time: bytes are copied,
    /// never borrowed.
    Exported,
}

/// The source of a packet's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Data {
    /// A frame of the umem, of a fixed size: `alloc_skb_frame` of post 000.
    #[default]
    Frames,
    /// A block of the system's allocator for each packet, freed with the packet: `alloc_skb` of
    /// post 000 "as is". Only the metadata comes from a hot list. This is the baseline for
    /// comparison with frames: no device can share such memory.
    General,
}

/// The time at which a packet's meta line is initialised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Init {
    /// On allocation, on the core that will use the packet: the patch of post 004.
    #[default]
    AtAlloc,
    /// On freeing, for the next allocation, which then writes only a few fields: the constructor
    /// scheme that the patch of post 004 removes.
    ///
    /// For packets in memory, in bulk, by a clock that waits for the end of a call: where packets
    /// are freed on another core that only reads their metadata and the first core sets their
    /// length, it takes 0 to 29 % less time, depending on the CPU model, and 55 % less between
    /// distant cores. Where the other core writes the metadata, it takes from 3 % less to 14 %
    /// more. It is slower on one core (by 1.2 to 1.6 times) and where no core reads it.
    ///
    /// For TCP between hosts, with packets freed on another core, [`Init::AtAlloc`] takes 67 to
    /// 79 % less. Measured in docs/adr/0006 and docs/performance.md.
    AtFree,
}

/// The list onto which a frame is freed on another core than the one that allocated it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Return {
    /// The hot list of the core that frees the frame.
    #[default]
    Local,
    /// The core that allocated the frame; frames are returned up to 64 at a time, and until then
    /// count as on the hot list of the core that freed them. A plain drop puts the frame on the
    /// list of the thread that drops it, which returns frames half a list at a time.
    Home,
}
