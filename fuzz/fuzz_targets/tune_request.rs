//! A line of a control socket's client is refused with a reason, or is a request that is written and read as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_ctl::tune::{REQUEST_BYTES_MAX, Request};

fuzz_target!(|bytes: &[u8]| match Request::parse(bytes) {
    Ok(request) => {
        // A number becomes a text, which is longer.
        let line = request.line();
        if line.len() <= REQUEST_BYTES_MAX {
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
    }
    Err(e) => assert!(!e.what.is_empty() && !e.why.is_empty() && !e.fix.is_empty()),
});
