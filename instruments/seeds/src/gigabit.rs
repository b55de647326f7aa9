//! Post 000: two profiles of a gigabit path, with the original buffers and with fixed frames.

use linerate_prof::Result;
use linerate_prof::diff::{self, Change, Count, Diff, Sum};
use linerate_prof::print;
use linerate_prof::profile::{Profile, Row};
use linerate_prof::read::{self, Form};
use linerate_prof::stage::{self, Part, Stage};
use linerate_show::table::{Cell, Column, Row as Line, Table};

use super::{Post, Printed, Report, Text};
use crate::stats::Pair;

mod errata;
mod heads;

const OF_NOTHING: &str = "a share of nothing";

/// Recomputes the post's figures.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn report(post: &'static Post, text: &str) -> Result<Report> {
    let words = Text::new(post.id, text)?;
    let [as_is, frames] = super::two(post, read::parse(text.as_bytes(), Some(Form::Readprofile))?)?;
    let heads = heads::heads(&words, text)?;
    let diff = Diff::between(&as_is, &frames);
    let mut report = Report::new(post);
    taken(&mut report, &words)?;
    report.printed(Printed::diff(
        "profile",
        "What fixed frames and a longer hot list saved",
        &diff,
    ));
    report.table(whereto(&diff));
    report.table(buffers(&diff));
    report.table(loads(&as_is, &frames));
    report.table(heads::table(&heads));
    heads::busy(&mut report, [&as_is, &frames], &heads);
    checks(&mut report, &words, [&as_is, &frames])?;
    heads::checks(&mut report, &heads);
    errata::errata(&mut report, &words, &diff, &heads)?;
    report.as_posted = as_posted([&as_is, &frames], &heads);
    Ok(report)
}

fn taken(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let mut fact = |about, from, to| {
        text.between(from, to).map(|said| report.taken(about, said.is, Some(said.line)))
    };
    fact("machine", "Configuration is", " adapters.")?;
    fact("path", "In essense a", ".")?;
    fact("rate", "GNET adapters at", ", however")?;
    fact("rings", "by default has the", ", and our")?;
    fact("baseline", "alloc_skb with", ". Notice")?;
    // The caption of the second profile contains this number, followed by a full stop.
    let hot_list = text.number_after("allocations, sysctl_hot_list_len =")?;
    let frames = text.between("alloc_skb_frame with", ", sysctl_hot_list_len")?;
    let change = format!("{}, sysctl_hot_list_len = {}", frames.is, hot_list.is);
    report.taken("change", change, Some(frames.line));
    report.taken("tool", "not named; its form is readprofile's", None);
    report.taken(
        "runs, spread",
        "not said; nor packets, which ticks would have to be divided by",
        None,
    );
    Ok(())
}

/// Builds the table of the ticks: vanished, moved, and outside the path.
fn whereto(diff: &Diff) -> Table {
    let columns = [
        Column::new("part", "ticks of", ""),
        Column::new("functions", "functions", "n"),
        Column::new("as_is_ticks", "as is", "ticks"),
        Column::new("frames_ticks", "frames", "ticks"),
        Column::new("change_ticks", "change", "ticks"),
    ];
    let title = "Cost that vanished, and cost that moved (what is not listed counts as 0 in sums and changes)";
    let mut table = Table::new("moved", title, &columns);
    let cells = |name: &str, functions: Cell, sum: Sum| {
        let change = i128::from(sum.with) - i128::from(sum.without);
        let sides = [Cell::Count(sum.without), Cell::Count(sum.with), Cell::Gain(change)];
        [Cell::text(name), functions].into_iter().chain(sides).collect()
    };
    let mut sum = |name: &str, sum: Sum| {
        table.row(cells(name, Cell::Count(sum.functions), sum));
    };
    sum("the path: vanished", vanished(diff));
    sum("the path: moved to, or grown", grown(diff));
    sum("disks, in the background", diff.sum_of(|row| row.stage == Stage::Disk));
    sum("idle", diff.sum_of(|row| row.stage == Stage::Idle));
    let rose = diff.rows_of(Part::Path).filter(|row| row.sum().saved_counts() < 0);
    table.rows.splice(2..2, rose.map(|row| Line::Cells(grown_row(diff, row))));
    if let Some(total) = diff.makers_total() {
        let listed = diff.sum();
        let rest = Sum {
            without: total.without.saturating_sub(listed.without),
            with: total.with.saturating_sub(listed.with),
            ..Sum::default()
        };
        let unknown = Cell::Absent("the post does not list them");
        table.row(cells("in no row of the list", unknown, rest));
        table.rows.push(Line::Rule);
        table.row(cells("all", Cell::Empty, total));
    }
    table
}

