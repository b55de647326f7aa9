//! A run as text for a screen of 100 columns, short enough to be read completely. It names
//! everything that it leaves out.

use linerate_seeds::Post;
use linerate_show::number::count;
use linerate_show::table::Table;
use linerate_show::words::elided;
use linerate_show::words::wrapped;

use super::agreed;
use super::crossover;
use super::posted::{self, Posted};
use super::reads;
use super::remarks::reasons;
use super::remarks::{Remark, notes, warnings};
use super::sentence::expectations;
use super::tables;
use super::view::Shown;
use super::view::View;
use super::words::{n, short};
use crate::analysis::distinct;
use crate::record::{Effect, Ledger, Run, Verdict};

/// Most tables in a post's layout that are printed, except those of post 001: the headline has the
/// CPU time of every cell, and only these tables have the latency beside it.
const POSTED_MAX: usize = 4;

/// Most lines of tables; metrics that do not fit are listed by name. The headline always has its
/// table.
const LINES_MAX: usize = 30;

/// Most notes that are printed.
const NOTES_MAX: usize = 8;

/// Most reasons for drops that are named beside their sum.
const DROPS_MAX: usize = 4;

/// Formats the whole run as text.
pub(super) fn text(run: &Run) -> String {
    let view = View::new(run);
    let parts = [head, few, effects, posted, agreed, expected, ledger, elsewhere, noted];
    parts.iter().map(|part| part(&view)).collect()
}

fn head(view: &View<'_>) -> String {
    let marks = view.marks();
    let mut text = match marks.as_slice() {
        [] => String::new(),
        marks => wrapped(&marks.join("; "), "! ", "  "),
    };
    text += &wrapped(&view.verdict(), "", "  ");
    let warnings = warnings(view);
    for (i, Remark { code, text: said, fix }) in warnings.iter().enumerate() {
        text += &wrapped(&format!("{code} {said}"), "! ", "  ");
        // If the next warning has the same remedy, print the remedy only once, after the last of
        // them.
        let next = warnings.get(i + 1).and_then(|next| next.fix.as_ref());
        if let Some(fix) = fix.as_ref().filter(|fix| next != Some(*fix)) {
            text += &wrapped(fix, "  fix: ", "       ");
        }
    }
    text.push('\n');
    for (about, fact) in view.facts() {
        text += &wrapped(&fact, &format!("  {about:12}"), &" ".repeat(14));
    }
    text
}

/// Describes the cells that support little or no conclusion.
fn few(view: &View<'_>) -> String {
    let reasons = reasons(view);
    let line = |(cells, why): &(String, String)| {
        let why = if cells.is_empty() { why.clone() } else { format!("{cells}: {why}") };
        wrapped(&why, "  ", "    ")
    };
    let lines: String = reasons.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\nInconclusive results\n{lines}") }
}

/// Formats the headline, then metrics that contradict an expectation, then those that changed, up
/// to the limit of space.
fn effects(view: &View<'_>) -> String {
    if tables::are_few_cells(view) {
        return cell_by_cell(view) + &uncounted(view);
    }
    let headline = view.measured().take(1);
    let others = || view.measured().skip(1);
    let surprises = others().filter(|metric| is_surprise(view, metric));
    let changes = others().filter(|metric| !is_surprise(view, metric) && changed(view, metric) > 0);
    let (mut text, mut lines, mut untold) = (String::new(), 0, Vec::new());
    for metric in headline.chain(surprises).chain(changes) {
        let mut table = tables::of_metric(view, metric);
        if !text.is_empty() {
            table.notes.retain(|note| note.starts_with("all:") || note.contains(tables::ELSEWHERE));
        }
        let table = set(&table, &metric.about);
        lines += table.lines().count();
        if text.is_empty() || lines <= LINES_MAX {
            text += &table;
        } else {
            let (cells, changed) = (view.told().count(), changed(view, metric));
            untold.push(match is_surprise(view, metric) {
                true => format!("{} (not as expected)", metric.label),
                false => format!("{} in {} of {}", metric.label, n(changed), n(cells)),
            });
        }
    }
    let rest = others().filter(|one| !is_surprise(view, one) && changed(view, one) == 0);
    let rest: Vec<&Shown> = rest.collect();
    let mut more = named("also better, worse or different, by cells", &untold.join(", "));
    more += &undecided(view, &rest);
    let gap = if more.is_empty() { "" } else { "\n" };
    text + gap + &more + &uncounted(view)
}

/// The meaning of the list of call chains.
const CHAINS: &str =
    "Call chains: a function's callees are indented below it and are in its counts.";

