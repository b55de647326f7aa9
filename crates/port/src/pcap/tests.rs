//! Tests of the port with files of every kind: regular, damaged, slow, full and deleted.

mod opening;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Local, Moved, Pool};

use super::format::Order;
use super::locked::Locked;
use super::write::WriteQueue;
use super::*;
use crate::Port;
use crate::host::testing::{LONG, Scratch, assert_settled};
use crate::queue::{Health, QueueOps, Want};

/// Makes a classic capture, in big or little endian and in ns or µs; each packet has lost its last
/// 4 bytes.
fn classic(big: bool, nanos: bool, link: u32, packets: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let order = if big { Order::Big } else { Order::Little };
    format::tests::classic(order, nanos, (262_144, link), packets)
}

fn pool(frames: u32) -> Pool {
    Pool::builder().frames(frames).build().unwrap()
}

fn frame(stamp_ns: u64, bytes: &[u8]) -> Frame {
    Frame { stamp_ns, bytes: bytes.to_vec() }
}

/// Receives all packets up to the end; returns them, and the port's health after that.
fn receive(port: &mut Port) -> (Vec<Frame>, Health) {
    let mut batch = Batch::with_capacity(7);
    let mut frames = Vec::new();
    while !port.health().ended() {
        assert!(port.wait(Some(LONG)).unwrap());
        port.rx(&mut batch);
        for skb in batch.drain() {
            let mut bytes = vec![0; skb.len()];
            assert_eq!(skb.copy_to(0, &mut bytes), bytes.len());
            frames.push(Frame { stamp_ns: skb.stamp_ns().unwrap(), bytes });
        }
    }
    (frames, port.health())
}

/// Returns a descriptor as a process has it that was just forked from this one: of the same open
/// file.
fn inherited(path: &str) -> OwnedFd {
    let of_path = |fd: &RawFd| {
        fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to.to_str() == Some(path))
    };
    let numbers = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let fd = numbers.into_iter().find(of_path).unwrap();
    // SAFETY: the test has the port, and with it the descriptor, open.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap()
}

#[test]
fn closed_file_is_not_locked_although_a_forked_process_has_it_open() {
    let (scratch, pool) = (Scratch::new(), pool(64));
    let path = scratch.file("a.pcapng", b"");
    for (first, second) in [(",write", ""), ("", ",write"), (",write", "")] {
        let port = Port::open_with(&format!("pcap:{path}{first}"), &pool).unwrap();
        let child = inherited(&path);
        let e = Port::open_with(&format!("pcap:{path}{second}"), &pool).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        drop(port);
        Port::open_with(&format!("pcap:{path}{second}"), &pool).unwrap();
        drop(child);
    }
}

#[test]
fn a_capture_passes_unchanged_with_its_times() {
    let scratch = Scratch::new();
    let long: Vec<u8> = (0..60_000_u32).map(|i| (i / 3) as u8).collect();
    let packets: Vec<(u32, u32, &[u8])> = (0..100)
        .map(|i| (i, 999_000 + i, if i % 9 == 0 { &long[..] } else { &long[..60] }))
        .collect();
    for (big, nanos) in [(false, false), (false, true), (true, false), (true, true)] {
        let source = scratch.file("in.pcap", &classic(big, nanos, 1, &packets));
        let copy = scratch.0.join("out.pcap");
        let pool = pool(1024);
        let mut from = Port::open_with(&format!("pcap:{source}"), &pool).unwrap();
        let mut to = Port::open_with(&format!("pcap:{},write", copy.display()), &pool).unwrap();
        let mut batch = Batch::with_capacity(16);
        while from.health() == Health::Up || !batch.is_empty() {
            from.rx(&mut batch);
            to.xmit(&mut batch);
        }
        assert_eq!(from.health(), Health::Finished);
        assert_eq!((from.counts().rx_packets, to.counts().tx_packets), (100, 100));
        let unit_ns = if nanos { 1 } else { 1000 };
        let expected: Vec<Frame> = packets
            .iter()
            .map(|(s, f, b)| frame(u64::from(*s) * 1_000_000_000 + u64::from(*f) * unit_ns, b))
            .collect();
        assert!(read_all(&copy).unwrap() == expected);
        assert_eq!((pool.ledger().received, pool.ledger().sent), (100, 100));
        assert_settled(&pool);
    }
}

