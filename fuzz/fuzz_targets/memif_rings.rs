//! What a memif peer writes into shared memory, between our calls or beside them: no packet and no frame
//! is lost, whether it is found out or not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::memif::fuzzing;

fuzz_target!(|script: &[u8]| {
    let _ = fuzzing::rings(script);
});
