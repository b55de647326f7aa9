//! A table of several metrics, each in a column: `<!-- results: EXPERIMENT X,Y,.. columns MACHINE
//! .. -->`.

use anyhow::{Result, bail};
use serde_json::Value;

use super::number::number;
use super::render::{bounds, name_of};
use super::word;

/// Returns the table of these metrics in these cells, with both sides' values and the verdict if
/// the sides differ.
pub fn table(document: &Value, cells: &[&Value], metrics: &str) -> Result<String> {
    let metrics: Vec<&str> = metrics.split(',').collect();
    let mut heads = Vec::new();
    for metric in &metrics {
        let mut units = cells.iter().map(|cell| word(cell, &format!("/metrics/{metric}/unit")));
        let Some(unit) = units.find(|unit| *unit != "-") else { bail!("no cell has {metric}") };
        heads.push(format!("{metric}, {unit}"));
    }
    let (a, b) = (word(document, "/experiment/a"), word(document, "/experiment/b"));
    let mut table = format!("\n| {a} → {b} | {} |\n", heads.join(" | "));
    table += &format!("|---{}|\n", "|---".repeat(metrics.len()));
    for cell in cells {
        let figures = metrics.iter().map(|metric| {
            let effect = &cell["metrics"][*metric];
            let (Some(a), Some(b)) = (effect["a"].as_f64(), effect["b"].as_f64()) else {
                return "-".to_owned();
            };
            let differs = effect["verdict"].as_str().filter(|v| ["better", "worse"].contains(v));
            let verdict = differs.map_or(String::new(), |verdict| format!(", {verdict}"));
            let [under_a, under_b] = bounds(effect).map(|is| if is { "< " } else { "" });
            format!("{under_a}{} → {under_b}{}{verdict}", number(a), number(b))
        });
        let row: Vec<String> = figures.collect();
        let disturbed = if cell["status"] == "inconclusive" { " (disturbed)" } else { "" };
        table += &format!("| {}{disturbed} | {} |\n", name_of(&cell["at"]), row.join(" | "));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::*;

    #[test]
    fn each_metric_has_a_column_and_one_that_no_cell_has_is_an_error() {
        let document = document();
        let cells: Vec<&Value> = document["cells"].as_array().unwrap().iter().collect();
        let text = table(&document, &cells, "ticks_per_packet").unwrap();
        let rows = "| bulk | 8.73 → 2.32, better |\n| ring (disturbed) | - |\n";
        let head = "\n| dpdk → linerate | ticks_per_packet, ticks/packet |\n|---|---|\n";
        assert_eq!(text, format!("{head}{rows}"));
        assert!(table(&document, &cells, "ticks_per_packet,none").is_err());
    }
}
