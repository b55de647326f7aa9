//! Step `msrv`: the libraries build with the oldest Rust version that they declare.
//!
//! Cargo refuses a dependency that needs a newer one. Where the toolchain is not installed, clippy's
//! `incompatible_msrv`, which the workspace denies, has looked at our own sources in step `clippy`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::cargo;
use crate::steps::Done;
use crate::tidy::Tree;

/// Builds the crates that declare the workspace's `rust-version` with that version.
pub fn run(root: &Path) -> Result<Done> {
    let tree = Tree::read(root)?;
    let manifest = tree.text("Cargo.toml").context("there is no Cargo.toml")?;
    let promised = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = promised.and_then(|rest| rest.split('"').next()).context("no rust-version")?;
    if !has_toolchain(version) {
        let fix = format!("rustup toolchain install {version} --profile minimal");
        return Ok(Done::skipped(&format!("no Rust {version} to build with"), &fix));
    }
    let mut command = Command::new("rustup");
    command.args(["run", version, "cargo", "check", "--locked"]).current_dir(root);
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join("msrv"));
    command.env_remove("CARGO").env_remove("RUSTC").stdin(Stdio::null());
    let libraries =
        tree.ending("/Cargo.toml").filter(|(_, text)| text.contains("\nrust-version.workspace"));
    let mut n = 0;
    for (_, manifest) in libraries {
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
        command.arg("--package").arg(name.unwrap_or_default().trim_matches('"'));
        n += 1;
    }
    cargo::quiet(&mut command)?;
    Ok(Done::from(format!("{n} libraries built with Rust {version}")))
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
