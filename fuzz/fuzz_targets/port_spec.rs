//! The text of a port is either refused with a reason or accepted by its driver; in both cases no
//! port is opened.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_port::{plan, units};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = (units::duration(text), units::rate(text), units::count(text));
    match plan(text).and_then(|plan| plan.needs()) {
        Ok(_) => {}
        Err(e) => assert!(!e.what.is_empty() && !e.why.is_empty()),
    }
});
