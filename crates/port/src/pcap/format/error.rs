//! Errors in a capture file, with their offset.

use std::{fmt, io};

use linerate_sys::{Code, Error};

/// The error of a capture file that cannot be read any further.
#[derive(Debug)]
pub struct CaptureError {
    /// Offset in the file of the invalid record or block, in bytes.
    pub offset: u64,
    /// The fault in that record or block.
    pub fault: Fault,
}

/// A fault in a record or block.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Reading failed.
    Io(io::Error),
    /// The file starts with these bytes, which are the magic number of neither format.
    NotCapture([u8; 4]),
    /// An unknown version of the format.
    Version {
        /// Major version of the file.
        major: u16,
        /// Minor version of the file.
        minor: u16,
    },
    /// The file ends inside a record or block.
    Truncated {
        /// Number of bytes that should follow at this place.
        want: u64,
        /// Number of bytes that follow.
        found: u64,
    },
    /// A packet longer than allowed.
    PacketTooLong {
        /// Length that the packet claims, in bytes.
        len: u64,
        /// Bytes allowed by [`super::PACKET_LEN_MAX`], or in pcapng by the snapshot length.
        max: u64,
    },
    /// A packet longer than its block.
    PacketOverBlock {
        /// Length that the packet claims, in bytes.
        len: u64,
        /// Bytes in the block.
        found: u64,
    },
    /// A block length that is invalid, or greater than [`super::BLOCK_LEN_MAX`].
    BlockLen(u32),
    /// The two lengths of a block, before and after its body, differ.
    BlockTrailer {
        /// The length before the body.
        head: u32,
        /// The length after the body.
        tail: u32,
    },
    /// A section header with these bytes instead of the byte-order magic.
    ByteOrder([u8; 4]),
    /// A fraction of a second that is one second or more.
    Fraction(u32),
    /// A time resolution with this code, which is finer than 64 bits can express.
    Resolution(u8),
    /// A time before 1970 or after 2554, which 64 bits of nanoseconds cannot represent.
    Time,
    /// An option that is longer than its block, or of the wrong length for its kind.
    Option {
        /// The option code.
        code: u16,
        /// The length that the option claims.
        len: u16,
    },
    /// A packet from an interface that the section has not declared.
    Interface(u32),
    /// More than [`super::INTERFACES_MAX`] interfaces.
    TooManyInterfaces,
    /// A packet with a link type other than Ethernet.
    NotEthernet(u16),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io(e) => write!(f, "{e}"),
            Fault::NotCapture([a, b, c, d]) => {
                write!(f, "neither pcap nor pcapng: it starts with {a:02x} {b:02x} {c:02x} {d:02x}")
            }
            Fault::Version { major, minor } => write!(f, "unknown version {major}.{minor}"),
            Fault::Truncated { want, found } => {
                write!(f, "the file ends after {found} of {want} bytes")
            }
            Fault::PacketTooLong { len, max } => {
                write!(f, "a packet of {len} bytes; the maximum is {max}")
            }
            Fault::PacketOverBlock { len, found } => {
                write!(f, "a packet of {len} bytes in a block with {found}")
            }
            Fault::BlockLen(len) => write!(f, "impossible block length {len}"),
            Fault::BlockTrailer { head, tail } => {
                write!(f, "a block of length {head} ends with length {tail}")
            }
            Fault::ByteOrder([a, b, c, d]) => {
                write!(f, "no byte-order magic, found {a:02x} {b:02x} {c:02x} {d:02x}")
            }
            Fault::Fraction(fraction) => {
                write!(f, "the fraction of a second is {fraction}, a second or more")
            }
            Fault::Resolution(code) => write!(f, "impossible time resolution 0x{code:02x}"),
            Fault::Time => f.write_str("a time before 1970 or after 2554"),
            Fault::Option { code, len } => write!(f, "option {code} of impossible length {len}"),
            Fault::Interface(id) => write!(f, "a packet from interface {id}, which is undeclared"),
            Fault::TooManyInterfaces => f.write_str("too many interfaces"),
            Fault::NotEthernet(link) => {
                let name = link_name(*link).map_or(String::new(), |name| format!(" ({name})"));
                write!(f, "link type {link}{name}, not Ethernet (1)")
            }
        }
    }
}

/// Returns the name of a link type that is frequent in captures.
///
/// Source: draft-ietf-opsawg-pcaplinktype, without the prefix LINKTYPE_.
fn link_name(link: u16) -> Option<&'static str> {
    const NAMES: [(u16, &str); 22] = [
        (0, "NULL"),
        (9, "PPP"),
        (10, "FDDI"),
        (51, "PPP_ETHER"),
        (101, "RAW"),
        (105, "IEEE802_11"),
        (108, "LOOP"),
        (113, "LINUX_SLL"),
        (119, "IEEE802_11_PRISM"),
        (127, "IEEE802_11_RADIOTAP"),
        (187, "BLUETOOTH_HCI_H4"),
        (189, "USB_LINUX"),
        (192, "PPI"),
        (195, "IEEE802_15_4_WITHFCS"),
        (201, "BLUETOOTH_HCI_H4_WITH_PHDR"),
        (220, "USB_LINUX_MMAPPED"),
        (227, "CAN_SOCKETCAN"),
        (228, "IPV4"),
        (229, "IPV6"),
        (239, "NFLOG"),
        (249, "USBPCAP"),
        (276, "LINUX_SLL2"),
    ];
    NAMES.iter().find(|(number, _)| *number == link).map(|(_, name)| *name)
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.fault)
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl CaptureError {
    /// Returns true if the file has not a single byte.
    fn is_empty(&self) -> bool {
        self.offset == 0 && matches!(self.fault, Fault::Truncated { found: 0, .. })
    }

    /// Returns the error for opening the file called `name`.
    #[must_use]
    pub fn in_file(&self, name: &str) -> Error {
        let code = match self.fault {
            Fault::Io(_) => Code::File,
            _ => Code::Capture,
        };
        let why = if self.is_empty() { "it is empty".to_owned() } else { self.to_string() };
        let error = Error::new(code, format!("cannot read {name}"), why);
        match self.fault {
            _ if self.is_empty() => error.fix(
                "see if the program that writes it has failed, or has not begun to write",
            ),
            Fault::NotCapture([0x1f, 0x8b, ..]) => error.fix("unpack it first: gunzip"),
            Fault::NotCapture([0x28, 0xb5, 0x2f, 0xfd]) => error.fix("unpack it first: unzstd"),
            Fault::NotEthernet(_) => error.fix(
                "capture on an Ethernet interface, not on `any`; such a capture can be copied to a \
                 file: linerate forward pcap:IN pcap:OUT",
            ),
            Fault::Io(_) => error.fix(
                "see that this user may read the file, and that its disk or the program that writes \
                 it works: ls -l, dmesg",
            ),
            _ if name == "-" => error.fix(
                "compare what its sender wrote: save the stream to a file, and run capinfos FILE",
            ),
            _ => error.fix(format!("to see its type and its last packet: capinfos {name}")),
        }
    }
}
