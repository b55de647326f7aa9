//! The scenario `engine`: the engine on threads of the lab, which requires privileges only with a
//! device.
//!
//! ```text
//!  null     null ⇄ null                     one worker: allocates and frees on one hot list
//!  ring     gen ─► ring ─► sink             two workers, turned in turn by one thread, or by two
//!  adapter  wire ─► ring of buffers ─► out  bursts at line rate against a ring that one thread fills
//!  fabric   gen ─► memif ═► a process       what it sees in this one's memory, or in a copy
//!  device   veth, or cards ─► xdp ─► memif ═► a process  the same, behind a device of the kernel's
//! ```
//!
//! Everything in it but `device` is *micro*: no device, no kernel, and of other processes one that
//! looks at packets. The threads wait on a channel between windows, where they take no CPU.

mod adapter;
mod bench;
mod beyond;
mod config;
mod device;
mod irq;
mod path;
mod turning;

#[cfg(test)]
mod tests;

use std::path::Path;

use linerate_sys::netns::Netns;

use crate::knobs::Knob;
use crate::scenario::command::find;
use crate::scenario::host::permitted;
use crate::scenario::{Bench, Figure, Place, Scenario};
use crate::settings::Settings;
use crate::{Code, Error, Result};
use bench::EngineBench;
use beyond::Beyond;
use config::{Config, KNOBS, Kind};
use device::Link;

/// The scenario that runs the engine on threads of the lab.
#[derive(Debug)]
pub(super) struct Engine;

impl Scenario for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn about(&self) -> &'static str {
        "Moves packets through the engine itself, on threads of this program that are pinned and own \
         its workers. No device, no kernel and no privilege but for \"device\": what is seen is the cost of the path and \
         of its buffers, and nothing else (micro). `path = \"null\"` forwards between two null ports \
         with one worker; \"ring\" generates packets into a ring that a second worker empties; \
         \"adapter\" offers bursts at line rate to a ring of posted buffers, which overruns if the \
         receiving thread does not fill it in time; its interrupt, and that of a \"ring\" between two threads, can be \
         held by time and by number of packets (`hold_usecs`, a MODEL); \"fabric\" sends generated packets to a second process \
         by memif, which sees them in this one's memory, or in buffers that they are copied into, and \
         checks every byte. An adapter's packets can leave that way, too (`out`), and those of a \
         \"device\" do: a thread sends them into a veth pair or a card (`cards`), whose other end AF_XDP takes (as root, not micro)."
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
        if config.path == Kind::Device && config.cards.is_empty() {
            find("ip", place)?;
            permitted(Netns::new())?;
        }
        device::check(&config.cards)
    }

    fn probe(&self, settings: &Settings, _place: &Place) -> Result<()> {
        let config = Config::of(settings)?;
        match config.path {
            Kind::Device => permitted(Link::new(&config.cards)).map(drop),
            Kind::Null | Kind::Ring | Kind::Adapter | Kind::Fabric => Ok(()),
        }
    }

    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>> {
        let config = Config::of(settings)?;
        let cpus = config.placed(place)?;
        let mut link = match config.path {
            Kind::Device => Some(permitted(Link::new(&config.cards))?),
            Kind::Null | Kind::Ring | Kind::Adapter | Kind::Fabric => None,
        };
        let beyond = match config.beyond(place) {
            Some(cpu) => {
                let (program, verify) = (program(place)?.to_owned(), config.verify);
                let start = move || Beyond::start(&program, cpu, verify);
                Some(link.as_mut().map_or_else(start.clone(), |link| link.start(start))?)
            }
            None => None,
        };
        Ok(Box::new(EngineBench::open(&config, &cpus, beyond, link)?))
    }
}

/// Returns the path of this program, of which a second instance is the other process.
fn program(place: &Place) -> Result<&Path> {
    let none = || {
        let why = "it needs a second process of this program, whose file is not known";
        Error::new(Code::Unsupported, "cannot run this side of `engine`", why)
            .fix("mount /proc, for /proc/self/exe")
    };
    place.program.as_deref().ok_or_else(none)
}
