//! The message by which two ports tell each other their numbers before they exchange packets.
//!
//! ```text
//!  0  8 magic     8  4 flags    12  4 pair    16  4 connection   20  4 first packet's number
//! 24  4 key      28  4 MTU      32  4 longest packet             36  2 LID    38  2 queues
//! 40 16 GID      56  8 zero
//! ```
//!
//! All numbers are big-endian. The caller sends a hello for each of its queues when TCP has
//! connected them, the other end answers the first by its own, and each sends a byte when it can
//! receive: a message that comes earlier finds no connection. A refusal is a byte, too, in place of
//! the hellos or behind them.

use std::net::Ipv6Addr;

use super::config::QUEUES_MAX;

/// The first bytes of a hello; the last is the version.
const MAGIC: [u8; 8] = *b"lnrverb\x01";
const CONNECTED: u32 = 1;
/// Length of a hello in bytes.
pub(super) const HELLO_BYTES: usize = 64;
/// The byte that an end sends when it can receive.
pub(super) const READY: u8 = b'!';

/// The reason why a port refuses a peer, as the byte that tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Refusal {
    /// The port has as many peers as it may have.
    Full = b'F',
    /// One of the two sends datagrams, and the other makes connections.
    Mode = b'M',
    /// The peer is a peer already.
    Twice = b'T',
    /// The two have different numbers of queues.
    Queues = b'Q',
    /// A queue of the port is closed already.
    Closed = b'C',
}

impl Refusal {
    const ALL: [Refusal; 5] =
        [Refusal::Full, Refusal::Mode, Refusal::Twice, Refusal::Queues, Refusal::Closed];

    /// Returns the refusal that a byte tells.
    pub fn of(byte: u8) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == byte)
    }

    /// Returns the reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::Full => "the port has as many peers as its option peers allows",
            Refusal::Mode => "one of the two ports has the option datagrams, and the other has not",
            Refusal::Twice => "this port is a peer already",
            Refusal::Queues => "the two ports have different numbers of queues (queues=)",
            Refusal::Closed => "a queue of the port is closed already",
        }
    }
}

/// The numbers of a port's queue that its peer must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Hello {
    /// The number of the UD queue pair.
    pub pair: u32,
    /// The number of the pair of the connection; `None` if the port makes none.
    pub connection: Option<u32>,
    /// The sequence number of the connection's first packet (PSN).
    pub psn: u32,
    /// The Q_Key that datagrams must have.
    pub key: u32,
    /// Longest datagram in bytes.
    pub mtu_bytes: u32,
    /// Longest packet that the port receives, in bytes.
    pub longest_bytes: u32,
    pub lid: u16,
    /// Number of the port's queues, each of which has a hello.
    pub queues: u16,
    pub gid: [u8; 16],
}

impl Hello {
    /// Returns the bytes of the hello.
    pub fn bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let flags = if self.connection.is_some() { CONNECTED } else { 0 };
        let numbers = [
            flags,
            self.pair,
            self.connection.unwrap_or(0),
            self.psn,
            self.key,
            self.mtu_bytes,
            self.longest_bytes,
        ];
        for (place, number) in bytes[8..36].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        bytes[36..38].copy_from_slice(&self.lid.to_be_bytes());
        bytes[38..40].copy_from_slice(&self.queues.to_be_bytes());
        bytes[40..56].copy_from_slice(&self.gid);
        bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// What does not fit.
    pub fn of(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, &'static str> {
        if bytes[..7] != MAGIC[..7] {
            return Err("it is no verbs port of linerate");
        }
        if bytes[7] != MAGIC[7] {
            return Err("it speaks another version of the protocol: update the older program");
        }
        let number = |at: usize| {
            let mut place = [0; 4];
            place.copy_from_slice(&bytes[at..at + 4]);
            u32::from_be_bytes(place)
        };
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[40..56]);
        let hello = Hello {
            pair: number(12),
            connection: (number(8) & CONNECTED != 0).then(|| number(16)),
            psn: number(20),
            key: number(24),
            mtu_bytes: number(28),
            longest_bytes: number(32),
            lid: u16::from_be_bytes([bytes[36], bytes[37]]),
            queues: u16::from_be_bytes([bytes[38], bytes[39]]),
            gid,
        };
        let is_number = |pair: u32| (2..1 << 24).contains(&pair);
        let makes_sense = is_number(hello.pair)
            && hello.connection.is_none_or(is_number)
            && hello.psn < 1 << 24
            && (256..=4096).contains(&hello.mtu_bytes)
            && hello.longest_bytes >= 64
            && (1..=QUEUES_MAX).contains(&hello.queues.into())
            && is_of_one(hello.gid);
        if makes_sense { Ok(hello) } else { Err("its numbers make no sense") }
    }
}

