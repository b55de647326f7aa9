//! Checks for registries and for users of a version: crates that build from their packages,
//! interfaces that stay compatible.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Outcome, Place, is_here};
use crate::cargo;

/// Packs every crate to be published, and builds each from its package only.
pub fn package(place: &Place) -> Result<Outcome> {
    let crates = crates(place, |_| true)?;
    let mut command = cargo::cargo(&place.root);
    command.args(["package", "--locked"]).args(named(&crates));
    cargo::quiet(&mut command)?;
    for name in &crates {
        let pack = format!("package/{name}-{}.crate", place.version);
        let pack = cargo::target_dir(&place.root).join(pack);
        let listed = cargo::quiet(Command::new("tar").arg("-tvf").arg(&pack))?;
        refuse_incomplete(name, &listed)?;
    }
    Ok(Outcome::Done(format!("{} crates: {}", crates.len(), crates.join(", "))))
}

/// Fails if a package's list of files has a link, or lacks a file that each crate has.
fn refuse_incomplete(name: &str, listed: &str) -> Result<()> {
    // The crates' folders have links to the licence texts at the root; a package must contain the
    // texts instead.
    if let Some(link) = listed.lines().find(|line| line.starts_with('l')) {
        bail!("{name}: a link leaves the crate: {link}");
    }
    for needed in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.toml"] {
        if !listed.contains(&format!("/{needed}\n")) {
            bail!("{name} has no {needed}");
        }
    }
    Ok(())
}

/// Compares the interfaces of the libraries with those of an earlier commit.
pub fn semver(place: &Place) -> Result<Outcome> {
    if !is_here("cargo-semver-checks") {
        return Ok(Outcome::Skipped(
            "there is no cargo-semver-checks",
            "cargo install --locked cargo-semver-checks".into(),
        ));
    }
    let baseline = match &place.baseline {
        Some(commit) => Some(commit.clone()),
        None => newest_tag(place)?,
    };
    let Some(baseline) = baseline else {
        return Ok(Outcome::Skipped(
            "no version was tagged yet",
            "--baseline-rev COMMIT compares with any".into(),
        ));
    };
    let libraries = crates(place, has_library)?;
    let mut command = cargo::cargo(&place.root);
    command.args(["semver-checks", "--baseline-rev", &baseline]).args(named(&libraries));
    cargo::quiet(&mut command)?;
    Ok(Outcome::Done(format!(
        "{} libraries keep what they promised at {baseline}",
        libraries.len()
    )))
}

/// Returns the newest tag `v*` of a commit before this one, if there is one.
fn newest_tag(place: &Place) -> Result<Option<String>> {
    let mut git = Command::new("git");
    // The clone may belong to another user (tidy/tree.rs).
    git.args(["-c", "safe.directory=*", "tag", "--list", "v*", "--merged", "HEAD"]);
    let tags = cargo::quiet(git.arg("--sort=-creatordate").current_dir(&place.root))?;
    Ok(tags.lines().next().map(str::to_owned))
}

/// Returns the names of the crates to be published that `wanted` accepts.
fn crates(place: &Place, wanted: fn(&Value) -> bool) -> Result<Vec<String>> {
    let mut command = cargo::cargo(&place.root);
    command.args(["metadata", "--locked", "--no-deps", "--format-version", "1"]);
    let metadata: Value = serde_json::from_str(&cargo::quiet(&mut command)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let published =
        packages.iter().filter(|package| package["publish"].is_null() && wanted(package));
    Ok(published.filter_map(|package| Some(package["name"].as_str()?.to_owned())).collect())
}

fn has_library(package: &Value) -> bool {
    let targets = package["targets"].as_array().into_iter().flatten();
    targets.into_iter().any(|target| target["kind"][0] == "lib")
}

fn named(crates: &[String]) -> impl Iterator<Item = String> {
    crates.iter().map(|name| format!("--package={name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_with_a_link_or_without_a_licence_is_refused() {
        let row = |file: &str| format!("-rw-r--r-- 0/0 9 2006-07-24 x-0.1.0/{file}\n");
        let whole = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"].map(row).concat();
        assert!(refuse_incomplete("x", &whole).is_ok());
        let link = whole.replacen("-rw-r--r--", "lrwxrwxrwx", 1);
        let why = refuse_incomplete("x", &link).unwrap_err().to_string();
        assert!(why.starts_with("x: a link leaves the crate: l"), "{why}");
        let bare = whole.replace("LICENSE-MIT", "LICENSE-MIT.orig");
        assert_eq!(refuse_incomplete("x", &bare).unwrap_err().to_string(), "x has no LICENSE-MIT");
    }
}
