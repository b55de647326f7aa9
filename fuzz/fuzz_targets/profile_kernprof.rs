//! A kernprof listing in other text: the result is the same read at once or in pieces, and each
//! line is used at most once.
#![no_main]

use std::io::BufReader;

use libfuzzer_sys::fuzz_target;
use linerate_prof::read::{COMPLAINTS_KEPT, Form, parse};

fuzz_target!(|bytes: &[u8]| {
    let read = parse(bytes, Some(Form::Kernprof));
    let pieces = parse(BufReader::with_capacity(3, bytes), Some(Form::Kernprof));
    assert_eq!(read, pieces);
    let Ok(read) = read else { return };
    let lines = bytes.split(|b| *b == b'\n').count() as u64;
    let rows: usize = read.profiles.iter().map(|profile| profile.rows.len()).sum();
    assert!(rows as u64 + read.complaints_total + read.prose_lines <= lines);
    assert!(read.complaints.len() <= COMPLAINTS_KEPT);
    assert!(read.complaints.iter().all(|complaint| (1..=lines).contains(&complaint.line)));
    for row in read.profiles.iter().flat_map(|profile| &profile.rows) {
        assert!(!row.symbol.is_empty() && row.address.is_some());
    }
    // Without a named form, the reader finds the same profiles, or selects another form whose rows
    // come earlier.
    match parse(bytes, None) {
        Ok(found) if found.form == Form::Kernprof => assert_eq!(found, read),
        _ => {}
    }
});
