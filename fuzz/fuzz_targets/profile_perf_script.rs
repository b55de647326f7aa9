//! The text of `perf script`, valid or damaged: the result is the same read at once or in pieces,
//! and the rows have no more samples than the text can contain.
#![no_main]

use std::io::BufReader;

use libfuzzer_sys::fuzz_target;
use linerate_prof::read::{COMPLAINTS_KEPT, Form, parse};

fuzz_target!(|bytes: &[u8]| {
    let read = parse(bytes, Some(Form::PerfScript));
    let pieces = parse(BufReader::with_capacity(3, bytes), Some(Form::PerfScript));
    assert_eq!(read, pieces);
    let Ok(read) = read else { return };
    let lines = bytes.split(|b| *b == b'\n').count() as u64;
    let samples: u64 = read.profiles.iter().map(|profile| profile.counted()).sum();
    assert!(samples + read.prose_lines <= lines);
    assert!(read.complaints.len() <= COMPLAINTS_KEPT);
    for profile in &read.profiles {
        assert!(!profile.event.name.is_empty());
        assert!(!profile.rows.is_empty() || profile.lost > 0);
        let stacked: u64 = profile.stacks.iter().map(|stack| stack.count).sum();
        assert!(stacked <= profile.counted());
        assert!(profile.stacks.iter().all(|stack| !stack.frames.is_empty()));
    }
});
