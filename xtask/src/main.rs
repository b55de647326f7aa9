//! `cargo xtask`: all checks that a change must pass.
//!
//! `cargo xtask check` runs every step of [`steps::STEPS`]; CI runs the same command and nothing
//! else. Each step can be called alone by its name, and so can the campaigns, which are no part of
//! the check. Progress goes to stderr, so that stdout holds what the tests themselves print.

#![forbid(unsafe_code)]

mod api;
mod cargo;
mod commits;
mod dist;
mod instructions;
mod lines;
mod lint;
mod machines;
mod msrv;
mod nocc;
mod qemu;
mod ratchet;
mod results;
mod sanitize;
mod shipped;
mod skipped;
mod steps;
mod suite;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(surplus) = surplus(&args) {
        eprintln!("xtask: {} takes no arguments: {surplus}\n\n{}", args[0], steps::help());
        return ExitCode::from(2);
    }
    let passed = match args.first().map(String::as_str) {
        None | Some("help" | "-h" | "--help") => {
            print!("{}", steps::help());
            Ok(true)
        }
        Some("check") => root().and_then(|root| steps::run(&root, &steps::all())),
        Some(name) => match (steps::named(name), steps::campaign(name)) {
            (Some(step), _) => root().and_then(|root| steps::run(&root, &[step])),
            (_, Some(campaign)) => {
                root().and_then(|root| steps::run_campaign(&root, campaign, &args[1..]))
            }
            (None, None) => {
                eprintln!("xtask: no step is called {name}\n\n{}", steps::help());
                return ExitCode::from(2);
            }
        },
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the first argument after the name of a step, or after `check`: a step takes none.
fn surplus(args: &[String]) -> Option<&str> {
    let (name, more) = args.split_first()?;
    let is_step = name == "check" || steps::named(name).is_some();
    more.first().map(String::as_str).filter(|_| is_step)
}

/// Returns the workspace's folder: the nearest parent folder with our ratchet.
fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    here.ancestors()
        .find(|folder| folder.join(ratchet::PATH).is_file())
        .map(PathBuf::from)
        .with_context(|| format!("{} is not inside the linerate tree", here.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_takes_no_arguments_and_a_campaign_does() {
        let surplus = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            surplus(&words).map(str::to_owned)
        };
        assert_eq!(surplus("test --lib").as_deref(), Some("--lib"));
        assert_eq!(surplus("check now").as_deref(), Some("now"));
        for allowed in ["", "test", "qemu --keep", "--help"] {
            assert_eq!(surplus(allowed), None, "{allowed}");
        }
    }
}
