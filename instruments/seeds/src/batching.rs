//! Post 002: tests of TCP with and without batching, and the additional retransmissions.

use linerate_prof::Result;
use linerate_show::table::{Cell, Column, Row, Table};

use super::{Post, Report, Text};
use crate::decimal::{Decimal, Rounding};
use crate::stats::{Counts, Direction, Goal, Overall, Pair};

mod environment;
mod parse;

use parse::{Grid, Test};

const NO_RATIO: &str = "a ratio of nothing";

/// The goal of a transfer rate, where more is better; the post does not mention noise.
const GOAL: Goal = Goal::More;
const NOISE_PCT: f64 = 0.0;

/// Recomputes the post's figures.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn report(post: &'static Post, text: &str) -> Result<Report> {
    let text = Text::new(post.id, text)?;
    let grid = parse::grid(&text)?;
    let mut report = Report::new(post);
    environment::taken(&mut report, &text)?;
    report.table(rows(&grid));
    report.table(groups(&grid));
    retransmissions(&mut report, &text)?;
    report.table(environment::settings(&text)?);
    environment::decisions(&mut report, &text)?;
    changes(&mut report, &grid);
    totals(&mut report, &grid);
    claims(&mut report, &text, &grid)?;
    errata(&mut report, &grid);
    report.as_posted = as_posted(&grid);
    Ok(report)
}

impl Test<'_> {
    fn pair(&self) -> Pair {
        Pair { before: self.org.to_f64(), after: self.new.to_f64() }
    }

    /// Returns the change with two digits, as the post prints it; `None` for a zero divisor.
    fn change(&self, rounding: Rounding) -> Option<Decimal> {
        Decimal::change_pct(self.org, self.new, 2, rounding)
    }
}

fn overall<'a>(tests: impl Iterator<Item = &'a Test<'a>>) -> Overall {
    let pairs: Vec<Pair> = tests.map(Test::pair).collect();
    Overall::of(&pairs, GOAL, NOISE_PCT)
}

fn rows(grid: &Grid<'_>) -> Table {
    let columns = [
        Column::new("test", "test", ""),
        Column::new("size_bytes", "size", "bytes"),
        Column::new("processes", "procs", "n"),
        Column::new("org_rate", "ORG", "rate *"),
        Column::new("new_rate", "NEW", "rate *"),
        Column::new("change_pct", "change", "%"),
        Column::new("verdict", "verdict", ""),
    ];
    let mut table = Table::new("tests", "ORG without batching, NEW with it", &columns);
    for (i, test) in grid.tests.iter().enumerate() {
        if i > 0 && grid.tests.get(i - 1).is_some_and(|before| before.group != test.group) {
            table.rows.push(Row::Rule);
        }
        let change = test.change(Rounding::Truncate);
        table.row(vec![
            Cell::text(test.group),
            Cell::from(test.size_bytes),
            Cell::from(test.processes),
            Cell::from(test.org),
            Cell::from(test.new),
            change.map_or(Cell::Absent(NO_RATIO), Cell::from),
            Cell::text(test.pair().direction(GOAL, NOISE_PCT).as_str()),
        ]);
    }
    table.note(
        "* The post gives no unit; it calls the sum \"BW\". Changes are cut off after two \
        digits, as in the post.",
    );
    table
}

