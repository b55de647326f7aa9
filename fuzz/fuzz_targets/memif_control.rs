//! Messages of a memif peer on its socket: both sides answer each message or end the connection.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::memif::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::control(bytes);
});
