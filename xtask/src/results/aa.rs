//! `cargo xtask aa`: runs with two identical sides, and the number of runs that reported a
//! difference.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use serde_json::{Value, json};

use super::word;
use crate::cargo;
use crate::steps::Done;

pub(super) const SCHEMA: &str = "linerate-aa/1";
/// Default number of runs.
const RUNS: usize = 100;
/// The folder of the experiments.
const EXPERIMENTS: &str = "instruments/lab/experiments";
/// Two lines in the experiment `noise`: its quick plan, and a shorter plan that replaces it here,
/// so that a run takes some seconds on a quiet machine.
const PLANS: [&str; 2] = ["quick = { pairs = 320, ", "quick = { pairs = 40, "];
/// The experiments with identical sides, and their cells, which are run in turn.
const CELLS: [(&str, &str); 4] = [
    ("noise", "path=null"),
    ("noise-host", "port=xdp"),
    ("noise", "path=ring"),
    ("noise-host", "port=packet"),
];
/// Promised upper limit of the share of runs with a false verdict.
const PROMISED: f64 = 0.05;
/// Probability that the true share is above the reported bound.
const RISK: f64 = 0.05;
/// Number of set-ups from which a difference can be distinguished from chance: a quick run of each
/// experiment plans two cells and three metrics, which are six hypotheses.
const SET_UPS_NEEDED: u64 = 8;
/// The warning of a run that had too few set-ups to distinguish any difference from chance.
const TOO_FEW: &str = "W-FEW-PAIRS";

/// The arguments, as the usage shows them.
pub const ARGUMENTS: &str = "[--runs N] [--for SECONDS] [--out FILE] [--program LAB]";

/// Runs the experiments: `aa [--runs N] [--for SECONDS] [--out FILE] [--program LAB]`. Needs root,
/// because two of the cells use hosts. When the time of `--for` is over, it reports the runs until
/// then.
pub fn aa(root: &Path, args: &[String]) -> Result<Done> {
    let Asked { runs, limit, out, program } = Asked::read(args)?;
    let program = program.unwrap_or_else(|| cargo::target_dir(root).join("release/linerate-lab"));
    if !program.exists() {
        bail!(
            "there is no {}: cargo build --release -p linerate-cli -p linerate-lab-cli",
            program.display()
        );
    }
    let kept = cargo::target_dir(root).join("aa");
    shorten(root, &kept)?;
    let one = |i: usize| -> Result<Value> {
        let (name, cell) = CELLS[i % CELLS.len()];
        let mut command = Command::new(&program);
        command.args(["lab", "run"]).arg(kept.join(name).with_extension("toml"));
        command.args(["--quick", "--json", "--only", cell]);
        command.arg("--seed").arg(i.to_string()).arg("--dir").arg(&kept);
        let output =
            command.stderr(Stdio::inherit()).output().context("cannot start linerate-lab")?;
        // Status 4 means that rates were disturbed. The verdicts on costs are valid nevertheless.
        if !matches!(output.status.code(), Some(0 | 4)) {
            bail!("run {} ended with {}: {command:?}", i + 1, output.status);
        }
        serde_json::from_slice(&output.stdout).context("it printed no document")
    };
    let (told, failed) = all(runs, limit, one);
    ended(&told, failed, out.as_deref())
}

/// Runs `one` for each number up to `runs`, until the time is over or a run fails; returns the
/// summaries of the others, and the error.
fn all(
    runs: usize,
    limit: Option<Duration>,
    one: impl Fn(usize) -> Result<Value>,
) -> (Vec<Value>, Option<Error>) {
    let (begun, mut told) = (Instant::now(), Vec::new());
    while told.len() < runs && limit.is_none_or(|limit| begun.elapsed() < limit) {
        let (_, cell) = CELLS[told.len() % CELLS.len()];
        match one(told.len()) {
            Ok(run) => told.push(summary(&run)),
            Err(error) => return (told, Some(error)),
        }
        eprintln!("{} of {runs}, {cell}: {}", told.len(), in_short(&told));
    }
    (told, None)
}

