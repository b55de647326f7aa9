//! Segmentation of superframes in software.
//!
//! ```text
//!   eth ip tcp │ payload of up to 64 KiB            one superframe, gso_size a piece
//!   eth ip tcp │ piece   eth ip tcp │ piece   …     its headers before each, with their own lengths,
//!                                                   numbers, flags and checksums
//! ```
//!
//! Headers in front of that IP header (IPIP, 6in4, VXLAN, Geneve, GRE) get lengths, numbers and
//! checksums of their own, too. Extension headers of IPv6 are repeated before each segment as they
//! are.
//!
//! Owners: the transmit preparation, which cuts as a device has room, and callers of [`cut`], which
//! need the segments of a superframe all at once.
//!
//! Source: virtio 1.2, 5.1.6.2; net/ipv4/tcp_offload.c `tcp_gso_segment`, net/ipv4/udp_offload.c,
//! net/ipv4/gre_offload.c.

use linerate_skb::{Batch, DropReason, Local, Offload, Skb};
use linerate_sys::vnet::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_UFO};
use linerate_wire::{IPV6_BYTES, checksum};

use crate::host::headers::{GRE, HEADERS_MAX, IP_HEADERS_MAX, IpHeader, TCP, UDP, nested};
use crate::host::tunnel;

const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;
/// Most segments of a superframe: 64 KiB in pieces of 32 bytes, less than the smallest that TCP
/// sends. They bound the work of one packet.
pub const SEGMENTS_MAX: usize = 2048;

/// Appends all segments of the superframe `skb` to `out`, or none; returns true if it appended
/// them.
///
/// Shape:  bytes and fields of `skb` are copied; it stays the caller's. The segments have complete
///         checksums, and leave no work to a device.
/// Errors: false if the superframe is of an unknown kind or contradicts its headers, if a segment
///         would be longer than `longest_bytes` or than the pool of `mem` can hold, if `out` has no
///         room for all segments, or if `mem` has no frames for them.
/// Cost:   its payload is copied twice, and summed once; `scratch` grows to the longest segment.
pub fn cut(
    skb: &Skb,
    longest_bytes: usize,
    mem: &mut Local,
    scratch: &mut Vec<u8>,
    out: &mut Batch,
) -> bool {
    let Ok(mut cutter) = Cutter::of(skb) else { return false };
    if cutter.longest() > longest_bytes.min(mem.pool().packet_max_bytes()) {
        return false;
    }
    let before = out.len();
    if !cutter.cut(skb, mem, scratch, out) {
        out.truncate_to(before, mem);
        return false;
    }
    out.iter_mut().skip(before).for_each(|segment| copy_fields(skb, segment));
    true
}

/// Returns the length in bytes of all segments of a superframe together, each with its headers, as
/// they are sent. Of another packet, and of a superframe that [`cut`] cannot cut, its own length.
///
/// Cost: the headers of a superframe are read.
#[must_use]
pub fn wire_bytes(skb: &Skb) -> u64 {
    let cutter = skb.offload().is_gso().then(|| Cutter::of(skb));
    cutter.and_then(Result::ok).map_or(skb.len() as u64, |cutter| cutter.wire_bytes())
}

/// Copies the fields that the next owner of a packet can read, except the offload. The copy is not
/// shared, so that setting its fields does not fail.
pub(crate) fn copy_fields(from: &Skb, to: &mut Skb) {
    to.set_packet_type(from.packet_type());
    to.set_priority(from.priority());
    to.set_link_type(from.link_type());
    to.set_snapped_bytes(from.snapped_bytes());
    if let Some(cb) = to.cb_mut() {
        *cb = *from.cb();
    }
    to.set_vlan(from.vlan());
    from.stamp_ns().map(|stamp_ns| to.set_stamp_ns(stamp_ns));
    from.mark().map(|mark| to.set_mark(mark));
    from.tc_index().map(|tc_index| to.set_tc_index(tc_index));
    from.hash().map(|hash| to.set_hash(hash));
}

/// Returns true for a superframe of UDP.
pub(crate) fn is_udp(offload: Offload) -> bool {
    offload.gso_type & !GSO_ECN == GSO_UDP_L4
}

/// Returns true for a superframe of a kind that virtio does not define, which no device cuts.
pub(crate) fn is_unknown(offload: Offload) -> bool {
    let kind = offload.gso_type & !GSO_ECN;
    !matches!(kind, GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 | GSO_UFO)
}

/// A superframe, with the state of its segmentation.
#[derive(Debug)]
pub(crate) struct Cutter {
    headers: [u8; HEADERS_MAX],
    /// Bytes of the headers, behind which the payload begins.
    headers_len: usize,
    /// IP headers, the outermost first; the last one precedes the transport header, and the others
    /// are of tunnels.
    ips: [Option<IpHeader>; IP_HEADERS_MAX],
    ip: IpHeader,
    ecn: bool,
    gso_size: usize,
    len: usize,
    /// Number of payload bytes that are in segments already.
    done: usize,
    segments: usize,
}

