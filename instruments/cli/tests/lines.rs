//! Tests of `linerate-lab lines`: programs with known transfers, by function, and refusals.

#[path = "../../../crates/cli/tests/command/mod.rs"]
mod command;

use std::path::{Path, PathBuf};

use command::{Ended, run};
use linerate_testing::Scratch;
use serde_json::Value;

const TURNS: u64 = 1000;

/// Returns the path of what cargo has built for this crate's tests or for the whole tree; `None` if
/// it cannot be built.
fn built(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_BIN_EXE_linerate-lab")).parent()?;
    [beside.join(name), beside.join("deps").join(name)].into_iter().find(|file| file.is_file())
}

/// Runs `linerate-lab lines` with `words`; where it cannot run, prints the reason and returns
/// `None`.
fn lines(words: &str) -> Option<Ended> {
    if built("liblinerate_lines.so").is_none() || built("lines-load").is_none() {
        eprintln!("skipped: the plugin and its load are not built (cargo build -p linerate-lines)");
        return None;
    }
    let ended = run(&format!("lines {words}"));
    let is_absent = ["cannot start the emulator", "No such file or directory"];
    let is_absent = is_absent.iter().all(|words| ended.err.contains(words));
    if is_absent || ended.err.contains("unknown option") {
        eprintln!("skipped: no qemu-x86_64 that loads plugins (apt-get install qemu-user)");
        return None;
    }
    Some(ended)
}

/// Returns the read and write transfers of the load's counting function; `None` if the run has no
/// document.
fn touched(kind: &str) -> Option<(u64, u64)> {
    let load = built("lines-load").unwrap_or_default();
    let ended = lines(&format!("--json -- {} {kind} {TURNS}", load.display()))?;
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let document = ended.document();
    assert_eq!(
        (&document["origin"], &document["schema"]),
        (&"model".into(), &"linerate-profile/1".into())
    );
    assert_eq!(document["conditions"]["packets"], TURNS);
    let kinds = document["kinds"].as_array().unwrap();
    let of = |name: &str| kinds.iter().find(|row| row["symbol"] == name);
    let count = |key: &str| of("lines_load_touch").and_then(|row| row[key].as_u64()).unwrap_or(0);
    Some((count("read"), count("write")))
}

/// Returns true if this machine counts the event, according to the list of its events.
fn is_counted(name: &str) -> bool {
    let document = run("profile events --json").document();
    let events = document["events"].as_array().unwrap();
    let event = events.iter().find(|event| event["name"] == name);
    event.unwrap_or_else(|| panic!("{name}: {document}"))["refused"].is_null()
}

#[test]
fn a_bounced_line_is_the_function_s_that_bounces_it_n_times() {
    // The first turn finds a line that no other thread has had.
    let Some(counts) = touched("bounce") else { return };
    assert_eq!(counts, (TURNS - 1, TURNS - 1));
}

#[test]
fn a_false_shared_pair_is_found_where_it_is_touched() {
    let Some(counts) = touched("false-shared") else { return };
    assert_eq!(counts, (TURNS - 1, TURNS - 1));
}

#[test]
fn a_private_line_costs_its_function_nothing() {
    let Some(counts) = touched("private") else { return };
    assert_eq!(counts, (0, 0));
}

#[test]
fn a_model_is_called_one_on_every_line_and_its_difference_too() {
    let Some(load) = built("lines-load") else { return };
    let scratch = Scratch::new();
    let (load, name) = (load.display(), scratch.word("lines.json"));
    let Some(before) = lines(&format!("-o {name} -- {load} false-shared {TURNS}")) else { return };
    let after = lines(&format!("--without {name} -- {load} private {TURNS}")).unwrap();
    let listed = run(&format!("profile list {name}"));
    for ended in [&before, &after, &listed] {
        assert_eq!(ended.exit, Some(0), "{ended:?}");
        assert!(ended.out.lines().all(|line| line.starts_with("MODEL")), "{}", ended.out);
    }
    let row = after.out.lines().find(|line| line.contains("lines_load_touch"));
    let saved: Vec<&str> = row.unwrap().split_whitespace().collect();
    assert_eq!(saved[3..7], ["0", "1,998", "1,998", "100.0"], "with, without, difference, saving");
}

#[test]
fn what_the_emulator_refuses_is_named_when_the_program_fails_by_it() {
    let Some(linerate) = built("linerate").filter(|_| rustix::process::geteuid().is_root()) else {
        eprintln!("skipped: not root, or linerate is not built");
        return;
    };
    let words = format!("--json -- {} forward packet:lo sink:blind --for 1s", linerate.display());
    let Some(ended) = lines(&words) else { return };
    assert_eq!(ended.exit, Some(5), "{ended:?}");
    let remarks = ended.document()["remarks"].to_string();
    assert!(remarks.contains("refused AF_PACKET-rings") && remarks.contains("ring:"), "{remarks}");
}

#[test]
fn an_event_that_is_not_counted_is_refused_with_the_model_that_stands_in() {
    if is_counted("L2_LINES_OUT") {
        eprintln!("skipped: this machine counts L2_LINES_OUT");
        return;
    }
    // Of a process that runs there is no model.
    let own = std::process::id();
    let ended = run(&format!("profile record --json --event L2_LINES_OUT --pid {own} --for 100ms"));
    assert_ne!(ended.exit, Some(0), "{ended:?}");
    let error = &ended.document()["error"];
    assert_eq!(error["code"], "E-UNSUPPORTED", "{error}");
    assert!(error["fix"].to_string().contains("linerate lines -- COMMAND"), "{error}");
}

#[test]
fn a_command_is_recorded_by_the_model_where_no_counter_counts_lines_and_every_line_says_so() {
    if is_counted("LINES_FROM_OTHER_CORE") {
        eprintln!("skipped: this machine counts lines");
        return;
    }
    let Some(_) = lines("--json -- true") else { return };
    let load = built("lines-load").unwrap();
    let scratch = Scratch::new();
    let (load, name) = (load.display(), scratch.word("modelled.json"));
    let words = format!("profile record --event lines-from-other-core -o {name}");
    let ended = run(&format!("{words} -- {load} bounce {TURNS}"));
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    assert!(ended.err.contains("do not come from a counter"), "{}", ended.err);
    assert!(ended.out.lines().all(|line| line.starts_with("MODEL")), "{}", ended.out);
    assert!(ended.out.contains("lines_load_touch"), "{}", ended.out);
}

#[test]
fn a_wrong_request_is_refused_before_anything_runs() {
    for (words, exit, code, fix) in [
        ("lines", 2, "E-USAGE", "linerate lines -- COMMAND"),
        ("lines --event cycles -- true", 5, "E-UNSUPPORTED", "L2_LINES_OUT"),
        ("lines --l2 3Mx8 -- true", 2, "E-USAGE", ""),
        ("lines -- /nonexistent/program", 1, "E-FILE", "check its path"),
        ("lines --plugin /nonexistent.so -- true", 5, "E-UNSUPPORTED", "cargo build"),
        ("lines --read /nonexistent", 1, "E-FILE", "check its path"),
        ("lines --read /proc/version", 1, "E-FILE", "linerate lines -- COMMAND"),
        ("lines --without /nonexistent -- true", 1, "E-FILE", "linerate profile record"),
    ] {
        let ended = run(&words.replacen("lines", "lines --json", 1));
        let error: &Value = &ended.document()["error"];
        assert_eq!((ended.exit, error["code"].as_str()), (Some(exit), Some(code)), "{words}");
        assert!(error["fix"].to_string().contains(fix), "{words}: {error}");
    }
}
