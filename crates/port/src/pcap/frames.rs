//! A whole capture at once: for tools and tests, which know that it fits into memory.

use std::path::Path;

use linerate_skb::{Code, Error, Result};

use super::format::{Reader, Writer};

/// One packet of a capture.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Frame {
    /// When it was captured, in nanoseconds of the epoch; 0 = no idea.
    pub stamp_ns: u64,
    /// Its bytes, from the destination MAC, as many as were captured.
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
        frames.push(Frame { stamp_ns: record.time_ns, bytes });
    }
    Ok(frames)
}

/// Writes a pcapng capture of `frames`, in place of what `path` held.
///
/// # Errors
/// `E-FILE` if it cannot be written, or if a frame has more than 256 KiB.
pub fn write_all(path: impl AsRef<Path>, frames: &[Frame]) -> Result<()> {
    let path = path.as_ref();
    let failed = |e| failed("write", &path.display().to_string(), &e);
    let mut writer = Writer::new(std::fs::File::create(path).map_err(failed)?);
    writer.add_interface(super::write::INTERFACE).map_err(failed)?;
    for frame in frames {
        let len = u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX);
        writer.write(0, frame.stamp_ns, len, &frame.bytes).map_err(failed)?;
    }
    writer.flush().map_err(failed)
}

fn failed(verb: &str, name: &str, e: &std::io::Error) -> Error {
    Error::new(Code::File, format!("cannot {verb} {name}"), e.to_string())
}
