//! Counters against known answers: the printed counts equal the events that happened.
//!
//! Whatever the machine does not let us count is skipped, with its reason printed: hardware events
//! without a PMU, context switches without leave to see the kernel's share, all of them where a
//! filter keeps perf_event_open from us. The kernel's own events go the same way through the same
//! code as a counter's.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use linerate_prof::pmu::{Counting, Counts, Event, Quantity, capacity, is_refused};
use linerate_prof::{Code, Error, Result};
use linerate_sys::thread::{allowed_cpus, is_filtered, pin_to_cpu};
use rustix::time::{ClockId, clock_gettime};

fn events(names: &[&str]) -> Result<Vec<Event>> {
    names.iter().map(|name| Event::parse(name)).collect()
}

fn counting(names: &[&str]) -> Result<Counting> {
    Counting::of_this_thread(&events(names)?)
}

/// Returns the success; `None`, with a message, if the machine refuses what is tried: events, more
/// of them at once, an event that this family of CPU has not, or pinned threads; or if others used
/// the counters for a part of the time.
fn or_skip<T>(tried: Result<T>) -> Option<T> {
    let is_reason = |e: &Error| {
        let is_limit = match e.code {
            Code::Unsupported => {
                e.why.starts_with("this machine counts ")
                    || e.fix.starts_with("count by a raw code")
            }
            Code::Busy => e.why.starts_with("the counters were ours for "),
            _ => false,
        };
        is_limit || is_refused(e) || is_filtered(e)
    };
    linerate_testing::unless(tried, is_reason)
}

/// Returns a counting that this machine allows, or why not, printed.
fn try_counting(names: &[&str]) -> Option<Counting> {
    or_skip(counting(names))
}

/// Returns the counts if the counters were ours all the time, or prints why not.
fn try_read(window: &mut Counting) -> Option<Counts> {
    or_skip(window.read())
}

fn thread_cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn spin_cpu_ns(ns: i64) {
    let start = thread_cpu_ns();
    while thread_cpu_ns() - start < ns {}
}

