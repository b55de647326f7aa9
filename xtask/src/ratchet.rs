//! The limits that may only get tighter: `xtask/ratchet.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Where the ratchet lies, from the workspace's folder.
pub const PATH: &str = "xtask/ratchet.toml";

/// What the tree may still exceed, and by how much.
#[derive(Debug, Default)]
pub struct Ratchet {
    /// Foreign packages that the facade may bring in.
    pub packages: usize,
    /// Instructions a packet may cost, by case.
    instructions: BTreeMap<String, f64>,
    /// Files longer than the rule.
    pub files: Vec<Exception>,
    /// Functions longer than the rule.
    pub functions: Vec<Exception>,
}

/// One place that is longer than the rule allows, and why.
#[derive(Debug)]
pub struct Exception {
    /// The file, and for a function `file::name`.
    pub at: String,
    /// Its length when it was admitted: it may shrink, not grow.
    pub lines: usize,
}

impl Ratchet {
    /// Reads the ratchet of the tree at `root`.
    pub fn read(root: &Path) -> Result<Ratchet> {
        let text = fs::read_to_string(root.join(PATH)).with_context(|| format!("no {PATH}"))?;
        Ratchet::parse(&text).with_context(|| format!("cannot read {PATH}"))
    }

    /// Reads the ratchet from its text; an exception without a reason is an error.
    pub fn parse(text: &str) -> Result<Ratchet> {
        let table: toml::Table = text.parse()?;
        let packages = table.get("packages").and_then(toml::Value::as_integer);
        Ok(Ratchet {
            packages: usize::try_from(packages.context("`packages` is not a number")?)?,
            instructions: instructions(&table),
            files: exceptions(&table, "file")?,
            functions: exceptions(&table, "function")?,
        })
    }
}

impl Ratchet {
    /// Instructions that a packet may cost in `case`; a case without a number may cost none.
    pub fn instructions(&self, case: &str) -> f64 {
        self.instructions.get(case).copied().unwrap_or(0.0)
    }
}

fn instructions(table: &toml::Table) -> BTreeMap<String, f64> {
    let rows = table.get("instructions").and_then(toml::Value::as_table);
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|n| n as f64));
    rows.into_iter().flatten().filter_map(|(case, n)| Some((case.clone(), number(n)?))).collect()
}

fn exceptions(table: &toml::Table, key: &str) -> Result<Vec<Exception>> {
    let rows = table.get(key).and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    rows.iter()
        .map(|row| {
            let text = |name| row.get(name).and_then(toml::Value::as_str);
            let at = text("at").with_context(|| format!("[[{key}]] without `at`"))?;
            let lines = row.get("lines").and_then(toml::Value::as_integer);
            text("reason")
                .filter(|reason| !reason.trim().is_empty())
                .with_context(|| format!("{at} has no `reason`"))?;
            let lines = lines.with_context(|| format!("{at} has no `lines`"))?;
            Ok(Exception { at: at.to_owned(), lines: usize::try_from(lines)? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_needs_a_reason() {
        let text = "packages = 3\n[[file]]\nat = \"a.rs\"\nlines = 700\n";
        assert!(Ratchet::parse(text).is_err());
        let ratchet = Ratchet::parse(&format!("{text}reason = \"a table\"\n")).unwrap();
        assert_eq!((ratchet.files[0].at.as_str(), ratchet.files[0].lines), ("a.rs", 700));
        assert_eq!(ratchet.packages, 3);
    }

    #[test]
    fn a_case_without_a_number_may_cost_nothing() {
        let ratchet = Ratchet::parse("packages = 1\n[instructions]\nnull = 90\n").unwrap();
        assert_eq!((ratchet.instructions("null"), ratchet.instructions("gen")), (90.0, 0.0));
    }
}
