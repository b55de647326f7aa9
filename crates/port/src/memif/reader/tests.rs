//! Tests of a reader with two producers: our own client port, and a client that a test controls.

use std::sync::atomic::AtomicU32;

use linerate_skb::{Batch, DropReason, Pool, Trust};
use linerate_sys::mem::{Huge, Region};
use linerate_sys::peer::PeerMemory;
use linerate_sys::seqpacket::Seqpacket;
use linerate_sys::wait::EventFd;

use super::*;
use crate::memif::channel::Channel;
use crate::memif::handshake::{Client, Step};
use crate::memif::message::{Message, RingPlace};
use crate::memif::ring::{ClientRing, Desc, NEXT, Shared};
use crate::port::Port;
use crate::queue::Queue;
use crate::spec::Spec;

mod chains;

/// Longest time that any step may take on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// Returns a name that only this test uses.
fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("@linerate-reader-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "waited for {what}");
        std::thread::yield_now();
    }
}

/// Returns the packet with this number, which determines its length and bytes.
fn packet(number: u64, longest: usize) -> Vec<u8> {
    let len = 60 + (number as usize * 131) % (longest - 59);
    (0..len).map(|at| (number as usize * 31 + at * 7 + (at >> 8)) as u8).collect()
}

fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    assert_eq!(frame.copy_to(0, &mut bytes), frame.len());
    bytes
}

fn held_bytes(held: &Held) -> Vec<u8> {
    let mut bytes = vec![0; held.len()];
    assert_eq!(held.copy_to(0, &mut bytes), held.len());
    bytes
}

/// Our own client.
struct Producer {
    queues: Vec<Queue>,
    pool: Pool,
    sent: u64,
    longest: usize,
}

impl Producer {
    /// Connects a producer to `reader`.
    fn meet(reader: &mut Reader, name: &str, options: &str) -> Producer {
        let trust = match options.contains("zerocopy=yes") {
            true => Trust::Exported,
            false => Trust::Private,
        };
        let pool = Pool::builder().frames(4096).trust(trust).build().unwrap();
        let port = Port::open_with(&format!("memif:{name},{options}"), &pool).unwrap();
        let mut producer = Producer { queues: port.into_queues(), pool, sent: 0, longest: 1500 };
        until("the connection", || {
            producer.queues.iter_mut().for_each(|queue| _ = queue.arm(crate::Want::Frames));
            let _ = reader.arm();
            let up = |queue: &Queue| queue.health() == Health::Up;
            reader.health() == Health::Up && producer.queues.iter().all(up)
        });
        producer
    }

    /// Sends up to `n` packets, or fewer if the ring has no room.
    fn send(&mut self, n: usize) -> usize {
        let queues = self.queues.len();
        let queue = &mut self.queues[self.sent as usize % queues];
        let mut batch = Batch::with_capacity(n);
        for i in 0..n as u64 {
            let made = queue.local().alloc_copy(&packet(self.sent + i, self.longest));
            let Some(skb) = made else { break };
            batch.push(skb).unwrap();
        }
        let sent = queue.xmit(&mut batch);
        batch.clear();
        self.sent += sent as u64;
        sent
    }

    /// Takes back the packets that the reader has given back.
    fn reap(&mut self) {
        self.queues.iter_mut().for_each(|queue| _ = queue.arm(crate::Want::Frames));
    }

    fn copied_bytes(&mut self) -> u64 {
        self.queues.iter_mut().filter_map(|queue| queue.driver_counts().copied_bytes).sum()
    }
}

/// A client with its own ring, which sends what the test requests.
struct Puppet {
    _socket: Channel,
    memory: Arc<PeerMemory>,
    ring: ClientRing,
    bell: EventFd,
}

/// Offset of the puppet's buffers, of which each slot has one.
const BUFFERS_AT: usize = 64 << 10;
const BUFFER_BYTES: usize = 2048;
const MEMORY_BYTES: usize = 256 << 10;