/// Formats the results in the layout of the post that the run reproduces.
fn posted(view: &View<'_>) -> String {
    let [a, b] = view.sides();
    let tables = posted::of(view);
    let most = if view.run.experiment.seed_post == "001" { tables.len() } else { POSTED_MAX };
    let (mut text, mut legend) = (String::new(), "");
    for posted in tables.iter().take(most) {
        let Posted { sides: [its_a, its_b], title, text: table, beside, .. } = posted;
        let title =
            format!("In the post's layout, {a} for its {its_a} and {b} for its {its_b}: {title}");
        text += &format!("\n{}{table}", wrapped(&title, "", "  "));
        for table in beside {
            if !table.title.is_empty() {
                text += &format!("\n{}", wrapped(&table.title, "  ", "  "));
            }
            text += &table.to_string();
        }
        if !posted.chains.is_empty() {
            text += &format!("\n{}{}", wrapped(CHAINS, "  ", "  "), posted.chains);
        }
        // All tables have the same columns: explain them once.
        if legend.is_empty() {
            legend = posted.legend;
            text += &wrapped(legend, "  ", "  ");
        }
    }
    if let Some(more) = tables.len().checked_sub(most).filter(|more| *more > 0) {
        text += &format!("  {} more such tables with --html\n", n(more));
    }
    let model: Vec<String> = crossover::lines(view).into_iter().chain(reads::lines(view)).collect();
    text.extend(model.first().map(|_| '\n'));
    text.extend(model.iter().map(|line| wrapped(line, "", "  ")));
    text
}

/// Formats the comparison of two instruments.
fn agreed(view: &View<'_>) -> String {
    agreed::table(view).map_or_else(String::new, |table| set(&table, ""))
}

fn named(what: &str, names: &str) -> String {
    if names.is_empty() {
        String::new()
    } else {
        wrapped(&format!("{what}: {names}"), "  ", "    ")
    }
}

/// Formats a table for each cell, with the same metrics.
fn cell_by_cell(view: &View<'_>) -> String {
    let headline = view.measured().next().map(|metric| &metric.name);
    let is_told = |metric: &Shown| {
        headline == Some(&metric.name) || is_surprise(view, metric) || changed(view, metric) > 0
    };
    let (told, rest): (Vec<&Shown>, Vec<&Shown>) = view.measured().partition(|one| is_told(one));
    let each = view.told().map(|(name, cell)| set(&tables::of_cell(name, cell, &told), ""));
    let each: String = each.collect();
    let rest = undecided(view, &rest);
    if rest.is_empty() { each } else { format!("{each}\n{rest}") }
}

/// Lists the metrics without a count, grouped by the reason.
fn uncounted(view: &View<'_>) -> String {
    let line = |(why, names): (&str, Vec<&str>)| {
        wrapped(&format!("not counted here: {}: {why}", names.join(", ")), "  ", "    ")
    };
    let lines: String = tables::uncounted(view).into_iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\n{lines}") }
}

/// Names the metrics without a difference: those that are the same in all cells, and those of which
/// some cell is unclear.
fn undecided(view: &View<'_>, metrics: &[&Shown]) -> String {
    let is_same = |metric: &&&Shown| {
        let mut verdicts = effects_of(view, metric).map(|effect| effect.verdict).peekable();
        verdicts.peek().is_some() && verdicts.all(|verdict| verdict == Verdict::Same)
    };
    let (same, unclear): (Vec<&Shown>, Vec<&Shown>) = metrics.iter().partition(is_same);
    let names =
        |of: Vec<&Shown>| of.iter().map(|one| one.label.as_str()).collect::<Vec<_>>().join(", ");
    named("the same, within the margin", &names(same))
        + &named("unclear in some cell", &names(unclear))
}

/// Returns the number of cells in which a metric got better or worse, or certainly differs where
/// neither direction is better.
fn changed(view: &View<'_>, metric: &Shown) -> usize {
    let is = |effect: &&Effect| {
        matches!(effect.verdict, Verdict::Better | Verdict::Worse)
            || (effect.better_when.is_none() && distinct(effect))
    };
    effects_of(view, metric).filter(is).count()
}

/// Returns true if the metric certainly contradicts its expectation in some cell.
fn is_surprise(view: &View<'_>, metric: &Shown) -> bool {
    let mut expected = effects_of(view, metric).filter_map(|effect| effect.expected.as_ref());
    expected.any(|expected| expected.certain && !expected.met)
}

fn effects_of<'v>(view: &'v View<'_>, metric: &'v Shown) -> impl Iterator<Item = &'v Effect> {
    view.run.cells.iter().filter_map(|cell| cell.metrics.get(&metric.name))
}

fn expected(view: &View<'_>) -> String {
    let line = |one: &super::sentence::Expectation| {
        wrapped(&format!("{} ({}): {}", one.what, one.source, one.outcome), "  ", "    ")
    };
    let lines: String = expectations(view).iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("\nWhat was expected\n{lines}") }
}

