//! Checks that docs/howto-batching.md has its promised sections.

use std::path::Path;

/// Post 002's four parts: the purpose, the difference to the original API, a driver's part, a
/// user's part.
#[test]
fn batching_is_explained_to_users_and_to_authors_of_drivers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/howto-batching.md");
    let page = std::fs::read_to_string(path).unwrap();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let wanted =
        ["What it is", "The difference to post 002", "For users", "For authors of drivers"];
    assert_eq!(sections, wanted);
    // The first two parts name the knob and the original's entry. The parts for users and for
    // authors show code, which tidy compares with its source file.
    let code = "```rust crates/linerate/examples/";
    let facts = ["`tx_batch`", "`hard_start_xmit_batch(dev)`", code, code];
    for (part, fact) in page.split("\n## ").skip(1).zip(facts) {
        assert!(part.contains(fact), "{fact} in {part:.40}");
    }
}
