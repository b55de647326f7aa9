//! The numeric settings of ports, each declared in one place: see [`linerate_skb::knob`].

use linerate_skb::knob::Knob;

/// Most memory of one memif peer that a port maps: the option `memory=`.
pub const PEER_MEMORY: Knob = Knob {
    name: "memory",
    unit: "MiB",
    min: 1,
    max: 1 << 20,
    default: 256,
    or: "4 × rings × size × buffer if that is more; no limit with trust=yes",
    effect: "Memory of a memif's peer that this process may map; used pages count as this process's memory",
    live: false,
};

/// The knobs of ports.
pub const PORT: [&Knob; 1] = [&PEER_MEMORY];
