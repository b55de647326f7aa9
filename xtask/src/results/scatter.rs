//! A picture and a table of one figure of every mode against another: `<!-- results: EXPERIMENT X,Y
//! scatter MACHINE .. -->`.
//!
//! ```text
//!  Y │  ● a level of what is varied, side B
//!    │       ● side A, the median over the cells
//!    └────────────── X
//! ```
//!
//! The picture is `docs/img/EXPERIMENT-LEVELS.svg`, which only a mark in a page may put there. Its
//! figures stand in the table below it, with a dash for a level without one.

use anyhow::{Context, Result, bail};
use linerate_show::svg::{Anchor, Axis, Mark, Svg};
use serde_json::Value;

use super::number::{median, number};
use super::word;

/// The folder of the pictures.
pub const FOLDER: &str = "docs/img/";
/// Width of the picture; with the next two: top and bottom of the plot, and height of the picture;
/// in pixels.
const WIDTH: f64 = 720.0;
const PLOT: (f64, f64) = (30.0, 330.0);
const HEIGHT: f64 = 370.0;
/// The part of the picture's width that a label takes.
const LABEL: f64 = 0.15;
/// Distance of two labels' baselines, in pixels.
const LINE: f64 = 14.0;
/// The part of the offered packets, in per cent, that must arrive for a load to count as reached.
pub(super) const REACHED_PCT: f64 = 98.0;
/// The style of the elements that [`Svg`] draws, on a light and on a dark background.
const STYLE: &str = "text{font:13px sans-serif;fill:#444}.tick{font-size:11px;fill:#777}\
    .grid,.zero{stroke:#8885}.mark{fill:#06c}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}.tick{fill:#999}.mark{fill:#6af}}";

/// A point: its name, and both figures.
type Point = (String, [f64; 2]);

/// Returns the table and the picture of a document's cells.
pub fn draw(document: &Value, cells: &[&Value], metrics: [&str; 2]) -> Result<(String, String)> {
    let (points, bare) = points(document, cells, metrics);
    if points.is_empty() {
        bail!("no cell has both {} and {}", metrics[0], metrics[1]);
    }
    let [x, y] = metrics.map(|metric| {
        let mut units = cells.iter().map(|cell| word(cell, &format!("/metrics/{metric}/unit")));
        format!("{metric}, {}", units.find(|unit| *unit != "-").unwrap_or("-"))
    });
    let mut table = format!("| | {x} | {y} |\n|---|---|---|\n");
    for (name, [x, y]) in &points {
        table += &format!("| {name} | {} | {} |\n", number(*x), number(*y));
    }
    bare.iter().for_each(|name| table += &format!("| {name} | - | - |\n"));
    Ok((table, picture(&points, &x, &y)))
}

/// Returns a point for each level of the varying factors, and for side A, with both figures; and
/// the names of the levels that lack one.
fn points(document: &Value, cells: &[&Value], metrics: [&str; 2]) -> (Vec<Point>, Vec<String>) {
    let varies =
        |factor: &str| cells.iter().any(|cell| cell["at"][factor] != cells[0]["at"][factor]);
    let (mut points, mut bare, mut all_a) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for cell in cells {
        let of = |side: &str, metric: &str| cell["metrics"][metric][side].as_f64();
        let both = |side: &str| Some([of(side, metrics[0])?, of(side, metrics[1])?]);
        let levels = cell["at"].as_object().into_iter().flatten();
        let levels =
            levels.filter(|(factor, _)| varies(factor)).filter_map(|(_, level)| level.as_str());
        let mut name = levels.collect::<Vec<_>>().join(", ");
        if let Some(pct) = of("b", "achieved_pct").filter(|pct| *pct < REACHED_PCT) {
            name += &format!(" ({pct:.0} % of the load)");
        }
        match both("b") {
            Some(figures) => points.push((name, figures)),
            None => bare.push(name),
        }
        if let Some(figures) = both("a") {
            all_a.iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
        }
    }
    if let [Some(x), Some(y)] = all_a.map(|mut all| median(&mut all)) {
        points.push((word(document, "/experiment/a").to_owned(), [x, y]));
    }
    points.sort_by(|a, b| a.1[0].total_cmp(&b.1[0]));
    (points, bare)
}

