//! pcapng: sections of blocks, each with its length before and after its body.
//!
//! ```text
//! block:      | type 4 | length 4 | body, options | length 4 |       length counts all of it
//! section:    | byte-order magic 4 | major 2, minor 2 | section length 8 | options
//! interface:  | link type 2, reserved 2 | snaplen 4 | options
//! enhanced:   | interface 4 | time 4, 4 | captured 4 | original 4 | packet | options
//! simple:     | original 4 | packet
//! obsolete:   | interface 2, drops 2 | time 4, 4 | captured 4 | original 4 | packet | options
//! ```
//!
//! Source: draft-ietf-opsawg-pcapng sections 3 and 4, appendix A for the obsolete packet block.

use std::io::Read;
use std::ops::Range;

use super::input::{Input, Order};
use super::reader::{LinkType, Next, PacketRecord};
use super::{BLOCK_LEN_MAX, CaptureError, Fault, INTERFACES_MAX, PACKET_LEN_MAX};

const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Bytes of a block around its body: type and length before it, length after it.
const FRAME_LEN: u32 = 12;

/// Most blocks without a packet, or parts of such a block, that one step skips. This takes some
/// milliseconds, even if every part needs a read of the file.
const STEPS_MAX: usize = 256;

#[derive(Debug)]
pub struct Ng {
    order: Order,
    /// The interfaces of this section.
    interfaces: Vec<Interface>,
    /// Number of interfaces in all earlier sections.
    earlier: u32,
    /// The block that is being skipped.
    skipping: Option<Skip>,
}

/// A block of a type that the reader skips, of any length.
#[derive(Debug, Clone, Copy)]
struct Skip {
    len: u32,
    /// Bytes of the block's body that are not skipped yet.
    left: u32,
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link_type: LinkType,
    packet_len_max: u32,
    clock: Clock,
}

impl Interface {
    /// Returns the range of a packet of `len` bytes that starts `at` bytes into a body with `room`
    /// bytes from there on.
    fn packet(&self, len: u32, at: usize, room: usize) -> Result<Range<usize>, Fault> {
        if len > self.packet_len_max {
            let max = self.packet_len_max.into();
            return Err(Fault::PacketTooLong { len: len.into(), max });
        }
        if len as usize > room {
            return Err(Fault::PacketOverBlock { len: len.into(), found: room as u64 });
        }
        Ok(at..at + len as usize)
    }
}

impl Ng {
    /// The type of a section header, which is equal in both byte orders.
    pub const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

    /// Reads the rest of the first section header, after its type.
    pub fn open<R: Read>(input: &mut Input<R>) -> Result<Self, CaptureError> {
        let mut ng =
            Ng { order: Order::Little, interfaces: Vec::new(), earlier: 0, skipping: None };
        ng.section(input)?;
        Ok(ng)
    }

    /// Finds the next packet; skips at most `STEPS_MAX` other blocks.
    pub fn next<R: Read>(&mut self, input: &mut Input<R>) -> Result<Next, CaptureError> {
        for _ in 0..STEPS_MAX {
            if let Some(skip) = self.skipping {
                self.skip(input, skip)?;
                continue;
            }
            let Some([kind]) = input.start()? else { return Ok(Next::End) };
            if kind == Self::MAGIC {
                self.section(input)?;
                continue;
            }
            let [len] = self.order.u32s(input.words()?);
            match self.order.u32(kind) {
                INTERFACE => {
                    let body = self.body(input, len)?;
                    let interface = self.interface(input.bytes(body));
                    self.interfaces.push(interface.map_err(|fault| input.error(fault))?);
                }
                kind @ (ENHANCED_PACKET | OBSOLETE_PACKET | SIMPLE_PACKET) => {
                    let body = self.body(input, len)?;
                    let at = body.start;
                    let found = match kind {
                        SIMPLE_PACKET => self.simple(input.bytes(body)),
                        kind => self.packet(input.bytes(body), kind == OBSOLETE_PACKET),
                    };
                    let found = found.map_err(|fault| input.error(fault))?;
                    let data = at + found.data.start..at + found.data.end;
                    return Ok(Next::Packet(PacketRecord { data, ..found }));
                }
                _ => {
                    let left = len.checked_sub(FRAME_LEN).filter(|body| body % 4 == 0);
                    let left = left.ok_or_else(|| input.error(Fault::BlockLen(len)))?;
                    self.skipping = Some(Skip { len, left });
                    input.keep();
                }
            }
        }
        Ok(Next::Busy)
    }

