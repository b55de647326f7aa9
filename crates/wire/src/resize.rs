//! Longer and shorter payloads: updates of every length and checksum around them.

use crate::ip::{self, HeaderMut};
use crate::partial::{self, Check};
use crate::{HeadMut, Malformed, Protocol, UdpHeader, checksum, eth, udp};

impl HeadMut<'_> {
    /// Sets the length of the UDP datagram's payload to `len`, and updates the lengths and
    /// checksums of UDP and IP: a right checksum stays right, and a checksum of zero (none) stays
    /// zero.
    ///
    /// Shape:  bytes that join the payload become zero, and must be in the slice: the caller has
    ///         put them there. Bytes that leave it stay behind the packet, as Ethernet padding.
    /// Errors: those of [`crate::udp_mut`]; [`Malformed::Short`] if the slice ends before the old
    ///         or the new payload; [`Malformed::BadLength`] for a packet over 64 KiB, and for a
    ///         tunnel around a packet whose checksum is left to a device, which must stay whole.
    ///         Nothing changed.
    /// Cost:   reads or writes the bytes by which the payload changes.
    pub fn set_udp_payload_len(mut self, len: usize) -> Result<(), Malformed> {
        let frame = self.bytes.as_ptr().addr();
        let view = udp::read(self.as_head())?;
        let (at, old) = (partial::offset_in(frame, view.payload()), view.payload().len());
        let end = at.checked_add(len).ok_or(Malformed::BadLength)?;
        // IP may have bytes behind the slice that UDP does not have.
        if view.behind() > 0 || view.ip().behind() > 0 || end > self.bytes.len() {
            return Err(Malformed::Short);
        }
        let segment_len = len + size_of::<UdpHeader>();
        let segment_len = u16::try_from(segment_len).map_err(|_| Malformed::BadLength)?;
        if matches!(view.check(), Check::Inner { .. } | Check::Segments) {
            return Err(Malformed::BadLength);
        }
        let ip_at = partial::offset_in(frame, eth::eth(self.bytes)?.payload());
        if end - ip_at > usize::from(u16::MAX) {
            return Err(Malformed::BadLength);
        }
        let removed = self.bytes.get(end..at + old).map_or(0, checksum::sum);
        let removed = if len.is_multiple_of(2) { removed } else { removed.swap_bytes() };
        if let Some(added) = self.bytes.get_mut(at + old..end) {
            added.fill(0);
        }
        self.reborrow().udp()?.set_len(segment_len, removed);
        let eth::Parts { ether_type, payload, .. } = eth::split(self.bytes)?;
        let (mut ip, ..): (HeaderMut<'_>, _, _) =
            ip::segment_mut(ether_type, payload, 0, Protocol::UDP, Malformed::NotUdp)?;
        ip.set_len(end - ip_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fix_ipv4, udp4_frame, udp6_frame};

    fn udp4(payload: &[u8]) -> Vec<u8> {
        udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), payload)
    }

    #[test]
    fn a_packet_grows_to_64_kib_and_no_further() {
        for (mut frame, headers) in [(udp4(b"payload"), 28), (udp6_frame(b"payload"), 48)] {
            frame.resize(70_000, 0xee);
            let before = frame.clone();
            let most = usize::from(u16::MAX) - headers;
            for len in [most + 1, most + headers, most + headers + 1] {
                let got = HeadMut::new(&mut frame, 0).set_udp_payload_len(len);
                assert_eq!(got, Err(Malformed::BadLength), "{len}");
                assert!(frame == before, "a refused length changes nothing");
            }
            HeadMut::new(&mut frame, 0).set_udp_payload_len(most).unwrap();
            let view = crate::udp(&frame).unwrap();
            assert!(view.payload().len() == most && view.checksum_ok());
        }
    }

    #[test]
    fn bytes_of_ip_behind_the_slice_are_short_even_if_udp_is_all_here() {
        let mut frame = udp4(b"payload");
        frame[17] += 20;
        fix_ipv4(&mut frame);
        let before = frame.clone();
        let mut head = HeadMut::new(&mut frame, 20);
        assert_eq!(head.reborrow().udp().unwrap().behind(), 0);
        assert_eq!(head.set_udp_payload_len(3), Err(Malformed::Short));
        assert_eq!(frame, before);
    }
}
