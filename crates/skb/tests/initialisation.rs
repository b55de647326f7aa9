//! Post 004: a new packet has every field defined, for every history of its buffer.
//!
//! The left side of [`FIELDS`] is each field that the post's patch initialises, in its order.

use std::sync::Arc;

use linerate_skb::compat::skb_shinfo;
use linerate_skb::{
    Batch, Data, DropReason, Init, Local, Offload, PacketType, Pool, Release, Shared, Skb, Vlan,
};

type Check = fn(&Skb, &Pool) -> bool;

/// Field of the patch, and what it is here.
const FIELDS: &[(&str, Check)] = &[
    // A packet is in one batch or queue by its handle; what it links to is its fragments.
    ("next", |skb, _| skb.fragments() == 0),
    ("prev", |skb, _| skb.fragments() == 0),
    ("list", |skb, _| skb.fragments() == 0),
    // Whoever it is accounted to.
    ("sk", |skb, _| !skb.holds()),
    ("stamp", |skb, _| skb.stamp_ns().is_none()),
    // The queue that gave it is known to who asked that queue: what a device tells of it.
    ("dev", |skb, _| skb.hash().is_none() && skb.vlan().is_none()),
    ("dst", |skb, _| !skb.holds()),
    ("cb", |skb, _| skb.cb().iter().all(|b| *b == 0)),
    ("len", |skb, _| skb.is_empty()),
    ("data_len", |skb, _| skb.is_linear()),
    ("csum", |skb, _| skb.offload() == Offload::NONE),
    ("cloned", |skb, _| skb_shinfo(skb).dataref == 1),
    ("pkt_type", |skb, _| skb.packet_type() == PacketType::Host),
    ("ip_summed", |skb, _| !skb.offload().needs_checksum()),
    ("priority", |skb, _| skb.priority() == 0),
    // As the netfilter fields below: marks are what there is of it here.
    ("security", |skb, _| skb.mark().is_none()),
    ("truesize", |skb, pool| skb.truesize() == pool.local().alloc_one().unwrap().truesize()),
    ("head", |skb, pool| skb.headroom() == pool.headroom()),
    ("data", |skb, _| skb.data().is_empty()),
    ("tail", |skb, pool| skb.tailroom() == pool.data_room()),
    ("end", |skb, pool| skb.headroom() + skb.tailroom() == pool.frame_size()),
    ("users", |skb, _| skb_shinfo(skb).dataref == 1),
    ("destructor", |skb, _| !skb.holds()),
    ("nfmark", |skb, _| skb.mark().is_none()),
    ("nfcache", |skb, _| skb.mark().is_none()),
    ("nfct", |skb, _| !skb.holds()),
    ("nf_debug", |skb, _| skb.mark().is_none()),
    ("tc_index", |skb, _| skb.tc_index().is_none()),
    ("dataref", |skb, _| skb_shinfo(skb).dataref == 1),
    ("nr_frags", |skb, _| skb_shinfo(skb).nr_frags == 0),
    ("frag_list", |skb, _| skb.segments().count() <= 1),
];

struct Nothing;

impl Release for Nothing {
    fn release(&self, _: usize) {}
}

/// Gives a packet a past: every field that can be set is set, every list that can be joined joined.
fn use_up(mem: &mut Local, mut skb: Skb, way: usize) {
    assert!(skb.put_slice(&[0xee; 200]) && skb.push(16).is_some() && skb.pull(3));
    assert!(skb.set_stamp_ns(1) && skb.set_mark(2) && skb.set_tc_index(3) && skb.set_hash(4));
    assert!(skb.set_vlan(Some(Vlan { tci: 5, protocol: 0x8100 })) && skb.set_priority(6));
    assert!(skb.set_packet_type(PacketType::OtherHost));
    assert!(skb.set_offload(Offload { flags: 1, gso_type: 1, ..Offload::NONE }));
    skb.cb_mut().unwrap().fill(7);
    assert!(skb.hold(Arc::new(Nothing)).is_ok());
    let mut other: Option<Skb<Shared>> = None;
    if way.is_multiple_of(3)
        && let Some(fragment) = mem.alloc_copy(&[1; 30])
    {
        assert!(skb.append(fragment).is_ok());
    }
    if way.is_multiple_of(2) {
        other = Some(skb.share());
    }
    match way % 5 {
        0 => drop(skb),
        1 => skb.discard(DropReason::NO_ROUTE),
        2 => std::thread::scope(|s| s.spawn(|| drop(skb)).join().unwrap()),
        _ => {
            let mut batch = Batch::with_capacity(1);
            assert!(batch.push(skb).is_ok());
            batch.sent(1, mem);
        }
    }
    drop(other);
}

#[test]
fn every_field_of_the_patch_is_defined_whatever_the_buffers_history() {
    for init in [Init::AtAlloc, Init::AtFree] {
        for data in [Data::Frames, Data::General] {
            let pool = Pool::builder().frames(16).init(init).data(data).build().unwrap();
            let mut mem = pool.local_with(3);
            // Under Miri each end once, of a shared packet and of one alone: a second for each.
            for way in 0..if cfg!(miri) { 10 } else { 60 } {
                let skb = mem.alloc_one().unwrap();
                for (field, fresh) in FIELDS {
                    assert!(fresh(&skb, &pool), "{field} after way {way}, {init:?}, {data:?}");
                }
                use_up(&mut mem, skb, way);
            }
            let ledger = pool.ledger();
            assert_eq!((ledger.in_flight, ledger.difference()), (0, 0), "{ledger}");
        }
    }
}

#[test]
fn a_new_packet_has_one_handle_and_one_reference() {
    let pool = Pool::builder().frames(2).build().unwrap();
    let mut mem = pool.local_with(1);
    for _ in 0..3 {
        let mut skb = mem.alloc_one().unwrap();
        let shared = skb.share();
        assert!(shared.try_unique().is_err());
        let shared = skb.share();
        drop(skb);
        // The other two are gone: this is the only one.
        assert!(shared.try_unique().is_ok());
    }
}
