//! Tests the stage of `wire.rs` on a capture: no device, no thread, no privileges.
//!
//! The test uses the capture's clock, and repeats the run with batches of 1, 7 and 64 packets. A
//! stage fails if its result depends on how packets are grouped, or if it spoils a partial
//! checksum, which veth and tap leave to a device.

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
    run.assert_out("east", "captures/expected.pcapng"); // panics with the first frame that differs
}

#[test]
fn the_mirror_has_every_fifth_packet_as_it_came() {
    let run = testing::run(|cx| guard(cx, 5), "captures/mixed.pcapng");
    run.assert_out("tap", "captures/mirrored.pcapng");
}
