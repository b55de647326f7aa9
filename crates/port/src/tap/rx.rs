//! Receiving: one `readv` for each packet, into a frame of the pool and an overflow buffer.

use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::time::Duration;

use linerate_skb::{Batch, DropReason, Local, Moved, PacketType, Skb};
use linerate_sys::tun::Tap;
use linerate_sys::vnet::{VNET_HDR_BYTES, VnetHdr};
use linerate_sys::wait::poll_readable;
use rustix::io::Errno;

use crate::host::{Link, PACKET_BYTES_MAX, Retry, headers, offload};

/// The receive state: the overflow buffer for bytes that exceed the first frame, and the result of
/// the last read.
pub(super) struct Rx {
    /// Length of the offload header before each packet: 0 if there is none.
    header_bytes: usize,
    overflow: Vec<u8>,
    /// Batch in which an unused frame returns to the pool.
    unused: Batch,
    /// True if the last read found no packet, and none is known to have come since.
    pub drained: bool,
    /// The next attempt while the pool has no frame; meanwhile the descriptor may be readable
    /// although nothing can be received.
    pub starved: Retry,
    /// Number of receives that ended early because the pool had no frame.
    pub rx_nombuf: u64,
    /// Packets received so far.
    pub packets: u64,
}

impl Rx {
    /// Creates the state of a queue whose packets have an offload header if `vnet` is true.
    pub fn new(vnet: bool) -> Rx {
        Rx {
            header_bytes: if vnet { VNET_HDR_BYTES } else { 0 },
            overflow: vec![0; PACKET_BYTES_MAX],
            unused: Batch::with_capacity(1),
            drained: true,
            starved: Retry::default(),
            rx_nombuf: 0,
            packets: 0,
        }
    }

    /// Reads up to `budget` packets into `out`.
    ///
    /// Shape:  device -> out[len..len+n], n <= budget, in order. Without a free frame nothing is
    ///         read: packets wait in the interface's queue, which drops when it is full.
    /// Errors: none; a packet that was read and finds too few frames, or contradicts its header, is
    ///         dropped with the reason, and so is one that the kernel could not deliver.
    /// Cost:   one syscall a packet, and one that finds nothing, or no frame; what is longer than a
    ///         frame is copied once more.
    pub fn receive(
        &mut self,
        tap: &Tap,
        link: &mut Link,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        self.starved = Retry::default();
        let mut received = Moved::default();
        for _ in 0..budget.min(out.spare()) {
            let Some(mut skb) = mem.alloc_one() else {
                self.drained = !is_readable(tap);
                if !self.drained {
                    self.starved = Retry::later();
                    self.rx_nombuf += 1;
                }
                break;
            };
            match self.read(tap, &mut skb) {
                Ok((header, len)) => {
                    self.drained = false;
                    match self.complete(mem, &mut skb, &header, len) {
                        Ok(()) => {
                            received += Moved { packets: 1, bytes: len as u64 };
                            // `push` cannot fail: `out` has room for `budget` packets.
                            let _ = out.push(skb);
                        }
                        Err(reason) => {
                            mem.count_received(1);
                            skb.discard(reason);
                        }
                    }
                }
                Err(Errno::INVAL | Errno::FAULT | Errno::IO) => {
                    // The kernel took a packet and could not deliver it: another program changed
                    // the length of the interface's offload headers.
                    self.drained = false;
                    mem.count_received(1);
                    skb.discard(DropReason::MALFORMED);
                }
                Err(errno) => {
                    // Polling the descriptor shows when there is more to read.
                    self.drained = true;
                    self.put_back(mem, skb);
                    match errno {
                        Errno::AGAIN => {}
                        Errno::BADFD | Errno::NODEV => link.lost(),
                        _ => link.look(),
                    }
                    break;
                }
            }
        }
        self.packets += received.packets as u64;
        received
    }

    /// Returns true if a packet waits and a frame may be free for it.
    ///
    /// Cost: one syscall unless the last read found nothing.
    pub fn is_waiting(&mut self, tap: &Tap) -> bool {
        let may_be = !self.starved.is_pending() && !self.drained;
        may_be && is_readable(tap)
    }

    /// Reads one packet: its header if it has one, then its first bytes into `skb`, then the rest
    /// into the overflow buffer.
    fn read(&mut self, tap: &Tap, skb: &mut Skb) -> rustix::io::Result<(VnetHdr, usize)> {
        let mut header = [0; VNET_HDR_BYTES];
        let n = tap.read_vectored(&mut [
            IoSliceMut::new(&mut header[..self.header_bytes]),
            // Empty if a peer can write the frame: then all bytes go to the overflow buffer.
            IoSliceMut::new(skb.spare_mut()),
            IoSliceMut::new(&mut self.overflow),
        ])?;
        // The read has at least the header; otherwise the kernel would have failed.
        let len = n.checked_sub(self.header_bytes).ok_or(Errno::IO)?;
        Ok((VnetHdr::from_bytes(header), len))
    }

    /// Frees frames that hold no packet of their own.
    fn put_back(&mut self, mem: &mut Local, skb: Skb) {
        // `push` cannot fail: the batch was emptied after its last use.
        let _ = self.unused.push(skb);
        self.unused.truncate_to(0, mem);
    }

