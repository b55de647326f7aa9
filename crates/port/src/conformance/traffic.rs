//! The suite's packets, and the check that each arrives once, complete, and in the order of its
//! flow.

use std::collections::BTreeMap;

use linerate_skb::Skb;
use linerate_wire::EtherType;

/// Length of the shortest packet with room for its id.
pub(super) const LEN_MIN: usize = 14;

const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// First byte of the source address: it marks a locally administered address, not a group.
const MARK: u8 = 6;

/// A packet's flow, and its number in the flow.
pub(super) type Id = (u8, u32);

/// One packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub id: Id,
    pub len: usize,
    /// Bytes of the packet in each frame; by default as many as fit.
    pub piece: usize,
}

impl Packet {
    pub fn new(flow: u8, seq: u32, len: usize) -> Packet {
        Packet { id: (flow, seq), len, piece: usize::MAX }
    }

    /// Returns the same packet in frames of `piece` bytes.
    pub fn in_pieces(self, piece: usize) -> Packet {
        Packet { piece, ..self }
    }

    /// Returns the packet's bytes: a header, then a pattern computed from its number and length.
    pub fn bytes(self) -> Vec<u8> {
        let (flow, seq) = self.id;
        let mut bytes = Vec::with_capacity(self.len.max(LEN_MIN));
        bytes.extend(TO);
        bytes.extend([MARK, flow]);
        bytes.extend(seq.to_be_bytes());
        bytes.extend(EtherType::EXPERIMENT.0.to_be_bytes());
        let mut state = u64::from(flow) << 56 ^ u64::from(seq) << 20 ^ self.len as u64 ^ 0x5eed;
        while bytes.len() < self.len {
            // Use the upper half of the next number of a linear congruential generator.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.extend(((state >> 32) as u32).to_be_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }
}

/// Returns the id of `skb`, if it is a packet of the suite.
pub(super) fn id_of(skb: &Skb) -> Option<Id> {
    let mut head = [0; LEN_MIN];
    (skb.copy_to(0, &mut head) == LEN_MIN).then_some(())?;
    let [d0, d1, d2, d3, d4, d5, MARK, flow, s0, s1, s2, s3, t0, t1] = head else { return None };
    let ours = [d0, d1, d2, d3, d4, d5] == TO && [t0, t1] == EtherType::EXPERIMENT.0.to_be_bytes();
    ours.then_some((flow, u32::from_be_bytes([s0, s1, s2, s3])))
}

/// Returns packets of `flow` with consecutive numbers and the given lengths.
pub(super) fn of_lengths(flow: u8, lengths: impl IntoIterator<Item = usize>) -> Vec<Packet> {
    (0..).zip(lengths).map(|(seq, len)| Packet::new(flow, seq, len)).collect()
}

/// The packets that are expected, and those that have arrived.
pub(super) struct Arrivals {
    /// The length of each expected packet, and true if the packet has arrived.
    expected: BTreeMap<Id, (usize, bool)>,
    /// The number of the last packet that has arrived, for each flow.
    last: BTreeMap<u8, Option<u32>>,
    came: usize,
}

impl Arrivals {
    pub fn of(packets: &[Packet]) -> Arrivals {
        let mut arrivals = Arrivals { expected: BTreeMap::new(), last: BTreeMap::new(), came: 0 };
        arrivals.expect(packets);
        arrivals
    }

    /// Adds packets to the expected ones.
    pub fn expect(&mut self, packets: &[Packet]) {
        for packet in packets {
            self.expected.insert(packet.id, (packet.len, false));
            self.last.entry(packet.id.0).or_default();
        }
    }

    /// Returns the number of packets that have arrived.
    pub fn came(&self) -> usize {
        self.came
    }

    /// Returns true if this packet has arrived.
    pub fn has(&self, id: Id) -> bool {
        self.expected.get(&id).is_some_and(|(_, came)| *came)
    }

    /// Checks a received packet; packets of other flows belong to other programs and are ignored.
    pub fn take(&mut self, skb: &Skb) {
        let Some(id) = id_of(skb) else { return };
        let Some(last) = self.last.get_mut(&id.0) else { return };
        let (flow, seq) = id;
        let name = format!("packet {seq} of flow {flow}");
        let Some((len, came)) = self.expected.get_mut(&id) else {
            panic!("{name} came, which was never sent")
        };
        assert!(!*came, "{name} came twice");
        assert!(*last < Some(seq), "{name} came after packet {}", last.unwrap_or(0));
        assert_eq!(skb.len(), *len, "bytes that {name} came with, and that it was sent with");
        let mut bytes = vec![0; skb.len()];
        let copied = skb.copy_to(0, &mut bytes);
        assert_eq!(copied, bytes.len(), "bytes that can be read of {name}, and its length");
        let sent = Packet::new(flow, seq, *len).bytes();
        let differs = bytes.iter().zip(&sent).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{name} of {len} bytes differs from there on");
        (*came, *last) = (true, Some(seq));
        self.came += 1;
    }

    /// Describes the packets that are missing.
    pub fn missing(&self) -> String {
        let missing: Vec<_> = self.expected.iter().filter(|(_, (_, came))| !came).collect();
        let first = missing
            .first()
            .map(|((flow, seq), (len, _))| format!("packet {seq} of flow {flow}, {len} bytes"));
        let first = first.unwrap_or_default();
        format!("{} of {} never came, first {first}", missing.len(), self.expected.len())
    }
}
