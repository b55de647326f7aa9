//! Operations of a driver on runs of plain packets (nearly all packets), without a look-up for
//! each.
//!
//! A packet is plain if it is one ordinary frame that is not shared and holds nothing, no work on
//! it is left to a device, and its metadata has no VLAN tag. Such a packet has no flags. The calls
//! work on plain packets of one pool and stop at the first that is not plain; the methods of [`Skb`](crate::Skb) take any packet.

use crate::batch::Batch;
use crate::handle::{self, FLAG};
use crate::lanes::{Offload, lane};
use crate::lend::Span;
use crate::meta::Meta;
use crate::policy::{Data, Trust};
use crate::pool::Pool;
use crate::skb::{Skb, Unique};
use crate::umem::Umem;
use crate::verdict::Moved;

/// Lanes with work that is left to a device: a checksum or a cut, and the insertion of a VLAN tag.
const WORK: u16 = lane::OFFLOAD | lane::VLAN;

impl Batch<Unique> {
    /// Returns true if `left` returns true for a packet that leaves a checksum or a cut to the
    /// device, or whose VLAN tag is in the metadata. `left` is called for such packets only, up to
    /// the first for which it returns true.
    ///
    /// Cost: a cache line read a packet, and one more of those that leave work.
    #[must_use]
    #[inline]
    pub fn any_offload(&self, mut left: impl FnMut(&Skb, Offload) -> bool) -> bool {
        let Some(&first) = self.handles().first() else { return false };
        let umem = Umem::of(first);
        self.iter().any(|skb| {
            let offload = match line(umem, skb.raw()) {
                Some(meta) if meta.lanes & WORK == 0 => return false,
                Some(meta) if meta.lanes & lane::OFFLOAD == 0 => Offload::NONE,
                // SAFETY: as for the hot line; the lane's bit is set, so the field was written.
                Some(_) => unsafe { umem.cold(skb.raw()).as_ref() }.offload,
                None => skb.offload(),
            };
            (offload.is_pending() || skb.vlan().is_some()) && left(skb, offload)
        })
    }

    /// Writes the location of the first packets' bytes in `pool`'s memory into `spans`, one span
    /// for each packet, for a device to read; returns how many. Stops at the end of `spans`, and at
    /// the first packet that is not plain or not of that pool.
    ///
    /// Cost: a cache line read a packet.
    pub fn plain_spans(&self, pool: &Pool, spans: &mut [Span]) -> usize {
        let umem = pool.umem();
        if umem.data_from() == Data::General {
            return 0;
        }
        let shift = umem.frame_bytes().trailing_zeros();
        let mut n = 0;
        for (&handle, span) in self.handles().iter().zip(spans) {
            let Some(meta) = plain(umem, handle) else { break };
            let start = u64::from(handle::frame(handle)) << shift;
            *span = Span { offset: start + u64::from(meta.off), len: meta.len };
            n += 1;
        }
        n
    }

    /// Passes the bytes of the first packets to `visit`, one packet at a time; stops at a packet
    /// that is not plain, is of another pool or of one that a peer can write, or for which `visit`
    /// returns false. Returns the packets and bytes for which `visit` returned true.
    ///
    /// Cost: a cache line read a packet, beside its bytes.
    pub fn plain_data(&self, mut visit: impl FnMut(&[u8]) -> bool) -> Moved {
        let mut moved = Moved::default();
        let Some(&first) = self.handles().first() else { return moved };
        let umem = Umem::of(first);
        for &handle in self.handles() {
            let Some(meta) = plain(umem, handle) else { break };
            let place = umem.place(handle);
            if place.trust == Trust::Exported {
                break;
            }
            // SAFETY: off + len lies within the frame for every line. The frame is private, and the
            // batch, which is borrowed, has the only handle on it, so no thread writes the frame
            // meanwhile.
            let data = unsafe {
                let start = place.start.as_ptr().add(meta.off as usize);
                std::slice::from_raw_parts(start, meta.len as usize)
            };
            if !visit(data) {
                break;
            }
            moved += Moved { packets: 1, bytes: u64::from(meta.len) };
        }
        moved
    }

