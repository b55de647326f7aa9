//! Methods that several views have, declared once.

/// Implements `Deref` from a view to its header.
macro_rules! derefs {
    ($($view:ident),+ => $field:ident $header:ident) => {$(
        impl std::ops::Deref for $view<'_> {
            type Target = $header;
            fn deref(&self) -> &$header {
                self.$field
            }
        }
    )+};
}

/// Declares the method of `behind`.
macro_rules! behinds {
    ($($view:ident),+) => {$(
        impl $view<'_> {
            /// Returns the number of payload bytes that follow outside the slice: 0 unless the view
            /// is a [`crate::Head`]'s. Bytes after the payload do not count.
            #[must_use]
            pub fn behind(&self) -> usize {
                self.behind
            }
        }
    )+};
}

/// Declares the methods of `payload`, and the setters of the header's 16-bit fields.
///
/// A setter keeps the checksum right; `$udp` is true if a checksum of zero (none) stays zero.
macro_rules! setters {
    ($view:ident, $udp:literal: $($(#[$doc:meta])* $name:ident $field:ident;)+) => {
        impl $view<'_> {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, value: u16) {
                    let old = std::mem::replace(&mut self.header.$field, value.into());
                    self.check.renumber(&mut self.header.check, $udp, old.get(), value);
                }
            )+

            /// Returns the data after the header.
            #[must_use]
            pub fn payload(&self) -> &[u8] {
                self.payload
            }

            /// Returns the data for writing; the caller then corrects the checksum with
            /// `fill_checksum`.
            #[must_use]
            pub fn payload_mut(&mut self) -> &mut [u8] {
                self.payload
            }
        }
    };
}

/// Declares further methods for the views of protocols with ports.
macro_rules! ports {
    ($read:ident, $write:ident, $udp:literal) => {
        impl<'a> $read<'a> {
            /// Returns the IP packet around the header.
            #[must_use]
            pub fn ip(&self) -> IpRef<'a> {
                self.ip
            }

            /// Returns the data after the header.
            #[must_use]
            pub fn payload(&self) -> &'a [u8] {
                self.payload
            }

            /// Returns the offset of the payload from the first byte of the frame.
            #[must_use]
            pub fn payload_at(&self) -> usize {
                self.payload_at
            }
        }

        impl $write<'_> {
            /// Changes the sender's address and port, and updates the checksums as `set_src_port`
            /// does.
            ///
            /// Errors: [`Malformed::NotIpv4`] or [`Malformed::NotIpv6`], and nothing changed, for
            ///         an address of another version than the packet.
            /// Cost:   constant, whatever the payload.
            pub fn set_src(&mut self, addr: SocketAddr) -> Result<(), Malformed> {
                self.ip.set_src(addr.ip(), self.check, &mut self.header.check, $udp)?;
                self.set_src_port(addr.port());
                Ok(())
            }

            /// Changes the receiver's address and port, as `set_src` changes the sender's.
            pub fn set_dst(&mut self, addr: SocketAddr) -> Result<(), Malformed> {
                self.ip.set_dst(addr.ip(), self.check, &mut self.header.check, $udp)?;
                self.set_dst_port(addr.port());
                Ok(())
            }
        }

        ports!($read);
        ports!($write);
    };
    ($view:ident) => {
        impl $view<'_> {
            /// Returns the address and port of the sender.
            #[must_use]
            pub fn src_addr(&self) -> SocketAddr {
                SocketAddr::new(self.ip.src(), self.header.src_port())
            }

            /// Returns the address and port of the receiver.
            #[must_use]
            pub fn dst_addr(&self) -> SocketAddr {
                SocketAddr::new(self.ip.dst(), self.header.dst_port())
            }
        }
    };
}
