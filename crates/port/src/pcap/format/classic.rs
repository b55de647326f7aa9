//! Classic pcap: one file header, then records.
//!
//! ```text
//! file:    | magic 4 | major 2, minor 2 | zone 4 | sigfigs 4 | snaplen 4 | link type 4 |
//! record:  | seconds 4 | fraction 4 | captured 4 | original 4 | captured bytes |
//! ```
//!
//! Source: draft-ietf-opsawg-pcap sections 4 and 5. Zone and significant figures are always zero
//! in practice, and ignored as libpcap does. The snapshot length is ignored, too: some programs
//! write longer packets. Of the link type, the upper half tells about a frame check sequence at the
//! end of the packets; such files are read with it left on.

use std::io::Read;

use super::input::{Input, Order};
use super::reader::{LinkType, PacketRecord};
use super::{CaptureError, Fault, PACKET_LEN_MAX};

#[derive(Debug)]
pub struct Classic {
    order: Order,
    /// Nanoseconds in one unit of the time's fraction.
    unit_ns: u32,
    link_type: LinkType,
}

impl Classic {
    /// Returns the byte order, and true if fractions are nanoseconds; `None` if `magic` is not of
    /// this format.
    pub fn detect(magic: [u8; 4]) -> Option<(Order, bool)> {
        const MICROS: u32 = 0xa1b2_c3d4;
        const NANOS: u32 = 0xa1b2_3c4d;
        [Order::Little, Order::Big].into_iter().find_map(|order| match order.u32(magic) {
            MICROS => Some((order, false)),
            NANOS => Some((order, true)),
            _ => None,
        })
    }

    /// Reads the rest of the header, after the magic.
    pub fn open<R: Read>(
        input: &mut Input<R>,
        order: Order,
        nanos: bool,
    ) -> Result<Self, CaptureError> {
        let [version, _zone, _sigfigs, _snaplen, link] = order.u32s(input.words()?);
        let (major, minor) = order.halves(version);
        if (major, minor) != (2, 4) {
            return Err(input.error(Fault::Version { major, minor }));
        }
        Ok(Classic {
            order,
            unit_ns: if nanos { 1 } else { 1000 },
            link_type: LinkType(link as u16),
        })
    }

    pub fn next<R: Read>(
        &self,
        input: &mut Input<R>,
    ) -> Result<Option<PacketRecord>, CaptureError> {
        let Some(header) = input.start()? else { return Ok(None) };
        let [seconds, fraction, len, orig_len] = self.order.u32s(header);
        if len as usize > PACKET_LEN_MAX {
            let (len, max) = (len.into(), PACKET_LEN_MAX as u64);
            return Err(input.error(Fault::PacketTooLong { len, max }));
        }
        if fraction >= 1_000_000_000 / self.unit_ns {
            return Err(input.error(Fault::Fraction(fraction)));
        }
        let data = input.take(len as usize)?;
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction * self.unit_ns);
        Ok(Some(PacketRecord {
            interface: 0,
            time_ns: Some(time_ns),
            orig_len,
            link_type: self.link_type,
            data,
        }))
    }
}
