//! Prepared packets leave once, in order and correct, whatever offloads the device has and whenever
//! it has room.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_skb::{Offload, PacketType, Pool, Vlan};
use linerate_sys::wait::EventFd;
use proptest::prelude::*;

use super::*;
use crate::driver_queue::DriverQueue;
use crate::host::testing::{self, PARTIAL, assert_settled, bytes, ipip, ipv4};
use crate::host::{RETRY, partial};
use crate::queue::Want;

const SUPERFRAME: Offload = Offload { gso_size: 1000, ..testing::SUPERFRAME };

/// A device that takes as many packets as it has room for, and keeps their bytes.
pub(super) struct Device {
    bell: EventFd,
    room: usize,
    caps: Caps,
    calls: usize,
    /// Number of the packets that the device never takes, and drops if it is offered another one
    /// with them.
    guilty: Option<u8>,
    /// The event that the device was last armed for.
    armed: Option<Want>,
    alarm: Option<Instant>,
    pub sent: Vec<Vec<u8>>,
}

impl Device {
    pub fn new(room: usize) -> Device {
        Device { room, ..Device::with(Caps::default()) }
    }

    pub fn with(caps: Caps) -> Device {
        let bell = EventFd::new().unwrap();
        let (room, sent) = (usize::MAX, Vec::new());
        Device { bell, room, caps, calls: 0, guilty: None, armed: None, alarm: None, sent }
    }
}

impl QueueOps for Device {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.calls += 1;
        let innocent = batch.iter().position(|skb| Some(bytes(skb)[5]) != self.guilty);
        let Some(innocent) = innocent else { return Moved::default() };
        batch.discard_first(innocent, DropReason::WRITE_FAILED, mem);
        batch.send_prefix(mem, |skb| {
            let has_tag = skb.vlan().is_some();
            if self.caps.stops_at_offloads && (skb.offload().is_pending() || has_tag) {
                return false;
            }
            assert!(self.caps.keeps_vlan || !has_tag, "a tag is left");
            let left = skb.offload();
            let taken = if left.is_gso() { self.caps.gso } else { self.caps.checksum };
            assert!(taken != TxOffload::None || !left.is_pending(), "work is left: {left:?}");
            let room = self.room > 0;
            if room {
                self.room -= 1;
                self.sent.push(bytes(skb));
            }
            room
        })
    }

    fn arm(&mut self, want: Want) -> bool {
        self.armed = Some(want);
        !(want.room() && self.room > 0)
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.alarm = Some(at);
        true
    }

    fn caps(&self) -> Caps {
        self.caps
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A kind of packet: its bytes carry its number.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Partial,
    /// A superframe of this number of segments.
    Super(usize),
    /// A superframe without the headers that its offload describes.
    Broken,
}

fn packet(mem: &mut Local, number: u8, kind: Kind) -> Skb {
    let (mut frame, offload) = match kind {
        Kind::Plain => (ipv4(17, 100), Offload::NONE),
        Kind::Partial => (ipv4(17, 100), PARTIAL),
        Kind::Super(n) => (ipv4(6, n * 1000), SUPERFRAME),
        Kind::Broken => (vec![0; 3000], SUPERFRAME),
    };
    frame[5] = number;
    let mut skb = mem.alloc_copy(&frame).unwrap();
    skb.set_offload(offload);
    skb
}

fn batch_of(mem: &mut Local, kinds: &[Kind]) -> Batch {
    let mut batch = Batch::with_capacity(kinds.len());
    for (number, kind) in kinds.iter().enumerate() {
        batch.push(packet(mem, number as u8, *kind)).unwrap();
    }
    batch
}

/// Returns the numbers of the packets that leave; a superframe's number is once for each segment.
fn numbers(kinds: &[Kind]) -> Vec<u8> {
    let all = kinds.iter().enumerate().flat_map(|(number, kind)| match kind {
        Kind::Plain | Kind::Partial => vec![number as u8],
        Kind::Super(n) => vec![number as u8; *n],
        Kind::Broken => Vec::new(),
    });
    all.collect()
}

fn sent(device: &Device) -> Vec<u8> {
    device.sent.iter().map(|packet| packet[5]).collect()
}