    /// Lets `fill` write into the tailroom of each packet from number `start` on; stops at a packet
    /// that is not plain, is of another pool or of one that a peer can write. `fill` returns how
    /// many bytes it wrote, and they become data. Returns the packets and bytes written.
    ///
    /// Cost: a cache line written a packet, beside its bytes.
    pub fn fill_from(
        &mut self,
        start: usize,
        mut fill: impl FnMut(&mut [u8]) -> Option<usize>,
    ) -> Moved {
        let mut moved = Moved::default();
        let handles = self.handles().get(start..).unwrap_or(&[]);
        let Some(&first) = handles.first() else { return moved };
        let umem = Umem::of(first);
        for &handle in handles {
            if plain(umem, handle).is_none() {
                break;
            }
            let place = umem.place(handle);
            if place.trust == Trust::Exported {
                break;
            }
            // SAFETY: a plain packet's handle is the only one on its frame, and `&mut self` borrows
            // it; off + len lies within the frame.
            let (meta, room) = unsafe {
                let meta = umem.meta(handle).as_mut();
                let end = (meta.off + meta.len) as usize;
                let room = place.bytes as usize - end;
                (meta, std::slice::from_raw_parts_mut(place.start.as_ptr().add(end), room))
            };
            let most = room.len();
            let Some(bytes) = fill(room) else { break };
            let bytes = bytes.min(most);
            meta.len += bytes as u32;
            moved += Moved { packets: 1, bytes: bytes as u64 };
        }
        moved
    }
}

/// Returns the line of a plain packet of `umem`, which the caller's batch owns.
#[inline]
fn plain(umem: &Umem, handle: u32) -> Option<&Meta> {
    line(umem, handle).filter(|meta| meta.lanes & WORK == 0)
}

