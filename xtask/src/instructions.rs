//! Step `count`: instructions for each packet, a cost that does not depend on other load of the
//! machine.
//!
//! Valgrind's callgrind counts them in two runs of different length; the difference belongs to the
//! packets. Time is never gated: it depends on other load of the machine.

use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

use crate::ratchet::{self, Ratchet};
use crate::{cargo, skipped};

/// A package, its bench, the numbers of turns of its two runs, and each case with its packets in
/// one turn.
type Bench = (&'static str, &'static str, [u64; 2], &'static [(&'static str, u64)]);
const BENCHES: [Bench; 4] = [
    (
        "linerate-datapath",
        "forward",
        [1000, 3000],
        &[
            ("null", 128),
            ("alone", 2),
            ("alone_cap_1", 2),
            ("null_cap_1", 128),
            ("null_cap_16", 128),
            ("gen", 64),
            ("fabric", 64),
            ("fabric_copy", 64),
        ],
    ),
    (
        "linerate-datapath",
        "xmit_entries",
        [200, 600],
        &[
            ("entry_one", 64),
            ("entry_list", 64),
            ("entry_static", 64),
            ("entry_merged", 64),
            ("entry_merged_one", 64),
            ("entry_always", 64),
        ],
    ),
    (
        "linerate-datapath",
        "qdisc",
        [200, 1200],
        &[
            ("qdisc_fifo", 64),
            ("qdisc_pfifo_fast", 64),
            ("qdisc_tbf", 64),
            ("qdisc_fq_codel", 64),
            ("qdisc_flow_tbf", 64),
            ("qdisc_flow_tbf_evict", 64),
        ],
    ),
    (
        "linerate-port",
        "xmit",
        [200, 600],
        &[
            ("xdp_plain", 64),
            ("xdp_partial", 64),
            ("xdp_super", 64),
            ("packet_partial", 64),
            ("packet_super", 64),
            ("packet_finish", 64),
            ("tap_partial", 64),
            ("tap_super", 64),
            ("memif_partial", 64),
            ("memif_super", 64),
        ],
    ),
];
/// Largest ratio of the instructions for passing 1514 bytes without a copy to the instructions with
/// a copy.
const CUT_THROUGH_MAX: f64 = 0.7;

/// The function of each bench that runs the turns. Only this function is counted, so the time until
/// two ends of a memif connect is left out.
const COUNTED: &str = "--toggle-collect=*::counted*";

/// Time limit of one run under valgrind, in the syntax of timeout(1).
const LIMIT: &str = "10m";

/// Ratio of a count to its limit below which the limit should be lowered, and the ratio of a new
/// limit to the count.
const LOOSE: f64 = 0.9;
const MARGIN: f64 = 1.02;

/// Difference of two counts for each packet within which they are equal. The first turns of a run
/// cause such differences.
const SAME: f64 = 0.1;

/// Largest difference between the forms of the transmit entry, for each packet.
const FORM: f64 = 1.0;
/// Largest cost of a call that the engine has beside a bare device's: counts, and the check of
/// offloads.
const CALL: f64 = 145.0;

/// Counts all cases and compares them with the ratchet; returns the counts and the skipped cases.
pub fn run(root: &Path) -> Result<(String, Vec<String>)> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Ok((String::new(), vec!["skipped: no valgrind to count instructions with".into()]));
    }
    let ratchet = Ratchet::read(root)?;
    let (mut counted, mut skipped) = (Vec::new(), Vec::new());
    for (package, bench, [few, many], cases) in BENCHES {
        let program = build(root, package, bench)?;
        for &(case, packets_per_turn) in cases {
            let (less, more) = match both(&program, case, [few, many])? {
                Ok(counts) => counts,
                Err(why) => {
                    skipped.push(why);
                    continue;
                }
            };
            let packets = (many - few) * packets_per_turn;
            let per_packet = per_packet(less, more, packets).with_context(|| {
                format!(
                    "{case}: more turns took no more instructions: {bench} has no function `counted`"
                )
            })?;
            if let Some(note) = loose(case, per_packet, ratchet.instructions(case)) {
                eprintln!("{note}");
            }
            counted.push((case, per_packet));
        }
    }
    Ok((judge(&counted, |case| ratchet.instructions(case))?, skipped))
}

