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
#[doc(hidden)]
pub mod format;
mod frames;
mod read;
mod source;
#[cfg(test)]
mod tests;
mod write;

use linerate_skb::{Pool, Result};

pub use frames::{Frame, read_all, write_all};

use crate::driver::{Driver, Opened};
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

    fn directed(&self) -> bool {
        true
    }

    fn direction(&self, spec: &Spec) -> Direction {
        match Config::of(spec).map(|config| config.mode) {
            Ok(Mode::Write) => Direction::Sink,
            _ => Direction::Source,
        }
    }

    fn packet_max_bytes(&self, spec: &Spec) -> Result<usize> {
        Ok(match Config::of(spec)?.mode {
            Mode::Read => PACKET_USUAL_BYTES,
            Mode::Write => 0,
        })
    }

    fn open(&self, spec: &Spec, pool: &Pool) -> Result<Opened> {
        let config = Config::of(spec)?;
        let obtained = |mode, longest, direction| {
            Obtained::new(config.place.to_string(), mode, longest).direction(direction)
        };
        match config.mode {
            Mode::Read => {
                let queue = read::open(&config, pool)?;
                let mode = if queue.is_stream() { "pcap stream, copy" } else { "pcap file, copy" };
                let longest = PACKET_LEN_MAX.min(pool.packet_max_bytes());
                Ok(Opened::single(queue, obtained(mode, longest, Direction::Source)))
            }
            Mode::Write => {
                let queue = write::open(&config)?;
                let obtained = obtained("pcapng file, copy", PACKET_LEN_MAX, Direction::Sink);
                Ok(Opened::single(queue, obtained))
            }
        }
    }
}
