//! Records the program's commit and compiler at build time, so that measurements can be attributed
//! to a build: `LINERATE_COMMIT` if it is set, else git's commit, with the suffix `-dirty` if the
//! sources differ from it; no commit if the sources are not in our repository.

use std::process::Command;

/// Path of this package in our repository. In any other repository, the commits are not ours.
const PREFIX: &str = "instruments/cli/";

fn main() {
    println!("cargo:rerun-if-env-changed=LINERATE_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").ok().and_then(|rustc| output(&rustc, &["--version"]));
    if let Some(rustc) = rustc {
        println!("cargo:rustc-env=LINERATE_RUSTC={}", rustc.trim_start_matches("rustc "));
    }
    if std::env::var_os("LINERATE_COMMIT").is_some() {
        // rustc passes the variable on by itself: it has the same environment.
        return;
    }
    if git(&["rev-parse", "--show-prefix"]).as_deref() != Some(PREFIX) {
        return;
    }
    // git appends a line to this file for each commit. The folder `..` stands for every file in it.
    for path in git(&["rev-parse", "--git-path", "logs/HEAD"]).as_deref().into_iter().chain([".."])
    {
        println!("cargo:rerun-if-changed={path}");
    }
    if let Some(commit) = git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]) {
        println!("cargo:rustc-env=LINERATE_COMMIT={commit}");
    }
}

fn git(args: &[&str]) -> Option<String> {
    output("git", args)
}

/// Returns the output of a program; `None` if it is missing, fails or prints nothing.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