/// Returns the instructions for each of the `packets` by which two runs differ; `None` if the
/// longer run took no more.
fn per_packet(less: u64, more: u64, packets: u64) -> Option<f64> {
    (more > less).then(|| (more - less) as f64 / packets as f64)
}

/// Compares the counts of the cases with what is `allowed` and with each other; returns them as a
/// note.
fn judge(counted: &[(&str, f64)], allowed: impl Fn(&str) -> f64) -> Result<String> {
    let over = counted.iter().filter(|(case, n)| *n > allowed(case));
    let over = over.map(|(case, n)| {
        format!("{case}: {n:.1} instructions a packet, {} allowed", allowed(case))
    });
    let over: Vec<String> = over.collect();
    if !over.is_empty() {
        bail!("{}", over.join("\n"));
    }
    let mut notes: Vec<_> = counted.iter().map(|(case, n)| format!("{case} {n:.1}")).collect();
    let of = |name: &str| counted.iter().find(|(case, _)| *case == name).map(|(_, n)| *n);
    // A cap of one must use the path for a single packet, without any more instructions than
    // without a cap.
    if let Some((bare, capped)) = of("alone").zip(of("alone_cap_1"))
        && capped > bare + SAME
    {
        bail!("alone_cap_1: {capped:.2} instructions, and {bare:.2} without a cap");
    }
    judge_entries(of)?;
    if let Some((cut, copied)) = of("fabric").zip(of("fabric_copy")) {
        let share = cut / copied;
        if share > CUT_THROUGH_MAX {
            bail!("fabric: {share:.2} of what copying takes, {CUT_THROUGH_MAX} allowed");
        }
        notes.push(format!("fabric {share:.2} of its copy"));
    }
    Ok(format!("{} instructions a packet", notes.join(", ")))
}

/// Compares the forms of the transmit entry with each other, and what a cap of one costs the engine
/// with what as many calls cost a bare device.
fn judge_entries(of: impl Fn(&str) -> Option<f64>) -> Result<()> {
    let Some(list) = of("entry_list") else { return Ok(()) };
    for form in ["entry_static", "entry_merged"] {
        if let Some(n) = of(form).filter(|n| (n - list).abs() > FORM) {
            bail!(
                "{form}: {n:.2} instructions, and {list:.2} for a list: docs/adr/0015 chose by less than {FORM}"
            );
        }
    }
    if let Some((always, one)) = of("entry_always").zip(of("entry_one"))
        && always <= one
    {
        bail!(
            "entry_always: {always:.1} instructions, and {one:.1} for single packets: docs/adr/0015 chose against it \
             because it costs more"
        );
    }
    let [one, none, capped] = ["entry_one", "null", "null_cap_1"].map(of);
    if let (Some(one), Some(none), Some(capped)) = (one, none, capped)
        && capped - none > one - list + CALL
    {
        let (by_cap, by_calls) = (capped - none, one - list);
        bail!(
            "null_cap_1: {by_cap:.1} instructions for the cap, and {by_calls:.1} for the calls of a bare device"
        );
    }
    Ok(())
}

/// Returns a note that asks for a lower limit, if the count is far below the limit.
fn loose(case: &str, per_packet: f64, allowed: f64) -> Option<String> {
    let (is_loose, limit) = (per_packet < LOOSE * allowed, (per_packet * MARGIN).ceil());
    is_loose.then(|| {
        format!(
            "{case}: {per_packet:.1} instructions a packet, {allowed} allowed: lower the limit to \
             {limit} in {}",
            ratchet::PATH
        )
    })
}

/// Builds the bench; returns its path.
fn build(root: &Path, package: &str, bench: &str) -> Result<String> {
    let mut command = cargo::cargo(root);
    command.args(["bench", "--locked", "-p", package, "--bench", bench, "--no-run"]);
    let output = command.output().context("cargo bench")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().rev().find(|line| line.contains("Executable"));
    let path = line.and_then(|l| l.rsplit_once('(')).map(|(_, p)| p.trim_end_matches(')'));
    let path = path.with_context(|| format!("cargo named no executable:\n{text}"))?;
    Ok(root.join(path).display().to_string())
}

