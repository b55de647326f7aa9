//! Foreign packages come from the public index, where a user's cargo looks for them.

use crate::tidy::{Finding, Tree};

const INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Finds packages of the lock file that come from elsewhere.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(lock) = tree.text("Cargo.lock") else {
        return vec![Finding::of("Cargo.lock", "is missing: the tested versions are part of us")];
    };
    let lines = lock.lines().enumerate();
    lines
        .filter_map(|(i, line)| {
            let source = line.strip_prefix("source = \"")?.trim_end_matches('"');
            (source != INDEX).then(|| Finding::at("Cargo.lock", i + 1, "not the public index"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_from_elsewhere_is_found() {
        let lock = format!("source = \"{INDEX}\"\nsource = \"git+https://example.org/x\"\n");
        let found = check(&Tree::of(&[("Cargo.lock", &lock)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_missing_lock_file_is_found() {
        assert_eq!(check(&Tree::of(&[])).len(), 1);
    }
}
