//! Capture files as bytes: reads pcap and pcapng, writes pcapng, over any `Read` and `Write`.
//!
//! ```text
//! reader.rs   Reader: which format is it, one record at a time
//! classic.rs  pcap:   header, records; both byte orders, µs and ns
//! ng.rs       pcapng: sections, interfaces, packet blocks; both byte orders
//! input.rs    the bytes of a file: counted, and never more in memory than one block
//! writer.rs   Writer: pcapng, whole blocks only
//! error.rs    what was wrong, and at which offset
//! ```
//!
//! A file is hostile. Every length in it is checked against what it must lie inside and against
//! the caps below, so memory is bounded by [`BLOCK_LEN_MAX`] and [`INTERFACES_MAX`] whatever the
//! file says. A bad record ends the reading, as in tcpdump: behind a length that lies there is no
//! next record to be found. The records read before it were good and stay so.
//!
//! A file that has nothing more for now is no bad file: [`Reader::step`] goes on where it was.
//!
//! Source: draft-ietf-opsawg-pcap (classic), draft-ietf-opsawg-pcapng.

mod classic;
mod error;
mod input;
mod ng;
mod reader;
mod writer;

pub use error::{CaptureError, Fault};
pub use reader::{LinkType, Reader, Record, Step};
pub use writer::Writer;

/// The longest packet that is read or written, in bytes: tcpdump's maximum snapshot length.
pub const PACKET_LEN_MAX: usize = 256 << 10;

/// The longest pcapng block that is read completely, in bytes: room for the largest packet, and for
/// options of the same size. Blocks of unknown types are skipped, whatever their length.
pub const BLOCK_LEN_MAX: usize = 512 << 10;

/// Most interfaces of one file, over all sections.
pub const INTERFACES_MAX: usize = 4096;

#[cfg(test)]
pub(super) use input::Order;

/// Returns true if a file that begins with `magic` is a capture of a known format.
pub(super) fn is_capture(magic: [u8; 4]) -> bool {
    magic == ng::Ng::MAGIC || classic::Classic::detect(magic).is_some()
}
#[cfg(test)]
pub(super) mod tests;
