//! The messages of memif's control channel: 128 bytes each, with at most one descriptor.
//!
//! ```text
//!   client                        server          type   of 16 bits, then the message's own fields,
//!     ◄──────────── HELLO ──────────              packed, in the machine's byte order; the rest is 0
//!     ──── INIT ──────────────► ACK
//!     ──── ADD_REGION + file ─► ACK               each region, then
//!     ──── ADD_RING + eventfd ► ACK               each ring, both directions
//!     ──── CONNECT ───────────► CONNECTED
//!     ◄──────── DISCONNECT ───────►               at any time, by either
//! ```
//!
//! What a peer sent is decoded here and believed nowhere: [`super::handshake`] checks it.
//!
//! Source: memif protocol version 2.0, as VPP's src/plugins/memif/memif.h has it.

/// Bytes of a message.
pub const BYTES: usize = 128;
/// The version of the protocol: 2.0.
pub const VERSION: u16 = 0x0200;
/// Bytes of a secret.
pub const SECRET_BYTES: usize = 24;
const NAME_BYTES: usize = 32;
const REASON_BYTES: usize = 96;

const ACK: u16 = 1;
const HELLO: u16 = 2;
const INIT: u16 = 3;
const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// The flag of a ring through which the client sends.
const FROM_CLIENT: u16 = 1;

/// A message of the control channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Acknowledges the last message.
    Ack,
    /// The limits that the server supports.
    Hello {
        /// Lowest and highest version that the server supports.
        versions: (u16, u16),
        /// The greatest number that a region can have.
        region_max: u16,
        /// The greatest number that a ring to the client can have.
        to_client_max: u16,
        /// The greatest number that a ring from the client can have.
        from_client_max: u16,
        /// Number of descriptors of the longest ring, as a power of two.
        ring_power_max: u8,
    },
    /// The client's first message, which selects the server's interface.
    Init {
        /// Version of the protocol.
        version: u16,
        /// The number of the interface.
        id: u32,
        /// The interface's mode: 0 for Ethernet.
        mode: u8,
        /// The secret that admits the client.
        secret: [u8; SECRET_BYTES],
    },
    /// A memory region; its file comes with the message.
    AddRegion {
        /// The region's number.
        index: u16,
        /// The region's length in bytes.
        bytes: u64,
    },
    /// A ring; its doorbell comes with the message.
    AddRing(RingPlace),
    /// The client has sent all regions and rings.
    Connect,
    /// The server has mapped all regions and rings.
    Connected,
    /// The end of the connection, with the reason.
    Disconnect(String),
}

/// A ring's place in the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingPlace {
    /// True if the client sends through the ring.
    pub from_client: bool,
    /// The ring's number among those of its direction.
    pub index: u16,
    /// The number of the region that contains the ring.
    pub region: u16,
    /// Offset of the ring's first byte in the region.
    pub offset: u32,
    /// The ring's length in descriptors, as a power of two.
    pub power: u8,
    /// Bytes of a private header before each packet; no known client has any.
    pub private_bytes: u16,
}

