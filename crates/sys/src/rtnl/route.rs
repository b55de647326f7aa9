//! The route to an address through an interface, and the neighbour that is the next hop.
//!
//! ```text
//!   192.0.2.7 ──► RTM_GETROUTE, out of eth0 ──► next hop, source address
//!                    └── RTM_GETNEIGH ──► MAC address; unknown: a datagram makes the kernel ask
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{ATTRIBUTE_BYTES, Answer, ask, attributes, u16_at, u32_at};
use crate::error::{Code, Error, Result};
use crate::netif::{IfName, Interface};
use crate::wait::poll_readable;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
/// Bytes of `struct rtmsg`, and of `struct ndmsg`.
const ROUTE_BYTES: usize = 12;
const NEIGHBOUR_BYTES: usize = 12;
const ROUTE_TYPE_AT: usize = 7;
const ROUTE_FLAGS_AT: usize = 8;
/// Flag of a request for the table in which the route was found.
const RTM_F_LOOKUP_TABLE: u32 = 0x1000;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_ANYCAST: u8 = 4;
const RTN_MULTICAST: u8 = 5;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const NEIGHBOUR_STATE_AT: usize = 8;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_FAILED: u16 = 0x20;
/// States of a neighbour to which the kernel would send: reachable, stale, delay, probe, no ARP,
/// permanent.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// The port of the discard service, which ignores what it receives: RFC 863.
const DISCARD_PORT: u16 = 9;
/// Longest wait for a neighbour: the kernel sends three requests, a second apart, by default.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval of checks whether the neighbour has answered.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The route of packets to an address through an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    to: IpAddr,
    /// The next hop; `None` for multicast and broadcast.
    hop: Option<IpAddr>,
    /// The source address, if the interface has one.
    pub src: Option<IpAddr>,
}

impl Route {
    /// Queries the kernel's route to `to` through `interface`.
    ///
    /// For an IPv4 address without a route the kernel answers that the address is on the link of
    /// `interface`: a guess, which counts as no route.
    ///
    /// # Errors
    /// `E-SYSTEM` if it has none, or if the address is this machine's own.
    ///
    /// Source: net/ipv4/route.c, `ip_route_output_key_hash_rcu`.
    pub fn of(interface: &Interface, to: IpAddr) -> Result<Route> {
        Route::found(interface, to, false)
    }

    /// Queries the route as [`Route::of`] does, but takes a guess, too: for a sender that knows the
    /// MAC address of the next hop, and needs its own address only.
    ///
    /// # Errors
    /// As [`Route::of`].
    pub fn or_guess(interface: &Interface, to: IpAddr) -> Result<Route> {
        Route::found(interface, to, true)
    }

    fn found(interface: &Interface, to: IpAddr, may_guess: bool) -> Result<Route> {
        let name = interface.name();
        let what = format!("cannot find a route to {to} through {name}");
        let mut body = vec![0; ROUTE_BYTES];
        body[..2].copy_from_slice(&[family(to), if to.is_ipv4() { 32 } else { 128 }]);
        if to.is_ipv4() {
            let flags = RTM_F_LOOKUP_TABLE.to_ne_bytes();
            body[ROUTE_FLAGS_AT..ROUTE_FLAGS_AT + 4].copy_from_slice(&flags);
        }
        put(&mut body, RTA_DST, &octets(to));
        put(&mut body, RTA_OIF, &interface.index().to_ne_bytes());
        let answer = ask(RTM_GETROUTE, RTM_NEWROUTE, &body);
        let answer =
            answer.and_then(|answer| match !may_guess && to.is_ipv4() && is_guess(&answer) {
                true => Err(Errno::NETUNREACH),
                false => Ok(answer),
            });
        let answer = answer.map_err(|e| {
            let fix = format!("ip route add {to} dev {name}, or via GATEWAY; or add mac=MAC");
            Error::os(Code::System, &what, "RTM_GETROUTE", e).fix(fix)
        })?;
        let (kind, route) = read_route(to, &answer);
        if kind.is_some_and(|kind| matches!(kind, RTN_UNICAST | RTN_BROADCAST | RTN_MULTICAST)) {
            return Ok(route);
        }
        Err(Error::new(Code::System, what, why_not(kind)).fix("use an address of the other end"))
    }

