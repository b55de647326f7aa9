//! The settings of an engine that are numbers, each declared once: see [`linerate_skb::knob`].

use linerate_skb::Knob;

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

/// The longest time for which packets may gather, as the moderation of e1000 and its heirs holds them
/// for bulk transfers.
pub const RX_USECS: Knob = Knob {
    name: "rx_usecs",
    unit: "us",
    min: 0,
    max: 10_000,
    default: 250,
    or: "",
    effect: "The longest time for which packets may gather in a device's ring where they come densely; 0 \
             looks at once",
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

/// The knobs of an engine.
pub const ENGINE: [&Knob; 3] = [&BUDGET, &RX_USECS, &BACKLOG];
