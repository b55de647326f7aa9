//! Matrices of counts, as tables with darker cells for higher counts.

use linerate_show::escape::escape;
use linerate_show::number::count;
use linerate_show::table::csv_link;

use super::more;
use crate::report::tables::keyed;
use crate::report::view::View;

/// Most rows and columns that are shown.
const CPUS_MAX: usize = 32;

/// The largest matrix, in rows and columns, that is written to a file; a larger one is in the run's
/// document only.
const FILED_MAX: usize = 128;

/// Most matrices that are shown.
const SHOWN_MAX: usize = 60;

/// Builds the section of the run's matrices.
pub(super) fn section(view: &View<'_>) -> String {
    let matrices = view.run.matrices.iter().take(SHOWN_MAX);
    let each: String = matrices.map(|(key, matrix)| one(view, key, matrix)).collect();
    let left_out = view.run.matrices.len().saturating_sub(SHOWN_MAX);
    let left_out = more(left_out, ["matrix", "matrices"]);
    match each.is_empty() {
        true => each,
        false => format!("<div class=\"charts\">{each}</div>\n{left_out}"),
    }
}

fn one(view: &View<'_>, key: &str, matrix: &[Vec<u64>]) -> String {
    let (cell, side, name) = keyed(key);
    let [a, b] = view.sides();
    let side = match side {
        "a" => format!("A {a}"),
        "b" => format!("B {b}"),
        other => other.to_owned(),
    };
    let plain = format!("{}, {side} {cell}", name.replace('_', " "));
    let title = escape(plain.trim_end());
    let widest = matrix.iter().map(Vec::len).max().unwrap_or(0).max(matrix.len());
    let cut = match widest > CPUS_MAX {
        true => format!(" (the first {CPUS_MAX} of {widest} CPUs)"),
        false => String::new(),
    };
    let shown = matrix.get(..CPUS_MAX).unwrap_or(matrix);
    let most = shown.iter().flatten().copied().max().unwrap_or(0).max(1);
    let columns = shown.iter().map(|row| row.len().min(CPUS_MAX)).max().unwrap_or(0);
    let heads: String =
        (0..columns).map(|i| format!("<th scope=\"col\" class=\"n\">to {i}</th>")).collect();
    let rows: String = shown
        .iter()
        .enumerate()
        .map(|(i, row)| {
            let cells: String = row.iter().take(CPUS_MAX).map(|n| heat(*n, most)).collect();
            format!("<tr><th scope=\"row\">from {i}</th>{cells}</tr>")
        })
        .collect();
    let csv = matrix.iter().take(FILED_MAX).map(|row| {
        let row: Vec<String> = row.iter().take(FILED_MAX).map(u64::to_string).collect();
        row.join(",") + "\n"
    });
    format!(
        "<div><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">\
         <table class=\"heat\"><caption>{title}{cut}</caption><thead><tr><td></td>{heads}</tr></thead>\
         <tbody>{rows}</tbody></table></div>{}</div>\n",
        csv_link(name, plain.trim_end(), &csv.collect::<String>())
    )
}

fn heat(n: u64, most: u64) -> String {
    let share = n as f64 / most as f64;
    format!("<td class=\"n\" style=\"--heat:{share:.3}\">{}</td>", count(n))
}
