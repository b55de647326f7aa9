//! README.md, docs/walk.md and docs/howto-*.md quote live code: each block that names a file stands in
//! it, word for word.

use crate::tidy::{Finding, Tree};

const WALK: &str = "docs/walk.md";
const README: &str = "README.md";

/// Finds quotations that the code no longer contains.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        if path == WALK && quotes(text).is_empty() {
            found.push(Finding::of(WALK, "quotes no code (```rust path/of/the/file.rs)"));
        }
        if path == WALK || path == README || path.starts_with("docs/howto-") {
            found.extend(stale(tree, path, text));
        }
    }
    found
}

/// The quotations in a page that do not stand in the file that they name.
fn stale(tree: &Tree, page: &str, text: &str) -> Vec<Finding> {
    let stale = quotes(text).into_iter().filter_map(|quote| {
        let what = match tree.text(quote.path) {
            None => format!("{} does not exist", quote.path),
            Some(source) if contains(source, &quote.lines) => return None,
            Some(_) => format!("{} no longer says this", quote.path),
        };
        Some(Finding::at(page, quote.line, what))
    });
    stale.collect()
}

struct Quote<'a> {
    path: &'a str,
    line: usize,
    lines: Vec<&'a str>,
}

/// The blocks that open with "```rust" and a path.
fn quotes(text: &str) -> Vec<Quote<'_>> {
    let mut quotes = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if !line.starts_with("```") {
            continue;
        }
        let block =
            lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```"));
        let block = block.collect();
        if let Some(path) = line.strip_prefix("```rust ") {
            quotes.push(Quote { path: path.trim(), line: i + 1, lines: block });
        }
    }
    quotes
}

/// Whether `source` has the lines of `quote` in one piece, however far either is indented.
fn contains(source: &str, quote: &[&str]) -> bool {
    let source: Vec<&str> = source.lines().collect();
    let quote = unindented(quote);
    !quote.is_empty() && source.windows(quote.len()).any(|piece| unindented(piece) == quote)
}

fn unindented<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(indent).min();
    let common = common.unwrap_or(0);
    lines.iter().map(|line| line.get(common..).unwrap_or("").trim_end()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(quote: &str) -> usize {
        let source = "impl W {\n    fn turn(&mut self) {\n        self.rx();\n\n        self.tx();\n    }\n}\n";
        check(&Tree::of(&[(WALK, quote), ("crates/datapath/src/worker.rs", source)])).len()
    }

    #[test]
    fn a_quotation_must_stand_in_the_file_in_one_piece() {
        let open = "text\n```rust crates/datapath/src/worker.rs\n";
        assert_eq!(found(&format!("{open}self.rx();\n\nself.tx();\n```\n")), 0);
        assert_eq!(found(&format!("{open}fn turn(&mut self) {{\n    self.rx();\n```\n")), 0);
        assert_eq!(found(&format!("{open}self.rx();\nself.tx();\n```\n")), 1);
        assert_eq!(found(&format!("{open}```\n")), 1);
        assert_eq!(found("```rust crates/datapath/src/gone.rs\nself.rx();\n```\n"), 1);
    }

    #[test]
    fn readme_quotes_the_program_that_it_begins_with() {
        let readme = "```rust examples/readme.rs\nport.wait(None)?;\n```\n```rust\nelse();\n```\n";
        let findings =
            |source| check(&Tree::of(&[(README, readme), ("examples/readme.rs", source)])).len();
        assert_eq!((findings("port.wait(None)?;\n"), findings("port.rx();\n")), (0, 1));
    }

    #[test]
    fn a_walk_without_code_is_no_walk() {
        assert_eq!(found("```rust\nself.rx();\n```\n"), 1);
        assert_eq!(check(&Tree::of(&[])).len(), 0);
    }
}
