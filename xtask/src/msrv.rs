//! Step `msrv`: the libraries build with the oldest Rust that they promise.
//!
//! Three things are looked at: what every package below the facade says of itself, and then the
//! real build with the old toolchain or, where that cannot be had, clippy's table of the standard
//! library's versions. The note of the step says which of the two it was.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::shipped::{self, Package};

/// How long the download of the old toolchain may take, in the words of timeout(1).
const INSTALL_TIMEOUT: &str = "120s";

/// Checks the promise that the facade's `rust-version` makes.
pub fn run(root: &Path) -> Result<String> {
    let members = shipped::members(root)?;
    let facade = members.iter().find(|package| package.name == "linerate");
    let promised = facade
        .and_then(|package| package.rust_version.clone())
        .context("linerate has no rust-version")?;
    let newer = newer_than(&promised, &shipped::tree(root, &["linerate"])?);
    if !newer.is_empty() {
        bail!("linerate promises Rust {promised}, but {}", newer.join(", "));
    }
    let libraries: Vec<&str> = members
        .iter()
        .filter(|package| package.rust_version.as_ref() == Some(&promised))
        .map(|package| package.name.as_str())
        .collect();
    if toolchain(&promised) {
        build(root, &promised, &libraries)?;
        return Ok(format!("{} libraries built with Rust {promised}", libraries.len()));
    }
    lint(root, &libraries)?;
    Ok(format!("no Rust {promised} here: clippy::incompatible_msrv on {}", libraries.len()))
}

/// The packages that say they need a newer Rust than `promised`.
fn newer_than(promised: &str, packages: &[Package]) -> Vec<String> {
    packages
        .iter()
        .filter_map(|package| {
            let needed = package.rust_version.as_deref()?;
            (numbers(needed) > numbers(promised))
                .then(|| format!("{} {} needs {needed}", package.name, package.version))
        })
        .collect()
}

/// `1.88` and `1.88.0` are the same version.
fn numbers(version: &str) -> [u32; 3] {
    let mut numbers = [0; 3];
    for (number, part) in numbers.iter_mut().zip(version.split('.')) {
        *number = part.parse().unwrap_or(0);
    }
    numbers
}

/// Whether rustup has the toolchain, or can fetch it quickly.
fn toolchain(version: &str) -> bool {
    let succeeds = |command: &mut Command| {
        command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
    };
    let has = || succeeds(Command::new("rustup").args(["run", version, "rustc", "--version"]));
    has()
        || succeeds(Command::new("timeout").args([
            INSTALL_TIMEOUT,
            "rustup",
            "toolchain",
            "install",
            version,
            "--profile",
            "minimal",
            "--no-self-update",
        ])) && has()
}

fn build(root: &Path, version: &str, libraries: &[&str]) -> Result<()> {
    let mut command = Command::new("rustup");
    command.args(["run", version, "cargo", "check", "--locked"]).current_dir(root);
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join("msrv"));
    command.env_remove("CARGO").env_remove("RUSTC").stdin(Stdio::null());
    for library in libraries {
        command.args(["--package", library]);
    }
    cargo::quiet(&mut command).map(drop)
}

fn lint(root: &Path, libraries: &[&str]) -> Result<()> {
    let mut command = cargo::cargo(root);
    command.arg("clippy");
    for library in libraries {
        command.args(["--package", library]);
    }
    command.args(["--", "-D", "clippy::incompatible_msrv"]);
    cargo::quiet(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_needs_a_newer_rust_is_named() {
        let package = |name: &str, needs: &str| Package {
            name: name.into(),
            version: "1.0.0".into(),
            rust_version: Some(needs.into()),
            ..Package::default()
        };
        let packages = [package("old", "1.63"), package("same", "1.88.0"), package("new", "1.91")];
        assert_eq!(newer_than("1.88", &packages), ["new 1.0.0 needs 1.91"]);
    }
}
