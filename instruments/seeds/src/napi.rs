//! Post 001: packets per interrupt and CPU, with NAPI and with interrupt coalescing.

use linerate_prof::Result;
use linerate_show::table::{Cell, Column, Table};

use super::{Post, Report, Statement, Text};
use crate::decimal::Decimal;
use crate::stats::{self, Pair};

/// The reason for an empty cell of a load.
const NOT_REACHED: &str = "this load was not reached";

/// A row of the post's table.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    link_pct: Decimal,
    /// NAPI's figures; `None` if NAPI did not reach the load.
    napi: Option<Mode>,
    coalescing: Option<Mode>,
}

/// The figures of a mode at a load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mode {
    packets_per_interrupt: Decimal,
    cpu_pct: Decimal,
}

impl Load {
    /// Returns the figures of both modes; `None` unless both reached the load.
    fn both(&self) -> Option<(Mode, Mode)> {
        self.napi.zip(self.coalescing)
    }

    /// Returns the ratio of packets for each interrupt, coalescing to NAPI.
    fn packets_ratio(&self) -> Option<f64> {
        let (napi, coalescing) = self.both()?;
        pair(napi.packets_per_interrupt, coalescing.packets_per_interrupt).ratio()
    }

    /// Returns the ratio of CPU use, NAPI to coalescing.
    fn cpu_ratio(&self) -> Option<f64> {
        let (napi, coalescing) = self.both()?;
        pair(coalescing.cpu_pct, napi.cpu_pct).ratio()
    }
}

fn pair(before: Decimal, after: Decimal) -> Pair {
    Pair { before: before.to_f64(), after: after.to_f64() }
}

/// Recomputes the post's figures.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn report(post: &'static Post, text: &str) -> Result<Report> {
    let text = Text::new(post.id, text)?;
    let (first, loads) = loads(&text)?;
    let mut report = Report::new(post);
    taken(&mut report, &text)?;
    report.table(tools(&text));
    report.table(ratios(&loads));
    report.table(summary(&loads));
    report.table(references(&text));
    checks(&mut report, &text, &loads)?;
    errata(&mut report, &text, first, &loads)?;
    report.as_posted = as_posted(&loads);
    Ok(report)
}

/// Returns the rows of the table, and the line number of the first.
fn loads(text: &Text<'_>) -> Result<(usize, Vec<Load>)> {
    let head = text.line_with(1, "Link util [%]")?.line;
    let rule = text.line_with(head, "-----")?.line;
    let mut loads = Vec::new();
    for (line, row) in text.lines_from(rule + 1).take_while(|(_, row)| !row.trim().is_empty()) {
        loads.push(load(row).map_err(|why| text.wrong(line, &why))?);
    }
    if loads.is_empty() {
        return Err(text.wrong(rule, "no row follows"));
    }
    Ok((rule + 1, loads))
}

fn load(row: &str) -> std::result::Result<Load, String> {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let [link, napi, coalescing, napi_cpu, coalescing_cpu] = fields[..] else {
        return Err(format!("{} columns, and not 5", fields.len()));
    };
    let number = |field: &str| {
        let bare = Decimal::parse(field).filter(|number| number.to_f64() > 0.0);
        bare.ok_or_else(|| format!("a number above 0 should stand here, not {field:.40?}"))
    };
    let mode = |packets: &str, cpu: &str| match (packets, cpu) {
        ("-", "-") => Ok(None),
        ("-", _) | (_, "-") => Err("packets without CPU, or CPU without packets".to_owned()),
        _ => Ok(Some(Mode { packets_per_interrupt: number(packets)?, cpu_pct: number(cpu)? })),
    };
    Ok(Load {
        link_pct: number(link)?,
        napi: mode(napi, napi_cpu)?,
        coalescing: mode(coalescing, coalescing_cpu)?,
    })
}

fn taken(report: &mut Report, text: &Text<'_>) -> Result<()> {
    let mut fact = |about, said: Statement<&str>| report.taken(about, said.is, Some(said.line));
    fact("kernel", text.between("gathered using", " on an ")?);
    fact("machine", text.between(" on an ", " using the ")?);
    fact("driver", text.between(" using the ", " driver doing ")?);
    fact("workload", text.between(" driver doing ", ". (")?);
    fact("compared", text.between("I mean relative what we see when using", ")")?);
    fact("age", text.between("This data is", ", it was gathered")?);
    fact("how rough", text.between("(I'm", "...)")?);
    report.taken("runs, spread", "not said; the graphs are not kept", None);
    Ok(())
}

/// Tools that the post names, and what each measures.
const TOOLS: [(&str, &str); 5] = [
    ("\"/proc/\"", "the kernel's own counters: interrupts, packets, ticks by account"),
    ("PCP", "gathers /proc at a fixed period into a series; measures nothing itself"),
    ("\"kernprof\"", "samples the kernel's functions by time or by an event of the CPU"),
    ("\"q-tools\"", "samples by the CPU's counters (IA-64)"),
    ("\"get_cycles()\"", "times regions by the cycle counter, also with interrupts disabled"),
];