/// Returns true for a GID of one port: of no group, not of all hosts, and not empty.
fn is_of_one(gid: [u8; 16]) -> bool {
    let ip = Ipv6Addr::from(gid);
    let is_group =
        ip.to_ipv4_mapped().map_or(ip.is_multicast(), |ip| ip.is_multicast() || ip.is_broadcast());
    !is_group && !ip.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_said_is_understood() {
        let hello = Hello {
            pair: 17,
            connection: Some(18),
            psn: 0x00ab_cdef,
            key: 0x7fff_0001,
            mtu_bytes: 1024,
            longest_bytes: 1518,
            lid: 7,
            queues: 4,
            gid: [9; 16],
        };
        assert_eq!(Hello::of(&hello.bytes()), Ok(hello));
        let datagrams = Hello { connection: None, ..hello };
        assert_eq!(Hello::of(&datagrams.bytes()), Ok(datagrams));
    }

    #[test]
    fn numbers_stand_at_their_places_with_the_highest_byte_first() {
        let hello = Hello {
            pair: 0x0001_0203,
            connection: Some(0x0004_0506),
            psn: 0x0007_0809,
            key: 0x0a0b_0c0d,
            mtu_bytes: 1024,
            longest_bytes: 1518,
            lid: 0x0e0f,
            queues: 4,
            gid: [9; 16],
        };
        let mut expected = b"lnrverb\x01\0\0\0\x01\0\x01\x02\x03\0\x04\x05\x06".to_vec();
        expected.extend([0, 7, 8, 9, 10, 11, 12, 13, 0, 0, 4, 0, 0, 0, 5, 238, 14, 15, 0, 4]);
        expected.extend([9; 16].into_iter().chain([0; 8]));
        assert_eq!(hello.bytes()[..], expected);
    }

    #[test]
    fn another_program_and_numbers_without_sense_are_refused() {
        let hello = Hello {
            pair: 17,
            mtu_bytes: 1024,
            longest_bytes: 1518,
            queues: 1,
            gid: [9; 16],
            ..Hello::default()
        };
        assert!(Hello::of(&[0; HELLO_BYTES]).unwrap_err().contains("no verbs port"));
        let mut newer = hello.bytes();
        newer[7] = 2;
        assert!(Hello::of(&newer).unwrap_err().contains("another version"));
        for wrong in [
            Hello { pair: 1, ..hello },
            Hello { pair: 1 << 24, ..hello },
            Hello { connection: Some(0), ..hello },
            Hello { psn: 1 << 24, ..hello },
            Hello { mtu_bytes: 255, ..hello },
            Hello { mtu_bytes: 4097, ..hello },
            Hello { longest_bytes: 63, ..hello },
            Hello { queues: 0, ..hello },
            Hello { queues: 17, ..hello },
            Hello { gid: [0; 16], ..hello },
            Hello { gid: [255; 16], ..hello },
            Hello { gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 224, 0, 0, 1], ..hello },
        ] {
            assert!(Hello::of(&wrong.bytes()).unwrap_err().contains("no sense"), "{wrong:?}");
        }
    }

    /// Returns a strategy of hellos that make sense.
    fn hellos() -> impl Strategy<Value = Hello> {
        let pairs = || 2..1u32 << 24;
        let sizes = (256..=4096u32, 64..=u32::MAX, 1..=QUEUES_MAX as u16);
        let keys = (0..1u32 << 24, any::<u32>(), any::<u16>(), any::<[u8; 15]>());
        let all = (pairs(), prop::option::of(pairs()), sizes, keys);
        all.prop_map(|(pair, connection, sizes, keys)| {
            let ((mtu_bytes, longest_bytes, queues), (psn, key, lid, rest)) = (sizes, keys);
            let mut gid = [0xfe; 16];
            gid[1..].copy_from_slice(&rest);
            Hello { pair, connection, psn, key, mtu_bytes, longest_bytes, lid, queues, gid }
        })
    }

    proptest! {
        #[test]
        fn a_hello_is_accepted_and_a_changed_one_is_read_without_a_panic(
            hello in hellos(),
            changes in prop::collection::vec((0..HELLO_BYTES, any::<u8>()), 0..=3),
        ) {
            let mut bytes = hello.bytes();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            let is_accepted = super::super::fuzzing::hello(&bytes);
            prop_assert!(is_accepted || bytes != hello.bytes());
        }

        #[test]
        fn any_bytes_behind_the_magic_are_read_without_a_panic(
            rest in prop::collection::vec(any::<u8>(), HELLO_BYTES - MAGIC.len()),
        ) {
            super::super::fuzzing::hello(&[&MAGIC[..], &rest[..]].concat());
        }
    }
}
