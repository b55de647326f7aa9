//! A packet with any headers and any offload: it leaves right, in segments or whole, or is dropped.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::fuzzing;

fuzz_target!(|script: &[u8]| {
    fuzzing::offloads(script);
});
