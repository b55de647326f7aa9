//! Reservation of UDP or TCP ports, so that the host's own stack does not answer on them and the
//! port can.
//!
//! The stack sees, or may see, the packets that a port takes by a filter. If no socket has a
//! packet's port, the stack answers the packet itself: a datagram with ICMP port unreachable, a
//! segment with a reset, and the client gives up. So the port is bound by a socket of the kernel
//! whose filter drops everything:
//!
//! ```text
//!   datagram ──► socket found ──► filter: 0 bytes ──► dropped, no answer
//!   segment  ──► no connection ──► listening socket found ──► filter: 0 bytes ──► dropped, no answer
//! ```
//!
//! A TCP socket must listen: one that is only bound is not found by segments, and the stack resets.
//! Its filter comes before the handshake, so that it never has a connection. Both are bound without
//! `SO_REUSEADDR`: a port is either this one's or another's. They are bound to the interface as
//! well, since only its packets are taken: another one may have a port of its own.
//!
//! The stack receives the packets of a member of a bridge or bond as the bridge's, for which no
//! socket of the member is found. So other sockets are bound to the bridge. Those of several
//! members share the port there (`SO_REUSEPORT`).
//!
//! Owner: [`Reservation`], of the sockets; dropping it gives the ports back, as the end of the
//! process does. It holds in the network namespace of the thread that made it.
//!
//! Source: net/ipv4/udp.c `udp_queue_rcv_one_skb`, net/ipv4/tcp_ipv4.c `tcp_v4_rcv`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use linerate_skb::{Code, Error, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::cbpf;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::flow::{Flow, Protocol};
use super::{is_busy, open_when_closed};

/// Most bridges and bonds above an interface. Source: include/linux/netdevice.h `MAX_NEST_DEV`.
const MASTERS_MAX: usize = 8;

/// UDP or TCP ports that the host's stack does not answer.
#[derive(Debug)]
pub(crate) struct Reservation {
    /// Sockets that reserve the ports for IPv4 and IPv6, on every address; never read.
    _sockets: Vec<OwnedFd>,
}

impl Reservation {
    /// Reserves the ports of `flow` on `interface`, and on the bridge or bond that it is a member
    /// of now; reserves none if one of them fails.
    ///
    /// # Errors
    /// `E-BUSY` if another socket has one of them, `E-PERM` for one below 1024 without
    /// CAP_NET_BIND_SERVICE.
    ///
    /// Cost: blocks for up to 200 ms while another socket has one of them.
    pub fn of(flow: &Flow, interface: &Interface) -> Result<Reservation> {
        open_when_closed(is_busy, || Reservation::attempt(flow, interface))
    }

