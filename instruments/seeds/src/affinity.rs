//! Post 003: L2 cache lines out, function by function, with and without affinity.
//!
//! The posted table was made by hand from two kernprof listings, which are quoted below it. Here
//! the readers and the difference that today's profiles use make it from the same two listings, and
//! each row is compared with the posted one.

use linerate_prof::Result;
use linerate_prof::diff::Diff;
use linerate_prof::print;
use linerate_prof::profile::Profile;
use linerate_prof::read::{self, Form};
use linerate_prof::stage::Stage;

use super::{Post, Printed, Report, Text};

/// A row of the post's table.
#[derive(Debug, PartialEq)]
struct Ranked<'a> {
    line: usize,
    function: &'a str,
    with: u64,
    without: u64,
    saved: i64,
}

/// Recomputes the post's figures.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn report(post: &'static Post, text: &str) -> Result<Report> {
    let words = Text::new(post.id, text)?;
    let ranked = ranked(&words)?;
    let [without, mut with] = listings(post, text)?;
    let mut report = Report::new(post);
    two_names(&mut report, &words, &without, &with)?;
    // The post uses two names for one event; a difference needs equal names.
    with.event.clone_from(&without.event);
    let diff = Diff::between(&without, &with);
    taken(&mut report, &words)?;
    report.printed(Printed::diff("difference", "Ranked by what affinity saved", &diff));
    checks(&mut report, &ranked, &diff);
    errata(&mut report, &words, &diff, [&without, &with])?;
    report.as_posted = print::Ranked::new(&diff).as_posted(true).to_string();
    Ok(report)
}

/// Returns the two listings: first without affinity, as in the post, then with it.
fn listings(post: &Post, text: &str) -> Result<[Profile; 2]> {
    let read = read::parse(text.as_bytes(), Some(Form::Kernprof))?;
    super::two(post, read)
}

/// Parses the posted table.
fn ranked<'a>(text: &Text<'a>) -> Result<Vec<Ranked<'a>>> {
    let head = text.line_with(1, "Thanx, Paul")?.line;
    let rows = text.lines_from(head + 1);
    let rows = rows.take_while(|(_, row)| !row.starts_with('>') && !row.trim().is_empty());
    let rows: Result<Vec<Ranked<'_>>> = rows
        .map(|(line, row)| {
            let why = "\"function with without difference\" should stand here";
            posted_row(line, row).ok_or_else(|| text.wrong(line, why))
        })
        .collect();
    rows.and_then(
        |rows| if rows.is_empty() { Err(text.wrong(head, "no row follows")) } else { Ok(rows) },
    )
}

fn posted_row(line: usize, row: &str) -> Option<Ranked<'_>> {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let [function, with, without, saved] = fields[..] else { return None };
    let (with, without) = (with.parse().ok()?, without.parse().ok()?);
    Some(Ranked { line, function, with, without, saved: saved.parse().ok()? })
}

fn taken(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let mut fact = |about, from, to| {
        text.between(from, to).map(|said| report.taken(about, said.is, Some(said.line)))
    };
    fact("event", "I have profiled", " on netperf")?;
    fact("tool", "You can use", " to measure PMCs")?;
    fact("workload", "L2_LINES_OUT on", ".")?;
    fact("kernel, load", "The following is the profiling from a", ":")?;
    fact("change", "To eliminate the cache-line bouncing, I applied", ".")?;
    report.taken("runs, spread", "not said; nor events for each sample, throughput or CPU", None);
    Ok(())
}

