//! Reasons why a frame does not have a requested view: one small enum for all protocols.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// The reason why the bytes do not have the requested view.
        ///
        /// The `Not…` values and [`Malformed::Fragment`] mean a sound frame of another kind than
        /// the requested one; all others mean a frame that contradicts itself, or that this crate
        /// refuses to guess about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Malformed { $($(#[$doc])* $name,)* }

        impl fmt::Display for Malformed {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Malformed::$name => $text,)* })
            }
        }
    };
}

reasons! {
    /// The bytes end before the header does.
    Short = "the frame ends before the header does";
    /// The packet is neither IPv4 nor IPv6.
    NotIp = "neither IPv4 nor IPv6";
    /// The packet is of another protocol than IPv4.
    NotIpv4 = "not IPv4";
    /// The packet is of another protocol than IPv6.
    NotIpv6 = "not IPv6";
    /// The packet is of another protocol than UDP.
    NotUdp = "not UDP";
    /// The packet is of another protocol than TCP.
    NotTcp = "not TCP";
    /// The packet is neither UDP nor TCP.
    NotTransport = "neither UDP nor TCP";
    /// The packet is neither ICMP over IPv4 nor ICMPv6.
    NotIcmp = "not ICMP";
    /// The ICMP message is no error, which would quote a packet.
    NotIcmpError = "not an ICMP error";
    /// The packet is not a neighbour solicitation of IPv6 that a node may answer.
    NotNd = "not a neighbour solicitation to be answered";
    /// The packet is not ARP, or is ARP for other addresses than Ethernet and IPv4.
    NotArp = "not ARP for Ethernet and IPv4";
    /// The message is a reply, or another message that has no reply.
    NotRequest = "not a request";
    /// The packet is one about which no ICMP error may be sent.
    NotAnswered = "not a packet that an ICMP error may answer";
    /// The frame has no VLAN tag.
    NotTagged = "without a VLAN tag";
    /// The packet is in no tunnel of the requested kind.
    NotTunnel = "not in such a tunnel";
    /// A length field that is smaller than its header or larger than the bytes around it.
    BadLength = "a length field contradicts the frame";
    /// A version field that contradicts the EtherType.
    BadVersion = "the IP version contradicts the EtherType";
    /// The packet is a fragment: it does not have the whole transport header and payload.
    Fragment = "a fragment, not a whole datagram";
    /// The packet has more IPv6 extension headers than any sender uses.
    TooManyHeaders = "too many IPv6 extension headers";
    /// A source-routed packet before its last hop: its destination address is an intermediate hop,
    /// and its checksum covers the final address.
    SourceRoute = "its source route does not end here";
    /// A tunnel header has the congestion mark, but the inner packet's transport does not support
    /// ECN.
    Congestion = "congestion mark on a tunnel header around a packet without ECN";
}

impl Malformed {
    /// Returns true for a well-formed packet of another kind than the requested one.
    #[must_use]
    pub const fn is_other_kind(self) -> bool {
        !matches!(
            self,
            Malformed::Short
                | Malformed::BadLength
                | Malformed::BadVersion
                | Malformed::TooManyHeaders
                | Malformed::SourceRoute
                | Malformed::Congestion
        )
    }
}

impl std::error::Error for Malformed {}
