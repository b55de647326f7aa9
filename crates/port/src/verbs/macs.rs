//! The peer behind which a MAC address was last seen, as a bridge learns it.

use linerate_wire::Mac;

/// Number of places: an address has one, and the last one that was seen there has it.
const PLACES: usize = 1024;

/// A table of addresses. It never grows, and a peer that uses many addresses only makes packets to
/// others go to all.
pub(super) struct Macs(Box<[Option<(Mac, usize)>]>);

impl Macs {
    pub fn new() -> Macs {
        Macs(vec![None; PLACES].into())
    }

    /// Records that packets from `mac` come from `peer`.
    #[inline]
    pub fn saw(&mut self, mac: Mac, peer: usize) {
        if !mac.is_multicast() {
            self.0[place(mac)] = Some((mac, peer));
        }
    }

    /// Returns the peer of `mac`, if it is known.
    #[inline]
    pub fn peer(&self, mac: Mac) -> Option<usize> {
        self.0[place(mac)].filter(|(known, _)| *known == mac).map(|(_, peer)| peer)
    }

    /// Forgets all addresses of `peer`.
    pub fn forget(&mut self, peer: usize) {
        self.0
            .iter_mut()
            .filter(|place| place.is_some_and(|(_, of)| of == peer))
            .for_each(|place| *place = None);
    }
}

fn place(mac: Mac) -> usize {
    let [a, b, c, d, e, f] = mac.0;
    let number = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_peer_of_an_address_is_known_until_it_goes() {
        let (mut macs, mac) = (Macs::new(), Mac([2, 0, 0, 0, 0, 7]));
        assert_eq!(macs.peer(mac), None);
        macs.saw(mac, 3);
        macs.saw(mac, 4);
        assert_eq!((macs.peer(mac), macs.peer(Mac([2, 0, 0, 0, 0, 8]))), (Some(4), None));
        macs.forget(3);
        assert_eq!(macs.peer(mac), Some(4));
        macs.forget(4);
        assert_eq!(macs.peer(mac), None);
        macs.saw(Mac([255; 6]), 1);
        assert_eq!(macs.peer(Mac([255; 6])), None, "a group is behind no one peer");
    }

    #[test]
    fn places_are_within_the_table() {
        for n in 0..10_000u32 {
            let [a, b, c, d] = n.to_be_bytes();
            assert!(place(Mac([2, 0, a, b, c, d])) < PLACES);
        }
        assert!(place(Mac([255; 6])) < PLACES && place(Mac([0; 6])) < PLACES);
    }
}
