//! Writes pcapng: one section, in little endian, with times in nanoseconds.

use std::io::{self, Write};

use super::{INTERFACES_MAX, LinkType, PACKET_LEN_MAX};

/// Bytes that are gathered before they are written; one long block may exceed this.
const PENDING_LEN_MAX: usize = 64 << 10;

/// A writer of packets to a pcapng file, with its own buffer.
///
/// The sink is offered whole blocks only. If it fails or takes but a part (a full disk), the error
/// comes back with the sink's kind, and every later call fails too: behind a torn block nothing
/// could be read. [`Writer::whole_len`] is where to truncate the file so that it ends with a whole
/// block, and [`Writer::packets_whole`] is how many packets it has then.
///
/// `WouldBlock` from the sink is a failure, too: a sink without room waits until it has some.
///
/// A caller that counts the packets that are not whole as lost calls `give_up`, so that they are
/// not written later.
///
/// Dropping flushes as well, but cannot report a failure; call [`Writer::flush`] first.
#[derive(Debug)]
pub struct Writer<W: Write> {
    sink: W,
    /// Complete blocks that were not offered to the sink yet.
    pending: Vec<u8>,
    interfaces: u32,
    whole_len: u64,
    packets_whole: u64,
    /// True if the sink has failed.
    broken: bool,
}

impl<W: Write> Writer<W> {
    /// Creates a file with a section header and without interfaces.
    pub fn new(sink: W) -> Self {
        let pending = Vec::with_capacity(PENDING_LEN_MAX);
        let mut writer =
            Writer { sink, pending, interfaces: 0, whole_len: 0, packets_whole: 0, broken: false };
        writer.block(SECTION, |body| {
            body.extend(0x1a2b_3c4d_u32.to_le_bytes()); // byte-order magic
            body.extend(1_u16.to_le_bytes()); // version 1.0
            body.extend(0_u16.to_le_bytes());
            body.extend((-1_i64).to_le_bytes()); // a section of unknown length
        });
        writer
    }

    /// Declares an Ethernet interface called `name`; returns its number, for [`Writer::write`].
    ///
    /// Errors: as [`Writer::add_interface_of`].
    pub fn add_interface(&mut self, name: &str) -> io::Result<u32> {
        self.add_interface_of(name, LinkType::ETHERNET)
    }