#[test]
fn a_wait_returns_once_at_the_end_of_a_file() {
    let scratch = Scratch::new();
    for packets in [vec![], vec![frame(1, b"only")]] {
        let path = scratch.0.join("a.pcap");
        write_all(&path, &packets).unwrap();
        let mut port = Port::open(&format!("pcap:{}", path.display())).unwrap();
        assert_eq!(receive(&mut port).1, Health::Finished);
        // No timeout: if the end were not reported, this would sleep without end.
        assert!(port.wait(None).unwrap());
        assert!(!port.wait(Some(Duration::ZERO)).unwrap());
    }
}

#[test]
fn a_pool_run_dry_delays_a_capture_and_loses_nothing() {
    let scratch = Scratch::new();
    let packets: Vec<Frame> = (0..10).map(|i| frame(i + 1, &[i as u8; 100])).collect();
    let path = scratch.0.join("a.pcap");
    write_all(&path, &packets).unwrap();
    let pool = pool(4);
    let mut port = Port::open_with(&format!("pcap:{}", path.display()), &pool).unwrap();
    let mut batch = Batch::with_capacity(64);
    assert_eq!(port.rx(&mut batch), 4);
    assert_eq!(port.rx(&mut batch), 0);
    assert!(matches!(port.health(), Health::Starved(_)), "{:?}", port.health());
    assert_eq!(port.counts().rx_nombuf, 2);
    let mut numbers: Vec<u8> = batch.iter().map(|skb| skb.data()[0]).collect();
    batch.clear();
    let (rest, health) = receive(&mut port);
    numbers.extend(rest.iter().map(|f| f.bytes[0]));
    assert_eq!((numbers, health), ((0..10).collect(), Health::Finished));
    assert_settled(&pool);
}

#[test]
fn a_packet_that_no_chain_can_carry_is_missed_and_the_next_one_comes() {
    let scratch = Scratch::new();
    let path = scratch.0.join("a.pcap");
    let packets = [frame(1, b"first"), frame(2, &[0; 65_000]), frame(3, b"third")];
    write_all(&path, &packets).unwrap();
    let pool = pool(8);
    let mut port = Port::open_with(&format!("pcap:{}", path.display()), &pool).unwrap();
    assert!(port.obtained().packet_max_bytes < 65_000);
    let (frames, health) = receive(&mut port);
    assert_eq!((frames, health), (vec![packets[0].clone(), packets[2].clone()], Health::Finished));
    assert_eq!((port.counts().rx_packets, port.counts().rx_missed), (2, 1));
    assert_settled(&pool);
}

#[test]
fn a_damaged_file_fails_behind_the_packets_that_were_good() {
    let scratch = Scratch::new();
    let good = classic(false, false, 1, &[(1, 2, b"one"), (3, 4, b"two")]);
    let lying = |len: u32| [good.clone(), [0, 0, len, len].map(u32::to_le_bytes).concat()].concat();
    for (bytes, says) in [
        (good[..good.len() - 1].to_vec(), "at byte 43: the file ends after 2 of 3 bytes"),
        (lying(u32::MAX), "at byte 62: a packet of 4294967295 bytes; the maximum is 262144"),
        (lying(262_145), "at byte 62: a packet of 262145 bytes; the maximum is 262144"),
        (lying(1), "at byte 62: the file ends after 0 of 1 bytes"),
    ] {
        let file = scratch.file("bad.pcap", &bytes);
        let pool = pool(16);
        let mut port = Port::open_with(&format!("pcap:{file}"), &pool).unwrap();
        let (frames, health) = receive(&mut port);
        assert_eq!(frames[0], frame(1_000_002_000, b"one"));
        let Health::Failed(e) = health else { panic!("{health:?}") };
        assert_eq!((e.code, &*e.why), (Code::Capture, says));
        assert!(e.what.contains("bad.pcap"), "{e}");
        assert_settled(&pool);
    }
}

