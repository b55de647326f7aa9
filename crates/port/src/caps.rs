//! Capabilities of a queue, as data instead of methods.

use std::time::Duration;

/// Capabilities of a queue, which decide what work the layers above its driver do.
///
/// A driver names what differs from the default, which is right for a device that copies and does
/// nothing with a packet but send it: `Caps { rx_ring_len: Some(256), ..Caps::default() }`.
///
/// Ring lengths may change with each connection of a queue; the rest is the same for life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// When the driver copies a packet's bytes between a frame of the pool and other memory.
    pub copies: Copies,
    /// Most packets that can wait in the queue's receive ring; `None` if unknown.
    pub rx_ring_len: Option<u32>,
    /// The packets that the device gathers by itself before it signals them. A hold that gathers no
    /// more would save no wake-up.
    pub rx_gathers: Gathers,
    /// True if a caller that waits for transmit room should sleep in
    /// [`QueueOps::arm`](crate::QueueOps::arm): the device signals room, or continues to send only
    /// when the caller calls it. False if the caller should poll again within 50 µs: the device
    /// does not signal room, and the peer makes room without a call.
    pub notifies_tx_space: bool,
    /// Packets whose checksum the device completes; the checksum of all others is computed before
    /// they are sent.
    pub checksum: TxOffload,
    /// Superframes that the device cuts into segments; all others are cut before they are sent.
    pub gso: TxOffload,
    /// True if the queue passes a VLAN tag on in the packet's metadata
    /// ([`Skb::vlan`](linerate_skb::Skb::vlan)); if false, the tag is inserted into the packet's
    /// bytes before the packet is sent.
    pub keeps_vlan: bool,
    /// True if `xmit` stops at the first packet whose offload it cannot do, or whose VLAN tag is in
    /// the metadata, and leaves that packet at the front of the batch, so that callers need not
    /// search the batch for such packets.
    pub stops_at_offloads: bool,
    /// Origin of the packets received from the queue.
    pub origin: Origin,
    /// True if the queue is of a network interface, which may go down or be deleted while nothing
    /// is sent: a worker then calls `reap` of an idle queue once a second that it only writes.
    pub is_interface: bool,
}

impl Caps {
    /// The capabilities of a queue within this process: packets stay in their frames, with their
    /// unfinished offloads and their metadata.
    pub const IN_PROCESS: Caps = Caps {
        copies: Copies::Never,
        rx_ring_len: None,
        rx_gathers: Gathers::NOTHING,
        notifies_tx_space: true,
        checksum: TxOffload::All,
        gso: TxOffload::All,
        keeps_vlan: true,
        stops_at_offloads: false,
        origin: Origin::Device,
        is_interface: false,
    };
}

impl Default for Caps {
    fn default() -> Caps {
        let copies = Copies::Sometimes;
        let none = TxOffload::None;
        Caps { copies, checksum: none, gso: none, keeps_vlan: false, ..Caps::IN_PROCESS }
    }
}

/// The packets that a device gathers by itself before it signals them: those of a time, or of a
/// number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gathers {
    /// The longest time for which it keeps a packet back, or less if it counts in coarser units;
    /// zero if it signals each.
    pub time: Duration,
    /// Number of bytes after which it signals earlier.
    pub bytes: u32,
}

impl Gathers {
    /// A device that signals each packet.
    pub const NOTHING: Gathers = Gathers { time: Duration::ZERO, bytes: 0 };
}

/// When a driver copies a packet's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Copies {
    /// Never: a packet stays in its frame, or the driver creates or verifies it there.
    Never,
    /// Once for each packet received or sent, between a frame and other memory.
    Always,
    /// Only where necessary; the number of copied bytes is unknown unless the driver counts it.
    #[default]
    Sometimes,
}

/// Packets for which a device does an offload itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxOffload {
    /// No packets: the device does none of this work.
    None,
    /// Packets whose offload is at the first transport header: the device's descriptors cannot
    /// describe a tunnel.
    Untunnelled,
    /// As [`Untunnelled`](TxOffload::Untunnelled), but no superframes of UDP.
    UntunnelledTcp,
    /// All packets: the device does the work, or passes it on to the packet's reader.
    All,
}

/// Origin of the packets that a queue receives, for the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Origin {
    /// A device, a peer or a file: the packets count as received.
    #[default]
    Device,
    /// The queue itself: the packets count as created.
    Created,
    /// Another queue of this process, which has already counted the packets.
    Internal,
    /// A device whose queue counts the received packets itself, because it may drop or duplicate
    /// them before it returns them.
    Counted,
}
