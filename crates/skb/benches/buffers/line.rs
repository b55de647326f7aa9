//! How far apart the two CPUs are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;

use linerate_skb::bench::Options;
use linerate_sys::tsc;

/// A word alone on its line, and on the one that a prefetcher fetches with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Ticks that a cache line takes from the first CPU to the second and back: the placement class.
///
/// The median over pieces of 100 round trips, so that an interrupt does not count.
pub fn round_trip(options: &Options) -> f64 {
    const PIECES: usize = 101;
    const TRIPS: u64 = 100;
    let line = Line(AtomicU64::new(0));
    let mut pieces = scope(|s| {
        s.spawn(|| {
            options.pin(1);
            for i in 0..PIECES as u64 * TRIPS {
                while line.0.load(Ordering::Acquire) != 2 * i + 1 {}
                line.0.store(2 * i + 2, Ordering::Release);
            }
        });
        let pong = s.spawn(|| {
            options.pin(0);
            let piece = |piece: usize| {
                let start = tsc::ticks();
                for i in piece as u64 * TRIPS..(piece as u64 + 1) * TRIPS {
                    line.0.store(2 * i + 1, Ordering::Release);
                    while line.0.load(Ordering::Acquire) != 2 * i + 2 {}
                }
                (tsc::ticks() - start) as f64 / TRIPS as f64
            };
            (0..PIECES).map(piece).collect::<Vec<f64>>()
        });
        pong.join().expect("the loop does not panic")
    });
    pieces.sort_by(f64::total_cmp);
    pieces[PIECES / 2]
}
