//! Step `clippy`: clippy on the workspace, and what such a run leaves out: the feature `fuzzing`,
//! and the fuzz targets, which are a workspace of their own.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::Done;

/// Arguments of clippy's runs. The tests of `linerate-port` have the code of its feature `fuzzing` too;
/// the second run shows that this code needs nothing that only tests have.
const RUNS: [&[&str]; 2] = [
    &["--workspace", "--all-targets"],
    &["--package", "linerate-port", "--lib", "--features", "fuzzing"],
];

/// Runs clippy with warnings refused, and compiles the fuzz targets.
pub fn run(root: &Path) -> Result<Done> {
    for run in RUNS {
        let mut command = cargo::cargo(root);
        command.args(["clippy", "--locked"]).args(run).args(["--", "-D", "warnings"]);
        cargo::quiet(&mut command)?;
    }
    fuzz_targets(root)
}

/// Compiles the fuzz targets with the compiler of the workspace, and does not link them: only
/// cargo-fuzz's options need a nightly compiler.
fn fuzz_targets(root: &Path) -> Result<Done> {
    let folder = root.join("fuzz");
    let mut command = cargo::cargo(&folder);
    command.args(["check", "--locked"]);
    command.env("CARGO_TARGET_DIR", cargo::target_dir(root).join("fuzz"));
    // libfuzzer-sys would compile C++, and takes this file for its library instead, which only a
    // linker reads.
    command.env("CUSTOM_LIBFUZZER_PATH", folder.join("Cargo.lock"));
    let output = command.output().context("cannot start cargo")?;
    judge(output.status.success(), &String::from_utf8_lossy(&output.stderr))
}

/// Judges the check of the fuzz targets by whether it `passed` and by what cargo `said`. Without
/// their packages, which not every machine reaches, the check is skipped.
fn judge(passed: bool, said: &str) -> Result<Done> {
    let no_package = |line: &&str| line.contains("failed to download");
    match said.lines().find(no_package) {
        _ if passed => Ok(Done::default()),
        // Cargo also says so of a download that it tried again.
        Some(why) if !said.contains("could not compile") => {
            let why = format!("no packages for the fuzz targets: {}", why.trim());
            Ok(Done::skipped(&why, "cargo fetch in fuzz/, where crates.io can be reached"))
        }
        _ => bail!("cargo check in fuzz/:\n{said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_target_that_does_not_compile_fails_the_step_and_packages_that_are_absent_skip_it() {
        let downloaded = "error: failed to download from `https://index/config.json`\n";
        assert!(judge(true, downloaded).unwrap().skips().is_empty(), "a second try succeeded");
        let skips = judge(false, downloaded).unwrap().skips().to_owned();
        assert!(skips[0].starts_with("skipped: no packages for the fuzz targets: "), "{skips:?}");
        let both = format!("warning: {downloaded}error: could not compile `x`\n");
        assert!(judge(false, &both).is_err());
        let why = judge(false, "error[E0432]: unresolved import\n").map(drop).unwrap_err();
        assert!(why.to_string().ends_with("unresolved import\n"), "{why}");
    }
}
