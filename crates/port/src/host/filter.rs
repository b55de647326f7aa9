//! The packets that a port receives, as options of the port text. `xdp` and `packet` have the same
//! options: `xdp` takes the packets from the kernel's stack, `packet` receives copies.
//!
//! All other packets are the kernel's alone, also those that their first headers do not identify:
//! fragments, IPv6 with extension headers, packets cut short. A VLAN's packets belong to the VLAN's
//! own interface: only `all`, `ethertype=` and `not=` see them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use linerate_skb::Result;

use super::flow::{self, Flow, Protocol};
use crate::spec::Spec;

/// EtherTypes of PPPoE: its discovery and its sessions.
const PPPOE: [u16; 2] = [0x8863, 0x8864];
/// EtherTypes of the tags of VLANs, 802.1Q and 802.1ad.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// EtherTypes of frames that carry the packets of an interface or a route above: MACsec, MPLS (two)
/// and batman-adv; of EAPOL, by which a host logs in at its switch and agrees on MACsec's keys; and
/// of LACP, without which a bond leaves its members unused.
const CARRIERS: [u16; 6] = [0x88e5, 0x8847, 0x8848, 0x4305, 0x888e, 0x8809];

/// A selection of packets that a port receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    /// All packets.
    All,
    /// The matching packets only.
    Only(Match),
    /// All packets except the matching ones.
    Not(Match),
    /// No packets: the port only sends.
    Nothing,
}

/// A property by which packets are selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Match {
    /// Packets of this EtherType.
    Ethertype(u16),
    /// Packets to some ports of UDP or TCP.
    Flow(Flow),
    /// Echo requests and replies of ICMP: the host keeps neighbour discovery, and the errors from
    /// which its TCP learns a path's MTU.
    Icmp,
    /// ARP replies of this address to a probe; only trials of doctor use this filter.
    Answer(Ipv4Addr),
    /// Packets to this address, and ARP and neighbour discovery requests for it.
    To(IpAddr),
}

/// Values and offsets of headers that the programs of a filter read; offsets count from the start
/// of the header that the name begins with.
pub(crate) mod wire {
    /// Ethernet types.
    pub(crate) const TYPE_ARP: u16 = 0x0806;
    pub(crate) const TYPE_IPV4: u16 = 0x0800;
    pub(crate) const TYPE_IPV6: u16 = 0x86dd;
    /// Length of an Ethernet header without a tag.
    pub(crate) const ETHERNET_BYTES: u8 = 14;
    /// Offset of the type in an Ethernet header.
    pub(crate) const ETHERNET_TYPE_AT: u8 = 12;

    /// Length of an IPv4 header without options.
    pub(crate) const IPV4_BYTES_MIN: u8 = 20;
    /// Mask of the header's length, in words of four bytes, in the first byte.
    pub(crate) const IPV4_LENGTH: u8 = 0x0f;
    pub(crate) const IPV4_FRAGMENT_AT: u8 = 6;
    /// Mask of the fragment field: more fragments follow, or this is not the first.
    pub(crate) const IPV4_FRAGMENT: u16 = 0x3fff;
    pub(crate) const IPV4_PROTOCOL_AT: u8 = 9;
    /// Offset of the destination address.
    pub(crate) const IPV4_TO_AT: u8 = 16;

    /// Length of an IPv6 header.
    pub(crate) const IPV6_BYTES: u8 = 40;
    pub(crate) const IPV6_NEXT_AT: u8 = 6;
    /// Offset of the destination address.
    pub(crate) const IPV6_TO_AT: u8 = 24;
    /// Next headers after which anything may follow: hop by hop, routing, fragment, ESP, AH,
    /// destination options, mobility, HIP, shim6.
    pub(crate) const IPV6_EXTENSIONS: [u8; 9] = [0, 43, 44, 50, 51, 60, 135, 139, 140];

    /// Protocol numbers.
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const ICMPV6: u8 = 58;
    /// Types of an echo request and its reply.
    pub(crate) const ICMP_ECHO: [u8; 2] = [8, 0];
    pub(crate) const ICMPV6_ECHO: [u8; 2] = [128, 129];
    /// Type of a neighbour solicitation.
    pub(crate) const ICMPV6_SOLICITATION: u8 = 135;
    /// Length of the header of an ICMP or ICMPv6 message.
    pub(crate) const ICMPV6_BYTES: u8 = 8;
    /// Offset of the requested address in a neighbour solicitation.
    pub(crate) const ICMPV6_TARGET_AT: u8 = 8;
    /// Length of a neighbour solicitation without options.
    pub(crate) const ICMPV6_SOLICITATION_BYTES: u8 = 24;