fn groups(grid: &Grid<'_>) -> Table {
    let columns = [
        Column::new("group", "tests", ""),
        Column::new("tests", "", "n"),
        Column::new("org_rate", "ORG, sum", "rate *"),
        Column::new("new_rate", "NEW, sum", "rate *"),
        Column::new("sums_pct", "ratio of\nsums", "change %"),
        Column::new("geometric_pct", "geometric\nmean", "change %"),
        Column::new("better", "better", "n"),
        Column::new("worse", "worse", "n"),
        Column::new("same", "same", "n"),
    ];
    let title =
        "All of them, and by group: three answers to \"how much better\", none of them alone";
    let mut table = Table::new("groups", title, &columns);
    let mut row = |name: String, picked: &dyn Fn(&Test<'_>) -> bool| {
        let all = overall(grid.tests.iter().filter(|test| picked(test)));
        table.row(vec![
            Cell::Text(name),
            Cell::Count(all.tests as u64),
            Cell::Real(all.before, 0),
            Cell::Real(all.after, 0),
            Cell::change(all.sums_pct, 2, NO_RATIO),
            Cell::change(all.geometric_pct, 1, NO_RATIO),
            Cell::Count(all.counts.better as u64),
            Cell::Count(all.counts.worse as u64),
            Cell::Count(all.counts.same as u64),
        ]);
    };
    row("all".into(), &|_| true);
    for group in grid.groups() {
        row(group.into(), &|test| test.group == group);
    }
    for size in distinct(grid, |test| test.size_bytes) {
        row(format!("size {size}"), &|test| test.size_bytes == size);
    }
    for processes in distinct(grid, |test| test.processes) {
        row(format!("processes {processes}"), &|test| test.processes == processes);
    }
    table
}

