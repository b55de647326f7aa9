//! Tells the program of which commit it is, so that what it measures can be told from what another
//! build did: `LINERATE_COMMIT` if it is set, else git's, with `-dirty` behind it where the sources
//! differ; nothing where they are not in our repository.

use std::process::Command;

/// Where this package is in our repository. In another's, commits are not ours.
const PREFIX: &str = "instruments/cli/";

fn main() {
    println!("cargo:rerun-if-env-changed=LINERATE_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("LINERATE_COMMIT").is_some() {
        // rustc sees it as we do.
        return;
    }
    if git(&["rev-parse", "--show-prefix"]).as_deref() != Some(PREFIX) {
        return;
    }
    // Each commit writes a line here. A directory stands for every file in it.
    for path in git(&["rev-parse", "--git-path", "logs/HEAD"]).as_deref().into_iter().chain([".."])
    {
        println!("cargo:rerun-if-changed={path}");
    }
    if let Some(commit) = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) {
        println!("cargo:rustc-env=LINERATE_COMMIT={commit}");
    }
}

/// What a git command prints; `None` if there is no git, or nothing to be printed.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
