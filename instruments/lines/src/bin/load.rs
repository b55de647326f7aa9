//! Test programs whose cache-line transfers are known in advance: `lines-load
//! bounce|false-shared|private N`, and the load of a guest: `lines-load receive PORT WARM COUNT
//! [CPU]`, `lines-load rotate MS STEP IRQ..` and `lines-load datagrams PORT`.
//!
//! Two threads take turns, N in all. In its turn a thread adds one to a counter, then ends the
//! turn. With `bounce` both threads have one counter; with `false-shared` each has a counter of its
//! own on the same line; with `private` each has a counter on a line of its own. No two accesses to
//! a counter race, so the numbers are exact.
//!
//! `skb` is `remote` of the experiment `skbinit`: one thread allocates packets, the other frees
//! them, `at_alloc` or `at_free`. Between, with TOUCH `none` no thread accesses them, and with
//! `reads` the second thread reads their metadata. With `commits-reads` and `commits-writes` the
//! first thread sets their length, and the second thread reads or writes their metadata. N packets
//! are counted, after N that are not; N is rounded up to whole batches of 32.
//!
//! `receive` is netperf's tcp_stream from its receiving end: one connection, read to its end. With
//! COUNT above 0 it sets marks: follow from the first byte, count from byte WARM for COUNT bytes.
//! Then it ends; if the stream ends earlier, it fails. `rotate` moves each irq STEP of
//! four CPUs further every MS milliseconds. `datagrams` reads them one by one, until it is killed.

use std::fs;
use std::hint::black_box;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, UdpSocket};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use linerate_lines::mark::{Mark, Page};
use linerate_skb::{Batch, Init, Local, PacketType, Pool};

/// Number of packets that one thread passes to the other at once; then the number of such batches
/// in the queue, and of frames, as in `skbinit`.
const BURST: usize = 32;
const DEPTH: usize = 32;
const POOL_FRAMES: u32 = 8191;

/// Two cache lines of counters, which the thread whose turn it is may change.
#[repr(align(128))]
struct Counters([AtomicU64; 16]);

#[repr(align(128))]
struct Turn(AtomicU64);

static COUNTERS: Counters = Counters([const { AtomicU64::new(0) }; 16]);
static TURN: Turn = Turn(AtomicU64::new(0));

/// Increments a counter, in a function with a known name.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn lines_load_touch(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Waits for turn number `turn`, calls `then`, and ends the turn.
fn take(turn: u64, then: impl FnOnce()) {
    while TURN.0.load(Ordering::Acquire) != turn {
        thread::yield_now();
    }
    then();
    TURN.0.store(turn + 1, Ordering::Release);
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["receive", port, warm, count] => receive(port, warm, count),
        ["receive", port, warm, count, cpu] => pin(cpu).and_then(|()| receive(port, warm, count)),
        ["rotate", ms, step, ref irqs @ ..] => rotate(ms, step, irqs),
        ["datagrams", port] => datagrams(port),
        ["bounce", turns] => turns_of(0, turns),
        ["false-shared", turns] => turns_of(1, turns),
        ["private", turns] => turns_of(8, turns),
        ["skb", "at_alloc", touch, packets] => skb(Init::AtAlloc, touch, packets),
        ["skb", "at_free", touch, packets] => skb(Init::AtFree, touch, packets),
        _ => None,
    };
    if done.is_some() { ExitCode::SUCCESS } else { ExitCode::from(2) }
}

/// Runs two threads that take turns in changing two counters, which are `apart` words from each
/// other.
fn turns_of(apart: usize, turns: &str) -> Option<()> {
    let (turns, marks) = (turns.parse::<u64>().ok()?, Page::map().ok()?);
    let half = |first: u64| {
        let counter = &COUNTERS.0[apart * first as usize];
        for turn in (first..turns).step_by(2) {
            take(turn, || lines_load_touch(counter));
        }
    };
    // Without the plugin's option for marks, the plugin counts everything, and uses only the mark
    // with the number of packets.
    marks.say(Mark::Begin);
    thread::scope(|scope| {
        scope.spawn(|| half(1));
        half(0);
    });
    marks.say(Mark::Packets(turns));
    marks.say(Mark::End);
    Some(())
}

/// Reads the fields that a filter reads. A profile shows this function and the next ones by their
/// names.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn lines_load_reads(batch: &Batch) {
    let kinds = batch.iter().filter(|skb| skb.packet_type() != PacketType::Host).count();
    let bytes = batch.iter().map(|skb| skb.len() as u64 + u64::from(skb.priority())).sum::<u64>();
    black_box((kinds, bytes));
}