    /// Returns the MAC address of the next hop. If the kernel does not know it, sends the hop an
    /// empty datagram to port 9 (discard), which makes the kernel request it.
    ///
    /// # Errors
    /// `E-SYSTEM` if it does not answer within five seconds.
    pub fn mac(&self, interface: &Interface) -> Result<[u8; 6]> {
        let Some(hop) = self.hop else { return Ok(group_mac(self.to)) };
        let name = interface.name();
        let what =
            format!("cannot find the MAC address of {hop}, the next hop to {} by {name}", self.to);
        let deadline = Instant::now() + PATIENCE;
        let mut asked = false;
        loop {
            let (state, mac) = neighbour(interface, hop)
                .map_err(|e| Error::os(Code::System, &what, "RTM_GETNEIGH", e))?;
            if let Some(mac) = mac.filter(|_| state & NUD_VALID != 0) {
                return Ok(mac);
            }
            if asked && (state & NUD_FAILED != 0 || Instant::now() > deadline) {
                return Err(silent(what, name, hop));
            }
            if !asked {
                provoke(interface, hop).map_err(|e| {
                    let why = format!("the request cannot be sent: {e}");
                    Error::new(Code::System, &what, why).fix("add mac=MAC if you know the address")
                })?;
                asked = true;
            }
            let _ = poll_readable(&[], Some(CHECK_INTERVAL));
        }
    }
}

/// Returns the reason why a route of type `kind` is of no use.
fn why_not(kind: Option<u8>) -> String {
    let kind = match kind {
        Some(RTN_LOCAL) => {
            return "the address belongs to this machine: packets sent through an interface do not \
                    reach it"
                .to_owned();
        }
        Some(RTN_ANYCAST) => "anycast".to_owned(),
        Some(kind) => kind.to_string(),
        None => "unknown".to_owned(),
    };
    format!("the kernel's route to it has type {kind}: not unicast, broadcast or multicast")
}

fn silent(what: String, name: IfName, hop: IpAddr) -> Error {
    let protocol = if hop.is_ipv4() { "ARP" } else { "neighbour discovery" };
    Error::new(Code::System, what, format!("no answer to {protocol} on the link")).fix(format!(
        "ping {hop} shows whether it is up; ip route get {hop} oif {name} shows the route, \
             which may lack a gateway; add mac=MAC if you know the address"
    ))
}

