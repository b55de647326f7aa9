//! UDP or TCP, for programs that treat both in one way: translators, balancers, filters.

use std::net::SocketAddr;

use crate::{Head, HeadMut, Malformed, Protocol, TcpMut, UdpMut, ip, tcp, udp};

/// Returns a view for changing the UDP datagram or TCP segment in `frame`.
///
/// Errors: [`Malformed::NotTransport`] for other protocols, else as [`crate::udp_mut`] and
///         [`crate::tcp_mut`].
/// Cost:   as those, and one more look at the IP header.
pub fn transport_mut(frame: &mut [u8]) -> Result<TransportMut<'_>, Malformed> {
    write(HeadMut::new(frame, 0))
}

pub(crate) fn write(head: HeadMut<'_>) -> Result<TransportMut<'_>, Malformed> {
    match ip::read(Head::new(head.bytes, head.behind))?.protocol() {
        Protocol::UDP => udp::write(head).map(TransportMut::Udp),
        Protocol::TCP => tcp::write(head).map(TransportMut::Tcp),
        _ => Err(Malformed::NotTransport),
    }
}

/// A UDP datagram or TCP segment, to be changed in place.
#[derive(Debug)]
pub enum TransportMut<'a> {
    /// UDP.
    Udp(UdpMut<'a>),
    /// TCP.
    Tcp(TcpMut<'a>),
}

/// Calls a method that both views have, on the view that is present.
macro_rules! both {
    ($of:expr, $view:ident => $call:expr) => {
        match $of {
            TransportMut::Udp($view) => $call,
            TransportMut::Tcp($view) => $call,
        }
    };
}

impl TransportMut<'_> {
    /// Returns [`Protocol::UDP`] or [`Protocol::TCP`].
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            TransportMut::Udp(_) => Protocol::UDP,
            TransportMut::Tcp(_) => Protocol::TCP,
        }
    }

    /// Returns the address and port of the sender.
    #[must_use]
    pub fn src_addr(&self) -> SocketAddr {
        both!(self, view => view.src_addr())
    }

    /// Returns the address and port of the receiver.
    #[must_use]
    pub fn dst_addr(&self) -> SocketAddr {
        both!(self, view => view.dst_addr())
    }

    /// Sets the sender's address and port, as [`UdpMut::set_src`] does.
    ///
    /// Errors: as [`UdpMut::set_src`].
    /// Cost:   constant, whatever the payload.
    pub fn set_src(&mut self, addr: SocketAddr) -> Result<(), Malformed> {
        both!(self, view => view.set_src(addr))
    }

    /// Sets the receiver's address and port, as [`TransportMut::set_src`] sets the sender's.
    pub fn set_dst(&mut self, addr: SocketAddr) -> Result<(), Malformed> {
        both!(self, view => view.set_dst(addr))
    }

    /// Swaps sender and receiver, as [`UdpMut::swap_ends`] does.
    pub fn swap_ends(&mut self) {
        both!(self, view => view.swap_ends());
    }
}
