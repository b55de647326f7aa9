//! The message by which a verbs port meets its peer: any bytes are refused, or say what they say
//! again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::verbs::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::hello(bytes);
});