/// Runs a loop of two instructions, `turns` times.
fn known(turns: u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the block counts a register of its own down to zero and touches nothing else.
    unsafe {
        std::arch::asm!("2:", "sub {n}, 1", "jnz 2b", n = inout(reg) turns => _,
            options(nomem, nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the block counts a register of its own down to zero and touches nothing else.
    unsafe {
        std::arch::asm!("2:", "subs {n}, {n}, #1", "b.ne 2b", n = inout(reg) turns => _,
            options(nomem, nostack));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    unimplemented!("{turns} turns of a loop of two instructions");
}

#[test]
fn a_loop_of_known_instructions_shows_that_many() {
    const TURNS: u64 = 20_000_000;
    let Some(mut window) = try_counting(&["instructions", "cycles"]) else { return };
    window.start().unwrap();
    known(TURNS);
    let Some(counts) = try_read(&mut window) else { return };
    let instructions = counts.of(Quantity::Instructions).unwrap();
    let off = instructions as f64 / (2 * TURNS) as f64 - 1.0;
    // Interrupts that fall into it are the kernel's instructions, on our time.
    assert!(off.abs() < 0.01, "{counts:?}");
    assert!(counts.of(Quantity::Cycles).unwrap() > 0, "{counts:?}");
}

/// Two threads hand a line over to each other.
#[derive(Default)]
struct Bounce {
    line: Alone,
    /// True if one of the two threads has ended, so that the other must not wait.
    is_over: AtomicBool,
}

/// Ends a bounce for both threads when it is dropped, however its thread ends.
struct Over<'a>(&'a Bounce);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

impl Bounce {
    /// Takes the line `turns` times, each time when its value is `from` + 2 for each earlier turn,
    /// and passes it on; returns false if the other thread has ended.
    ///
    /// The flag shares no line with what is bounced and changes once: reading it costs no transfer.
    fn take_turns(&self, from: u64, turns: u64) -> bool {
        let line = &self.line.0;
        (0..turns).all(|turn| {
            while line.load(Ordering::Acquire) != from + 2 * turn {
                // The other's last store may be the one waited for.
                if self.is_over.load(Ordering::Acquire)
                    && line.load(Ordering::Acquire) != from + 2 * turn
                {
                    return false;
                }
                std::hint::spin_loop();
            }
            line.store(from + 2 * turn + 1, Ordering::Release);
            true
        })
    }
}

/// Passes a line between two threads on two CPUs, `turns` times each way; returns the count of the
/// first thread's counter, or an error if there is none.
fn bounce(cpus: (usize, usize), turns: u64) -> Result<u64> {
    let bounce = Bounce::default();
    let cut_short = || Error::new(Code::System, "cannot bounce a line", "a thread is missing");
    thread::scope(|scope| {
        let partner = scope.spawn(|| {
            let _over = Over(&bounce);
            pin_to_cpu(cpus.1)?;
            if bounce.take_turns(1, turns) { Ok(()) } else { Err(cut_short()) }
        });
        let counted = scope.spawn(|| {
            let _over = Over(&bounce);
            pin_to_cpu(cpus.0)?;
            let mut window = counting(&["LINES_FROM_OTHER_CORE"])?;
            if !bounce.take_turns(0, turns) {
                return Err(cut_short());
            }
            window.read()?.of(Quantity::LinesFromOtherCore).ok_or_else(cut_short)
        });
        partner.join().unwrap()?;
        counted.join().unwrap()
    })
}

/// Returns pairs of CPUs that share no core, and so no L2: adjacent CPUs and distant ones, each in
/// both orders.
fn placements() -> Vec<(usize, usize)> {
    let cpus = allowed_cpus().unwrap();
    let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else { return Vec::new() };
    let siblings = |cpu: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(path).unwrap_or_else(|_| cpu.to_string())
    };
    let apart = |&cpu: &usize| siblings(cpu) != siblings(first);
    let mut others: Vec<usize> = cpus.iter().copied().find(apart).into_iter().collect();
    others.extend(Some(last).filter(apart));
    others.dedup();
    others.iter().flat_map(|&other| [(first, other), (other, first)]).collect()
}

#[derive(Default)]
#[repr(align(128))]
struct Alone(AtomicU64);

#[test]
fn a_bounce_ends_whichever_of_the_two_is_missing() {
    let nowhere = usize::MAX;
    let cpu = allowed_cpus().unwrap()[0];
    for cpus in [(nowhere, cpu), (cpu, nowhere), (nowhere, nowhere)] {
        assert!(bounce(cpus, 1000).is_err(), "{cpus:?}");
    }
}

#[test]
fn a_line_that_is_bounced_n_times_shows_n_to_2n_transfers_wherever_the_threads_are() {
    const N: u64 = 20_000;
    if try_counting(&["LINES_FROM_OTHER_CORE"]).is_none() {
        return;
    }
    let placements = placements();
    if placements.is_empty() {
        return eprintln!("skipped: every allowed CPU is a thread of one core");
    }
    for cpus in placements {
        let Some(transfers) = or_skip(bounce(cpus, N)) else { return };
        let each = transfers as f64 / N as f64;
        println!("CPUs {cpus:?}: {each:.3} transfers for each hand-over");
        // The event counts lines that come to this core. A hand-over brings the line once: the
        // reader needs the other's new value. It may bring the line once more, if the spinning
        // reader loses it between the other's two accesses.
        assert!((0.95..2.1).contains(&each), "CPUs {cpus:?}: {transfers} transfers for {N}");
    }
}

#[test]
fn a_private_line_shows_no_transfers() {
    const N: u64 = 1_000_000;
    let Some(mut window) = try_counting(&["LINES_FROM_OTHER_CORE"]) else { return };
    let line = Alone(AtomicU64::new(0));
    line.0.store(1, Ordering::Relaxed);
    window.start().unwrap();
    for _ in 0..N {
        line.0.fetch_add(1, Ordering::Relaxed);
    }
    let Some(counts) = try_read(&mut window) else { return };
    // The timer's interrupts touch lines of the kernel that others share.
    assert!(counts.of(Quantity::LinesFromOtherCore).unwrap() < N / 100, "{counts:?}");
}

#[test]
fn the_task_clock_of_a_window_is_the_cpu_time_spent_in_it() {
    const SPUN_NS: i64 = 60_000_000;
    // Without leave to see the kernel's share there are no context switches to count.
    let both = ["task-clock", "context-switches"];
    let Some(mut window) = try_counting(&both).or_else(|| try_counting(&both[..1])) else { return };
    let mut off = || {
        // Before the window: not in it.
        spin_cpu_ns(SPUN_NS / 2);
        let from = thread_cpu_ns();
        window.start().unwrap();
        spin_cpu_ns(SPUN_NS);
        let counts = window.read().unwrap();
        let spent = (thread_cpu_ns() - from) as f64;
        assert!(counts.is_whole(), "{counts:?}");
        assert!(counts.wall_ns >= counts.enabled_ns / 2, "{counts:?}");
        counts.named("task-clock").unwrap() as f64 / spent - 1.0
    };
    // Both are CPU time, so that a busy machine moves both. But the task clock runs on while the
    // host has taken the CPU, and the account of the thread does not: it may be more, by as much as
    // a neighbour likes, and it is never less.
    let offs: Vec<f64> = (0..9).map(|_| off()).collect();
    let least = offs.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(least > -0.02 && least < 0.05, "{offs:?}");
}

#[test]
fn each_sleep_is_a_context_switch() {
    const N: u64 = 25;
    let Some(mut window) = try_counting(&["context-switches"]) else { return };
    for _ in 0..N {
        thread::sleep(Duration::from_millis(2));
    }
    let switched = window.read().unwrap().named("context-switches").unwrap();
    // A host that stalls us on the way to sleep lets the timer win: that sleep is none.
    assert!((N - N / 10..N * 20).contains(&switched), "{switched} for {N} sleeps");
}

#[test]
fn memory_that_is_touched_for_the_first_time_faults_and_then_does_not() {
    const BYTES: usize = 32 << 20;
    let Some(mut window) = try_counting(&["page-faults"]) else { return };
    let mut fresh = vec![0u8; BYTES];
    let mut touch = || fresh.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
    window.start().unwrap();
    touch();
    let first = window.read().unwrap().named("page-faults").unwrap();
    window.start().unwrap();
    touch();
    let again = window.read().unwrap().named("page-faults").unwrap();
    // At most one for each page; one for each 2 MiB where the kernel gives huge ones.
    assert!((BYTES as u64 >> 21..=BYTES as u64 / 4096 + 64).contains(&first), "{first}");
    assert!(again < first / 8 + 4, "{again} after {first}");
}

#[test]
fn a_window_is_of_its_own_thread_only() {
    let Some(mut window) = try_counting(&["task-clock"]) else { return };
    thread::spawn(|| spin_cpu_ns(50_000_000)).join().unwrap();
    let counts = window.read().unwrap();
    assert!(counts.named("task-clock").unwrap() < 25_000_000, "{counts:?}");
}

#[test]
fn between_the_edges_of_a_window_there_is_no_system_call_however_long_it_is() {
    const ID: &str = "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id";
    const TRACEPOINT: u32 = 2;
    let id = match std::fs::read_to_string(ID) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return println!("skipped: no {ID}: {e}");
        }
        id => id.unwrap(),
    };
    let config = id.trim().parse().unwrap();
    let name = "raw_syscalls:sys_enter".to_string();
    let calls = Event::new(name, TRACEPOINT, config);
    let Some(mut calls) = or_skip(Counting::of_this_thread(&[calls])) else { return };
    let names = ["task-clock", "page-faults", "context-switches"];
    let Some(mut window) = try_counting(&names) else { return };
    let mut calls_of_a_window = |turns: u64| {
        calls.start().unwrap();
        window.start().unwrap();
        known(turns);
        window.read().unwrap();
        calls.read().unwrap().counted[0].count
    };
    let (short, long) = (calls_of_a_window(1), calls_of_a_window(10_000_000));
    // One for each edge of the window, and one to ask how many.
    assert_eq!((short, long), (3, 3));
}

