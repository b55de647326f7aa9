//! The ledger of all packets, as bars.

use linerate_show::number::{count, figure};
use linerate_show::svg::{Svg, head_height};

use super::figure_of;
use crate::record::Ledger;
use crate::report::tables;
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
    let mut svg = Svg::new("Ledger", desc);
    let mut top = 0.0;
    for (label, ledger) in &bars {
        let said = said(ledger);
        svg.head(top, label, &said);
        top += head_height(label, &said);
        draw(&mut svg, ledger, top);
        top += BAR.0 + BAR.1;
    }
    let legend = "<span class=\"key\"><i class=\"delivered\"></i>delivered</span> \
                  <span class=\"key\"><i class=\"dropped\"></i>dropped</span> \
                  <span class=\"key\"><i class=\"inflight\"></i>in flight</span>";
    format!("<p class=\"legend\">{legend}</p>{}", figure_of(&svg.finish(top), desc))
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
