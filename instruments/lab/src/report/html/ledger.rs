//! The ledger of all packets as bars, and matrices of counts as tables that are darker where there is more.

use linerate_show::escape::escape;
use linerate_show::number::{count, figure};
use linerate_show::svg::Svg;
use linerate_show::table::csv_link;

use super::{figure_of, rows};
use crate::record::Ledger;
use crate::report::tables;
use crate::report::tables::keyed;
use crate::report::view::View;
use crate::report::words::short;

/// Bars that are drawn; the table has them all.
const BARS_MAX: usize = 60;

/// A bar, and what is left free below it.
const BAR: (f64, f64) = (16.0, 8.0);

/// Draws a bar for each cell and side: packets that arrived, were dropped, are still on their way.
pub(super) fn bars(view: &View<'_>) -> String {
    let sides = view.sides();
    let bars: Vec<(String, &Ledger)> = view
        .named()
        .flat_map(|(name, cell)| {
            let label = |side: &String| format!("{} {name}", short(side)).trim_end().to_owned();
            let [a, b] = &sides;
            [(label(a), &cell.ledger.a), (label(b), &cell.ledger.b)]
        })
        .filter(|(_, ledger)| came(ledger) > 0.0)
        .take(BARS_MAX)
        .collect();
    if bars.is_empty() {
        return "<p>No packet passed.</p>".into();
    }
    let desc = "Of all packets that came: delivered, dropped, and in flight at the end.";
    let head = |(label, ledger): &(String, &Ledger)| (label.clone(), said(ledger));
    let chart =
        rows(("Ledger", desc), None, BAR.0 + BAR.1, &bars, head, |svg, (_, ledger), top| {
            draw(svg, ledger, top);
        });
    let legend = "<span class=\"key\"><i class=\"delivered\"></i>delivered</span> \
                  <span class=\"key\"><i class=\"dropped\"></i>dropped</span> \
                  <span class=\"key\"><i class=\"inflight\"></i>in flight</span>";
    format!("<p class=\"legend\">{legend}</p>{}", figure_of(&chart, desc))
}

fn said(ledger: &Ledger) -> String {
    match tables::dropped(ledger) {
        0 => "nothing dropped".to_owned(),
        n => format!("{} dropped, {} %", count(n), figure(100.0 * n as f64 / came(ledger))),
    }
}

fn draw(svg: &mut Svg, ledger: &Ledger, top: f64) {
    let all = came(ledger);
    let delivered = (ledger.sent as f64 + ledger.consumed as f64) / all;
    let dropped = tables::dropped(ledger) as f64 / all;
    let mut from = 0.0;
    for (share, class) in [
        (delivered, "delivered"),
        (dropped, "dropped"),
        (ledger.in_flight as f64 / all, "inflight"),
    ] {
        let to = (from + share).min(1.0);
        let tip = format!("{class}: {} %", figure(100.0 * share));
        svg.bar((from, to), (top, top + BAR.0), class, &tip);
        from = to;
    }
}

fn came(ledger: &Ledger) -> f64 {
    ledger.received as f64 + ledger.created as f64
}

/// Rows and columns that are shown.
const CPUS_MAX: usize = 32;

/// The largest matrix, in rows and columns, that is written to a file; a larger one is in the run's
/// document only.
const FILED_MAX: usize = 128;

/// Matrices that are shown.
const SHOWN_MAX: usize = 60;

/// Builds the section of the run's matrices.
pub(super) fn section(view: &View<'_>) -> String {
    let matrices = view.run.matrices.iter().take(SHOWN_MAX);
    let each: String = matrices.map(|(key, matrix)| one(view, key, matrix)).collect();
    if each.is_empty() { each } else { format!("<div class=\"charts\">{each}</div>\n") }
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
         <table class=\"heat\"><caption>{title}</caption><thead><tr><td></td>{heads}</tr></thead>\
         <tbody>{rows}</tbody></table></div>{}</div>\n",
        csv_link(name, plain.trim_end(), &csv.collect::<String>())
    )
}

fn heat(n: u64, most: u64) -> String {
    let share = n as f64 / most as f64;
    format!("<td class=\"n\" style=\"--heat:{share:.3}\">{}</td>", count(n))
}
