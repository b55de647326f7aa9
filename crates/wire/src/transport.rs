//! UDP or TCP, for programs that treat both in one way: translators, balancers, filters.

use std::net::SocketAddr;

use crate::{Head, HeadMut, IpRef, Malformed, Protocol, TcpMut, TcpRef, UdpMut, UdpRef};
use crate::{ip, tcp, udp};

/// Returns a view of the UDP datagram or TCP segment in `frame`.
///
/// Errors: [`Malformed::NotTransport`] for other protocols, else as [`crate::udp()`] and
///         [`crate::tcp()`].
/// Cost:   as those, and one more look at the IP header.
pub fn transport(frame: &[u8]) -> Result<TransportRef<'_>, Malformed> {
    read(Head::new(frame, 0))
}

pub(crate) fn read(head: Head<'_>) -> Result<TransportRef<'_>, Malformed> {
    match ip::read(head)?.protocol() {
        Protocol::UDP => udp::read(head).map(TransportRef::Udp),
        Protocol::TCP => tcp::read(head).map(TransportRef::Tcp),
        _ => Err(Malformed::NotTransport),
    }
}

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

/// A UDP datagram or TCP segment, read only.
#[derive(Debug, Clone, Copy)]
pub enum TransportRef<'a> {
    /// UDP.
    Udp(UdpRef<'a>),
    /// TCP.
    Tcp(TcpRef<'a>),
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
            Self::Udp($view) => $call,
            Self::Tcp($view) => $call,
        }
    };
}

/// Declares the methods that both enums have.
macro_rules! ends {
    ($($name:ident),+) => {$(
        impl $name<'_> {
            /// Returns [`Protocol::UDP`] or [`Protocol::TCP`].
            #[must_use]
            pub fn protocol(&self) -> Protocol {
                match self {
                    Self::Udp(_) => Protocol::UDP,
                    Self::Tcp(_) => Protocol::TCP,
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
        }
    )+};
}

ends!(TransportRef, TransportMut);

impl<'a> TransportRef<'a> {
    /// Returns the IP packet around the header.
    #[must_use]
    pub fn ip(&self) -> IpRef<'a> {
        both!(self, view => view.ip())
    }

    /// Returns the data after the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        both!(self, view => view.payload())
    }

    /// Returns the offset of the payload from the first byte of the frame.
    #[must_use]
    pub fn payload_at(&self) -> usize {
        both!(self, view => view.payload_at())
    }

    /// Returns the number of payload bytes that follow outside the slice, as [`UdpRef::behind`].
    #[must_use]
    pub fn behind(&self) -> usize {
        both!(self, view => view.behind())
    }

    /// Returns true if the checksum is right, as [`UdpRef::checksum_ok`].
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        both!(self, view => view.checksum_ok())
    }
}

impl TransportMut<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{tcp4_frame, udp4_frame, udp6_frame};

    #[test]
    fn both_protocols_have_one_view() {
        let frames = [
            (udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"inside"), Protocol::UDP, 42),
            (udp6_frame(b"inside"), Protocol::UDP, 62),
            (tcp4_frame(&[1, 1, 1, 0], b"inside"), Protocol::TCP, 58),
        ];
        for (frame, protocol, at) in frames {
            let view = transport(&frame).unwrap();
            assert_eq!((view.protocol(), view.payload_at(), view.behind()), (protocol, at, 0));
            assert_eq!((view.payload(), &frame[at..]), (&b"inside"[..], &b"inside"[..]));
            assert_eq!((view.src_addr().port(), view.dst_addr().port()), (1000, 2000));
            assert!(view.checksum_ok() && view.ip().protocol() == protocol);
        }
        let mut icmp = udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), b"inside");
        icmp[23] = 1;
        assert_eq!(transport(&icmp).unwrap_err(), Malformed::NotTransport);
    }
}