/// Returns the sum of the path's functions whose count fell, by any amount.
fn vanished(diff: &Diff) -> Sum {
    diff.sum_of(|row| row.stage.part() == Part::Path && row.sum().saved_counts() > 0)
}

/// Returns the sum of the path's functions whose count grew.
fn grown(diff: &Diff) -> Sum {
    diff.sum_of(|row| row.stage.part() == Part::Path && row.sum().saved_counts() < 0)
}

/// Returns true if a function's change is within the difference of two profiles of the same kernel.
fn is_noise(diff: &Diff, row: &diff::Row) -> bool {
    diff.change(row) == Change::Noise
}

/// Returns the row of a function that grew. A count that is not listed is printed as below the
/// cut-off.
fn grown_row(diff: &Diff, row: &diff::Row) -> Vec<Cell> {
    let count = |count| match count {
        Count::Is(n) => Cell::Count(n),
        Count::Below(n) => Cell::Below(n),
    };
    let change = -i128::from(row.sum().saved_counts());
    let noise = if is_noise(diff, row) { ", within noise" } else { "" };
    let name = Cell::Text(format!("  {}{noise}", row.symbol));
    vec![name, Cell::Count(1), count(row.without), count(row.with), Cell::Gain(change)]
}

/// Returns the functions that the post is about, with their share.
fn buffers(diff: &Diff) -> Table {
    let columns = [
        Column::new("figure", "functions that make and free buffers", ""),
        Column::new("as_is", "as is", ""),
        Column::new("frames", "frames", ""),
        Column::new("change_pct", "change", "%"),
        Column::new("unit", "unit", ""),
    ];
    let sum = buffer_sum(diff);
    let names: Vec<&str> =
        diff.rows.iter().filter(|r| is_buffer(r)).map(|r| r.symbol.as_str()).collect();
    let mut table = Table::new("buffers", "The functions that the post is about", &columns);
    let change = Pair::of(sum.without, sum.with).change_pct();
    table.row(vec![
        Cell::text("ticks, what is not listed as 0"),
        Cell::Count(sum.without),
        Cell::Count(sum.with),
        Cell::change(change, 1, OF_NOTHING),
        Cell::text("ticks"),
    ]);
    let most = Pair::of(sum.without, sum.with.saturating_add(sum.hidden_with));
    table.row(vec![
        Cell::text("the same, with all that the cut-off may hide"),
        Cell::Count(sum.without),
        Cell::Below(sum.with.saturating_add(sum.hidden_with)),
        most.change_pct().map_or(Cell::Absent(OF_NOTHING), |pct| Cell::AtMost(pct, 1)),
        Cell::text("ticks"),
    ]);
    for (name, of) in [("share of all ticks", All::Ticks), ("share of ticks not idle", All::Busy)] {
        let (as_is, frames) = (share(diff, sum, of, false), share(diff, sum, of, true));
        let change = as_is.zip(frames).and_then(|(a, b)| Pair { before: a, after: b }.change_pct());
        table.row(vec![
            Cell::text(name),
            Cell::real(as_is, 1, OF_NOTHING),
            Cell::real(frames, 1, OF_NOTHING),
            Cell::change(change, 1, OF_NOTHING),
            Cell::text("%"),
        ]);
    }
    table.note(format!("They are {}.", names.join(", ")));
    table
}

