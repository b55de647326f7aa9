//! Tests of the transmit side with a device that accepts packets up to its free space, and records
//! its calls.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linerate_port::wait::EventFd;
use linerate_port::{Caps, Copies, Gathers, Origin, QueueOps, TxOffload, Want};
use linerate_skb::{Ledger, Offload, Pool};

use super::*;
use crate::qdisc::{Fifo, Limit, Tbf};

/// The calls that a device received: for each the packets offered and accepted, and the numbers of
/// the accepted packets.
#[derive(Default)]
struct Calls {
    offered: Vec<usize>,
    taken: Vec<usize>,
    numbers: Vec<u32>,
    /// Number of free slots in the device's ring.
    room: usize,
    /// The packet that the device never takes, and drops if it is offered another one with it.
    guilty: Option<u32>,
    /// True if the driver drops all packets, as to a ring whose reader is gone.
    drops_all: bool,
    /// Packets that a wrapper withholds, of which one leaves in each call.
    withheld: usize,
}

/// A device with the given caps.
struct Device(Arc<Mutex<Calls>>, EventFd, Caps);

impl QueueOps for Device {
    fn caps(&self) -> Caps {
        self.2
    }

    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let mut calls = self.0.lock().unwrap();
        let number =
            |skb: &linerate_skb::Skb| u32::from_be_bytes(*skb.data().first_chunk().unwrap());
        calls.offered.push(batch.len());
        if calls.drops_all {
            batch.discard_first(batch.len(), DropReason::PEER_GONE, mem);
        }
        let mut n = batch.len().min(calls.room);
        if calls.guilty.is_some() && batch.iter().next().map(number) == calls.guilty {
            n = n.saturating_sub(1);
            if n > 0 {
                batch.discard_first(1, DropReason::WRITE_FAILED, mem);
            }
        }
        calls.room -= n;
        calls.withheld = calls.withheld.saturating_sub(1);
        calls.taken.push(n);
        calls.numbers.extend(batch.iter().take(n).map(number));
        batch.sent(n, mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    fn withheld(&self) -> usize {
        self.0.lock().unwrap().withheld
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

/// An output with its device.
struct Bench {
    egress: Egress,
    ops: DriverQueue,
    calls: Arc<Mutex<Calls>>,
    pool: Pool,
    mem: Local,
    now: Instant,
    next: u32,
}

impl Bench {
    /// Creates an output to a device as a simple driver has it: its caps declare nothing.
    fn new(egress: Egress, room: usize) -> Bench {
        Bench::with_caps(egress, room, Caps::default())
    }

    fn with_caps(egress: Egress, room: usize, caps: Caps) -> Bench {
        let calls = Arc::new(Mutex::new(Calls { room, ..Calls::default() }));
        let device = Device(calls.clone(), EventFd::new().unwrap(), caps);
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mem = pool.local();
        let ops = DriverQueue::new(Box::new(device));
        Bench { egress, ops, calls, pool, mem, now: Instant::now(), next: 0 }
    }

    fn capped(cap: TxBatch, backlog: usize, room: usize) -> Bench {
        let mut egress = Egress::new(backlog, None);
        egress.set_cap(cap);
        Bench::new(egress, room)
    }

    /// Enqueues `n` packets of `bytes` each.
    fn put(&mut self, n: usize, bytes: usize) {
        let mut batch = Batch::with_capacity(n);
        for _ in 0..n {
            let mut skb = self.mem.alloc_copy(&vec![0; bytes]).unwrap();
            assert_eq!(skb.copy_from(0, &self.next.to_be_bytes()), 4);
            self.next += 1;
            assert!(batch.push(skb).is_ok());
        }
        self.egress.enqueue(&mut batch, n, self.now, &mut self.mem);
        assert!(batch.is_empty());
    }

    /// Adds `room` free slots to the device, and sends.
    fn xmit(&mut self, room: usize) -> bool {
        self.calls.lock().unwrap().room += room;
        self.egress.xmit(&mut self.ops, self.now, &mut self.mem)
    }

    /// Returns the packets of each call since the last time.
    fn calls(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.calls.lock().unwrap().taken)
    }

    /// Checks that all numbers so far are 0, 1, 2 … in order, and that there are `n`.
    fn check_order(&self, n: usize) {
        let numbers = &self.calls.lock().unwrap().numbers;
        assert!(numbers.iter().copied().eq(0..n as u32), "{numbers:?}");
    }

    fn ledger(&self) -> Ledger {
        self.pool.ledger()
    }
}

const ROOM: usize = 10_000;

/// S2.1, S2.4: a list of packets in one call.
#[test]
fn packets_that_wait_go_in_one_call() {
    let mut bench = Bench::capped(TxBatch::Packets(64), 256, ROOM);
    bench.put(50, 60);
    assert!(bench.xmit(0) && !bench.xmit(0));
    assert_eq!(bench.calls(), [50]);
    bench.put(200, 60);
    assert!(bench.xmit(0));
    assert_eq!(bench.calls(), [64, 64, 64, 8]);
    // A single packet is a call of its own, which does not use the list.
    bench.put(1, 60);
    assert!(bench.xmit(0));
    assert_eq!((bench.calls(), bench.egress.list_len()), (vec![1], 0));
    bench.check_order(251);
}

/// S2.2: a device gets lists because it can transmit: no capability turns them on or off, and no
/// cap has to be set.
#[test]
fn device_is_given_lists_whatever_its_caps_declare() {
    for bits in 0..128 {
        let is_set = |bit: u32| bits >> bit & 1 == 1;
        let offload = |bit| if is_set(bit) { TxOffload::All } else { TxOffload::None };
        // All fields are named, so that this test is changed with a new one.
        let caps = Caps {
            copies: if is_set(0) { Copies::Never } else { Copies::Always },
            rx_ring_len: is_set(1).then_some(1),
            rx_gathers: Gathers { time: Duration::from_millis(u64::from(is_set(1))), bytes: 1 },
            notifies_tx_space: is_set(2),
            checksum: offload(3),
            gso: offload(3),
            keeps_vlan: is_set(5),
            stops_at_offloads: is_set(4),
            origin: Origin::Device,
            is_interface: is_set(6),
        };
        let mut bench = Bench::with_caps(Egress::new(256, None), ROOM, caps);
        bench.put(50, 60);
        assert!(bench.xmit(0));
        assert_eq!(bench.calls(), [50], "{caps:?}");
    }
}

#[test]
fn cap_of_one_gives_each_packet_a_call_of_its_own() {
    let mut bench = Bench::capped(TxBatch::Packets(1), 256, ROOM);
    bench.put(5, 60);
    assert!(bench.xmit(0));
    assert_eq!((bench.calls(), bench.egress.flushes.calls), (vec![1; 5], 5));
    assert_eq!(bench.egress.flushes.sizes.to_string(), "1: 5");
    bench.check_order(5);
}

/// S2.3: the list is allocated when a cap is set that needs one, and once.
#[test]
fn list_is_allocated_with_the_first_cap_that_cuts_and_kept() {
    let mut egress = Egress::new(64, None);
    assert!(egress.list.is_none(), "64 packets are never cut");
    egress.set_cap(TxBatch::Packets(64));
    assert!(egress.list.is_none());
    egress.set_cap(TxBatch::Packets(16));
    let place = |egress: &Egress| {
        // An empty batch begins at its first slot, so this is the memory of its entries.
        egress.list.as_ref().map(|list| (list.capacity(), list.handles().as_ptr()))
    };
    let first = place(&egress);
    assert_eq!(first.unwrap().0, 16);
    for cap in [TxBatch::Packets(16), TxBatch::Auto, TxBatch::Packets(1)] {
        egress.set_cap(cap);
        assert_eq!(place(&egress), first, "{cap}");
    }
}

/// S2.5: the cap does not depend on the backlog, which is the length of the transmit queue.
#[test]
fn cap_can_be_set_whatever_the_backlog_is() {
    for backlog in [1, 2, 64, 4096] {
        for cap in [2, 64, 1024] {
            let mut bench = Bench::capped(TxBatch::Packets(cap), backlog, ROOM);
            assert_eq!(bench.egress.cap(), TxBatch::Packets(cap));
            let n = backlog.min(500);
            bench.put(n, 60);
            bench.xmit(0);
            assert_eq!(bench.calls().len(), n.div_ceil(cap as usize), "{cap} of {backlog}");
        }
    }
}

/// S2.6: packets are offered without a query for room; the driver takes as many as it has room for.
#[test]
fn device_is_offered_more_than_it_has_room_for() {
    let mut bench = Bench::capped(TxBatch::Packets(64), 256, 3);
    bench.put(64, 60);
    assert!(bench.xmit(0) && !bench.xmit(0));
    let calls = bench.calls.lock().unwrap();
    assert_eq!((&calls.offered[..], &calls.taken[..]), (&[64, 61][..], &[3, 0][..]));
    assert_eq!(bench.egress.flushes.sizes.full(), 1);
}

/// S2.11: with any cap, packets without a slot stay in order, and are sent before later ones.
#[test]
fn packets_without_a_slot_go_first_when_there_is_room() {
    for cap in [TxBatch::Packets(1), TxBatch::Packets(2), TxBatch::Packets(7), TxBatch::Auto] {
        let mut bench = Bench::capped(cap, 256, 0);
        bench.put(100, 60);
        for _ in 0..30 {
            bench.put(2, 60);
            bench.xmit(3);
        }
        assert_eq!(bench.egress.waiting(), 160 - 90, "{cap}");
        bench.check_order(90);
        bench.xmit(ROOM);
        bench.check_order(160);
    }
}

/// S2.11: a driver tells a packet that the device never takes from a full device by a packet behind
/// it.
#[test]
fn packet_behind_a_refused_one_is_offered_from_the_fifo_and_from_the_discipline() {
    let mut capped = Bench::capped(TxBatch::Packets(2), 256, 1);
    capped.put(4, 60);
    let fifo = Box::new(Fifo::new(Limit::packets(500)));
    let mut managed = Bench::new(Egress::new(256, Some(fifo)), 1);
    managed.put(2, 60);
    for bench in [&mut capped, &mut managed] {
        bench.calls.lock().unwrap().guilty = Some(1);
        bench.xmit(0);
        assert!(!bench.xmit(ROOM), "one packet alone");
        bench.put(1, 60);
        assert!((0..3).any(|_| bench.xmit(0)));
        let calls = bench.calls.lock().unwrap();
        let expected = (0..bench.next).filter(|number| *number != 1);
        assert!(calls.numbers.iter().copied().eq(expected), "{:?}", calls.numbers);
        assert!(calls.offered.iter().all(|n| *n <= 2), "{:?}", calls.offered);
        assert_eq!((bench.egress.waiting(), bench.ledger().dropped_total()), (0, 1));
    }
}

#[test]
fn ring_of_one_is_served_with_any_cap() {
    for cap in [TxBatch::Packets(1), TxBatch::Packets(64), TxBatch::Auto] {
        let mut bench = Bench::capped(cap, 256, 0);
        bench.put(200, 60);
        assert!((0..200).all(|_| bench.xmit(1)), "{cap}");
        assert!(!bench.xmit(1) && bench.egress.waiting() == 0);
        bench.check_order(200);
    }
}

#[test]
fn caps_change_while_packets_wait_on_the_list() {
    let mut bench = Bench::capped(TxBatch::Packets(16), 1024, 0);
    let caps = [1, 2, 64, 3, 300].map(TxBatch::Packets).into_iter().chain([TxBatch::Auto]);
    let mut sent = 0;
    for (i, cap) in caps.cycle().take(10_000).enumerate() {
        bench.put(1 + i % 3, 60);
        bench.egress.set_cap(cap);
        bench.xmit(i % 5);
        sent += bench.calls().iter().sum::<usize>();
        let longest = bench.calls.lock().unwrap().offered.drain(..).max().unwrap_or(0);
        let most = if let TxBatch::Packets(most) = cap { most as usize } else { usize::MAX };
        assert!(longest <= most, "{longest} packets in a call with a cap of {cap}");
        assert_eq!(bench.egress.room() + bench.egress.waiting(), 1024);
    }
    let waiting = bench.egress.waiting();
    bench.check_order(sent);
    let ledger = bench.ledger();
    assert_eq!((ledger.sent as usize, ledger.in_flight as usize), (sent, waiting));
    assert_eq!(ledger.dropped(DropReason::TX_FULL) as u32 + (sent + waiting) as u32, bench.next);
}

/// Each call after a cap was set keeps to it, also for what is on the list of a greater one.
#[test]
fn packets_on_the_list_of_a_greater_cap_go_by_the_lower_one() {
    let packets = TxBatch::Packets;
    for (cap, calls) in [(packets(1), 200), (packets(100), 2), (TxBatch::Auto, 1)] {
        let mut bench = Bench::capped(packets(128), 200, 10);
        bench.put(200, 60);
        bench.xmit(0);
        bench.calls();
        assert_eq!((bench.egress.list_len(), bench.egress.waiting()), (118, 190));
        bench.egress.set_cap(cap);
        assert_eq!((bench.egress.list_len(), bench.egress.waiting()), (0, 190));
        bench.put(10, 60);
        bench.xmit(ROOM);
        assert_eq!(bench.calls().len(), calls, "{cap}");
        bench.check_order(210);
    }
}

/// Tests that list and fifo share the backlog, because the pool has frames for one.
#[test]
fn list_and_fifo_together_are_no_longer_than_the_backlog() {
    let mut bench = Bench::capped(TxBatch::Packets(64), 200, 0);
    bench.put(200, 60);
    bench.xmit(0);
    assert_eq!((bench.egress.list_len(), bench.egress.room()), (64, 0));
    bench.put(3, 60);
    assert_eq!(bench.ledger().dropped(DropReason::TX_FULL), 3);
    bench.xmit(10);
    assert_eq!((bench.egress.waiting(), bench.egress.room()), (190, 10));
    // Between a discipline and the device is at most one batch.
    let mut egress = Egress::new(200, Some(Box::new(Fifo::new(Limit::packets(500)))));
    egress.set_cap(TxBatch::Packets(8));
    let mut bench = Bench::new(egress, 0);
    bench.put(300, 60);
    for room in [0, 60, 0, 5, 70] {
        bench.xmit(room);
        assert!(bench.egress.ready() <= 64, "{}", bench.egress.ready());
    }
    bench.check_order(135);
}

/// Returns a superframe of 1054 bytes, in five segments of 254.
fn superframe(mem: &mut Local) -> linerate_skb::Skb {
    let mut frame = vec![0; 54 + 5 * 200];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[16..18].copy_from_slice(&1040_u16.to_be_bytes());
    (frame[22], frame[23], frame[46]) = (64, 6, 0x50);
    let mut skb = mem.alloc_copy(&frame).unwrap();
    let (gso_size, csum_start, csum_offset) = (200, 34, 16);
    assert!(skb.set_offload(Offload {
        flags: 1,
        gso_type: 1,
        hdr_len: 54,
        gso_size,
        csum_start,
        csum_offset,
    }));
    skb
}

/// Cuts a superframe in front of the device: a call that sends segments of it found no full device.
#[test]
fn segments_that_leave_later_are_counted_as_accepted() {
    let mut bench = Bench::capped(TxBatch::Auto, 64, 0);
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(superframe(&mut bench.mem)).is_ok());
    bench.egress.enqueue(&mut batch, 1, bench.now, &mut bench.mem);
    for segments in [2, 2, 0, 1] {
        assert_eq!(bench.xmit(segments), segments > 0);
    }
    let Flushes { calls, sizes, .. } = bench.egress.flushes;
    assert_eq!((calls, sizes.to_string().as_str()), (4, "0: 1, 1: 1, 2-3: 2"));
    assert_eq!((bench.ledger().sent, bench.ledger().in_flight), (5, 0));
}

#[test]
fn a_packet_that_needs_preparation_gets_it_with_any_cap_and_leaves_in_its_place() {
    for cap in [1, 4, 7] {
        let mut bench = Bench::capped(TxBatch::Packets(cap), 256, ROOM);
        let mut batch = Batch::with_capacity(1);
        bench.put(10, 60);
        assert!(batch.push(superframe(&mut bench.mem)).is_ok());
        bench.egress.enqueue(&mut batch, 1, bench.now, &mut bench.mem);
        bench.put(10, 60);
        assert!(bench.xmit(0));
        let numbers = bench.calls.lock().unwrap().numbers.clone();
        assert!(numbers[..10].iter().chain(&numbers[15..]).copied().eq(0..20), "{numbers:?}");
        bench.put(10, 60);
        assert!(bench.xmit(0) && bench.ledger().sent == 35);
        let sent = bench.ops.stats().counts();
        assert_eq!((sent.tx_packets, sent.tx_bytes), (35, 30 * 60 + 5 * 254));
    }
}

#[test]
fn segments_of_a_superframe_in_front_of_a_rate_wait_and_are_counted_one_by_one() {
    let tbf = Tbf::new(8_000_000, 500, Fifo::new(Limit::packets(9)));
    let mut bench = Bench::new(Egress::new(256, Some(Box::new(tbf))), ROOM);
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(superframe(&mut bench.mem)).is_ok());
    bench.egress.enqueue(&mut batch, 1, bench.now, &mut bench.mem);
    for waiting in (0..5).rev() {
        assert!(bench.xmit(0));
        assert_eq!(bench.egress.waiting(), waiting);
        let ledger = bench.ledger();
        assert_eq!((ledger.in_flight, ledger.difference()), (waiting as u64, 0));
        if let Some(due) = bench.egress.deadline() {
            // The bucket has tokens for 500 bytes at first, and a byte a microsecond.
            let time = Duration::from_micros(if waiting == 4 { 8 } else { 254 });
            assert_eq!(due - bench.now, time);
            bench.now = due;
        }
    }
    assert_eq!((bench.calls(), bench.ledger().sent), (vec![1; 5], 5));
    let counts = bench.egress.qdisc_counts().unwrap();
    assert_eq!((counts.enqueued.packets, counts.dequeued.bytes), (5, 5 * 254));
}

