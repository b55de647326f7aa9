//! Profile of each side: a bar for each function, and the sum for each stage.

use linerate_prof::diff::{Change, Count, Diff, Row, Scale};
use linerate_prof::print::{Ranked, Readprofile, unit_of};
use linerate_prof::profile::Profile;
use linerate_prof::stage::{Part, Stage};
use linerate_show::escape::{escape, escape_lines};
use linerate_show::number::figure;
use linerate_show::svg::{Anchor, Axis, LETTERS, Svg};
use linerate_show::table::{csv_link, quoted};
use linerate_show::words::elided;

use super::{figure_of, flame, more};
use crate::report::agreed;
use crate::report::profiles::{Profiles, profiles};
use crate::report::view::View;
use crate::report::words::short;

/// Most functions that are drawn: those with the largest savings and the largest rises.
const DRAWN_MAX: usize = 20;

/// Most functions in a listing.
const LISTED_MAX: usize = 60;

/// Most functions in the CSV file; the run's document has the others.
const FILED_MAX: usize = 1000;

/// Number of stages with separate bars; the other stages are combined.
const STAGES_MAX: usize = 6;

/// The largest number of cells whose profiles are shown.
const CELLS_MAX: usize = 24;

/// Height of a bar, and of the gap below it.
const BAR: (f64, f64) = (12.0, 6.0);

/// Most letters of a function's name.
const NAME: usize = 34;

/// Builds the section of the run's profiles; empty if there are none.
pub(super) fn section(view: &View<'_>) -> String {
    let [a, b] = view.sides();
    let agreed = agreed::table(view).map_or_else(String::new, |table| table.html());
    let profiles = profiles(view.run);
    let left_out = profiles.len().saturating_sub(CELLS_MAX);
    let drawn = profiles.iter().take(CELLS_MAX).map(|one| section_of(one, [&a, &b]));
    agreed + &drawn.collect::<String>() + &more(left_out, ["pair of profiles", "pairs of profiles"])
}

fn section_of(profiles: &Profiles, [a, b]: [&str; 2]) -> String {
    let Profiles { cell, diff, .. } = profiles;
    let event = short(&profiles.a.event.name);
    let at = if cell.is_empty() { String::new() } else { format!(", {}", short(cell)) };
    let unit = unit_of(diff);
    let stages = format!("CPU by stage, in {unit}; idle stands apart.");
    let functions = format!(
        "{unit}: the change of each function from A ({a}) to B ({b}). To the left it fell, to the \
         right it rose; hollow is within noise, dashed is a bound."
    );
    let tables = format!(
        "<details><summary>Profiles of both sides, as readprofile lists them</summary>\
         <div class=\"two\">{}{}</div></details>\n\
         <details><summary>What moved and what vanished: the ranked difference</summary>\
         <pre class=\"scroll\" tabindex=\"0\">{}</pre></details>\n",
        listing(&profiles.a, a),
        listing(&profiles.b, b),
        escape_lines(&Ranked::new(diff).top(Some(30)).to_string()),
    );
    format!(
        "<h3>{}{}</h3>\n{}{}{}{}{tables}",
        escape(&event),
        escape(&at),
        figure_of(&stacked(diff, [a, b], &stages), &stages),
        figure_of(&diverging(diff, &functions), &functions),
        csv_link("functions", &format!("{event}{at}"), &csv(diff)),
        flame::graphs(profiles, [a, b]),
    )
}

fn listing(profile: &Profile, side: &str) -> String {
    let text = Readprofile(profile).to_string();
    let lines: Vec<&str> = text.lines().take(1 + LISTED_MAX).collect();
    let more = match profile.rows.len().saturating_sub(LISTED_MAX) {
        0 => String::new(),
        n => format!("… {n} more in the run's document"),
    };
    format!(
        "<div><p class=\"unit\">{}</p><pre class=\"scroll\" tabindex=\"0\">{}{more}</pre></div>",
        escape(side),
        escape_lines(&lines.join("\n"))
    )
}

