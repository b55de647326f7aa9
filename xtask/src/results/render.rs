//! Rendering of the tables in pages from documents.
//!
//! ```text
//! <!-- results: EXPERIMENT METRIC STYLE MACHINE.. [FACTOR=LEVEL..] -->
//! ```
//!
//! METRIC is a metric of the experiment, or `head:NAME` for a figure of whole sides. STYLE is `change` (both sides'
//! values, the change in per cent and its interval), `ratio` (of the second side to the first) or `values`; each
//! machine has a column. `plain` is for readers who see such a table for the first time: one machine, and columns for the
//! sides, for what was expected, and for what became of that. `scatter` draws two metrics, `X,Y`, of one machine, and
//! lists them ([`super::scatter`]). Several levels of one factor are alternatives.
//!
//! In a document that reproduces post 001, a metric of CPU time gets a column with the latency of the same cells, and a
//! side that did not reach its load has a dash instead of a figure.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::conditions::{definition, source, stated};
use super::scatter::REACHED_PCT;
use super::{Documents, scatter, word};
use crate::tidy::Finding;

/// The line before a rendered table begins with this.
pub const BEGIN: &str = "<!-- results: ";
/// The line after a rendered table.
pub const END: &str = "<!-- end of results -->";
/// Post whose CPU times have no latency beside them.
const POST: &str = "001";
/// Metrics of CPU time that have the latency beside them.
const CPU: [&str; 3] = ["cpu_pct", "all_cpu_pct", "cpu_ns_per_packet"];
/// Metrics of the latency, in microseconds: median and 99th percentile.
const LATENCY: [&str; 2] = ["receipt_p50_us", "receipt_p99_us"];

/// A block to be rendered, as its mark describes it.
struct Block<'a> {
    experiment: &'a str,
    metric: &'a str,
    style: Style,
    machines: Vec<&'a str>,
    levels: Vec<(&'a str, &'a str)>,
}

/// The contents of a table's cell.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    Change,
    Ratio,
    Values,
    Plain,
    Scatter,
}

/// Returns true if a page has tables to be rendered.
pub fn has_blocks(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(BEGIN))
}

/// Returns the page with every table rendered, and the errors found.
pub fn page(path: &str, text: &str, documents: &mut Documents<'_>) -> (String, Vec<Finding>) {
    let (mut out, mut found) = (String::with_capacity(text.len()), Vec::new());
    let (mut lines, mut fenced) = (text.lines().enumerate(), false);
    while let Some((i, line)) = lines.next() {
        out += line;
        out.push('\n');
        fenced ^= line.starts_with("```");
        let Some(asked) = line.strip_prefix(BEGIN).filter(|_| !fenced) else { continue };
        let old: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != END).collect();
        match Block::parse(asked).and_then(|block| block.render(path, documents)) {
            Ok(table) => out += &table,
            Err(e) => {
                found.push(Finding::at(path, i + 1, format!("{e:#}")));
                old.iter().for_each(|line| out += &format!("{line}\n"));
            }
        }
        out += END;
        out.push('\n');
    }
    (out, found)
}