#[test]
fn packet_that_the_driver_drops_is_not_counted_as_accepted() {
    let mut bench = Bench::capped(TxBatch::Auto, 64, ROOM);
    bench.calls.lock().unwrap().guilty = Some(0);
    bench.put(2, 60);
    assert!(bench.xmit(0));
    assert_eq!(bench.egress.flushes.sizes.to_string(), "1: 1");
    assert_eq!((bench.ledger().sent, bench.ledger().dropped_total()), (1, 1));
    bench.calls.lock().unwrap().drops_all = true;
    bench.put(1, 60);
    assert!(bench.xmit(0), "the packet left, though the device accepted none");
    assert_eq!(bench.egress.flushes.sizes.full(), 1);
    assert_eq!((bench.ledger().sent, bench.ledger().dropped_total()), (1, 2));
}

/// S2.8: with a short backlog, the list is as long as its cap; a larger cap replaces the list.
#[test]
fn packets_on_the_list_stay_when_a_longer_one_takes_its_place() {
    let mut bench = Bench::capped(TxBatch::Packets(2), 64, 0);
    bench.put(10, 60);
    bench.xmit(1);
    assert_eq!((bench.egress.list_len(), bench.egress.waiting()), (1, 9));
    bench.egress.set_cap(TxBatch::Packets(16));
    bench.xmit(ROOM);
    bench.check_order(10);
}