    /// Makes a packet from the first `len` bytes that were read.
    fn complete(
        &mut self,
        mem: &mut Local,
        skb: &mut Skb,
        header: &VnetHdr,
        len: usize,
    ) -> Result<(), DropReason> {
        if len > PACKET_BYTES_MAX.min(mem.pool().packet_max_bytes()) {
            return Err(DropReason::TOO_LONG);
        }
        let direct = skb.spare_mut().len().min(len);
        if direct == 0 && len <= skb.tailroom() {
            // A peer can write the frame, so the bytes are in the overflow buffer.
            skb.commit(len);
            skb.copy_from(0, &self.overflow[..len]);
        } else if direct == 0 {
            let copy = mem.alloc_copy(&self.overflow[..len]).ok_or(DropReason::NO_FRAME)?;
            self.put_back(mem, std::mem::replace(skb, copy));
        } else {
            skb.commit(direct);
            if len > direct {
                let rest = mem.alloc_copy(&self.overflow[..len - direct]);
                if let Err(rest) = skb.append(rest.ok_or(DropReason::NO_FRAME)?) {
                    self.put_back(mem, rest);
                    return Err(DropReason::TOO_LONG);
                }
            }
        }
        let (left, packet_type) =
            headers::of(skb, |data| (offload::received(header, data, len), packet_type(data)));
        skb.set_offload(left.ok_or(DropReason::MALFORMED)?);
        skb.set_packet_type(packet_type);
        Ok(())
    }
}

/// Returns true if a packet waits, or the descriptor is in error.
///
/// Cost: one syscall.
fn is_readable(tap: &Tap) -> bool {
    poll_readable(&[tap.as_fd()], Some(Duration::ZERO)).unwrap_or(false)
}

/// Returns the class of a packet's destination. Every packet that the interface sends is for this
/// end.
fn packet_type(data: &[u8]) -> PacketType {
    match data.first_chunk::<6>() {
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => PacketType::Broadcast,
        Some([first, ..]) if first & 1 == 1 => PacketType::Multicast,
        _ => PacketType::Host,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use linerate_skb::{Offload, Pool};
    use linerate_sys::netif::Interface;
    use linerate_sys::tun::TapOffloads;
    use linerate_sys::vnet::F_NEEDS_CSUM;

    use super::*;
    use crate::host::testing::{
        bytes, chains, eventually, in_netns, ip, ipv6, queue, send, stamped,
    };

    /// Sets the length of the interface's offload headers, as another program can that has a queue.
    fn set_header_bytes(tap: &Tap, bytes: i32) {
        let fd = tap.as_fd().as_raw_fd();
        // SAFETY: TUNSETVNETHDRSZ reads an int at the address, which is borrowed for the call.
        assert_eq!(unsafe { libc::ioctl(fd, libc::TUNSETVNETHDRSZ, &raw const bytes) }, 0);
    }

    #[test]
    fn a_packet_that_the_kernel_could_not_deliver_is_counted_and_the_next_is_read() {
        in_netns(|| {
            let pool = Pool::builder().frames(32).build().unwrap();
            let (mut mem, mut rx) = (pool.local(), Rx::new(true));
            let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
            let mut link = Link::of_descriptor(Interface::open("t0").unwrap());
            ip("link set t0 up");
            let mut host = queue("packet:t0");
            let mut out = Batch::with_capacity(32);
            // The kernel's own packets, such as its search for routers, come at first.
            set_header_bytes(&tap, 1 << 20);
            send(&mut host, &[stamped(1, 60), stamped(2, 60)], Offload::NONE);
            eventually(|| {
                rx.receive(&tap, &mut link, &mut mem, &mut out, 32);
                pool.ledger().dropped(DropReason::MALFORMED) >= 2
            });
            assert!(out.is_empty() && rx.drained);
            set_header_bytes(&tap, VNET_HDR_BYTES as i32);
            send(&mut host, &[stamped(3, 60)], Offload::NONE);
            eventually(|| {
                rx.receive(&tap, &mut link, &mut mem, &mut out, 32);
                out.iter().any(|skb| bytes(skb) == stamped(3, 60))
            });
            let ledger = pool.ledger();
            // The queue counts the packets that it hands out.
            assert_eq!(ledger.received, ledger.dropped_total(), "{ledger}");
        });
    }

    #[test]
    fn a_checksum_behind_headers_of_several_frames_is_accepted_and_one_in_them_is_malformed() {
        let pool = Pool::builder().frames(32).frame_size(256).headroom(192).build().unwrap();
        let (mut mem, mut rx) = (pool.local(), Rx::new(true));
        for (first, chain) in chains(17) {
            let frame = ipv6(first, &chain, 17, 64);
            let start = 54 + chain.len() as u16;
            for (csum_start, wanted) in [(start, Ok(())), (start - 8, Err(DropReason::MALFORMED))] {
                let flags = F_NEEDS_CSUM;
                let header = VnetHdr { flags, csum_start, csum_offset: 6, ..VnetHdr::NONE };
                let mut skb = mem.alloc_one().unwrap();
                let direct = skb.spare_mut().len();
                assert!(direct < frame.len());
                skb.spare_mut().copy_from_slice(&frame[..direct]);
                rx.overflow[..frame.len() - direct].copy_from_slice(&frame[direct..]);
                let done = rx.complete(&mut mem, &mut skb, &header, frame.len());
                assert_eq!(done, wanted, "{first}");
                assert!(bytes(&skb) == frame, "{first}");
            }
        }
    }
}