/// Formats the counts of every function as CSV, scaled as they are drawn; a count below a cut-off
/// is a bound there too.
fn csv(diff: &Diff) -> String {
    let seen = |count: Count, factor: f64| match count {
        Count::Is(n) => (n as f64 * factor).to_string(),
        Count::Below(n) => format!("<{}", n as f64 * factor),
    };
    let (scale, unit) = (diff.scale, unit_of(diff));
    let mut csv = format!("function,stage,a ({unit}),b ({unit})\n");
    for row in diff.rows.iter().take(FILED_MAX) {
        let (name, stage) = (quoted(&short(&row.symbol)), row.stage.as_str());
        let a = seen(row.without, scale.without_factor);
        csv += &format!("{name},{stage},{a},{}\n", seen(row.with, scale.with_factor));
    }
    csv
}

/// Draws the functions that changed, as bars to the left and right of zero.
fn diverging(diff: &Diff, desc: &str) -> String {
    let rows = drawn(diff);
    let change = |row: &Row| -row.sum().saved(diff.scale);
    let axis = Axis::over(rows.iter().map(|row| change(row)).chain([0.0]), 4.0, "").signed();
    let said = |row: &Row| {
        let without = seen(row.without, diff.scale.without_factor);
        format!("{without} → {}", seen(row.with, diff.scale.with_factor))
    };
    let head = |row: &&Row| (elided(&short(&row.symbol), NAME), said(row));
    let high = BAR.0 + BAR.1;
    super::rows(("Functions", desc), Some(&axis), high, &rows, head, |svg, row, top| {
        let (class, what) = fell_or_rose(diff.change(row));
        let tip = format!("{}, {}: {}, {what}", short(&row.symbol), row.stage.as_str(), said(row));
        let x = (axis.at(0.0), axis.at(change(row)));
        svg.bar(x, (top, top + BAR.0), class, &tip);
    })
}

/// Returns the functions of the path that fell most and those that rose most, ordered by the
/// change.
fn drawn(diff: &Diff) -> Vec<&Row> {
    let is_drawn = |row: &&Row| {
        let is_ours = row.stage.part() == Part::Path || row.stage == Stage::User;
        is_ours && diff.change(row) != Change::Unchanged && row.sum().saved(diff.scale) != 0.0
    };
    let all: Vec<&Row> = diff.rows.iter().filter(is_drawn).collect();
    if all.len() <= DRAWN_MAX {
        return all;
    }
    let rising = all.iter().rev().take_while(|row| diff.change(row).is_rise()).count();
    let risen = rising.min(DRAWN_MAX / 2);
    let fallen = (DRAWN_MAX - risen).min(all.len() - risen);
    all.iter().take(fallen).chain(all.iter().skip(all.len() - risen)).copied().collect()
}

/// Returns the class of a change on the page, and its words.
pub(super) fn fell_or_rose(change: Change) -> (&'static str, &'static str) {
    match change {
        Change::Fell => ("fell", "fell"),
        Change::Rose => ("rose", "rose"),
        Change::MayHaveFallen => ("fell bound", "may have fallen"),
        Change::MayHaveRisen => ("rose bound", "may have risen"),
        Change::Noise => ("noise", "within noise"),
        Change::Unchanged => ("noise", "unchanged"),
    }
}

/// Formats a count for comparison; below a cut-off, the bound instead of 0.
fn seen(count: Count, factor: f64) -> String {
    match count {
        Count::Is(n) => figure(n as f64 * factor),
        Count::Below(n) => format!("< {}", figure(n as f64 * factor)),
    }
}

