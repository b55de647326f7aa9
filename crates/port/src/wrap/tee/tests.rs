//! Tests of captures of running paths: they are readable and bounded, and never delay the path.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use linerate_skb::{Offload, Pool, Verdict, Vlan};

use super::*;
use crate::host::testing::{
    LONG, assert_settled, in_netns, queue_in, receive, send, stamped, veth,
};
use crate::pcap::format::Reader;
use crate::wrap::testing::SharedFile;
use crate::{Port, Queue, Want};

/// A disk that is full after this number of bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.0);
        self.0 -= n;
        if n == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(n) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn pair(len: u32, tee: &Tee) -> (Pool, Queue, Queue) {
    let pool = Pool::builder().frames(1024).build().unwrap();
    let (a, b) = Port::pair(len, &pool).unwrap();
    let a = a.wrap(|ops, i| tee.wrap(ops, &format!("a/{i}"))).unwrap();
    (pool, a.into_queues().remove(0), b.into_queues().remove(0))
}

/// Sends `n` packets of `len` bytes, numbered from `from` on; returns how many were sent.
fn push(queue: &mut Queue, from: u32, n: usize, len: usize) -> usize {
    let mut batch = Batch::with_capacity(n);
    assert_eq!(queue.alloc(&mut batch, n), n);
    for (number, skb) in (from..).zip(batch.iter_mut()) {
        skb.put(len).unwrap()[..4].copy_from_slice(&number.to_be_bytes());
    }
    queue.xmit(&mut batch)
}

fn pull(queue: &mut Queue, n: usize) -> usize {
    queue.rx(&mut Batch::with_capacity(n))
}

/// A packet of a capture: interface, time, length on the wire, bytes.
type Packet = (u32, u64, u32, Vec<u8>);

fn packets(file: &[u8]) -> Vec<Packet> {
    let mut reader = Reader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(r) = reader.next_record().unwrap() {
        packets.push((r.interface, r.time_ns.unwrap(), r.orig_len, r.data.to_vec()));
    }
    packets
}

fn number(packet: &Packet) -> u32 {
    u32::from_be_bytes(*packet.3.first_chunk().unwrap())
}

/// Returns the flags of each packet block, decoded as the specification defines them.
fn flags(file: &[u8]) -> Vec<u32> {
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
    let (mut at, mut flags) = (0, Vec::new());
    while at < file.len() {
        if word(at) == 6 {
            let option = at + 28 + (word(at + 20) as usize).next_multiple_of(4);
            assert_eq!((word(option), word(option + 8)), (4 << 16 | 2, 0));
            flags.push(word(option + 4));
        }
        at += word(at + 4) as usize;
    }
    flags
}

#[test]
fn a_capture_has_what_passed_with_its_way_its_length_and_its_time() {
    let limits = Limits { snaplen_bytes: 100, ..Limits::default() };
    let tee = Tee::new(limits).unwrap();
    let (_pool, mut a, mut b) = pair(4, &tee);
    push(&mut a, 90, 1, 60);
    let (file, before) = (SharedFile::default(), epoch_ns());
    let mut writer = tee.start(file.clone()).unwrap();
    // Only four of the six packets fit into the ring, and only these were sent.
    pull(&mut b, 1);
    assert_eq!(push(&mut a, 0, 6, 61), 4);
    let mut batch = Batch::with_capacity(2);
    b.alloc(&mut batch, 2);
    for skb in batch.iter_mut() {
        skb.put(300).unwrap()[..4].copy_from_slice(&7u32.to_be_bytes());
    }
    batch.iter_mut().next().unwrap().set_stamp_ns(12_345);
    b.xmit(&mut batch);
    assert_eq!(pull(&mut a, 8), 2);
    assert_eq!(writer.write_pending().unwrap(), 6);
    let after = epoch_ns();
    assert_eq!(writer.finish().unwrap(), 6);
    assert_eq!(push(&mut a, 50, 1, 60), 0);
    let file = file.content();
    let got = packets(&file);
    assert_eq!(got.iter().map(number).collect::<Vec<_>>(), [0, 1, 2, 3, 7, 7]);
    assert_eq!(flags(&file), [2, 2, 2, 2, 1, 1]);
    let lens: Vec<_> = got.iter().map(|p| (p.2, p.3.len())).collect();
    assert_eq!((lens[0], lens[5]), ((61, 61), (300, 100)));
    // Sent packets have the time of the call, which they share; received packets have the device's
    // time, if it has one.
    assert!((before..=after).contains(&got[0].1) && got[..4].iter().all(|p| p.1 == got[0].1));
    assert!(got[4].1 == 12_345 && (before..=after).contains(&got[5].1));
    let counts = TeeCounts { copied: 6, dropped: 0, written: 6, unwritten: 0 };
    assert_eq!(tee.counts(), counts);
}

