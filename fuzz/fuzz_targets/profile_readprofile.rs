//! A readprofile listing in other text: the result is the same read at once or in pieces; loads are
//! finite, and a listing without a cut-off has all ticks in its rows.
#![no_main]

use std::io::BufReader;

use libfuzzer_sys::fuzz_target;
use linerate_prof::read::{COMPLAINTS_KEPT, Form, parse};

fuzz_target!(|bytes: &[u8]| {
    let read = parse(bytes, Some(Form::Readprofile));
    let pieces = parse(BufReader::with_capacity(3, bytes), Some(Form::Readprofile));
    assert_eq!(read, pieces);
    let Ok(read) = read else { return };
    let lines = bytes.split(|b| *b == b'\n').count() as u64;
    let rows: usize = read.profiles.iter().map(|profile| profile.rows.len()).sum();
    assert!(rows as u64 + read.complaints_total + read.prose_lines <= lines);
    assert!(read.complaints.len() <= COMPLAINTS_KEPT);
    for profile in &read.profiles {
        assert!(profile.cutoff.is_some() || profile.counted() == profile.total_count());
        for row in &profile.rows {
            assert!(!row.symbol.is_empty());
            assert!(row.load.is_none_or(|load| load.value.is_finite() && load.value >= 0.0));
            let _ = row.bytes();
        }
    }
});