/// Returns the distinct values of `key`, in the order of the post.
fn distinct(grid: &Grid<'_>, key: impl Fn(&Test) -> Decimal) -> Vec<Decimal> {
    let mut values = Vec::new();
    for value in grid.tests.iter().map(key) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// Computes the number of additional retransmissions, which the table lacks.
fn retransmissions(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let regular = text.number_before("retransmissions, while there were")?;
    let batching = text.number_after("retransmissions, while there were")?;
    let stated = text.number_before("retransmissions for every 1")?;
    let ratio = batching.is.divided_by(regular.is, 0, Rounding::Nearest);
    let columns = [
        Column::new("code", "code", ""),
        Column::new("retransmissions", "retransmissions", "in a full run"),
        Column::new("ratio", "ratio", "x"),
    ];
    let mut table = Table::new("retransmissions", "What it costs: retransmissions", &columns);
    table.row(vec![Cell::text("ORG"), Cell::from(regular.is), Cell::from(Decimal::whole(1))]);
    table.row(vec![
        Cell::text("NEW"),
        Cell::from(batching.is),
        ratio.map_or(Cell::Absent(NO_RATIO), Cell::from),
    ]);
    report.table(table);
    let Some(ratio) = ratio.filter(|ratio| *ratio != stated.is) else { return Ok(()) };
    let what = "retransmissions for every 1 in regular code";
    if ratio.as_count().is_some_and(|n| Decimal::whole(three_digits(n)) == stated.is) {
        let gives = format!(
            "{} / {} = {}; the post rounds to three digits.",
            batching.is, regular.is, ratio
        );
        report.erratum(stated.line, format!("\"{} {what}\"", stated.is), gives);
    } else {
        report.check(what, stated.line, stated.is, ratio);
    }
    Ok(())
}

/// Rounds a count to three digits.
fn three_digits(n: u64) -> u64 {
    let unit = 10_u64.pow(n.checked_ilog10().unwrap_or(0).saturating_sub(2));
    n.saturating_add(unit / 2) / unit * unit
}

/// Checks every change in per cent that the post prints, to the last digit.
fn changes(report: &mut Report, grid: &Grid<'_>) {
    let printed = |test: &Test| {
        let change = test.change(Rounding::Truncate);
        change.map_or("-".to_owned(), Decimal::as_bc_prints)
    };
    let wrong: Vec<&Test> = grid.tests.iter().filter(|test| printed(test) != test.posted).collect();
    let all = grid.tests.len();
    let first = grid.tests.first().map_or(0, |test| test.line);
    let what = "% changes that are the post's to the last digit";
    let equal = all - wrong.len();
    report.check(what, first, format!("{all} of {all}"), format!("{equal} of {all}"));
    for test in wrong {
        let what = format!("% change, {} {}", test.group, test.label());
        report.check(what, test.line, test.posted.to_owned(), printed(test));
    }
}

/// Checks the last line of the post's table: sums, change of the sums, counts.
fn totals(report: &mut Report, grid: &Grid<'_>) {
    let all = overall(grid.tests.iter());
    let [org, new, change] = sums(grid);
    let posted = &grid.overall;
    report.check("sum of ORG", posted.line, posted.org.to_string(), org);
    report.check("sum of NEW", posted.line, posted.new.to_string(), new);
    let what = "overall change, of the sums, %";
    report.check(what, posted.line, posted.posted.to_owned(), change);
    let (line, better, worse) = grid.summary;
    report.check("tests that got better", line, better.to_string(), all.counts.better.to_string());
    report.check("tests that got worse", line, worse.to_string(), all.counts.worse.to_string());
}

/// Returns the sums of both columns and the change of the sum, as the post prints them.
fn sums(grid: &Grid<'_>) -> [String; 3] {
    let sum = |value: fn(&Test<'_>) -> Decimal| {
        grid.tests.iter().try_fold(Decimal::whole(0), |sum, test| sum.plus(value(test)))
    };
    let (org, new) = (sum(|test| test.org), sum(|test| test.new));
    let change =
        org.zip(new).and_then(|(org, new)| Decimal::change_pct(org, new, 2, Rounding::Truncate));
    [org, new, change].map(|value| value.map_or("-".into(), Decimal::as_bc_prints))
}

/// Checks the claims of the text against the table.
fn claims(report: &mut Report, text: &Text<'_>, grid: &Grid<'_>) -> Result<()> {
    for (group, phrase) in [
        ("TCP No Delay", "improvement for TCP No Delay is in the range of"),
        ("TCP", "results for TCP is in the range of"),
    ] {
        let said = text.number_after(phrase)?;
        let high = text.number_after(&format!("{phrase} {}% to", said.is))?;
        let changes: Vec<Decimal> =
            grid.of(group).filter_map(|t| t.change(Rounding::Truncate)).collect();
        let whole = |found: Option<&Decimal>| {
            let cut = found.and_then(|d| d.with_digits(0, Rounding::Truncate));
            cut.map_or("-".to_owned(), |d| d.to_string())
        };
        let by = |a: &&Decimal, b: &&Decimal| a.to_f64().total_cmp(&b.to_f64());
        let worst = whole(changes.iter().min_by(by));
        let best = whole(changes.iter().max_by(by));
        report.check(format!("worst of {group}, %"), said.line, said.is.to_string(), worst);
        report.check(format!("best of {group}, %"), high.line, high.is.to_string(), best);
    }
    let sole = text.between("% being the", "negative)")?;
    let negative = grid.of("TCP No Delay").filter(|t| worse(t)).count();
    let stated = if sole.is == "sole" { "1" } else { sole.is };
    let what = "negative among TCP No Delay";
    report.check(what, sole.line, stated.to_owned(), negative.to_string());
    let of_tcp = text.between("most of the tests (", ")")?;
    let better = grid.of("TCP").filter(|t| better(t)).count();
    let counted = format!("{better}/{}", grid.of("TCP").count());
    report.check("better among TCP", of_tcp.line, of_tcp.is.to_owned(), counted);
    let gain = text.number_before("overall improvement in BW")?;
    let all = overall(grid.tests.iter());
    let computed = Cell::real(all.sums_pct, 1, NO_RATIO).to_string();
    report.check("overall improvement, %", gain.line, gain.is.to_string(), computed);
    Ok(())
}

fn better(test: &Test) -> bool {
    test.pair().direction(GOAL, NOISE_PCT) == Direction::Better
}

fn worse(test: &Test) -> bool {
    test.pair().direction(GOAL, NOISE_PCT) == Direction::Worse
}

fn errata(report: &mut Report, grid: &Grid<'_>) {
    let all = overall(grid.tests.iter());
    if let (Some(sums), Some(geometric)) = (all.sums_pct, all.geometric_pct) {
        let large = grid.tests.iter().filter(|test| test.size_bytes.to_f64() >= 512.0);
        let large: f64 = large.map(|test| test.org.to_f64()).sum();
        let gives = format!(
            "It is the change of a sum over unlike tests. Sizes of 512 bytes and more are {:.0} % of \
             that sum. With every test weighing the same (geometric mean) it is {geometric:+.1} %, \
             not {sums:+.2} %.",
            100.0 * large / all.before
        );
        report.erratum(grid.overall.line, format!("\"Overall: {}%\"", grid.overall.posted), gives);
    }
    let rounds = |test: &&Test| test.change(Rounding::Nearest) != test.change(Rounding::Truncate);
    let rounded = grid.tests.iter().filter(rounds).count();
    if let Some(test) = grid.tests.iter().find(rounds) {
        let gives = format!(
            "They are cut off after two digits, as bc does, and not rounded: rounding would change \
             {rounded} of {}. The first: {} to {} is {}, printed as {}.",
            grid.tests.len(),
            test.org,
            test.new,
            test.change(Rounding::Nearest).map_or("-".into(), |d| d.to_string()),
            test.posted
        );
        report.erratum(test.line, "The % changes", gives);
    }
    let gives = "Each cell is one figure. How often it was run and how far the runs were apart is \
        not said, so a change of a per cent or two may be none.";
    report.erratum(None, "Nothing is said of runs, of spread, of latency or of CPU", gives);
}

/// Returns the table as it was posted.
fn as_posted(grid: &Grid<'_>) -> String {
    let row = |test: &Test<'_>| BatchRow {
        group: test.group.to_owned(),
        processes: test.processes.to_string(),
        label: test.label(),
        org: test.org.to_string(),
        new: test.new.to_string(),
        change: test.change(Rounding::Truncate).map_or("-".into(), Decimal::as_bc_prints),
    };
    let rows: Vec<BatchRow> = grid.tests.iter().map(row).collect();
    let [org, new, change] = sums(grid);
    let sums = [org.to_string(), new.to_string(), change.to_string()];
    let Counts { better, worse, .. } = overall(grid.tests.iter()).counts;
    in_the_layout_of_002(&rows, &sums, [better, worse], |group| grid.indent_of(group))
}