/// Writes the fields that a forwarder writes.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn lines_load_writes(batch: &mut Batch) {
    lines_load_reads(batch);
    for skb in batch.iter_mut() {
        skb.set_packet_type(PacketType::OtherHost);
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn lines_load_commits(batch: &mut Batch) {
    batch.commit_from(0, 60);
}

/// Allocates `packets` on this thread, in batches, and frees them on a second thread; does this
/// twice, because the first time warms caches and lists.
fn skb(init: Init, touch: &str, packets: &str) -> Option<()> {
    let (commits, reads, writes) = match touch {
        "none" => (false, false, false),
        "reads" => (false, true, false),
        "commits-reads" => (true, true, false),
        "commits-writes" => (true, false, true),
        _ => return None,
    };
    // Every batch is full.
    let packets = packets.parse::<usize>().ok()?.checked_next_multiple_of(BURST)?;
    let marks = Page::map().ok()?;
    // The first pass uses all frames once before any packet is counted, unless `packets` is too
    // small for that.
    let pool = Pool::builder().frames(POOL_FRAMES).init(init).build().ok()?;
    let (mut near, mut far): (Local, Local) = (pool.local(), pool.local());
    let (full, filled) = sync_channel::<Batch>(DEPTH);
    let freed = thread::spawn(move || {
        for mut batch in filled {
            match (reads, writes) {
                (_, true) => lines_load_writes(&mut batch),
                (true, _) => lines_load_reads(&batch),
                _ => {}
            }
            batch.consume(&mut far);
        }
    });
    for round in 0..2 {
        if round == 1 {
            marks.say(Mark::Begin);
        }
        for _ in (0..packets).step_by(BURST) {
            let mut batch = Batch::with_capacity(BURST);
            while batch.spare() > 0 {
                near.alloc(&mut batch, BURST);
            }
            if commits {
                lines_load_commits(&mut batch);
            }
            full.send(batch).ok()?;
        }
    }
    drop(full);
    freed.join().ok()?;
    marks.say(Mark::Packets(packets as u64));
    marks.say(Mark::End);
    pool.ledger().is_drained().then_some(())
}

/// Receives a TCP stream, and reports its packets to the plugin.
fn receive(port: &str, warm: &str, count: &str) -> Option<()> {
    let (port, warm, count): (u16, u64, u64) =
        (port.parse().ok()?, warm.parse().ok()?, count.parse().ok()?);
    let marks = Page::map().ok()?;
    let listener = TcpListener::bind(("0.0.0.0", port)).ok()?;
    let (mut stream, _) = listener.accept().ok()?;
    let mut buffer = vec![0; 64 << 10];
    let (mut bytes, mut packets, mut counts) = (0, 0, false);
    if count > 0 {
        marks.say(Mark::Follow);
    }
    loop {
        bytes += match stream.read(&mut buffer) {
            Ok(n) if n > 0 => n as u64,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            // A stream that ends before all bytes are counted is a failure.
            _ => return (count == 0).then_some(()),
        };
        // The number of packets is the bytes by 1460, the payload of a full frame on the wire.
        let more = bytes / 1460 - packets;
        packets += more;
        marks.say(Mark::Packets(more));
        if count > 0 && !counts && bytes >= warm {
            counts = true;
            marks.say(Mark::Begin);
        } else if counts && bytes >= warm + count {
            marks.say(Mark::End);
            return Some(());
        }
    }
}

/// Receives datagrams.
fn datagrams(port: &str) -> Option<()> {
    let socket = UdpSocket::bind(("0.0.0.0", port.parse::<u16>().ok()?)).ok()?;
    let mut buffer = [0; 2048];
    loop {
        socket.recv(&mut buffer).ok()?;
    }
}

/// Binds this process to a CPU.
fn pin(cpu: &str) -> Option<()> {
    let cpu = cpu.parse::<usize>().ok().filter(|cpu| *cpu < 64)?;
    let mask = [1u64 << cpu; 1];
    // SAFETY: the mask is 8 bytes long, the length that is passed, and the call only reads it.
    let ret = unsafe { libc::sched_setaffinity(0, size_of_val(&mask), mask.as_ptr().cast()) };
    (ret == 0).then_some(())
}

/// Moves each irq `step` of four CPUs further, repeatedly, as an IO-APIC did that passed each
/// interrupt to another CPU. With a step of 0 each stays, and the work of moving is the same.
fn rotate(ms: &str, step: &str, irqs: &[&str]) -> Option<()> {
    let rest = Duration::from_millis(ms.parse().ok()?);
    let step: usize = step.parse().ok()?;
    for round in 0_usize.. {
        for (i, irq) in irqs.iter().enumerate() {
            let cpu = (round.wrapping_mul(step) + i) % 4;
            fs::write(format!("/proc/irq/{irq}/smp_affinity_list"), cpu.to_string()).ok()?;
        }
        thread::park_timeout(rest);
    }
    None
}
