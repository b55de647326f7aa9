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

type Check = fn(&Skb, &Size) -> bool;

/// Bytes of a frame's hot line and cold line.
const LINES_BYTES: usize = 64 + 64;
/// Bytes of a frame's place in the depot.
const DEPOT_BYTES: usize = 4;
/// Bytes of a frame's entry in the table of blocks.
const BLOCK_BYTES: usize = 16;
/// Bytes of a jumbo frame: it takes the place of two ordinary frames, and the lines of both.
const JUMBO_BYTES: usize = 4096;
/// Jumbo frames of a pool: as many as let a hot list keep one of them.
const JUMBO_FRAMES: u32 = 8;
/// Frames of a pool that has too few for a thread's list.
const UNLISTED: std::ops::Range<u32> = 16..24;
/// Frames of a pool in which plain drops go to a list of the thread, of 8 frames or more.
const LISTED: std::ops::Range<u32> = 128..400;
/// Packets that one call allocates: a group of eight, whose lines may be written together, and one.
const IN_BULK: usize = 9;

/// The sizes of a new packet, in bytes.
struct Size {
    headroom: usize,
    frame: usize,
    truesize: usize,
}

impl Size {
    /// Returns the sizes of a packet of `pool`. The true size of a packet with a block is known if
    /// it is the pool's only packet.
    fn of(pool: &Pool, is_jumbo: bool) -> Size {
        let frame = if is_jumbo { JUMBO_BYTES } else { pool.frame_size() };
        let lines = if is_jumbo { 2 * LINES_BYTES } else { LINES_BYTES };
        let data = match pool.data_from() {
            Data::Frames => frame,
            Data::General => pool.stats().blocks_bytes as usize + BLOCK_BYTES,
        };
        Size { headroom: pool.headroom(), frame, truesize: data + lines + DEPOT_BYTES }
    }
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
    ("truesize", |skb, size| skb.truesize() == size.truesize),
    ("head", |skb, size| skb.headroom() == size.headroom),
    ("data", |skb, _| skb.data().is_empty()),
    ("tail", |skb, size| skb.tailroom() == size.frame - size.headroom),
    ("end", |skb, size| skb.headroom() + skb.tailroom() == size.frame),
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

/// The call that allocates.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Alone,
    InBulk,
    /// A jumbo frame, or an ordinary frame alone if the pool has no jumbo frames.
    Jumbo,
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![Just(Call::Alone), Just(Call::InBulk), Just(Call::Jumbo)]
}

fn kind() -> impl Strategy<Value = (Init, Data, Return, u32)> {
    (
        prop_oneof![Just(Init::AtAlloc), Just(Init::AtFree)],
        prop_oneof![Just(Data::Frames), Just(Data::General)],
        prop_oneof![Just(Return::Local), Just(Return::Home)],
        prop_oneof![UNLISTED, LISTED],
    )
}

fn pool((init, data, return_to, frames): (Init, Data, Return, u32)) -> Pool {
    let builder = Pool::builder().frames(frames).init(init).data(data).return_to(return_to);
    let has_jumbo = data == Data::Frames && LISTED.contains(&frames);
    let jumbo_frames = if has_jumbo { JUMBO_FRAMES } else { 0 };
    builder.jumbo(jumbo_frames, JUMBO_BYTES as u32).build().unwrap()
}

/// Returns [`IN_BULK`] packets of one call, or one packet.
fn allocated(mem: &mut Local, call: Call) -> Vec<Skb> {
    let jumbo_room = mem.pool().jumbo_room();
    match call {
        Call::InBulk => {}
        Call::Jumbo if jumbo_room > 0 => return vec![mem.alloc_len(jumbo_room).unwrap()],
        Call::Alone | Call::Jumbo => return vec![mem.alloc_one().unwrap()],
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
            (past(), call()),
            1..if cfg!(miri) { 6 } else { 30 },
        ),
    ) {
        // Nothing was ever allocated from the reference's pool.
        let (unused, pool) = (pool(kind), pool(kind));
        let (mut fresh, mut mem) = (unused.local_with(1), pool.local_with(3));
        let ordinary = fresh.alloc_one().unwrap();
        let jumbo = allocated(&mut fresh, Call::Jumbo).remove(0);
        for (past, call) in pasts {
            let packets = allocated(&mut mem, call);
            let is_jumbo = call == Call::Jumbo && pool.jumbo_frames() > 0;
            let reference = if is_jumbo { &jumbo } else { &ordinary };
            let size = Size::of(&pool, is_jumbo);
            let is_sized = call != Call::InBulk || pool.data_from() == Data::Frames;
            for skb in &packets {
                for (field, defined) in FIELDS {
                    let is_known = is_sized || *field != "truesize";
                    let is_defined = !is_known || defined(skb, &size);
                    assert!(is_defined, "{field}, {call:?}, before {past:?}, {kind:?}");
                }
                assert_eq!(seen(skb), seen(reference));
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
