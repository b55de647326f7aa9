//! Step `packages`: the packages that a user compiles with a crate of ours, without development
//! dependencies.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;
use crate::ratchet::{self, Ratchet};

/// The platform for which the shipped packages are counted.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Upper limit for the packages of the facade; the ratchet's limit must not be above it.
const CEILING: usize = 25;

/// Counts the foreign packages that `linerate` depends on and compares them with the ratchet.
pub fn packages(root: &Path) -> Result<String> {
    let packages = tree(root, &["linerate"], TARGET)?;
    let foreign = foreign(&packages);
    let allowed = Ratchet::read(root)?.packages().context("`packages` is not a number")?;
    judge(&foreign, allowed)
}

/// Compares foreign packages with the number that is `allowed`, and that number with the rule;
/// returns the step's note.
fn judge(foreign: &[&str], allowed: usize) -> Result<String> {
    if allowed > CEILING {
        bail!("{} allows {allowed} packages, the rule says {CEILING}", ratchet::PATH);
    }
    let n = foreign.len();
    if n > allowed {
        bail!("linerate brings in {n} foreign packages, {allowed} allowed: {}", foreign.join(", "));
    }
    Ok(format!("{n} foreign packages of {allowed} allowed"))
}

/// Returns the packages that are not ours. Ours have a path after the version,
/// `linerate v0.1.0 (/path)`, and packages from a git repository have its address there.
fn foreign(packages: &BTreeSet<String>) -> Vec<&str> {
    packages.iter().map(String::as_str).filter(|package| !package.contains(" (/")).collect()
}

/// Returns the packages that a user of `names` compiles for `target`, build dependencies included:
/// `libc v0.2.170`.
pub fn tree(root: &Path, names: &[&str], target: &str) -> Result<BTreeSet<String>> {
    let mut command = cargo::cargo(root);
    command.args(["tree", "--locked", "--edges", "normal,build", "--target", target]);
    command.args(["--prefix", "none", "--no-dedupe", "--format", "{p}"]);
    for name in names {
        command.args(["--package", name]);
    }
    let listed = cargo::quiet(&mut command)?;
    let lines = listed.lines().map(|line| line.trim_end_matches(" (proc-macro)").to_owned());
    Ok(lines.filter(|line| !line.is_empty()).collect())
}

/// Returns true if `packages` has that version of a package, from any source.
pub fn contains(packages: &BTreeSet<String>, name: &str, version: &str) -> bool {
    let wanted = format!("{name} v{version}");
    packages.iter().any(|package| package.split(" (").next() == Some(wanted.as_str()))
}

/// Returns the packages of `shipped` that link a native library, as `name links library`.
pub fn linking(root: &Path, shipped: &BTreeSet<String>) -> Result<Vec<String>> {
    let mut command = cargo::cargo(root);
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]);
    let metadata: Value = serde_json::from_str(&cargo::quiet(&mut command)?)?;
    linking_of(&metadata, shipped)
}

/// Returns the packages of `shipped` that link a native library, by cargo's metadata.
fn linking_of(metadata: &Value, shipped: &BTreeSet<String>) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let linking = packages.iter().filter_map(|package| {
        let [name, version, links] = ["name", "version", "links"].map(|key| package[key].as_str());
        let (name, links) = (name?, links?);
        contains(shipped, name, version?).then(|| format!("{name} links {links}"))
    });
    Ok(linking.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_from_a_git_repository_is_foreign_and_is_shipped() {
        let packages = ["linerate v0.1.0 (/src)", "libc v0.2.1", "zlib v1.0.0 (https://x/zlib#ab)"];
        let packages: BTreeSet<String> = packages.map(String::from).into();
        assert_eq!(foreign(&packages), ["libc v0.2.1", "zlib v1.0.0 (https://x/zlib#ab)"]);
        let metadata = serde_json::json!({ "packages": [
            { "name": "zlib", "version": "1.0.0", "links": "z" },
            { "name": "zlib", "version": "1.0.1", "links": "z" },
            { "name": "libc", "version": "0.2.1", "links": null },
        ] });
        assert_eq!(linking_of(&metadata, &packages).unwrap(), ["zlib links z"]);
    }

    #[test]
    fn more_packages_than_allowed_and_a_limit_above_the_rule_are_errors() {
        let why = |foreign: &[&str], allowed| judge(foreign, allowed).unwrap_err().to_string();
        assert_eq!(judge(&["a", "b"], 2).unwrap(), "2 foreign packages of 2 allowed");
        assert!(why(&["a", "b"], 1).contains("2 foreign packages, 1 allowed: a, b"));
        assert!(judge(&[], CEILING).is_ok() && why(&[], CEILING + 1).contains("the rule says 25"));
    }
}
