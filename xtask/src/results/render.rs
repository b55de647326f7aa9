//! Rendering of the tables in pages from documents.
//!
//! ```text
//! <!-- results: EXPERIMENT METRIC STYLE MACHINE.. [FACTOR=LEVEL..] -->
//! ```
//!
//! METRIC is a metric of the experiment, or `head:NAME` for a figure of whole sides. STYLE is
//! `change` (both sides' values, the change in per cent and its interval), `ratio` (of the second
//! side to the first) or `values`; each machine has a column. `plain` is for readers who see such a
//! table for the first time: one machine, and columns for the sides, for what was expected, and for
//! what became of that. `scatter` draws two metrics, `X,Y`, of one machine, and lists them
//! ([`super::scatter`]), and `columns` lists several of one machine. Several levels of one factor are alternatives.
//!
//! A metric of CPU time gets a column with the latency of the same cells, if the document has one.
//! `guest-bounce WHAT MACHINE` is a table of [`followed`].
//!
//! In a document that reproduces post 001, a side that did not reach its load has a dash instead of
//! a figure.

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::conditions::{definition, of_side, source, stated, subject};
use super::number::{number, signed};
use super::plain::plain;
use super::scatter::REACHED_PCT;
use super::style::Style;
use super::{Documents, columns, scatter, word};
use crate::qemu::followed;
use crate::tidy::Finding;

/// The line before a rendered table begins with this.
pub const BEGIN: &str = "<!-- results: ";
/// The line after a rendered table.
pub const END: &str = "<!-- end of results -->";
/// Post whose sides have a load that they may not reach.
const POST: &str = "001";
/// Metrics of CPU time that have the latency beside them.
const CPU: [&str; 3] = ["cpu_pct", "all_cpu_pct", "cpu_ns_per_packet"];
/// The name of a latency in a table's head, and its metrics in microseconds: median and 99th
/// percentile.
type Latency = (&'static str, [&'static str; 2]);
/// The latencies beside CPU time, of which a document has one.
const LATENCIES: [Latency; 2] =
    [("receipt", ["receipt_p50_us", "receipt_p99_us"]), ("latency", ["p50_us", "p99_us"])];

/// A block to be rendered, as its mark describes it.
struct Block<'a> {
    experiment: &'a str,
    metric: &'a str,
    style: Style,
    machines: Vec<&'a str>,
    levels: Vec<(&'a str, &'a str)>,
}

/// Returns true if a page has tables to be rendered.
pub fn has_blocks(text: &str) -> bool {
    text.lines().any(|line| line.starts_with(BEGIN))
}