fn checks(report: &mut Report, posted: &[Ranked<'_>], diff: &Diff) {
    let computed: Vec<String> = diff
        .rows
        .iter()
        .map(|row| {
            let (with, without) = (row.with.as_posted(), row.without.as_posted());
            format!("{} {with} {without} {}", row.symbol, row.sum().saved_counts())
        })
        .collect();
    let said =
        |row: &Ranked<'_>| format!("{} {} {} {}", row.function, row.with, row.without, row.saved);
    let of = posted.len().max(computed.len());
    let equal = posted.iter().zip(&computed).filter(|(a, b)| said(a) == **b).count();
    let line = posted.first().map_or(0, |row| row.line);
    let what = "rows made of Mala Anand's two lists that are Paul McKenney's own, in his order";
    report.check(what, line, format!("{of} of {of}"), format!("{equal} of {of}"));
    for (i, row) in posted.iter().enumerate() {
        let ours = computed.get(i).map_or("no row", String::as_str);
        if said(row) != ours {
            report.check(format!("row {}", i + 1), row.line, said(row), ours.to_owned());
        }
    }
    let right =
        posted.iter().filter(|r| i128::from(r.without) - i128::from(r.with) == i128::from(r.saved));
    let what = "differences that are without - with";
    let (right, of) = (right.count(), posted.len());
    report.check(what, line, format!("{of} of {of}"), format!("{right} of {of}"));
}

fn errata(report: &mut Report, text: &Text<'_>, diff: &Diff, sides: [&Profile; 2]) -> Result<()> {
    let ticks = text.line_with(1, "Column 2 is profile ticks")?;
    let event = &diff.with.event;
    let gives = format!(
        "They are event samples, {} of {}, not of time: a function with many of them let many lines go, and may have \
         taken little time.",
        event.unit.as_str(),
        event.name
    );
    report.erratum(ticks.line, "\"Column 2 is profile ticks\"", gives);
    let zeros: Vec<_> = diff.rows.iter().filter(|row| row.with.as_posted() == 0).collect();
    if let (Some(cutoff), Some(first)) = (diff.with.cutoff, zeros.first()) {
        let [with, without] = [first.with.as_posted(), first.without.as_posted()];
        let gives = format!(
            "{} functions are not in the list with affinity, whose smallest row is {cutoff}: they were \
             seen fewer times than that, which is not 0. So {} saved more than {}, and not {}; all of \
             them together more than {:.0}, and not {:.0}.",
            zeros.len(),
            first.symbol,
            first.sum().saved_least(diff.scale),
            without - with,
            diff.sum_of(|row| row.with.as_posted() == 0).saved_least(diff.scale),
            diff.sum_of(|row| row.with.as_posted() == 0).saved(diff.scale)
        );
        let line = text.line_with(1, &format!("{} {with} {without}", first.symbol))?.line;
        report.erratum(line, format!("\"{} {with} {without}\"", first.symbol), gives);
    }
    idle(report, text, diff)?;
    another_kernel(report, text, sides)?;
    let gives = "Interrupts and processes were bound at once: which of the two saved what is not known. \
        Throughput and CPU are not given, so the samples cannot be divided by packets or bytes.";
    report.erratum(
        text.line_with(1, "I applied IRQ and PROCESS")?.line,
        "Two changes at once",
        gives,
    );
    Ok(())
}

fn two_names(report: &mut Report, text: &Text<'_>, a: &Profile, b: &Profile) -> Result<()> {
    if a.event.name == b.event.name {
        return Ok(());
    }
    let line = text.line_with(1, &b.event.name)?.line;
    let gives = format!(
        "The list without affinity is of {}. A P6 counts one event of that kind: the two are taken for \
         the same here, as the post does.",
        a.event.name
    );
    report.erratum(line, format!("\"{}\"", b.event.name), gives);
    Ok(())
}

/// Reports the idle loop, if it leads the table.
fn idle(report: &mut Report, text: &Text<'_>, diff: &Diff) -> Result<()> {
    let Some(first) = diff.rows.first().filter(|row| row.stage == Stage::Idle) else {
        return Ok(());
    };
    let idle = diff.sum_of(|row| row.stage == Stage::Idle);
    let all = diff.sum();
    let (Some(with), Some(without)) =
        (all.saving_as_listed(diff.scale), diff.sum_without_idle().saving_as_listed(diff.scale))
    else {
        return Ok(());
    };
    let gives = format!(
        "It is the idle loop: {} of the {} samples saved are its. In all {} -> {}, {:+.1} %; without it \
         {} -> {}, {:+.1} %.",
        idle.saved_counts(),
        all.saved_counts(),
        all.without,
        all.with,
        -with,
        all.without - idle.without,
        all.with - idle.with,
        -without
    );
    let line = text.line_with(1, &first.symbol)?.line;
    report.erratum(line, format!("{} leads the table", first.symbol), gives);
    Ok(())
}

/// Reports functions whose address differs in the other list, which is therefore of another kernel.
fn another_kernel(report: &mut Report, text: &Text<'_>, sides: [&Profile; 2]) -> Result<()> {
    let [without, with] = sides;
    let both: Vec<_> = with
        .rows
        .iter()
        .filter_map(|a| Some((a, without.rows.iter().find(|b| b.symbol == a.symbol)?)))
        .collect();
    let moved: Vec<_> = both.iter().filter(|(a, b)| a.address != b.address).collect();
    let Some((now, before)) = moved.first() else { return Ok(()) };
    let hex = |address: Option<u64>| address.map_or("-".into(), |address| format!("{address:x}"));
    let gives = format!(
        "{} of the {} functions in both lists are at another address ({}: {} without, {} with): the \
         kernel with affinity was another build. What else is new in it is not said.",
        moved.len(),
        both.len(),
        now.symbol,
        hex(before.address),
        hex(now.address)
    );
    let line = text.line_with(1, "profiling with affinity:")?.line;
    report.erratum(line, "Two kernels", gives);
    Ok(())
}
