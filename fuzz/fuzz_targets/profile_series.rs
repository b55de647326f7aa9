//! A series as a file: every sample has a value for each column, times increase, and samples left
//! out are counted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_prof::proc::{Feed, Replay, Sample, Summary};

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|&byte| byte == b'\n').count() as u64;
    let mut replay = match Replay::open(bytes) {
        Ok(replay) => replay,
        Err(e) => return assert!(!e.what.is_empty() && !e.why.is_empty()),
    };
    let (mut sample, mut before, mut samples) = (Sample::default(), None, 0);
    while replay.next(&mut sample).expect("it is in memory") {
        assert_eq!(sample.values.len(), replay.columns().len());
        assert!(before.is_none_or(|before| before < sample.t_ns));
        (before, samples) = (Some(sample.t_ns), samples + 1);
    }
    assert!(samples + replay.complaints_total() <= lines);
    for complaint in replay.complaints() {
        assert!(!complaint.why.contains(char::is_control));
    }
    let mut again = Replay::open(bytes).expect("it was opened");
    let summary = Summary::of(&mut again).expect("it is in memory");
    assert_eq!(summary.end.samples, samples);
    assert!(!summary.to_string().contains('\u{1b}'));
});