/// Formats the ledgers as equations: for each side over all cells, and for each cell in which the
/// equation does not hold.
fn ledger(view: &View<'_>) -> String {
    if !tables::has_packets(view) {
        return String::new();
    }
    let line = |side: &str, ledger: &Ledger| {
        let start = format!("  {:14}", elided(side, 14));
        wrapped(&equation(ledger), &start, &" ".repeat(18))
    };
    let cells = view.run.cells.len();
    let over = if cells > 1 { format!(", over {} cells", n(cells)) } else { String::new() };
    let mut text = format!("\nWhere every packet went{over}\n");
    for (side, ledger) in tables::sums(view) {
        text += &line(&side, &ledger);
    }
    if cells < 2 {
        return text;
    }
    for (name, cell) in view.named().filter(|(_, cell)| !cell.ledger.balanced()) {
        text += &wrapped(name, "  ", "  ");
        for (side, ledger) in view.ledgers(cell) {
            text += &line(&side, ledger);
        }
    }
    text
}

fn equation(ledger: &Ledger) -> String {
    if *ledger == Ledger::default() {
        return "no packets".into();
    }
    let mut reasons: Vec<(&String, u64)> =
        ledger.dropped.iter().map(|(reason, n)| (reason, *n)).filter(|(_, n)| *n > 0).collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let named = reasons.iter().take(DROPS_MAX);
    let named: Vec<String> =
        named.map(|(reason, n)| format!("{} {}", short(reason), count(*n))).collect();
    let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
    let dropped = count(tables::dropped(ledger));
    let came = sum([("received", ledger.received), ("created", ledger.created)]);
    let went = sum([("sent", ledger.sent), ("consumed", ledger.consumed)]);
    let in_flight = match ledger.in_flight {
        0 => String::new(),
        n => format!(" + in flight {}", count(n)),
    };
    let balance = tables::balance(ledger);
    let mut text = format!("{came} = {went} + dropped {dropped}{named}{in_flight}: {balance}");
    let others = [
        ("offered", ledger.offered),
        ("unsent", ledger.unsent),
        ("reordered", ledger.reordered),
        ("duplicated", ledger.duplicated),
        ("sent again", ledger.retransmitted),
    ];
    let counted = |(name, n): (&str, Option<u64>)| Some(format!("{name} {}", count(n?)));
    let counted: Vec<String> = others.into_iter().filter_map(counted).collect();
    if !counted.is_empty() {
        text += &format!("; {}", counted.join(", "));
    }
    text
}

/// Formats the sum of two counts without terms of 0; if both are 0, the first term.
fn sum(terms: [(&str, u64); 2]) -> String {
    let [first, _] = terms;
    let some: Vec<(&str, u64)> = terms.into_iter().filter(|(_, n)| *n > 0).collect();
    let some = if some.is_empty() { vec![first] } else { some };
    let each = some.into_iter().map(|(name, n)| format!("{name} {}", count(n)));
    each.collect::<Vec<_>>().join(" + ")
}

/// Describes the data that this text omits, with the commands that print it.
fn elsewhere(view: &View<'_>) -> String {
    let run = view.run;
    let some = |count: usize, what: &str| (count > 0).then(|| format!("{what} ({})", n(count)));
    let parts = [
        some(view.pairs().2, "pairs one by one"),
        some(run.profiles.len(), "profiles"),
        some(run.matrices.len(), "matrices"),
        some(run.totals.len(), "totals of the sides"),
        some(view.fixed_points().len(), "published values"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let mut text = "\n".to_owned();
    if !parts.is_empty() {
        text += &wrapped(&format!("With --html: {}.", parts.join(", ")), "", "  ");
    }
    if let Some(post) = Post::named(&run.experiment.seed_post) {
        let post = format!(
            "The post's own tables, for their shape: linerate lab seeds {}. Absolute values are not \
             compared: another machine, another kernel, another year.",
            post.id
        );
        text += &wrapped(&post, "", "  ");
    }
    text
}

fn noted(view: &View<'_>) -> String {
    let notes = notes(view);
    let mut text = String::new();
    for Remark { text: said, fix, .. } in notes.iter().take(NOTES_MAX) {
        let fix = fix.as_ref().map_or(String::new(), |fix| format!("; {fix}"));
        text += &wrapped(&format!("{said}{fix}"), "  ", "    ");
    }
    if let Some(more) = notes.len().checked_sub(NOTES_MAX).filter(|more| *more > 0) {
        text += &format!("  {} more with --html\n", n(more));
    }
    if text.is_empty() { text } else { format!("\nNotes\n{text}") }
}

/// Formats a table under its title and its subject. A table that is too wide loses the middle of
/// its longest names.
fn set(table: &Table, about: &str) -> String {
    let colon = if about.is_empty() { "" } else { ": " };
    let title = format!("{}{colon}{about}", table.title);
    let mut text = format!("\n{}", wrapped(&title, "", "  "));
    let notes = Table { rows: Vec::new(), columns: Vec::new(), ..table.clone() };
    let figures = Table { notes: Vec::new(), ..table.clone() };
    text += &figures.fitted().to_string();
    for note in &notes.notes {
        text += &wrapped(note, "  ", "    ");
    }
    text
}
