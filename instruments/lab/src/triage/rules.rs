//! The rules, in the order of the path. Each part of the path has a separate count, so that one
//! fault does not hide another.

use super::{Cap, Cause, Finding, LATE_AFTER, Seen, Verdict};

/// Smallest number of events that can be a fault; the next constant is the smallest rate for a
/// million packets. Fewer events may come from a packet at the edge of a window, or from a short
/// stop of the machine.
const EVENTS_MIN: f64 = 5.0;
const PER_MILLION_MIN: f64 = 100.0;
/// Limit for losses: if a cap of 2 leaves less than this share of them, the receiver was
/// overloaded.
///
/// Source: post 002: "a cap of 2 … tells an overloaded receiver from a faulty driver".
const GONE: f64 = 0.1;
/// Share of TCP's retransmissions that losses must explain.
const EXPLAINED: f64 = 0.5;

/// Parts of the path with a separate count of losses, and the description of each loss.
const PARTS: [(&str, Cause, &str); 5] = [
    (
        "inlet_lost",
        Cause::Device,
        "are lost between a host and the engine: the device's queue or the ring that the \
      engine reads is full",
    ),
    (
        "core_lost",
        Cause::Core,
        "enter the engine and reach no device: the engine's ledger has the reason",
    ),
    ("core_late", Cause::Core, "leave the engine after one that came later"),
    (
        "driver_lost",
        Cause::Driver,
        "are sent by the driver's account, and the device was not given them",
    ),
    (
        "receiver_lost",
        Cause::Receiver,
        "reach the host's kernel and are thrown away there: its counters say by whom",
    ),
];

/// Returns the faults of the case's own device and batches, from all observations.
///
/// Shape: `seen` has one entry at most for each device and cap.
#[must_use]
pub fn judge(seen: &[Seen]) -> Verdict {
    let mut verdict = Verdict { causes: Vec::new(), untold: Vec::new() };
    let find = |own: bool, cap: Cap| seen.iter().find(|one| one.own == own && one.cap == cap);
    verdict.untold.extend(seen.iter().filter(|one| !one.balanced).map(unbalanced));
    let Some(batch) = find(true, Cap::Batch) else {
        verdict.untold.push("There is no window with batches.".into());
        return verdict;
    };
    if batch.packets == 0 && batch.sums.is_empty() {
        verdict.untold.push(
            "All pairs with batches were left out, so nothing was counted. A run on a quiet machine would tell, or \
             windows run now (--extra)."
                .into(),
        );
        return verdict;
    }
    let one = find(true, Cap::One);
    let finding = |name: &str, cause: Cause, why: &str| Finding {
        cause,
        why: format!("Packets {why}."),
        per_million: batch.per_million(name).unwrap_or(0.0),
        without_per_million: one.and_then(|one| one.per_million(name)),
        elsewhere_per_million: find(false, Cap::Batch).and_then(|one| one.per_million(name)),
    };
    for (name, cause, why) in PARTS {
        match is_fault(batch, name) {
            Some(true) => verdict.causes.push(finding(name, cause, why)),
            Some(false) => {}
            None if name == "core_late" => {}
            None => verdict.untold.push(format!("`{name}` was not counted.")),
        }
    }
    if is_fault(batch, "outlet_lost") == Some(true) {
        let two = find(true, Cap::Two);
        let (cause, why) = behind_the_device(batch, two);
        verdict.causes.push(finding("outlet_lost", cause, why));
        if two.is_none() {
            verdict.untold.push(
                "Packets are taken by the device and reach no host. Whether the device loses them or they come \
                 too fast for the host, a cap of 2 would tell (--extra)."
                    .into(),
            );
        }
    }
    if is_fault(batch, LATE_AFTER) == Some(true) {
        match find(false, Cap::Batch).map(|second| (second, is_fault(second, LATE_AFTER))) {
            Some((_, Some(true))) => {
                let why = "come late behind the engine, with either driver";
                verdict.causes.push(finding(LATE_AFTER, Cause::Device, why));
            }
            Some((second, Some(false))) => {
                let why = format!(
                    "come late behind the engine, and not with `{}` in the driver's place",
                    second.device
                );
                verdict.causes.push(finding(LATE_AFTER, Cause::Driver, &why));
            }
            _ => verdict.untold.push(
                "Packets come late behind the engine. Whether its driver or the device does that, another \
                 device would tell."
                    .into(),
            ),
        }
    }
    unexplained(batch, one, &mut verdict);
    verdict.causes.sort_by(|a, b| b.per_million.total_cmp(&a.per_million));
    verdict
}

/// Returns an open question on windows whose ledger does not balance.
fn unbalanced(seen: &Seen) -> String {
    let cap = match seen.cap {
        Cap::One => "a cap of 1",
        Cap::Two => "a cap of 2",
        Cap::Batch => "batches",
    };
    format!(
        "The engine's ledger does not balance with `{}` and {cap}: counts of these \
         windows may be wrong.",
        seen.device
    )
}

