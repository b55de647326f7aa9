//! Compares the text for users with files in `tests/golden/`: every `--help`, refusals, and the
//! keys of the JSON documents.
//!
//! `UPDATE_GOLDEN=1 cargo test -p linerate-tests --test golden` writes the files again, without
//! blank lines; their diff shows the change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use linerate::{Code, Kind};
use linerate_tests::command::{Forward, linerate};
use linerate_tests::process::Finished;
use linerate_tests::wait::SOON;
use serde_json::Value;

/// Commands that are refused with equal text on every machine.
const REFUSED: [&str; 26] = [
    "forwrd",
    "forward null:",
    "forward --for 10",
    "forward veth0 null:",
    "forward packt:veth0 null:",
    "forward null:,sise=60 null:",
    "forward gen:,rate=1 sink:",
    "forward a=gen: a=sink:",
    "forward a=gen: b=gen:",
    "forward ring:r0 sink:",
    "forward pcap:/nonexistent/in.pcap sink:",
    "forward gen:,size=9000 sink:",
    "forward --frame-size 3000",
    "forward --jumbo 8 --buffers general",
    "gen sink: --size 59",
    "ndr null: null:",
    "ndr gen: ring:b",
    "ndr ring:a pcap:out.pcap",
    "lab show nothing",
    "lab run nothing",
    "lab report /nonexistent",
    "tune /nonexistent",
    "profile list /nonexistent",
    "profile list",
    "lines",
    "lines --event cycles -- true",
];

/// Commands that print a document.
const DOCUMENTS: [&str; 5] = [
    "forward gen:,count=1000 sink: --json",
    "gen sink: --count 1000 --json",
    "doctor null: --json",
    "forward --frame-size 3000 --json",
    "lab list --json",
];

#[test]
fn every_help_text_is_the_golden_one() {
    // All but the last are separate programs, which the command's help does not list as commands.
    let mut left = [" ndr", " profile", " lines", " lab", ""].map(String::from).to_vec();
    let mut text = String::new();
    while let Some(command) = left.pop() {
        let help = run(&format!("{command} --help")).stdout;
        let section = help.split_once("\nCommands:\n").map_or("", |(_, after)| after);
        let names = section.lines().take_while(|line| line.starts_with("  "));
        let names = names.filter_map(|line| line.split_whitespace().next());
        let below: Vec<String> =
            names.filter(|name| *name != "help").map(|name| format!("{command} {name}")).collect();
        left.extend(below.into_iter().rev());
        text.push_str(&format!("=== linerate{command} --help\n{help}\n"));
    }
    assert_golden("help.txt", &text);
}

#[test]
fn every_refusal_is_the_golden_one() {
    let refusal = |words: &&str| {
        let done = run(words);
        format!("=== linerate {words} -> {}\n{}\n", done.code(), done.stderr)
    };
    assert_golden("refusals.txt", &REFUSED.iter().map(refusal).collect::<String>());
}

#[test]
fn the_keys_of_every_document_are_the_golden_ones() {
    let mut keys = BTreeMap::new();
    for words in DOCUMENTS {
        let document = serde_json::from_str(&run(words).stdout).expect("a document");
        collect(words, &document, &mut keys);
    }
    let line = |(path, keys): (&String, &BTreeSet<String>)| {
        format!("{path}: {}\n", keys.iter().map(String::as_str).collect::<Vec<_>>().join(" "))
    };
    assert_golden("json.txt", &keys.iter().map(line).collect::<String>());
}

#[test]
fn the_page_of_errors_has_every_code_with_its_exit_status() {
    let page = include_str!("../../docs/errors.md");
    for code in Code::ALL {
        let status = match code.kind() {
            Kind::Usage => 2,
            Kind::Unsupported => 5,
            _ => 1,
        };
        let row = format!("| `{code}` | {status} |");
        assert!(page.contains(&row), "docs/errors.md has no row `{row}`");
    }
}

/// Notes the keys of each object below `value`; all elements of an array are taken for one.
fn collect(path: &str, value: &Value, keys: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::Object(map) => {
            keys.entry(path.to_owned()).or_default().extend(map.keys().cloned());
            // The obstacles depend on the machine.
            let alike = map.iter().filter(|(key, _)| *key != "obstacles");
            alike.for_each(|(key, value)| collect(&format!("{path} .{key}"), value, keys));
        }
        Value::Array(values) => {
            values.iter().for_each(|value| collect(&format!("{path}[]"), value, keys));
        }
        _ => {}
    }
}

/// Runs the command with `words`, without a terminal.
fn run(words: &str) -> Finished {
    let mut command = Command::new(linerate());
    command.args(words.split_whitespace()).env_remove("COLUMNS");
    Forward::here(command).finish(3 * SOON)
}

/// Compares `text` with the file `name` in `tests/golden/`, or writes the file if `UPDATE_GOLDEN`
/// is set.
fn assert_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(&path, text).expect("the file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(golden.lines()).position(|(is, was)| is != was);
    let line = differs.unwrap_or_else(|| text.lines().count().min(golden.lines().count()));
    let at = |text: &str| text.lines().nth(line).unwrap_or("(the end)").to_owned();
    assert!(
        text == golden,
        "tests/golden/{name}:{}: is `{}`, was `{}`; the head of tests/tests/golden.rs says how to update it",
        line + 1,
        at(&text),
        at(&golden),
    );
}
