//! Programs whose lines are known before they run: `lines-load bounce|false-shared|private N`.
//!
//! Two threads take turns, N in all. In each turn the thread whose it is adds one to a counter, then passes the turn on:
//! by `bounce` the two have one counter, by `false-shared` each its own on the same line, by `private` each its own on a
//! line of its own. Turns order all of it, so the numbers are exact.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use linerate_lines::mark::{Mark, Page};

/// Two lines: what lies in each is the thread's whose turn it is.
#[repr(align(128))]
struct Counters([AtomicU64; 16]);

#[repr(align(128))]
struct Turn(AtomicU64);

static COUNTERS: Counters = Counters([const { AtomicU64::new(0) }; 16]);
static TURN: Turn = Turn(AtomicU64::new(0));

/// The counting, known by its name.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn lines_load_touch(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Waits for the turn `turn`, and calls `then` in it.
fn take(turn: u64, then: impl FnOnce()) {
    while TURN.0.load(Ordering::Acquire) != turn {
        thread::yield_now();
    }
    then();
    TURN.0.store(turn + 1, Ordering::Release);
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, turns] = &args[..] else { return ExitCode::from(2) };
    let apart = match kind.as_str() {
        "bounce" => 0,
        "false-shared" => 1,
        "private" => 8,
        _ => return ExitCode::from(2),
    };
    let (Ok(turns), Ok(marks)) = (turns.parse::<u64>(), Page::map()) else {
        return ExitCode::from(2);
    };
    let half = |first: u64| {
        let counter = &COUNTERS.0[apart * first as usize];
        for turn in (first..turns).step_by(2) {
            take(turn, || lines_load_touch(counter));
        }
    };
    // Without an argument that asks for marks the plugin counts everything, and only the packets are of interest.
    marks.say(Mark::Begin);
    thread::scope(|scope| {
        scope.spawn(|| half(1));
        half(0);
    });
    marks.say(Mark::Packets(turns));
    marks.say(Mark::End);
    ExitCode::SUCCESS
}
