//! What a memif peer says on its socket: each message is answered or the end, on both sides.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::memif::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::control(bytes);
});
