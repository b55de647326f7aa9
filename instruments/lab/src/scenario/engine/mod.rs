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
mod path;
mod turning;

#[cfg(test)]
mod tests;

use std::path::Path;

use crate::knobs::Knob;
use crate::scenario::{Bench, Figure, Place, Scenario};
use crate::settings::Settings;
use crate::{Code, Error, Result};
use bench::EngineBench;
use beyond::Beyond;
use config::{Config, KNOBS};

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
        KNOBS
    }

    fn figures(&self) -> &'static [Figure] {
        &path::FIGURES
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