#[test]
fn auto_bounds_the_bytes_of_a_doorbell_and_not_those_of_64_packets() {
    let mut bench = Bench::capped(TxBatch::Auto, 512, ROOM);
    bench.put(400, 60);
    bench.xmit(0);
    assert_eq!(bench.calls(), [400], "24 kB");
    bench.put(400, 1514);
    bench.xmit(0);
    // The packet that reaches 256 KiB is the last one.
    assert_eq!(bench.calls(), [174, 174, 52]);
    bench.check_order(800);
    // 64 packets go together, whatever their bytes (docs/adr/0015).
    bench.put(64, 2000);
    bench.xmit(0);
    assert_eq!(bench.calls(), [64], "128 kB");
}

/// S2.9, S2.10: a stop drops all waiting packets, and every packet is freed then.
#[test]
fn purge_empties_list_fifo_and_discipline() {
    for qdisc in [false, true] {
        let qdisc = qdisc.then(|| Box::new(Fifo::new(Limit::packets(500))) as Box<dyn Qdisc>);
        let mut egress = Egress::new(256, qdisc);
        egress.set_cap(TxBatch::Packets(8));
        let mut bench = Bench::new(egress, 3);
        bench.put(100, 60);
        bench.xmit(0);
        assert_eq!((bench.egress.list_len(), bench.egress.waiting()), (5, 97));
        bench.egress.purge(&mut bench.mem);
        let ledger = bench.ledger();
        assert_eq!((bench.egress.waiting(), ledger.in_flight), (0, 0));
        assert_eq!((ledger.sent, ledger.dropped(DropReason::STOPPED)), (3, 97));
    }
}