    /// Length of an ARP packet for IPv4.
    pub(crate) const ARP_BYTES: u8 = 28;
    pub(crate) const ARP_OP_AT: u8 = 6;
    pub(crate) const ARP_REPLY: u16 = 2;
    /// Offset of the sender's IP address.
    pub(crate) const ARP_SENDER_AT: u8 = 14;
    /// Offset of the requested IP address.
    pub(crate) const ARP_TARGET_AT: u8 = 24;

    /// Length of the two ports with which the headers of UDP and TCP begin.
    pub(crate) const PORTS_BYTES: u8 = 4;
    /// Offset of the destination port.
    pub(crate) const PORTS_TO_AT: u8 = 2;
}

impl Filter {
    /// Parses `all`, `arp`, `icmp`, `dst=10.0.0.9`, `ethertype=0x88b5`, `udp=7777`, `tcp=80+443`
    /// and `not=tcp:22` of a port text; returns `None` if it has none of them.
    pub fn of(spec: &Spec) -> Result<Option<Filter>> {
        Filter::one(spec, Filter::all_of(spec)?)
    }

    /// Parses the filter of a port that takes its packets from the host. `all` may stand beside a
    /// filter that takes what a host may need ([`Filter::needs_permission`]); the second value is true if it
    /// does, or stands alone.
    pub fn with_permission(spec: &Spec) -> Result<(Option<Filter>, bool)> {
        let mut found = Filter::all_of(spec)?;
        let is_permitted = found.first() == Some(&Filter::All);
        if is_permitted && found.get(1).is_some_and(Filter::needs_permission) {
            found.remove(0);
        }
        Ok((Filter::one(spec, found)?, is_permitted))
    }

    /// Returns the filters of a port text, `all` first.
    fn all_of(spec: &Spec) -> Result<Vec<Filter>> {
        let mut found = Vec::new();
        if spec.flag("all")? {
            found.push(Filter::All);
        }
        for key in ["arp", "icmp"] {
            if spec.flag(key)? {
                found.extend(Match::parse(key, "").map(Filter::Only));
            }
        }
        for key in ["answer", "dst", "ethertype", Protocol::Udp.key(), Protocol::Tcp.key()] {
            if let Some(one) = spec.value(key, |text| Match::parse(key, text))? {
                found.push(Filter::Only(one));
            }
        }
        let not = |text: &str| {
            let (key, value) = text.split_once(':').unwrap_or((text, ""));
            Match::parse(key, value)
        };
        if let Some(one) = spec.value("not", not)? {
            found.push(Filter::Not(one));
        }
        Ok(found)
    }

    /// Returns the filter if there is no second one.
    fn one(spec: &Spec, mut found: Vec<Filter>) -> Result<Option<Filter>> {
        if let [one, other, ..] = &found[..] {
            let why = format!("{one} and {other} at once");
            return Err(spec
                .error(&why)
                .fix("one of all, arp, icmp, dst=, ethertype=, udp=, tcp=, not="));
        }
        Ok(found.pop())
    }
}

impl Filter {
    /// Returns the UDP or TCP ports that this port reserves on this machine, if there are some.
    pub fn flow(&self) -> Option<&Flow> {
        match self {
            Filter::Only(Match::Flow(flow)) => Some(flow),
            _ => None,
        }
    }

    /// Returns true if all frames that the filter selects are addressed to the host's MAC. A filter
    /// by address is no such filter, because an address may have another MAC.
    pub fn is_of_a_host(&self) -> bool {
        matches!(self, Filter::Only(Match::Flow(_) | Match::Icmp | Match::Answer(_)))
    }

