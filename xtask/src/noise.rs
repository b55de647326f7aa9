//! Campaign `noise`: the same code against itself, again and again, with busy neighbours. What the
//! lab takes for a difference there, it would take for one anywhere.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;
use crate::steps::Done;

const RUNS: usize = 20;
const BURNERS: usize = 3;
/// A run takes half a minute, and the machine is busy.
const LIMIT: &str = "2h";
/// Largest expected change of a cost between two equal sides, in per cent.
const WITHIN_PCT: f64 = 1.0;

/// Threads that take the CPUs from everybody else, until dropped.
struct Burners {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Burners {
    fn start(n: usize) -> Burners {
        let stop = Arc::new(AtomicBool::new(false));
        let burn = |stop: Arc<AtomicBool>| move || while !stop.load(Ordering::Relaxed) {};
        let threads = (0..n).map(|_| std::thread::spawn(burn(stop.clone()))).collect();
        Burners { stop, threads }
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Runs `lab run noise --quick` so many times beside burners, and prints what each path said.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    let (runs, burners) = asked(args)?;
    let status = cargo::cargo_within(root, LIMIT)
        .args(["build", "--quiet", "--release", "--package", "linerate-cli"])
        .status()?;
    if !status.success() {
        bail!("the program does not build");
    }
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let program = target.join("release/linerate");
    let beside = Burners::start(burners);
    let mut said = Vec::new();
    for n in 1..=runs {
        let document = once(root, &program, n)?;
        said.extend(changes(&document));
        eprintln!("noise: run {n} of {runs}");
    }
    drop(beside);
    println!("{}", table(&said, runs, burners));
    Ok(Done::default())
}

fn once(root: &Path, program: &Path, n: usize) -> Result<Value> {
    let kept = root.join("target/noise");
    let mut command = Command::new(program);
    command.args(["lab", "run", "noise", "--quick", "--json", "--quiet", "--seed"]);
    command.arg(n.to_string()).arg("--dir").arg(&kept);
    let output = command.stdin(Stdio::null()).output().context("cannot start the program")?;
    // 4: rates were inconclusive, which is what neighbours do; costs are there all the same.
    if !matches!(output.status.code(), Some(0 | 4)) {
        bail!("a run failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout));
    }
    serde_json::from_slice(&output.stdout).context("a run's document")
}

/// Path, clock, change in per cent and half of its interval's width, for each effect; both that of
/// the sides and that of the control, which are the same code.
fn changes(document: &Value) -> Vec<(String, String, f64)> {
    let mut changes = Vec::new();
    for cell in document["cells"].as_array().into_iter().flatten() {
        let path = cell["at"]["path"].as_str().unwrap_or("?");
        for (metric, effect) in cell["metrics"].as_object().into_iter().flatten() {
            let aa = &effect["aa_pct"][0];
            for change in [&effect["change_pct"], aa].into_iter().filter_map(Value::as_f64) {
                changes.push((path.to_owned(), metric.clone(), change));
            }
        }
    }
    changes
}

fn table(said: &[(String, String, f64)], runs: usize, burners: usize) -> String {
    let mut text =
        format!("noise: {runs} runs beside {burners} burners, the same code on both sides\n");
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (path, metric, _) in said {
        if seen.contains(&(path, metric)) {
            continue;
        }
        seen.push((path, metric));
        let mut of: Vec<f64> =
            said.iter().filter(|s| s.0 == *path && s.1 == *metric).map(|s| s.2.abs()).collect();
        of.sort_by(f64::total_cmp);
        let within = of.iter().filter(|change| **change <= WITHIN_PCT).count();
        let worst = of.last().copied().unwrap_or(0.0);
        let median = of.get(of.len() / 2).copied().unwrap_or(0.0);
        text += &format!(
            "  {path:6} {metric:20} within {WITHIN_PCT} %: {within} of {}  median {median:.2} %  worst {worst:.2} %\n",
            of.len()
        );
    }
    text
}

fn asked(args: &[String]) -> Result<(usize, usize)> {
    let mut asked = (RUNS, BURNERS);
    for pair in args.chunks(2) {
        let [option, n] = pair else { bail!("usage: cargo xtask noise [--runs 20] [--burners 3]") };
        let n = n.parse().with_context(|| format!("{option} {n}"))?;
        match option.as_str() {
            "--runs" => asked.0 = n,
            "--burners" => asked.1 = n,
            _ => bail!("usage: cargo xtask noise [--runs 20] [--burners 3]"),
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_effect_and_its_control_is_counted() {
        let document = serde_json::json!({ "cells": [{
            "at": { "path": "null" },
            "metrics": { "cost": { "change_pct": 0.4, "aa_pct": [-1.5, -2.0, 1.0] } }
        }] });
        let said = changes(&document);
        assert_eq!(said.iter().map(|s| s.2).collect::<Vec<_>>(), [0.4, -1.5]);
        assert!(table(&said, 1, 3).contains("within 1 %: 1 of 2  median 1.50 %  worst 1.50 %"));
    }

    #[test]
    fn runs_and_burners_can_be_asked_for() {
        let asked_for = |args: &[&str]| {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            asked(&args).ok()
        };
        assert_eq!(asked_for(&[]), Some((20, 3)));
        assert_eq!(asked_for(&["--burners", "0", "--runs", "5"]), Some((5, 0)));
        assert_eq!(asked_for(&["--runs"]), None);
        assert_eq!(asked_for(&["--fast", "1"]), None);
    }
}