impl Puppet {
    fn meet(reader: &mut Reader, name: &str, power: u8) -> Puppet {
        let text = format!("memif:{name},size={}", 1 << power);
        let config = Config::of(&Spec::parse(&text, &["memif"]).unwrap()).unwrap();
        let socket = Channel(Seqpacket::connect(&config.path).unwrap());
        let region = Arc::new(Region::new("puppet", MEMORY_BYTES, Huge::Never).unwrap());
        let file = region.as_fd().try_clone_to_owned().unwrap();
        // SAFETY: only this value and rings access the memory, as shared memory.
        let memory = Arc::new(unsafe { PeerMemory::shared(region) });
        let shared = Shared::new(&memory, 0, power).unwrap();
        shared.initialise();
        let bell = EventFd::new().unwrap();
        let place = RingPlace { from_client: true, power, ..RingPlace::default() };
        let all = vec![
            (Message::AddRegion { index: 0, bytes: MEMORY_BYTES as u64 }, file),
            (Message::AddRing(place), bell.as_fd().try_clone_to_owned().unwrap()),
        ];
        let (mut machine, mut all) = (Client::new(&config), Some(all));
        until("the reader", || {
            let _ = reader.arm();
            let Some(message) = socket.recv(&mut Vec::new()).unwrap() else { return false };
            let mut step = machine.on(&message, &[]).unwrap();
            if let Step::Make(_) = step {
                step = machine.offer(all.take().unwrap()).unwrap();
            }
            let Step::Send(message, fd) = step else { return true };
            socket.send(&message, fd).unwrap();
            false
        });
        until("its health", || {
            let _ = reader.arm();
            reader.health() == Health::Up
        });
        Puppet { _socket: socket, memory, ring: ClientRing::new(shared), bell }
    }

    /// Writes a packet's part into the buffer of the `i`-th free slot, and describes it in the
    /// slot.
    fn write(&self, i: u16, part: &[u8], flags: u16) {
        let slot = self.ring.free_slot(i);
        let offset = BUFFERS_AT + slot * BUFFER_BYTES;
        assert!(self.memory.write(offset, part));
        let desc = Desc { flags, region: 0, len: part.len() as u32, offset: offset as u32 };
        self.ring.shared.set(slot as u16, desc);
    }

    /// Sends `n` packets, numbered from `from` on.
    fn send(&mut self, from: u64, n: u16) {
        (0..n).for_each(|i| self.write(i, &packet(from + u64::from(i), 1500), 0));
        self.post(n);
    }

    fn post(&mut self, n: u16) {
        self.ring.post(n);
        if self.ring.shared.rings() {
            self.bell.signal();
        }
    }

    /// Posts one slot with this descriptor.
    fn tell(&mut self, desc: Desc) {
        self.ring.shared.set(self.ring.free_slot(0) as u16, desc);
        self.post(1);
    }

    /// Takes back the slots that the reader has given back since the last call, and returns their
    /// number.
    fn back(&mut self) -> u16 {
        let n = self.ring.poll().unwrap();
        self.ring.take_back(n);
        n
    }
}

fn reader_and_puppet(power: u8) -> (Reader, Puppet, String) {
    let name = name();
    let mut reader = Reader::listen(&name).unwrap();
    let puppet = Puppet::meet(&mut reader, &name, power);
    (reader, puppet, name)
}

#[test]
fn every_packet_arrives_in_order_and_byte_exact_and_its_frame_returns() {
    for (options, copied) in
        [("zerocopy=yes", false), ("zerocopy=read", false), ("zerocopy=no", true)]
    {
        let name = name();
        let mut reader = Reader::listen(&name).unwrap();
        let mut producer = Producer::meet(&mut reader, &name, &format!("{options},size=128"));
        // Send packets of up to five frames of the pool.
        producer.longest = 9000;
        let (mut seen, mut total) = (0, 0);
        while seen < 3000 {
            producer.send(17);
            assert!(reader.wait(Some(LONG)).unwrap(), "{options}: after {seen}");
            for frame in reader.frames(13) {
                let whole = packet(seen, producer.longest);
                assert_eq!(bytes(&frame), whole, "{options}: packet {seen}");
                let mut middle = [0; 50];
                assert_eq!(frame.copy_to(whole.len() - 30, &mut middle), 30);
                assert_eq!(middle[..30], whole[whole.len() - 30..]);
                (seen, total) = (seen + 1, total + whole.len() as u64);
            }
        }
        until("the rest", || {
            let n = reader.frames(64).map(|frame| total += frame.len() as u64).count();
            seen += n as u64;
            n == 0
        });
        assert_eq!(seen, producer.sent);
        let counts = Counts { frames: seen, bytes: total, ..Counts::default() };
        assert_eq!(reader.counts(), counts);
        assert_eq!(producer.copied_bytes() > 0, copied, "{options}");
        producer.reap();
        let ledger = producer.pool.ledger();
        assert!(ledger.balanced() && ledger.in_flight == 0, "{options}: {ledger}");
        assert_eq!(ledger.sent, seen, "{ledger}");
    }
}

