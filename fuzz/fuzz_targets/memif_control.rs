//! Messages of a memif peer on its socket: each is answered or ends the connection, on both sides.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::memif::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::control(bytes);
});
