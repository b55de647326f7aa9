//! The CPU time of each profiled side by two instruments that ran at the same time, and whether
//! they agree.

use std::collections::BTreeSet;

use linerate_prof::agree::{Checked, Means, Verdict};
use linerate_show::table::{Cell, Table};

use super::tables::{ROWS_MAX, columns};
use super::view::View;
use super::words::short;

/// Returns a row for each profiled side; `None` if no profile has a second instrument.
pub(super) fn table(view: &View<'_>) -> Option<Table> {
    let columns = columns(
        "cell, side, samples_ns=samples [ns/packet], scheduler_ns=scheduler [ns/packet], apart_pct=apart [%], \
         allowed_pct=allowed [%], verdict",
    );
    let title = "CPU time by two instruments at the same time, while the profiles were taken";
    let mut table = Table::new("agreement", title, &columns);
    let mut notes: BTreeSet<String> = BTreeSet::new();
    let checked = view.run.profiles.iter().filter_map(|one| Some((one, one.checked.as_ref()?)));
    for (profile, Checked { headline, tolerance }) in checked.take(ROWS_MAX) {
        let value = |means| {
            let reading = headline.by.iter().find(|reading| reading.means == means);
            finite(reading.and_then(|one| one.value), 0, "not measured")
        };
        let verdict = headline.judge(*tolerance).verdict;
        let (word, apart, why) = match &verdict {
            Verdict::Agree(spread) => ("agree", Some(spread.relative_pct), None),
            Verdict::Disagree { spread, likely } => {
                let why = format!("likely: {}", likely.join("; or "));
                ("DISAGREE", Some(spread.relative_pct), Some(why))
            }
            Verdict::Alone => {
                // The text of a missing reading ends with the reason.
                let missing = headline.by.iter().find(|reading| reading.value.is_none());
                let why = |measures: &str| measures.rsplit(": ").next().map(short);
                ("ALONE", None, missing.and_then(|reading| why(&reading.measures)))
            }
        };
        notes.insert(format!("{}.", short(&headline.name)));
        notes.extend(why.map(|why| format!("{word}: {why}.")));
        let [a, b] = view.sides();
        let (cell, side) = (short(&profile.cell), if profile.side == "a" { a } else { b });
        table.row(vec![
            Cell::text(cell),
            Cell::text(side),
            value(Means::ClockSamples),
            value(Means::CpuTime),
            finite(apart, 1, "one instrument only"),
            finite(Some(tolerance.relative_pct), 1, "not allowed any"),
            Cell::text(word),
        ]);
    }
    table.notes.extend(notes);
    (!table.rows.is_empty()).then_some(table)
}

/// Returns the cell of a figure; a number that is not finite counts as missing.
fn finite(value: Option<f64>, digits: u8, why: &'static str) -> Cell {
    Cell::real(value.filter(|value| value.is_finite()), digits, why)
}