/// Returns the hot line of `handle` if it is an unshared packet of `umem` in one frame; the
/// caller's batch owns the packet.
#[inline]
fn line(umem: &Umem, handle: u32) -> Option<&Meta> {
    if handle & FLAG != 0 || handle::umem(handle) != umem.id() as usize {
        return None;
    }
    // SAFETY: the line was initialised at allocation. The handle is unflagged, so it is the only
    // one, and the caller borrows its owner, so no thread writes the line meanwhile.
    Some(unsafe { umem.meta(handle).as_ref() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Offload, Skb, Vlan};

    fn pool(trust: Trust) -> Pool {
        Pool::builder().frames(64).trust(trust).build().unwrap()
    }

    /// Returns a batch of four: two plain packets, `third`, and a plain packet.
    fn batch(pool: &Pool, third: Skb) -> Batch {
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(4));
        for bytes in [&b"one"[..], b"two!"] {
            batch.push(mem.alloc_copy(bytes).unwrap()).unwrap();
        }
        batch.push(third).unwrap();
        batch.push(mem.alloc_copy(b"last").unwrap()).unwrap();
        batch
    }

    /// Returns packets that are not plain, or are of another pool than `pool`.
    fn others(pool: &Pool) -> Vec<(Skb, Option<Skb<crate::Shared>>)> {
        let mut mem = pool.local();
        let mut shared = mem.alloc_copy(b"shared").unwrap();
        let other = shared.share();
        let chain = mem.alloc_copy(&[7; 3000]).unwrap();
        let mut partial = mem.alloc_copy(&[7; 60]).unwrap();
        partial.set_offload(Offload { flags: 1, csum_start: 20, csum_offset: 6, ..Offload::NONE });
        let mut tagged = mem.alloc_copy(&[7; 60]).unwrap();
        tagged.set_vlan(Some(Vlan { tci: 5, protocol: 0x8100 }));
        let foreign = self::pool(pool.trust()).local().alloc_copy(b"foreign").unwrap();
        let mut both = mem.alloc_copy(&[7; 60]).unwrap();
        both.set_offload(partial.offload());
        let again = both.share();
        let mut others = vec![(shared, Some(other)), (both, Some(again))];
        others.extend([chain, partial, tagged, foreign].map(|skb| (skb, None)));
        others
    }

    #[test]
    fn work_left_to_a_device_is_found_behind_packets_of_any_kind() {
        let pool = pool(Trust::Private);
        assert!(!Batch::<Unique>::with_capacity(1).any_offload(|_, _| true));
        for (third, _other) in others(&pool) {
            let offload = third.offload();
            let leaves = offload.is_pending() || third.vlan().is_some();
            let mut batch = batch(&pool, third);
            assert_eq!(batch.any_offload(|_, left| left == offload), leaves);
            let last = batch.iter_mut().last().unwrap();
            last.set_offload(Offload { gso_type: 1, gso_size: 2, ..Offload::NONE });
            assert!(batch.any_offload(|_, _| true));
        }
    }

    #[test]
    fn a_run_ends_with_the_first_packet_that_is_not_plain() {
        for trust in [Trust::Private, Trust::Exported] {
            let pool = pool(trust);
            for (third, _other) in others(&pool) {
                let batch = batch(&pool, third);
                let mut spans = [Span::default(); 4];
                assert_eq!(batch.plain_spans(&pool, &mut spans), 2);
                for (skb, span) in batch.iter().zip(&spans[..2]) {
                    assert_eq!(skb.spans().collect::<Vec<_>>(), [*span]);
                }
                assert_eq!(batch.plain_spans(&pool, &mut spans[..1]), 1);
                let mut seen = Vec::new();
                let moved = batch.plain_data(|data| {
                    seen.push(data.to_vec());
                    true
                });
                match trust {
                    Trust::Private => {
                        assert_eq!(seen, [&b"one"[..], b"two!"]);
                        assert_eq!((moved.packets, moved.bytes), (2, 7));
                    }
                    Trust::Exported => assert_eq!((moved.packets, seen.len()), (0, 0)),
                }
            }
        }
    }

    #[test]
    fn filled_bytes_become_data_up_to_the_room() {
        let pool = pool(Trust::Private);
        let mut batch = batch(&pool, pool.local().alloc_copy(b"three").unwrap());
        let room = pool.data_room();
        let mut calls = 0;
        let moved = batch.fill_from(1, |bytes| {
            calls += 1;
            bytes[..2].copy_from_slice(b"xy");
            match calls {
                1 => Some(2),
                2 => Some(usize::MAX),
                _ => None,
            }
        });
        assert_eq!((calls, moved.packets), (3, 2));
        assert_eq!(moved.bytes as usize, 2 + room - 5);
        let data: Vec<&[u8]> = batch.iter().map(Skb::data).collect();
        assert_eq!((data[0], data[1], data[3]), (&b"one"[..], &b"two!xy"[..], &b"last"[..]));
        assert_eq!((data[2].len(), &data[2][..7]), (room, &b"threexy"[..]));
        let exported = self::pool(Trust::Exported);
        let mut batch = self::batch(&exported, exported.local().alloc_copy(b"three").unwrap());
        assert_eq!(batch.fill_from(0, |_| panic!("a peer may write it")).packets, 0);
        assert_eq!(batch.plain_data(|_| false).packets, 0);
    }

    #[test]
    fn packets_of_the_general_allocator_have_data_and_no_spans() {
        let pool = Pool::builder().frames(8).data(Data::General).build().unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(2));
        mem.alloc(&mut batch, 2);
        let moved = batch.fill_from(0, |room| {
            room[..3].copy_from_slice(b"abc");
            Some(3)
        });
        assert_eq!((moved.packets, moved.bytes), (2, 6));
        assert_eq!(batch.plain_data(|data| data == b"abc").packets, 2);
        assert_eq!(batch.plain_spans(&pool, &mut [Span::default(); 2]), 0);
    }
}