impl Cutter {
    /// Parses the headers of `skb`.
    ///
    /// # Errors
    /// Why it cannot be cut: `UNSUPPORTED` for a kind that is not known, `MALFORMED` for headers
    /// that contradict it.
    pub fn of(skb: &Skb) -> Result<Cutter, DropReason> {
        let offload = skb.offload();
        let mut headers = [0; HEADERS_MAX];
        let copied = skb.copy_to(0, &mut headers);
        let (v6, protocol) = match offload.gso_type & !GSO_ECN {
            GSO_TCPV4 => (Some(false), TCP),
            GSO_TCPV6 => (Some(true), TCP),
            GSO_UDP_L4 => (None, UDP),
            _ => return Err(DropReason::UNSUPPORTED),
        };
        let mut ips = nested(&headers[..copied]);
        let last = ips.iter().flatten().last().ok_or(DropReason::MALFORMED)?.end;
        let start = usize::from(offload.csum_start);
        // The payload of a datagram may look like a tunnel: the superframe's header is the one
        // whose checksum is left, and the first of its protocol if none is.
        let is_cut = |ip: &IpHeader| match offload.needs_checksum() {
            true => ip.end == start,
            false => ip.protocol == protocol,
        };
        let found = ips.iter().flatten().copied().enumerate().find(|(_, ip)| is_cut(ip));
        let Some((depth, ip)) = found else {
            // If the checksum begins behind the innermost header that was found, the packet is in
            // an unknown tunnel; otherwise its headers contradict its offload.
            let further = offload.needs_checksum() && start > last;
            let reason = if further { DropReason::UNSUPPORTED } else { DropReason::MALFORMED };
            return Err(reason);
        };
        if ip.protocol != protocol || v6.is_some_and(|v6| v6 != ip.v6) {
            return Err(DropReason::MALFORMED);
        }
        ips[depth + 1..].fill(None);
        // The sequence number of GRE would be the same in all segments; the kernel makes no such
        // superframe.
        if ips.iter().flatten().any(|ip| tunnel::is_numbered(&headers[..copied], ip)) {
            return Err(DropReason::UNSUPPORTED);
        }
        Cutter::plan(headers, copied, ips, ip, skb).ok_or(DropReason::MALFORMED)
    }

    fn plan(
        headers: [u8; HEADERS_MAX],
        copied: usize,
        ips: [Option<IpHeader>; IP_HEADERS_MAX],
        ip: IpHeader,
        skb: &Skb,
    ) -> Option<Cutter> {
        let (transport, offload, len) = (ip.end, skb.offload(), skb.len());
        let header_bytes = match ip.protocol {
            UDP => 8,
            _ => usize::from(*headers[..copied].get(transport + 12)? >> 4) * 4,
        };
        let shortest = if ip.protocol == UDP { 8 } else { 20 };
        let headers_len = transport + header_bytes;
        let gso_size = usize::from(offload.gso_size);
        let fits = header_bytes >= shortest && headers_len <= copied;
        if !fits || gso_size == 0 {
            return None;
        }
        if (len - headers_len).div_ceil(gso_size) > SEGMENTS_MAX {
            return None;
        }
        let longest = headers_len + gso_size.min(len - headers_len);
        if !ips.iter().flatten().all(|ip| ip_length(longest, ip) <= usize::from(u16::MAX)) {
            return None;
        }
        let ecn = offload.gso_type & GSO_ECN != 0;
        Some(Cutter { headers, headers_len, ips, ip, ecn, gso_size, len, done: 0, segments: 0 })
    }

    /// Returns the length of the longest segment.
    pub fn longest(&self) -> usize {
        self.headers_len + self.gso_size.min(self.len - self.headers_len)
    }

    /// Returns the length in bytes of all segments together.
    fn wire_bytes(&self) -> u64 {
        let payload = self.len - self.headers_len;
        let segments = payload.div_ceil(self.gso_size).max(1);
        (payload + segments * self.headers_len) as u64
    }

    /// Appends the next segments of `skb` to `out`, as long as `out` has room and `mem` has frames;
    /// returns true after the last segment.
    ///
    /// Shape:  bytes of `skb` are copied; it stays the caller's.
    /// Cost:   its payload is copied twice, and summed once.
    pub fn cut(
        &mut self,
        skb: &Skb,
        mem: &mut Local,
        scratch: &mut Vec<u8>,
        out: &mut Batch,
    ) -> bool {
        let headers = &self.headers[..self.headers_len];
        let payload = self.len - headers.len();
        // Headers without payload are one segment: the kernel, too, takes them for an ordinary
        // packet.
        while (self.done < payload || self.segments == 0) && out.spare() > 0 {
            let piece = self.gso_size.min(payload - self.done);
            scratch.clear();
            scratch.extend_from_slice(headers);
            scratch.resize(headers.len() + piece, 0);
            skb.copy_to(headers.len() + self.done, &mut scratch[headers.len()..]);
            self.number(scratch, self.done + piece == payload);
            let Some(segment) = mem.alloc_copy(scratch) else { return false };
            if let Err(segment) = out.push(segment) {
                // Cannot happen: `out` had room before the segment was made.
                segment.discard(DropReason::NO_FRAME);
                return false;
            }
            self.done += piece;
            self.segments += 1;
        }
        self.done == payload && self.segments > 0
    }