#[test]
fn withheld_packets_that_leave_are_movement_and_no_flush() {
    let mut bench = Bench::new(Egress::new(256, None), ROOM);
    bench.calls.lock().unwrap().withheld = 2;
    assert!(!bench.xmit(0), "the worker has not noted them");
    bench.egress.set_withholds(true);
    assert_eq!([(); 3].map(|()| bench.xmit(0)), [true, true, false]);
    assert_eq!((bench.calls(), bench.egress.flushes.calls), (vec![0; 2], 0));
}

#[test]
fn egress_that_is_dropped_frees_what_it_has() {
    let mut bench = Bench::capped(TxBatch::Packets(8), 256, 3);
    bench.put(100, 60);
    bench.xmit(0);
    bench.egress = Egress::new(1, None);
    assert_eq!(bench.ledger().in_flight, 0);
}

#[test]
fn discipline_has_the_packets_that_a_full_device_leaves() {
    let fifo = Fifo::new(Limit::packets(500));
    let mut bench = Bench::new(Egress::new(256, Some(Box::new(fifo))), 0);
    assert_eq!(bench.egress.room(), usize::MAX);
    assert_eq!(bench.egress.deadline(), None);
    bench.put(300, 60);
    bench.put(300, 60);
    assert_eq!(bench.ledger().dropped(DropReason::QUEUE_LIMIT), 100);
    assert!(!bench.xmit(0));
    // One batch has left the discipline; the packets in the discipline can still be reordered.
    assert_eq!((bench.egress.ready(), bench.egress.waiting()), (64, 500));
    assert_eq!(bench.egress.deadline(), None, "room comes before time");
    assert!(bench.xmit(100));
    assert_eq!(bench.calls(), [0, 64, 36]);
    bench.xmit(ROOM);
    bench.check_order(500);
    assert_eq!(bench.egress.qdisc_counts().unwrap().dequeued.packets, 500);
}

