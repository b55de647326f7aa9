//! The extension headers of an IPv6 packet, up to the first header that is not one of them.

use crate::{Malformed, Protocol};

/// Most extension headers that are parsed; RFC 8200 section 4.1 lists seven, one of them twice.
const HEADERS_MAX: usize = 8;

/// The fragment header of an IPv6 packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the fragment's payload in the datagram. Only at offset 0 is a transport header.
    pub offset_bytes: usize,
    /// True if further fragments of the datagram follow this one.
    pub more: bool,
    /// The identification that fragments of one datagram share.
    pub ident: u32,
}

impl Fragment {
    /// Returns true if this is the only fragment of its datagram (RFC 6946).
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        self.offset_bytes == 0 && !self.more
    }

    /// Reads the eight bytes of the header, which begin with the number of the next one.
    ///
    /// Source: RFC 8200 section 4.5.
    fn read(header: [u8; 8]) -> Fragment {
        let [_, _, high, low, ident @ ..] = header;
        Fragment {
            offset_bytes: usize::from(u16::from_be_bytes([high, low & 0xf8])),
            more: low & 1 != 0,
            ident: u32::from_be_bytes(ident),
        }
    }
}

/// Properties of all extension headers together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain {
    /// The first protocol number that is not an extension header's.
    pub protocol: Protocol,
    /// The fragment header, if there is one: the last one that is not atomic, or else the last one.
    pub fragment: Option<Fragment>,
    /// True if a routing header has hops left.
    pub routed: bool,
    /// Bytes from the end of the fixed header to the payload.
    pub(super) len: usize,
}

impl Chain {
    /// Returns true for a fragment of a datagram that has several.
    pub fn is_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| !fragment.is_atomic())
    }

    /// Returns true for a fragment other than the first, which does not begin with a transport
    /// header.
    pub fn is_later(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.offset_bytes > 0)
    }

    /// Returns the offset of the transport checksum in the payload, if there is one that covers the
    /// addresses.
    pub(super) fn check_at(&self) -> Option<usize> {
        match self.protocol {
            _ if self.is_later() => None,
            Protocol::UDP => Some(6),
            Protocol::TCP => Some(16),
            Protocol::ICMPV6 => Some(2),
            _ => None,
        }
    }
}

pub(super) fn walk(first: Protocol, bytes: &[u8], end: Malformed) -> Result<Chain, Malformed> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    const MOBILITY: u8 = 135;
    const HOST_IDENTITY: u8 = 139;
    const SHIM6: u8 = 140;

    let mut chain = Chain { protocol: first, fragment: None, routed: false, len: 0 };
    for _ in 0..=HEADERS_MAX {
        let rest = bytes.get(chain.len..).ok_or(end)?;
        let units = |unit: usize, extra: usize| {
            rest.get(1).map(|&n| (usize::from(n) + extra) * unit).ok_or(end)
        };
        let len = match chain.protocol.0 {
            HOP_BY_HOP | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6 => units(8, 1)?,
            AUTHENTICATION => units(4, 2)?,
            ROUTING => {
                let &segments_left = rest.get(3).ok_or(end)?;
                chain.routed |= segments_left != 0;
                units(8, 1)?
            }
            FRAGMENT => {
                let header = *rest.first_chunk().ok_or(end)?;
                let fragment = Fragment::read(header);
                if !chain.is_fragment() || !fragment.is_atomic() {
                    chain.fragment = Some(fragment);
                }
                // After the header of a later fragment there is data, and no further header.
                if fragment.offset_bytes > 0 {
                    chain.protocol = Protocol(header[0]);
                    chain.len += 8;
                    return Ok(chain);
                }
                8
            }
            _ => return Ok(chain),
        };
        chain.protocol = Protocol(rest[0]);
        chain.len += len;
    }
    Err(Malformed::TooManyHeaders)
}