/// A row in the layout of the post's table.
#[derive(Debug)]
pub struct BatchRow {
    /// The group of the test.
    pub group: String,
    /// The number of processes; a blank line separates rows with different numbers.
    pub processes: String,
    /// The first words of the row.
    pub label: String,
    /// The rate without batching.
    pub org: String,
    /// The rate with batching.
    pub new: String,
    /// The change in per cent.
    pub change: String,
}

/// Formats rows in the layout of the post's table. `sums` are the sums of both rates and their
/// change, `counts` the numbers of better and worse tests, and `indent` the blanks before a group's
/// name.
#[must_use]
pub fn in_the_layout_of_002(
    rows: &[BatchRow],
    sums: &[String; 3],
    [better, worse]: [usize; 2],
    indent: impl Fn(&str) -> usize,
) -> String {
    const RULE: &str = "---------------------------------------------------------------\n";
    let line =
        |[first, org, new, change]: [&str; 4]| format!("{first:<26}{org:<12}{new:<15}{change}\n");
    let mut table =
        format!("{RULE}Test Case                 ORG         NEW          % Change\n{RULE}");
    let mut last: Option<&BatchRow> = None;
    for row in rows {
        if last.is_none_or(|last| last.group != row.group) {
            let indent = " ".repeat(indent(&row.group));
            let blank = if last.is_some() { "\n" } else { "" };
            let rule = "-".repeat(row.group.chars().count());
            table += &format!("{blank}{indent}{}\n{indent}{rule}\n", row.group);
        } else if last.is_some_and(|last| last.processes != row.processes) {
            table.push('\n');
        }
        table += &line([&row.label, &row.org, &row.new, &row.change]);
        last = Some(row);
    }
    let [org, new, change] = sums;
    table
        + RULE
        + &line(["Overall:", org, new, &format!("{change}%")])
        + &format!("{:24}[Summary: {better} Better cases, {worse} worse]\n", "")
}