#[test]
fn shaped_egress_sends_what_is_due_and_names_the_next_time() {
    let tbf = Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(500)));
    let mut bench = Bench::new(Egress::new(256, Some(Box::new(tbf))), ROOM);
    bench.put(5, 1000);
    assert!(bench.xmit(0) && !bench.xmit(0));
    assert_eq!(bench.calls(), vec![2]);
    assert_eq!(bench.egress.ready(), 0);
    let due = bench.egress.deadline().unwrap();
    assert_eq!(due - bench.now, Duration::from_millis(1));
    // Packets gather for up to half of the time until the bucket is full, and no longer than asked.
    for (gap, after) in [(0, 1000), (120, 1000), (1200, 1200), (5000, 1500)] {
        let due = bench.egress.due(bench.now, Duration::from_micros(gap)).unwrap();
        assert_eq!(due - bench.now, Duration::from_micros(after), "{gap}");
    }
    bench.now = due;
    assert_eq!(bench.egress.due(due, Duration::from_secs(1)), Some(due), "it is due");
    assert!(bench.xmit(0));
    assert_eq!((bench.calls(), bench.egress.waiting()), (vec![1], 2));
}

/// A device whose calls take [`SLOW`] each.
struct Slow(EventFd);

const SLOW: Duration = Duration::from_micros(50);

impl QueueOps for Slow {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        std::thread::sleep(SLOW);
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }
}

impl AsFd for Slow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn time_of_a_flush_is_that_of_the_device_s_call() {
    let mut bench = Bench::capped(TxBatch::Packets(1), 256, ROOM);
    bench.ops = DriverQueue::new(Box::new(Slow(EventFd::new().unwrap())));
    for _ in 0..256 {
        bench.put(1, 60);
        bench.xmit(0);
    }
    let flushes = bench.egress.flushes;
    assert!(flushes.timed == 1 && flushes.timed_ns >= SLOW.as_nanos() as u64, "{flushes:?}");
}
