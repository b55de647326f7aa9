//! Sentences that the reader of a profile needs to believe it, or not to.

use std::collections::HashMap;

use super::What;
use super::rings::Counted;
use super::summary::{Heard, Taken};
use super::symbols::Names;
use super::tally::Tally;
use crate::profile::OwnCost;

/// Remark of a profile in which the kernel's functions are missing though they were asked for.
pub const KERNEL_LEFT_OUT: &str = "the kernel's functions are left out: it does not let us sample \
     them (sysctl kernel.perf_event_paranoid=1, or run with CAP_PERFMON)";

/// Returns all that is to be said of what was taken.
pub(super) fn of(
    taken: &Taken<'_>,
    cost: Option<&OwnCost>,
    names: &Names,
    stacks_unnamed: u64,
) -> Vec<String> {
    let mut remarks = Vec::new();
    on_sampling(taken, &mut remarks);
    remarks.extend(cost.and_then(|cost| cost_remark(taken.what, cost)));
    on_names(taken, names, &mut remarks);
    on_chains(taken, stacks_unnamed, &mut remarks);
    remarks
}

fn on_sampling(taken: &Taken<'_>, remarks: &mut Vec<String>) {
    if taken.kernel_wanted && !taken.began.kernel {
        remarks.push(KERNEL_LEFT_OUT.to_owned());
    }
    if taken.began.late > 0 {
        remarks.push(format!(
            "{} threads started while the recorder attached to the process; their samples may \
             count twice",
            taken.began.late
        ));
    }
    let Heard { throttled, broken, .. } = taken.heard;
    if throttled > 0 {
        remarks.push(format!(
            "the kernel paused the sampling {throttled} times because samples came too fast; take \
             fewer, or see kernel.perf_event_max_sample_rate"
        ));
    }
    if broken > 0 {
        remarks.push(format!("{broken} records of the kernel made no sense and were left out"));
    }
    on_rate(taken, remarks);
    let Counted { cpu_ns, running_ns, .. } = taken.counted;
    // Switching it on and off costs a little; a hundredth less is sharing.
    if running_ns.saturating_add(cpu_ns / 100) < cpu_ns {
        let pct = 100.0 * running_ns as f64 / cpu_ns as f64;
        remarks.push(format!("the event had a counter for {pct:.1} % of the CPU time only"));
    }
}

fn on_rate(taken: &Taken<'_>, remarks: &mut Vec<String>) {
    let Some(hz) = taken.what.hz() else { return };
    let periods = taken.counted.cpu_ns as f64 * hz / 1e9;
    let seen = taken.heard.samples.saturating_add(taken.lost()) as f64;
    if periods < PERIODS_JUDGED || seen >= 0.9 * periods {
        return;
    }
    let period_us = 1e6 / hz;
    let pct = 100.0 * (1.0 - seen / periods);
    remarks.push(format!(
        "{pct:.0} % of the CPU time gave no sample, most likely that of threads which live no longer \
         than {period_us:.0} us: each begins a period of its own; sample more often"
    ));
}

/// Returns what is to be said of the cost of sampling, if it is more than a hundredth of the target's
/// CPU time: in a virtual machine, whose timers its host makes, a sample may take twenty times what it
/// takes on hardware.
#[must_use]
pub fn cost_remark(what: &What, cost: &OwnCost) -> Option<String> {
    let pct = cost.sampling_pct().filter(|pct| *pct > COST_PCT_TOLD)?;
    let sample_us = cost.sample_ns.unwrap_or(0.0) / 1000.0;
    let advice = match what {
        What::Time { hz } => {
            let fitting = (f64::from(*hz) * COST_PCT_TOLD / pct).floor().max(1.0);
            format!("{fitting} samples a second would take {COST_PCT_TOLD} %")
        }
        What::Event { period, .. } => {
            let fitting = (*period as f64 * pct / COST_PCT_TOLD).ceil();
            format!("a period of {fitting} would take {COST_PCT_TOLD} %")
        }
    };
    Some(format!(
        "being sampled took about {pct:.1} % of the target's CPU time, {sample_us:.1} us a sample; \
         {advice}"
    ))
}

