//! Relative links in the pages lead somewhere.

use crate::tidy::{Finding, Tree};

/// Finds links to files that are not there.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".md") {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut fenced = false;
        for (i, line) in text.lines().enumerate() {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            let dead = targets(line)
                .into_iter()
                .filter(|target| resolved(folder, target).is_none_or(|target| !tree.has(&target)));
            found.extend(dead.map(|to| Finding::at(path, i + 1, format!("{to} does not exist"))));
        }
    }
    found
}

/// The targets of a line's links that are files of ours, without their anchors.
fn targets(line: &str) -> Vec<&str> {
    // What stands between backticks is code.
    let prose = line.split('`').step_by(2);
    prose
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split([')', ' ', '#']).next())
        .filter(|target| !target.is_empty())
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

/// The path from the workspace's folder; none if it leaves it.
fn resolved(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        check(&Tree::of(&[("docs/a.md", line), ("docs/adr/0001.md", ""), ("README.md", "")])).len()
    }

    #[test]
    fn a_link_to_a_missing_file_is_found() {
        assert_eq!(found("[x](gone.md)"), 1);
        assert_eq!(found("[x](../gone.md#part) and [y](adr/0001.md)"), 1);
        assert_eq!(found("[x](../../outside.md)"), 1);
    }

    #[test]
    fn files_folders_anchors_and_the_web_are_fine() {
        assert_eq!(found("[a](adr/0001.md#top) [b](adr/) [c](../README.md) [d](#here)"), 0);
        assert_eq!(found("[a](https://example.org/x) `[b](gone.md)`"), 0);
        assert_eq!(found("```\n[a](gone.md)\n```"), 0);
    }

    #[test]
    fn a_link_whose_text_is_code_is_still_a_link() {
        assert_eq!(found("[`a.rs`](gone.rs)"), 1);
    }
}
