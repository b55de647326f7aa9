//! Capabilities of a queue, as data instead of methods.

/// Facts of a queue that decide what is done above its driver.
///
/// A driver names what differs from the default, which is right for a device that copies and does nothing
/// with a packet but send it: `Caps { rx_ring_len: Some(256), ..Caps::default() }`.
///
/// Ring lengths may change with each connection of a queue; the rest is the same for life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// When a packet's bytes cross between a frame of the pool and other memory.
    pub copies: Copies,
    /// Packets that wait in its receive ring at most; `None` if it does not know.
    pub rx_ring_len: Option<u32>,
    /// True if [`QueueOps::arm`](crate::QueueOps::arm) for room is better than polling within 50 µs: the
    /// device announces room, or continues to send only when it is called. False if room is not announced and
    /// the peer makes progress by itself: then a caller that polls that soon need not be woken earlier.
    pub notifies_tx_space: bool,
    /// Packets that it takes without their checksum; of the others it is computed before they are sent.
    pub checksum: TxOffload,
    /// Superframes that it takes; the others are cut before they are sent.
    pub gso: TxOffload,
    /// True if its `xmit` stops at the first packet with work that it does not do, which stays at the front of
    /// the batch: then the batch is not searched before it.
    pub stops_at_offloads: bool,
    /// Origin of its received packets.
    pub origin: Origin,
}

impl Caps {
    /// A queue within this process: packets stay in their frames, with whatever is still to be done to them.
    pub const IN_PROCESS: Caps = Caps {
        copies: Copies::Never,
        rx_ring_len: None,
        notifies_tx_space: true,
        checksum: TxOffload::All,
        gso: TxOffload::All,
        stops_at_offloads: false,
        origin: Origin::Device,
    };
}

impl Default for Caps {
    fn default() -> Caps {
        let copies = Copies::Sometimes;
        Caps { copies, checksum: TxOffload::None, gso: TxOffload::None, ..Caps::IN_PROCESS }
    }
}

/// When a driver copies a packet's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// Never: a packet stays in its frame, or is made and verified there.
    Never,
    /// Once each way, between a frame and other memory.
    Always,
    /// Only where necessary; the copied bytes are unknown unless the driver counts them.
    #[default]
    Sometimes,
}

/// Packets of which a device does a kind of work itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxOffload {
    /// None.
    None,
    /// Those whose first transport header the work is at: the device cannot be told of tunnels.
    Untunnelled,
    /// All, or the work is passed on to the packet's reader.
    All,
}

/// Origin of the packets that a queue receives, for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// A device, a peer, a file: they count as received.
    #[default]
    Device,
    /// The queue makes them itself: they count as created.
    Created,
    /// Another place in this process, where they were counted.
    Internal,
    /// A device, and the queue has counted them itself: one that may drop or double them before it
    /// hands them over.
    Counted,
}