#[test]
fn segments_have_the_fields_of_their_superframe() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let mut mem = pool.local();
    let mut skb = packet(&mut mem, 0, Kind::Super(3));
    let tag = Some(Vlan { tci: 5, protocol: 0x8100 });
    assert!(skb.set_vlan(tag) && skb.set_mark(8) && skb.set_stamp_ns(9) && skb.set_priority(7));
    let mut batch = Batch::with_capacity(1);
    batch.push(skb).unwrap();
    let caps = Caps { keeps_vlan: true, ..Caps::default() };
    let (mut prep, mut device) = (TxPrep::new(&caps), Device { room: 0, ..Device::with(caps) });
    prep.xmit(&mut device, &mut mem, &mut batch);
    let ready = &prep.stage.as_ref().unwrap().ready;
    let fields = |skb: &Skb| (skb.vlan(), skb.mark(), skb.stamp_ns(), skb.priority());
    assert_eq!(ready.iter().map(fields).collect::<Vec<_>>(), [(tag, Some(8), Some(9), 7); 3]);
    assert!(ready.iter().all(|skb| skb.offload() == Offload::NONE));
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        Just(Kind::Plain),
        Just(Kind::Partial),
        (1usize..40).prop_map(Kind::Super),
        Just(Kind::Broken),
    ];
    prop::collection::vec(kind, 1..12)
}

proptest! {
    #[test]
    fn packets_leave_once_and_in_order_whenever_the_device_has_room(
        kinds in kinds(), rooms in prop::collection::vec(0usize..30, 1..40), stops: bool,
    ) {
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut mem = pool.local();
        let (mut device, mut batch) = (Device::new(0), batch_of(&mut mem, &kinds));
        device.caps.stops_at_offloads = stops;
        let mut prep = TxPrep::new(&device.caps);
        let mut moved = Moved::default();
        for room in rooms.into_iter().chain(std::iter::repeat_n(64, 40)) {
            device.room = room;
            moved += prep.xmit(&mut device, &mut mem, &mut batch);
            prop_assert!(device.room == 0 || (batch.is_empty() && !prep.is_busy()));
        }
        prop_assert!(batch.is_empty());
        prop_assert_eq!(sent(&device), numbers(&kinds));
        prop_assert_eq!(moved.packets, device.sent.len());
        prop_assert_eq!(moved.bytes, device.sent.iter().map(|one| one.len() as u64).sum::<u64>());
        drop((prep, batch, mem));
        let broken = kinds.iter().filter(|kind| matches!(kind, Kind::Broken)).count() as u64;
        prop_assert_eq!(pool.ledger().dropped_total(), broken);
        assert_settled(&pool);
    }
}

#[test]
fn a_device_that_takes_all_work_gets_packets_as_they_are() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    let mut batch = batch_of(&mut mem, &[Kind::Super(5), Kind::Partial, Kind::Plain]);
    let before: Vec<_> = batch.iter().map(bytes).collect();
    let mut device = Device::new(64);
    device.caps = Caps::IN_PROCESS;
    let moved = TxPrep::new(&device.caps).xmit(&mut device, &mut mem, &mut batch);
    assert_eq!((moved.packets, device.calls), (3, 1));
    assert_eq!(device.sent, before);
}

#[test]
fn a_device_that_takes_no_tunnels_gets_only_what_is_in_one_prepared() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    let mut batch = batch_of(&mut mem, &[Kind::Super(5), Kind::Partial]);
    let untouched: Vec<_> = batch.iter().map(bytes).collect();
    for (frame, offload) in [(ipv4(6, 5000), SUPERFRAME), (ipv4(17, 100), PARTIAL)] {
        let mut skb = mem.alloc_copy(&ipip(frame)).unwrap();
        skb.set_offload(offload.pushed(20).unwrap());
        let mut one = Batch::with_capacity(8);
        batch.move_to(&mut one, 8);
        one.push(skb).unwrap();
        batch = one;
    }
    let taken = TxOffload::Untunnelled;
    let mut device = Device::new(64);
    device.caps = Caps { checksum: taken, gso: taken, ..Caps::default() };
    let mut prep = TxPrep::new(&device.caps);
    let moved = prep.xmit(&mut device, &mut mem, &mut batch);
    assert_eq!(moved.packets, 8);
    assert_eq!(device.sent[..2], untouched);
    assert!(device.sent[2..7].iter().all(|segment| segment.len() == 1074));
    assert_eq!(prep.copied_bytes(), 5 * 1074);
    let inner = [&device.sent[7][..14], &device.sent[7][34..]].concat();
    assert!(linerate_wire::udp(&inner).unwrap().checksum_ok());
}