#[test]
fn a_capture_has_the_vlan_tag_that_is_in_the_metadata() {
    let bytes: Vec<u8> = (0..60).collect();
    let tagged = [&bytes[..12], &[0x88, 0xa8, 0x20, 0x05], &bytes[12..]].concat();
    for snaplen_bytes in [5, 12, 14, 16, 40, 64, 100] {
        let tee = Tee::new(Limits { snaplen_bytes, ..Limits::default() }).unwrap();
        let (_pool, mut a, mut b) = pair(4, &tee);
        let file = SharedFile::default();
        let writer = tee.start(file.clone()).unwrap();
        let mut batch = Batch::with_capacity(1);
        b.alloc(&mut batch, 1);
        for skb in batch.iter_mut() {
            assert!(skb.put_slice(&bytes));
            assert!(skb.set_vlan(Some(Vlan { tci: 0x2005, protocol: 0x88a8 })));
        }
        b.xmit(&mut batch);
        assert_eq!((pull(&mut a, 1), writer.finish().unwrap()), (1, 1));
        let (_, _, orig_len, copy) = packets(&file.content()).remove(0);
        assert_eq!((orig_len, &*copy), (64, &tagged[..snaplen_bytes.min(64)]));
    }
}

/// A device that takes this number of packets in each call, and records the longest batch.
struct Narrow {
    bell: EventFd,
    takes: usize,
    longest: Arc<AtomicU64>,
}

impl QueueOps for Narrow {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.longest.fetch_max(batch.len() as u64, Ordering::Relaxed);
        batch.sent(self.takes.min(batch.len()), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }
}

impl AsFd for Narrow {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[test]
fn a_device_that_refuses_most_of_a_long_batch_has_little_of_it_copied() {
    let pool = Pool::builder().frames(512).build().unwrap();
    for takes in [1, 63, 64, 300] {
        let tee = Tee::new(Limits::default()).unwrap();
        let longest = Arc::<AtomicU64>::default();
        let narrow = Narrow { bell: EventFd::new().unwrap(), takes, longest: longest.clone() };
        let mut ops = tee.wrap(Box::new(narrow), "narrow").unwrap();
        let file = SharedFile::default();
        let writer = tee.start(file.clone()).unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(200));
        assert_eq!(mem.alloc(&mut batch, 200), 200);
        for (number, skb) in (0_u32..).zip(batch.iter_mut()) {
            skb.put(60).unwrap()[..4].copy_from_slice(&number.to_be_bytes());
        }
        batch.set_verdict(199, Verdict::to(7));
        while !batch.is_empty() {
            let before = batch.len();
            let moved = ops.xmit(&mut mem, &mut batch);
            assert_eq!(
                (moved.packets, moved.bytes),
                (before - batch.len(), 60 * moved.packets as u64)
            );
            assert!(moved.packets > 0);
            let last = batch.len().checked_sub(1).map(|last| batch.verdict(last));
            assert!(last.is_none_or(|verdict| verdict == Verdict::to(7)), "{last:?}");
        }
        assert_eq!(writer.finish().unwrap(), 200);
        assert!(packets(&file.content()).iter().map(number).eq(0..200), "{takes} a call");
        assert!(longest.load(Ordering::Relaxed) <= 64, "{longest:?}");
    }
}

/// Sends packets through a tee as fast as possible until `stop`; returns how many passed in each
/// direction.
fn busy_path(mut a: Queue, mut b: Queue, stop: mpsc::Receiver<()>) -> (Queue, Queue, u32) {
    let mut next = 0;
    while stop.try_recv().is_err() {
        next += push(&mut a, next, 16, 64) as u32;
        let mut batch = Batch::with_capacity(64);
        while b.rx(&mut batch) > 0 {
            // Send the packets back, so that they are received as well.
            b.xmit(&mut batch);
            assert!(batch.is_empty(), "there is room: as many as were taken");
            pull(&mut a, 64);
        }
    }
    (a, b, next)
}