fn picture(points: &[Point], x: &str, y: &str) -> String {
    let names: Vec<&str> = points.iter().map(|(name, _)| name.as_str()).collect();
    let mut svg =
        Svg::new(&format!("{y}, over {x}"), &format!("A mark for each of {}.", names.join(", ")));
    let axis =
        |i: usize| Axis::over(points.iter().map(|(_, figures)| figures[i]).chain([0.0]), 5.0, "");
    let (over, up) = (axis(0), axis(1));
    svg.label((0.0, PLOT.0 - 12.0), 0.0, Anchor::Start, "name", y);
    svg.label((1.0, PLOT.1 + 32.0), 0.0, Anchor::End, "name", x);
    svg.grid_y(&up, PLOT);
    svg.grid_x(&over, PLOT);
    let place = |[x, y]: [f64; 2]| (over.at(x), PLOT.1 + (PLOT.0 - PLOT.1) * up.at(y));
    let mut labels: Vec<(f64, f64)> = Vec::new();
    for (name, figures) in points {
        let ((x, y), [right, above]) = (place(*figures), figures.map(number));
        svg.mark((x, y), Mark::Disc, "mark", &format!("{name}: {right}, {above}"));
        let is_right_of =
            |other: (f64, f64)| x < other.0 && other.0 < x + LABEL && (other.1 - y).abs() < LINE;
        let is_left = x > 0.7 || points.iter().any(|(_, other)| is_right_of(place(*other)));
        let (side, dx, anchor) =
            if is_left { (-1.0, -9.0, Anchor::End) } else { (1.0, 9.0, Anchor::Start) };
        let (middle, mut foot) = (x + side * LABEL / 2.0, y + 4.0);
        let is_on = |known: &(f64, f64), foot: f64| {
            (known.0 - middle).abs() < LABEL && (known.1 - foot).abs() < LINE
        };
        while labels.iter().any(|known| is_on(known, foot)) {
            foot -= LINE;
        }
        labels.push((middle, foot));
        svg.label((x, foot), dx, anchor, "name", name);
    }
    let plot = svg.finish(HEIGHT - 10.0);
    // Add a margin for the letters at the ends of the axes.
    let inside =
        plot.replacen("<svg ", r#"<svg x="4%" overflow="visible" "#, 1).replacen("100%", "92%", 1);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\"><style>{STYLE}</style>{inside}</svg>\n"
    )
}

/// Returns the path of the picture of an experiment at the given levels.
pub fn path(experiment: &str, levels: &[(&str, &str)]) -> Result<String> {
    let name: String = levels.iter().map(|(_, level)| format!("-{level}")).collect();
    let path = format!("{FOLDER}{experiment}{name}.svg");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    path.chars().all(is_plain).then_some(path).context("a level's name cannot be that of a file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_mode_has_a_mark_and_a_row_and_a_load_that_was_missed_is_told() {
        let cell = |mode: &str, cpu: f64, p99: f64, pct: f64| {
            let metric = |unit: &str, a: f64, b: f64| json!({"unit": unit, "a": a, "b": b});
            json!({"at": {"mode": mode, "load": "50"}, "metrics": {
                "cpu": metric("%", 20.0, cpu), "p99": metric("us", 90.0, p99), "achieved_pct": metric("%", 100.0, pct)}})
        };
        let mut all = [cell("dim", 15.0, 200.0, 100.0), cell("<busy>", 95.0, 60.0, 91.2)];
        all[1]["metrics"]["cpu"]["a"] = json!(30.0);
        let mut none = cell("held", 15.0, 0.0, 100.0);
        none["metrics"]["p99"] = Value::Null;
        let document = json!({"experiment": {"a": "napi"}});
        let cells: Vec<&Value> = all.iter().chain([&none]).collect();
        let (table, svg) = draw(&document, &cells, ["cpu", "p99"]).unwrap();
        let rows = "| dim | 15.0 | 200 |\n| napi | 25.0 | 90.0 |\n| <busy> (91 % of the load) | 95.0 | 60.0 |\n| held | - | - |\n";
        assert!(table.starts_with("| | cpu, % | p99, us |\n") && table.ends_with(rows), "{table}");
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(
            svg.contains("&lt;busy&gt; (91 % of the load)</text>") && !svg.contains("<busy>"),
            "{svg}"
        );
        assert!(draw(&document, &[&none], ["cpu", "p99"]).is_err());
    }
}
