//! Remarks from which readers can judge the accuracy of a profile.

use std::collections::HashMap;

use super::rings::Counted;
use super::symbols::Names;
use super::{Recording, Target, What};
use crate::profile::OwnCost;
use crate::read::OTHER;

/// The remark on a profile without the kernel's functions, although they were requested.
pub const KERNEL_LEFT_OUT: &str = "the kernel's functions are left out: it does not let us sample \
     them (sysctl kernel.perf_event_paranoid=1, or run with CAP_PERFMON)";

/// Returns all remarks on a recording.
pub(super) fn of(
    recording: &Recording,
    counted: &Counted,
    cost: &OwnCost,
    names: &Names,
) -> Vec<String> {
    let Recording { recorder, target, kernel, tally, late, .. } = recording;
    let Counted { cpu_ns, running_ns, lost } = *counted;
    let (shallow, chains) = (tally.shallow_chains, tally.user_chains);
    let hidden = "the kernel hides the names of its functions (sysctl kernel.kptr_restrict=0, or \
                  run with CAP_SYSLOG)";
    let running_pct = 100.0 * running_ns as f64 / cpu_ns as f64;
    let remarks = [
        (recorder.kernel && !kernel).then(|| KERNEL_LEFT_OUT.to_owned()),
        (*late > 0).then(|| {
            format!(
                "{late} threads started while the recorder attached to the process; their \
                 samples may count twice"
            )
        }),
        (tally.throttled > 0).then(|| {
            format!(
                "the kernel paused the sampling {} times because samples came too fast; take \
                 fewer, or see kernel.perf_event_max_sample_rate",
                tally.throttled
            )
        }),
        (tally.broken > 0).then(|| {
            format!("{} records of the kernel made no sense and were left out", tally.broken)
        }),
        gaps(&recorder.what, cpu_ns, tally.samples.saturating_add(lost), |period_us| {
            cause(*kernel, tally.throttled, *target, period_us)
        }),
        // Starting and stopping the event takes some time; a difference above a hundredth means
        // that the counter was shared.
        (running_ns.saturating_add(cpu_ns / 100) < cpu_ns).then(|| {
            format!("the event had a counter for {running_pct:.1} % of the CPU time only")
        }),
        cost_remark(&recorder.what, cost),
        names.kernel_hidden.then(|| hidden.to_owned()),
        names.unread.as_ref().map(|why| format!("our own functions have no names: {why}")),
        nameless(recording, names),
        (recorder.call_chains && shallow * 2 > chains).then(|| {
            format!(
                "{shallow} of {chains} call chains of user code end after one caller: it keeps \
                 no frame pointers (build with -C force-frame-pointers=yes, or \
                 -fno-omit-frame-pointer)"
            )
        }),
        (tally.stacks_beyond > 0).then(|| {
            format!(
                "the call chains of {} samples are one, {OTHER}: there were more than {} different \
                 ones",
                tally.stacks_beyond,
                tally.stacks.len()
            )
        }),
    ];
    remarks.into_iter().flatten().collect()
}

/// Returns the remark on CPU time without samples; `cause` returns its cause for a period in
/// microseconds.
fn gaps(what: &What, cpu_ns: u64, seen: u64, cause: impl FnOnce(f64) -> String) -> Option<String> {
    let hz = what.hz()?;
    let (periods, period_us) = (cpu_ns as f64 * hz / 1e9, 1e6 / hz);
    let pct = 100.0 * (1.0 - seen as f64 / periods);
    (periods >= PERIODS_JUDGED && pct > 10.0)
        .then(|| format!("{pct:.0} % of the CPU time gave no sample, {}", cause(period_us)))
}

/// Returns the most likely cause of CPU time without samples; `kernel` is true if the kernel's
/// functions are sampled, `throttled` is the number of times that the kernel paused the event.
fn cause(kernel: bool, throttled: u64, target: Target, period_us: f64) -> String {
    match target {
        _ if !kernel => "most likely that of the kernel's functions, which are not sampled".into(),
        _ if throttled > 0 => "most likely because the kernel paused the sampling".into(),
        Target::ThisProcess => format!(
            "most likely that of threads which live no longer than {period_us:.0} us: each begins \
             a period of its own; sample more often"
        ),
        Target::ThisThread | Target::Machine => "for an unknown reason".into(),
    }
}