#[test]
fn a_device_that_cuts_only_tcp_gets_superframes_of_udp_cut() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(2));
    let udp = Offload { gso_type: 5, csum_offset: 6, ..SUPERFRAME };
    for (frame, offload) in [(ipv4(6, 3000), SUPERFRAME), (ipv4(17, 3000), udp)] {
        let mut skb = mem.alloc_copy(&frame).unwrap();
        skb.set_offload(offload);
        batch.push(skb).unwrap();
    }
    let (checksum, gso) = (TxOffload::Untunnelled, TxOffload::UntunnelledTcp);
    let mut device = Device::with(Caps { checksum, gso, ..Caps::default() });
    TxPrep::new(&device.caps).xmit(&mut device, &mut mem, &mut batch);
    let lens: Vec<usize> = device.sent.iter().map(Vec::len).collect();
    assert_eq!(lens, [3054, 1042, 1042, 1042]);
}

#[test]
fn a_superframe_of_udp_whose_checksum_is_complete_is_cut_for_the_kernel() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(1));
    let mut skb = mem.alloc_copy(&ipv4(17, 2000)).unwrap();
    let (gso_type, gso_size) = (5, 1000);
    skb.set_offload(Offload { gso_type, gso_size, hdr_len: 42, ..Offload::NONE });
    batch.push(skb).unwrap();
    let does = TxOffload::Untunnelled;
    let mut device = Device::with(Caps { checksum: does, gso: does, ..Caps::default() });
    TxPrep::new(&device.caps).xmit(&mut device, &mut mem, &mut batch);
    let lens: Vec<usize> = device.sent.iter().map(Vec::len).collect();
    assert_eq!(lens, [1042, 1042]);
}

#[test]
fn superframes_of_more_datagrams_or_other_marks_than_every_kernel_takes_are_cut() {
    let pool = Pool::builder().frames(512).build().unwrap();
    let mut mem = pool.local();
    let does = TxOffload::Untunnelled;
    let udp = Offload { gso_type: 5, gso_size: 20, csum_offset: 6, ..SUPERFRAME };
    for (payload, offload, packets) in [
        (64 * 20, udp, 1),
        (64 * 20 + 1, udp, 65),
        (64 * 20, Offload { gso_type: 5 | 0x80, ..udp }, 64),
        (64 * 20, Offload { gso_size: u16::MAX, ..udp }, 1),
        (2000, Offload { gso_size: u16::MAX, ..SUPERFRAME }, 1),
    ] {
        let protocol = if offload.csum_offset == 6 { 17 } else { 6 };
        let mut skb = mem.alloc_copy(&ipv4(protocol, payload)).unwrap();
        skb.set_offload(offload);
        let (mut batch, mut ops) = (Batch::with_capacity(1), Device::new(usize::MAX));
        batch.push(skb).unwrap();
        ops.caps = Caps { checksum: does, gso: does, ..Caps::default() };
        let is_cut = offload.gso_size == u16::MAX || packets > 1;
        TxPrep::new(&ops.caps).xmit(&mut ops, &mut mem, &mut batch);
        assert_eq!((ops.sent.len(), batch.len()), (packets, 0), "{payload}: {offload:?}");
        // What is cut has complete checksums.
        let is_whole = if protocol == 17 {
            linerate_wire::udp(&ops.sent[0]).unwrap().checksum_ok()
        } else {
            linerate_wire::tcp(&ops.sent[0]).unwrap().checksum_ok()
        };
        assert_eq!(is_whole, is_cut, "{payload}: {offload:?}");
    }
}

#[test]
fn a_datagram_longer_than_its_interface_takes_is_dropped_before_every_device() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut mem, mut dropped) = (pool.local(), 0);
    for gso in [TxOffload::None, TxOffload::UntunnelledTcp, TxOffload::Untunnelled] {
        let mut skb = mem.alloc_copy(&ipv4(17, 3000)).unwrap();
        partial::mark(&mut skb, 1500);
        let mut batch = Batch::with_capacity(1);
        batch.push(skb).unwrap();
        let caps = Caps { checksum: TxOffload::Untunnelled, gso, ..Caps::default() };
        let mut device = Device::with(caps);
        TxPrep::new(&caps).xmit(&mut device, &mut mem, &mut batch);
        dropped += 1;
        assert!(device.sent.is_empty() && batch.is_empty(), "{gso:?}");
        assert_eq!(pool.ledger().dropped(DropReason::UNSUPPORTED), dropped, "{gso:?}");
    }
}

