//! Capture files: a source that replays one, a sink that records one.
//!
//! ```text
//! config.rs  pcap:FILE[,read|write][,link=any]: which file, and which way
//! read.rs    file -> skbs: pcap and pcapng
//! source.rs  the file that is read: a regular one, or a stream that does not block
//! write.rs   skbs -> file: pcapng, whole packets only
//! frames.rs  a whole file at once, for tools and tests
//! format/    the bytes of both formats
//! ```
//!
//! A capture is hostile: whatever is wrong with it ends the reading with the offset and the reason,
//! and the packets before it stay good. What cannot be written is dropped and counted, and a file
//! ends with a whole packet whatever happened.

mod config;
mod examine;
#[doc(hidden)]
pub mod format;
mod frames;
mod read;
mod source;
#[cfg(test)]
mod tests;
mod write;

use linerate_skb::Result;

pub use frames::{Frame, read_all, write_all};

use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::obtained::{Direction, Obtained};
use crate::spec::Spec;
use config::{Config, Mode};
use format::PACKET_LEN_MAX;

/// The longest IP packet behind Ethernet and a VLAN tag: what a pool is sized for. Captures may
/// have longer ones, up to 256 KiB, and they pass if the pool has the frames.
const PACKET_USUAL_BYTES: usize = 14 + 4 + 65_535;

/// The driver of `pcap:FILE[,read|write][,link=any]`; the file `-` is the standard input or output.
#[derive(Debug)]
pub struct Pcap;

impl Driver for Pcap {
    fn name(&self) -> &'static str {
        "pcap"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "pcap:FILE",
            text: "a capture: read on the left of a wire, written on the right; - is a pipe",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { directed: true, ends: true, pipes: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let (packet_max_bytes, direction) = match self.mode {
            Mode::Read => (PACKET_USUAL_BYTES, Direction::Source),
            Mode::Write => (0, Direction::Sink),
        };
        Ok(Needs { packet_max_bytes, direction, ..Needs::default() })
    }

    fn examine(&self, spec: &Spec, _: Trial, found: &mut Findings) {
        examine::examine(self.mode, spec, found);
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let obtained = |mode, longest, direction| {
            Obtained::new(self.place.to_string(), mode, longest).direction(direction)
        };
        match self.mode {
            Mode::Read => {
                let queue = read::open(self, cx.pool())?;
                let mode = if queue.is_stream() { "pcap stream, copy" } else { "pcap file, copy" };
                let longest = PACKET_LEN_MAX.min(cx.pool().packet_max_bytes());
                Ok(Opened::single(queue, obtained(mode, longest, Direction::Source)))
            }
            Mode::Write => {
                let queue = write::open(self)?;
                let obtained = obtained("pcapng file, copy", PACKET_LEN_MAX, Direction::Sink);
                Ok(Opened::single(queue, obtained))
            }
        }
    }
}
