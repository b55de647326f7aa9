//! Capture files: a source that replays a file, and a sink that records one.
//!
//! ```text
//! config.rs   pcap:FILE[,read|write][,link=any][,pace=1]: which file, and which way
//! examine.rs  whether a file can be read or created, for doctor
//! read.rs     file -> skbs: pcap and pcapng
//! replay.rs   when each record leaves
//! source.rs   the file that is read: a regular one, or a stream that does not block
//! locked.rs   a regular file's lock against other ports
//! target.rs   the file that is written, and the files that are refused
//! write.rs    skbs -> file: pcapng, whole packets only
//! format/     the bytes of both formats
//! ```
//!
//! A capture is hostile: whatever is wrong with it ends the reading with the offset and the reason,
//! and the packets before it stay good. What cannot be written is dropped and counted, and a
//! regular file that the port names then ends with a whole packet. A pipe or the standard output
//! can end with a part of one.
//!
//! Writing waits for room: if the reader of a pipe stalls, the worker stalls with all of its ports.

mod config;
mod examine;
#[doc(hidden)]
pub mod format;
mod locked;
mod read;
mod replay;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod write;

use std::path::Path;

use linerate_skb::{Code, Error, Result};
use linerate_sys::text::thousands;

use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::obtained::{Direction, Obtained};
use crate::spec::Spec;
use config::{Config, Mode};
use format::{PACKET_LEN_MAX, Reader, Writer};
pub(crate) use write::epoch_ns;

/// The longest IP packet, with Ethernet and a VLAN tag, for which pools are sized. Captures may
/// have longer packets, up to 256 KiB, which pass if the pool has frames for them.
const PACKET_USUAL_BYTES: usize = 14 + 4 + 65_535;

/// The driver of `pcap:FILE[,read|write][,link=any][,pace=1]`; the file `-` is the standard input
/// or output.
#[derive(Debug)]
pub struct Pcap;

impl Driver for Pcap {
    fn name(&self) -> &'static str {
        "pcap"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "pcap:FILE[,pace=1]",
            text: "a capture file: A is read (pace=1: with the capture's timing),\n\
                B is written; - is stdin or stdout",
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
        let obtained = |mode: String, longest, direction| {
            Obtained::new(self.place.to_string(), mode, longest).direction(direction)
        };
        match self.mode {
            Mode::Read => {
                let queue = read::open(self, cx.pool())?;
                let kind = if queue.is_stream() { "stream" } else { "file" };
                let pace = self.pace.map_or(String::new(), |pace| match pace {
                    1.0 => ", as captured".into(),
                    pace => format!(", {pace} times as fast as captured"),
                });
                let mode = format!("pcap {kind}, copy{pace}");
                let longest = PACKET_LEN_MAX.min(cx.pool().packet_max_bytes());
                Ok(Opened::single(queue, obtained(mode, longest, Direction::Source)))
            }
            Mode::Write => {
                let (queue, former_bytes) = write::open(self)?;
                let mode = match former_bytes {
                    0 => "pcapng file, copy".to_owned(),
                    n => format!("pcapng file, copy, replaces a capture of {} bytes", thousands(n)),
                };
                Ok(Opened::single(queue, obtained(mode, PACKET_LEN_MAX, Direction::Sink)))
            }
        }
    }
}

/// One packet of a capture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// The time of capture, in nanoseconds of the epoch; 0 if unknown.
    pub stamp_ns: u64,
    /// The captured bytes, from the destination MAC.
    pub bytes: Vec<u8>,
}

/// Reads all packets of a capture, pcap or pcapng.
///
/// Memory is that of the file: a port is the way to read one that is large or not trusted.
///
/// # Errors
/// `E-FILE` if it cannot be read, `E-CAPTURE` if it is not what it claims or not Ethernet.
pub fn read_all(path: impl AsRef<Path>) -> Result<Vec<Frame>> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let file = std::fs::File::open(path).map_err(|e| failed("read", &name, &e))?;
    let mut reader = Reader::new(file).map_err(|e| e.in_file(&name))?;
    let mut frames = Vec::new();
    while let Some(record) = reader.next_record().map_err(|e| e.in_file(&name))? {
        let bytes = record.ethernet().map_err(|e| e.in_file(&name))?.to_vec();
        frames.push(Frame { stamp_ns: record.time_ns.unwrap_or(0), bytes });
    }
    Ok(frames)
}

/// Writes a pcapng capture of `frames`, and replaces the contents of `path`.
///
/// # Errors
/// `E-FILE` if it cannot be written, or if a frame has more than 256 KiB.
pub fn write_all(path: impl AsRef<Path>, frames: &[Frame]) -> Result<()> {
    let path = path.as_ref();
    let failed = |e| failed("write", &path.display().to_string(), &e);
    let mut writer = Writer::new(std::fs::File::create(path).map_err(failed)?);
    writer.add_interface(write::INTERFACE).map_err(failed)?;
    for frame in frames {
        let len = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
        writer.write(0, frame.stamp_ns, len, &frame.bytes).map_err(failed)?;
    }
    writer.flush().map_err(failed)
}

/// Returns the remedy if this user may not open the file, or pass a folder on the way to it.
fn denied(path: &std::path::Path, e: &std::io::Error) -> Option<String> {
    (e.kind() == std::io::ErrorKind::PermissionDenied).then(|| {
        format!("to see which folder or file refuses this user: namei -l {}", path.display())
    })
}

/// Returns the error of a file that could not be read or written.
fn failed(verb: &str, name: &str, e: &std::io::Error) -> Error {
    Error::new(Code::File, format!("cannot {verb} {name}"), e.to_string())
        .fix(format!("see that this user may {verb} it, and that its disk has room: ls -l, df -h"))
}
