//! Tests of the readers on texts that were really posted or printed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use linerate_prof::profile::{Event, Load, Origin, OwnCost, Profile, Row, Space, Unit};
use linerate_prof::read::{self, Form, Read};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn seed(name: &str) -> Read {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds").join(name);
    read::open(&path).unwrap()
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn count_of(profile: &Profile, symbol: &str) -> u64 {
    let mut rows = profile.rows.iter().filter(|row| row.symbol == symbol);
    let row = rows.next().unwrap_or_else(|| panic!("no {symbol}"));
    assert!(rows.next().is_none(), "{symbol} twice");
    row.count
}

#[test]
fn post_003_has_two_kernprof_listings_and_a_table_that_is_none() {
    let read = seed("003_5ab5121f9d39ea70.txt");
    assert_eq!((read.form, read.complaints_total), (Form::Kernprof, 0));
    let [without, with] = read.profiles.as_slice() else { panic!("{}", read.profiles.len()) };
    assert_eq!((without.rows.len(), without.counted()), (68, 291_873));
    assert_eq!((with.rows.len(), with.counted()), (54, 137_182));
    assert_eq!((without.cutoff, with.cutoff), (Some(304), Some(216)));
    assert_eq!((&*without.event.name, &*with.event.name), ("L2_LINES_OUT", "L2_CACHE_LINES_OUT"));
    assert_eq!((without.event.unit, without.total), (Unit::Samples, None));
    assert_eq!(count_of(without, "csum_partial_copy_generic"), 27_951);
    assert_eq!(count_of(with, "csum_partial_copy_generic"), 13_838);
    assert!(without.remarks[0].ends_with("4 adapter test baseline 2.4.17 kernel:"));
    assert!(with.remarks[0].contains("profiling with affinity:"));
}

#[test]
fn post_000_has_two_readprofile_listings_whose_loads_give_the_bytes_of_code() {
    let read = seed("000_5d94cdb1dc74f564.txt");
    assert_eq!((read.form, read.complaints_total), (Form::Readprofile, 0));
    let [as_is, frame] = read.profiles.as_slice() else { panic!("{}", read.profiles.len()) };
    // With the total, 20 lines each.
    assert_eq!((as_is.rows.len(), frame.rows.len()), (19, 19));
    assert_eq!((as_is.total_count(), frame.total_count()), (36_324, 34_880));
    assert_eq!((as_is.cutoff, frame.cutoff), (Some(72), Some(43)));
    assert_eq!(as_is.event.unit, Unit::Ticks);
    let bytes = [
        ("default_idle", 48),
        ("__rdtsc_delay", 32),
        ("eth_type_trans", 208),
        ("skb_release_data", 144),
        ("kmalloc", 256),
        ("kfree", 160),
        ("__make_request", 1456),
        ("__scsi_end_request", 304),
        ("alloc_skb", 432),
        ("tw_interrupt", 1024),
        ("kfree_skbmem", 128),
        ("scsi_dispatch_cmd", 560),
        ("__generic_copy_to_user", 64),
        ("__kfree_skb", 208),
        ("scsi_request_fn", 768),
        ("ip_rcv", 832),
        ("__wake_up", 176),
        ("do_anonymous_page", 176),
        ("do_softirq", 176),
        ("alloc_skb_frame", 304),
        ("generic_make_request", 288),
    ];
    for row in as_is.rows.iter().chain(&frame.rows) {
        let known = bytes.iter().find(|(symbol, _)| *symbol == row.symbol).unwrap();
        assert_eq!(row.bytes(), Some(known.1), "{}", row.symbol);
    }
    assert!(as_is.remarks[0].starts_with("as captioned: alloc_skb with calls to kmalloc/kfree"));
    assert!(frame.remarks[0].starts_with("as captioned: alloc_skb_frame with fixed 1514"));
}

#[test]
fn perf_script_with_chains_is_a_profile_for_each_event() {
    let read = read::open(&data("perf-script-chains.txt")).unwrap();
    assert_eq!((read.form, read.complaints_total, read.prose_lines), (Form::PerfScript, 0, 0));
    let [faults, clock] = read.profiles.as_slice() else { panic!("{}", read.profiles.len()) };
    assert_eq!((&*faults.event.name, faults.counted()), ("page-faults", 5));
    assert_eq!(&*clock.event.name, "cpu-clock");
    assert_eq!(clock.counted(), 48);
    assert_eq!((faults.event.period, clock.event.period), (None, Some(10_101_010)));
    assert!(faults.remarks[0].contains("1 to 1138 events"));
    assert_eq!(count_of(clock, "burn"), 40);
    let burn = clock.rows.iter().find(|row| row.symbol == "burn").unwrap();
    assert_eq!((burn.space, burn.object.as_deref()), (Space::User, Some("/usr/local/bin/spin")));
    let kernel = clock.rows.iter().find(|row| row.object.as_deref() == Some("[kernel]")).unwrap();
    assert_eq!(kernel.space, Space::Kernel);
    assert!(kernel.address.is_some());
    let stacked: u64 = clock.stacks.iter().map(|stack| stack.count).sum();
    assert_eq!(stacked, 48);
    let chain = clock.stacks.iter().find(|s| s.frames.last().unwrap() == "burn").unwrap();
    assert_eq!(chain.frames[..2], ["__libc_start_call_main", "main"]);
    assert_eq!(clock.conditions.kernel.as_deref(), Some("Linux 6.18.0"));
    assert_eq!(clock.conditions.cpus, Some(2));
}

#[test]
fn perf_script_without_chains_is_read_too_and_keeps_the_idle_task() {
    let read = read::open(&data("perf-script-all-cpus.txt")).unwrap();
    let [clock] = read.profiles.as_slice() else { panic!("{}", read.profiles.len()) };
    assert_eq!((read.complaints_total, read.prose_lines), (0, 0));
    assert_eq!((clock.counted(), clock.event.period), (52, Some(1_000_000)));
    assert_eq!(count_of(clock, "pv_native_safe_halt"), 50);
    assert_eq!(clock.rows.iter().filter(|row| row.space == Space::Kernel).count(), 1);
    assert!(clock.stacks.is_empty());
}

#[test]
fn one_profile_of_several_is_chosen_by_its_number() {
    let with = seed("003_5ab5121f9d39ea70.txt").one(2).unwrap();
    assert_eq!(with.rows.len(), 54);
    for n in [0, 3] {
        let e = seed("003_5ab5121f9d39ea70.txt").one(n).unwrap_err();
        assert_eq!(
            e.to_string(),
            format!("no profile number {n} in it: there are 2, numbers 1 to 2")
        );
    }
}

#[test]
fn a_file_that_is_not_there_or_is_a_folder_is_refused_by_its_name() {
    for path in [data("absent"), data("")] {
        let e = read::open(&path).unwrap_err();
        assert!(e.what.contains(path.to_str().unwrap()), "{e}");
    }
}

/// A text of `rows` lines that is generated during reading.
struct Endless<F> {
    row: F,
    rows: std::ops::Range<u64>,
    line: Vec<u8>,
    at: usize,
}

impl<F: Fn(u64) -> String> Endless<F> {
    fn new(rows: u64, row: F) -> BufReader<Endless<F>> {
        BufReader::new(Endless { row, rows: 0..rows, line: Vec::new(), at: 0 })
    }
}

impl<F: Fn(u64) -> String> io::Read for Endless<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() {
            let Some(n) = self.rows.next() else { return Ok(0) };
            (self.line, self.at) = ((self.row)(n).into_bytes(), 0);
        }
        let n = to.len().min(self.line.len() - self.at);
        to[..n].copy_from_slice(&self.line[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

#[test]
fn memory_is_bounded_by_the_functions_and_not_by_the_text() {
    const ROWS: u64 = 2_000_000;
    let kernprof = |n: u64| format!(">> function_{} [c0{:06x}]: {n}\n", n % 1000, n % 1000);
    let readprofile = |n: u64| format!("{n} function_{} 0.1234\n", n % 1000);
    let script = |n: u64| {
        let (f, g) = (n % 1000, n % 7);
        format!("a 1 1.5: 7 cycles:\n\t10 f{f}+0x1 (/a)\n\t20 g{g}+0x2 (/a)\n\n")
    };
    let (read, peak_bytes) = peak(|| read::parse(Endless::new(ROWS, kernprof), None));
    let read = read.unwrap();
    assert_eq!((read.profiles[0].rows.len(), read.profiles[0].counted()), (1000, SUM));
    // The first MiB is searched for the form: its buffer doubles until that fits.
    assert!(peak_bytes < 4 << 20, "kernprof took {peak_bytes} bytes");

    let (read, peak_bytes) = peak(|| read::parse(Endless::new(ROWS, readprofile), None));
    assert_eq!(read.unwrap().profiles[0].counted(), SUM);
    assert!(peak_bytes < 4 << 20, "readprofile took {peak_bytes} bytes");

    let (read, peak_bytes) = peak(|| read::parse(Endless::new(ROWS / 4, script), None));
    let read = read.unwrap();
    assert_eq!((read.profiles[0].counted(), read.profiles[0].stacks.len()), (ROWS / 4, 7000));
    assert!(peak_bytes < 8 << 20, "perf script took {peak_bytes} bytes");
    const SUM: u64 = ROWS * (ROWS - 1) / 2;
}

#[test]
fn memory_is_bounded_for_a_text_that_never_repeats_a_function() {
    let rows = 1_100_000;
    let all_new = |n: u64| format!("function_{n} [c010]: 1\n");
    let (read, peak_bytes) = peak(|| read::parse(Endless::new(rows, all_new), None));
    let profile = read.unwrap().one(1).unwrap();
    assert_eq!((profile.rows.len(), profile.counted()), (1_000_001, rows));
    assert_eq!(profile.cutoff, Some(100_001));
    // Its rows while their vector grows: the old one and one twice as long.
    assert!(peak_bytes < 512 << 20, "{peak_bytes} bytes");
    let listings = |n: u64| format!("caption {n}\nfunction_{n} [c010]: 1\n");
    let (read, peak_bytes) = peak(|| read::parse(Endless::new(rows / 4, listings), None));
    assert_eq!(read.unwrap().profiles.len(), 256);
    assert!(peak_bytes < 4 << 20, "{peak_bytes} bytes");
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..2000)) {
        for form in [None, Some(Form::Kernprof), Some(Form::Readprofile), Some(Form::PerfScript), Some(Form::Json)] {
            let _ = read::parse(bytes.as_slice(), form);
        }
    }

    #[test]
    fn lines_that_are_nearly_rows_are_read_or_refused(
        lines in vec("[>]{0,2} ?[a-z0-9_<> ]{0,6} ?\\[?[0-9a-fx]{0,4}\\]?:? ?[0-9.:-]{0,6}[(a-z/)]{0,4}:?", 0..40),
    ) {
        let text = lines.join("\n");
        for form in [None, Some(Form::Kernprof), Some(Form::Readprofile), Some(Form::PerfScript)] {
            if let Ok(read) = read::parse(text.as_bytes(), form) {
                let rows: usize = read.profiles.iter().map(|profile| profile.rows.len()).sum();
                prop_assert!(rows as u64 + read.prose_lines <= lines.len() as u64);
            }
        }
    }

    #[test]
    fn json_is_read_as_it_was_written(
        rows in vec((any::<String>(), any::<u64>(), 0..1_u64 << 40), 0..20),
        sample_ns in 0..1_000_000_u32,
    ) {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Counter);
        // As printed, with four digits.
        let load = |n| Some(Load { value: n as f64 / 1e4, digits: 4 });
        let row = |(f, n, l): (String, _, _)| Row { load: load(l), ..Row::new(f, n) };
        profile.rows = rows.into_iter().map(row).collect();
        profile.own_cost = Some(OwnCost {
            recorder_cpu_ns: 1,
            sample_ns: Some(f64::from(sample_ns) / 8.0),
            target_cpu_ns: 2,
            samples: 3,
        });
        let mut text = Vec::new();
        read::json::write(&profile, &mut text).unwrap();
        prop_assert_eq!(read::parse(text.as_slice(), None).unwrap().one(1).unwrap(), profile);
    }

    #[test]
    fn a_kernprof_listing_is_read_as_it_was_printed(
        rows in vec(("[a-zA-Z_][a-zA-Z0-9_.]{0,20}", any::<u64>(), 0..u64::MAX / 64), 1..50),
        quote in "[> ]{0,6}",
        end in prop_oneof![Just("\n"), Just("\r\n")],
    ) {
        let rows: BTreeMap<_, _> = rows.into_iter().map(|(f, at, n)| ((f, at), n)).collect();
        let line = |((f, at), n): (&(String, u64), &u64)| format!("{quote}{f} [{at:08x}]: {n}{end}");
        let text: String = rows.iter().map(line).collect();
        let profile = read::parse(text.as_bytes(), None).unwrap().one(1).unwrap();
        let read = profile.rows.into_iter().map(|r| ((r.symbol, r.address.unwrap()), r.count));
        prop_assert!(read.eq(rows));
    }

    #[test]
    fn a_readprofile_listing_is_read_as_it_was_printed(
        rows in btree_map("[a-zA-Z_][a-zA-Z0-9_.]{0,20}", (0..u64::MAX / 64, 1..100_000_u64), 1..50),
        quote in "[> ]{0,6}",
        last in any::<bool>(),
    ) {
        prop_assume!(!rows.contains_key("total"));
        let sum: u64 = rows.values().map(|(ticks, _)| ticks).sum();
        let mut lines: Vec<String> = rows
            .iter()
            .map(|(f, (n, bytes))| format!("{quote}{n:6} {f:40} {:8.4}", *n as f64 / *bytes as f64))
            .collect();
        let at = if last { lines.len() } else { 0 };
        lines.insert(at, format!("{quote}{sum:6} total {:8.4}", 0.25));
        let profile = read::parse(lines.join("\n").as_bytes(), None).unwrap().one(1).unwrap();
        prop_assert_eq!(profile.total.unwrap().count, sum);
        prop_assert_eq!(profile.cutoff, None);
        for (row, (f, (ticks, bytes))) in profile.rows.iter().zip(&rows) {
            prop_assert_eq!((&row.symbol, row.count), (f, *ticks));
            // What the digits allow, the bytes are among it.
            prop_assert!(row.bytes().is_none_or(|found| found == *bytes || *ticks > 1 << 50));
        }
        prop_assert_eq!(profile.rows.len(), rows.len());
    }
}

/// An allocator that counts the bytes that each thread holds, and their maximum.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn hold(bytes: isize) {
    // A thread that is ending has neither any more, and is not measured.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call goes to `System` as it came, which keeps the contract; what is counted beside
// it is in constant-initialised cells and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hold(layout.size() as isize);
        // SAFETY: the caller's promise on `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        hold(-(layout.size() as isize));
        // SAFETY: the caller got `at` from `alloc` above, which is `System`'s, with this `layout`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the result of `work`, and the most bytes that it held at any time.
fn peak<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = HELD.get();
    MOST.set(before);
    let done = work();
    (done, MOST.get() - before)
}