/// Sends an empty datagram to the hop, so that the kernel requests its MAC address.
fn provoke(interface: &Interface, hop: IpAddr) -> std::io::Result<()> {
    let any: IpAddr = match hop {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let to = match hop {
        IpAddr::V4(hop) => SocketAddr::from((hop, DISCARD_PORT)),
        // A link-local address is valid on this interface only.
        IpAddr::V6(hop) => SocketAddrV6::new(hop, DISCARD_PORT, 0, interface.index()).into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    interface.bind(&socket)?;
    socket.send_to(&[], to).map(drop)
}

/// Returns the kernel's entry for a neighbour: its state and MAC address.
fn neighbour(interface: &Interface, hop: IpAddr) -> Answer<(u16, Option<[u8; 6]>)> {
    let mut body = vec![0; NEIGHBOUR_BYTES];
    body[0] = family(hop);
    body[4..8].copy_from_slice(&interface.index().to_ne_bytes());
    put(&mut body, NDA_DST, &octets(hop));
    match ask(RTM_GETNEIGH, RTM_NEWNEIGH, &body) {
        Ok(answer) => Ok(read_neighbour(&answer)),
        Err(Errno::NOENT) => Ok((0, None)),
        Err(e) => Err(e),
    }
}

/// Parses the body of an answer: the kind of the route, and the route.
fn read_route(to: IpAddr, answer: &[u8]) -> (Option<u8>, Route) {
    let kind = answer.get(ROUTE_TYPE_AT).copied();
    let mut route = Route { to, hop: Some(to), src: None };
    for (attribute, value) in attributes(answer.get(ROUTE_BYTES..).unwrap_or_default()) {
        match attribute {
            RTA_GATEWAY => route.hop = address(value).or(route.hop),
            // The value is a family, then the address: the gateway has the other IP version.
            RTA_VIA => route.hop = value.get(2..).and_then(address).or(route.hop),
            RTA_PREFSRC => route.src = address(value).filter(|src| !src.is_unspecified()),
            _ => {}
        }
    }
    if kind != Some(RTN_UNICAST) {
        route.hop = None;
    }
    (kind, route)
}

/// Returns true if the answer about an IPv4 address is of no table: the kernel has found no route.
/// An answer about a group or a broadcast is of no table, too, and is none that was guessed.
fn is_guess(answer: &[u8]) -> bool {
    let mut rest = attributes(answer.get(ROUTE_BYTES..).unwrap_or_default());
    let table = rest.find(|(kind, _)| *kind == RTA_TABLE).and_then(|(_, table)| u32_at(table, 0));
    answer.get(ROUTE_TYPE_AT) == Some(&RTN_UNICAST) && table == Some(0)
}

fn read_neighbour(answer: &[u8]) -> (u16, Option<[u8; 6]>) {
    let state = u16_at(answer, NEIGHBOUR_STATE_AT).unwrap_or(0);
    let mut found = attributes(answer.get(NEIGHBOUR_BYTES..).unwrap_or_default());
    let mac = found.find(|(kind, _)| *kind == NDA_LLADDR);
    (state, mac.and_then(|(_, mac)| mac.try_into().ok()))
}

/// Returns the MAC address that a multicast or broadcast address maps to.
///
/// Source: RFC 1112 section 6.4, RFC 2464 section 7.
fn group_mac(to: IpAddr) -> [u8; 6] {
    match to {
        IpAddr::V4(to) if to.is_multicast() => {
            let [_, b, c, d] = to.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V4(_) => [0xff; 6],
        IpAddr::V6(to) => {
            let [.., a, b, c, d] = to.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => u32_at(value, 0).map(|bits| Ipv4Addr::from(bits.to_ne_bytes()).into()),
        16 => <[u8; 16]>::try_from(value).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

fn family(of: IpAddr) -> u8 {
    if of.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}

fn octets(of: IpAddr) -> Vec<u8> {
    match of {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// Appends an attribute whose value is a multiple of four bytes long.
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{in_netns, ip};

    /// Returns an interface with addresses of both versions, whose other end does not answer.
    fn interface() -> Interface {
        ip("link add v0 type veth peer name v1");
        for end in ["v0", "v1"] {
            ip(&format!("link set dev {end} up"));
        }
        ip("addr add 10.0.0.1/24 dev v0");
        ip("-6 addr add fd00::1/64 dev v0 nodad");
        for file in ["ipv4/neigh/v0/mcast_solicit", "ipv6/neigh/v0/mcast_solicit"] {
            std::fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
        }
        for file in ["ipv4/neigh/v0/retrans_time_ms", "ipv6/neigh/v0/retrans_time_ms"] {
            std::fs::write(format!("/proc/sys/net/{file}"), "20").unwrap();
        }
        Interface::open("v0").unwrap()
    }

    fn route(interface: &Interface, to: &str) -> Result<Route> {
        Route::of(interface, to.parse().unwrap())
    }

    #[test]
    fn a_way_has_its_next_hop_and_its_source() {
        in_netns(|| {
            let v0 = interface();
            ip("route add 192.0.2.0/24 via 10.0.0.9 dev v0");
            ip("-6 route add 2001:db8::/32 via fe80::9 dev v0");
            ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev v0");
            ip("-6 neigh add fe80::9 lladdr 02:00:00:00:00:0a dev v0");
            ip("-6 neigh add fd00::7 lladdr 02:00:00:00:00:0b dev v0");
            for (to, hop, src, mac) in [
                ("192.0.2.7", "10.0.0.9", "10.0.0.1", 0x9),
                ("10.0.0.9", "10.0.0.9", "10.0.0.1", 0x9),
                ("2001:db8::7", "fe80::9", "fd00::1", 0xa),
                ("fd00::7", "fd00::7", "fd00::1", 0xb),
            ] {
                let route = route(&v0, to).unwrap();
                assert_eq!(route.hop, Some(hop.parse().unwrap()), "{to}");
                assert_eq!(route.src, Some(src.parse().unwrap()), "{to}");
                assert_eq!(route.mac(&v0).unwrap(), [2, 0, 0, 0, 0, mac], "{to}");
            }
        });
    }

    #[test]
    fn groups_and_everyone_need_no_answer() {
        in_netns(|| {
            let v0 = interface();
            for (to, mac) in [
                ("239.129.2.3", [0x01, 0x00, 0x5e, 1, 2, 3]),
                ("10.0.0.255", [0xff; 6]),
                ("ff02::1:2", [0x33, 0x33, 0, 1, 0, 2]),
            ] {
                assert_eq!(route(&v0, to).unwrap().mac(&v0).unwrap(), mac, "{to}");
            }
        });
    }

    #[test]
    fn a_neighbour_that_never_answers_is_said_with_what_to_do() {
        in_netns(|| {
            let v0 = interface();
            for (to, protocol) in [("10.0.0.5", "ARP"), ("fd00::5", "neighbour discovery")] {
                let e = route(&v0, to).unwrap().mac(&v0).unwrap_err();
                if to.contains(':') && e.why.contains("Address family not supported") {
                    eprintln!("skipped in part: there is no IPv6: {e}");
                    continue;
                }
                assert!(e.why.contains("no answer") && e.why.contains(protocol), "{e}");
                assert!(e.what.contains(to) && e.fix.contains("mac="), "{e}");
            }
        });
    }

    #[test]
    fn an_address_that_no_packet_can_reach_is_refused() {
        in_netns(|| {
            let v0 = interface();
            let e = route(&v0, "10.0.0.1").unwrap_err();
            assert!(e.why.contains("belongs to this machine"), "{e}");
            for no_route in ["2001:db8::1", "192.0.2.7"] {
                let e = route(&v0, no_route).unwrap_err();
                assert!(e.why.contains("unreachable") && e.fix.contains("ip route add"), "{e}");
            }
            let guess = Route::or_guess(&v0, "192.0.2.7".parse().unwrap()).unwrap();
            assert_eq!(
                guess.src,
                Some([10, 0, 0, 1].into()),
                "enough for who knows the MAC address"
            );
            // A route of another table than the main one counts, if a rule leads to it.
            ip("route add 192.0.2.0/24 via 10.0.0.9 dev v0 table 100");
            assert!(route(&v0, "192.0.2.7").is_err(), "no rule leads to it");
            ip("rule add to 192.0.2.0/24 table 100");
            assert_eq!(route(&v0, "192.0.2.7").unwrap().hop, Some([10, 0, 0, 9].into()));
        });
    }

    #[test]
    fn only_an_answer_of_no_table_about_one_station_is_a_guess() {
        let answer = |kind: u8, table: &[u8]| {
            let mut answer = vec![0; ROUTE_BYTES];
            answer[ROUTE_TYPE_AT] = kind;
            put(&mut answer, RTA_TABLE, table);
            answer
        };
        assert!(is_guess(&answer(RTN_UNICAST, &[0; 4])));
        assert!(!is_guess(&answer(RTN_UNICAST, &254_u32.to_ne_bytes())));
        assert!(!is_guess(&answer(RTN_MULTICAST, &[0; 4])));
        assert!(!is_guess(&answer(RTN_BROADCAST, &[0; 4])));
        let guess = answer(RTN_UNICAST, &[0; 4]);
        assert!((0..guess.len()).all(|len| !is_guess(&guess[..len])), "a part is no guess");
    }

    #[test]
    fn only_a_local_route_is_said_to_lead_to_this_machine() {
        for kind in (0..=16).map(Some).chain([None]) {
            let said = why_not(kind).contains("belongs to this machine");
            assert_eq!(said, kind == Some(RTN_LOCAL), "{kind:?}");
        }
    }

    #[test]
    fn answers_cut_off_are_read_without_panic() {
        let mut answer = vec![0; ROUTE_BYTES];
        answer[ROUTE_TYPE_AT] = RTN_UNICAST;
        put(&mut answer, RTA_VIA, &[10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0]);
        put(&mut answer, RTA_GATEWAY, &[10, 0, 0, 9]);
        put(&mut answer, NDA_LLADDR, &[2; 8]);
        let to = IpAddr::from([192, 0, 2, 7]);
        for cut in 0..answer.len() {
            let _ = (read_route(to, &answer[..cut]), read_neighbour(&answer[..cut]));
        }
        assert_eq!(read_route(to, &answer).1.hop, Some(IpAddr::from([10, 0, 0, 9])));
        assert_eq!(read_neighbour(&answer).1, None, "not six bytes");
    }
}