    fn attempt(flow: &Flow, interface: &Interface) -> Result<Reservation> {
        let masters = masters_of(interface);
        let shared = masters.iter().map(|master| (master, true));
        let mut sockets = Vec::with_capacity(2 * flow.ports.len() * (1 + masters.len()));
        for place in std::iter::once((interface, false)).chain(shared) {
            for &port in &flow.ports {
                let any4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
                let any6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
                let refused = |(call, errno)| refused(flow.protocol, port, call, errno);
                sockets.push(reserve(flow.protocol, any4, place).map_err(refused)?);
                match reserve(flow.protocol, any6, place) {
                    Ok(socket) => sockets.push(socket),
                    // A host without IPv6 answers no IPv6 packet: ignore the error.
                    Err((_, Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => {}
                    Err(e) => return Err(refused(e)),
                }
            }
        }
        Ok(Reservation { _sockets: sockets })
    }
}

/// Returns the bridge or bond that `interface` is a member of, and those above it.
fn masters_of(interface: &Interface) -> Vec<Interface> {
    let master_of = |member: &Interface| {
        let master = Interface::by_index(LinkInfo::of(member).ok()?.master?).ok()?;
        // A packet of a member of a VRF finds the sockets of the member.
        let takes_over = matches!(&*LinkInfo::of(&master).ok()?.kind, "bridge" | "bond" | "team");
        takes_over.then_some(master)
    };
    std::iter::successors(master_of(interface), master_of).take(MASTERS_MAX).collect()
}

/// Binds `address` on an interface to a socket that drops all packets, and shares it with other
/// such sockets of this user if the flag is true; an error names the failed call.
fn reserve(
    protocol: Protocol,
    address: SocketAddr,
    (interface, is_shared): (&Interface, bool),
) -> std::result::Result<OwnedFd, (&'static str, Errno)> {
    let (family, kind) = match (address, protocol) {
        (SocketAddr::V4(_), Protocol::Udp) => (AddressFamily::INET, SocketType::DGRAM),
        (SocketAddr::V4(_), Protocol::Tcp) => (AddressFamily::INET, SocketType::STREAM),
        (SocketAddr::V6(_), Protocol::Udp) => (AddressFamily::INET6, SocketType::DGRAM),
        (SocketAddr::V6(_), Protocol::Tcp) => (AddressFamily::INET6, SocketType::STREAM),
    };
    let fail = |call| move |errno| (call, errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, kind, flags, None).map_err(fail("socket"))?;
    if address.is_ipv6() {
        // Restrict the socket to IPv6, because IPv4 has a socket of its own.
        sockopt::set_ipv6_v6only(&socket, true).map_err(fail("IPV6_V6ONLY"))?;
    }
    // Attach the filter before binding, so that the socket never takes a packet.
    cbpf::attach(&socket, cbpf::DROP_ALL).map_err(fail("SO_ATTACH_FILTER"))?;
    interface.bind(&socket).map_err(fail("SO_BINDTOIFINDEX"))?;
    sockopt::set_socket_reuseport(&socket, is_shared).map_err(fail("SO_REUSEPORT"))?;
    bind(&socket, &address).map_err(fail("bind"))?;
    if protocol == Protocol::Tcp {
        listen(&socket, 0).map_err(fail("listen"))?;
    }
    Ok(socket)
}

fn refused(protocol: Protocol, port: u16, call: &str, errno: Errno) -> Error {
    let name = protocol.key().to_ascii_uppercase();
    let what = format!("cannot reserve {name} port {port}");
    match errno {
        Errno::ADDRINUSE => {
            let show = match protocol {
                Protocol::Udp => "ss -ulpn",
                // `-a` lists connections too: those of a server that has ended hold its port for a
                // minute.
                Protocol::Tcp => "ss -tapn",
            };
            Error::new(
                Code::Busy,
                what,
                format!("another socket of this host has {name} port {port}"),
            )
            .fix(format!("stop its program: {show} 'sport = :{port}'"))
        }
        Errno::ACCESS | Errno::PERM => Error::os(Code::Permission, what, call, errno)
            .fix(Capabilities::NET_BIND_SERVICE.remedy()),
        _ => Error::os(Code::System, what, call, errno),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::host::testing::{LONG, assert_waits_for_close, eventually, in_netns, ip};

    const ALL4: (Ipv4Addr, u16) = (Ipv4Addr::UNSPECIFIED, 7777);
    const LO: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 7777);
    const UNANSWERED: Duration = Duration::from_millis(200);

    fn lo() -> Interface {
        Interface::open("lo").unwrap()
    }

    fn flow(protocol: Protocol) -> Flow {
        Flow { protocol, ports: vec![7777] }
    }

    /// Returns the loopback addresses that exist when `lo` is up.
    fn loopbacks() -> Vec<IpAddr> {
        for which in ["all", "lo"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _ = std::fs::write(path, "0");
        }
        ip("link set lo up");
        let has_v6 = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
        if let Err(e) = &has_v6 {
            let errno = Errno::from_io_error(e);
            assert!(matches!(errno, Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)), "{e}");
            eprintln!("skipped in part: there is no IPv6: {e}");
        }
        let v6 = has_v6.is_ok().then_some(IpAddr::from(Ipv6Addr::LOCALHOST));
        std::iter::once(IpAddr::from(Ipv4Addr::LOCALHOST)).chain(v6).collect()
    }

    fn client(lo: IpAddr, port: u16) -> UdpSocket {
        let socket = UdpSocket::bind((lo, 0)).unwrap();
        socket.connect((lo, port)).unwrap();
        socket
    }

    /// Returns true if a datagram to `port` is refused within `patience`.
    fn refuses(lo: IpAddr, port: u16, patience: Duration) -> bool {
        let socket = client(lo, port);
        socket.set_read_timeout(Some(patience)).unwrap();
        socket.send(b"hello").unwrap();
        socket.recv(&mut [0; 8]).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
    }

    #[test]
    fn a_reserved_port_of_udp_answers_nothing_and_is_given_back() {
        in_netns(|| {
            for address in loopbacks() {
                assert!(refuses(address, 7777, LONG), "{address}");
                let held = Reservation::of(&flow(Protocol::Udp), &lo()).unwrap();
                let silent = client(address, 7777);
                silent.send(b"hello").unwrap();
                // The datagram that was sent later has been answered.
                assert!(refuses(address, 7778, LONG), "{address}");
                silent.set_nonblocking(true).unwrap();
                assert_eq!(silent.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
                let taken = UdpSocket::bind((address, 7777)).unwrap_err();
                assert_eq!(taken.kind(), ErrorKind::AddrInUse);
                drop(held);
                eventually(|| refuses(address, 7777, UNANSWERED));
                UdpSocket::bind((address, 7777)).unwrap();
            }
        });
    }

    #[test]
    fn a_reserved_port_of_tcp_neither_resets_nor_connects() {
        in_netns(|| {
            for address in loopbacks() {
                let connect = |patience| {
                    let stream = TcpStream::connect_timeout(&(address, 7777).into(), patience);
                    stream.unwrap_err().kind()
                };
                assert_eq!(connect(LONG), ErrorKind::ConnectionRefused, "{address}");
                let held = Reservation::of(&flow(Protocol::Tcp), &lo()).unwrap();
                assert_eq!(connect(UNANSWERED), ErrorKind::TimedOut, "{address}");
                let taken = TcpListener::bind((address, 7777)).unwrap_err();
                assert_eq!(taken.kind(), ErrorKind::AddrInUse);
                drop(held);
                eventually(|| connect(UNANSWERED) == ErrorKind::ConnectionRefused);
                TcpListener::bind((address, 7777)).unwrap();
            }
        });
    }

    #[test]
    fn reservation_waits_for_sockets_that_are_closed_late() {
        in_netns(|| {
            ip("link set lo up");
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                let reserve = || Reservation::of(&flow(protocol), &lo());
                assert_waits_for_close(reserve);
            }
        });
    }

    #[test]
    fn a_port_that_somebody_has_is_an_error_that_names_it() {
        in_netns(|| {
            ip("link set lo up");
            let both = Flow { protocol: Protocol::Udp, ports: vec![7776, 7777] };
            let theirs = UdpSocket::bind(LO).unwrap();
            let e = Reservation::of(&both, &lo()).unwrap_err();
            assert_eq!(e.code, Code::Busy);
            assert!(e.why.contains("UDP port 7777") && e.fix.contains("ss -ulpn"), "{e}");
            // A failed reservation must keep no socket.
            eventually(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7776)).is_ok());
            drop(theirs);
            let mut ours = None;
            eventually(|| {
                ours = Reservation::of(&both, &lo()).ok();
                ours.is_some()
            });
            assert_eq!(Reservation::of(&both, &lo()).unwrap_err().code, Code::Busy);
            drop(ours);

            let theirs = TcpListener::bind(ALL4).unwrap();
            let e = Reservation::of(&flow(Protocol::Tcp), &lo()).unwrap_err();
            assert_eq!(e.code, Code::Busy);
            assert!(e.why.contains("TCP port 7777") && e.fix.contains("ss -tapn"), "{e}");
            // The port of the same number of the other protocol is independent.
            eventually(|| Reservation::of(&flow(Protocol::Udp), &lo()).is_ok());
            drop(theirs);
            eventually(|| Reservation::of(&flow(Protocol::Tcp), &lo()).is_ok());
        });
    }

    #[test]
    fn without_the_privilege_a_low_port_is_an_error_that_says_which_one() {
        in_netns(|| {
            let low = Flow { protocol: Protocol::Udp, ports: vec![53] };
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(rustix::thread::CapabilitySet::NET_BIND_SERVICE);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let e = Reservation::of(&low, &lo()).unwrap_err();
            assert_eq!(e.code, Code::Permission);
            assert!(e.what.contains("UDP port 53"), "{e}");
            assert!(e.fix.contains("setcap cap_net_bind_service+ep"), "{e}");
        });
    }
}
