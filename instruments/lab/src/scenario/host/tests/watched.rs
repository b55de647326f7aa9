//! The part of a window in which the machine is watched.

use super::*;
use crate::scenario::pause::pause;

#[test]
fn a_window_is_over_before_its_side_waits_for_packets_that_are_under_way() {
    let Some((_alone, mut bench)) = open(&settings(&[])) else { return };
    let switches_at_rest = || {
        pause(Duration::from_millis(50));
        running()
    };
    let mut ends = Vec::new();
    bench.window_until(WINDOW, &mut || ends.push(switches_at_rest())).unwrap();
    assert_eq!(ends.len(), 1);
    // The workers carry packets once more after the end.
    assert_ne!(switches_at_rest(), ends[0]);
    bench.finish().unwrap();
}
