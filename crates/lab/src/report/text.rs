//! A run as text, for a screen of 100 columns.

use linerate_prof::print::{Ranked, Readprofile};
use linerate_prof::profile::Profile;

use super::figure::count;
use super::profiles::{Profiles, profiles};
use super::tables;
use super::view::{View, elided, short, shown};
use crate::record::{Ledger, Run};
use crate::seeds::Post;
use crate::table::{Table, WIDTH, wrapped};

/// Functions of a profile that are listed.
const FUNCTIONS_MAX: usize = 25;

/// Functions of each part of a difference, both ways.
const TOP: usize = 15;

/// Rows and columns of a matrix that are printed.
const MATRIX_MAX: usize = 8;

/// The whole of it.
pub(super) fn text(run: &Run) -> String {
    let view = View::new(run);
    let mut text = head(&view);
    for table in tables::effects(&view) {
        text += &set(&table);
    }
    text += &ledger(&view);
    let tables = [tables::drops(&view), tables::totals(&view), tables::fixed_points(&view)];
    text.extend(tables.iter().flatten().map(set));
    text += &matrices(run);
    text.extend(profiles(run).iter().take(tables::ROWS_MAX).map(profile));
    text += &post(run);
    text + &warnings(run)
}

fn head(view: &View<'_>) -> String {
    let marks = view.marks();
    let mut text = match marks.as_slice() {
        [] => String::new(),
        marks => wrapped(&marks.join("; "), "! ", "  "),
    };
    text += &wrapped(&view.verdict(), "", "  ");
    text.push('\n');
    for (about, fact) in view.facts() {
        text += &wrapped(&fact, &format!("  {about:12}"), &" ".repeat(14));
    }
    text
}

/// A table under its title. One that is too wide loses the middle of its longest names.
fn set(table: &Table) -> String {
    let mut text = format!("\n{}", wrapped(&table.title, "", "  "));
    let notes = Table { rows: Vec::new(), columns: Vec::new(), ..table.clone() };
    let figures = Table { notes: Vec::new(), ..table.clone() };
    text += &fitted(figures).to_string();
    for note in &notes.notes {
        text += &wrapped(note, "  ", "    ");
    }
    text
}

fn fitted(mut table: Table) -> Table {
    use crate::table::{Cell, Row};
    loop {
        let widest = table.to_string().lines().map(|line| line.chars().count()).max().unwrap_or(0);
        let Some(over) = widest.checked_sub(WIDTH).filter(|over| *over > 0) else { return table };
        let names = table.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => cells.iter().filter_map(length_of_name).max(),
            Row::Heading(_) | Row::Rule => None,
        });
        let longest = names.max().unwrap_or(0);
        // Names of ten letters cannot be told apart any more.
        let kept = longest.saturating_sub(over).max(10);
        if kept >= longest {
            return table;
        }
        for row in &mut table.rows {
            let Row::Cells(cells) = row else { continue };
            for cell in cells {
                if let Cell::Text(name) = cell {
                    *name = elided(name, kept);
                }
            }
        }
    }
}

fn length_of_name(cell: &crate::table::Cell) -> Option<usize> {
    match cell {
        crate::table::Cell::Text(name) => Some(name.chars().count()),
        _ => None,
    }
}

/// Where every packet went, as the equation that it has to be.
fn ledger(view: &View<'_>) -> String {
    let mut text = "\nWhere every packet went\n".to_owned();
    for (name, cell) in view.named().take(tables::ROWS_MAX) {
        if !name.is_empty() {
            text += &wrapped(name, "  ", "  ");
        }
        for (side, ledger) in view.ledgers(cell) {
            text += &wrapped(
                &equation(ledger),
                &format!("  {:14}", elided(&side, 14)),
                &" ".repeat(18),
            );
        }
    }
    text
}