impl<'a> Block<'a> {
    /// Parses a mark, of which the beginning is already removed.
    fn parse(asked: &'a str) -> Result<Block<'a>> {
        let words = asked.strip_suffix(" -->").context("the mark does not end with -->")?;
        let mut words = words.split_whitespace();
        let what = "a mark is <!-- results: EXPERIMENT METRIC change|ratio|values|plain|scatter MACHINE.. [FACTOR=LEVEL..] -->";
        let mut next = || words.next().context(what);
        let (experiment, metric) = (next()?, next()?);
        let style = match next()? {
            "change" => Style::Change,
            "ratio" => Style::Ratio,
            "values" => Style::Values,
            "plain" => Style::Plain,
            "scatter" => Style::Scatter,
            other => bail!("{other}: {what}"),
        };
        let (levels, machines): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        let levels = levels.iter().filter_map(|word| word.split_once('=')).collect();
        if machines.is_empty() {
            bail!("no machine: {what}");
        }
        if matches!(style, Style::Plain | Style::Scatter) && machines.len() > 1 {
            bail!("a plain table and a scatter are of one machine");
        }
        Ok(Block { experiment, metric, style, machines, levels })
    }

    /// Returns the table, followed by its conditions and the documents from which it is rendered.
    fn render(&self, page: &str, documents: &mut Documents<'_>) -> Result<String> {
        let mut rows: Vec<(&Value, Vec<String>)> = Vec::new();
        let first = documents.get(self.machines[0], self.experiment)?.clone();
        let cells = first["cells"].as_array().context("the document has no cells")?;
        rows.extend(
            cells
                .iter()
                .map(|cell| &cell["at"])
                .filter(|at| self.wants(at))
                .map(|at| (at, Vec::new())),
        );
        if rows.is_empty() {
            bail!("no cell of {} is like that", self.experiment);
        }
        let mut sources = String::new();
        let has_latency = self.has_latency(&first);
        let up = "../".repeat(page.matches('/').count());
        for machine in &self.machines {
            let document = documents.get(machine, self.experiment)?;
            for (at, columns) in &mut rows {
                columns.push(self.figure(document, at));
                columns.extend(has_latency.then(|| latency(document, at)));
            }
            sources += if sources.is_empty() { "" } else { "; " };
            sources += &source(machine, document, &up)?;
        }
        if self.style != Style::Scatter
            && !self.metric.starts_with("head:")
            && !cells.iter().any(|cell| cell["metrics"].get(self.metric).is_some())
        {
            bail!("no cell of {} has {}", self.experiment, self.metric);
        }
        let beside = if has_latency { format!(",{}", LATENCY[1]) } else { String::new() };
        let stated = stated(&first, &format!("{}{beside}", self.metric))?;
        if self.style == Style::Scatter {
            let cells = cells.iter().filter(|cell| self.wants(&cell["at"]));
            let metrics =
                self.metric.split_once(',').context("a scatter is of two metrics: X,Y")?;
            let (table, picture) =
                scatter::draw(&first, &cells.collect::<Vec<_>>(), metrics.into())?;
            let path = scatter::path(self.experiment, &self.levels)?;
            let shown = format!("![{}]({up}{path})", self.metric.replace(',', " and "));
            documents.pictures.insert(path, picture);
            return Ok(format!("\n{shown}\n\n{table}\n{stated}\nFrom {sources}.\n\n"));
        }
        let columns = self.columns(&first, has_latency);
        let mut table = format!("\n| {} |\n", columns.join(" | "));
        table += &format!("|{}\n", "---|".repeat(columns.len()));
        for (at, columns) in rows {
            table += &format!("| {} | {} |\n", name_of(at), columns.join(" | "));
        }
        Ok(format!("{table}\n{stated}\nFrom {sources}.\n\n"))
    }

    /// Returns the heads of the columns, that of the rows' names first.
    fn columns(&self, document: &Value, has_latency: bool) -> Vec<String> {
        let (a, b) = (word(document, "/experiment/a"), word(document, "/experiment/b"));
        let mut cells = document["cells"].as_array().into_iter().flatten();
        let effect = cells.find_map(|cell| cell["metrics"].get(self.metric));
        let unit = effect.map_or("", |effect| word(effect, "/unit"));
        let latency = has_latency.then(|| "receipt in us (pairs)".to_owned());
        if self.style == Style::Plain {
            let heads = [format!("{a}, {unit}"), format!("{b}, {unit}"), format!("{b} takes")];
            let outcome = ["expected", "result"].map(str::to_owned);
            let all = [" ".to_owned()].into_iter().chain(heads).chain(outcome);
            return all.chain(latency).collect();
        }
        let name = self.metric.trim_start_matches("head:");
        let of = match self.style {
            Style::Ratio => format!("{name}, {b} to {a}"),
            _ => format!("{name}{}{unit}, {a} → {b}", if unit.is_empty() { "" } else { " in " }),
        };
        let machine = |machine: &&str| [(*machine).to_owned()].into_iter().chain(latency.clone());
        [of].into_iter().chain(self.machines.iter().flat_map(machine)).collect()
    }

    /// Returns true if the latency of each cell stands beside the metric.
    fn has_latency(&self, document: &Value) -> bool {
        let is_asked = self.style != Style::Scatter && CPU.contains(&self.metric);
        is_asked
            && is_of_post(document)
            && LATENCY.iter().all(|name| definition(document, name).is_ok())
    }

    fn wants(&self, at: &Value) -> bool {
        self.levels.iter().all(|(factor, _)| {
            let alternatives = self.levels.iter().filter(|(other, _)| other == factor);
            alternatives.into_iter().any(|(_, level)| at[*factor].as_str() == Some(*level))
        })
    }

    /// Returns the figures of a machine in one cell of the grid, formatted.
    fn figure(&self, document: &Value, at: &Value) -> String {
        let cells = document["cells"].as_array();
        let Some(cell) = cells.and_then(|cells| cells.iter().find(|cell| cell["at"] == *at)) else {
            return "not run".to_owned();
        };
        if let Some(name) = self.metric.strip_prefix("head:") {
            let [a, b] = ["a", "b"].map(|side| of_side(document, at, side, name));
            return match a.zip(b) {
                Some((a, b)) => format!("{} → {}", number(a), number(b)),
                None => "-".to_owned(),
            };
        }
        let effect = &cell["metrics"][self.metric];
        if is_of_post(document) {
            let side = |side: &str| match cell["metrics"]["achieved_pct"][side].as_f64() {
                Some(pct) if pct < REACHED_PCT => None,
                _ => Some(effect[side].as_f64().map_or("-".to_owned(), number)),
            };
            let sides = ["a", "b"].map(side);
            if sides.contains(&None) {
                let between = if self.style == Style::Plain { "|" } else { "→" };
                let [a, b] = sides.map(|side| side.unwrap_or_else(|| "–".to_owned()));
                return format!("{a} {between} {b}");
            }
        }
        self.told(effect, &cell["status"]).unwrap_or_else(|_| "-".to_owned())
    }

    fn told(&self, effect: &Value, status: &Value) -> Result<String> {
        let get = |name: &str| effect[name].as_f64().ok_or_else(|| anyhow!("no {name}"));
        let interval =
            |i: usize| effect["ci95_pct"][i].as_f64().ok_or_else(|| anyhow!("no interval"));
        let (change, from, to) = (get("change_pct")?, interval(0)?, interval(1)?);
        let ratio = |pct: f64| number(1.0 + pct / 100.0);
        let mut text = match self.style {
            Style::Values => return Ok(format!("{} → {}", number(get("a")?), number(get("b")?))),
            Style::Scatter => return Ok(String::new()),
            Style::Plain => {
                let sides = format!("{} | {}", number(get("a")?), number(get("b")?));
                let (of, outcome) = plain(effect, status == "inconclusive");
                let [ratio, from, to] = [change, from, to].map(ratio);
                return Ok(format!("{sides} | {ratio} × [{from}, {to}] | {of} | {outcome}"));
            }
            Style::Ratio => format!("{} [{}, {}]", ratio(change), ratio(from), ratio(to)),
            Style::Change => {
                let [change, from, to] = [change, from, to].map(signed);
                let (a, b) = (number(get("a")?), number(get("b")?));
                format!("{a} → {b}: {change} % [{from}, {to}]")
            }
        };
        text += &format!(", {}", effect["verdict"].as_str().unwrap_or("-"));
        if status == "inconclusive" {
            text += " (disturbed)";
        }
        let expected = &effect["expected"];
        if expected.is_object() {
            text += match (expected["certain"] == true, expected["met"] == true) {
                (true, true) => "; as expected",
                (true, false) => "; **not as expected**",
                (false, _) => "; expected: open",
            };
        }
        Ok(text)
    }
}

/// Formats the expected ratio and the result in words, so that the table needs no legend.
fn plain(effect: &Value, disturbed: bool) -> (String, String) {
    let bound = |i: usize| effect["expected"]["change_pct"][i].as_f64();
    let ratio = |pct: f64| number(1.0 + pct / 100.0);
    let expected = match (bound(0), bound(1)) {
        (Some(low), Some(high)) if low <= -100.0 => format!("at most {}", ratio(high)),
        (Some(low), Some(high)) => format!("{} to {}", ratio(low), ratio(high)),
        _ => "–".to_owned(),
    };
    let verdict = effect["verdict"].as_str().unwrap_or("-");
    let missed = bound(1).zip(effect["change_pct"].as_f64()).is_some_and(|(high, is)| is > high);
    let outcome = match (effect["expected"]["certain"] == true, effect["expected"]["met"] == true) {
        _ if bound(0).is_none() || disturbed => verdict.to_owned(),
        (true, true) => format!("{verdict}, as expected"),
        (true, false) if missed => format!("{verdict}, **less than expected**"),
        (true, false) => format!("{verdict}, **by more**"),
        (false, _) => format!("{verdict}; too close to the bound to say"),
    };
    (expected, outcome + if disturbed { " (disturbed)" } else { "" })
}

/// Returns true if the document reproduces post 001.
fn is_of_post(document: &Value) -> bool {
    word(document, "/experiment/seed_post") == POST
}

/// Returns the latency of both sides in one cell, with the number of pairs that it is from. That is often less than the
/// number of the CPU time, because a window can be too disturbed for a latency.
fn latency(document: &Value, at: &Value) -> String {
    let mut cells = document["cells"].as_array().into_iter().flatten();
    let told = cells.find(|cell| cell["at"] == *at).and_then(|cell| {
        let [p50, p99] = LATENCY.map(|name| &cell["metrics"][name]);
        let sides = |effect: &Value| {
            let (a, b) = (effect["a"].as_f64()?, effect["b"].as_f64()?);
            Some(format!("{} → {}", number(a), number(b)))
        };
        let pairs = p99["n_pairs"].as_u64()?;
        Some(format!("p50 {}, p99 {} ({pairs})", sides(p50)?, sides(p99)?))
    });
    told.unwrap_or_else(|| "-".to_owned())
}

/// Returns `case=bulk` without the factor's name if there is only one factor.
fn name_of(at: &Value) -> String {
    let pairs = at.as_object().into_iter().flatten();
    let pairs: Vec<(&str, &str)> =
        pairs.map(|(k, v)| (k.as_str(), v.as_str().unwrap_or("-"))).collect();
    match pairs.as_slice() {
        [(_, level)] => (*level).to_owned(),
        several => several.iter().map(|(_, level)| *level).collect::<Vec<_>>().join(", "),
    }
}

/// Returns a figure of a whole side, stored under `case=bulk load=max/a` with the factors in any
/// order.
fn of_side(document: &Value, at: &Value, side: &str, name: &str) -> Option<f64> {
    let wanted = at.as_object()?;
    let is = |key: &str| {
        let (cell, of) = key.rsplit_once('/').unwrap_or(("", key));
        let pairs: Vec<(&str, &str)> =
            cell.split(' ').filter_map(|one| one.split_once('=')).collect();
        of == side
            && pairs.len() == wanted.len()
            && pairs.iter().all(|(k, v)| wanted.get(*k).and_then(Value::as_str) == Some(*v))
    };
    let (_, figures) = document["heads"].as_object()?.iter().find(|(key, _)| is(key))?;
    figures[name].as_f64()
}

/// Formats a number with three significant digits, and with commas between thousands: `0.267`,
/// `8.73`, `1,449`.
pub(super) fn number(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        x if x >= 0.9995 => 2,
        _ => 3,
    };
    let text = format!("{:.digits$}", x.abs());
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), None), |(w, r)| (w, Some(r)));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if x < 0.0 { "−" } else { "" };
    format!("{sign}{grouped}{}", rest.map_or(String::new(), |rest| format!(".{rest}")))
}