#[test]
fn blocks_without_packets_that_take_no_disk_keep_no_call_long() {
    let scratch = Scratch::new();
    let path = scratch.0.join("sparse.pcapng");
    write_all(&path, &[]).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let (start, len) = (file.metadata().unwrap().len(), 64_u32 << 20);
    file.write_all(&[0x0bad, len].map(u32::to_le_bytes).concat()).unwrap();
    file.set_len(start + u64::from(len) - 4).unwrap();
    file.write_all(&len.to_le_bytes()).unwrap();
    let mut port = Port::open(&format!("pcap:{}", path.display())).unwrap();
    let (mut batch, mut calls) = (Batch::with_capacity(64), 0);
    while !port.health().ended() {
        assert!(port.wait(Some(LONG)).unwrap());
        assert_eq!(port.rx(&mut batch), 0);
        calls += 1;
    }
    // Opening the port and each call read at most 16 MiB.
    assert!(port.health() == Health::Finished && calls >= 3, "{calls} calls");
}

#[test]
fn a_packet_of_no_bytes_is_a_packet() {
    let scratch = Scratch::new();
    let file = scratch.file("a.pcap", &classic(true, true, 1, &[(0, 5, b""), (0, 6, b"x")]));
    let mut port = Port::open(&format!("pcap:{file}")).unwrap();
    assert_eq!(receive(&mut port), (vec![frame(5, b""), frame(6, b"x")], Health::Finished));
}

/// Writes all packets of one capture to another, through a chain of small frames.
fn copied(scratch: &Scratch, from: &str, options: &str) -> Vec<u8> {
    let to = scratch.0.join("copy.pcapng").display().to_string();
    // A port that sends nothing leaves a capture that is there already.
    let _ = fs::remove_file(&to);
    let pool = Pool::builder().frames(64).frame_size(512).build().unwrap();
    let open = |port: String| Port::open_with(&port, &pool).unwrap();
    let mut reads = open(format!("pcap:{from}{options}"));
    let mut writes = open(format!("pcap:{to},write{options}"));
    let mut batch = Batch::with_capacity(7);
    while !reads.health().ended() {
        reads.rx(&mut batch);
        writes.xmit(&mut batch);
    }
    assert_eq!(reads.health(), Health::Finished);
    drop((reads, writes));
    assert_settled(&pool);
    std::fs::read(&to).unwrap()
}

/// Returns the link type, the original length and the captured length of each packet of a capture.
fn kinds(capture: &[u8]) -> Vec<(u16, u32, usize)> {
    let mut reader = super::format::Reader::new(capture).unwrap();
    let mut kinds = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        kinds.push((record.link_type.0, record.orig_len, record.data.len()));
    }
    kinds
}

#[test]
fn a_snapped_packet_keeps_its_original_length_from_capture_to_capture() {
    let scratch = Scratch::new();
    let packets: [(u32, u32, &[u8]); 2] = [(1, 1, &[7; 60]), (2, 2, &[8; 1400])];
    let file = scratch.file("a.pcap", &classic(false, false, 1, &packets));
    assert_eq!(kinds(&copied(&scratch, &file, "")), [(1, 64, 60), (1, 1404, 1400)]);
}

#[test]
fn a_paced_capture_never_leaves_early_and_sleeps_between_its_packets() {
    let scratch = Scratch::new();
    let times = [0, 1, 30_000, 30_001, 60_000];
    let packets: Vec<_> = times.iter().map(|usecs| (9, *usecs, &b"packet"[..])).collect();
    let file = scratch.file("a.pcap", &classic(false, false, 1, &packets));
    for (factor, says) in [(1, "as captured"), (2, "2 times as fast as captured")] {
        let mut port = Port::open(&format!("pcap:{file},pace={factor}")).unwrap();
        assert_eq!(port.obtained().mode, format!("pcap file, copy, {says}"));
        let (start, mut left) = (Instant::now(), 0);
        let mut batch = Batch::with_capacity(8);
        while !port.health().ended() {
            assert!(port.wait(Some(LONG)).unwrap());
            left += port.rx(&mut batch);
            let due = times.partition_point(|usecs| {
                Duration::from_micros(u64::from(usecs / factor)) <= start.elapsed()
            });
            assert!(left <= due, "{left} where {due} are due");
        }
        let counts = port.counts();
        assert_eq!((left, counts.rx_packets), (5, 5));
        // A wait ends when a packet is due, so that almost every poll finds one.
        assert!(counts.polls_empty <= 4, "{counts:?}");
    }
}

