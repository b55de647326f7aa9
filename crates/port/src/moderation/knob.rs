//! The numbers of moderation modes, each declared in one place: see [`linerate_skb::knob`].

use linerate_skb::Knob;

/// The longest delay that `adaptive` adds under a latency goal.
pub const LATENCY: Knob = Knob {
    name: "moderation_latency",
    unit: "us",
    min: 10,
    max: 10_000,
    default: 250,
    or: "",
    effect: "Delay that `adaptive` may add to 99 of 100 packets under load; it adds none after an idle time, \
             and with less than 40 it may never hold",
    live: true,
};

/// Share of a CPU that each queue may take by `adaptive` with a `cpu` goal.
pub const CPU: Knob = Knob {
    name: "moderation_cpu",
    unit: "%",
    min: 1,
    max: 100,
    default: 20,
    or: "",
    effect: "Share of a CPU that each queue may use by `adaptive` when its goal is `cpu`",
    live: true,
};

/// The time of a `fixed` hold: `usecs=`.
pub const USECS: Knob = Knob {
    name: "moderation_usecs",
    unit: "us",
    min: 1,
    max: 10_000,
    default: 100,
    or: "",
    effect: "Time from a poll of `fixed` that found packets to the next poll; \
             with less than 20, `fixed` polls without a hold",
    live: true,
};

/// The number of packets that end a `fixed` hold: `frames=`.
pub const FRAMES: Knob = Knob {
    name: "moderation_frames",
    unit: "packets",
    min: 1,
    max: 1 << 16,
    default: 32,
    or: "",
    effect: "Packets that end that time of `fixed` early, estimated from the arrival rate",
    live: true,
};

/// The knobs of moderation modes.
pub const MODERATION: [&Knob; 4] = [&LATENCY, &CPU, &USECS, &FRAMES];
