//! `unsafe` lives in five crates; the others forbid it.

use crate::tidy::{Finding, Tree, rust};

/// The crates that may hold `unsafe`.
const UNSAFE: [&str; 5] = ["sys", "ring", "skb", "port", "prof"];

/// Folders beside `crates/` where it has no place either. `tests/` may count allocations with an
/// allocator of its own, which is `unsafe` to implement.
const ALSO_SAFE: [&str; 2] = ["examples/", "xtask/"];

/// Finds `unsafe` out of place, and safe crates that do not say so.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let of_a_crate = crate::tidy::house(path).and_then(|rest| rest.split_once('/'));
        let safe = match of_a_crate {
            Some((name, _)) => !UNSAFE.contains(&name),
            None => ALSO_SAFE.iter().any(|folder| path.starts_with(folder)),
        };
        if !safe {
            continue;
        }
        let masked = rust::mask(text);
        for (at, _) in rust::words(&masked).filter(|(_, word)| *word == "unsafe") {
            let line = rust::line_of(&masked, at);
            found.push(Finding::at(path, line, "`unsafe` outside sys, ring, skb, port and prof"));
        }
        let is_root = matches!(of_a_crate, Some((_, "src/lib.rs" | "src/main.rs")));
        if is_root && !masked.contains("#![forbid(unsafe_code)]") {
            found.push(Finding::of(path, "must say `#![forbid(unsafe_code)]`"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn unsafe_is_found_where_it_has_no_place() {
        let text = "// unsafe\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(lines("crates/wire/src/tcp.rs", text), [3]);
        assert_eq!(lines("examples/echo.rs", text), [3]);
        assert_eq!(lines("crates/skb/src/pool.rs", text), [0_usize; 0]);
    }

    #[test]
    fn a_safe_crate_must_forbid_it() {
        assert_eq!(lines("crates/ctl/src/lib.rs", "// #![forbid(unsafe_code)]\n"), [0]);
        assert_eq!(lines("crates/ctl/src/lib.rs", "#![forbid(unsafe_code)]\n"), [0_usize; 0]);
        assert_eq!(lines("crates/cli/src/main.rs", "fn main() {}\n"), [0]);
    }
}