/// Returns the remark on the cost of sampling, if that exceeds a hundredth of the target's CPU
/// time: in a virtual machine, whose timers are emulated, a sample may cost twenty times as much as
/// on hardware.
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

/// Returns the remark on samples in functions that have no name.
fn nameless(recording: &Recording, names: &Names) -> Option<String> {
    let tally = &recording.tally;
    let mut nameless: HashMap<&str, u64> = HashMap::new();
    for (&place, &count) in &tally.places {
        if let Some(name) = names.find(place).filter(|name| !name.function) {
            *nameless.entry(name.object.as_deref().unwrap_or("[unknown]")).or_default() += count;
        }
    }
    let total: u64 = nameless.values().sum();
    let mut objects: Vec<_> = nameless.into_iter().collect();
    objects.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let largest = objects.iter().take(OBJECTS_NAMED);
    let largest: Vec<_> = largest.map(|(name, count)| format!("{count} in {name}")).collect();
    (total > 0).then(|| {
        format!(
            "{total} of {} samples fell where no symbol names the function ({}); where that is a \
             stripped file, install its debuginfo or build it unstripped",
            tally.samples,
            largest.join(", ")
        )
    })
}

/// Number of periods below which a gap of a tenth may be chance.
const PERIODS_JUDGED: f64 = 100.0;
/// Highest cost of sampling without a remark, in per cent.
const COST_PCT_TOLD: f64 = 1.0;
/// Most objects that a remark names.
const OBJECTS_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_samples_is_told_with_its_likely_cause() {
        let gaps = |seen, kernel, throttled, target| {
            gaps(&What::Time { hz: 1000 }, 1_000_000_000, seen, |period_us| {
                cause(kernel, throttled, target, period_us)
            })
        };
        for (kernel, throttled, target, cause) in [
            (true, 0, Target::ThisProcess, "threads which live no longer than 1000 us"),
            (false, 0, Target::ThisProcess, "the kernel's functions, which are not sampled"),
            (true, 3, Target::ThisProcess, "the kernel paused the sampling"),
            (true, 0, Target::ThisThread, "for an unknown reason"),
            (true, 0, Target::Machine, "for an unknown reason"),
        ] {
            let said = gaps(700, kernel, throttled, target).unwrap();
            assert!(said.starts_with("30 % of the CPU time gave no sample, "), "{said}");
            assert!(said.contains(cause), "{said}");
            assert_eq!(gaps(1000, kernel, throttled, target), None);
        }
    }

    #[test]
    fn a_gap_in_less_than_a_hundred_periods_may_be_chance() {
        let gap = |cpu_ms: u64, seen| {
            gaps(&What::Time { hz: 1000 }, cpu_ms * 1_000_000, seen, |_| "why".into())
        };
        assert_eq!(gap(99, 50), None);
        assert_eq!(gap(100, 50).as_deref(), Some("50 % of the CPU time gave no sample, why"));
        assert_eq!(gap(100, 90), None, "a tenth");
    }

    #[test]
    fn costly_samples_are_told_with_the_rate_or_the_period_that_would_take_one_per_cent() {
        use crate::pmu::Event;
        let cost = |samples| OwnCost {
            recorder_cpu_ns: 0,
            sample_ns: Some(20_000.0),
            target_cpu_ns: 1_000_000_000,
            samples,
        };
        let time = |samples| cost_remark(&What::Time { hz: 2000 }, &cost(samples));
        assert_eq!(time(500), None, "1 %");
        let said = time(2000).unwrap();
        assert!(said.contains("about 4.0 % of the target's CPU time, 20.0 us a sample"), "{said}");
        assert!(said.ends_with("; 500 samples a second would take 1 %"), "{said}");
        let what = What::Event { event: Event::new("cycles", 0, 0), period: 1000 };
        let said = cost_remark(&what, &cost(2000)).unwrap();
        assert!(said.ends_with("; a period of 4000 would take 1 %"), "{said}");
    }
}
