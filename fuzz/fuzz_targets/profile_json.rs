//! Our own JSON, valid or damaged: a profile that was read can be written, and is equal when it is
//! read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_prof::read::{Form, json, parse};

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes, Some(Form::Json)) {
        Ok(read) => {
            let mut written = Vec::new();
            for profile in &read.profiles {
                json::write(profile, &mut written).expect("what was read is finite");
            }
            let again = parse(written.as_slice(), Some(Form::Json)).expect("we wrote it");
            assert_eq!(again.profiles, read.profiles);
        }
        Err(e) => assert!(!e.what.is_empty() && !e.why.is_empty()),
    }
});
