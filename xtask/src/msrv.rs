//! Step `msrv`: the libraries that declare the workspace's `rust-version` build with that version.
//! A library that declares another version is not built here.
//!
//! Cargo refuses a dependency that needs a newer one. Where the toolchain is not installed,
//! clippy's `incompatible_msrv`, which the workspace denies, has looked at our own sources in step
//! `clippy`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::Done;
use crate::tidy::Tree;

/// Builds the crates that declare the workspace's `rust-version` with that version.
pub fn run(root: &Path) -> Result<Done> {
    let tree = Tree::read(root)?;
    let manifest = tree.text("Cargo.toml").context("there is no Cargo.toml")?;
    let promised = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = promised.and_then(|rest| rest.split('"').next()).context("no rust-version")?;
    let libraries = libraries(&tree)?;
    if !has_toolchain(version) {
        let fix = format!("rustup toolchain install {version} --profile minimal");
        return Ok(Done::skipped(&format!("no Rust {version} to build with"), &fix));
    }
    let mut command = cargo::within("rustup", cargo::LIMIT);
    command.args(["run", version, "cargo", "check", "--locked"]).current_dir(root);
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join("msrv"));
    command.env_remove("CARGO").env_remove("RUSTC");
    command.args(libraries.iter().flat_map(|name| ["--package", *name]));
    cargo::quiet(&mut command)?;
    Ok(Done::from(format!("{} libraries built with Rust {version}", libraries.len())))
}

/// Returns the names of the crates that declare the workspace's `rust-version`.
fn libraries(tree: &Tree) -> Result<Vec<&str>> {
    let manifests = tree.ending("/Cargo.toml");
    let promising = manifests.filter(|(_, text)| text.contains("\nrust-version.workspace"));
    let names: Vec<&str> = promising
        .filter_map(|(_, text)| text.lines().find_map(|line| line.strip_prefix("name = ")))
        .map(|name| name.trim_matches('"'))
        .collect();
    if names.is_empty() {
        bail!("no manifest has a line `rust-version.workspace`, so no library would be built");
    }
    Ok(names)
}

/// Returns true if rustup has the toolchain, or can fetch it within two minutes.
fn has_toolchain(version: &str) -> bool {
    let succeeds = |command: &str| {
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).stdin(Stdio::null());
        command.output().is_ok_and(|output| output.status.success())
    };
    let has = || succeeds(&format!("rustup run {version} rustc --version"));
    has()
        || succeeds(&format!(
            "timeout 120s rustup toolchain install {version} --profile minimal --no-self-update"
        )) && has()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_without_a_promise_is_refused() {
        let ours = "[package]\nname = \"a\"\nrust-version.workspace = true\n";
        let other = "[package]\nname = \"b\"\nrust-version = \"1.91\"\n";
        let tree = Tree::of(&[("crates/a/Cargo.toml", ours), ("crates/b/Cargo.toml", other)]);
        assert_eq!(libraries(&tree).unwrap(), ["a"]);
        assert!(libraries(&Tree::of(&[("crates/b/Cargo.toml", other)])).is_err());
    }
}
