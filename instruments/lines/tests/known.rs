//! Programs with known transfers, run under QEMU with the plugin.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

const LOAD: &str = env!("CARGO_BIN_EXE_lines-load");
const TURNS: u64 = 1000;
/// Most transfers by the runtime itself, which starts, ends and waits for threads.
const OTHERS: u64 = 200;

/// Number of runs so far; each run has a file of its own.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// The sums of a run.
#[derive(Debug)]
struct Sums {
    read: u64,
    write: u64,
    lines_in: u64,
    lines_out: u64,
    text: String,
}

/// Returns the path of the plugin, which cargo builds into the folder of the program or into the
/// folder below it. If there are two, one is of an earlier build: returns the newer one.
fn plugin() -> PathBuf {
    let beside = Path::new(LOAD).parent().unwrap();
    let names = ["liblinerate_lines.so", "deps/liblinerate_lines.so"];
    let files = names.map(|name| beside.join(name)).into_iter().filter(|file| file.is_file());
    let newest = files.max_by_key(|file| fs::metadata(file).unwrap().modified().unwrap());
    newest.expect("cargo builds the plugin with this test")
}

/// Runs one kind of load; where it cannot run, prints the reason and returns `None`.
fn run(kind: &str, words: &str) -> Option<Sums> {
    load(&[kind, &TURNS.to_string()], words)
}

/// Runs the load with `args` in QEMU, with `words` added to the plugin's options. Prints the reason
/// and returns `None` if it cannot run here.
fn load(args: &[&str], words: &str) -> Option<Sums> {
    if cfg!(not(target_arch = "x86_64")) {
        eprintln!("skipped: the plugin is tried on x86-64");
        return None;
    }
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let out = std::env::temp_dir().join(format!("lines-{}-{number}", std::process::id()));
    let plugin = format!("{},out={}{words}", plugin().display(), out.display());
    let ran = Command::new("qemu-x86_64").args(["-plugin", &plugin, LOAD]).args(args).output();
    let ran = match ran {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: no qemu-x86_64 (apt-get install qemu-user)");
            return None;
        }
        ran => ran.unwrap(),
    };
    let said = String::from_utf8_lossy(&ran.stderr);
    if said.contains("unknown option") {
        eprintln!("skipped: this qemu-x86_64 loads no plugins");
        return None;
    }
    assert!(ran.status.success(), "{}: {said}", ran.status);
    let text = fs::read_to_string(&out).unwrap();
    fs::remove_file(&out).unwrap();
    let mut sums = [0; 4];
    for line in text.lines().filter_map(|line| line.strip_prefix("pc ")) {
        let counts = line.split(' ').skip(1).map(|n| n.parse::<u64>().unwrap());
        sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    let [read, write, lines_in, lines_out] = sums;
    Some(Sums { read, write, lines_in, lines_out, text })
}

/// Checks that each turn passes the turn's own line; `more` is the number of transfers of the
/// counters' lines.
fn assert_turns(sums: &Sums, turns: u64) {
    for (kind, n) in [("read", sums.read), ("write", sums.write)] {
        assert!((turns - 10..turns + OTHERS).contains(&n), "{kind}: {n} for {turns}");
    }
}

#[test]
fn a_line_bounced_n_times_travels_n_times_for_a_load_and_n_times_for_a_store() {
    let Some(sums) = run("bounce", "") else { return };
    assert_turns(&sums, 2 * TURNS);
    assert!(sums.text.contains(&format!("\npackets {TURNS}\n")), "{}", &sums.text[..100]);
    assert!(sums.lines_in >= sums.read && sums.lines_out > 0);
}

#[test]
fn a_false_shared_pair_travels_as_a_shared_one_does() {
    let Some(sums) = run("false-shared", "") else { return };
    assert_turns(&sums, 2 * TURNS);
}

#[test]
fn private_lines_stay_and_only_the_turn_travels() {
    let Some(sums) = run("private", "") else { return };
    assert_turns(&sums, TURNS);
}

#[test]
fn between_marks_nothing_else_is_counted() {
    let (Some(all), Some(marked)) = (run("private", ""), run("private", ",marked=on")) else {
        return;
    };
    assert_turns(&marked, TURNS);
    let seen = |sums: &Sums| sums.text.lines().count();
    assert!(seen(&marked) < seen(&all), "{} {}", seen(&marked), seen(&all));
}

