//! Static programs: building, inspection and trial.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Outcome, Place, is_here};
use crate::cargo;

pub const NATIVE: &str = "x86_64-unknown-linux-musl";
const FOREIGN: &str = "aarch64-unknown-linux-musl";
const QEMU: &str = "qemu-aarch64";
pub const PROGRAMS: [&str; 2] = ["linerate", "linerate-lab"];

/// Time limit of the trial of a program, in the syntax of timeout(1).
const LIMIT: &str = "10m";
/// Number of packets that pass through a program for aarch64.
const PACKETS: u64 = 10_000;

/// Builds the programs for x86-64, and runs the first command that a new user would run.
pub fn native(place: &Place) -> Result<Outcome> {
    if let Some(skipped) = absent(NATIVE) {
        return Ok(skipped);
    }
    let note = build(place, NATIVE)?;
    let mut first = cargo::within(place.built(NATIVE).join("linerate"), LIMIT);
    let said = cargo::quiet(first.arg("forward").env_clear())?;
    let verdict = said.lines().find(|line| line.starts_with("PASS: "));
    let verdict =
        verdict.context("`linerate forward` printed no line `PASS: ...`: it verified no packet")?;
    Ok(Outcome::Done(format!("{note}; `linerate forward`: {verdict}")))
}

/// Builds the programs for aarch64, and runs packets through them in QEMU's user mode.
pub fn foreign(place: &Place) -> Result<Outcome> {
    if let Some(skipped) = absent(FOREIGN) {
        return Ok(skipped);
    }
    let note = build(place, FOREIGN)?;
    if !is_here(QEMU) {
        return Ok(Outcome::Done(format!(
            "{note}; not tried: there is no {QEMU} (apt-get install qemu-user)"
        )));
    }
    let mut first = cargo::within(QEMU, LIMIT);
    first.arg(place.built(FOREIGN).join("linerate"));
    first.args(["forward", &format!("gen:,count={PACKETS}"), "sink:", "--json"]);
    let verified = verified(&cargo::quiet(&mut first)?)?;
    if verified != PACKETS {
        bail!("{verified} of {PACKETS} packets passed the aarch64 program in {QEMU}");
    }
    Ok(Outcome::Done(format!("{note}; {PACKETS} packets passed in {QEMU}")))
}

/// Returns the number of packets that a run's sink received unchanged, by the run's document.
fn verified(document: &str) -> Result<u64> {
    let document: Value =
        serde_json::from_str(document).context("`linerate forward --json` printed no JSON")?;
    // Packets that changed are counted apart, as `corrupted`.
    document["verify"]["packets"].as_u64().context("the run verified no packet")
}

/// Builds unit tests that need no privilege for aarch64, and runs them in QEMU's user mode.
pub fn tests(place: &Place) -> Result<Outcome> {
    if !is_here(QEMU) {
        return Ok(Outcome::Skipped(
            "there is no qemu-aarch64",
            "apt-get install qemu-user".into(),
        ));
    }
    if let Some(skipped) = absent(FOREIGN) {
        return Ok(skipped);
    }
    let mut command = cargo::cargo(&place.root);
    command.args(["test", "--locked", "--lib", "--target", FOREIGN]);
    command.args(["wire", "ring", "skb"].map(|name| format!("--package=linerate-{name}")));
    command.env(variable("RUNNER", FOREIGN), QEMU);
    command.envs(linking(FOREIGN));
    let said = cargo::quiet(&mut command)?;
    let passed: usize = said.lines().filter_map(crate::steps::passed).sum();
    if passed == 0 {
        bail!("no test ran");
    }
    Ok(Outcome::Done(format!("{passed} tests passed")))
}

/// Returns the reason why a target is unavailable, after trying to install it.
pub fn absent(target: &str) -> Option<Outcome> {
    let mut rustup = Command::new("rustup");
    let added =
        rustup.args(["target", "add", target]).output().is_ok_and(|out| out.status.success());
    let fix = || format!("rustup target add {target}");
    (!added).then(|| Outcome::Skipped("rustup cannot fetch the target's library", fix()))
}

/// Returns cargo's variable of a target: `CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER`.
fn variable(name: &str, target: &str) -> String {
    format!("CARGO_TARGET_{}_{name}", target.replace('-', "_").to_uppercase())
}

/// Returns the variable and value that select Rust's own linker for another architecture, which
/// needs no C tools of that architecture.
fn linking(target: &str) -> Option<(String, &'static str)> {
    let name = variable("LINKER", target);
    (target == FOREIGN && std::env::var_os(&name).is_none()).then_some((name, "rust-lld"))
}

/// Builds the programs, refuses those that need a loader, and copies them to the distribution.
fn build(place: &Place, target: &str) -> Result<String> {
    let mut command = cargo::cargo(&place.root);
    command.args(["build", "--locked", "--release", "--target", target]);
    command.args(["--package", "linerate-cli", "--package", "linerate-lab-cli"]);
    // Keep the functions' names, for profiles, but not the paths of the build machine.
    command.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME")).unwrap_or_default();
    let remap = [(place.root.display().to_string(), "linerate"), (home, "cargo")];
    let remap = remap.map(|(from, to)| format!("--remap-path-prefix={from}={to}")).join(" ");
    command.env(variable("RUSTFLAGS", target), remap);
    command.envs(linking(target));
    cargo::quiet(&mut command)?;
    let mut sizes = Vec::new();
    for program in PROGRAMS {
        let built = place.built(target).join(program);
        if wants_loader(&fs::read(&built)?) != Some(false) {
            bail!("{} is not static", built.display());
        }
        let name = format!("{program}-{}-{target}", place.version);
        sizes.push(format!("{program} {} KiB", fs::copy(&built, place.out.join(name))? / 1024));
    }
    Ok(sizes.join(", "))
}

/// Returns true if a 64-bit ELF file names a loader (PT_INTERP); `None` if it is not such a file.
fn wants_loader(elf: &[u8]) -> Option<bool> {
    const PT_INTERP: [u8; 4] = 3u32.to_le_bytes();
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, bytes: usize| {
        let bytes = elf.get(at..at + bytes)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (start, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut types = (0..count).filter_map(|i| elf.get(start + i * size..start + i * size + 4));
    Some(types.any(|kind| kind == PT_INTERP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_told_from_a_static_one() {
        // Tests are linked with the C library that this machine has.
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(wants_loader(&own), Some(cfg!(target_env = "gnu")));
        assert_eq!(wants_loader(b"#!/bin/sh"), None);
        assert_eq!(wants_loader(&own[..60]), Some(false), "cut short: no panic");
    }

    #[test]
    fn packets_that_arrived_unchanged_are_counted() {
        let document = "{ \"verify\": { \"packets\": 10, \"corrupted\": 1 } }";
        assert_eq!(verified(document).unwrap(), 10);
        assert!(verified("{ \"verify\": null }").is_err() && verified("").is_err());
    }

    #[test]
    fn names_of_variables_are_cargos() {
        assert_eq!(variable("LINKER", NATIVE), "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER");
    }
}