    /// Declares an interface called `name` for packets of link type `link_type`, as
    /// [`Writer::add_interface`] does.
    ///
    /// Errors: `InvalidInput` for a name beyond 255 bytes or one interface too many, and nothing
    /// changed; otherwise those of the sink.
    pub fn add_interface_of(&mut self, name: &str, link_type: LinkType) -> io::Result<u32> {
        if name.len() > 255 || self.interfaces as usize >= INTERFACES_MAX {
            let text = "an interface name beyond 255 bytes, or too many interfaces";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.room_for(64 + name.len())?;
        self.block(INTERFACE, |body| {
            body.extend(link_type.0.to_le_bytes());
            body.extend([0; 2]);
            body.extend(0_u32.to_le_bytes()); // no snapshot length
            option(body, IF_NAME, name.as_bytes());
            option(body, IF_TSRESOL, &[9]); // 10^-9 s
            option(body, END_OF_OPTIONS, &[]);
        });
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Adds a packet of `data`, which was `orig_len` bytes long on the wire, with the time
    /// `time_ns` since 1970.
    ///
    /// Errors: `InvalidInput` for an undeclared interface, more than [`PACKET_LEN_MAX`] bytes, or
    /// an original length below that of `data`, and nothing changed; otherwise those of the sink.
    /// Cost:   one copy; every 64 KiB, one write.
    pub fn write(
        &mut self,
        interface: u32,
        time_ns: u64,
        orig_len: u32,
        data: &[u8],
    ) -> io::Result<()> {
        self.packet(interface, time_ns, orig_len, data, None)
    }

    /// Writes a packet as [`Writer::write`] does, with the flags for its direction.
    pub(crate) fn write_flagged(
        &mut self,
        interface: u32,
        time_ns: u64,
        orig_len: u32,
        data: &[u8],
        flags: u32,
    ) -> io::Result<()> {
        self.packet(interface, time_ns, orig_len, data, Some(flags))
    }

    fn packet(
        &mut self,
        interface: u32,
        time_ns: u64,
        orig_len: u32,
        data: &[u8],
        flags: Option<u32>,
    ) -> io::Result<()> {
        let sound = interface < self.interfaces
            && data.len() <= PACKET_LEN_MAX
            && data.len() <= orig_len as usize;
        if !sound {
            let text = "an undeclared interface, or a packet length that cannot be";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.room_for(PACKET_OVERHEAD_MAX + data.len())?;
        self.block(ENHANCED_PACKET, |body| {
            body.extend(interface.to_le_bytes());
            body.extend(((time_ns >> 32) as u32).to_le_bytes());
            body.extend((time_ns as u32).to_le_bytes());
            body.extend((data.len() as u32).to_le_bytes()); // at most PACKET_LEN_MAX
            body.extend(orig_len.to_le_bytes());
            body.extend_from_slice(data);
            if let Some(flags) = flags {
                // The header and the fields above consist of whole words, so only `data` needs
                // padding.
                let odd = data.len().next_multiple_of(4) - data.len();
                body.resize(body.len() + odd, 0);
                option(body, EPB_FLAGS, &flags.to_le_bytes());
                option(body, END_OF_OPTIONS, &[]);
            }
        });
        Ok(())
    }

    /// Writes all blocks to the sink and flushes it.
    ///
    /// Errors: those of the sink; `WriteZero` if it takes no more bytes.
    pub fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.sink.flush().inspect_err(|_| self.broken = true)
    }

    /// Discards the blocks that were not offered to the sink. Every later call fails, and dropping
    /// the writer writes nothing.
    pub(crate) fn give_up(&mut self) {
        self.pending.clear();
        self.broken = true;
    }

    /// Returns the length of the file up to the end of the last block that the sink has accepted
    /// completely.
    #[must_use]
    pub fn whole_len(&self) -> u64 {
        self.whole_len
    }

    /// Returns the number of packets that the sink has accepted completely. After an error, the
    /// packets written after them are lost.
    #[must_use]
    pub fn packets_whole(&self) -> u64 {
        self.packets_whole
    }

    /// Returns the sink to which the blocks are written.
    pub fn sink(&self) -> &W {
        &self.sink
    }

    /// Makes room for a block of at most `len` bytes.
    fn room_for(&mut self, len: usize) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("writing has failed before"));
        }
        if self.pending.len() + len > PENDING_LEN_MAX { self.drain() } else { Ok(()) }
    }

    /// Appends a block of `kind` with the body that `fill` writes, padded to whole words.
    fn block(&mut self, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.pending.len();
        self.pending.extend(kind.to_le_bytes());
        self.pending.extend([0; 4]);
        fill(&mut self.pending);
        pad(&mut self.pending, start);
        let len = (self.pending.len() - start + 4) as u32; // below BLOCK_LEN_MAX
        self.pending[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
        self.pending.extend(len.to_le_bytes());
    }

    /// Offers all pending blocks to the sink, and counts those that it accepts.
    fn drain(&mut self) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("writing has failed before"));
        }
        // Set `broken` until the write succeeds: if the sink panics, dropping the writer must not
        // write again.
        self.broken = true;
        let (taken, outcome) = offer(&mut self.sink, &self.pending);
        self.broken = outcome.is_err();
        self.count(taken);
        self.pending.clear();
        // Release the memory of one huge packet.
        self.pending.shrink_to(PENDING_LEN_MAX);
        outcome
    }

    /// Counts the blocks that are complete in the first `taken` pending bytes.
    fn count(&mut self, taken: usize) {
        let mut rest = &self.pending[..taken];
        // The blocks are our own, so their kind and length are valid.
        while let Some((&[a, b, c, d, e, f, g, h], _)) = rest.split_first_chunk() {
            let kind = u32::from_le_bytes([a, b, c, d]);
            let len = u32::from_le_bytes([e, f, g, h]);
            let Some(behind) = rest.get(len as usize..) else { break };
            rest = behind;
            self.whole_len += u64::from(len);
            self.packets_whole += u64::from(kind == ENHANCED_PACKET);
        }
    }
}

impl<W: Write> Drop for Writer<W> {
    fn drop(&mut self) {
        if !self.broken {
            let _ = self.flush(); // the error is lost, as documented: call flush to get it
        }
    }
}

/// Writes `bytes`; returns the number that the sink accepted, and the error if these are not all.
/// `write_all` would return only the error.
fn offer(sink: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        match sink.write(&bytes[taken..]) {
            Ok(0) => return (taken, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => taken = (taken + n).min(bytes.len()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (taken, Err(e)),
        }
    }
    (taken, Ok(()))
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const END_OF_OPTIONS: u16 = 0;
const IF_NAME: u16 = 2;
const EPB_FLAGS: u16 = 2;
const IF_TSRESOL: u16 = 9;

/// Largest size that an enhanced packet block adds to its packet: 32 bytes, up to 3 of padding, and
/// 12 for flags.
const PACKET_OVERHEAD_MAX: usize = 47;

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let start = body.len();
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes()); // at most 255
    body.extend_from_slice(value);
    pad(body, start);
}

/// Pads the bytes after `start` to whole words.
fn pad(bytes: &mut Vec<u8>, start: usize) {
    let len = bytes.len() - start;
    bytes.resize(start + len.next_multiple_of(4), 0);
}