#[test]
fn a_paced_stream_without_a_writer_is_slept_on_until_its_next_packet() {
    let scratch = Scratch::new();
    let fifo = scratch.fifo();
    let mut port = Port::open(&format!("pcap:{fifo},pace=1")).unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    writer.write_all(&classic(false, true, 1, &[(9, 0, b"a"), (109, 0, b"b")])).unwrap();
    drop(writer);
    let mut batch = Batch::with_capacity(4);
    assert!(port.wait(Some(LONG)).unwrap());
    assert_eq!(port.rx(&mut batch), 1);
    assert_eq!(port.wait_for(Want::Room, None), Ok(true), "every packet is taken, and dropped");
    assert!(!port.wait(Some(Duration::from_millis(20))).unwrap(), "woken without a packet");
}

#[test]
fn a_paced_capture_says_how_late_its_packets_were() {
    let scratch = Scratch::new();
    let file = scratch.file("a.pcap", &classic(false, false, 1, &[(1, 1, b"x"), (1, 2, b"y")]));
    let spec = crate::parse(&format!("pcap:{file},pace=1")).unwrap();
    let pool = pool(4);
    let mut queue = super::read::open(&Config::of(&spec).unwrap(), &pool).unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(2));
    while !queue.health().ended() {
        queue.rx(&mut mem, &mut batch, 2);
        batch.clear();
    }
    assert!(!queue.arm(Want::Room) && !queue.arm(Want::Room), "packets are taken after the end");
    let pace = queue.counters().pace.unwrap();
    assert_eq!((pace.asked, pace.sent, pace.late_p50_ns), (2, 2, None));
}

#[test]
fn a_paced_capture_with_snapped_packets_is_copied_as_it_is() {
    let scratch = Scratch::new();
    let packets: [(u32, u32, &[u8]); 2] = [(1, 1, &[7; 60]), (1, 900, &[8; 1400])];
    let file = scratch.file("a.pcap", &classic(false, false, 1, &packets));
    let copy = copied(&scratch, &format!("{file},pace=10"), "");
    assert_eq!(kinds(&copy), [(1, 64, 60), (1, 1404, 1400)]);
    let times: Vec<u64> = read_all(&file).unwrap().iter().map(|frame| frame.stamp_ns).collect();
    assert_eq!(times, [1_000_001_000, 1_000_900_000], "those of the capture");
}

#[test]
fn a_capture_of_another_link_type_is_copied_as_it_is() {
    let scratch = Scratch::new();
    let cooked = classic(true, false, 113, &[(1, 1, b"first"), (2, 2, b"second")]);
    let file = scratch.file("cooked.pcap", &cooked);
    assert_eq!(kinds(&copied(&scratch, &file, ",link=any")), [(113, 9, 5), (113, 10, 6)]);
    // An empty capture does not show which link type its packets would have had.
    let file = scratch.file("empty.pcap", &classic(true, false, 113, &[]));
    let empty = copied(&scratch, &file, ",link=any");
    assert!(kinds(&empty).is_empty() && empty.len() > 60, "it declares an interface");
}

#[test]
fn a_file_that_is_being_read_is_not_truncated_by_a_port_that_writes() {
    let scratch = Scratch::new();
    let path = scratch.0.join("a.pcap");
    write_all(&path, &[frame(1, b"only")]).unwrap();
    let alias = scratch.0.join("b.pcap");
    fs::hard_link(&path, &alias).unwrap();
    let pool = pool(16);
    let mut port = Port::open_with(&format!("pcap:{}", path.display()), &pool).unwrap();
    let e = Port::open_with(&format!("pcap:{},write", alias.display()), &pool).unwrap_err();
    assert_eq!(e.code, Code::Busy, "{e}");
    assert_eq!(receive(&mut port).0, [frame(1, b"only")]);
    drop(port);
    let writing = format!("pcap:{},write", alias.display());
    let _writing = Port::open_with(&writing, &pool).unwrap();
    let e = Port::open_with(&format!("pcap:{}", path.display()), &pool).unwrap_err();
    assert_eq!(e.code, Code::Busy, "{e}");
}