#[test]
fn numbers_are_read_in_network_order_and_never_beyond_the_end() {
    let (mut reader, mut puppet, _) = reader_and_puppet(4);
    // Use three pieces, one of them empty.
    puppet.write(0, &[1, 2, 3], NEXT);
    puppet.write(1, &[], NEXT);
    puppet.write(2, &[4, 5, 6, 7, 8, 9, 10], 0);
    puppet.write(3, &[], 0);
    puppet.post(4);
    let mut frames = reader.frames(8);
    let frame = frames.next().unwrap();
    let nothing = frames.next().unwrap();
    assert!(nothing.is_empty() && nothing.u8(0).is_none() && frames.next().is_none());
    assert_eq!((frame.len(), frame.is_empty()), (10, false));
    assert_eq!((frame.u8(9), frame.u8(10), frame.u8(usize::MAX)), (Some(10), None, None));
    assert_eq!((frame.u16_be(2), frame.u16_be(9)), (Some(0x0304), None));
    assert_eq!((frame.u32_be(1), frame.u32_be(7)), (Some(0x0203_0405), None));
    assert_eq!((frame.u64_be(2), frame.u64_be(3)), (Some(0x0304_0506_0708_090a), None));
    let held = frame.hold();
    drop((nothing, frames));
    assert_eq!((held.u8(3), held.u16_be(2), held.u32_be(7)), (Some(4), Some(0x0304), None));
    assert_eq!(held.u64_be(2), Some(0x0304_0506_0708_090a));
}

#[test]
fn slots_go_back_in_order_whatever_the_order_of_the_drops() {
    let (mut reader, mut puppet, _) = reader_and_puppet(4);
    puppet.send(0, 6);
    let mut frames: Vec<Frame<'_>> = reader.frames(5).collect();
    assert_eq!(puppet.back(), 0);
    // Drop the third frame, then the first and the second.
    drop(frames.remove(2));
    assert_eq!(puppet.back(), 0);
    drop(frames.remove(0));
    assert_eq!(puppet.back(), 1);
    drop(frames.remove(0));
    assert_eq!(puppet.back(), 2);
    // A forgotten frame is not lost: it is borrowed only until the next call.
    drop(frames.into_iter().map(std::mem::ManuallyDrop::new).collect::<Vec<_>>());
    assert_eq!(puppet.back(), 0);
    assert_eq!(reader.frames(0).count(), 0);
    assert_eq!(puppet.back(), 2);
    let mut frames = reader.frames(5);
    assert_eq!(bytes(&frames.next().unwrap()), packet(5, 1500));
    assert_eq!(puppet.back(), 0, "once a loop");
    drop(frames);
    assert_eq!(puppet.back(), 1);
}

#[test]
fn what_is_held_stays_as_it_was_while_the_ring_goes_round() {
    for options in ["zerocopy=yes,size=64", "zerocopy=no,size=64"] {
        let name = name();
        let mut reader = Reader::listen(&name).unwrap();
        let mut producer = Producer::meet(&mut reader, &name, options);
        let (mut seen, mut held) = (0, std::collections::VecDeque::new());
        while seen < 2000 {
            producer.send(16);
            for frame in reader.frames(16) {
                if seen % 5 == 0 {
                    held.push_back((seen, frame.hold()));
                }
                seen += 1;
            }
            // Keep 35 packets held, which is more than half of the ring.
            while held.len() > 7 {
                let (number, held) = held.pop_front().unwrap();
                assert_eq!(held_bytes(&held), packet(number, 1500), "{options}: {held:?}");
                assert!(!held.is_gone());
            }
        }
        assert!(reader.counts().copied_out > 0, "{options}");
        held.clear();
        assert_eq!(reader.frames(0).count(), 0);
        assert_eq!(producer.sent, seen, "{options}");
        producer.reap();
        assert_eq!(producer.pool.ledger().in_flight, 0, "{options}");
    }
}

