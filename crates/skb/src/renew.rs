//! Renewal: sent packets become new, empty packets, without freeing and allocating their frames.

use crate::batch::Batch;
use crate::handle::{Common, FLAG};
use crate::skb::Unique;
use crate::umem::Umem;

impl Batch<Unique> {
    /// Resets the packets to empty ones, with every field as after allocation; returns how many.
    ///
    /// Shape:  the same packets in the same frames; no counter changes. Those that share their
    ///         bytes or ever did, hold something, have fragments, are jumbo, or carry the time of
    ///         their allocation ([`Pool::set_sampling`](crate::Pool::set_sampling)) stay as they
    ///         are.
    /// Errors: none.
    /// Cost:   one cache line written a packet and no other touched: the line that
    ///         [`Init`](crate::Init) moves from one core to another.
    pub fn renew(&mut self) -> usize {
        let handles = self.handles();
        let common = Common::of(handles);
        match common.umem() {
            Some(id) if !common.flagged() => {
                // SAFETY: each unflagged handle is the only one on its frame, and `&mut self`
                // borrows it exclusively; all handles are of this umem.
                unsafe { Umem::numbered(id).write_lines(handles) };
                handles.len()
            }
            _ => renew_plain(handles),
        }
    }
}

/// Renews the plain packets of a list in which some handles are flagged, or which has packets of
/// several umems.
#[cold]
fn renew_plain(handles: &[u32]) -> usize {
    let plain = handles.iter().filter(|handle| **handle & FLAG == 0);
    plain
        .map(|handle| {
            let umem = Umem::numbered(crate::handle::umem(*handle));
            // SAFETY: as in `Batch::renew`, which still borrows the batch exclusively.
            unsafe { umem.write_lines(&[*handle]) };
        })
        .count()
}

#[cfg(test)]
mod tests {
    use crate::{Batch, Data, Init, PacketType, Pool, Skb};

    /// Returns all fields of a packet, and its memory if the data is in frames: the system's
    /// allocator may give two blocks of one size different room.
    fn fields(skb: &Skb, data: Data) -> impl PartialEq + std::fmt::Debug {
        let truesize = (data == Data::Frames).then(|| skb.truesize());
        let kept = (skb.stamp_ns(), skb.mark(), skb.tc_index(), skb.hash(), skb.vlan());
        let shape = (skb.len(), skb.headroom(), skb.tailroom(), skb.fragments(), truesize);
        let hot = (skb.packet_type(), skb.priority(), skb.link_type(), skb.snapped_bytes());
        (kept, shape, skb.offload(), hot, *skb.cb(), skb.holds())
    }

    fn written(skb: &mut Skb) {
        assert!(skb.put_slice(b"something"));
        assert!(skb.set_priority(7) && skb.set_mark(8) && skb.set_stamp_ns(9));
        assert!(skb.set_packet_type(PacketType::OtherHost) && skb.pull(2));
        assert!(skb.set_link_type(113) && skb.set_snapped_bytes(10));
        skb.cb_mut().unwrap().fill(0xff);
    }

    #[test]
    fn a_renewed_packet_is_as_a_new_one_whatever_was_written_to_it() {
        for init in [Init::AtAlloc, Init::AtFree] {
            for data in [Data::Frames, Data::General] {
                let pool = Pool::builder().frames(64).init(init).data(data).build().unwrap();
                let mut mem = pool.local();
                let fresh = mem.alloc_one().unwrap();
                let mut batch = Batch::with_capacity(20);
                assert_eq!(mem.alloc(&mut batch, 20), 20);
                batch.iter_mut().for_each(written);
                let handles = batch.handles().to_vec();
                assert_eq!(batch.renew(), 20);
                assert!(batch.iter().all(|skb| fields(skb, data) == fields(&fresh, data)));
                assert_eq!(batch.handles(), handles);
                assert_eq!((pool.ledger().in_flight, pool.ledger().difference()), (21, 0));
            }
        }
    }

    #[test]
    fn renew_skips_shared_and_fragmented_packets() {
        let pool = Pool::builder().frames(64).build().unwrap();
        let other = Pool::builder().frames(8).build().unwrap();
        let mut mem = pool.local();
        let mut batch = Batch::with_capacity(6);
        assert_eq!((mem.alloc(&mut batch, 4), other.local().alloc(&mut batch, 2)), (4, 2));
        batch.iter_mut().for_each(|skb| assert!(skb.put_slice(b"bytes")));
        let shared = batch.iter_mut().nth(1).unwrap().share();
        let fragment = mem.alloc_copy(b"more").unwrap();
        assert!(batch.iter_mut().nth(2).unwrap().append(fragment).is_ok());
        assert_eq!(batch.renew(), 4);
        assert_eq!(batch.iter().map(Skb::len).collect::<Vec<_>>(), [0, 5, 9, 0, 0, 0]);
        drop((batch, shared));
        for pool in [pool, other] {
            assert!(pool.ledger().is_drained(), "{}", pool.ledger());
        }
    }

    #[test]
    fn an_empty_batch_has_nothing_to_renew() {
        assert_eq!(Batch::with_capacity(4).renew(), 0);
    }
}
