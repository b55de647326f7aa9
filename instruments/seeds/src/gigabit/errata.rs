//! Errata of post 000: errors, and misleading statements.

use linerate_prof::Result;
use linerate_prof::diff::Diff;
use linerate_prof::stage::Part;
use linerate_show::table::Cell;

use super::super::{Report, Text};
use super::heads::{POINTS, Posted};
use super::{All, OF_NOTHING, all_and_idle, buffer_sum, grown, is_noise, share, vanished};
use crate::stats::Pair;

pub(super) fn errata(
    report: &mut Report,
    text: &Text<'_>,
    diff: &Diff,
    heads: &[Posted; 2],
) -> Result<()> {
    utilization(report, text, diff, heads)?;
    latency(report, text)?;
    moved(report, text, diff)?;
    let two = text.line_with(1, "alloc_skb_frame with fixed")?;
    let gives = "Fixed frames and the longer hot list came together, so what each of them saved is not \
        known: the two have to be measured apart, each with and without the other.";
    report.erratum(two.line, "Two changes at once", gives);
    if let Some(total) = diff.makers_total() {
        let gives = format!(
            "The profiles are of {} and of {} ticks, {} %, and how many packets went through is not \
             said. Ticks are compared as they are; a few per cent either way mean nothing.",
            total.without,
            total.with,
            Cell::change(Pair::of(total.without, total.with).change_pct(), 1, OF_NOTHING)
        );
        report.erratum(
            text.line_with(1, " total ")?.line,
            "Ticks are not divided by packets",
            gives,
        );
    }
    Ok(())
}

/// Checks the statement "(@ 7%)", whose base is unclear.
fn utilization(
    report: &mut Report,
    text: &Text<'_>,
    diff: &Diff,
    heads: &[Posted; 2],
) -> Result<()> {
    let said = text.number_after("higher utilization (@")?;
    let system = Pair { before: heads[0].head.cpu.system_pct, after: heads[1].head.cpu.system_pct };
    let busy = |frames| {
        let (all, idle) = all_and_idle(diff, frames)?;
        let ticks = all.saturating_sub(idle);
        Some((all, ticks, 100.0 * Pair::of(all, ticks).ratio()?))
    };
    let (Some((all, ticks, before)), Some((_, _, after))) = (busy(false), busy(true)) else {
        return Ok(());
    };
    let buffers = buffer_sum(diff);
    let buffers_pct = share(diff, buffers, All::Ticks, false);
    let of = |all, frames| Cell::real(share(diff, buffers, all, frames), 1, OF_NOTHING);
    let fits = |pct: f64| (pct.abs() - said.is.to_f64()).abs() < 1.0;
    let instruments = [system.after - system.before, after - before];
    let gives = format!(
        "It fits neither instrument. top: {:.1} -> {:.1} % system, {:.1} points, {} % of it. Profile: \
         {ticks} of {all} ticks are not idle, {before:.1} -> {after:.1} %, {:.1} points. What it fits is \
         the share of the buffer functions: {} of {all} ticks = {} % ({} % of those not idle), -> {} = \
         {} % ({} %).",
        system.before,
        system.after,
        system.after - system.before,
        Cell::change(system.change_pct(), 1, OF_NOTHING),
        after - before,
        buffers.without,
        of(All::Ticks, false),
        of(All::Busy, false),
        buffers.with,
        of(All::Ticks, true),
        of(All::Busy, true)
    );
    if buffers_pct.is_some_and(fits) && !instruments.into_iter().any(fits) {
        report.erratum(said.line, format!("\"higher utilization (@ {}%)\"", said.is), gives);
    } else {
        let what = "higher utilization, as the share of the buffer functions, %";
        report.check(what, said.line, said.is.to_string(), of(All::Ticks, false).to_string());
    }
    let tops = [&heads[0], &heads[1]].map(Posted::busy_pct);
    let gives = format!(
        "Busy is {before:.1} % by the profile and {:.1} % by top, then {after:.1} and {:.1} %. The post \
         does not say why; what is likely stands above, with both figures.",
        tops[0], tops[1]
    );
    if (before - tops[0]).abs() > POINTS || (after - tops[1]).abs() > POINTS {
        report.erratum(heads[0].line + 1, "Profile and top disagree", gives);
    }
    Ok(())
}

fn latency(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let said = text.between("side of the clustering fabric is", "higher between")?;
    let other = text.between("yields a decrease in", "and lower")?;
    let gives = format!(
        "Higher in which of the two is not said. Line {} says that fixed frames yield \"a decrease in \
         {}\", so it is read as: without them it is {} higher.",
        other.line, other.is, said.is
    );
    let says =
        format!("\"Measured latency … is {} higher between the two test scenarios\"", said.is);
    report.erratum(said.line, says, gives);
    Ok(())
}

/// Checks the post's gain: part of the time that some functions saved moved to other functions.
fn moved(report: &mut Report, text: &Text<'_>, diff: &Diff) -> Result<()> {
    let rose: Vec<String> = diff
        .rows
        .iter()
        .filter(|row| row.stage.part() == Part::Path)
        .filter(|row| row.sum().saved_counts() < 0)
        .map(|row| {
            let noise = if is_noise(diff, row) { ", within noise" } else { "" };
            format!("{} {:+}{noise}", row.symbol, -row.sum().saved_counts())
        })
        .collect();
    if rose.is_empty() {
        return Ok(());
    }
    let gives = format!(
        "Not all of what went is gain: with what is not listed as 0, of {} ticks that vanished from \
         the path, {} came back elsewhere in it ({}). eth_type_trans is where a cold frame is now \
         touched first; that is our guess.",
        vanished(diff).saved_counts(),
        -grown(diff).saved_counts(),
        rose.join("; ")
    );
    let line = text.line_with(1, "processor utilization, locking")?.line;
    report.erratum(line, "Cost that moved is not told from cost that vanished", gives);
    Ok(())
}