#[test]
fn a_superframe_whose_segments_the_pool_can_never_hold_is_dropped() {
    let [pool, small] = [256, 4].map(|n| Pool::builder().frames(n).build().unwrap());
    let mut batch = batch_of(&mut pool.local(), &[Kind::Super(10), Kind::Plain]);
    let longest = small.packet_max_bytes() as u16;
    for skb in batch.iter_mut().take(1) {
        skb.set_offload(Offload { gso_size: longest, ..SUPERFRAME });
    }
    let (mut prep, mut device) = (TxPrep::new(&Caps::default()), Device::new(64));
    prep.xmit(&mut device, &mut small.local(), &mut batch);
    assert_eq!(sent(&device), [1]);
    assert!(batch.is_empty() && !prep.is_busy());
    let dropped = [pool, small].map(|pool| pool.ledger().dropped(DropReason::TOO_LONG));
    assert_eq!(dropped.iter().sum::<u64>(), 1);
}

#[test]
fn segments_of_several_superframes_share_a_doorbell() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    let kinds = [Kind::Super(10), Kind::Plain, Kind::Super(10), Kind::Super(10)];
    let (mut device, mut batch) = (Device::new(64), batch_of(&mut mem, &kinds));
    TxPrep::new(&device.caps).xmit(&mut device, &mut mem, &mut batch);
    assert_eq!((device.sent.len(), device.calls), (31, 1));
}

#[test]
fn refused_segments_are_offered_with_the_packets_behind_them() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    for later in [false, true] {
        let mut batch = batch_of(&mut mem, &[Kind::Super(10), Kind::Plain, Kind::Plain]);
        let mut behind = Batch::with_capacity(4);
        if later {
            let mut first = Batch::with_capacity(1);
            batch.move_to(&mut first, 1);
            (behind, batch) = (batch, first);
        }
        let mut device = Device::new(64);
        device.guilty = Some(0);
        let mut prep = TxPrep::new(&device.caps);
        prep.xmit(&mut device, &mut mem, &mut batch);
        prep.xmit(&mut device, &mut mem, &mut behind);
        assert_eq!(sent(&device), [1, 2], "later: {later}");
        assert!(batch.is_empty() && behind.is_empty() && !prep.is_busy());
    }
    assert_eq!(pool.ledger().dropped(DropReason::WRITE_FAILED), 20);
}

#[test]
fn a_superframe_waits_for_frames_with_an_alarm_and_not_in_a_loop() {
    let pool = Pool::builder().frames(32).build().unwrap();
    let mut mem = pool.local_with(0);
    let mut batch = batch_of(&mut mem, &[Kind::Super(10)]);
    let mut hoard = Batch::with_capacity(32);
    while mem.alloc(&mut hoard, 32) > 0 {}
    let mut queue = DriverQueue::new(Box::new(Device::new(64)));
    assert_eq!(queue.xmit(&mut mem, &mut batch), 0);
    assert_eq!((batch.len(), queue.waiting()), (0, 1));
    // The device has room, but the waiting packet needs a frame.
    assert!(queue.arm(Want::Room) && queue.arm(Want::Both));
    std::thread::sleep(RETRY);
    assert!(!queue.arm(Want::Frames));
    hoard.consume(&mut mem);
    assert_eq!(queue.rx(&mut mem, &mut hoard, 1), 0);
    assert_eq!((queue.waiting(), queue.stats().counts().tx_packets), (0, 10));
}

#[test]
fn packets_that_wait_for_room_are_armed_for_and_go_with_any_call() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    let mut prep = TxPrep::new(&Caps::default());
    let (mut device, mut batch) = (Device::new(3), batch_of(&mut mem, &[Kind::Super(10)]));
    assert_eq!(prep.xmit(&mut device, &mut mem, &mut batch).packets, 3);
    assert_eq!((prep.waits(), prep.waiting()), (Some(Waits::Room), 7));
    let mut queue = DriverQueue::new(Box::new(Device::new(3)));
    let mut batch = batch_of(&mut mem, &[Kind::Super(10)]);
    assert_eq!(queue.xmit(&mut mem, &mut batch), 3);
    assert!(queue.arm(Want::Frames), "there is no room");
    assert_eq!(queue.reap(&mut mem), 7);
}

#[test]
fn waiting_segments_are_dropped_as_stopped_with_their_queue() {
    let pool = Pool::builder().frames(512).build().unwrap();
    let mut mem = pool.local();
    let mut queue = DriverQueue::new(Box::new(Device::new(3)));
    let mut batch = batch_of(&mut mem, &[Kind::Super(100), Kind::Plain]);
    queue.xmit(&mut mem, &mut batch);
    assert_eq!((queue.waiting(), batch.len()), (62, 1));
    drop((queue, batch, mem));
    assert_eq!(pool.ledger().dropped(DropReason::STOPPED), 62);
    assert_settled(&pool);
}