#[test]
fn a_slow_holder_is_copied_out_and_the_ring_goes_on() {
    let (mut reader, mut puppet, _) = reader_and_puppet(4);
    puppet.send(0, 8);
    let held = reader.frames(1).next().unwrap().hold();
    let other = reader.frames(1).next().unwrap().hold();
    assert_eq!(reader.frames(16).count(), 6);
    // Half of the ring may be blocked, so the frame is not copied yet.
    assert!(!held.is_copied() && reader.counts().copied_out == 0);
    assert_eq!(puppet.back(), 0);
    puppet.send(8, 1);
    assert_eq!(reader.frames(16).count(), 1);
    assert!(held.is_copied() && !other.is_copied());
    assert_eq!((reader.counts().copied_out, puppet.back()), (1, 1));
    for round in 0..100 {
        puppet.send(9 + round * 4, 4);
        assert_eq!(reader.frames(16).count(), 4);
        puppet.back();
    }
    assert_eq!(reader.counts().copied_out, 2);
    assert_eq!((held_bytes(&held), held_bytes(&other)), (packet(0, 1500), packet(1, 1500)));
    assert_eq!(held.u16_be(1499), None);
}

#[test]
fn what_another_thread_releases_goes_back_while_the_reader_sleeps() {
    let (mut reader, mut puppet, _) = reader_and_puppet(4);
    puppet.send(0, 2);
    let held: Vec<Held> = reader.frames(2).map(Frame::hold).collect();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let woken = reader.wait(Some(LONG)).unwrap();
            (woken, reader.frames(8).map(|frame| bytes(&frame)).collect::<Vec<_>>())
        });
        for held in held {
            drop(held);
            until("the slot", || puppet.back() == 1);
        }
        puppet.send(2, 1);
        assert_eq!(sleeper.join().unwrap(), (true, vec![packet(2, 1500)]));
    });
}

#[test]
fn a_held_frame_is_read_by_one_thread_while_another_copies_it_and_it_is_written_over() {
    const PIECES: u16 = 30;
    const PIECE_BYTES: usize = 2000;
    let (mut reader, mut puppet, _) = reader_and_puppet(6);
    for round in 0..200 {
        for i in 0..PIECES {
            let flags = if i + 1 < PIECES { NEXT } else { 0 };
            puppet.write(i, &[round as u8; PIECE_BYTES], flags);
        }
        puppet.post(PIECES);
        let held = reader.frames(1).next().unwrap().hold();
        let (reads, over) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let (mut wrong, start) = (0, Instant::now());
                // End the thread if the test fails.
                while over.load(Ordering::Acquire) == 0 && start.elapsed() < LONG {
                    let bytes = held_bytes(&held);
                    wrong += u32::from(bytes.iter().any(|byte| *byte != round as u8));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                wrong
            });
            until("a read", || reads.load(Ordering::Relaxed) > 0);
            // Held frames block more than half of the ring, so the frame is copied; then the whole
            // ring is overwritten.
            for _ in 0..34 {
                puppet.write(0, &[!(round as u8); PIECE_BYTES], 0);
                puppet.post(1);
                assert_eq!(reader.frames(4).count(), 1);
                puppet.back();
            }
            assert!(held.is_copied());
            let back = puppet.ring.free();
            (0..back).for_each(|i| puppet.write(i, &[!(round as u8); PIECE_BYTES], 0));
            over.store(1, Ordering::Release);
            assert_eq!(seen.join().unwrap(), 0, "round {round}");
        });
    }
    assert_eq!(reader.counts().copied_out, 200);
}

