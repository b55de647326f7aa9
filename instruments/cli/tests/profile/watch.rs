//! Tests of `linerate profile watch`.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{Ended, command, run};
use crate::{Scratch, ended, refused};

#[test]
fn replayed_series_has_the_summary_of_the_watch() {
    let scratch = Scratch::new();
    let file = scratch.word("w.ndjson");
    let watched = run(&format!("profile watch --every 20ms --for 200ms -o {file}"));
    assert_eq!((watched.exit, watched.err.as_str()), (Some(0), ""), "{watched:?}");
    assert!(watched.out.starts_with("  time s user %"), "{watched:?}");
    let replayed = run(&format!("profile watch --replay {file}"));
    // What it cost to write is known to who has written it only afterwards.
    let but_cost = |ended: &Ended| {
        let lines = ended.out.lines().filter(|line| !line.starts_with("own cost: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(but_cost(&watched), but_cost(&replayed));

    let again = run(&format!("profile watch --replay {file} --json"));
    assert_eq!(again.out.lines().count(), fs::read_to_string(&file).unwrap().lines().count());
    for line in again.out.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    let chosen = run(&format!("profile watch --replay {file} --only stat/ctxt"));
    assert!(chosen.out.contains("stat/ctxt"), "{chosen:?}");
    assert!(!chosen.out.contains("interrupts/") && !chosen.out.contains("softirqs/"), "{chosen:?}");
    let none = run(&format!("profile watch --replay {file} --only nothing-like-this"));
    assert!(none.err.starts_with("no figure has that name and unit: "), "{none:?}");
}

#[test]
fn a_link_in_the_place_of_a_series_is_not_written_through() {
    let scratch = Scratch::new();
    let (file, theirs) = (scratch.word("w.ndjson"), scratch.word("theirs"));
    std::os::unix::fs::symlink(&theirs, &file).unwrap();
    assert_eq!(run(&format!("profile watch --every 5ms --for 50ms -o {file}")).exit, Some(0));
    assert!(fs::symlink_metadata(&file).unwrap().is_file() && fs::metadata(&theirs).is_err());
}

#[test]
fn a_watch_that_is_killed_leaves_its_samples() {
    let scratch = Scratch::new();
    let file = scratch.word("w.ndjson");
    let mut watch = command(&format!("profile watch --every 5ms -o {file}"));
    let mut child = watch.stdout(Stdio::null()).spawn().unwrap();
    let text = || fs::read_to_string(&file).unwrap_or_default();
    let samples = || text().matches("{\"sample\":").count();
    let since = Instant::now();
    while samples() < 10 && since.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let replayed = run(&format!("profile watch --replay {file}"));
    assert_eq!(replayed.exit, Some(0), "{replayed:?}");
    assert!(replayed.out.contains("\nthe series was cut off"), "{replayed:?}");
    let taken = replayed.out.lines().find(|line| line.contains(" samples, every 5.00 ms")).unwrap();
    assert!(taken.split(' ').next().unwrap().parse::<usize>().unwrap() >= 10, "{taken}");
}

#[test]
fn a_damaged_series_is_replayed_with_what_is_left_of_it() {
    let scratch = Scratch::new();
    let file = scratch.word("w.ndjson");
    assert_eq!(run(&format!("profile watch --every 5ms --for 50ms -o {file}")).exit, Some(0));
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut damaged = lines.clone();
    damaged[3] = "{\"sample\":{\"t_ns\":";
    damaged.insert(5, "no JSON at all");
    fs::write(&file, damaged.join("\n")).unwrap();
    let ended = run(&format!("profile watch --replay {file}"));
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    assert!(ended.err.contains(": 2 lines skipped; the first: line 4"), "{ended:?}");
    fs::write(&file, "root:x:0:0\n").unwrap();
    refused(&format!("profile watch --replay {file}"), 1, "cannot replay ");
}

#[test]
fn watch_ends_when_its_reader_is_gone() {
    for words in ["", "--json"] {
        let mut watch = command(&format!("profile watch --every 5ms --for 10m {words}"));
        let mut child = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let since = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if since.elapsed() > Duration::from_secs(20) {
                child.kill().unwrap();
                panic!("it watches on: {words}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended = ended(child);
        assert_eq!((ended.exit, ended.err.as_str()), (Some(0), ""), "{words}: {ended:?}");
    }
}