fn on_names(taken: &Taken<'_>, names: &Names, remarks: &mut Vec<String>) {
    if names.kernel_hidden {
        remarks.push(
            "the kernel hides the names of its functions (sysctl kernel.kptr_restrict=0, or run \
             with CAP_SYSLOG)"
                .to_owned(),
        );
    }
    if let Some(why) = &names.unread {
        remarks.push(format!("our own functions have no names: {why}"));
    }
    let mut nameless: HashMap<&str, u64> = HashMap::new();
    for (&place, &count) in &taken.tally.places {
        if let Some(name) = names.find(place)
            && !name.function
        {
            *nameless.entry(name.object.as_deref().unwrap_or("[unknown]")).or_default() += count;
        }
    }
    if nameless.is_empty() {
        return;
    }
    let total: u64 = nameless.values().sum();
    let mut objects: Vec<_> = nameless.into_iter().collect();
    objects.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let largest: Vec<String> = objects
        .iter()
        .take(OBJECTS_NAMED)
        .map(|(name, count)| format!("{count} in {name}"))
        .collect();
    remarks.push(format!(
        "{total} of {} samples fell where no symbol names the function ({}); where that is a \
         stripped file, install its debuginfo or build it unstripped",
        taken.tally.samples,
        largest.join(", ")
    ));
}

fn on_chains(taken: &Taken<'_>, stacks_unnamed: u64, remarks: &mut Vec<String>) {
    let Tally { user_chains, shallow_chains, stacks_beyond, callers_beyond, .. } = *taken.tally;
    if taken.call_chains && shallow_chains * 2 > user_chains {
        remarks.push(format!(
            "{shallow_chains} of {user_chains} call chains of user code end after one caller: it \
             keeps no frame pointers (build with -C force-frame-pointers=yes, or \
             -fno-omit-frame-pointer)"
        ));
    }
    if stacks_beyond > 0 {
        remarks.push(format!(
            "{stacks_beyond} call chains are left out: there were more than {} different ones",
            taken.tally.stacks.len()
        ));
    }
    if callers_beyond > 0 {
        remarks.push(format!(
            "{callers_beyond} callers are called [beyond]: the call chains led over more than {} \
             different places",
            taken.tally.callers.len()
        ));
    }
    if stacks_unnamed > 0 {
        remarks.push(format!(
            "{stacks_unnamed} call chains, the rarest, are left out: their names are too long"
        ));
    }
}

/// Periods below which a tenth may be chance.
const PERIODS_JUDGED: f64 = 100.0;
/// Cost of sampling that needs no remark, in per cent.
const COST_PCT_TOLD: f64 = 1.0;
/// Objects that a remark names at most.
const OBJECTS_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::super::summary::Began;
    use super::*;

    /// Returns the remarks on a second of CPU time with these reports of the rings.
    fn remarks(what: &What, heard: Heard) -> String {
        let began = Began {
            at: Instant::now(),
            wall: SystemTime::now(),
            workload: String::new(),
            sample_ns: None,
            kernel: true,
            late: 0,
        };
        let taken = Taken {
            what,
            call_chains: false,
            kernel_wanted: true,
            began: &began,
            tally: &Tally::default(),
            heard,
            counted: Counted { cpu_ns: 1_000_000_000, running_ns: 1_000_000_000, lost: None },
            wall_ns: 1_000_000_000,
        };
        let mut remarks = Vec::new();
        on_sampling(&taken, &mut remarks);
        remarks.join("\n")
    }

    #[test]
    fn a_pause_of_the_sampling_is_told_with_how_often() {
        let heard = Heard { samples: 1000, throttled: 3, ..Heard::default() };
        let said = remarks(&What::Time { hz: 1000 }, heard);
        assert!(said.starts_with("the kernel paused the sampling 3 times"), "{said}");
        assert!(said.contains("perf_event_max_sample_rate"), "{said}");
        let heard = Heard { samples: 1000, ..Heard::default() };
        assert_eq!(remarks(&What::Time { hz: 1000 }, heard), "");
    }

    #[test]
    fn time_without_samples_is_told_and_lost_samples_are_none_of_it() {
        let heard = Heard { samples: 700, ..Heard::default() };
        let said = remarks(&What::Time { hz: 1000 }, heard);
        assert!(said.starts_with("30 % of the CPU time gave no sample"), "{said}");
        let heard = Heard { samples: 700, lost: 300, ..Heard::default() };
        assert_eq!(remarks(&What::Time { hz: 1000 }, heard), "");
    }
}