    /// Returns true if the filter also selects packets without which a host cannot be reached: ARP,
    /// all packets of IP, frames that carry packets of IP, or the packets to a group, which may be
    /// solicitations.
    pub fn cuts_off(&self) -> bool {
        match self {
            Filter::All | Filter::Not(_) => true,
            Filter::Only(Match::Ethertype(n)) => {
                [wire::TYPE_ARP, wire::TYPE_IPV4, wire::TYPE_IPV6].contains(n)
                    || CARRIERS.contains(n)
            }
            Filter::Only(Match::To(to)) => is_shared(*to),
            Filter::Only(_) | Filter::Nothing => false,
        }
    }

    /// Returns true if the filter selects packets without which a host may not be reached.
    pub fn needs_permission(&self) -> bool {
        self.cuts_off() || self.takes_sessions() || self.takes_tagged()
    }

    /// Returns true if the filter selects the packets of PPPoE, without which a host cannot be
    /// reached that has a session of it.
    pub fn takes_sessions(&self) -> bool {
        matches!(self, Filter::Only(Match::Ethertype(n)) if PPPOE.contains(n))
    }

    /// Returns true if the filter selects all packets with a VLAN's tag, without which a host cannot
    /// be reached whose addresses are on a VLAN.
    pub fn takes_tagged(&self) -> bool {
        matches!(self, Filter::Only(Match::Ethertype(n)) if TAGS.contains(n))
    }

    /// Returns the text of the filter if it selects some packets and not others; otherwise an empty
    /// text.
    pub fn chosen(&self) -> String {
        match self {
            Filter::All | Filter::Nothing => String::new(),
            some => some.to_string(),
        }
    }

    /// Describes the packets that are taken from the kernel's stack.
    pub fn diverts(&self) -> String {
        match self {
            Filter::All => "diverts every packet".into(),
            Filter::Only(one) => format!("diverts {one}"),
            Filter::Not(one) => format!("diverts every packet but {one}"),
            Filter::Nothing => "takes nothing in".into(),
        }
    }
}

impl Match {
    fn parse(key: &str, text: &str) -> std::result::Result<Match, String> {
        match key {
            "ethertype" => ethertype(text).map(Match::Ethertype),
            "udp" => flow_to(Protocol::Udp, text),
            "tcp" => flow_to(Protocol::Tcp, text),
            "dst" => text
                .parse()
                .map(Match::To)
                .map_err(|_| "an IP address, as 10.0.0.9 or fd00::9".into()),
            "answer" => {
                text.parse().map(Match::Answer).map_err(|_| "an IPv4 address, as 10.0.0.9".into())
            }
            "arp" if text.is_empty() => Ok(Match::Ethertype(wire::TYPE_ARP)),
            "icmp" if text.is_empty() => Ok(Match::Icmp),
            _ => Err("as tcp:22, udp:53, dst:10.0.0.9, ethertype:0x0806, arp, icmp".into()),
        }
    }
}

fn ethertype(text: &str) -> std::result::Result<u16, String> {
    let digits = text.strip_prefix("0x").ok_or("as 0x88b5")?;
    match u16::from_str_radix(digits, 16) {
        Ok(n) if n >= 0x600 => Ok(n),
        _ => Err("0x0600 to 0xffff; a smaller number is a length".into()),
    }
}

/// Returns true for an address that is not of one host alone: a group's, the broadcast address, or
/// the unspecified one.
fn is_shared(to: IpAddr) -> bool {
    let is_broadcast = matches!(to, IpAddr::V4(to) if to.is_broadcast());
    is_broadcast || to.is_multicast() || to.is_unspecified()
}