    /// Reads a section header, after its type: a new byte order, and interfaces counted from 0
    /// again.
    fn section<R: Read>(&mut self, input: &mut Input<R>) -> Result<(), CaptureError> {
        const LITTLE: [u8; 4] = [0x4d, 0x3c, 0x2b, 0x1a];
        const BIG: [u8; 4] = [0x1a, 0x2b, 0x3c, 0x4d];
        let [len, magic] = input.words()?;
        self.order = match magic {
            LITTLE => Order::Little,
            BIG => Order::Big,
            other => return Err(input.error(Fault::ByteOrder(other))),
        };
        let len = self.order.u32(len);
        // The magic, the version and the section length were read here; the options follow them.
        let options = self.body_len(input, len)?.checked_sub(16);
        let options = options.ok_or_else(|| input.error(Fault::BlockLen(len)))?;
        let [version, _, _] = self.order.u32s(input.words()?);
        let (major, minor) = self.order.halves(version);
        if major != 1 {
            return Err(input.error(Fault::Version { major, minor }));
        }
        input.take(options as usize)?;
        self.trailer(input, len)?;
        // The sum does not overflow: there are at most INTERFACES_MAX interfaces.
        self.earlier += self.interfaces.len() as u32;
        self.interfaces.clear();
        Ok(())
    }

    fn interface(&self, body: &[u8]) -> Result<Interface, Fault> {
        if self.earlier as usize + self.interfaces.len() >= INTERFACES_MAX {
            return Err(Fault::TooManyInterfaces);
        }
        let ([link, snaplen], options) = self.words(body)?;
        let (link, _reserved) = self.order.halves(link);
        let packet_len_max = packet_len_max(snaplen);
        Ok(Interface { link_type: LinkType(link), packet_len_max, clock: self.clock(options)? })
    }

    /// Reads the clock of an interface from its options.
    fn clock(&self, mut options: &[u8]) -> Result<Clock, Fault> {
        const END: u16 = 0;
        const RESOLUTION: u16 = 9;
        const OFFSET: u16 = 14;
        let mut clock = Clock::MICROS;
        while let Some((&[a, b, c, d], rest)) = options.split_first_chunk() {
            let (code, len) = (self.order.u16([a, b]), self.order.u16([c, d]));
            let impossible = || Fault::Option { code, len };
            let value = rest.get(..len.into()).ok_or_else(impossible)?;
            match code {
                END => break,
                RESOLUTION => match *value {
                    [resolution] => clock.unit = Unit::new(resolution)?,
                    _ => return Err(impossible()),
                },
                OFFSET => {
                    let value = value.try_into().map_err(|_| impossible())?;
                    clock.offset_s = match self.order {
                        Order::Little => i64::from_le_bytes(value),
                        Order::Big => i64::from_be_bytes(value),
                    };
                }
                _ => {}
            }
            // The block's length is a multiple of four, and so is the length of all fields before
            // this option.
            options = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(clock)
    }

    fn packet(&self, body: &[u8], obsolete: bool) -> Result<PacketRecord, Fault> {
        let ([id, high, low, len, orig_len], rest) = self.words(body)?;
        let id = if obsolete { self.order.halves(id).0.into() } else { id };
        let interface = self.interfaces.get(id as usize).ok_or(Fault::Interface(id))?;
        let time_ns = interface.clock.time_ns(u64::from(high) << 32 | u64::from(low));
        let time_ns = Some(time_ns.ok_or(Fault::Time)?);
        let data = interface.packet(len, 20, rest.len())?;
        let (interface, link_type) = (self.earlier + id, interface.link_type);
        Ok(PacketRecord { interface, time_ns, orig_len, link_type, data })
    }

    /// Parses a simple packet block: a packet of interface 0 without a time, cut at the snapshot
    /// length.
    fn simple(&self, body: &[u8]) -> Result<PacketRecord, Fault> {
        let ([orig_len], rest) = self.words(body)?;
        let interface = self.interfaces.first().ok_or(Fault::Interface(0))?;
        let len = orig_len.min(interface.packet_len_max);
        let data = interface.packet(len, 4, rest.len())?;
        let (interface, link_type) = (self.earlier, interface.link_type);
        Ok(PacketRecord { interface, time_ns: None, orig_len, link_type, data })
    }

    /// Splits off the first words of a body.
    fn words<'a, const N: usize>(&self, body: &'a [u8]) -> Result<([u32; N], &'a [u8]), Fault> {
        let len = FRAME_LEN + body.len() as u32; // at most BLOCK_LEN_MAX
        let (words, _) = body.as_chunks::<4>();
        let words = words.first_chunk::<N>().ok_or(Fault::BlockLen(len))?;
        Ok((self.order.u32s(*words), &body[N * 4..]))
    }

