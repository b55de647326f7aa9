//! `cargo xtask lines`: counts the lines of all tracked text, and the lines of code in the packet
//! half and in the instruments.
//!
//! Code is a line of shipped Rust that is neither blank nor a comment: no tests, no conformance
//! suite, no examples. Benches count as code.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::steps::Done;
use crate::tidy::{self, Tree};

/// Folders and files that measure, print or check instead of moving packets.
const INSTRUMENTS: [&str; 2] = ["instruments/", "xtask/"];

/// Numbers of lines in one folder.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Count {
    files: usize,
    lines: usize,
    code: usize,
}

/// Prints the table of lines.
pub fn run(root: &Path) -> Result<Done> {
    print!("{}", table(&Tree::read(root)?));
    Ok(Done::default())
}

fn table(tree: &Tree) -> String {
    let mut rows = BTreeMap::<(&str, String), Count>::new();
    let (mut all, mut rust) = (Count::default(), Count::default());
    for (path, text) in tree.files() {
        let code = if path.ends_with(".rs") { code(tree, path, text) } else { 0 };
        let count = Count { files: 1, lines: text.lines().count(), code };
        add(&mut all, count);
        if path.ends_with(".rs") {
            add(&mut rust, count);
            add(rows.entry((house(path), folder(path))).or_default(), count);
        }
    }
    let mut text = format!("{:<12} {:<20} {:>5} {:>8} {:>8}\n", "", "", "files", "lines", "code");
    let mut row = |house: &str, folder: &str, n: Count| {
        text += &format!("{house:<12} {folder:<20} {:>5} {:>8} {:>8}\n", n.files, n.lines, n.code);
    };
    for house in ["packet", "instruments", "rest"] {
        let mut sum = Count::default();
        for ((_, folder), count) in rows.iter().filter(|((of, _), _)| *of == house) {
            row(house, folder, *count);
            add(&mut sum, *count);
        }
        row(house, "together", sum);
    }
    row("all Rust", "", rust);
    row("all text", "", all);
    text
}

fn add(sum: &mut Count, count: Count) {
    sum.files += count.files;
    sum.lines += count.lines;
    sum.code += count.code;
}

/// Returns the part of the tree that a file belongs to: the packet half, the instruments, or the
/// rest.
fn house(path: &str) -> &'static str {
    match path {
        _ if INSTRUMENTS.iter().any(|at| path.starts_with(at)) => "instruments",
        _ if path.starts_with("crates/") => "packet",
        _ => "rest",
    }
}

/// Returns the folder under which a file is counted: `crates/skb`, `examples`.
fn folder(path: &str) -> String {
    let depth = if path.starts_with("crates/") || path.starts_with("instruments/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

/// Returns the number of lines of code in a source.
fn code(tree: &Tree, path: &str, text: &str) -> usize {
    if path.contains("/examples/")
        || path.starts_with("examples/")
        || tidy::is_for_tests(tree, path)
    {
        return 0;
    }
    tidy::shipped(text).lines().filter(|line| !tidy::code_of(line).is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_ships_without_comments_and_tests() {
        let text =
            "//! Doc.\n\nfn f() {\n    // Why.\n}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        let table = table(&Tree::of(&[
            ("crates/skb/src/lib.rs", text),
            ("crates/skb/tests/model.rs", text),
            ("instruments/cli/src/ndr.rs", "fn f() {}\n"),
            ("instruments/lab/src/lib.rs", "fn f() {}\n"),
            ("README.md", "text\n"),
        ]));
        let row = |start: &str| {
            let line = table.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("packet       crates/skb "), "2 20 3", "{table}");
        assert_eq!(row("instruments  together"), "2 2 2", "{table}");
        assert_eq!(row("all text"), "5 23 5", "{table}");
    }
}
