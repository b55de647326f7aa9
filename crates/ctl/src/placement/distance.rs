//! Round trips of a cache line between CPUs, measured with two threads that answer each other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use linerate_port::Result;
use linerate_sys::thread::{is_filtered, pin_to_cpu};

use super::topology::{Near, Topology};

/// Number of round trips of one measurement. The next constant is the number of measurements of a
/// pair, of which the shortest counts.
const TRIPS: u32 = 200;
const TIMES: u32 = 5;
/// Longest time to measure one pair: on a busy CPU the partner thread may not run.
const LIMIT: Duration = Duration::from_millis(200);
/// Most pairs of one nearness that are tried.
const TRIES: usize = 3;
/// Polls before a thread yields its CPU.
const POLLS_BEFORE_YIELD: u32 = 1 << 12;

/// The round trip between two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RoundTrip {
    /// The two CPUs.
    pub cpus: (usize, usize),
    /// The nearness of the two CPUs.
    pub near: Near,
    /// Time of a round trip in nanoseconds: the shortest mean of all measurements.
    pub ns: u64,
}

/// Measures a pair of CPUs of each nearness that the machine has. A measurement takes up to 0.2 s,
/// on threads of its own. At most three pairs of each nearness are tried: the CPUs of a pair may be
/// too busy, or one of them went offline meanwhile.
///
/// # Errors
/// `E-CPU` if a filter of system calls refuses to pin threads.
pub fn round_trips(topology: &Topology) -> Result<Vec<RoundTrip>> {
    let (mut found, mut tries): (Vec<RoundTrip>, BTreeMap<Near, usize>) = Default::default();
    for (i, a) in topology.cpus().iter().enumerate() {
        for b in &topology.cpus()[i + 1..] {
            let near = topology.near(a.number, b.number);
            let tries = tries.entry(near).or_default();
            if *tries < TRIES && found.iter().all(|trip| trip.near != near) {
                *tries += 1;
                let cpus = (a.number, b.number);
                match between(cpus) {
                    Ok(ns) => found.extend(ns.map(|ns| RoundTrip { cpus, near, ns })),
                    Err(e) if is_filtered(&e) => return Err(e),
                    // The CPU is gone.
                    Err(_) => {}
                }
            }
        }
    }
    found.sort_by_key(|trip| trip.near);
    Ok(found)
}

fn between((a, b): (usize, usize)) -> Result<Option<u64>> {
    // An odd value is on its way to the partner, an even one on its way back; `END` ends the
    // exchange.
    const END: u32 = u32::MAX;
    let word = Arc::new(AtomicU32::new(0));
    let theirs = word.clone();
    let until = Instant::now() + LIMIT;
    let wait = move |word: &AtomicU32, is_so: &dyn Fn(u32) -> bool| {
        let mut polls = 0_u32;
        loop {
            let now = word.load(Ordering::Acquire);
            if is_so(now) || now == END {
                return now;
            }
            polls += 1;
            if polls.is_multiple_of(POLLS_BEFORE_YIELD) {
                if Instant::now() >= until {
                    return END;
                }
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    };
    let partner = thread::spawn(move || -> Result<()> {
        pin_to_cpu(b)?;
        loop {
            match wait(&theirs, &|now| now % 2 == 1) {
                END => return Ok(()),
                now => theirs.store(now.wrapping_add(1), Ordering::Release),
            }
        }
    });
    let caller = thread::spawn(move || {
        let done = pin_to_cpu(a);
        let mut shortest: Option<u64> = None;
        for _ in 0..if done.is_ok() { TIMES } else { 0 } {
            let start = Instant::now();
            let mut ended = false;
            for trip in 0..TRIPS {
                word.store(2 * trip + 1, Ordering::Release);
                ended |= wait(&word, &|now| now.is_multiple_of(2)) == END;
            }
            let ns = start.elapsed().as_nanos() as u64 / u64::from(TRIPS);
            if ended {
                break;
            }
            shortest = Some(shortest.map_or(ns, |shortest| shortest.min(ns)));
        }
        word.store(END, Ordering::Release);
        done.map(|()| shortest)
    });
    let gone = || {
        linerate_port::Error::new(
            linerate_port::Code::System,
            "cannot measure",
            "a thread panicked",
        )
    };
    let ns = caller.join().map_err(|_| gone())?;
    partner.join().map_err(|_| gone())??;
    ns
}