fn tools(text: &Text<'_>) -> Table {
    let columns = [
        Column::new("tool", "tool", ""),
        Column::new("measures", "what it measures", ""),
        Column::new("line", "line", ""),
    ];
    let title = "What tools were run, and what they measure (their output is not in the post)";
    let mut table = Table::new("tools", title, &columns);
    for (tool, measures) in TOOLS {
        if let Some(line) = text.says(tool) {
            let name = tool.trim_matches('"');
            table.row(vec![Cell::text(name), Cell::text(measures), Cell::Count(line as u64)]);
        }
    }
    table
}

fn ratios(loads: &[Load]) -> Table {
    let columns = [
        Column::new("link_pct", "link", "%"),
        Column::new("napi_packets_per_interrupt", "NAPI", "pkt/irq"),
        Column::new("coalescing_packets_per_interrupt", "coalescing", "pkt/irq"),
        Column::new("packets_ratio", "coalescing\n/ NAPI", "x"),
        Column::new("napi_cpu_pct", "NAPI", "CPU %"),
        Column::new("coalescing_cpu_pct", "coalescing", "CPU %"),
        Column::new("cpu_ratio", "NAPI /\ncoalescing", "x"),
    ];
    let title = "Packets for each interrupt, and CPU, at each load of the link";
    let mut table = Table::new("packets_per_interrupt", title, &columns);
    for load in loads {
        let packets = |mode: Option<Mode>| {
            mode.map_or(Cell::Absent(NOT_REACHED), |m| Cell::from(m.packets_per_interrupt))
        };
        let cpu =
            |mode: Option<Mode>| mode.map_or(Cell::Absent(NOT_REACHED), |m| Cell::from(m.cpu_pct));
        table.row(vec![
            Cell::from(load.link_pct),
            packets(load.napi),
            packets(load.coalescing),
            Cell::real(load.packets_ratio(), 2, NOT_REACHED),
            cpu(load.napi),
            cpu(load.coalescing),
            Cell::real(load.cpu_ratio(), 2, NOT_REACHED),
        ]);
    }
    table.note(
        "–: not reached at this load; nothing is extrapolated. Both ratios are above 1 where \
        coalescing is better.",
    );
    table
}

fn summary(loads: &[Load]) -> Table {
    let columns = [
        Column::new("ratio", "ratio", ""),
        Column::new("loads", "loads", "n"),
        Column::new("lowest", "lowest", "x"),
        Column::new("highest", "highest", "x"),
        Column::new("geometric_mean", "geometric\nmean", "x"),
    ];
    let title = "Over the loads that both reach";
    let mut table = Table::new("ratios", title, &columns);
    let mut row = |name: &str, ratios: Vec<f64>| {
        let range = stats::range(&ratios);
        table.row(vec![
            Cell::text(name),
            Cell::Count(ratios.len() as u64),
            Cell::real(range.map(|r| r.0), 2, NOT_REACHED),
            Cell::real(range.map(|r| r.1), 2, NOT_REACHED),
            Cell::real(stats::geometric_mean(&ratios), 2, NOT_REACHED),
        ]);
    };
    row(
        "packets/interrupt, coalescing / NAPI",
        loads.iter().filter_map(Load::packets_ratio).collect(),
    );
    row("CPU, NAPI / coalescing", loads.iter().filter_map(Load::cpu_ratio).collect());
    table
}

/// Lists the post's references: addresses in its text, and the mails of its thread.
fn references(text: &Text<'_>) -> Table {
    let columns = [Column::new("line", "line", ""), Column::new("reference", "reference", "")];
    let title = "References, as archived (addresses in them are masked)";
    let mut table = Table::new("references", title, &columns);
    let mut seen: Vec<&str> = Vec::new();
    for (line, row) in text.lines_from(1) {
        let of_the_thread = row.starts_with("In-reply-to:") || row.starts_with("References:");
        for word in row.split_whitespace() {
            let word = word.trim_matches(['(', ')', ',', '.']);
            let mail = of_the_thread && word.starts_with('<') && word.ends_with('>');
            if (mail || word.starts_with("http://")) && !seen.contains(&word) {
                seen.push(word);
                table.row(vec![Cell::Count(line as u64), Cell::text(word)]);
            }
        }
    }
    table
}

