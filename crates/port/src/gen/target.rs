//! The receiver of generated datagrams: options of the port text, and the route to it from the
//! kernel's tables.

use std::net::{IpAddr, SocketAddr};

use linerate_skb::{Code, Error, Result};
use linerate_sys::netif::{FLAG_UP, HARDWARE_ETHERNET, Interface};
use linerate_sys::rtnl::Route;
use linerate_wire::{IPV4_BYTES, IPV6_BYTES, Mac, UdpEnds, stamp};

use super::{GENERATOR, RECEIVER};
use crate::spec::Spec;

/// Bytes of an Ethernet header; the next constant is that of a UDP header.
const ETH_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
/// The first ephemeral port (RFC 6335); the next constant is the first unprivileged port.
const EPHEMERAL: u16 = 49_152;
const UNPRIVILEGED: u32 = 1024;

/// The receiver of datagrams, and the parts of the route to it that the user has given.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub dst: SocketAddr,
    /// The interface whose routes and neighbours are looked up.
    dev: Option<String>,
    mac: Option<Mac>,
    from: Option<SocketAddr>,
}

impl Target {
    /// Parses the receiver's options.
    ///
    /// Errors: `E-PORT-SYNTAX` for addresses that make no sense together.
    pub fn of(spec: &Spec) -> Result<Option<Target>> {
        let receiver = |text: &str| {
            let fault = "an address and a port: 192.0.2.7:7777 or [2001:db8::7]:7777";
            text.parse::<SocketAddr>().map_err(|_| fault)
        };
        let dst = spec.value("to", receiver)?;
        let dev = spec.value("dev", |dev| Ok::<_, String>(dev.to_owned()))?;
        let mac = spec.value("mac", str::parse)?;
        let from = spec.value("from", from)?;
        let Some(dst) = dst else {
            if dev.is_none() && mac.is_none() && from.is_none() {
                return Ok(None);
            }
            let why = "dev, mac and from are for datagrams, which need a destination";
            return Err(spec.error(why).fix("add to=192.0.2.7:7777"));
        };
        if dst.port() == 0 || dst.ip().is_unspecified() {
            let why = format!("{dst} is not the address of a receiver");
            return Err(spec.error(why).fix("name the address and port of a receiver"));
        }
        if from.is_some_and(|from| from.is_ipv4() != dst.is_ipv4()) {
            let why = "from and to are addresses of two versions of IP";
            return Err(spec.error(why).fix("both of IPv4, or both of IPv6"));
        }
        if dev.is_none() && (mac.is_none() || from.is_none()) {
            let why = "no interface is given for the datagrams";
            let fix = "add dev=eth0, an interface with a route to the destination; or both mac=MAC and from=ADDRESS";
            return Err(spec.error(why).fix(fix));
        }
        Ok(Some(Target { dst, dev, mac, from }))
    }

    /// Returns the addresses of the first flow; queries the kernel for addresses that the options
    /// leave out.
    ///
    /// # Errors
    /// `E-NODEV`, `E-DEVICE-DOWN`, `E-PORT-SYNTAX` for frames of up to `longest` bytes that the
    /// interface does not carry, `E-SYSTEM` without an address to send from, those of [`Route`].
    pub fn ends(&self, spec: &Spec, longest: usize) -> Result<UdpEnds> {
        let Some(dev) = &self.dev else {
            let dst_mac = self.mac.unwrap_or(Mac(RECEIVER));
            let src = self.from.unwrap_or(self.dst);
            return Ok(UdpEnds { src_mac: Mac(GENERATOR), dst_mac, src, dst: self.dst });
        };
        let dev = Interface::find(dev)?;
        let (name, hardware) = (dev.name(), dev.hardware()?);
        if hardware.kind != HARDWARE_ETHERNET {
            let why = format!("{name} does not carry Ethernet frames");
            let fix = format!("use an interface of link/ether, see: ip link show {name}");
            return Err(spec.error(why).fix(fix));
        }
        let carried = dev.mtu_bytes()? as usize + ETH_BYTES;
        if longest > carried {
            let why = format!("size {longest}: {name} carries frames of up to {carried} bytes");
            return Err(spec.error(why).fix(format!("use size={carried}, or a larger MTU")));
        }
        if dev.flags()? & FLAG_UP == 0 {
            let what = format!("cannot send to {} by {name}", self.dst);
            let e = Error::new(Code::DeviceDown, what, "the interface is down");
            return Err(e.fix(format!("ip link set dev {name} up")));
        }
        let route = match (self.mac, self.from) {
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(Route::or_guess(&dev, self.dst.ip())?),
            _ => Some(Route::of(&dev, self.dst.ip())?),
        };
        let known = |route: Option<&Route>| route.and_then(|route| route.src);
        let src = match (self.from, known(route.as_ref())) {
            (Some(from), _) => from,
            (None, Some(src)) => SocketAddr::new(src, EPHEMERAL),
            (None, None) => {
                let what = format!("cannot send to {} by {name}", self.dst);
                let why = format!("{name} has no address that can reach the destination");
                let fix = format!("ip addr add ADDRESS dev {name}, or from=ADDRESS");
                return Err(Error::new(Code::System, what, why).fix(fix));
            }
        };
        let dst_mac = match (self.mac, route) {
            (Some(mac), _) => mac,
            (None, Some(route)) => Mac(route.mac(&dev)?),
            (None, None) => Mac(RECEIVER), // one of them is there
        };
        Ok(UdpEnds { src_mac: Mac(hardware.mac), dst_mac, src, dst: self.dst })
    }
}

