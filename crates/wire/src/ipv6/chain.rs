//! The extension headers of an IPv6 packet, up to the first header that is not one of them.

use crate::{Malformed, Protocol};

/// Most extension headers that are parsed; RFC 8200 section 4.1 lists seven, one of them twice.
const HEADERS_MAX: usize = 8;

/// Properties of all extension headers together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain {
    /// The first protocol number that is not an extension header's.
    pub protocol: Protocol,
    /// True if there is a fragment header.
    pub fragment: bool,
    /// True for a fragment other than the first, which does not begin with a transport header.
    later: bool,
    /// True if a routing header has hops left.
    pub routed: bool,
    /// Bytes from the end of the fixed header to the payload.
    pub(super) len: usize,
}

impl Chain {
    /// Returns the offset of the transport checksum in the payload, if there is one that covers the
    /// addresses.
    pub(super) fn check_at(&self) -> Option<usize> {
        match self.protocol {
            _ if self.later => None,
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

    let mut chain = Chain { protocol: first, fragment: false, later: false, routed: false, len: 0 };
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
                let word = rest.get(2..4).ok_or(end)?;
                // The offset is in the upper 13 bits, the flag "more" in the lowest. If both are 0,
                // this is an atomic fragment, which is a whole packet (RFC 6946).
                let (high, low) = (word[0], word[1] & 0xf9);
                chain.fragment |= (high, low) != (0, 0);
                // After the header of a later fragment there is data, and no further header.
                if (high, low & 0xf8) != (0, 0) {
                    chain.protocol = Protocol(rest[0]);
                    chain.len += 8;
                    chain.later = true;
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
