//! The scenario `engine`: the engine itself on threads of the lab's own, without privilege.
//!
//! ```text
//!  null     null ⇄ null                     one worker: allocates and frees on one hot list
//!  ring     gen ─► ring ─► sink             two workers, turned in turn by one thread, or by two
//!  adapter  wire ─► ring of buffers ─► out  bursts at line rate against a ring that one thread fills
//!  fabric   gen ─► memif ═► a process       what it sees in this one's memory, or in a copy
//! ```
//!
//! Everything in it is *micro*: no device, no kernel, and of other processes one that looks at packets.
//! The threads wait on a channel between windows, where they take no CPU.

mod adapter;
mod bench;
mod beyond;
mod config;
mod crew;
mod path;
mod reading;
mod turning;
mod wire;

#[cfg(test)]
mod tests;

use std::path::Path;

use linerate_ctl::pool::{BUFFERS, INIT, RETURN};

use crate::knobs::{Knob, Values};
use crate::scenario::{Bench, Figure, Place, Scenario};
use crate::settings::Settings;
use crate::{Code, Error, Result};
use bench::EngineBench;
use beyond::Beyond;
use config::{Config, OUT, PATH};

/// The engine on threads of the lab's own.
#[derive(Debug)]
pub(super) struct Engine;

impl Scenario for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn about(&self) -> &'static str {
        "Moves packets through the engine itself, on threads of this program that are pinned and own \
         its workers. No device, no kernel and no privilege: what is seen is the cost of the path and \
         of its buffers, and nothing else (micro). `path = \"null\"` forwards between two null ports \
         with one worker; \"ring\" generates packets into a ring that a second worker empties; \
         \"adapter\" offers bursts at line rate to a ring of posted buffers, which overruns if the \
         receiving thread does not fill it in time; \"fabric\" sends generated packets to a second process \
         by memif, which sees them in this one's memory, or in buffers that they are copied into, and \
         checks every byte. An adapter's packets can leave that way, too (`out`)."
    }

    fn knobs(&self) -> &'static [Knob] {
        &KNOBS
    }

    fn figures(&self) -> &'static [Figure] {
        &reading::FIGURES
    }

    fn check(&self, settings: &Settings, place: &Place) -> Result<()> {
        let config = Config::of(settings)?;
        config.placed(place)?;
        if config.out.is_some() {
            program(place)?;
        }
        Ok(())
    }

    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>> {
        let config = Config::of(settings)?;
        let cpus = config.placed(place)?;
        let beyond = match config.beyond(place) {
            Some(cpu) => Some(Beyond::start(program(place)?, cpu, config.verify)?),
            None => None,
        };
        Ok(Box::new(EngineBench::open(&config, &cpus, beyond)?))
    }
}

/// Returns the path of this program, which is also started as the other process.
fn program(place: &Place) -> Result<&Path> {
    let none = || {
        let why = "it needs a second process of this program, whose file is not known";
        Error::new(Code::Unsupported, "cannot run this side of `engine`", why)
            .fix("mount /proc, for /proc/self/exe")
    };
    place.program.as_deref().ok_or_else(none)
}

/// The settings of the scenario.
static KNOBS: [Knob; 21] = [
    Knob::new("path", Values::OneOf(&PATH), "\"null\"", "What packets pass."),
    Knob::new(
        "ring_len",
        Values::PowerOfTwo(2, 65_536),
        "256",
        "Packets that the ring holds, of fabric that to the other process; of an adapter, buffers that are \
         posted.",
    ),
    Knob::new(
        "burst",
        Values::Count(1, 65_536),
        "a turn's: 128 of null, 64 of a ring; 64",
        "Packets offered in a row: on one thread before the receiver is turned, at a fixed rate and by \
         an adapter before the next pause.",
    ),
    Knob::new(
        "rate",
        Values::Other("\"max\" | a rate as \"100kpps\" or \"100Mbps\" | bytes a second"),
        "\"max\"",
        "How much is offered, a burst at a time.",
    ),
    Knob::new(
        "line_rate",
        Values::Other("a rate"),
        "\"1488095pps\"",
        "Packets a second within an adapter's burst: gigabit Ethernet's for the shortest frames.",
    ),
    Knob::new(
        "size",
        Values::Other("60..=65536 | \"imix\""),
        "60",
        "Bytes of a packet, without FCS.",
    ),
    Knob::new("buffers", Values::OneOf(&BUFFERS), "\"frames\"", "Where packets' bytes come from."),
    Knob::new("hot_list", Values::Count(0, 65_536), "1024", "Free frames that each worker keeps."),
    Knob::new("init", Values::OneOf(&INIT), "\"at_alloc\"", "When metadata is initialised."),
    Knob::new(
        "return",
        Values::OneOf(&RETURN),
        "\"local\"",
        "Where a frame goes that another worker frees than the one that allocated it.",
    ),
    Knob::new(
        "budget",
        Values::Count(1, 1024),
        "64",
        "Packets from one queue in one turn; a burst is a multiple.",
    ),
    Knob::new(
        "pool_frames",
        Values::Count(64, 4_194_304),
        "as many as the path can hold",
        "Frames of the pool.",
    ),
    Knob::new("frame_size", Values::PowerOfTwo(256, 65_536), "2048", "Bytes of a frame."),
    Knob::new(
        "sample_every",
        Values::Count(0, 1_048_576),
        "61",
        "One in so many calls that allocate or free is timed; 0: none. A prime keeps it out of step \
         with the visits to the depot.",
    ),
    Knob::new(
        "threads",
        Values::Count(1, 2),
        "1; of an adapter 2",
        "2: the source has a thread of its own.",
    ),
    Knob::new(
        "verify",
        Values::Flag,
        "false; with out true",
        "Whether every byte is checked where packets end (ring, fabric, adapter).",
    ),
    Knob::new(
        "out",
        Values::OneOf(&OUT),
        "of fabric \"cut-through\", else \"none\"",
        "Whether a second process sees packets where they lie, or in buffers that they are copied into \
         (fabric, adapter).",
    ),
    Knob::new(
        "out_len",
        Values::PowerOfTwo(2, 16_384),
        "ring_len",
        "Packets that the ring to the second process holds.",
    ),
    Knob::new(
        "reap",
        Values::Count(1, 65_536),
        "64",
        "Packets that an adapter's transmitter keeps before it gives their buffers back, all at once; with \
         out those that wait for room at most, beyond which they are lost.",
    ),
    Knob::new(
        "touch",
        Values::Flag,
        "false",
        "Whether an adapter's packets are written by the wire and read by the receiver.",
    ),
    Knob::new(
        "spin",
        Values::Flag,
        "false",
        "Whether an adapter's receiver looks without a pause instead of sleeping until it is woken.",
    ),
];
