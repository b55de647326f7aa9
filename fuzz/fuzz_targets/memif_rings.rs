//! Writes of a memif peer into shared memory, between our calls or at the same time: no packet and
//! no frame is lost, even if an invalid write is not detected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::memif::fuzzing;

fuzz_target!(|script: &[u8]| {
    let _ = fuzzing::rings(script);
});