/// The total that a share is a part of.
#[derive(Clone, Copy, PartialEq)]
enum All {
    /// The total according to the source.
    Ticks,
    /// The source's total without idle ticks.
    Busy,
}

/// Returns the share of `sum` in per cent, as is or with `frames`.
fn share(diff: &Diff, sum: Sum, of: All, frames: bool) -> Option<f64> {
    let part = if frames { sum.with } else { sum.without };
    let (all, idle) = all_and_idle(diff, frames)?;
    let all = if of == All::Busy { all.saturating_sub(idle) } else { all };
    Pair::of(all, part).ratio().map(|ratio| 100.0 * ratio)
}

/// Returns the source's total and its idle ticks.
fn all_and_idle(diff: &Diff, frames: bool) -> Option<(u64, u64)> {
    let (total, idle) = (diff.makers_total()?, diff.sum_of(|row| row.stage == Stage::Idle));
    Some(if frames { (total.with, idle.with) } else { (total.without, idle.without) })
}

fn buffer_sum(diff: &Diff) -> Sum {
    diff.sum_of(is_buffer)
}

fn is_buffer(row: &diff::Row) -> bool {
    stage::is_buffer(&row.symbol)
}

/// Returns the normalised loads side by side, and the code sizes computed from them.
fn loads(as_is: &Profile, frames: &Profile) -> Table {
    let columns = [
        Column::new("function", "function", ""),
        Column::new("code_bytes", "code", "bytes"),
        Column::new("as_is_ticks", "as is", "ticks"),
        Column::new("as_is_load", "as is", "ticks/byte"),
        Column::new("frames_ticks", "frames", "ticks"),
        Column::new("frames_load", "frames", "ticks/byte"),
    ];
    let title = "The two listings side by side; code is what ticks and load imply";
    let mut table = Table::new("loads", title, &columns);
    let found =
        |profile: &Profile, name: &str| profile.rows.iter().find(|row| row.symbol == name).cloned();
    let new = frames.rows.iter().filter(|row| found(as_is, &row.symbol).is_none());
    for row in as_is.rows.iter().chain(new) {
        let sides = [as_is, frames].map(|profile| (profile.cutoff, found(profile, &row.symbol)));
        let mut cells = vec![
            Cell::text(&row.symbol),
            row.bytes().map_or(Cell::Absent("too few digits to tell"), Cell::Count),
        ];
        for (cutoff, side) in sides {
            let unlisted = cutoff.map_or(Cell::Absent("not listed"), Cell::Below);
            cells.push(side.as_ref().map_or(unlisted, |row| Cell::Count(row.count)));
            let load = side.and_then(|row| row.load);
            cells.push(load.map_or(Cell::Absent("not listed"), |l| Cell::Real(l.value, l.digits)));
        }
        table.row(cells);
    }
    table
}

/// Checks values that must be equal in both listings if they are from one kernel.
fn checks(report: &mut Report, text: &Text<'_>, sides: [&Profile; 2]) -> Result<()> {
    let [as_is, frames] = sides;
    let both: Vec<(&Row, &Row)> = as_is
        .rows
        .iter()
        .filter_map(|a| Some((a, frames.rows.iter().find(|b| b.symbol == a.symbol)?)))
        .collect();
    let equal = both.iter().filter(|(a, b)| a.bytes().is_some() && a.bytes() == b.bytes()).count();
    let of = both.len();
    let line = text.line_with(1, " total ")?.line;
    if of == 0 {
        return Err(text.wrong(line, "nothing to compare: no function is in both listings"));
    }
    let what = "functions in both listings whose code, ticks / load, has one size";
    report.check(what, line, format!("{of} of {of}"), format!("{equal} of {of}"));
    Ok(())
}

/// Formats both listings and heads as posted.
fn as_posted(sides: [&Profile; 2], heads: &[heads::Posted; 2]) -> String {
    let side = |(profile, head): (&Profile, &heads::Posted)| {
        format!("{}\n{}", print::Readprofile(profile), head.head)
    };
    sides.into_iter().zip(heads).map(side).collect::<Vec<_>>().join("\n")
}