impl Message {
    /// Encodes the message for the socket; `name` is our name, for messages that carry one.
    #[must_use]
    pub fn encode(&self, name: &str) -> [u8; BYTES] {
        let mut out = Out { bytes: [0; BYTES], at: 0 };
        match self {
            Message::Ack => out.put(&ACK.to_ne_bytes()),
            Message::Hello {
                versions,
                region_max,
                to_client_max,
                from_client_max,
                ring_power_max,
            } => {
                out.put(&HELLO.to_ne_bytes());
                out.text(name, NAME_BYTES);
                for number in
                    [versions.0, versions.1, *region_max, *to_client_max, *from_client_max]
                {
                    out.put(&number.to_ne_bytes());
                }
                out.put(&[*ring_power_max]);
            }
            Message::Init { version, id, mode, secret } => {
                out.put(&INIT.to_ne_bytes());
                out.put(&version.to_ne_bytes());
                out.put(&id.to_ne_bytes());
                out.put(&[*mode]);
                out.put(secret);
                out.text(name, NAME_BYTES);
            }
            Message::AddRegion { index, bytes } => {
                out.put(&ADD_REGION.to_ne_bytes());
                out.put(&index.to_ne_bytes());
                out.put(&bytes.to_ne_bytes());
            }
            Message::AddRing(ring) => {
                out.put(&ADD_RING.to_ne_bytes());
                out.put(&(if ring.from_client { FROM_CLIENT } else { 0 }).to_ne_bytes());
                out.put(&ring.index.to_ne_bytes());
                out.put(&ring.region.to_ne_bytes());
                out.put(&ring.offset.to_ne_bytes());
                out.put(&[ring.power]);
                out.put(&ring.private_bytes.to_ne_bytes());
            }
            Message::Connect => {
                out.put(&CONNECT.to_ne_bytes());
                out.text(name, NAME_BYTES);
            }
            Message::Connected => {
                out.put(&CONNECTED.to_ne_bytes());
                out.text(name, NAME_BYTES);
            }
            Message::Disconnect(why) => {
                out.put(&DISCONNECT.to_ne_bytes());
                out.put(&0u32.to_ne_bytes());
                out.text(why, REASON_BYTES);
            }
        }
        out.bytes
    }

    /// Decodes a peer's message; returns `None` if it is invalid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let mut all = In { bytes, at: 0 };
        Some(match all.u16() {
            ACK => Message::Ack,
            HELLO => {
                all.skip(NAME_BYTES);
                Message::Hello {
                    versions: (all.u16(), all.u16()),
                    region_max: all.u16(),
                    to_client_max: all.u16(),
                    from_client_max: all.u16(),
                    ring_power_max: all.u8(),
                }
            }
            INIT => Message::Init {
                version: all.u16(),
                id: all.u32(),
                mode: all.u8(),
                secret: all.take(),
            },
            ADD_REGION => {
                Message::AddRegion { index: all.u16(), bytes: u64::from_ne_bytes(all.take()) }
            }
            ADD_RING => Message::AddRing(RingPlace {
                from_client: all.u16() & FROM_CLIENT != 0,
                index: all.u16(),
                region: all.u16(),
                offset: all.u32(),
                power: all.u8(),
                private_bytes: all.u16(),
            }),
            CONNECT => Message::Connect,
            CONNECTED => Message::Connected,
            DISCONNECT => {
                all.skip(size_of::<u32>());
                Message::Disconnect(all.text(REASON_BYTES))
            }
            _ => return None,
        })
    }
}

/// A message that is being written. Fields that do not fit are left out; our own messages fit.
struct Out {
    bytes: [u8; BYTES],
    at: usize,
}

impl Out {
    fn put(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + field.len()) {
            place.copy_from_slice(field);
            self.at += field.len();
        }
    }

    /// Writes text into `room` bytes with a zero at the end; cuts a longer text after the last
    /// character that fits.
    fn text(&mut self, text: &str, room: usize) {
        let mut field = [0; REASON_BYTES];
        let most = room.min(REASON_BYTES);
        let mut fits = (0..=text.len().min(most - 1)).rev();
        let n = fits.find(|&n| text.is_char_boundary(n)).unwrap_or(0);
        field[..n].copy_from_slice(&text.as_bytes()[..n]);
        self.put(&field[..most]);
    }
}

/// A message that is being read. No message has more fields than bytes.
struct In<'a> {
    bytes: &'a [u8; BYTES],
    at: usize,
}

