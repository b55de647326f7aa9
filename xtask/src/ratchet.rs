//! The limits in `xtask/ratchet.toml`: a step fails if the tree exceeds one. A change can raise a
//! limit; the file's diff shows it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Path of the ratchet file, relative to the workspace.
pub const PATH: &str = "xtask/ratchet.toml";

/// The limits of the tree.
#[derive(Debug)]
pub struct Ratchet(toml::Table);

impl Ratchet {
    /// Reads the ratchet of the tree at `root`.
    pub fn read(root: &Path) -> Result<Ratchet> {
        let text = fs::read_to_string(root.join(PATH)).with_context(|| format!("no {PATH}"))?;
        Ok(Ratchet(text.parse().with_context(|| format!("cannot read {PATH}"))?))
    }

    /// Returns the number of foreign packages that the facade may bring in.
    pub fn packages(&self) -> Option<usize> {
        self.0.get("packages")?.as_integer()?.try_into().ok()
    }

    /// Returns the limit called `name`; 0 if it is missing.
    pub fn limit(&self, name: &str) -> usize {
        let most = self.0.get(name).and_then(toml::Value::as_integer);
        most.and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    /// Returns the most instructions for a packet in `case`; 0 if the case has no number.
    pub fn instructions(&self, case: &str) -> f64 {
        let number = self.0.get("instructions").and_then(|table| table.get(case));
        number.and_then(toml::Value::as_integer).map_or(0.0, |n| n as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_that_is_missing_allows_nothing() {
        let text = "packages = 3\nvague_words = 2\n[instructions]\nnull = 56\n";
        let ratchet = Ratchet(text.parse().unwrap());
        assert_eq!((ratchet.packages(), ratchet.limit("vague_words")), (Some(3), 2));
        assert!((ratchet.instructions("null") - 56.0).abs() < f64::EPSILON);
        assert_eq!(ratchet.limit("noun_summaries"), 0);
        assert!(ratchet.instructions("gen").abs() < f64::EPSILON);
        assert_eq!(Ratchet(toml::Table::new()).packages(), None);
    }
}