#[test]
fn captures_start_and_stop_on_a_path_under_load() {
    let tee = Tee::new(Limits { queue_bytes: 1 << 18, ..Limits::default() }).unwrap();
    let (pool, a, b) = pair(256, &tee);
    let (stop, stopped) = mpsc::channel();
    let path = std::thread::spawn(move || busy_path(a, b, stopped));
    let mut files = Vec::new();
    for round in 0..5 {
        let file = SharedFile::default();
        let mut writer = tee.start(file.clone()).unwrap();
        let mut written = 0;
        while written < 500 {
            assert!(writer.wait(Some(LONG)).unwrap(), "nothing was copied");
            written += writer.write_pending().unwrap();
        }
        if round == 2 {
            tee.stop();
            assert!(writer.has_ended());
        }
        let all = writer.finish().unwrap();
        assert!(all >= written);
        files.push((file.content(), all));
    }
    stop.send(()).unwrap();
    let (a, b, sent) = path.join().unwrap();
    drop((a, b));
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
    assert_eq!((ledger.dropped_total(), ledger.consumed), (0, u64::from(sent)), "{ledger}");
    let mut last = 0;
    for (file, all) in &files {
        let got = packets(file);
        assert_eq!((got.len() as u64, flags(file).len() as u64), (*all, *all));
        let ways = got.iter().zip(flags(file));
        let tx: Vec<u32> =
            ways.filter(|(_, flag)| *flag == OUTBOUND).map(|(p, _)| number(p)).collect();
        // The copies are in order, of this capture only, and none is of a packet that was not sent.
        assert!(tx.is_sorted() && tx.windows(2).all(|w| w[0] != w[1]), "{tx:?}");
        assert!(tx[0] >= last && *tx.last().unwrap() < sent);
        last = *tx.last().unwrap();
    }
    let counts = tee.counts();
    assert_eq!(counts.written, files.iter().map(|(_, all)| all).sum::<u64>());
    assert!(counts.copied >= counts.written + counts.unwritten);
}

const OUTBOUND: u32 = 2;

#[test]
fn without_a_writer_copies_are_left_out_and_packets_are_not() {
    let limits = Limits { snaplen_bytes: 1000, queue_bytes: 1, ..Limits::default() };
    let tee = Tee::new(limits).unwrap();
    let (_pool, mut a, mut b) = pair(64, &tee);
    let file = SharedFile::default();
    let writer = tee.start(file.clone()).unwrap();
    for round in 0..10 {
        assert_eq!(push(&mut a, 10 * round, 10, 500), 10);
        assert_eq!(pull(&mut b, 64), 10);
    }
    // 2048 bytes of memory hold three packets of 520 bytes.
    let counts = TeeCounts { copied: 3, dropped: 97, written: 0, unwritten: 0 };
    assert_eq!(tee.counts(), counts);
    assert_eq!(writer.finish().unwrap(), 3);
    assert_eq!(packets(&file.content()).iter().map(number).collect::<Vec<_>>(), [0, 1, 2]);
    // The next capture starts with new counts and with an empty queue of copies.
    let writer = tee.start(io::sink()).unwrap();
    push(&mut a, 0, 2, 500);
    assert_eq!(writer.finish().unwrap(), 2);
}

#[test]
fn a_file_that_is_long_enough_ends_the_capture() {
    let limits = Limits { file_bytes: 4096, ..Limits::default() };
    let tee = Tee::new(limits).unwrap();
    let (_pool, mut a, _b) = pair(64, &tee);
    let file = SharedFile::default();
    let mut writer = tee.start(file.clone()).unwrap();
    push(&mut a, 0, 20, 500);
    let written = writer.write_pending().unwrap();
    assert!(writer.is_full() && writer.has_ended() && (1..20).contains(&written));
    push(&mut a, 20, 5, 500);
    assert_eq!(writer.finish().unwrap(), written);
    let file = file.content();
    assert!(file.len() <= 4096 && packets(&file).len() as u64 == written);
    let counts = TeeCounts { copied: 20, dropped: 0, written, unwritten: 20 - written };
    assert_eq!(tee.counts(), counts);
}