fn flow_to(protocol: Protocol, text: &str) -> std::result::Result<Match, String> {
    flow::ports(text).map(|ports| Match::Flow(Flow { protocol, ports }))
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::All => f.write_str("all"),
            Filter::Only(one) => write!(f, "{one}"),
            // `not=` has its own form, `not=tcp:22`: replace the first `=` by a colon.
            Filter::Not(one) => write!(f, "not={}", one.to_string().replacen('=', ":", 1)),
            Filter::Nothing => f.write_str("write"),
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Ethertype(n) => write!(f, "ethertype={n:#06x}"),
            Match::Flow(flow) => write!(f, "{flow}"),
            Match::Icmp => f.write_str("icmp"),
            Match::Answer(addr) => write!(f, "answer={addr}"),
            Match::To(addr) => write!(f, "dst={addr}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn all_stands_beside_a_filter_only_if_that_takes_what_a_host_needs() {
        let of = |words: &str| {
            let (filter, is_permitted) =
                Filter::with_permission(&parse(&format!("xdp:v0{words}")).unwrap()).ok()?;
            Some((filter.map_or(String::new(), |filter| filter.to_string()), is_permitted))
        };
        for (words, filter, is_permitted) in [
            ("", "", false),
            (",all", "all", true),
            (",not=tcp:22", "not=tcp:22", false),
            (",not=tcp:22,all", "not=tcp:22", true),
            (",all,arp", "ethertype=0x0806", true),
            (",all,ethertype=0x8864", "ethertype=0x8864", true),
            (",all,ethertype=0x8100", "ethertype=0x8100", true),
            (",all,ethertype=0x88e5", "ethertype=0x88e5", true),
            (",all,dst=ff02::1", "dst=ff02::1", true),
            (",dst=ff02::1", "dst=ff02::1", false),
            (",ethertype=0x88a8", "ethertype=0x88a8", false),
            (",udp=7777", "udp=7777", false),
        ] {
            assert_eq!(of(words), Some((filter.to_owned(), is_permitted)), "{words}");
        }
        for words in
            [",all,udp=7777", ",all,ethertype=0x88b5", ",all,arp,not=tcp:22", ",all,dst=10.0.0.9"]
        {
            assert_eq!(of(words), None, "{words}");
        }
    }

    #[test]
    fn frames_that_carry_packets_and_packets_to_a_group_need_permission() {
        let needs = |words: &str| {
            let spec = parse(&format!("xdp:v0,{words}")).unwrap();
            Filter::of(&spec).unwrap().unwrap().needs_permission()
        };
        for words in [
            "ethertype=0x88e5",
            "ethertype=0x8847",
            "ethertype=0x8848",
            "ethertype=0x4305",
            "ethertype=0x888e",
            "ethertype=0x8809",
            "dst=ff02::1",
            "dst=ff02::1:ff00:1",
            "dst=224.0.0.1",
            "dst=255.255.255.255",
            "dst=0.0.0.0",
            "dst=::",
            "not=dst:ff02::1",
        ] {
            assert!(needs(words), "{words}");
        }
        for words in ["ethertype=0x88b5", "dst=10.0.0.9", "dst=10.0.0.255", "dst=fd00::9"] {
            assert!(!needs(words), "{words}");
        }
    }

    #[test]
    fn a_filter_is_printed_as_it_is_written() {
        let of = |words: &str| Filter::of(&parse(&format!("xdp:v0{words}")).unwrap());
        for words in [
            "all",
            "ethertype=0x88b5",
            "udp=53+7777",
            "tcp=80",
            "icmp",
            "dst=10.0.0.9",
            "answer=10.0.0.9",
            "not=tcp:22+80",
            "not=icmp",
            "not=dst:fd00::9",
        ] {
            assert_eq!(of(&format!(",{words}")).unwrap().unwrap().to_string(), words);
        }
        assert_eq!(of(",arp").unwrap(), of(",ethertype=0x0806").unwrap());
        assert_eq!(of("").unwrap(), None);
        let not = of(",not=ethertype:0x0806").unwrap().unwrap();
        assert_eq!(not.to_string(), "not=ethertype:0x0806");
        assert_eq!(not.diverts(), "diverts every packet but ethertype=0x0806");
        for bad in [
            "udp=0",
            "udp=",
            "not=22",
            "not=all:1",
            "ethertype=88b5",
            "ethertype=0x05ff",
            "dst=ten",
            "not=dst",
            "not=arp:1",
            "icmp=8",
        ] {
            assert!(of(&format!(",{bad}")).is_err(), "{bad}");
        }
        assert!(of(",udp=1,not=tcp:2").unwrap_err().why.contains("udp=1 and not=tcp:2 at once"));
        let mac = of(",dst=02:00:00:00:00:01").unwrap_err();
        assert!(mac.why.ends_with("an IP address, as 10.0.0.9 or fd00::9"), "{mac}");
        assert!(of(",all,tcp=1").is_err());
        assert!(of(",udp=53,tcp=53").unwrap_err().why.contains("udp=53 and tcp=53 at once"));
        let flow = |words| of(words).unwrap().unwrap().flow().is_some();
        assert!(flow(",udp=1") && !flow(",not=udp:1"));
    }
}
