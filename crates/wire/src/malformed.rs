//! Reasons why a frame has no such view: one small enum for every protocol.

use std::fmt;

/// The reason why the bytes do not have the requested view.
///
/// The `Not…` values mean a sound frame of another protocol; all others mean a frame that
/// contradicts itself, or that this crate refuses to guess about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end before the header does.
    Short,
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// Another protocol than IPv4.
    NotIpv4,
    /// Another protocol than IPv6.
    NotIpv6,
    /// Another protocol than UDP.
    NotUdp,
    /// Another protocol than TCP.
    NotTcp,
    /// Another protocol than ARP, or ARP for other addresses than Ethernet and IPv4.
    NotArp,
    /// A length field that is smaller than its header or larger than the bytes around it.
    BadLength,
    /// A version field that contradicts the EtherType.
    BadVersion,
    /// A piece of a datagram: the transport header and payload are not whole in this frame.
    Fragment,
    /// More IPv6 extension headers than anyone sends.
    TooManyHeaders,
    /// Still under way by source route: its destination is not the one its checksum covers.
    SourceRoute,
}

impl Malformed {
    /// Returns the reason as a short word for counters and logs: `bad_length`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Malformed::Short => "short",
            Malformed::NotIp => "not_ip",
            Malformed::NotIpv4 => "not_ipv4",
            Malformed::NotIpv6 => "not_ipv6",
            Malformed::NotUdp => "not_udp",
            Malformed::NotTcp => "not_tcp",
            Malformed::NotArp => "not_arp",
            Malformed::BadLength => "bad_length",
            Malformed::BadVersion => "bad_version",
            Malformed::Fragment => "fragment",
            Malformed::TooManyHeaders => "too_many_headers",
            Malformed::SourceRoute => "source_route",
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Short => "the frame ends before the header does",
            Malformed::NotIp => "neither IPv4 nor IPv6",
            Malformed::NotIpv4 => "not IPv4",
            Malformed::NotIpv6 => "not IPv6",
            Malformed::NotUdp => "not UDP",
            Malformed::NotTcp => "not TCP",
            Malformed::NotArp => "not ARP for Ethernet and IPv4",
            Malformed::BadLength => "a length field contradicts the frame",
            Malformed::BadVersion => "the IP version contradicts the EtherType",
            Malformed::Fragment => "a fragment, not a whole datagram",
            Malformed::TooManyHeaders => "too many IPv6 extension headers",
            Malformed::SourceRoute => "still under way by source route",
        })
    }
}

impl std::error::Error for Malformed {}
