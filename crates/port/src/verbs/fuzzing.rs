//! A peer that says anything. For the fuzz target and the tests.

use super::hello::{HELLO_BYTES, Hello};

/// Reads a hello of fuzzed bytes; returns true if it was accepted.
///
/// # Panics
/// If what was accepted is not said in the same way again, or has numbers that no device has.
pub fn hello(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk::<HELLO_BYTES>() else { return false };
    let Ok(hello) = Hello::of(bytes) else { return false };
    assert_eq!(Hello::of(&hello.bytes()), Ok(hello));
    assert!(hello.pair < 1 << 24 && (256..=4096).contains(&hello.mtu_bytes));
    true
}
