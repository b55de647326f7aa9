//! The text of a port is either refused with a reason or accepted by its driver, and so is its
//! discipline; in all cases no port is opened.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_datapath::qdisc::Setup;
use linerate_port::{parse, plan, units};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = (units::duration(text), units::rate(text), units::count(text));
    match plan(text).and_then(|plan| plan.needs()) {
        Ok(_) => {}
        Err(e) => assert!(!e.what.is_empty() && !e.why.is_empty()),
    }
    let Ok(mut spec) = parse(text) else { return };
    match Setup::of(&mut spec) {
        Ok(None) => {}
        Ok(Some(_)) => assert!(matches!(Setup::of(&mut spec), Ok(None)), "it was removed"),
        Err(e) => assert!(!e.what.is_empty() && !e.why.is_empty()),
    }
});