impl In<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let field = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        self.at += N;
        field.copied().unwrap_or([0; N])
    }

    fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    /// Reads the text in `room` bytes, without unprintable characters.
    fn text(&mut self, room: usize) -> String {
        let field = self.bytes.get(self.at..).and_then(|rest| rest.get(..room)).unwrap_or(&[]);
        self.at += room;
        let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
        let text = String::from_utf8_lossy(&field[..end]);
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = Message> {
        let n = any::<u16>;
        prop_oneof![
            Just(Message::Ack),
            (n(), n(), n(), n(), n(), any::<u8>()).prop_map(
                |(a, b, region_max, to_client_max, from_client_max, ring_power_max)| {
                    Message::Hello {
                        versions: (a, b),
                        region_max,
                        to_client_max,
                        from_client_max,
                        ring_power_max,
                    }
                }
            ),
            (n(), any::<u32>(), any::<u8>(), any::<[u8; SECRET_BYTES]>()).prop_map(
                |(version, id, mode, secret)| Message::Init { version, id, mode, secret }
            ),
            (n(), any::<u64>()).prop_map(|(index, bytes)| Message::AddRegion { index, bytes }),
            (any::<bool>(), n(), n(), any::<u32>(), any::<u8>(), n()).prop_map(
                |(from_client, index, region, offset, power, private_bytes)| {
                    Message::AddRing(RingPlace {
                        from_client,
                        index,
                        region,
                        offset,
                        power,
                        private_bytes,
                    })
                }
            ),
            Just(Message::Connect),
            Just(Message::Connected),
            "[ -~]{0,95}".prop_map(Message::Disconnect),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(message in any_message()) {
            prop_assert_eq!(Message::decode(&message.encode("linerate")), Some(message));
        }

        #[test]
        fn whatever_comes_is_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..140)) {
            if bytes.len() != BYTES {
                prop_assert_eq!(Message::decode(&bytes), None);
            }
            let _ = Message::decode(&bytes);
        }
    }

    #[test]
    fn fields_are_where_the_protocol_has_them() {
        let hello = Message::Hello {
            versions: (VERSION, VERSION),
            region_max: 1,
            to_client_max: 2,
            from_client_max: 3,
            ring_power_max: 14,
        };
        let bytes = hello.encode("me");
        assert_eq!(
            (&bytes[..5], &bytes[34..45]),
            (&[2, 0, b'm', b'e', 0][..], &[0, 2, 0, 2, 1, 0, 2, 0, 3, 0, 14][..])
        );
        let ring = RingPlace {
            from_client: true,
            index: 2,
            region: 3,
            offset: 0x0405_0607,
            power: 10,
            private_bytes: 0x0b,
        };
        assert_eq!(
            Message::AddRing(ring).encode("")[..16],
            [5, 0, 1, 0, 2, 0, 3, 0, 7, 6, 5, 4, 10, 11, 0, 0]
        );
        let init = Message::Init { version: VERSION, id: 9, mode: 0, secret: [7; SECRET_BYTES] };
        let bytes = init.encode("me");
        assert_eq!(bytes[..9], [3, 0, 0, 2, 9, 0, 0, 0, 0]);
        assert_eq!(&bytes[9..33], &[7; 24][..]);
        assert_eq!(&bytes[33..36], &[b'm', b'e', 0][..]);
        let region = Message::AddRegion { index: 1, bytes: 0x10000 };
        assert_eq!(region.encode("")[..12], [4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_reason_is_cut_where_it_does_not_fit_and_printable_where_it_came() {
        let long = Message::Disconnect("x".repeat(200));
        assert_eq!(Message::decode(&long.encode("")), Some(Message::Disconnect("x".repeat(95))));
        // Found by the fuzzer: a text was cut inside a character, and its reader read another text.
        let cut = Message::Disconnect("x".to_owned() + &"\u{fffd}".repeat(32));
        let read = Message::decode(&cut.encode("")).unwrap();
        assert_eq!(read, Message::Disconnect("x".to_owned() + &"\u{fffd}".repeat(31)));
        let mut bytes = Message::Disconnect(String::new()).encode("");
        bytes[6..10].copy_from_slice(b"a\x1b[2");
        assert_eq!(Message::decode(&bytes), Some(Message::Disconnect("a [2".into())));
    }
}