#[test]
fn producer_after_producer_is_taken_and_what_is_held_outlives_its_own() {
    let name = name();
    let mut reader = Reader::listen(&name).unwrap();
    let mut held: Vec<Held> = Vec::new();
    for round in 0..5u64 {
        let options = if round % 2 == 0 { "zerocopy=yes" } else { "zerocopy=read" };
        let mut producer = Producer::meet(&mut reader, &name, options);
        assert_eq!(reader.counts().ended, round);
        assert!(held.iter().all(Held::is_gone));
        producer.send(10);
        let mut frames = reader.frames(64);
        let first = frames.next().unwrap();
        assert_eq!(bytes(&first), packet(0, 1500));
        held.push(first.hold());
        assert_eq!(frames.count(), 9);
        let pool = producer.pool.clone();
        drop(producer);
        let ledger = pool.ledger();
        // The packets behind the held one had not been given back, either.
        assert_eq!((ledger.in_flight, ledger.dropped(DropReason::PEER_GONE)), (0, 10), "{ledger}");
        assert!(reader.wait(Some(LONG)).unwrap(), "that it has gone");
        assert_eq!(reader.frames(64).count(), 0);
        assert!(matches!(reader.health(), Health::Down(_)));
    }
    drop(reader);
    for held in held {
        assert!(held.is_gone() && !held.is_copied());
        assert_eq!(held_bytes(&held).len(), 60);
    }
}

#[test]
fn producer_that_violates_the_protocol_is_disconnected_and_counted() {
    type Messages = fn(&mut Puppet);
    let violations: [(&str, Messages, usize); 6] = [
        ("index", |puppet| assert!(puppet.memory.write(6, &100u16.to_ne_bytes())), 0),
        ("index", |puppet| assert!(puppet.memory.write(6, &0u16.to_ne_bytes())), 0),
        ("outside", |puppet| puppet.tell(Desc { region: 1, len: 60, ..Desc::default() }), 1),
        ("outside", |puppet| puppet.tell(Desc { len: u32::MAX, offset: 1, ..Desc::default() }), 1),
        ("outside", |puppet| puppet.tell(Desc { len: 60, offset: u32::MAX, ..Desc::default() }), 1),
        ("too long", |puppet| puppet.tell(Desc { len: 70_000, ..Desc::default() }), 1),
    ];
    for (i, (what, violate, good)) in violations.into_iter().enumerate() {
        let (mut reader, mut puppet, name) = reader_and_puppet(4);
        puppet.send(0, 1);
        let held = reader.frames(1).next().unwrap().hold();
        puppet.send(1, 1);
        violate(&mut puppet);
        let came: Vec<_> = reader.frames(8).map(|frame| bytes(&frame)).collect();
        // The packets before the violation are valid.
        assert_eq!(came.len(), good, "violation {i}");
        assert!(came.iter().all(|bytes| *bytes == packet(1, 1500)));
        assert!(reader.wait(Some(LONG)).unwrap());
        assert_eq!(reader.frames(8).count(), 0);
        let Health::Down(e) = reader.health() else { panic!("violation {i} is believed") };
        assert!(e.why.contains(what), "violation {i}: {e}");
        until("its end", || reader.counts().ended == 1);
        let counts = reader.counts();
        assert_eq!(
            (counts.protocol_errors, counts.ended, counts.frames),
            (1, 1, 1 + good as u64),
            "violation {i}"
        );
        assert!(held.is_gone());
        assert_eq!(held_bytes(&held), packet(0, 1500));
        // A producer that keeps to the protocol is served afterwards.
        let mut honest = Puppet::meet(&mut reader, &name, 4);
        honest.send(7, 1);
        let came: Vec<_> = reader.frames(8).map(|frame| bytes(&frame)).collect();
        assert_eq!(came, [packet(7, 1500)]);
    }
}

#[test]
fn a_packet_without_an_end_is_a_violation_once_the_ring_is_full_of_it() {
    let (mut reader, mut puppet, _) = reader_and_puppet(2);
    for n in 1..=4 {
        puppet.write(0, &[n], NEXT);
        puppet.post(1);
        assert_eq!(reader.frames(8).count(), 0);
        if n < 4 {
            // The reader must not spin on the incomplete packet.
            assert!(reader.counts().protocol_errors == 0 && reader.arm(), "after {n} of 4");
        }
    }
    // Another thread counts the violation, so wait for it.
    until("the violation to be counted", || reader.counts().protocol_errors == 1);
}

