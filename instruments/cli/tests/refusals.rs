//! Refusals of `linerate-lab`, with an exit status for their kind.

#[path = "../../../crates/cli/tests/command/mod.rs"]
mod command;

use command::run;

/// Words, exit status, code, a part of the reason, a part of the remedy.
const REFUSALS: [(&str, i32, &str, &str, &str); 4] = [
    ("ndr null: null:", 2, "E-TOPOLOGY", "frees the packets that it receives", "ring:a ring:b"),
    ("ndr gen: ring:b", 2, "E-TOPOLOGY", "a generator already", "ring:a ring:b"),
    ("ndr packet:lo packet:lo", 2, "E-USAGE", "the host itself uses", "--max 10kpps"),
    ("ndr ring:a pcap:out.pcap", 2, "E-TOPOLOGY", "is a file", "ring:a ring:b"),
];

#[test]
fn refusal_names_code_reason_remedy_and_exit_status() {
    for (words, exit, code, why, fix) in REFUSALS {
        let told = run(words);
        assert_eq!(told.exit, Some(exit), "{words}: {told:?}");
        assert!(told.err.starts_with(&format!("error[{code}]: ")), "{words}: {told:?}");
        assert!(told.err.contains(why) && told.err.contains(fix), "{words}: {told:?}");
        let document = run(&format!("{words} --json")).document();
        assert_eq!(document["error"]["code"], code, "{words}");
    }
}