    /// Writes the length, id and checksum of an IP header of a segment.
    fn number_ip(&self, frame: &mut [u8], ip: &IpHeader) {
        // `plan` has checked that the field can hold the length of the longest segment.
        let length = ip_length(frame.len(), ip) as u16;
        if ip.v6 {
            return put(frame, ip.at + 4, length);
        }
        put(frame, ip.at + 2, length);
        let id = be16(frame, ip.at + 4).wrapping_add(self.segments as u16);
        put(frame, ip.at + 4, id);
        put(frame, ip.at + 10, 0);
        let check = checksum::finish(checksum::sum(&frame[ip.at..ip.end]));
        put(frame, ip.at + 10, check);
    }

    /// Writes the lengths, ids, sequence number, flags and checksums of a segment.
    fn number(&self, frame: &mut [u8], last: bool) {
        self.ips.iter().flatten().for_each(|ip| self.number_ip(frame, ip));
        let IpHeader { end: transport, protocol, .. } = self.ip;
        let behind = (frame.len() - transport) as u16;
        let check_at = if protocol == TCP {
            let at = transport + 4;
            let number = [frame[at], frame[at + 1], frame[at + 2], frame[at + 3]];
            let number = u32::from_be_bytes(number).wrapping_add(self.done as u32);
            frame[at..at + 4].copy_from_slice(&number.to_be_bytes());
            if !last {
                frame[transport + 13] &= !FIN_PSH;
            }
            if self.ecn && self.segments > 0 {
                frame[transport + 13] &= !CWR;
            }
            transport + 16
        } else {
            put(frame, transport + 4, behind);
            transport + 6
        };
        put(frame, check_at, 0);
        // The addresses are in the headers, which `frame` begins with.
        let pseudo = self.ip.pseudo(frame, behind).unwrap_or_default();
        let sum = checksum::add(pseudo, checksum::sum(&frame[transport..]));
        put(frame, check_at, check_of(sum, protocol));
        self.number_tunnels(frame, pseudo);
    }

    /// Writes the lengths and checksums of the UDP and GRE headers of tunnels, the innermost first.
    /// The transport header of the segment is complete, and its pseudo header has the sum `pseudo`.
    fn number_tunnels(&self, frame: &mut [u8], pseudo: u16) {
        let transport = self.ip.end;
        for ip in self.ips.iter().rev().flatten().skip(1) {
            let (check_at, outer_pseudo) = match ip.protocol {
                UDP => {
                    let behind = (frame.len() - ip.end) as u16;
                    put(frame, ip.end + 4, behind);
                    // 0 means that there is no checksum.
                    if be16(frame, ip.end + 6) == 0 {
                        continue;
                    }
                    (ip.end + 6, ip.pseudo(frame, behind).unwrap_or_default())
                }
                GRE => match tunnel::gre_check(frame, ip) {
                    Some(offset) => {
                        // The field behind the checksum, which is 0 by RFC 2784. The kernel leaves
                        // it to the one who cuts.
                        put(frame, ip.end + offset + 2, 0);
                        (ip.end + offset, 0)
                    }
                    None => continue,
                },
                _ => continue,
            };
            put(frame, check_at, 0);
            // The bytes from the transport header on need not be summed again: with a right
            // checksum, their sum is the complement of that of the pseudo header. All headers
            // before have an even length.
            let headers = checksum::add(outer_pseudo, checksum::sum(&frame[ip.end..transport]));
            put(frame, check_at, check_of(checksum::add(headers, !pseudo), ip.protocol));
        }
    }
}

/// Returns the checksum of a header of `protocol` over bytes with this `sum`.
fn check_of(sum: u16, protocol: u8) -> u16 {
    // In UDP the checksum 0 means "no checksum", so write its other form, all ones. Source: RFC
    // 768.
    match checksum::finish(sum) {
        0 if protocol == UDP => u16::MAX,
        check => check,
    }
}

/// Returns the length that an IP header states in a frame of `frame_bytes`: IPv6 does not count its
/// fixed header.
fn ip_length(frame_bytes: usize, ip: &IpHeader) -> usize {
    frame_bytes - ip.at - if ip.v6 { IPV6_BYTES } else { 0 }
}

/// Reads a 16-bit number; `plan` has checked that both bytes are within the headers.
fn be16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests;