fn equation(ledger: &Ledger) -> String {
    if *ledger == Ledger::default() {
        return "no packets".into();
    }
    let mut text = format!(
        "received {} + created {} = sent {} + consumed {} + dropped {} + in flight {}: {}",
        count(ledger.received),
        count(ledger.created),
        count(ledger.sent),
        count(ledger.consumed),
        count(tables::dropped(ledger)),
        count(ledger.in_flight),
        tables::balance(ledger),
    );
    for (name, n) in [
        ("; offered", ledger.offered),
        (", unsent", ledger.unsent),
        ("; reordered", ledger.reordered),
        (", duplicated", ledger.duplicated),
        (", sent again", ledger.retransmitted),
    ] {
        text += &format!("{name} {}", n.map_or("n/a".into(), count));
    }
    text
}

fn matrices(run: &Run) -> String {
    let mut text = String::new();
    for (key, matrix) in run.matrices.iter().take(tables::ROWS_MAX) {
        text += &format!("\n{}", wrapped(&shown(key), "", "  "));
        let is_large = matrix.len() > MATRIX_MAX || matrix.iter().any(|row| row.len() > MATRIX_MAX);
        if is_large {
            text += "  more CPUs than fit here: it is in the run's document\n";
            continue;
        }
        for row in matrix {
            let cells: String = row.iter().map(|n| format!("  {:>13}", count(*n))).collect();
            text += &wrapped_only_if_wide(&cells);
        }
    }
    text
}

fn profile(profiles: &Profiles) -> String {
    let Profiles { cell, a, b, diff } = profiles;
    let at = if cell.is_empty() { String::new() } else { format!(", {}", short(cell)) };
    let event = short(&a.event.name);
    let mut text = format!("\n{}", wrapped(&format!("Profile of A by {event}{at}"), "", "  "));
    text += &listing(a);
    text += &format!("\n{}", wrapped(&format!("Profile of B by {event}{at}"), "", "  "));
    text += &listing(b);
    text += "\nWhat moved and what vanished: A is without, B is with the change\n";
    let ranked = Ranked::new(diff).top(Some(TOP)).to_string();
    text.extend(ranked.lines().map(wrapped_only_if_wide));
    text
}

/// The post's own form: ticks, function, ticks for each byte.
fn listing(profile: &Profile) -> String {
    let all = Readprofile(profile).to_string();
    let mut text: String = all
        .lines()
        .take(1 + FUNCTIONS_MAX)
        .map(|line| format!("  {}\n", elided(line, WIDTH - 2)))
        .collect();
    let rest = profile.rows.len().saturating_sub(FUNCTIONS_MAX) as u64;
    if rest > 0 {
        text += &format!("  {} more functions are in the run's document\n", count(rest));
    }
    text
}

fn post(run: &Run) -> String {
    let Some(post) = Post::named(&run.experiment.seed_post) else { return String::new() };
    let told = match post.report() {
        Ok(report) => report.to_string(),
        Err(error) => format!("{error}\n"),
    };
    let apart = "The post, for its shape. Absolute values are not compared: another machine, another \
                 kernel, another year.";
    format!("\n{}\n{told}", wrapped(apart, "", ""))
}

fn warnings(run: &Run) -> String {
    let mut text = String::new();
    for warning in run.warnings.iter().take(tables::ROWS_MAX) {
        text += &wrapped(&format!("{} {}", short(&warning.code), shown(&warning.text)), "! ", "  ");
        if let Some(fix) = &warning.fix {
            text += &wrapped(&shown(fix), "  fix: ", "       ");
        }
    }
    if text.is_empty() { text } else { format!("\nTo be minded\n{text}") }
}

/// A line that was set already: broken only if it is too long.
fn wrapped_only_if_wide(line: &str) -> String {
    if 2 + line.chars().count() <= WIDTH {
        return format!("{}\n", format!("  {line}").trim_end());
    }
    let text = line.trim_start();
    let indent = " ".repeat(2 + line.len() - text.len());
    wrapped(text, &indent, &format!("{indent}    "))
}