/// Parses the sender: an address with an optional port.
fn from(text: &str) -> std::result::Result<SocketAddr, String> {
    let alone = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    alone.map(|ip| SocketAddr::new(ip, EPHEMERAL)).or_else(|_| {
        text.parse().map_err(|_| "an address, or an address and a port: 192.0.2.1:5000".to_owned())
    })
}

/// Returns the length of the shortest frame, whose payload has room for a time stamp.
pub(super) fn shortest(to: Option<SocketAddr>) -> usize {
    let ip = match to {
        None => return stamp::FRAME_LEN_MIN,
        Some(SocketAddr::V4(_)) => IPV4_BYTES,
        Some(SocketAddr::V6(_)) => IPV6_BYTES,
    };
    ETH_BYTES + ip + UDP_BYTES + stamp::PAYLOAD_LEN_MIN
}

/// Writes a datagram of a flow into `frame`, whose size is at least [`shortest`].
#[inline(never)]
pub(super) fn write(first: &UdpEnds, frame: &mut [u8], flow: u32, seq: u64, time_ns: u64) {
    let _ = stamp::write_payload(&mut frame[first.header_bytes()..], flow, seq, time_ns);
    let _ = of_flow(first, flow).write(frame);
}

/// Returns the addresses of a flow. The first 64,512 flows have a source port each, so that devices
/// distinguish them; port 65535 is followed by 1024, and further flows have the ports of the first
/// ones.
fn of_flow(first: &UdpEnds, flow: u32) -> UdpEnds {
    let port = u32::from(first.src.port()) + flow;
    let port = if port <= 0xffff { port } else { UNPRIVILEGED + (port - 0x1_0000) % 0xfc00 };
    let mut ends = *first;
    ends.src.set_port(port as u16);
    ends
}

#[cfg(test)]
mod tests {
    use crate::Port;

    #[test]
    fn a_receiver_that_makes_no_sense_is_refused_with_what_would() {
        let known = "mac=02:00:00:00:00:09,from=192.0.2.1";
        for (text, why, fix) in [
            ("to=192.0.2.7".into(), "an address and a port", ""),
            (format!("to=192.0.2.7:0,{known}"), "is not the address of a receiver", "receiver"),
            (format!("to=0.0.0.0:7,{known}"), "is not the address of a receiver", "receiver"),
            (format!("to=[::1]:7,{known}"), "two versions", "IPv4"),
            ("to=192.0.2.7:7".into(), "no interface is given", "dev=eth0"),
            ("to=192.0.2.7:7,mac=02:00:00:00:00:09".into(), "no interface is given", "from="),
            ("dev=eth0".into(), "which need a destination", "to="),
            (format!("to=192.0.2.7:7,size=60,{known}"), "70 to 65526 bytes", ""),
            ("to=192.0.2.7:7,mac=02:00,from=192.0.2.1".into(), "mac=02:00", ""),
            ("to=192.0.2.7:7,mac=02:00:00:00:00:09,from=here".into(), "192.0.2.1:5000", ""),
            ("to=192.0.2.7:7,dev=lo".into(), "does not carry Ethernet", "ip link show lo"),
            ("to=192.0.2.7:7,dev=none9".into(), "No such device", "ip -br link"),
        ] {
            let e = Port::open(&format!("gen:,{text}")).unwrap_err();
            assert!(e.why.contains(why) && e.fix.contains(fix), "{text}: {e}");
        }
        for from in ["[2001:db8::1]:5", "2001:db8::1", "[2001:db8::1]"] {
            let text = format!("gen:,to=[2001:db8::7]:7,mac=02:00:00:00:00:09,from={from}");
            assert!(Port::open(&text).is_ok(), "{text}");
        }
    }
}