#[test]
fn a_stream_wakes_its_reader_and_never_blocks_it() {
    let scratch = Scratch::new();
    let fifo = scratch.fifo();
    let bytes = classic(true, false, 1, &[(1, 2, b"first"), (3, 4, b"second")]);
    let pool = pool(16);
    let mut port = Port::open_with(&format!("pcap:{fifo}"), &pool).unwrap();
    let mut batch = Batch::with_capacity(8);
    let quiet = |port: &mut Port, batch: &mut Batch| {
        assert_eq!(port.rx(batch), 0);
        assert!(!port.wait(Some(Duration::from_millis(1))).unwrap());
        assert_eq!(port.health(), Health::Up);
    };
    quiet(&mut port, &mut batch); // not opened for writing yet
    let mut writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    for part in [&bytes[..10], &bytes[10..30], &bytes[30..44]] {
        writer.write_all(part).unwrap();
        assert!(port.wait(Some(LONG)).unwrap());
        quiet(&mut port, &mut batch); // half a header, half a record
    }
    let sleeper = std::thread::spawn(move || {
        assert!(port.wait(Some(LONG)).unwrap());
        (port.rx(&mut batch), port, batch)
    });
    std::thread::sleep(Duration::from_millis(5));
    writer.write_all(&bytes[44..]).unwrap();
    let (n, mut port, batch) = sleeper.join().unwrap();
    assert_eq!((n, batch.iter().next().unwrap().data()), (2, &b"first"[..]));
    drop((writer, batch));
    assert_eq!(receive(&mut port), (vec![], Health::Finished));
    assert!(port.wait(None).unwrap(), "the end is told of");
    assert!(!port.wait(Some(Duration::ZERO)).unwrap(), "and does not wake again");
    assert_settled(&pool);
}

#[test]
fn a_stream_with_packets_left_is_not_slept_on() {
    let scratch = Scratch::new();
    let fifo = scratch.fifo();
    let mut port = Port::open(&format!("pcap:{fifo}")).unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    writer
        .write_all(&classic(false, true, 1, &[(0, 1, b"a"), (0, 2, b"b"), (0, 3, b"c")]))
        .unwrap();
    let mut batch = Batch::with_capacity(1);
    for _ in 0..3 {
        // After the first packet the pipe is empty, but the reader's buffer is not.
        assert!(port.wait(Some(LONG)).unwrap());
        assert_eq!(port.rx(&mut batch), 1);
        batch.clear();
    }
}

#[test]
fn a_nonblocking_output_is_waited_for() {
    let (mut reader, writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let mut output = Locked::new(OwnedFd::from(writer).into());
    let read = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        io::copy(&mut reader, &mut io::sink()).unwrap()
    });
    output.write_all(&[7; 1 << 20]).unwrap();
    drop(output);
    assert_eq!(read.join().unwrap(), 1 << 20);
}

/// A disk with room for this number of bytes.
struct Disk {
    file: File,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.room);
        if len == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= len;
        self.file.write(&bytes[..len])
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn send(queue: &mut impl QueueOps, mem: &mut Local, packets: &[Vec<u8>]) -> Moved {
    let mut batch = Batch::with_capacity(packets.len());
    for bytes in packets {
        assert!(batch.push(mem.alloc_copy(bytes).unwrap()).is_ok());
    }
    let moved = queue.xmit(mem, &mut batch);
    assert!(batch.is_empty());
    moved
}

#[test]
fn a_full_disk_drops_the_rest_and_leaves_whole_packets() {
    let scratch = Scratch::new();
    let packets: Vec<Vec<u8>> = (0..8).map(|i| vec![i; 60]).collect();
    for room in 100..1000 {
        let path = scratch.0.join("full.pcap");
        let disk = Disk { file: File::create(&path).unwrap(), room };
        let cut = |disk: &Disk, len| disk.file.set_len(len);
        let pool = pool(32);
        let mut mem = pool.local();
        let mut queue = WriteQueue::new(disk, "full.pcap".into(), false, cut).unwrap();
        let moved = send(&mut queue, &mut mem, &packets);
        let again = send(&mut queue, &mut mem, &packets);
        let sent = moved.packets + again.packets;
        drop(queue);
        let whole = read_all(&path).unwrap();
        assert_eq!(whole.len(), sent, "{room}");
        assert!(whole.iter().zip(packets.iter().cycle()).all(|(f, p)| f.bytes == *p));
        let ledger = pool.ledger();
        assert_eq!(ledger.sent, sent as u64);
        assert_eq!(ledger.dropped(DropReason::WRITE_FAILED), 16 - sent as u64);
        assert_settled(&pool);
    }
}