#[test]
fn a_disk_that_is_full_ends_the_capture_and_not_the_path() {
    let tee = Tee::new(Limits::default()).unwrap();
    let (_pool, mut a, mut b) = pair(64, &tee);
    let mut writer = tee.start(Full(1000)).unwrap();
    push(&mut a, 0, 10, 200);
    let e = writer.write_pending().unwrap_err();
    assert!(e.code == Code::File && !e.fix.is_empty(), "{e}");
    assert!(writer.has_ended() && writer.finish().is_err());
    let counts = tee.counts();
    // Packets that the sink accepted completely before it failed count as written.
    assert_eq!((counts.copied, counts.written + counts.unwritten), (10, 10));
    assert!((1..10).contains(&counts.written), "{counts:?}");
    assert_eq!(push(&mut a, 0, 10, 200), 10);
    assert_eq!(pull(&mut b, 64), 20);
    assert_eq!(tee.counts(), counts);
}

#[test]
fn one_capture_at_a_time() {
    let tee = Tee::new(Limits::default()).unwrap();
    let first = tee.start(io::sink()).unwrap();
    let e = tee.start(io::sink()).unwrap_err();
    assert!(e.code == Code::Busy && !e.fix.is_empty(), "{e}");
    drop(first);
    assert!(tee.start(io::sink()).is_ok());
}

#[test]
fn copies_for_an_ended_capture_are_not_in_the_next() {
    let tee = Tee::new(Limits::default()).unwrap();
    let (_pool, mut a, _b) = pair(64, &tee);
    drop(tee.start(io::sink()).inspect(|_| assert_eq!(push(&mut a, 0, 3, 60), 3)).unwrap());
    let file = SharedFile::default();
    let writer = tee.start(file.clone()).unwrap();
    push(&mut a, 3, 2, 60);
    assert_eq!(writer.finish().unwrap(), 2);
    assert_eq!(packets(&file.content()).iter().map(number).collect::<Vec<_>>(), [3, 4]);
    let counts = TeeCounts { copied: 5, dropped: 0, written: 2, unwritten: 3 };
    assert_eq!(tee.counts(), counts);
}

/// A device that calls a function of the test while it sends.
struct Meddler(EventFd, Box<dyn FnMut() + Send>);

impl QueueOps for Meddler {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.1();
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }
}