#[test]
fn a_sleeper_is_woken_by_each_packet_and_sleeps_when_there_is_none() {
    let (mut reader, mut puppet, _) = reader_and_puppet(4);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut seen = 0;
            while seen < 300 {
                assert!(reader.wait(Some(LONG)).unwrap(), "asleep after {seen}");
                seen += reader.frames(8).count();
            }
        });
        for number in 0..300 {
            puppet.send(number, 1);
            until("the reader", || puppet.back() == 1);
        }
        sleeper.join().unwrap();
    });
    assert!(!reader.wait(Some(Duration::from_millis(5))).unwrap());
    // The reader has checked a second time, and does not check a third time.
    assert_eq!(reader.end.second_look, None);
    assert!(reader.arm());
    assert!(!poll_readable(&[reader.as_fd()], Some(Duration::ZERO)).unwrap());
    // From now on only the doorbell wakes the reader, which has requested it.
    puppet.send(300, 1);
    assert!(poll_readable(&[reader.as_fd()], Some(LONG)).unwrap());
    assert_eq!(reader.frames(8).count(), 1);
}

#[test]
fn a_sleeper_looks_a_second_time_for_what_was_not_announced() {
    let (mut reader, mut puppet, _) = reader_and_puppet(4);
    assert!(reader.arm());
    // A producer without a fence: it read just before that it need not ring.
    puppet.write(0, &[1; 60], 0);
    puppet.ring.post(1);
    assert!(poll_readable(&[reader.as_fd()], Some(LONG)).unwrap());
    assert_eq!(reader.frames(8).count(), 1);
}

#[test]
fn all_rings_of_a_producer_are_read_in_turn() {
    let name = name();
    let mut reader = Reader::listen(&name).unwrap();
    let mut producer = Producer::meet(&mut reader, &name, "rings=3,size=64,zerocopy=no");
    let mut seen = 0;
    for _ in 0..30 {
        // Send to each ring a packet with the ring's number.
        (0..6).for_each(|_| assert_eq!(producer.send(1), 1));
        assert!(reader.wait(Some(LONG)).unwrap());
        seen += reader.frames(4).count() as u64;
        seen += reader.frames(64).count() as u64;
    }
    assert_eq!((seen, producer.sent), (180, 180));
    assert_eq!(reader.counts().frames, 180);
    // Receive one packet at a time: no ring must wait behind the others.
    (0..9).for_each(|_| assert_eq!(producer.send(1), 1));
    let mut numbers: Vec<u16> = (0..3)
        .map(|_| reader.frames(1).next().and_then(|frame| frame.u16_be(0)).unwrap())
        .collect();
    numbers.sort_unstable();
    let mut firsts = [180, 181, 182].map(|number| {
        let packet = packet(number, 1500);
        u16::from_be_bytes([packet[0], packet[1]])
    });
    firsts.sort_unstable();
    assert_eq!(numbers, firsts);
}

#[test]
fn a_reader_can_move_and_is_told_what_is_wrong() {
    fn can_move<T: Send>(_: &T) {}
    fn can_be_shared<T: Send + Sync>() {}
    can_be_shared::<Held>();
    let name = name();
    let reader = Reader::open(&format!("memif:{name},secret=s")).unwrap();
    can_move(&reader);
    assert!(matches!(reader.health(), Health::Down(e) if e.fix.contains("role=client")));
    assert_eq!(Reader::listen(&name).unwrap_err().code, Code::Busy);
    assert_eq!(Reader::listen("").unwrap_err().code, Code::System);
    for (text, why) in [("gen:", "memif is read"), ("memif:@x,role=client", "memif's server")] {
        let e = Reader::open(text).unwrap_err();
        assert!(e.why.contains(why), "{text}: {e}");
    }
    drop(reader);
    Reader::listen(&name).unwrap();
}