#[test]
fn a_reader_that_has_gone_is_told_to_the_writer() {
    let (mut reader, writer) = io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    let pool = pool(32);
    let mut mem = pool.local();
    let mut queue = WriteQueue::new(file, "-".into(), false, |_, _| Ok(())).unwrap();
    assert_eq!(send(&mut queue, &mut mem, &[vec![1; 60]]).packets, 1);
    assert!(reader.read(&mut [0; 4096]).unwrap() > 60);
    drop(reader);
    assert!(queue.arm(Want::Frames) && !queue.arm(Want::Room));
    assert_eq!(send(&mut queue, &mut mem, &[vec![1; 60], vec![2; 60]]), Moved::default());
    let Health::Failed(e) = queue.health() else { panic!() };
    assert!(e.why.contains("Broken pipe") && !e.fix.is_empty(), "{e}");
    assert_eq!(send(&mut queue, &mut mem, &[vec![3; 60]]).packets, 0);
    assert_eq!(pool.ledger().dropped(DropReason::WRITE_FAILED), 3);
    assert_settled(&pool);
}

#[test]
fn a_packet_too_long_for_a_capture_is_dropped_and_its_neighbours_are_not() {
    let scratch = Scratch::new();
    let path = scratch.0.join("a.pcap");
    let pool = pool(1024);
    let mut mem = pool.local();
    let mut queue =
        WriteQueue::new(File::create(&path).unwrap(), "a".into(), false, |_, _| Ok(())).unwrap();
    let packets = [vec![1; 9], vec![2; PACKET_LEN_MAX + 1], vec![3; PACKET_LEN_MAX], vec![4; 9]];
    let before = super::write::epoch_ns();
    let moved = send(&mut queue, &mut mem, &packets);
    assert_eq!((moved.packets, moved.bytes), (3, 18 + PACKET_LEN_MAX as u64));
    assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 1);
    let frames = read_all(&path).unwrap();
    assert_eq!(frames.iter().map(|f| f.bytes[0]).collect::<Vec<_>>(), [1, 3, 4]);
    // Packets without a stamp get the time of the send call, which they share.
    let now = super::write::epoch_ns();
    assert!(frames.iter().all(|f| (before..=now).contains(&f.stamp_ns)));
    assert_eq!(frames[0].stamp_ns, frames[2].stamp_ns);
    assert_settled(&pool);
}

#[test]
fn packets_of_too_many_link_types_are_dropped_and_the_others_are_written() {
    let scratch = Scratch::new();
    let path = scratch.file("a.pcap", b"");
    let (pool, mut batch) = (pool(128), Batch::with_capacity(80));
    let mut mem = pool.local();
    let mut queue =
        WriteQueue::new(File::create(&path).unwrap(), "a".into(), true, |_, _| Ok(())).unwrap();
    for link in (1..=40).chain(1..=40) {
        let mut skb = mem.alloc_copy(b"packet").unwrap();
        assert!(skb.set_link_type(link) && batch.push(skb).is_ok());
    }
    assert_eq!((queue.xmit(&mut mem, &mut batch).packets, queue.health()), (64, Health::Up));
    assert_eq!((batch.len(), pool.ledger().dropped(DropReason::UNSUPPORTED)), (0, 16));
    let links: Vec<u16> = kinds(&fs::read(&path).unwrap()).iter().map(|kind| kind.0).collect();
    assert!(links.iter().copied().eq((1..=32).chain(1..=32)), "{links:?}");
    assert_settled(&pool);
}

#[test]
fn packets_of_other_link_types_are_dropped_by_a_capture_of_ethernet_packets() {
    let scratch = Scratch::new();
    let path = scratch.file("a.pcap", b"");
    let (pool, mut batch) = (pool(8), Batch::with_capacity(4));
    let mut mem = pool.local();
    let mut queue =
        WriteQueue::new(File::create(&path).unwrap(), "a".into(), false, |_, _| Ok(())).unwrap();
    for link in [1, 113, 1, 101] {
        let mut skb = mem.alloc_copy(b"packet").unwrap();
        assert!(skb.set_link_type(link) && batch.push(skb).is_ok());
    }
    assert_eq!((queue.xmit(&mut mem, &mut batch).packets, queue.health()), (2, Health::Up));
    assert_eq!((batch.len(), pool.ledger().dropped(DropReason::UNSUPPORTED)), (0, 2));
    assert_eq!(kinds(&fs::read(&path).unwrap()), [(1, 6, 6); 2]);
    assert_settled(&pool);
}