/// Returns the page with every table rendered, and the errors found.
pub fn page(path: &str, text: &str, documents: &mut Documents<'_>) -> (String, Vec<Finding>) {
    let (mut out, mut found) = (String::with_capacity(text.len()), Vec::new());
    let (mut lines, mut fenced) = (text.lines().enumerate().peekable(), false);
    while let Some((i, line)) = lines.next() {
        out += line;
        out.push('\n');
        fenced ^= line.starts_with("```");
        let Some(asked) = line.strip_prefix(BEGIN).filter(|_| !fenced) else { continue };
        let mut old = String::new();
        let is_inside = |line: &str| line != END && !line.starts_with(BEGIN);
        while let Some((_, line)) = lines.next_if(|(_, line)| is_inside(line)) {
            old += line;
            old.push('\n');
        }
        // Without its end, the rest of the page would be lost.
        if lines.next_if(|(_, line)| *line == END).is_none() {
            found.push(Finding::at(path, i + 1, format!("no {END} behind this mark")));
            out += &old;
            continue;
        }
        let table = match followed::asked(asked) {
            Some((what, machine)) => followed::block(path, what, machine, documents),
            None => Block::parse(asked).and_then(|block| block.render(path, documents)),
        };
        match table {
            Ok(table) => out += &table,
            Err(e) => {
                found.push(Finding::at(path, i + 1, format!("{e:#}")));
                out += &old;
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
        let what = "a mark is <!-- results: EXPERIMENT METRIC change|ratio|values|plain|scatter|columns MACHINE.. [FACTOR=LEVEL..] -->";
        let mut next = || words.next().context(what);
        let (experiment, metric) = (next()?, next()?);
        let name = next()?;
        let style = Style::named(name).with_context(|| format!("{name}: {what}"))?;
        let (levels, machines): (Vec<&str>, Vec<&str>) = words.partition(|word| word.contains('='));
        let levels = levels.iter().filter_map(|word| word.split_once('=')).collect();
        if machines.is_empty() {
            bail!("no machine: {what}");
        }
        if style.is_of_one() && machines.len() > 1 {
            bail!("such a table is of one machine");
        }
        Ok(Block { experiment, metric, style, machines, levels })
    }

    /// Returns the table, followed by its conditions and the documents from which it is rendered.
    fn render(&self, page: &str, documents: &mut Documents<'_>) -> Result<String> {
        let first = documents.get(self.machines[0], self.experiment)?.clone();
        let up = "../".repeat(page.matches('/').count());
        let beside = self.latency(&first);
        let conditions = self.conditions(documents, &first, beside, &up)?;
        let table = match self.style {
            Style::Scatter => self.scattered(documents, &first, &up)?,
            Style::Columns => columns::table(&first, &self.cells(&first)?, self.metric)?,
            _ => self.table(documents, &first, beside)?,
        };
        Ok(format!("{table}\n{conditions}\n\n"))
    }

    /// Returns the table, with a row for each cell of the first document.
    fn table(
        &self,
        documents: &mut Documents<'_>,
        first: &Value,
        beside: Option<Latency>,
    ) -> Result<String> {
        let cells = self.cells(first)?;
        let mut rows: Vec<(&Value, Vec<String>)> =
            cells.iter().map(|cell| (&cell["at"], Vec::new())).collect();
        for machine in &self.machines {
            let document = documents.get(machine, self.experiment)?;
            for (at, columns) in &mut rows {
                columns.push(self.figure(document, at));
                columns.extend(beside.map(|(_, names)| latency(document, at, names)));
            }
        }
        let columns = self.columns(first, beside);
        let mut table = format!("\n| {} |\n", columns.join(" | "));
        table += &format!("|{}\n", "---|".repeat(columns.len()));
        for (at, columns) in rows {
            table += &format!("| {} | {} |\n", name_of(at), columns.join(" | "));
        }
        Ok(table)
    }

    /// Adds the picture of the first document to those of the pages, and returns the picture's link
    /// and table.
    fn scattered(&self, documents: &mut Documents<'_>, first: &Value, up: &str) -> Result<String> {
        let metrics = self.metric.split_once(',').context("a scatter is of two metrics: X,Y")?;
        let (table, picture) = scatter::draw(first, &self.cells(first)?, metrics.into())?;
        let path = scatter::path(self.experiment, &self.levels)?;
        if documents.pictures.get(&path).is_some_and(|known| *known != picture) {
            bail!("{path} is the picture of another mark, of other figures at the same levels");
        }
        documents.pictures.insert(path.clone(), picture);
        Ok(format!("\n![{}]({up}{path})\n\n{table}", self.metric.replace(',', " and ")))
    }

    /// Returns the text below a table: what its figures are, and the documents that have them.
    fn conditions(
        &self,
        documents: &mut Documents<'_>,
        first: &Value,
        beside: Option<Latency>,
        up: &str,
    ) -> Result<String> {
        let beside = beside.map_or_else(String::new, |(_, [_, p99])| format!(",{p99}"));
        let metrics = format!("{}{beside}", self.metric);
        let is_of_cells = !self.style.has_many() && !self.metric.starts_with("head:");
        let mut sources = Vec::new();
        for machine in &self.machines {
            let document = documents.get(machine, self.experiment)?;
            let cells = self.cells(document).with_context(|| (*machine).to_owned())?;
            let mut all = document["cells"].as_array().into_iter().flatten();
            if is_of_cells && !all.any(|cell| cell["metrics"].get(self.metric).is_some()) {
                bail!("no cell of {} has {} on {machine}", self.experiment, self.metric);
            }
            if subject(document, &metrics)? != subject(first, &metrics)? {
                let of = self.machines[0];
                bail!("{machine} has another experiment, workload or device than {of}");
            }
            sources.push(source([machine, self.experiment], document, up, self.metric, &cells)?);
        }
        Ok(format!("{}\nFrom {}.", stated(first, &metrics)?, sources.join("; ")))
    }

    /// Returns the cells of a document that the mark asks for.
    fn cells<'d>(&self, document: &'d Value) -> Result<Vec<&'d Value>> {
        let cells = document["cells"].as_array().context("the document has no cells")?;
        let cells: Vec<&Value> = cells.iter().filter(|cell| self.wants(&cell["at"])).collect();
        if cells.is_empty() {
            bail!("no cell of {} is like that", self.experiment);
        }
        Ok(cells)
    }

    /// Returns the heads of the columns, that of the rows' names first.
    fn columns(&self, document: &Value, beside: Option<Latency>) -> Vec<String> {
        let (a, b) = (word(document, "/experiment/a"), word(document, "/experiment/b"));
        let mut cells = document["cells"].as_array().into_iter().flatten();
        let effect = cells.find_map(|cell| cell["metrics"].get(self.metric));
        let unit = effect.map_or("", |effect| word(effect, "/unit"));
        let latency = beside.map(|(name, _)| format!("{name} in us (pairs)"));
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

    /// Returns the latency that stands beside the metric in each row, if the document has one.
    fn latency(&self, document: &Value) -> Option<Latency> {
        let is_asked = !self.style.has_many() && CPU.contains(&self.metric);
        let has = |(_, names): &Latency| names.iter().all(|one| definition(document, one).is_ok());
        LATENCIES.into_iter().find(|latency| is_asked && has(latency))
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
            return self.without_figures("not run");
        };
        // In a plain table each side has a column, and three more follow.
        let (between, rest) =
            if self.style == Style::Plain { ("|", " | – | – | –") } else { ("→", "") };
        if let Some(name) = self.metric.strip_prefix("head:") {
            let [a, b] = ["a", "b"].map(|side| of_side(document, at, side, name));
            return match a.zip(b) {
                Some((a, b)) => format!("{} {between} {}{rest}", number(a), number(b)),
                None => self.without_figures("-"),
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
                let [a, b] = sides.map(|side| side.unwrap_or_else(|| "–".to_owned()));
                return format!("{a} {between} {b}{rest}");
            }
        }
        self.told(effect, &cell["status"]).unwrap_or_else(|_| self.without_figures("-"))
    }

    /// Returns a text in place of a cell's figures, over as many columns as they take.
    fn without_figures(&self, text: &str) -> String {
        format!("{text}{}", if self.style == Style::Plain { " | - | - | - | -" } else { "" })
    }

    fn told(&self, effect: &Value, status: &Value) -> Result<String> {
        let get = |name: &str| effect[name].as_f64().ok_or_else(|| anyhow!("no {name}"));
        let interval =
            |i: usize| effect["ci95_pct"][i].as_f64().ok_or_else(|| anyhow!("no interval"));
        let (change, from, to) = (get("change_pct")?, interval(0)?, interval(1)?);
        let ratio = |pct: f64| number(1.0 + pct / 100.0);
        let [is_a_bound, is_b_bound] = bounds(effect);
        let under = |is_bound: bool| if is_bound { "< " } else { "" };
        let a = format!("{}{}", under(is_a_bound), number(get("a")?));
        let b = format!("{}{}", under(is_b_bound), number(get("b")?));
        let limit = match (is_a_bound, is_b_bound) {
            (true, _) => "at least ",
            (_, true) => "at most ",
            _ => "",
        };
        let disturbed = if status == "inconclusive" { " (disturbed)" } else { "" };
        let mut text = match self.style {
            Style::Values => return Ok(format!("{a} → {b}{disturbed}")),
            Style::Scatter | Style::Columns => return Ok(String::new()),
            Style::Plain => {
                let (of, outcome) = plain(effect, status == "inconclusive");
                let [ratio, from, to] = [change, from, to].map(ratio);
                return Ok(format!(
                    "{a} | {b} | {limit}{ratio} × [{from}, {to}] | {of} | {outcome}"
                ));
            }
            Style::Ratio => format!("{limit}{} [{}, {}]", ratio(change), ratio(from), ratio(to)),
            Style::Change => {
                let [change, from, to] = [change, from, to].map(signed);
                format!("{a} → {b}: {limit}{change} % [{from}, {to}]")
            }
        };
        text += &format!(", {}{disturbed}", effect["verdict"].as_str().unwrap_or("-"));
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

/// Returns for each side whether it counted nothing: then its value is an upper bound. If it is the
/// second side, the interval of the change begins at −100 %.
pub(super) fn bounds(effect: &Value) -> [bool; 2] {
    let bound = &effect["censored_below"];
    let is = |side: &str| bound.is_number() && effect[side] == *bound;
    let is_b = is("b") && effect["ci95_pct"][0].as_f64().is_some_and(|from| from <= -100.0);
    [is("a") && !is_b, is_b]
}

/// Returns true if the document reproduces post 001.
fn is_of_post(document: &Value) -> bool {
    word(document, "/experiment/seed_post") == POST
}

/// Returns the latency of both sides in one cell, with the number of pairs that it is from. That is
/// often less than the number of the CPU time, because a window can be too disturbed for a latency.
fn latency(document: &Value, at: &Value, names: [&str; 2]) -> String {
    let mut cells = document["cells"].as_array().into_iter().flatten();
    let told = cells.find(|cell| cell["at"] == *at).and_then(|cell| {
        let [p50, p99] = names.map(|name| &cell["metrics"][name]);
        let sides = |effect: &Value| {
            let (a, b) = (effect["a"].as_f64()?, effect["b"].as_f64()?);
            Some(format!("{} → {}", number(a), number(b)))
        };
        let pairs = p99["n_pairs"].as_u64()?;
        Some(format!("p50 {}, p99 {} ({pairs})", sides(p50)?, sides(p99)?))
    });
    told.unwrap_or_else(|| "-".to_owned())
}

/// Returns the levels of a cell, without the names of their factors.
pub(super) fn name_of(at: &Value) -> String {
    let levels = at.as_object().into_iter().flatten();
    let levels: Vec<&str> = levels.map(|(_, level)| level.as_str().unwrap_or("-")).collect();
    levels.join(", ")
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
        let from = "Device: none.\nFrom [amd](../results/amd/buffers.json.gz): AMD EPYC, 2,596 MHz, Linux 6.18 under KVM, 2026-11-22, version 0.1.0, commit ada9ede, median A/A ±2.50 %; [other]";
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
        let row = "| bulk | 8.73 | 2.32 | 0.267 × [0.255, 0.268] | at most 0.250 | better, **not as expected** |";
        assert!(text.contains(row), "{text}");
        let two = rendered("buffers ticks_per_packet plain amd other").1;
        assert!(two[0].to_string().contains("one machine"), "{two:?}");
    }

    /// Returns a document with a metric of CPU time in both cells, and a latency in the first.
    fn with_latency([p50, p99]: [&str; 2]) -> Value {
        let metric = |a: f64, b: f64, pairs: u64| {
            serde_json::json!({"unit": "%", "a": a, "b": b, "change_pct": -60.0,
                "ci95_pct": [-61.0, -59.0], "n_pairs": pairs, "verdict": "better"})
        };
        let mut whole = document();
        let file = word(&whole, "/run/config_toml").replace("ticks_per_packet", "cpu_pct");
        let file = file.replace("p50_ticks", p50).replace("p99_ticks", p99);
        whole["run"]["config_toml"] = file.into();
        for (cell, reached) in [(0, 100.0), (1, 97.9)] {
            whole["cells"][cell]["metrics"] = serde_json::json!({
                "cpu_pct": metric(45.0, 18.0, 24), "achieved_pct": metric(reached, 99.9, 24)});
        }
        whole["cells"][0]["metrics"][p50] = metric(40.0, 140.0, 3);
        whole["cells"][0]["metrics"][p99] = metric(80.0, 290.0, 3);
        whole
    }

    /// S1.9 and S1.12, in a document with two loads, of which A does not reach the second: a dash
    /// is for post 001 only. A receiver's latency is that of its datagrams.
    #[test]
    fn cpu_time_has_the_latency_beside_and_a_dash_where_post_001_did_not_reach_the_load() {
        let whole = "45.0 → 18.0: −60.0 % [−61.0, −59.0], better";
        let beside = "p50 40.0 → 140, p99 80.0 → 290 (3) |\n";
        let disturbed = format!("{whole} (disturbed)");
        for (post, (name, names), ring) in
            [("001", LATENCIES[0], "– → 18.0"), ("", LATENCIES[1], &disturbed)]
        {
            let mut document = with_latency(names);
            document["experiment"]["seed_post"] = post.into();
            let rendered = |style: &str| {
                let mut documents = Documents::new(|_| Ok(document.clone()));
                let mark = format!("{BEGIN}x cpu_pct {style} amd -->\n{END}\n");
                let (text, found) = page("docs/x.md", &mark, &mut documents);
                assert!(found.is_empty(), "{found:?}");
                text
            };
            let ([p50, p99], text, plain) = (names, rendered("change"), rendered("plain"));
            let head = format!("linerate | amd | {name} in us (pairs) |");
            let rows = format!("| bulk | {whole} | {beside}| ring | {ring} | - |");
            let about = format!("`{p50}`: Ticks, median. `{p99}`: The same, 99th percentile.");
            assert!([head, rows, about].iter().all(|line| text.contains(line)), "{text}");
            assert!(plain.contains(&format!(" | – | better | {beside}")), "{plain}");
            let dashes = plain.contains("| ring | – | 18.0 | – | – | – | - |\n");
            assert_eq!(dashes, post == POST, "{plain}");
        }
    }

    #[test]
    fn every_row_of_a_plain_table_has_all_columns() {
        for metric in ["ticks_per_packet", "head:memory_bytes"] {
            let (text, found) = rendered(&format!("buffers {metric} plain amd"));
            let columns: Vec<usize> = text
                .lines()
                .filter(|line| line.starts_with('|'))
                .map(|line| line.matches('|').count())
                .collect();
            assert_eq!(columns, [7; 4], "{found:?}\n{text}");
        }
    }

    #[test]
    fn value_of_a_side_that_counted_nothing_is_a_bound() {
        let rendered = |style: &str, none: &str, from: f64| {
            let mut whole = document();
            let effect = &mut whole["cells"][0]["metrics"]["ticks_per_packet"];
            effect["ci95_pct"][0] = from.into();
            effect["censored_below"] = effect[none].clone();
            let mut documents = Documents::new(|_| Ok(whole.clone()));
            let mark = format!("{BEGIN}buffers ticks_per_packet {style} amd -->\n{END}\n");
            page("docs/x.md", &mark, &mut documents).0
        };
        for (style, none, from, row) in [
            ("change", "b", -100.0, "8.73 → < 2.32: at most −73.3 % [−100.0, −73.2]"),
            ("change", "a", -90.0, "< 8.73 → 2.32: at least −73.3 % [−90.0, −73.2]"),
            ("ratio", "b", -100.0, "| at most 0.267 [0.000, 0.268]"),
            ("plain", "b", -100.0, "| 8.73 | < 2.32 | at most 0.267 × ["),
            ("values", "a", -90.0, "| < 8.73 → 2.32 |"),
        ] {
            let text = rendered(style, none, from);
            assert!(text.contains(row), "no {row:?} in\n{text}");
        }
    }

    #[test]
    fn values_of_a_disturbed_cell_are_marked() {
        let mut whole = document();
        whole["cells"][0]["status"] = "inconclusive".into();
        let mut documents = Documents::new(|_| Ok(whole.clone()));
        let mark = format!("{BEGIN}buffers ticks_per_packet values amd -->\n{END}\n");
        let (text, _) = page("docs/x.md", &mark, &mut documents);
        assert!(text.contains("| bulk | 8.73 → 2.32 (disturbed) |"), "{text}");
    }

    #[test]
    fn machines_of_another_workload_or_without_the_metric_have_no_table_together() {
        let found = |pointer: &str, to: Value| {
            let mut other = document();
            *other.pointer_mut(pointer).unwrap() = to;
            let mut documents = Documents::new(|path| match path.contains("/other/") {
                true => Ok(other.clone()),
                false => Ok(document()),
            });
            let mark = format!("{BEGIN}buffers ticks_per_packet ratio amd other -->\n{END}\n");
            let (_, found) = page("docs/x.md", &mark, &mut documents);
            found.first().map(ToString::to_string)
        };
        let file = word(&document(), "/run/config_toml").replace("Buffers.", "Others.");
        let why = found("/run/config_toml", file.into()).unwrap();
        assert!(why.contains("other has another experiment, workload or device than amd"), "{why}");
        let why = found("/cells/0/metrics", serde_json::json!({})).unwrap();
        assert!(why.contains("no cell of buffers has ticks_per_packet on other"), "{why}");
        assert_eq!(found("/run/tool/version", "0.2.0".into()), None);
    }

    #[test]
    fn machine_without_the_requested_cells_is_named() {
        let mut other = document();
        other["cells"][0]["at"]["case"] = "gone".into();
        let mut documents = Documents::new(|path| match path.contains("/other/") {
            true => Ok(other.clone()),
            false => Ok(document()),
        });
        let mark = "buffers ticks_per_packet ratio amd other case=bulk";
        let (_, found) = page("docs/x.md", &format!("{BEGIN}{mark} -->\n{END}\n"), &mut documents);
        let why = "other: no cell of buffers is like that";
        assert!(found.len() == 1 && found[0].to_string().contains(why), "{found:?}");
    }

    #[test]
    fn mark_without_its_end_is_found_and_the_page_behind_it_stays() {
        let mark = format!("{BEGIN}buffers ticks_per_packet ratio amd -->\n");
        let whole = format!("{mark}old\n{END}\nbehind\n");
        for text in [format!("{mark}old\nbehind\n"), format!("{mark}old\n{whole}")] {
            let mut documents = Documents::new(|_| Ok(document()));
            let (rendered, found) = page("docs/x.md", &text, &mut documents);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].to_string().starts_with("docs/x.md:1: no <!-- end"), "{found:?}");
            assert!(rendered.starts_with(&format!("{mark}old\n")), "{rendered}");
            assert!(rendered.ends_with("behind\n"), "{rendered}");
        }
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
}