/// Formats a number with its sign and one digit after the decimal point.
fn signed(pct: f64) -> String {
    let sign = if pct < 0.0 { "−" } else { "+" };
    format!("{sign}{:.1}", pct.abs())
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::*;

    fn rendered(mark: &str) -> (String, Vec<Finding>) {
        let mut documents = Documents::new(|path| match path {
            "results/amd/buffers.json.gz" | "results/other/buffers.json.gz" => Ok(document()),
            _ => bail!("{path} does not exist"),
        });
        page("docs/x.md", &format!("{BEGIN}{mark} -->\nold\n{END}\nbehind\n"), &mut documents)
    }

    #[test]
    fn each_machine_has_a_column_and_what_is_not_known_has_a_dash() {
        let (text, found) = rendered("buffers ticks_per_packet change amd other");
        assert!(found.is_empty(), "{found:?}");
        let row = "| bulk | 8.73 → 2.32: −73.3 % [−74.5, −73.2], better; **not as expected** |";
        assert!(text.contains(row) && text.contains("| ring | - | - |"), "{text}");
        let from = "Device: none.\nFrom [amd](../results/amd/buffers.json.gz): AMD EPYC, 2,596 MHz, Linux 6.18 under KVM, 2026-11-22, commit ada9ede, median A/A ±3.56 %; [other]";
        assert!(
            text.contains(from) && text.ends_with("<!-- end of results -->\nbehind\n"),
            "{text}"
        );
        assert!(!text.contains("old"), "{text}");
        let quoted = format!("```\n{BEGIN}x -->\n{END}\n```\n");
        let mut none = Documents::new(|_| bail!("none"));
        assert_eq!(page("x.md", &quoted, &mut none), (quoted.clone(), vec![]), "a quotation");
    }

    #[test]
    fn ratios_figures_of_sides_and_single_cells_can_be_asked_for() {
        let (text, _) = rendered("buffers ticks_per_packet ratio amd case=bulk");
        assert!(text.contains("| ticks_per_packet, linerate to dpdk | amd |"), "{text}");
        assert!(
            text.contains("| bulk | 0.267 [0.255, 0.268], better;") && !text.contains("| ring"),
            "{text}"
        );
        let (text, _) = rendered("buffers head:memory_bytes values amd");
        assert!(text.contains("| bulk | 67,292 → 3,192,540 |\n| ring | - |"), "{text}");
        let (text, _) = rendered("buffers ticks_per_packet values amd case=bulk case=ring");
        assert!(text.contains("| bulk | 8.73 → 2.32 |\n| ring | - |"), "{text}");
    }

    #[test]
    fn a_plain_table_says_what_was_expected_and_what_became_of_it() {
        let (text, _) = rendered("buffers ticks_per_packet plain amd case=bulk");
        let row = "| bulk | 8.73 | 2.32 | 0.267 × [0.255, 0.268] | at most 0.250 | better, **less than expected** |";
        assert!(text.contains(row), "{text}");
        let of = |expected: Value, change: f64| {
            plain(
                &serde_json::json!({ "verdict": "better", "change_pct": change, "expected": expected }),
                false,
            )
        };
        let bound = |met: bool, certain: bool| serde_json::json!({ "certain": certain, "met": met, "change_pct": [-80, -70] });
        assert_eq!(
            of(bound(true, true), -75.0),
            ("0.200 to 0.300".into(), "better, as expected".into())
        );
        assert_eq!(of(bound(false, true), -90.0).1, "better, **by more**");
        assert_eq!(of(bound(false, false), -69.0).1, "better; too close to the bound to say");
        assert_eq!(of(Value::Null, -69.0), ("–".into(), "better".into()));
        let two = rendered("buffers ticks_per_packet plain amd other").1;
        assert!(two[0].to_string().contains("one machine"), "{two:?}");
    }

    /// S1.9 and S1.12, in a document with two loads, of which A does not reach the second.
    #[test]
    fn cpu_time_of_post_001_has_the_latency_beside_and_a_dash_where_the_load_was_not_reached() {
        let metric = |a: f64, b: f64, pairs: u64| {
            serde_json::json!({"unit": "%", "a": a, "b": b, "change_pct": -60.0, "ci95_pct": [-61.0, -59.0],
                "n_pairs": pairs, "verdict": "better"})
        };
        let mut of_post = document();
        of_post["experiment"]["seed_post"] = "001".into();
        let file = word(&of_post, "/run/config_toml").replace("ticks_per_packet", "cpu_pct");
        let file = file.replace("\"p50_ticks\"", "\"receipt_p50_us\"");
        of_post["run"]["config_toml"] = file.replace("\"p99_ticks\"", "\"receipt_p99_us\"").into();
        for (cell, reached) in [(0, 100.0), (1, 97.9)] {
            of_post["cells"][cell]["metrics"] = serde_json::json!({
                "cpu_pct": metric(45.0, 18.0, 24), "achieved_pct": metric(reached, 99.9, 24)});
        }
        of_post["cells"][0]["metrics"]["receipt_p50_us"] = metric(40.0, 140.0, 3);
        of_post["cells"][0]["metrics"]["receipt_p99_us"] = metric(80.0, 290.0, 3);
        let rendered = |style: &str| {
            let mut documents = Documents::new(|_| Ok(of_post.clone()));
            page("docs/x.md", &format!("{BEGIN}x cpu_pct {style} amd -->\n{END}\n"), &mut documents)
        };
        let (text, found) = rendered("change");
        assert!(found.is_empty(), "{found:?}");
        for line in [
            "| cpu_pct in %, dpdk → linerate | amd | receipt in us (pairs) |",
            "| bulk | 45.0 → 18.0: −60.0 % [−61.0, −59.0], better | p50 40.0 → 140, p99 80.0 → 290 (3) |",
            "| ring | – → 18.0 | - |",
            "`receipt_p50_us`: Ticks, median. `receipt_p99_us`: The same, 99th percentile.",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
        let text = rendered("plain").0;
        assert!(text.contains(" | – | better | p50 40.0 → 140, p99 80.0 → 290 (3) |\n"), "{text}");
    }

    #[test]
    fn a_mark_that_cannot_be_rendered_is_found_and_its_text_stays() {
        for (mark, why) in [
            ("buffers ticks_per_packet", "a mark is"),
            ("buffers ticks_per_packet sum amd", "sum: a mark is"),
            ("buffers ticks_per_packet ratio", "no machine"),
            ("buffers ticks_per_packet ratio gone", "does not exist"),
            ("buffers cycles ratio amd", "no cell of buffers has cycles"),
            ("buffers ticks_per_packet ratio amd case=gone", "no cell of buffers is like that"),
        ] {
            let (text, found) = rendered(mark);
            assert!(found.len() == 1 && found[0].to_string().contains(why), "{mark}: {found:?}");
            assert!(text.contains("old\n<!-- end"), "{text}");
        }
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let of = [0.2667, 0.9996, 8.7333, 9.996, 47.96, 99.96, 1449.4, 3_192_540.0, -5.0, 0.0];
        let said = [
            "0.267",
            "1.00",
            "8.73",
            "10.0",
            "48.0",
            "100",
            "1,449",
            "3,192,540",
            "−5.00",
            "0.000",
        ];
        assert_eq!(of.map(number), said);
    }
}
