//! Tests the stage of `wire.rs` on a capture: no device, no thread, no privileges.
//!
//! The clock is the capture's, and the run is repeated with batches of 1, 7 and 64 packets: a stage
//! whose result depends on how packets are grouped fails, and so does one that spoils a checksum which
//! veth or tap left to a device.

#[allow(dead_code, reason = "its `main`")]
mod wire;

use linerate::{DropReason, testing};
use wire::{BLOCKED, guard};

#[test]
fn the_guard_blocks_three_and_clears_dscp() {
    let run = testing::run(|cx| guard(cx, 5), "captures/mixed.pcapng");
    assert_eq!(run.ledger().dropped(BLOCKED), 3);
    assert_eq!(run.ledger().dropped(DropReason::MALFORMED), 1);
    assert!(run.ledger().balanced());
    run.assert_out("east", "captures/expected.pcapng"); // shows the first frame that differs
}

#[test]
fn the_mirror_has_every_fifth_packet_as_it_came() {
    let run = testing::run(|cx| guard(cx, 5), "captures/mixed.pcapng");
    run.assert_out("tap", "captures/mirrored.pcapng");
}