#[test]
fn a_small_cache_evicts_what_an_unlimited_one_keeps() {
    let (Some(all), Some(small)) = (run("private", ""), run("private", ",l2=512x2")) else {
        return;
    };
    assert!(small.text.contains("\nl2 4 2\n"));
    for (what, small, all) in
        [("in", small.lines_in, all.lines_in), ("out", small.lines_out, all.lines_out)]
    {
        assert!(small > all + TURNS, "lines {what}: {small} {all}");
    }
}

#[test]
fn five_runs_of_the_same_are_within_3_percent() {
    let runs: Vec<Sums> = (0..5).map_while(|_| run("false-shared", ",marked=on")).collect();
    let transfers = runs.iter().map(|sums| sums.read + sums.write);
    let (Some(least), Some(most)) = (transfers.clone().min(), transfers.max()) else { return };
    assert!(100 * (most - least) <= 3 * least, "{least} to {most}");
}

#[test]
fn packets_are_reported_in_whole_batches() {
    let Some(sums) = load(&["skb", "at_alloc", "none", "33"], ",marked=on") else { return };
    assert!(sums.text.contains("\npackets 64\n"), "{}", &sums.text[..100]);
}

#[test]
fn a_stream_that_ends_before_all_bytes_are_counted_is_a_failure() {
    for (count, exit) in [("0", 0), ("100000", 2)] {
        let free = match TcpListener::bind("127.0.0.1:0") {
            Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {
                return eprintln!("skipped: no loopback address");
            }
            free => free.unwrap(),
        };
        let port = free.local_addr().unwrap().port();
        drop(free);
        let word = port.to_string();
        let args = ["receive", word.as_str(), "0", count];
        let mut receiver = Command::new(LOAD).args(args).spawn().unwrap();
        let mut stream = loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                break stream;
            }
            assert!(receiver.try_wait().unwrap().is_none(), "it ended without a stream");
            thread::sleep(Duration::from_millis(5));
        };
        stream.write_all(&[0; 1000]).unwrap();
        drop(stream);
        assert_eq!(receiver.wait().unwrap().code(), Some(exit), "{count} bytes to count");
    }
}

/// Packets of a compared run: twice the frames of a pool, because the pool's own lines move, too.
const PACKETS: u64 = 16_384;

/// Attempts for a row: waiting threads cause a random number of other transfers.
const ATTEMPTS: usize = 5;

/// Returns true if `more` exceeds `less` by `a_packet` transfers for each packet.
fn is_more(more: u64, less: u64, a_packet: i64) -> bool {
    let (difference, expected) = (more as i64 - less as i64, a_packet * PACKETS as i64);
    (difference - expected).unsigned_abs() < PACKETS / 3
}

/// Returns true if a run exceeds, by the expected transfers for each packet, a run whose packets no
/// code reads or writes.
fn is_row(sums: &[u64; 3], unseen: &[u64; 3], expected: [i64; 3]) -> bool {
    sums.iter().zip(unseen).zip(expected).all(|((more, less), n)| is_more(*more, *less, n))
}

#[test]
fn a_packet_s_line_travels_by_its_pool_s_policy_and_by_who_looks_at_it() {
    let run = |init, touch| load(&["skb", init, touch, &PACKETS.to_string()], ",marked=on");
    // What is beyond `unseen` is of the packet's line: transfers of either kind, and times that it
    // came.
    for (init, touch, read, write, lines_in) in [
        ("at_free", "none", 0, 2, 2),
        ("at_alloc", "reads", 1, 1, 1),
        ("at_free", "reads", 1, 2, 2),
        ("at_alloc", "commits-reads", 1, 1, 1),
        ("at_free", "commits-reads", 1, 2, 2),
        ("at_alloc", "commits-writes", 1, 2, 2),
        ("at_free", "commits-writes", 1, 2, 2),
    ] {
        let (mut seen, mut found) = (Vec::new(), false);
        while !found && seen.len() < ATTEMPTS {
            let (Some(unseen), Some(sums)) = (run("at_alloc", "none"), run(init, touch)) else {
                return;
            };
            let told = |sums: &Sums| [sums.read, sums.write, sums.lines_in];
            seen.push((told(&sums), told(&unseen)));
            found = is_row(&told(&sums), &told(&unseen), [read, write, lines_in]);
        }
        assert!(found, "{init} {touch}: [read, write, lines in], and unseen: {seen:?}");
    }
}
