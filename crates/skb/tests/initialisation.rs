//! Post 004: a new packet has every field defined, for every history of its buffer.
//!
//! The left side of [`FIELDS`] is each field that the post's patch initialises, in its order.

use std::sync::Arc;

use linerate_skb::compat::skb_shinfo;
use linerate_skb::{
    Batch, Data, DropReason, Init, Local, Offload, PacketType, Pool, Release, Return, Shared, Skb,
    Vlan,
};

use proptest::prelude::*;

type Check = fn(&Skb, &Pool) -> bool;

/// Bytes kept for a frame besides its data: the hot line, the cold line, and its place in the depot.
const HEADER_BYTES: usize = 64 + 64 + 4;
/// Bytes of a frame's entry in the table of blocks.
const BLOCK_BYTES: usize = 16;
/// Packets that one call allocates: a group of eight, whose lines may be written together, and one.
const IN_BULK: usize = 9;

/// Returns the size and header of a pool's only packet.
fn truesize(pool: &Pool) -> usize {
    let size = match pool.data_from() {
        Data::Frames => pool.frame_size(),
        Data::General => pool.stats().blocks_bytes as usize + BLOCK_BYTES,
    };
    size + HEADER_BYTES
}

/// Each field of the patch, with the check of its counterpart in this crate.
const FIELDS: &[(&str, Check)] = &[
    // A packet is in one batch or queue by its handle; what it links to is its fragments.
    ("next", |skb, _| skb.fragments() == 0),
    ("prev", |skb, _| skb.fragments() == 0),
    ("list", |skb, _| skb.fragments() == 0),
    // On whichever core it is counted.
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
    ("truesize", |skb, pool| skb.truesize() == truesize(pool)),
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

/// A former life of a buffer: fields that were written, packets that it was joined to, and its end.
#[derive(Debug, Clone)]
struct Past {
    /// A bit for each field that was set.
    fields: u16,
    bytes: usize,
    fragments: usize,
    shares: usize,
    end: usize,
}

fn past() -> impl Strategy<Value = Past> {
    (any::<u16>(), 0usize..1500, 0usize..3, 0usize..3, 0usize..5).prop_map(
        |(fields, bytes, fragments, shares, end)| Past { fields, bytes, fragments, shares, end },
    )
}

fn kind() -> impl Strategy<Value = (Init, Data, Return, u32)> {
    (
        prop_oneof![Just(Init::AtAlloc), Just(Init::AtFree)],
        prop_oneof![Just(Data::Frames), Just(Data::General)],
        prop_oneof![Just(Return::Local), Just(Return::Home)],
        16u32..24,
    )
}

fn pool((init, data, return_to, frames): (Init, Data, Return, u32)) -> Pool {
    let builder = Pool::builder().frames(frames).init(init).data(data).return_to(return_to);
    builder.build().unwrap()
}

/// Returns [`IN_BULK`] packets of one call, or a packet that is allocated alone.
fn allocated(mem: &mut Local, in_bulk: bool) -> Vec<Skb> {
    if !in_bulk {
        return vec![mem.alloc_one().unwrap()];
    }
    // The empty list is filled with all of them, so that their lines are written in one pass.
    let hot_list_len = mem.hot_list_len();
    mem.set_hot_list_len(0);
    let mut batch = Batch::with_capacity(IN_BULK);
    assert_eq!(mem.alloc(&mut batch, IN_BULK), IN_BULK);
    mem.set_hot_list_len(hot_list_len);
    batch.drain().collect()
}

/// Returns every readable field of a packet except its true size, which [`FIELDS`] checks.
fn seen(skb: &Skb) -> impl PartialEq + std::fmt::Debug + use<> {
    let kept = (skb.stamp_ns(), skb.mark(), skb.tc_index(), skb.hash(), skb.vlan(), skb.offload());
    let hot = (skb.packet_type(), skb.priority(), skb.link_type(), skb.snapped_bytes());
    let room = (skb.len(), skb.headroom(), skb.tailroom(), skb.fragments());
    let info = skb_shinfo(skb);
    let info = (info.dataref, info.nr_frags, info.gso_size, info.gso_type);
    (kept, hot, room, *skb.cb(), skb.holds(), info)
}

/// Writes the fields that `past` names.
fn write(skb: &mut Skb, past: &Past) {
    let setters: [fn(&mut Skb) -> bool; 12] = [
        |skb| skb.push(16).is_some(),
        |skb| skb.pull(skb.len().min(3)),
        |skb| skb.set_stamp_ns(1),
        |skb| skb.set_mark(2),
        |skb| skb.set_tc_index(3),
        |skb| skb.set_hash(4),
        |skb| skb.set_vlan(Some(Vlan { tci: 5, protocol: 0x8100 })),
        |skb| skb.set_priority(6) && skb.set_packet_type(PacketType::OtherHost),
        |skb| skb.set_offload(Offload { flags: 1, gso_type: 1, ..Offload::NONE }),
        |skb| skb.cb_mut().map(|cb| cb.fill(7)).is_some(),
        |skb| skb.hold(Arc::new(Nothing)).is_ok(),
        |skb| skb.set_link_type(113) && skb.set_snapped_bytes(10),
    ];
    assert!(skb.put_slice(&vec![0xee; past.bytes]));
    for (bit, set) in setters.iter().enumerate() {
        assert!(past.fields >> bit & 1 == 0 || set(skb), "{bit}");
    }
}

/// Changes a packet as `past` describes, and frees it.
fn live(mem: &mut Local, mut skb: Skb, past: &Past) {
    write(&mut skb, past);
    for _ in 0..past.fragments {
        let mut fragment = mem.alloc_one().unwrap();
        write(&mut fragment, past);
        // What two packets cannot have as one keeps them apart.
        drop(skb.append(fragment));
    }
    let shares: Vec<Skb<Shared>> = (0..past.shares).map(|_| skb.share()).collect();
    match past.end {
        0 => drop(skb),
        1 => skb.discard(DropReason::NO_ROUTE),
        2 => std::thread::scope(|s| s.spawn(|| drop(skb)).join().unwrap()),
        end => {
            let mut batch = Batch::with_capacity(1);
            assert!(batch.push(skb).is_ok());
            batch.sent(usize::from(end == 3), mem);
            batch.consume(mem);
        }
    }
    drop(shares);
}

fn cases() -> ProptestConfig {
    // Miri has no folder to keep failures in, and no time for many.
    let persistence = ProptestConfig::default().failure_persistence.filter(|_| !cfg!(miri));
    let cases = if cfg!(miri) { 4 } else { 200 };
    ProptestConfig { cases, failure_persistence: persistence, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]
    #[test]
    fn every_field_of_the_patch_is_defined_whatever_the_buffers_history(
        kind in kind(),
        pasts in proptest::collection::vec(
            (past(), any::<bool>()),
            1..if cfg!(miri) { 6 } else { 30 },
        ),
    ) {
        // Nothing was ever allocated from the reference's pool.
        let (unused, pool) = (pool(kind), pool(kind));
        let (mut fresh, mut mem) = (unused.local_with(1), pool.local_with(3));
        let reference = fresh.alloc_one().unwrap();
        for (past, in_bulk) in pasts {
            let packets = allocated(&mut mem, in_bulk);
            // `truesize` knows the block of a pool's only packet.
            let is_sized = !in_bulk || pool.data_from() == Data::Frames;
            for skb in &packets {
                for (field, defined) in FIELDS {
                    let is_known = is_sized || *field != "truesize";
                    assert!(!is_known || defined(skb, &pool), "{field} before {past:?}, {kind:?}");
                }
                assert_eq!(seen(skb), seen(&reference));
            }
            for skb in packets {
                live(&mut mem, skb, &past);
            }
            let ledger = pool.ledger();
            assert!(ledger.is_drained(), "{ledger}");
        }
    }
}

#[test]
fn copies_into_used_frames_have_the_fields_of_their_source() {
    let past = Past { fields: u16::MAX, bytes: 1500, fragments: 0, shares: 0, end: 0 };
    for init in [Init::AtAlloc, Init::AtFree] {
        let pool = Pool::builder().frames(64).init(init).build().unwrap();
        let mut mem = pool.local();
        let mut used: Vec<Skb> = std::iter::from_fn(|| mem.alloc_one()).collect();
        used.iter_mut().for_each(|skb| write(skb, &past));
        assert_eq!(used.len(), 64);
        drop(used);
        for bytes in [&[7; 100][..], &[7; 5000]] {
            let mut skb = mem.alloc_copy(bytes).unwrap();
            let before = seen(&skb);
            let shared = skb.share();
            skb.data_mut()[0] = 9;
            assert_eq!(seen(&skb), before);
            assert_eq!((skb.data()[0], shared.data()[0], skb.len()), (9, 7, bytes.len()));
            assert!(skb.segments().flatten().skip(1).eq(&bytes[1..]));
            drop((skb, shared));
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
