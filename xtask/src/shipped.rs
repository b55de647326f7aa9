//! What a user compiles: the packages below a crate of ours, without development dependencies.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cargo;

/// The platform that the shipped tree is judged on.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// One package as cargo resolved it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Package {
    /// Its name in the registry.
    pub name: String,
    /// The version that Cargo.lock holds.
    pub version: String,
    /// The native library that it says it links, if any.
    pub links: Option<String>,
    /// The oldest Rust that it says it builds with, if it says so.
    pub rust_version: Option<String>,
    /// Whether it comes from outside the workspace.
    pub foreign: bool,
}

/// The workspace's own packages.
pub fn members(root: &Path) -> Result<Vec<Package>> {
    Ok(resolved(root)?.into_iter().filter(|package| !package.foreign).collect())
}

/// The packages that a user of `names` compiles, build dependencies included.
pub fn tree(root: &Path, names: &[&str]) -> Result<Vec<Package>> {
    let mut command = cargo::cargo(root);
    command.args(["tree", "--locked", "--edges", "normal,build", "--target", TARGET]);
    command.args(["--prefix", "none", "--no-dedupe", "--format", "{p}"]);
    for name in names {
        command.args(["--package", name]);
    }
    let wanted = listed(&cargo::quiet(&mut command)?);
    let mut packages = resolved(root)?;
    packages.retain(|package| wanted.contains(&(package.name.clone(), package.version.clone())));
    Ok(packages)
}

/// Name and version of each line of `cargo tree`: `libc v0.2.1`, `linerate v0.1.0 (/path)`.
fn listed(tree: &str) -> BTreeSet<(String, String)> {
    tree.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            Some((name.to_owned(), words.next()?.trim_start_matches('v').to_owned()))
        })
        .collect()
}

fn resolved(root: &Path) -> Result<Vec<Package>> {
    let mut command = cargo::cargo(root);
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]);
    let metadata: Value = serde_json::from_str(&cargo::quiet(&mut command)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(packages
        .iter()
        .map(|package| Package {
            name: text(&package["name"]).unwrap_or_default(),
            version: text(&package["version"]).unwrap_or_default(),
            links: text(&package["links"]),
            rust_version: text(&package["rust_version"]),
            foreign: !package["source"].is_null(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_cargo_tree_is_a_name_and_a_version() {
        let tree =
            "linerate v0.1.0 (/somewhere/linerate)\nlibc v0.2.170\n\nsyn v2.0.1\nlibc v0.2.170\n";
        let found = listed(tree);
        assert_eq!(found.len(), 3);
        assert!(found.contains(&("libc".into(), "0.2.170".into())));
    }
}
