//! The numeric settings of an engine, each declared in one place as [`linerate_skb::knob`]
//! describes.

pub use linerate_skb::Knob;

/// Packets from one queue in one turn: NAPI's weight.
pub const BUDGET: Knob = Knob {
    name: "budget",
    unit: "packets",
    min: 1,
    max: 1024,
    default: 64,
    or: "",
    effect: "Packets to take from one queue in one turn",
    live: false,
};

/// Packets that may wait for a port's transmit ring.
pub const BACKLOG: Knob = Knob {
    name: "backlog",
    unit: "packets",
    min: 1,
    max: 1 << 16,
    default: 256,
    or: "",
    effect: "Packets that may wait for a port's transmit ring; at least a budget",
    live: false,
};

/// Packets of one transmit call. It rings the device's doorbell once at most; several times if
/// superframes are cut in front of the device.
///
/// Source: post 002, `tx_batch_skb`.
pub const TX_BATCH: Knob = Knob {
    name: "tx_batch",
    unit: "packets",
    min: 1,
    max: 1024,
    default: 64,
    or: "as many as have 256 KiB (auto)",
    effect: "Packets sent to a device in one call, with one doorbell if no superframe is cut; \
             1 = a call for each packet",
    live: true,
};

/// The knobs of an engine.
pub const ENGINE: [&Knob; 3] = [&BUDGET, &BACKLOG, &TX_BATCH];

pub use linerate_port::moderation::knob::*;
