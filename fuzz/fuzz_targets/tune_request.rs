//! A line from a client of a control socket is refused with a reason, or is a request that can be
//! written and parsed to an equal one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_ctl::tune::{REQUEST_BYTES_MAX, Request};

fuzz_target!(|bytes: &[u8]| match Request::parse(bytes) {
    Ok(request) => {
        // A request may be longer when it is written, because a number becomes text.
        let line = request.line();
        if line.len() <= REQUEST_BYTES_MAX {
            assert_eq!(Request::parse(line.as_bytes()), Ok(request));
        }
    }
    Err(e) => assert!(!e.what.is_empty() && !e.why.is_empty() && !e.fix.is_empty()),
});
