//! The next hop to an address, as the kernel knows it: for tunnels, balancers and generators, which
//! write Ethernet headers themselves.

use std::net::IpAddr;

use linerate_sys::netif::Interface;
use linerate_sys::rtnl::Route;
use linerate_wire::Mac;

use crate::Result;

/// The addresses in packets to a destination through an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NextHop {
    /// The MAC address of the neighbour that the packets go to: the destination or a gateway; a
    /// group's address for multicast and broadcast.
    pub mac: Mac,
    /// The interface's own MAC address.
    pub src_mac: Mac,
    /// The IP address that the kernel would send from, if the interface has one.
    pub src: Option<IpAddr>,
}

/// Returns the next hop of packets to `to` through `interface`, by the kernel's routes and
/// neighbours.
///
/// ```no_run
/// # mod linerate { pub use linerate_port::{Error, next_hop}; }
/// let hop = linerate::next_hop("eth0", "192.0.2.7".parse().unwrap())?;
/// println!("send to {}, from {}", hop.mac, hop.src_mac);
/// # Ok::<_, linerate::Error>(())
/// ```
///
/// Effect: if the kernel does not know the neighbour, sends it an empty datagram to port 9
///         (discard), so that the kernel asks for its MAC address.
/// Errors: `E-NODEV` without the interface; `E-SYSTEM` without a route, or if the neighbour does
///         not answer.
/// Cost:   waits up to five seconds for the neighbour, so call it before an engine starts or on a
///         thread of your own, and again when the kernel's entry may have changed.
pub fn next_hop(interface: &str, to: IpAddr) -> Result<NextHop> {
    let interface = Interface::open(interface)?;
    let route = Route::of(&interface, to)?;
    let src_mac = Mac(interface.hardware()?.mac);
    Ok(NextHop { mac: Mac(route.mac(&interface)?), src_mac, src: route.src })
}

#[cfg(test)]
mod tests {
    use linerate_testing::{in_netns, ip};

    use super::*;
    use crate::Code;

    #[test]
    fn next_hop_of_another_network_is_the_gateway_and_of_a_group_its_own_address() {
        in_netns(|| {
            ip("link add v0 address 02:00:00:00:00:01 type veth peer name v1");
            ip("addr add 10.9.0.1/24 dev v0");
            ip("link set v0 up");
            ip("link set v1 up");
            ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:07 dev v0");
            ip("route add 10.10.0.0/16 via 10.9.0.2");
            let hop = |to: &str| next_hop("v0", to.parse().unwrap());
            let own = (Mac([2, 0, 0, 0, 0, 1]), Some("10.9.0.1".parse().unwrap()));
            for to in ["10.9.0.2", "10.10.1.1"] {
                let hop = hop(to).unwrap();
                assert_eq!((hop.mac, (hop.src_mac, hop.src)), (Mac([2, 0, 0, 0, 0, 7]), own));
            }
            assert_eq!(hop("10.9.0.255").unwrap().mac, Mac::BROADCAST);
            assert_eq!(hop("10.11.0.1").unwrap_err().code, Code::System, "there is no route");
            assert_eq!(hop("10.9.0.1").unwrap_err().code, Code::System, "it is the host's own");
            let none = next_hop("nosuchif0", "10.9.0.2".parse().unwrap());
            assert_eq!(none.unwrap_err().code, Code::NoDevice);
        });
    }
}