#[test]
fn counts_do_not_depend_on_other_threads_in_the_window() {
    const TURNS: u64 = 20_000_000;
    let instructions = |names: &[&str]| {
        let mut window = try_counting(names)?;
        window.start().unwrap();
        known(TURNS);
        try_read(&mut window)?.of(Quantity::Instructions)
    };
    let Some(alone) = instructions(&["instructions"]) else { return };
    let Some(among) = instructions(&["instructions", "cycles", "task-clock"]) else { return };
    assert!(
        (alone as f64 / among as f64 - 1.0).abs() < 0.005,
        "{alone} alone, {among} among others"
    );
}

#[test]
fn unknown_event_is_refused_with_a_remedy_and_its_group() {
    let absent = Event::new("absent", 0x7fff_fff0, 0);
    if try_counting(&["task-clock"]).is_none() {
        return;
    }
    let clock = Event::parse("task-clock").unwrap();
    let e = Counting::of_this_thread(&[clock, absent]).unwrap_err();
    assert_eq!(e.code, Code::Unsupported, "{e}");
    assert!(e.what.contains("absent") && !e.fix.is_empty(), "{e}");
}

#[test]
fn more_events_than_fit_are_refused_with_the_number_that_does() {
    let fits = capacity().at_once + capacity().beside;
    if fits == 0 {
        return println!("skipped: {}", capacity());
    }
    let names = vec!["branches-by-raw-code"; fits + 1];
    // Branches, by their generic code: no counter is made for them alone.
    let events: Vec<Event> =
        names.iter().map(|&name| Event::new(name, Event::HARDWARE, 4)).collect();
    let e = Counting::of_this_thread(&events).unwrap_err();
    assert!(e.why.contains(&capacity().at_once.to_string()), "{e}");
    assert!(e.fix.contains(" runs: "), "{e}");
    let mut window = Counting::of_this_thread(&events[..capacity().at_once]).unwrap();
    known(1_000_000);
    let counts = window.read_shared().unwrap();
    assert!(counts.counted.iter().all(|count| count.count > 0), "{counts:?}");
}
