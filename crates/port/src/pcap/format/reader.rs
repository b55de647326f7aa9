//! A reader of capture files of either format, one record at a time.

use std::io::{self, Read};
use std::ops::Range;

use super::classic::Classic;
use super::input::Input;
use super::ng::Ng;
use super::{CaptureError, Fault};

/// A reader of capture files in either format, pcap or pcapng.
///
/// Memory is one buffer of 64 KiB, or as large as the largest packet block met, at most
/// [`super::BLOCK_LEN_MAX`], and a few words for each interface. It reads ahead into that buffer:
/// the file needs none of its own.
#[derive(Debug)]
pub struct Reader<R> {
    input: Input<R>,
    /// Unknown until the header is read.
    format: Option<Format>,
    /// The packet that the last step found.
    found: Option<PacketRecord>,
    /// True if nothing more can be read: the file has ended or is invalid.
    done: bool,
}

#[derive(Debug)]
enum Format {
    Classic(Classic),
    Ng(Ng),
}

/// Result of one step through a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A packet was found: [`Reader::current`] has it.
    Packet,
    /// The file has no more bytes for now (`WouldBlock`); the next step continues here.
    Blocked,
    /// The step has skipped many blocks without a packet; the next step continues here.
    Busy,
    /// The end of the file.
    End,
}

impl<R: Read> Reader<R> {
    /// Creates a reader that has not read the header yet.
    pub fn unread(file: R) -> Self {
        Reader { input: Input::new(file), format: None, found: None, done: false }
    }

    /// Reads the header of the file.
    ///
    /// Errors: [`Fault::NotCapture`] if it is neither format (a compressed capture, for one), and
    /// what a record can be wrong with.
    pub fn new(file: R) -> Result<Self, CaptureError> {
        let mut reader = Reader::unread(file);
        reader.format = Some(Format::open(&mut reader.input)?);
        Ok(reader)
    }

    /// Advances to the next packet, if the file has enough bytes now.
    ///
    /// Errors: what is wrong with the next record, once; then [`Step::End`] for ever. All records
    /// before it were good.
    /// Cost:   bounded, whatever the file has; a read for each 64 KiB.
    pub fn step(&mut self) -> Result<Step, CaptureError> {
        self.found = None;
        if self.done {
            return Ok(Step::End);
        }
        let next = match self.advance() {
            Err(CaptureError { fault: Fault::Io(e), .. })
                if e.kind() == io::ErrorKind::WouldBlock =>
            {
                return Ok(Step::Blocked);
            }
            next => next.inspect_err(|_| self.done = true)?,
        };
        Ok(match next {
            Next::Packet(found) => {
                self.found = Some(found);
                Step::Packet
            }
            Next::Busy => Step::Busy,
            Next::End => {
                self.done = true;
                Step::End
            }
        })
    }

    fn advance(&mut self) -> Result<Next, CaptureError> {
        let format = match &mut self.format {
            Some(format) => format,
            none => none.insert(Format::open(&mut self.input)?),
        };
        match format {
            Format::Classic(classic) => {
                Ok(classic.next(&mut self.input)?.map_or(Next::End, Next::Packet))
            }
            Format::Ng(ng) => ng.next(&mut self.input),
        }
    }

    /// Reads the next packet; returns `None` after the last.
    ///
    /// Errors: as [`Reader::step`]; `WouldBlock` if the file has nothing more for now.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        loop {
            match self.step()? {
                Step::Busy => {}
                Step::Blocked => {
                    let fault = Fault::Io(io::ErrorKind::WouldBlock.into());
                    return Err(self.input.error(fault));
                }
                Step::Packet | Step::End => return Ok(self.current()),
            }
        }
    }

    /// Returns the packet that the last step found; further calls return it again.
    pub fn current(&self) -> Option<Record<'_>> {
        let &PacketRecord { interface, time_ns, orig_len, link_type, ref data } =
            self.found.as_ref()?;
        let data = self.input.bytes(data.clone());
        // Correct a length on the wire that is below the captured length, which is impossible.
        let orig_len = orig_len.max(data.len() as u32);
        let offset = self.input.record_offset();
        Some(Record { interface, time_ns, orig_len, link_type, offset, data })
    }
}

impl<R> Reader<R> {
    /// Returns the source of the bytes.
    pub fn file(&self) -> &R {
        self.input.inner()
    }

    /// Returns the source of the bytes, for writing. The reader does not see bytes that are read
    /// from it here.
    pub fn file_mut(&mut self) -> &mut R {
        self.input.inner_mut()
    }

    /// Returns the bytes of memory that the reader holds for packets.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.input.buffer_bytes()
    }
}

impl Format {
    fn open<R: Read>(input: &mut Input<R>) -> Result<Format, CaptureError> {
        let Some([magic]) = input.start()? else {
            return Err(input.error(Fault::Truncated { want: 4, found: 0 }));
        };
        match Classic::detect(magic) {
            Some((order, nanos)) => Ok(Format::Classic(Classic::open(input, order, nanos)?)),
            None if magic == Ng::MAGIC => Ok(Format::Ng(Ng::open(input)?)),
            None => Err(input.error(Fault::NotCapture(magic))),
        }
    }
}

/// A packet of a capture. Its bytes are borrowed from the reader until the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The interface that captured the packet, counted from 0 through all sections of the file.
    pub interface: u32,
    /// Time of capture in nanoseconds since 1970; `None` in a pcapng simple packet block, which has
    /// no time.
    pub time_ns: Option<u64>,
    /// The packet's length on the wire, at least that of `data`.
    pub orig_len: u32,
    /// Link type: the kind of the packet's first header.
    pub link_type: LinkType,
    /// Offset of the packet's record in the file, in bytes.
    pub offset: u64,
    /// The captured bytes.
    pub data: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the bytes of an Ethernet frame.
    ///
    /// Errors: [`Fault::NotEthernet`] for any other link type.
    pub fn ethernet(&self) -> Result<&'a [u8], CaptureError> {
        if self.link_type == LinkType::ETHERNET {
            return Ok(self.data);
        }
        Err(CaptureError { offset: self.offset, fault: Fault::NotEthernet(self.link_type.0) })
    }
}

/// Kind of a packet's first header, by its number in the registry of link types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkType(pub u16);

impl LinkType {
    /// Ethernet, from the destination MAC address on.
    pub const ETHERNET: LinkType = LinkType(1);
}

/// Result of parsing the next part of a file.
#[derive(Debug)]
pub(super) enum Next {
    Packet(PacketRecord),
    /// No packet so far, but more blocks to read.
    Busy,
    End,
}

/// The position of a packet in the input's buffer.
#[derive(Debug)]
pub(super) struct PacketRecord {
    pub interface: u32,
    pub time_ns: Option<u64>,
    pub orig_len: u32,
    pub link_type: LinkType,
    pub data: Range<usize>,
}