/// Checks the post's statements about its table.
fn checks(report: &mut Report, text: &Text<'_>, loads: &[Load]) -> Result<()> {
    let few = text.between("The data acquired with all these show that NAPI causes", "packets")?;
    let of = loads.iter().filter(|load| load.both().is_some()).count();
    if of == 0 {
        return Err(text.wrong(few.line, "nothing to compare: no load was reached by both"));
    }
    let fewer = loads.iter().filter_map(Load::packets_ratio).filter(|x| *x > 1.0).count();
    let what = format!("\"{}\" packets for an interrupt with NAPI: loads with fewer", few.is);
    report.check(what, few.line, format!("{of} of {of}"), format!("{fewer} of {of}"));
    let high = text.between("The reason that CPU utilization is so", "with NAPI")?;
    let higher = loads.iter().filter_map(Load::cpu_ratio).filter(|x| *x > 1.0).count();
    let what = format!("CPU \"so {}\" with NAPI: loads with more", high.is);
    report.check(what, high.line, format!("{of} of {of}"), format!("{higher} of {of}"));
    Ok(())
}

fn errata(report: &mut Report, text: &Text<'_>, first: usize, loads: &[Load]) -> Result<()> {
    twice_as_much(report, text, loads)?;
    rough(report, first, loads);
    for (i, pair) in loads.windows(2).enumerate() {
        let [Some(a), Some(b)] = [pair[0].coalescing, pair[1].coalescing] else { continue };
        if b.cpu_pct.to_f64() < a.cpu_pct.to_f64() {
            let says = format!(
                "CPU with coalescing falls from {} to {} % as the link goes from {} to {} %",
                a.cpu_pct, b.cpu_pct, pair[0].link_pct, pair[1].link_pct
            );
            let gives = "More packets for less CPU: either packets per interrupt rose by enough, or \
                the graph was misread. The post does not say.";
            report.erratum(first + i + 1, says, gives);
        }
    }
    let latency = "A coalesced packet waits for its interrupt. The post shows the CPU that this \
        saves, and no latency: what it costs is not known.";
    report.erratum(None, "Nothing is said of latency", latency);
    Ok(())
}

fn twice_as_much(report: &mut Report, text: &Text<'_>, loads: &[Load]) -> Result<()> {
    let said = text.between("By inordinate, we mean", ".")?;
    let ratios: Vec<(Decimal, f64)> =
        loads.iter().filter_map(|load| Some((load.link_pct, load.cpu_ratio()?))).collect();
    let twice: Vec<String> =
        ratios.iter().filter(|(_, x)| *x >= 2.0).map(|(at, _)| at.to_string()).collect();
    let all: Vec<String> = ratios.iter().map(|(_, x)| format!("{x:.2}")).collect();
    let gives = format!(
        "This is quoted, and compares with another machine. In the post's own table NAPI takes twice \
         the CPU or more at {} of {} loads ({} %): {}.",
        twice.len(),
        ratios.len(),
        twice.join(", "),
        all.join(", ")
    );
    report.erratum(said.line, format!("\"{}\"", said.is), gives);
    Ok(())
}

/// Notes the error that half a packet of misreading causes in the most sensitive ratio.
fn rough(report: &mut Report, first: usize, loads: &[Load]) {
    const HALF: f64 = 0.5;
    let fewest = loads.iter().enumerate().filter_map(|(i, load)| {
        let (napi, coalescing) = load.both()?;
        let [few, many] = [napi, coalescing].map(|mode| mode.packets_per_interrupt.to_f64());
        (few > HALF).then_some((i, few, many))
    });
    let Some((i, few, many)) = fewest.min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
    let gives = format!(
        "Half a packet of misreading in {few} makes the ratio {many} / {few} = {:.2} anything from \
         {:.2} to {:.2}. A plotted figure should be published as a number, too.",
        many / few,
        many / (few + HALF),
        many / (few - HALF)
    );
    report.erratum(first + i, "The figures were read off graphs by eye", gives);
}

/// Formats the table as posted.
fn as_posted(loads: &[Load]) -> String {
    let row = |load: &Load| {
        let packets =
            |mode: Option<Mode>| mode.map_or("-".into(), |m| m.packets_per_interrupt.to_string());
        let cpu = |mode: Option<Mode>| mode.map_or("-".into(), |m| m.cpu_pct.to_string());
        [
            load.link_pct.to_string(),
            packets(load.napi),
            packets(load.coalescing),
            cpu(load.napi),
            cpu(load.coalescing),
        ]
    };
    in_the_layout_of_001(loads.iter().map(row))
}

/// Formats rows in the layout of the post's table: the load of the link in per cent, then packets
/// for each interrupt and CPU in per cent, each with NAPI and with coalescing. "-" stands for a
/// load that was not reached.
#[must_use]
pub fn in_the_layout_of_001(rows: impl Iterator<Item = [String; 5]>) -> String {
    let mut table = String::from(
        "   Link util [%]  Packets/Interrupt     CPU utilization [%]\n\n                  \
         NAPI    Intr Coal.    NAPI      Intr Coal.\n   \
         ---------------------------------------------------------\n",
    );
    for [link, a, b, c, d] in rows {
        table += &format!("    {link:<15}{a:<11}{b:<10}{c:<13}{d}\n");
    }
    table
}
