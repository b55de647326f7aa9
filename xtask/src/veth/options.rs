//! The options of the command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Usage of the campaign.
pub const USAGE: &str = "\
usage: cargo xtask veth [--only NAME] [--rounds 7] [--seconds 2] [--program PATH]

  --only NAME       one comparison: xdp, packet, tap, ovs or load
  --rounds N        rounds of each, the sides in turn
  --seconds S       what a round measures of each side
  --program PATH    the linerate to measure, instead of target/release/linerate
";

/// Names of the comparisons.
pub const NAMES: [&str; 5] = ["xdp", "packet", "tap", "ovs", "load"];

/// The command line, read.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// Rounds of each comparison.
    pub rounds: usize,
    /// Duration of one measurement of each side.
    pub window: Duration,
    /// The `linerate` to measure.
    pub program: PathBuf,
    only: Option<String>,
}

impl Asked {
    /// Reads `args`; `program` is measured unless they name another.
    pub fn read(args: &[String], program: PathBuf) -> Result<Asked> {
        let mut asked = Asked { rounds: 7, window: Duration::from_secs(2), program, only: None };
        for pair in args.chunks(2) {
            let [option, value] = pair else { bail!("{USAGE}") };
            let wrong = || format!("{option} {value}");
            match option.as_str() {
                "--only" if NAMES.contains(&value.as_str()) => asked.only = Some(value.clone()),
                "--only" => bail!("--only {value}: there is {}", NAMES.join(", ")),
                "--rounds" => asked.rounds = value.parse().with_context(wrong)?,
                "--seconds" => {
                    let seconds: f64 = value.parse().with_context(wrong)?;
                    asked.window = Duration::try_from_secs_f64(seconds).with_context(wrong)?;
                }
                "--program" => asked.program = value.into(),
                _ => bail!("{USAGE}"),
            }
        }
        if !(1..=1000).contains(&asked.rounds) {
            bail!("--rounds {}: 1 to 1000 can be asked for", asked.rounds);
        }
        // A tick of the theft is 10 ms, and a schedstat is as old as the last tick.
        if !(0.2..=3600.0).contains(&asked.window.as_secs_f64()) {
            bail!("--seconds: 0.2 to 3600 can be asked for");
        }
        Ok(asked)
    }

    /// Returns true if the comparison of that name is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str]) -> Result<Asked> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Asked::read(&args, "linerate".into())
    }

    #[test]
    fn everything_is_compared_unless_one_is_named() {
        let all = asked(&[]).unwrap();
        assert!(NAMES.iter().all(|name| all.wants(name)));
        let one = asked(&["--only", "tap", "--rounds", "3", "--seconds", "0.5"]).unwrap();
        assert_eq!((one.rounds, one.window), (3, Duration::from_millis(500)));
        assert_eq!(NAMES.map(|name| one.wants(name)), [false, false, true, false, false]);
        assert_eq!(asked(&["--program", "x"]).unwrap().program, PathBuf::from("x"));
    }

    #[test]
    fn what_cannot_be_measured_cannot_be_asked_for() {
        for wrong in [
            &["--only"][..],
            &["--only", "all"],
            &["--rounds", "0"],
            &["--seconds", "-1"],
            &["--seconds", "NaN"],
            &["--seconds", "0.01"],
            &["--fast", "1"],
        ] {
            assert!(asked(wrong).is_err(), "{wrong:?}");
        }
    }
}