#[test]
fn waiting_segments_leave_through_a_layer_that_is_put_around_their_queue() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let mut mem = pool.local();
    let mut queue = DriverQueue::new(Box::new(Device::new(3)));
    let mut batch = batch_of(&mut mem, &[Kind::Super(10)]);
    assert_eq!((queue.xmit(&mut mem, &mut batch), queue.waiting()), (3, 7));
    let mut queue = queue.wrap(|_| Ok(Box::new(Device::new(64)))).unwrap();
    assert_eq!(queue.waiting(), 7);
    assert_eq!(queue.xmit(&mut mem, &mut batch), 7);
    assert_eq!((queue.waiting(), queue.stats().counts().tx_packets), (0, 10));
    drop((queue, batch, mem));
    assert_eq!(pool.ledger().dropped(DropReason::STOPPED), 0);
    assert_settled(&pool);
}

#[test]
fn copy_of_a_packet_of_another_pool_has_all_of_its_fields() {
    let [pool, other] = [(); 2].map(|()| Pool::builder().frames(64).build().unwrap());
    let (mut near, mut far) = crate::ring::pair("told", 8, &pool).unwrap();
    let mut queue = DriverQueue::new(near.queues.remove(0));
    queue.keep_to(&pool);
    let mut skb = packet(&mut other.local(), 7, Kind::Partial);
    skb.set_stamp_ns(1);
    skb.set_mark(2);
    skb.set_tc_index(3);
    skb.set_hash(4);
    skb.set_vlan(Some(Vlan { tci: 5, protocol: 0x8100 }));
    skb.set_packet_type(PacketType::Multicast);
    skb.set_link_type(6);
    skb.set_snapped_bytes(7);
    skb.set_priority(8);
    skb.cb_mut().unwrap().fill(9);
    let fields = |skb: &Skb| {
        let cold = (skb.stamp_ns(), skb.mark(), skb.tc_index(), skb.hash(), skb.vlan());
        let hot = (skb.packet_type(), skb.link_type(), skb.snapped_bytes(), skb.priority());
        (cold, hot, *skb.cb(), skb.offload(), bytes(skb))
    };
    let (before, mut batch) = (fields(&skb), Batch::with_capacity(1));
    batch.push(skb).unwrap();
    let mut mem = pool.local();
    assert_eq!(queue.xmit(&mut mem, &mut batch), 1);
    far.queues[0].rx(&mut mem, &mut batch, 1);
    let after = batch.pop().unwrap();
    assert!(after.is_of(&pool));
    assert_eq!(fields(&after), before);
}

#[test]
fn packet_of_another_pool_that_the_queues_pool_can_never_hold_is_too_long() {
    let [pool, other] = [4, 64].map(|n| Pool::builder().frames(n).build().unwrap());
    let (mut device, mut batch) = (Device::with(Caps::IN_PROCESS), Batch::with_capacity(2));
    let longest = pool.packet_max_bytes();
    for len in [longest + 1, longest] {
        batch.push(other.local().alloc_copy(&vec![7; len]).unwrap()).unwrap();
    }
    let mut prep = TxPrep::new(&Caps::IN_PROCESS);
    prep.keep_to(&pool);
    prep.xmit(&mut device, &mut pool.local(), &mut batch);
    let lens: Vec<usize> = device.sent.iter().map(Vec::len).collect();
    assert_eq!(lens, [longest]);
    let dropped = [&pool, &other].map(|pool| pool.ledger().dropped(DropReason::TOO_LONG));
    assert_eq!(dropped.iter().sum::<u64>(), 1);
}

#[test]
fn copies_of_packets_of_other_pools_are_counted() {
    let [pool, other] = [(); 2].map(|()| Pool::builder().frames(64).build().unwrap());
    let (mut device, mut batch) = (Device::with(Caps::IN_PROCESS), Batch::with_capacity(2));
    for pool in [&pool, &other] {
        batch.push(pool.local().alloc_copy(&[7; 100]).unwrap()).unwrap();
    }
    let mut prep = TxPrep::new(&Caps::IN_PROCESS);
    prep.keep_to(&pool);
    prep.xmit(&mut device, &mut pool.local(), &mut batch);
    assert_eq!((device.sent.len(), prep.copied_bytes()), (2, 100));
}
