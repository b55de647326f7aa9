//! Step `tidy`: rules of the tree that no compiler checks. The step reads text and compiles
//! nothing.
//!
//! Each file has one `check`, from the [`Tree`] to its findings; the tests are small trees in
//! memory, each broken in the way that a rule forbids.

mod code;
mod manifests;
mod names;
mod pages;
mod seed_map;
mod source;
mod spec;
mod tree;
mod words;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

pub use pages::{README_COMMANDS, slug};
pub use source::{code as code_of, is_for_tests, shipped};
pub use spec::{SPEC, rows};
pub use tree::Tree;

use crate::ratchet::Ratchet;
use crate::results;

/// A place that violates a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    path: String,
    /// Line number from 1; 0 means the whole file.
    line: usize,
    what: String,
}

impl Finding {
    /// Returns a finding at a line of a file.
    pub fn at(path: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, what: what.into() }
    }

    /// Returns a finding about a file as a whole.
    pub fn of(path: &str, what: impl Into<String>) -> Finding {
        Finding::at(path, 0, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Checks every rule and prints the findings.
pub fn run(root: &Path) -> Result<String> {
    let (tree, ratchet) = (Tree::read(root)?, Ratchet::read(root)?);
    let found = [
        manifests::check(&tree),
        code::check(&tree, &code::of_this_machine(root)?),
        pages::check(&tree),
        spec::check(&tree),
        names::check(&tree),
        seed_map::check(&tree),
        words::check(&tree, ratchet.limit("vague_words"), ratchet.limit("noun_summaries")),
        results::check(root, &tree)?,
    ]
    .concat();
    for finding in &found {
        eprintln!("{finding}");
    }
    if !found.is_empty() {
        bail!("{} findings", found.len());
    }
    Ok(format!("{} files", tree.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_tree_with_findings_fails_the_step() {
        if crate::cargo::located("git").is_none() {
            return eprintln!("skipped: there is no git");
        }
        let root = std::env::temp_dir().join(format!("linerate-tidy-{}", std::process::id()));
        fs::create_dir_all(root.join("xtask")).unwrap();
        fs::write(root.join("xtask/ratchet.toml"), "packages = 3\n").unwrap();
        let git = Command::new("git").args(["init", "-q"]).current_dir(&root).status();
        assert!(git.unwrap().success());
        let why = run(&root).unwrap_err().to_string();
        fs::remove_dir_all(&root).unwrap();
        assert!(why.ends_with(" findings"), "{why}");
    }
}