/// Writes the document of the runs. Fails if there is none, if one failed, or if they do not show
/// what is promised.
fn ended(told: &[Value], failed: Option<Error>, out: Option<&Path>) -> Result<Done> {
    if told.is_empty() {
        return Err(failed.unwrap_or_else(|| anyhow!("no time for a single run")));
    }
    let (note, (wrong, able, bound)) = (in_short(told), counted(told));
    if let Some(out) = out {
        let document = json!({
            "schema": SCHEMA, "runs": told.len(), "able": able, "false": wrong, "at_most": bound,
            "by_metric": by_metric(told), "risk": RISK, "of": told,
        });
        fs::write(out, format!("{document}\n"))
            .with_context(|| format!("cannot write {}", out.display()))?;
    }
    if let Some(error) = failed {
        return Err(error.context(format!("a run failed ({note})")));
    }
    if bound > PROMISED {
        bail!("{note}; if few verdicts are false, more runs show it: --runs {}", 2 * told.len());
    }
    Ok(Done::from(note))
}

/// Writes the experiments into `kept`, with fewer pairs for `noise`.
fn shorten(root: &Path, kept: &Path) -> Result<()> {
    fs::create_dir_all(kept)?;
    for (name, _) in &CELLS[..2] {
        let file = Path::new(EXPERIMENTS).join(name).with_extension("toml");
        let text = fs::read_to_string(root.join(&file)).context(name.to_string())?;
        if *name == "noise" && !text.contains(PLANS[0]) {
            bail!("{} does not plan {:?}", file.display(), PLANS[0]);
        }
        fs::write(kept.join(name).with_extension("toml"), text.replace(PLANS[0], PLANS[1]))?;
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
struct Asked {
    runs: usize,
    limit: Option<Duration>,
    out: Option<PathBuf>,
    program: Option<PathBuf>,
}

impl Asked {
    fn read(args: &[String]) -> Result<Asked> {
        let mut asked = Asked { runs: RUNS, limit: None, out: None, program: None };
        let what = format!("cargo xtask aa {ARGUMENTS}");
        for pair in args.chunks(2) {
            let [name, value] = pair else { bail!("{what}: {} has no value", pair[0]) };
            match name.as_str() {
                "--runs" => {
                    asked.runs = value.parse().with_context(|| format!("{what}: {value}"))?
                }
                "--for" => {
                    let seconds = value.parse().with_context(|| format!("{what}: {value}"))?;
                    asked.limit = Some(Duration::from_secs(seconds));
                }
                "--out" => asked.out = Some(value.into()),
                "--program" => asked.program = Some(value.into()),
                other => bail!("{what}: there is no {other}"),
            }
        }
        Ok(asked)
    }
}

/// Returns a run's verdicts on each metric in each cell, with their data.
fn summary(run: &Value) -> Value {
    let mut said = BTreeMap::new();
    for cell in run["cells"].as_array().into_iter().flatten() {
        let at: Vec<&str> =
            cell["at"].as_object().into_iter().flatten().filter_map(|(_, v)| v.as_str()).collect();
        for (name, effect) in cell["metrics"].as_object().into_iter().flatten() {
            let told = json!([
                effect["verdict"],
                effect["change_pct"],
                effect["ci95_pct"],
                effect["n_pairs"],
                effect["n_set_ups"]
            ]);
            said.insert(format!("{}/{name}", at.join(" ")), told);
        }
    }
    let list = |key: &str| run[key].as_array().into_iter().flatten();
    let status: Vec<&str> = list("cells").map(|cell| word(cell, "/status")).collect();
    let too_few = list("warnings").any(|warning| warning["code"] == TOO_FEW);
    json!({
        "started": word(run, "/run/started"), "commit": word(run, "/run/tool/commit"), "seed": run["run"]["seed"],
        "cpu": word(run, "/env/cpu"), "noise": run["env"]["noise"], "said": said,
        "status": status, "too_few": too_few,
    })
}

/// Returns the number of runs with a verdict of better or worse in any metric, although the code is
/// identical; the number of runs that could give one; and the exact upper bound of the share.
fn counted(told: &[Value]) -> (usize, usize, f64) {
    let any = |run: &Value, is: fn(&Value) -> bool| {
        run["said"].as_object().is_some_and(|said| said.values().any(is))
    };
    let is_false = |run: &Value| any(run, |one| one[0] == "better" || one[0] == "worse");
    let could = |run: &Value| any(run, |_| true) && run["too_few"] != true && !is_disturbed(run);
    let wrong = told.iter().filter(|run| is_false(run)).count();
    let able = told.iter().filter(|run| could(run) || is_false(run)).count();
    (wrong, able, at_most(wrong, able))
}

fn is_disturbed(run: &Value) -> bool {
    run["status"].as_array().is_some_and(|all| all.iter().any(|one| one == "inconclusive"))
}

/// Returns for each metric the number of false verdicts, and the number of times that it could have
/// a verdict. Rates can have fewer than costs, because more pairs are disturbed for them.
fn by_metric(told: &[Value]) -> BTreeMap<&str, (usize, usize)> {
    let mut all: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for run in told {
        for (place, one) in run["said"].as_object().into_iter().flatten() {
            let metric = place.rsplit_once('/').map_or(place.as_str(), |(_, metric)| metric);
            let set_ups = one[4].as_u64().or(one[3].as_u64()).unwrap_or(0);
            let is_false = one[0] == "better" || one[0] == "worse";
            let could = set_ups >= SET_UPS_NEEDED && !is_disturbed(run);
            let (wrong, able) = all.entry(metric).or_default();
            *wrong += usize::from(is_false);
            *able += usize::from(is_false || could);
        }
    }
    all
}

fn in_short(told: &[Value]) -> String {
    let (wrong, able, bound) = counted(told);
    let sames = |run: &Value| {
        run["said"]
            .as_object()
            .map_or(0, |said| said.values().filter(|one| one[0] == "same").count())
    };
    let all: usize =
        told.iter().map(|run| run["said"].as_object().map_or(0, serde_json::Map::len)).sum();
    let same: usize = told.iter().map(sames).sum();
    let metrics: Vec<String> = by_metric(told)
        .iter()
        .map(|(metric, (wrong, able))| {
            format!("{metric} {wrong} of {able}, at most {:.1} %", 100.0 * at_most(*wrong, *able))
        })
        .collect();
    format!(
        "{wrong} of {able} runs called the same code better or worse; at most {:.1} % at 95 % ({}); {} other runs could give no verdict; by metric: {}; {same} of {all} verdicts were same",
        100.0 * bound,
        if bound <= PROMISED { "within 5 %" } else { "5 % is not shown" },
        told.len() - able,
        metrics.join("; "),
    )
}

/// Returns the upper end of the exact one-sided interval for a share, observed as `k` of `n`.
///
/// Source: Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 26 (1934).
fn at_most(k: usize, n: usize) -> f64 {
    if k >= n {
        return 1.0;
    }
    let (mut low, mut high) = (k as f64 / n as f64, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if or_fewer(k, n, middle) > RISK { low = middle } else { high = middle }
    }
    high
}

/// Returns the probability of at most `k` of `n`, each with probability `p`.
fn or_fewer(k: usize, n: usize, p: f64) -> f64 {
    let (mut log, mut sum) = (n as f64 * (-p).ln_1p(), 0.0);
    for i in 0..=k {
        sum += log.exp();
        log += (((n - i) as f64) / (i + 1) as f64).ln() + p.ln() - (-p).ln_1p();
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the bound against SciPy's values: `scipy.stats.beta.ppf(0.95, k + 1, n - k)`.
    #[test]
    fn the_bound_is_the_exact_one() {
        for (k, n, bound) in [
            (0, 100, 0.029_513),
            (1, 100, 0.046_560),
            (2, 100, 0.061_619),
            (5, 100, 0.102_253),
            (0, 20, 0.139_108),
        ] {
            assert!((at_most(k, n) - bound).abs() < 1e-5, "{k} of {n}: {}", at_most(k, n));
        }
        assert!((at_most(3, 3) - 1.0).abs() < 1e-9);
    }

    /// Returns the document of a run with these verdicts on CPU time and rate.
    fn run(verdicts: [&str; 2]) -> Value {
        let effect = |verdict: &str| json!({"verdict": verdict, "change_pct": 1.0, "ci95_pct": [0.5, 2.0], "n_pairs": 9, "n_set_ups": 9});
        let metrics = json!({"cpu": effect(verdicts[0]), "rate": effect(verdicts[1])});
        let cell = json!({"at": {"path": "null"}, "status": "ok", "metrics": metrics});
        json!({"run": {"seed": 7}, "cells": [cell], "warnings": []})
    }

    #[test]
    fn a_run_with_any_false_verdict_counts_once() {
        let all = [["better", "worse"], ["same", "unclear"], ["same", "same"]];
        let told = all.map(|verdicts| summary(&run(verdicts)));
        assert_eq!(counted(&told).0, 1);
        for verdicts in [["better", "same"], ["same", "worse"]] {
            assert_eq!(counted(&[summary(&run(verdicts))]).0, 1, "{verdicts:?}");
        }
        assert_eq!(told[0]["said"]["null/cpu"], json!(["better", 1.0, [0.5, 2.0], 9, 9]));
        let said = in_short(&told);
        assert!(said.starts_with("1 of 3 runs") && said.contains("5 % is not shown"), "{said}");
        assert!(said.ends_with("3 of 6 verdicts were same"), "{said}");
    }

    #[test]
    fn a_run_that_can_give_no_verdict_is_not_counted() {
        let whole = run(["same", "unclear"]);
        let with = |pointer: &str, value: Value| {
            let mut run = whole.clone();
            *run.pointer_mut(pointer).unwrap() = value;
            summary(&run)
        };
        let few = with("/warnings", json!([{"code": "W-FEW-PAIRS"}]));
        let disturbed = with("/cells/0/status", "inconclusive".into());
        let none = with("/cells/0/metrics", json!({}));
        let mut is_false = run(["better", "unclear"]);
        is_false["cells"][0]["status"] = "inconclusive".into();
        let told = [few, disturbed, none, summary(&whole), summary(&is_false)];
        let (wrong, able, bound) = counted(&told);
        assert_eq!((wrong, able, bound), (1, 2, at_most(1, 2)), "false verdicts always count");
        assert!(in_short(&told).contains("3 other runs could give no verdict"));
    }

    #[test]
    fn a_metric_with_too_few_pairs_is_not_counted_though_its_run_is() {
        let mut few = run(["same", "unclear"]);
        few["cells"][0]["metrics"]["rate"]["n_set_ups"] = 7.into();
        let told = [summary(&few), summary(&run(["same", "better"]))];
        assert_eq!(by_metric(&told), BTreeMap::from([("cpu", (0, 2)), ("rate", (1, 1))]));
        assert_eq!(counted(&told).1, 2);
        let said = in_short(&told);
        assert!(said.contains("by metric: cpu 0 of 2, at most 77.6 %; rate 1 of 1"), "{said}");
    }

    #[test]
    fn runs_before_a_failure_are_kept_and_an_unshown_promise_is_an_error() {
        let out = std::env::temp_dir().join(format!("linerate-aa-{}.json", std::process::id()));
        let is_third = |i: usize| match i {
            2 => bail!("broken"),
            _ => Ok(run(["same", "same"])),
        };
        let (told, failed) = all(5, None, is_third);
        let error = format!("{:#}", ended(&told, failed, Some(&out)).err().unwrap());
        assert!(error.contains("broken"), "{error}");
        let document: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        assert_eq!((&document["runs"], &document["able"]), (&json!(2), &json!(2)));
        fs::remove_file(&out).unwrap();
        let quiet = |_: usize| Ok(run(["same", "same"]));
        let (few, failed) = all(58, None, quiet);
        assert!(ended(&few, failed, None).err().unwrap().to_string().contains("not shown"));
        let (enough, failed) = all(59, None, quiet);
        assert!(ended(&enough, failed, None).is_ok());
    }

    #[test]
    fn its_arguments_are_read_and_others_are_refused() {
        let read = |text: &str| {
            Asked::read(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let all = Asked {
            runs: 3,
            limit: Some(Duration::from_secs(60)),
            out: Some("x.json".into()),
            program: Some("lab".into()),
        };
        assert_eq!(read("--runs 3 --for 60 --out x.json --program lab").unwrap(), all);
        assert_eq!(read("").unwrap().runs, RUNS);
        for wrong in ["--runs", "--runs many", "--size 3"] {
            assert!(
                read(wrong).unwrap_err().to_string().contains("cargo xtask aa [--runs N]"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_experiments_are_those_of_the_tree_with_fewer_pairs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let kept = std::env::temp_dir().join(format!("linerate-aa-{}", std::process::id()));
        shorten(&root, &kept).unwrap();
        let text = |name: &str| fs::read_to_string(kept.join(name)).unwrap();
        let noise = text("noise.toml");
        assert!(noise.contains("pairs = 40,") && !noise.contains("320"), "{noise}");
        assert!(text("noise-host.toml").contains("scenario = \"host\""));
        fs::remove_dir_all(&kept).unwrap();
    }
}