/// Draws both sides as stacked stages on one scale, with idle time as a thin layer below.
fn stacked(diff: &Diff, sides: [&str; 2], desc: &str) -> String {
    let scale = diff.scale;
    let stages = largest(diff);
    let totals = [0, 1].map(|side| (busy(diff, scale)[side], idle(diff, scale)[side]));
    let longest = totals.iter().map(|(busy, _)| *busy).fold(0.0, f64::max);
    let axis = Axis::over([0.0, longest], 4.0, "");
    let sides: Vec<(usize, &str)> = sides.into_iter().enumerate().collect();
    let head = |(i, side): &(usize, &str)| {
        let (busy, idle) = totals[*i];
        let idle = if idle > 0.0 { format!(", idle {}", figure(idle)) } else { String::new() };
        (format!("{} {side}", ["A", "B"][*i]), format!("{}{idle}", figure(busy)))
    };
    let draw = |svg: &mut Svg, (i, _): &(usize, &str), top: f64| {
        let mut from = 0.0;
        for (n, stage) in stages.iter().enumerate() {
            let (name, amount) = (stage.name, stage.listed[*i]);
            let (x0, x1) = (axis.at(from), axis.at(from + amount));
            let tip = format!("{name}: {}", figure(amount));
            svg.bar((x0, x1), (top, top + 26.0), &format!("stage s{n}"), &tip);
            // Draw the name only if it fits into the bar on the narrowest page.
            if (x1 - x0) * LETTERS as f64 > name.chars().count() as f64 + 1.5 {
                svg.label(((x0 + x1) / 2.0, top + 17.0), 0.0, Anchor::Middle, "within", name);
            }
            from += amount;
        }
    };
    let chart = super::rows(("CPU by stage", desc), Some(&axis), 38.0, &sides, head, draw);
    let legend: String = stages
        .iter()
        .enumerate()
        .map(|(n, stage)| {
            let ([a, b], name) = (stage.said().map(|n| escape(&n)), escape(stage.name));
            format!("<span class=\"key\"><i class=\"s{n}\"></i>{name} {a} → {b}</span> ")
        })
        .collect();
    // Counts hidden by a cut-off are unknown: the file has their upper bound in columns of their
    // own.
    let unit = unit_of(diff);
    let heads =
        ["a", "b", "a_hidden_below", "b_hidden_below"].map(|head| format!("{head} ({unit})"));
    let mut csv = format!("stage,{}\n", heads.join(","));
    for Layer { name, listed: [a, b], hidden: [a_hidden, b_hidden] } in &stages {
        csv += &format!("{name},{a},{b},{a_hidden},{b_hidden}\n");
    }
    let file = csv_link("stages", desc, &csv);
    format!("{chart}<p class=\"legend\">{legend}</p>{file}")
}

/// A part of the stacked bars.
struct Layer {
    name: &'static str,
    /// The listed counts of A and of B.
    listed: [f64; 2],
    /// Upper bounds of the counts hidden by the cut-off, for A and B; 0 if it hides none.
    hidden: [f64; 2],
}

impl Layer {
    /// Formats the counts of both sides; for a count below a cut-off, the bound instead of 0.
    fn said(&self) -> [String; 2] {
        let [a, b] = [0, 1].map(|side| (self.listed[side], self.hidden[side]));
        [a, b].map(|(listed, hidden)| match (listed > 0.0, hidden > 0.0) {
            (_, false) => figure(listed),
            (true, true) => format!("≥ {}", figure(listed)),
            (false, true) => format!("< {}", figure(hidden)),
        })
    }
}

/// Returns the stages with the largest counts on both sides, and all other stages as one.
fn largest(diff: &Diff) -> Vec<Layer> {
    let scale = diff.scale;
    let of = |stage: Stage| {
        let sum = diff.sum_of(|row| row.stage == stage);
        Layer {
            name: stage.as_str(),
            listed: [scale.without(sum.without), scale.with(sum.with)],
            hidden: [scale.without(sum.hidden_without), scale.with(sum.hidden_with)],
        }
    };
    let both = |layer: &Layer| layer.listed.iter().sum::<f64>();
    let busy = Stage::ALL.iter().copied().filter(|stage| stage.part() != Part::Idle);
    let mut stages: Vec<Layer> = busy.map(of).filter(|layer| both(layer) > 0.0).collect();
    stages.sort_by(|one, other| both(other).total_cmp(&both(one)));
    let rest = stages.split_off(stages.len().min(STAGES_MAX));
    let plus = |[a, b]: [f64; 2], [c, d]: [f64; 2]| [a + c, b + d];
    let rest = rest.into_iter().reduce(|sum, layer| Layer {
        name: "all others",
        listed: plus(sum.listed, layer.listed),
        hidden: plus(sum.hidden, layer.hidden),
    });
    stages.extend(rest.map(|rest| Layer { name: "all others", ..rest }));
    stages
}

fn busy(diff: &Diff, scale: Scale) -> [f64; 2] {
    let sum = diff.sum_of(|row| row.stage.part() != Part::Idle);
    [scale.without(sum.without), scale.with(sum.with)]
}

fn idle(diff: &Diff, scale: Scale) -> [f64; 2] {
    let sum = diff.sum_of(|row| row.stage.part() == Part::Idle);
    [scale.without(sum.without), scale.with(sum.with)]
}
