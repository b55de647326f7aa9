//! Campaign `churn`: a thousand million packets through two cores, or as many as one asks for, and
//! the ledger exact at the end. crates/skb/tests/churn.rs says what is done with them.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::Done;

/// Packets allocated and freed unless `--count` says otherwise.
const COUNT: u64 = 1_000_000_000;
/// A slow machine makes a million a second.
const LIMIT: &str = "2h";
/// First part of the line with the result.
const RESULT: &str = "churn: ";

/// Runs the churn and prints its result on stdout; its progress goes to stderr.
pub fn run(root: &Path, args: &[String]) -> Result<Done> {
    let count = count(args)?;
    let mut command = cargo::cargo_within(root, LIMIT);
    command.args(["test", "--package", "linerate-skb", "--release", "--test", "churn"]);
    command.args(["--", "--nocapture"]).env("CHURN_COUNT", count.to_string());
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("the churn failed: {}\n{text}", output.status);
    }
    println!("{}", result(&text).context("the churn printed no result")?);
    Ok(Done::default())
}

/// The number behind `--count`, which may be written as `1e9`.
fn count(args: &[String]) -> Result<u64> {
    let text = match args {
        [] => return Ok(COUNT),
        [option, text] if option == "--count" => text,
        _ => bail!("usage: cargo xtask churn [--count 1e9]"),
    };
    let number: f64 = text.parse().with_context(|| format!("--count {text}"))?;
    if !(1.0..=1e15).contains(&number) {
        bail!("--count {text}: 1 to 1e15 packets can be asked for");
    }
    Ok(number as u64)
}

/// The result among what the harness says, which may stand on the same line before it.
fn result(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.find(RESULT).map(|at| &line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(args: &[&str]) -> Option<u64> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        count(&args).ok()
    }

    #[test]
    fn a_count_is_a_number_of_packets() {
        assert_eq!(counted(&[]), Some(COUNT));
        assert_eq!(counted(&["--count", "1e9"]), Some(COUNT));
        assert_eq!(counted(&["--count", "5000"]), Some(5000));
        for wrong in [&["--count"][..], &["--count", "0"], &["--count", "NaN"], &["5000"]] {
            assert_eq!(counted(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_result_is_found_behind_what_the_harness_says() {
        assert_eq!(result("running 1 test\ntest a ... churn: 7 freed\nok"), Some("churn: 7 freed"));
        assert_eq!(result("running 1 test"), None);
    }
}