    /// Reads the body of a block of length `len` and returns its range; checks the trailer.
    fn body<R: Read>(&self, input: &mut Input<R>, len: u32) -> Result<Range<usize>, CaptureError> {
        // Read the trailer together with the body, because a later read may move the buffer.
        let body_len = self.body_len(input, len)? as usize;
        let body = input.take(body_len + 4)?;
        let (body, tail) = (body.start..body.end - 4, body.end - 4..body.end);
        let mut word = [0; 4];
        word.copy_from_slice(input.bytes(tail));
        self.check_trailer(input, len, self.order.u32(word))?;
        Ok(body)
    }

    /// Returns the length of the body of a block of length `len`, if that length is valid.
    fn body_len<R: Read>(&self, input: &Input<R>, len: u32) -> Result<u32, CaptureError> {
        match len.checked_sub(FRAME_LEN) {
            Some(body) if body % 4 == 0 && len as usize <= BLOCK_LEN_MAX => Ok(body),
            _ => Err(input.error(Fault::BlockLen(len))),
        }
    }

    /// Skips the part of a block that is available now.
    fn skip<R: Read>(&mut self, input: &mut Input<R>, skip: Skip) -> Result<(), CaptureError> {
        let passed = input.pass(skip.left)?;
        if passed == 0 && skip.left > 0 {
            let want = skip.len - FRAME_LEN;
            let (want, found) = (want.into(), (want - skip.left).into());
            return Err(input.error(Fault::Truncated { want, found }));
        }
        let left = skip.left - passed;
        self.skipping = Some(Skip { left, ..skip });
        if left == 0 {
            self.trailer(input, skip.len)?;
            self.skipping = None;
        }
        Ok(())
    }

    fn trailer<R: Read>(&self, input: &mut Input<R>, head: u32) -> Result<(), CaptureError> {
        let [tail] = self.order.u32s(input.words()?);
        self.check_trailer(input, head, tail)
    }

    fn check_trailer<R: Read>(
        &self,
        input: &Input<R>,
        head: u32,
        tail: u32,
    ) -> Result<(), CaptureError> {
        if tail == head { Ok(()) } else { Err(input.error(Fault::BlockTrailer { head, tail })) }
    }
}

/// Time base of an interface's timestamps.
#[derive(Debug, Clone, Copy)]
struct Clock {
    unit: Unit,
    /// Seconds to add to each time.
    offset_s: i64,
}

/// The unit of an interface's time stamps.
#[derive(Debug, Clone, Copy)]
enum Unit {
    /// This number of nanoseconds.
    Nanos(u64),
    /// A nanosecond divided by this number.
    NanosOver(u64),
    /// A second shifted right by this number of bits.
    SecondShifted(u8),
}

/// Returns the longest packet that an interface with this snapshot length may have; zero means no
/// limit.
fn packet_len_max(snaplen: u32) -> u32 {
    let cap = PACKET_LEN_MAX as u32;
    if snaplen == 0 { cap } else { snaplen.min(cap) }
}

impl Unit {
    /// Parses the option: a negative power of 10, or of 2 if the top bit is set.
    fn new(code: u8) -> Result<Unit, Fault> {
        match code {
            0..=9 => Ok(Unit::Nanos(10u64.pow(9 - u32::from(code)))),
            10..=28 => Ok(Unit::NanosOver(10u64.pow(u32::from(code) - 9))),
            0x80..=0xc0 => Ok(Unit::SecondShifted(code & 0x7f)),
            _ => Err(Fault::Resolution(code)),
        }
    }
}

impl Clock {
    /// Time base of an interface that declares none.
    const MICROS: Clock = Clock { unit: Unit::Nanos(1000), offset_s: 0 };

    /// Returns the time after `count` units, rounded down; `None` if it exceeds 64 bits.
    fn time_ns(self, count: u64) -> Option<u64> {
        let count = u128::from(count);
        // 2^64 units of at most one second are below 2^94 ns, so that 128 bits suffice.
        let nanos = match self.unit {
            Unit::Nanos(nanos) => count * u128::from(nanos),
            Unit::NanosOver(parts) => count / u128::from(parts),
            Unit::SecondShifted(bits) => (count * 1_000_000_000) >> bits,
        };
        let offset = i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(nanos as i128 + offset).ok()
    }
}
