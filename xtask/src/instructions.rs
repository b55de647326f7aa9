//! Step `count`: instructions a packet, the one cost that is the same on a busy machine.
//!
//! Valgrind's callgrind counts them in two runs of different length; the difference belongs to the
//! packets. Time is never gated: it says more about the neighbours than about the change.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::ratchet::Ratchet;

/// Packets in one turn of each case, and what the ratchet calls it.
const CASES: [(&str, u64); 4] = [("null", 128), ("gen", 64), ("fabric", 64), ("fabric_copy", 64)];
const TURNS: [u64; 2] = [1000, 3000];
/// What packets of 1514 bytes may take that another process sees where they lie, of what copies take.
const CUT_THROUGH_MAX: f64 = 0.7;

/// Counts all cases and compares them with the ratchet.
pub fn run(root: &Path) -> Result<(String, Option<String>)> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Ok((String::new(), Some("skipped: no valgrind to count instructions with".into())));
    }
    let bench = build(root)?;
    let ratchet = Ratchet::read(root)?;
    let (mut notes, mut counted) = (Vec::new(), Vec::new());
    for (case, packets_per_turn) in CASES {
        let [few, many] = [count(&bench, case, TURNS[0])?, count(&bench, case, TURNS[1])?];
        let packets = (TURNS[1] - TURNS[0]) * packets_per_turn;
        let per_packet = many.saturating_sub(few) as f64 / packets as f64;
        let allowed = ratchet.instructions(case);
        if per_packet > allowed {
            bail!("{case}: {per_packet:.1} instructions a packet, {allowed} allowed");
        }
        notes.push(format!("{case} {per_packet:.1}"));
        counted.push((case, per_packet));
    }
    let of = |name| counted.iter().find(|(case, _)| *case == name).map(|(_, n)| *n);
    if let Some((cut, copied)) = of("fabric").zip(of("fabric_copy")) {
        let share = cut / copied;
        if share > CUT_THROUGH_MAX {
            bail!("fabric: {share:.2} of what copying takes, {CUT_THROUGH_MAX} allowed");
        }
        notes.push(format!("fabric {share:.2} of its copy"));
    }
    Ok((format!("{} instructions a packet", notes.join(", ")), None))
}

/// Builds the bench; its path.
fn build(root: &Path) -> Result<String> {
    let mut command = cargo::cargo(root);
    command.args(["bench", "-p", "linerate-datapath", "--bench", "forward", "--no-run"]);
    let output = command.output().context("cargo bench")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rev().find(|line| line.contains("Executable"));
    let path = line.and_then(|l| l.rsplit_once('(')).map(|(_, p)| p.trim_end_matches(')'));
    let path = path.with_context(|| format!("cargo named no executable:\n{text}"))?;
    Ok(root.join(path).display().to_string())
}

/// Instructions of one whole run.
fn count(bench: &str, case: &str, turns: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", bench, "--once", case])
        .arg(turns.to_string())
        .output()
        .context("valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("the bench failed under valgrind:\n{text}");
    }
    refs(&text).with_context(|| format!("valgrind counted nothing:\n{text}"))
}

/// The number behind `refs:`.
fn refs(text: &str) -> Option<u64> {
    let (_, number) = text.lines().find(|l| l.contains("refs:"))?.split_once("refs:")?;
    number.trim().replace(',', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_read() {
        assert_eq!(refs("==1== \n==1== I   refs:      12,348,879\n"), Some(12_348_879));
        assert_eq!(refs("==1== nothing"), None);
    }
}
