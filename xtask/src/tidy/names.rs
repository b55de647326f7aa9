//! The rule that pages and comments name only code that exists: each part of a path in a code span,
//! such as `Port::open`, is a word of some source file, outside of its comments.

use std::collections::HashSet;

use crate::tidy::{Finding, Tree};

/// Pages about the past, which name what was renamed or removed.
const PAST: [&str; 2] = ["CHANGELOG.md", "docs/renames.md"];

/// Finds paths of code in pages and comments that no source file has.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let is_between = |c: char| !c.is_alphanumeric() && c != '_';
    let lines = tree.ending(".rs").flat_map(|(_, text)| text.lines());
    let words = lines.flat_map(|line| parts(line).0.split(is_between));
    let words: HashSet<&str> = words.collect();
    let pages = tree.ending(".md").filter(|(page, _)| !PAST.contains(page));
    let mut found = Vec::new();
    for (page, text) in pages.chain(tree.ending(".rs")) {
        let mut fenced = false;
        for (i, line) in text.lines().enumerate() {
            let line = if page.ends_with(".rs") { parts(line).1 } else { line };
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            let unknown = line.split('`').skip(1).step_by(2).filter_map(path);
            let unknown = unknown.filter(|path| path.split("::").any(|part| !words.contains(part)));
            found.extend(unknown.map(|path| {
                Finding::at(page, i + 1, format!("`{path}` does not exist in any source file"))
            }));
        }
    }
    found
}

/// Returns the code of a line, and its comment.
fn parts(line: &str) -> (&str, &str) {
    let (code, comment) = line.split_once("//").unwrap_or((line, ""));
    (code, comment.trim_start_matches(['/', '!']))
}

/// Returns the path of a code span, without its arguments; `None` if it is no path.
fn path(span: &str) -> Option<&str> {
    let path = span.split('(').next()?;
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    (path.contains("::") && path.split("::").all(is_name)).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, text: &str) -> Vec<String> {
        let source = "pub struct Port;\nimpl Port { pub fn open() {} }\n";
        let tree = Tree::of(&[("a/src/lib.rs", source), (page, text)]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_page_that_names_code_which_does_not_exist_is_found() {
        assert!(
            found("docs/a.md", "`Port::open(text)`, `Port`, `a b::c`, `http://x`\n").is_empty()
        );
        let gone = "docs/a.md:2: `Port::close` does not exist in any source file";
        assert_eq!(found("docs/a.md", "text\n`Port::close()`\n"), [gone]);
        assert_eq!(found("docs/a.md", "`Queue::open()`\n").len(), 1);
        assert!(found("docs/a.md", "```\n`Port::close`\n```\n").is_empty());
        assert!(found("docs/renames.md", "`Port::close`\n").is_empty());
        // A comment, which is no evidence for itself.
        let gone = "b.rs:2: `Port::close` does not exist in any source file";
        assert_eq!(
            found("b.rs", "/// Calls `Port::open`.\nfn x() {} // `Port::close` is\n"),
            [gone]
        );
        assert!(found("b.rs", "/// ```\n/// `Port::close`\n/// ```\n").is_empty());
    }
}