/// Counts the instructions of a case's two runs at the same time, because neither changes the
/// other's count. The inner error is that of [`count`].
fn both(bench: &str, case: &str, [few, many]: [u64; 2]) -> Result<Result<(u64, u64), String>> {
    let (less, more) = thread::scope(|scope| {
        let less = scope.spawn(|| count(bench, case, few));
        let more = count(bench, case, many);
        (less.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), more)
    });
    Ok(match (less?, more?) {
        (Ok(less), Ok(more)) => Ok((less, more)),
        (Err(why), _) | (_, Err(why)) => Err(why),
    })
}

/// Counts the instructions of one run's turns; the inner error is the line in which a run that
/// skipped itself gives the reason.
fn count(bench: &str, case: &str, turns: u64) -> Result<Result<u64, String>> {
    let output = cargo::within("valgrind", LIMIT)
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", COUNTED])
        .args([bench, "--once", case])
        .arg(turns.to_string())
        .output()
        .context("valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("the bench failed under valgrind:\n{text}");
    }
    if let Some(line) = text.lines().find(|line| skipped::says_so(line)) {
        return Ok(Err(line.to_owned()));
    }
    refs(&text).map(Ok).with_context(|| format!("valgrind counted nothing:\n{text}"))
}

/// Returns the number after `refs:`.
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

    #[test]
    fn a_count_above_its_limit_and_a_saving_that_is_gone_fail_the_step() {
        assert_eq!((per_packet(100, 300, 50), per_packet(100, 100, 50)), (Some(4.0), None));
        let judge = |counted: &[(&str, f64)]| judge(counted, |_| 56.0);
        let good = [("alone", 40.0), ("alone_cap_1", 40.1), ("fabric", 7.0), ("fabric_copy", 10.0)];
        let note = "alone 40.0, alone_cap_1 40.1, fabric 7.0, fabric_copy 10.0, fabric 0.70 of its copy \
                    instructions a packet";
        assert_eq!(judge(&good).unwrap(), note);
        for (case, n, why) in [
            ("alone", 56.1, "alone: 56.1 instructions a packet, 56 allowed"),
            ("alone_cap_1", 40.2, "alone_cap_1: 40.20 instructions, and 40.00 without a cap"),
            ("fabric", 7.1, "fabric: 0.71 of what copying takes, 0.7 allowed"),
        ] {
            let bad = good.map(|known| if known.0 == case { (case, n) } else { known });
            assert_eq!(judge(&bad).unwrap_err().to_string(), why);
        }
        let judge = |counted: &[(&str, f64)]| super::judge(counted, |_| 200.0);
        let entries = [
            ("entry_one", 34.0),
            ("entry_list", 2.0),
            ("entry_static", 2.5),
            ("entry_merged", 3.0),
            ("entry_always", 38.0),
            ("null", 5.0),
            ("null_cap_1", 180.0),
        ];
        assert!(judge(&entries).is_ok());
        for (case, n, why) in [
            ("entry_static", 3.1, "entry_static: 3.10 instructions, and 2.00 for a list"),
            ("entry_merged", 0.9, "entry_merged: 0.90 instructions"),
            ("entry_always", 34.0, "entry_always: 34.0 instructions, and 34.0 for single packets"),
            ("null_cap_1", 190.0, "for the cap, and 32.0 for the calls"),
        ] {
            let bad = entries.map(|known| if known.0 == case { (case, n) } else { known });
            let told = judge(&bad).unwrap_err().to_string();
            assert!(told.contains(why) || told.starts_with(why), "{told}");
        }
    }

    #[test]
    fn limit_far_above_the_count_is_to_be_lowered() {
        assert_eq!(loose("null", 51.0, 56.0), None);
        let note = loose("null", 40.0, 56.0).unwrap();
        assert!(note.contains(" 40.0 ") && note.contains("lower the limit to 41 in"), "{note}");
    }
}
