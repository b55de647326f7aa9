//! Each driver has a page that says its state, and its limits with their causes.

use crate::tidy::{Finding, Tree};

/// The drivers of the design. One that has a file or a folder in `crates/port/src` needs a page.
const DRIVERS: [&str; 12] = [
    "gen",
    "memif",
    "model",
    "null",
    "packet",
    "pcap",
    "ring",
    "sink",
    "tap",
    "verbs",
    "vhost_user",
    "xdp",
];

/// What may follow `state:`.
const STATES: [&str; 2] = ["stable", "experimental"];

/// Finds drivers without their page, and pages without what they must say.
pub fn check(tree: &Tree) -> Vec<Finding> {
    if !tree.has_folder("docs/ports") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for driver in DRIVERS {
        let source = format!("crates/port/src/{driver}");
        if !tree.has_folder(&source) && !tree.has(&format!("{source}.rs")) {
            continue;
        }
        let path = format!("docs/ports/{driver}.md");
        let missing = match tree.text(&path) {
            None => vec!["is missing: each driver has a page".to_owned()],
            Some(text) => missing(text),
        };
        found.extend(missing.into_iter().map(|what| Finding::of(&path, what)));
    }
    found
}

/// What a page lacks: a line `state: …`, and under `limits:` a list with a cause in each item.
fn missing(text: &str) -> Vec<String> {
    let mut missing = Vec::new();
    let state = text.lines().find_map(|line| line.strip_prefix("state:")).map(str::trim);
    if !state.is_some_and(|state| STATES.contains(&state)) {
        missing.push(format!("needs a line `state:` with one of {STATES:?}"));
    }
    let limits = limits(text);
    if limits.is_empty() {
        missing.push("needs a line `limits:` and a list under it".to_owned());
    }
    let causeless = limits.iter().filter(|limit| !limit.contains("because"));
    missing.extend(causeless.map(|limit| format!("says no cause (`because`): {limit}")));
    missing
}

/// The items of the list after `limits:`, each on one line.
fn limits(text: &str) -> Vec<String> {
    let after = text.lines().skip_while(|line| line.trim_end() != "limits:").skip(1);
    let mut items = Vec::<String>::new();
    for line in after.skip_while(|line| line.is_empty()) {
        match (line.strip_prefix("- "), items.last_mut()) {
            (Some(item), _) => items.push(item.to_owned()),
            (None, Some(item)) if line.starts_with("  ") => {
                item.push(' ');
                item.push_str(line.trim());
            }
            _ => break,
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> usize {
        let source = ("crates/port/src/tap/mod.rs", "");
        check(&Tree::of(&[source, ("docs/ports/tap.md", page)])).len()
    }

    #[test]
    fn a_page_needs_a_state_and_limits_with_causes() {
        let good =
            "# tap\nstate: experimental\n\nlimits:\n\n- one queue,\n  because of the ioctl\n";
        assert_eq!(found(good), 0);
        assert_eq!(found(&good.replace("experimental", "fine")), 1);
        assert_eq!(found(&good.replace("because of", "see")), 1);
        assert_eq!(found(&good.replace("limits:", "Limits")), 1);
    }

    #[test]
    fn a_driver_without_a_page_is_found() {
        let tree = [
            ("crates/port/src/ring.rs", ""),
            ("docs/ports/tap.md", ""),
            ("crates/port/src/x.rs", ""),
        ];
        assert_eq!(check(&Tree::of(&tree)).len(), 1);
        assert_eq!(check(&Tree::of(&tree[..1])).len(), 0);
    }
}