/// Returns true if the count `name` reaches both limits of a fault; `None` if it was not counted.
fn is_fault(seen: &Seen, name: &str) -> Option<bool> {
    let events = *seen.sums.get(name)?;
    Some(events >= EVENTS_MIN && seen.per_million(name)? >= PER_MILLION_MIN)
}

/// Returns the cause of losses after the device has accepted packets and before the host's kernel
/// counts them.
fn behind_the_device(batch: &Seen, two: Option<&Seen>) -> (Cause, &'static str) {
    let rate = |seen: &Seen| seen.per_million("outlet_lost").unwrap_or(0.0);
    match two {
        Some(two) if rate(two) < GONE * rate(batch) => (
            Cause::Receiver,
            "are taken by the device and reach no host, and with a cap of 2 they do: they come too fast",
        ),
        _ => (Cause::Device, "are taken by the device and reach no host"),
    }
}

/// Adds an open question if TCP retransmits more with batches, and no loss or disorder explains it.
fn unexplained(batch: &Seen, one: Option<&Seen>, verdict: &mut Verdict) {
    let again = |seen: &Seen| seen.per_million("tcp_retrans_segs");
    let Some((with, without)) = again(batch).zip(one.and_then(again)) else { return };
    let (n, m) =
        (batch.sums["tcp_retrans_segs"], one.map_or(0.0, |one| one.sums["tcp_retrans_segs"]));
    // Require four times the noise of an independent count, because losses come in groups.
    let more = with - without;
    let noise = 4.0 * (n.sqrt() * with / n.max(1.0)).hypot(m.sqrt() * without / m.max(1.0));
    // A loss that is the same without batches explains no additional segment.
    let added =
        |found: &Finding| (found.per_million - found.without_per_million.unwrap_or(0.0)).max(0.0);
    let named: f64 = verdict.causes.iter().map(added).sum();
    if n < EVENTS_MIN || more < PER_MILLION_MIN.max(noise) || named >= EXPLAINED * more {
        return;
    }
    let count = |name: &str| batch.sums.get(name).copied().unwrap_or(0.0);
    let lost = if !verdict.causes.is_empty() {
        format!("the faults above explain {named:.0} at most")
    } else if batch.sums.contains_key(LATE_AFTER) {
        "no packet is lost or late".to_owned()
    } else {
        "no packet is lost; whether they come late was not looked at (--extra)".to_owned()
    };
    verdict.untold.push(format!(
        "TCP sends {more:.0} segments of a million more again than with a cap of 1, and {lost}. Of {n:.0}, {:.0} had \
         arrived already (TCPDSACKRecv), {:.0} were probes (TCPLossProbes), and a timer ran out {:.0} times: that \
         would be delay.",
        count("tcp_dsack_recv"),
        count("tcp_loss_probes"),
        count("tcp_timeouts"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 5] =
        ["inlet_lost", "core_lost", "driver_lost", "outlet_lost", "receiver_lost"];

    /// Returns an observation of a million packets with these counts of lost packets.
    fn seen(own: bool, cap: Cap, counts: &[(&str, f64)]) -> Seen {
        let device = if own { "xdp" } else { "packet" }.to_owned();
        let mut sums: std::collections::BTreeMap<String, f64> =
            ALL.map(|name| (name.to_owned(), 0.0)).into();
        sums.extend([("core_late".to_owned(), 0.0), (LATE_AFTER.to_owned(), 0.0)]);
        sums.insert("tcp_retrans_segs".into(), 0.0);
        sums.extend(counts.iter().map(|(name, n)| ((*name).to_owned(), *n)));
        let is_late = counts.iter().any(|(name, _)| *name == LATE_AFTER);
        let load_packets = if is_late { 1_000_000 } else { 0 };
        Seen { device, own, cap, packets: 1_000_000, load_packets, sums, balanced: true }
    }

    fn causes(seen: &[Seen]) -> Vec<Cause> {
        judge(seen).causes.iter().map(|finding| finding.cause).collect()
    }

    #[test]
    fn each_part_of_the_way_is_a_cause_of_its_own_and_two_at_once_are_two() {
        for (name, cause) in [
            ("inlet_lost", Cause::Device),
            ("core_lost", Cause::Core),
            ("core_late", Cause::Core),
            ("driver_lost", Cause::Driver),
            ("outlet_lost", Cause::Device),
            ("receiver_lost", Cause::Receiver),
        ] {
            assert_eq!(causes(&[seen(true, Cap::Batch, &[(name, 400.0)])]), [cause], "{name}");
        }
        let both = [("driver_lost", 400.0), ("core_late", 9000.0)];
        assert_eq!(causes(&[seen(true, Cap::Batch, &both)]), [Cause::Core, Cause::Driver]);
    }

    #[test]
    fn a_clean_run_and_one_with_a_few_losses_have_no_cause() {
        let few = ALL.map(|name| (name, 4.0));
        let negative = ALL.map(|name| (name, -400.0));
        for counts in [&few[..], &negative[..], &[]] {
            let verdict = judge(&[seen(true, Cap::Batch, counts), seen(true, Cap::One, &[])]);
            assert_eq!((verdict.causes, verdict.untold), (vec![], vec![]));
        }
    }

    #[test]
    fn another_device_tells_a_driver_that_reorders_from_a_device_that_does() {
        let late = [(LATE_AFTER, 700.0)];
        let own = seen(true, Cap::Batch, &late);
        assert_eq!(causes(&[own.clone(), seen(false, Cap::Batch, &[])]), [Cause::Driver]);
        assert_eq!(causes(&[own.clone(), seen(false, Cap::Batch, &late)]), [Cause::Device]);
        let alone = judge(&[own]);
        assert!(alone.causes.is_empty() && alone.untold[0].contains("another device"), "{alone:?}");
    }

    #[test]
    fn late_datagrams_are_a_share_of_datagrams_and_segments_of_the_rest() {
        let mut own = seen(true, Cap::Batch, &[(LATE_AFTER, 72.0), ("tcp_retrans_segs", 720.0)]);
        own.load_packets = 24_000;
        assert_eq!(own.per_million(LATE_AFTER), Some(3000.0));
        assert_eq!(own.per_million("tcp_retrans_segs").map(f64::round), Some(738.0));
        assert_eq!(causes(&[own, seen(false, Cap::Batch, &[])]), [Cause::Driver]);
    }

    #[test]
    fn a_cap_of_two_tells_a_host_that_is_overrun_from_a_device_that_loses() {
        let own = seen(true, Cap::Batch, &[("outlet_lost", 5000.0)]);
        let two = |n: f64| seen(true, Cap::Two, &[("outlet_lost", n)]);
        for (n, cause) in [(20.0, Cause::Receiver), (4000.0, Cause::Device)] {
            let verdict = judge(&[own.clone(), two(n)]);
            assert_eq!(verdict.causes[0].cause, cause);
            assert!(verdict.untold.is_empty(), "{verdict:?}");
        }
        let open = judge(&[own]);
        assert!(open.untold[0].contains("a cap of 2 would tell"), "{open:?}");
    }

    #[test]
    fn what_tcp_sends_again_without_a_loss_cannot_be_told() {
        let again = |cap, n| seen(true, cap, &[("tcp_retrans_segs", n)]);
        let verdict = judge(&[again(Cap::Batch, 50_000.0), again(Cap::One, 20_000.0)]);
        assert!(verdict.causes.is_empty(), "{verdict:?}");
        assert!(verdict.untold[0].contains("30000 segments"), "{verdict:?}");
        let lost = [("tcp_retrans_segs", 50_000.0), ("inlet_lost", 48_000.0)];
        let told = judge(&[seen(true, Cap::Batch, &lost), again(Cap::One, 20_000.0)]);
        assert_eq!((told.causes.len(), told.untold.len()), (1, 0), "{told:?}");
        // A loss that does not explain it is not said to be none.
        let few = [("tcp_retrans_segs", 50_000.0), ("inlet_lost", 400.0)];
        let told = judge(&[seen(true, Cap::Batch, &few), again(Cap::One, 20_000.0)]);
        assert_eq!(told.causes.len(), 1);
        let words = "the faults above explain 400 at most. Of 50000";
        assert!(told.untold[0].contains(words), "{told:?}");
        // Nor does one that is there without batches, too.
        let with = [("tcp_retrans_segs", 25_000.0), ("inlet_lost", 5000.0)];
        let without = [("tcp_retrans_segs", 20_000.0), ("inlet_lost", 5000.0)];
        let told = judge(&[seen(true, Cap::Batch, &with), seen(true, Cap::One, &without)]);
        assert!(told.untold[0].contains("the faults above explain 0 at most"), "{told:?}");
        let same = judge(&[again(Cap::Batch, 20_100.0), again(Cap::One, 20_000.0)]);
        assert_eq!((same.causes.len(), same.untold.len()), (0, 0), "{same:?}");
    }

    #[test]
    fn a_ledger_that_does_not_balance_is_told_beside_the_causes() {
        let mut own = seen(true, Cap::Batch, &[("inlet_lost", 400.0), ("core_lost", -400.0)]);
        own.balanced = false;
        let verdict = judge(&[own, seen(true, Cap::One, &[])]);
        assert_eq!((verdict.causes.len(), verdict.untold.len()), (1, 1), "{verdict:?}");
        let why = "The engine's ledger does not balance with `xdp` and batches";
        assert!(verdict.untold[0].starts_with(why), "{verdict:?}");
    }

    #[test]
    fn what_was_not_counted_is_said() {
        let mut old = seen(true, Cap::Batch, &[]);
        old.sums.clear();
        assert_eq!(judge(std::slice::from_ref(&old)).untold.len(), 4);
        // Without any window, nothing is said of single counts.
        old.packets = 0;
        let told = judge(&[old]).untold;
        assert!(told.len() == 1 && told[0].contains("All pairs with batches"), "{told:?}");
        assert_eq!(judge(&[]).untold, ["There is no window with batches."]);
    }
}