impl AsFd for Meddler {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[test]
fn a_call_that_is_in_progress_when_another_capture_starts_is_of_the_former() {
    let tee = Tee::new(Limits::default()).unwrap();
    let running = Arc::new(Mutex::new(None));
    let start = {
        let (tee, running) = (tee.clone(), running.clone());
        move || {
            let mut running = running.lock().unwrap();
            drop(running.take());
            *running = Some(tee.start(io::sink()).unwrap());
        }
    };
    start();
    let pool = Pool::builder().frames(64).build().unwrap();
    let device = Box::new(Meddler(EventFd::new().unwrap(), Box::new(start)));
    let mut queue = Queue::new(tee.wrap(device, "meddler").unwrap(), pool.local());
    assert_eq!(push(&mut queue, 0, 3, 60), 3);
    let writer = running.lock().unwrap().take().unwrap();
    assert_eq!(writer.finish().unwrap(), 0);
    let counts = TeeCounts { copied: 3, dropped: 0, written: 0, unwritten: 3 };
    assert_eq!(tee.counts(), counts);
}

#[test]
fn queues_that_come_and_go_have_an_interface_each() {
    let tee = Tee::new(Limits::default()).unwrap();
    let file = SharedFile::default();
    let mut writer = tee.start(file.clone()).unwrap();
    for round in 0..3 {
        let (_pool, mut a, _b) = pair(4, &tee);
        push(&mut a, round, 1, 60);
        if round == 1 {
            writer.write_pending().unwrap();
        }
    }
    assert_eq!(writer.finish().unwrap(), 3);
    let interfaces: Vec<_> = packets(&file.content()).iter().map(|p| (p.0, number(p))).collect();
    assert_eq!(interfaces, [(0, 0), (1, 1), (2, 2)]);
    assert!(tee.shared.reading().inboxes.is_empty(), "nothing is left of queues that are gone");
}

#[test]
fn queues_that_are_gone_are_removed_while_no_capture_runs() {
    let tee = Tee::new(Limits::default()).unwrap();
    let inboxes = || tee.shared.reading().inboxes.len();
    for _ in 0..3 {
        drop(pair(4, &tee));
        assert_eq!(inboxes(), 1, "those before it are removed");
    }
    let (pool, mut a, b) = pair(4, &tee);
    let writer = tee.start(io::sink()).unwrap();
    push(&mut a, 0, 2, 60);
    drop((pool, a, b));
    // A writer that is there writes them.
    let other = pair(4, &tee);
    assert_eq!((inboxes(), tee.counts().unwritten), (2, 0));
    drop((writer, other));
    let _last = pair(4, &tee);
    assert_eq!((inboxes(), tee.counts().unwritten), (1, 2));
}

/// A sink that wraps a further queue at its first write, as a thread of the program may meanwhile.
struct Wraps(Tee, Option<(Pool, Queue, Queue)>);

impl Write for Wraps {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        assert!(self.0.shared.reading.try_lock().is_ok(), "the lock is held while the sink writes");
        let tee = &self.0;
        self.1.get_or_insert_with(|| pair(4, tee));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn queues_can_be_wrapped_while_the_sink_writes() {
    let tee = Tee::new(Limits::default()).unwrap();
    let (_pool, mut a, mut b) = pair(64, &tee);
    let mut writer = tee.start(Wraps(tee.clone(), None)).unwrap();
    // The file passes 64 KiB at a time to the sink.
    for round in 0..4 {
        assert_eq!(push(&mut a, 64 * round, 64, 500), 64);
        assert_eq!(pull(&mut b, 64), 64);
    }
    assert_eq!(writer.write_pending().unwrap(), 256);
    assert_eq!(tee.shared.reading().inboxes.len(), 2);
    push(&mut a, 256, 1, 60);
    assert_eq!(writer.finish().unwrap(), 257);
}

#[test]
fn a_writer_that_sleeps_is_woken_by_a_copy_and_by_the_end() {
    let tee = Tee::new(Limits::default()).unwrap();
    let (_pool, mut a, _b) = pair(64, &tee);
    let mut writer = tee.start(io::sink()).unwrap();
    assert!(!writer.wait(Some(Duration::ZERO)).unwrap());
    let (asleep, woken) = mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        asleep.send(()).unwrap();
        assert!(writer.wait(Some(LONG)).unwrap(), "slept on a copy");
        assert_eq!(writer.write_pending().unwrap(), 1);
        asleep.send(()).unwrap();
        assert!(writer.wait(Some(LONG)).unwrap(), "slept on the end");
        assert!(writer.has_ended());
    });
    woken.recv().unwrap();
    push(&mut a, 0, 1, 60);
    woken.recv().unwrap();
    tee.stop();
    sleeper.join().unwrap();
}

#[test]
fn over_an_interface_tcpdump_reads_the_capture() {
    in_netns(|| {
        veth(1500);
        let pool = Pool::builder().frames(1024).build().unwrap();
        let tee = Tee::new(Limits::default()).unwrap();
        let mut a = queue_in("packet:v0", &pool).wrap(|ops| tee.wrap(ops, "v0")).unwrap();
        let mut b = queue_in("packet:v1", &pool);
        let frames = |n: u64| (0..n).map(|seq| stamped(seq, 60)).collect::<Vec<_>>();
        let path = std::env::temp_dir().join(format!("tee-{}.pcapng", std::process::id()));
        let writer = tee.start(std::fs::File::create(&path).unwrap()).unwrap();
        send(&mut a, &frames(30), Offload::NONE);
        receive(&mut b, 30);
        send(&mut b, &frames(20), Offload::NONE);
        receive(&mut a, 20);
        assert_eq!(writer.finish().unwrap(), 50);
        drop((a, b));
        assert_settled(&pool);
        let read = Command::new("tcpdump").args(["-nn", "-r"]).arg(&path).output();
        let frames = crate::pcap::read_all(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(frames.len(), 50);
        match read {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: no tcpdump: {e}");
            }
            read => {
                let out = read.unwrap();
                let errors = String::from_utf8_lossy(&out.stderr);
                assert!(out.status.success(), "{errors}");
                assert_eq!(String::from_utf8_lossy(&out.stdout).matches(" length ").count(), 50);
            }
        }
    });
}
