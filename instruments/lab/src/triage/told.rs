//! The result of a triage as text.

use std::fmt;

use linerate_show::number::count;
use linerate_show::table::{Cell, Column, Table};
use linerate_show::words::wrapped;

use super::{Cap, LATE_AFTER, Seen, Triage};

const COLUMNS: [Column; 11] = [
    Column::new("device", "device", ""),
    Column::new("cap", "cap", ""),
    Column::new("packets", "packets", ""),
    Column::new("resent_per_million", "resent", "/million"),
    Column::new("inlet_per_million", "inlet", "/million"),
    Column::new("core_per_million", "core", "/million"),
    Column::new("driver_per_million", "driver", "/million"),
    Column::new("outlet_per_million", "outlet", "/million"),
    Column::new("receiver_per_million", "receiver", "/million"),
    Column::new("late_core_per_million", "late\nin core", "/million"),
    Column::new("late_after_per_million", "late\nbehind", "/million"),
];

const FIGURES: [&str; 8] = [
    "tcp_retrans_segs",
    "inlet_lost",
    "core_lost",
    "driver_lost",
    "outlet_lost",
    "receiver_lost",
    "core_late",
    LATE_AFTER,
];

/// Counts of the queues in front of the engine and of the receivers, listed if they are not 0.
const RECEIVERS: [&str; 24] = [
    "inlet_refused",
    "inlet_missed",
    "missed",
    "rx_errs",
    "rx_drop",
    "rx_fifo",
    "rx_frame",
    "backlog_drop",
    "ip_in_hdr_errors",
    "ip_in_discards",
    "tcp_in_errs",
    "udp_in_errors",
    "udp_rcvbuf_errors",
    "tcp_backlog_drop",
    "tcp_rcvq_drop",
    "tcp_ofo_drop",
    "tcp_zero_window_drop",
    "pfmemalloc_drop",
    "tcp_prune_called",
    "tcp_zero_windows",
    "tcp_timeouts",
    "tcp_loss_probes",
    "tcp_dsack_recv",
    "tcp_sack_reorder",
];

impl Triage {
    /// Returns the result in a line: the causes, `none`, or that it is undecided.
    #[must_use]
    pub fn in_short(&self) -> String {
        let causes = &self.verdict.causes;
        let mut words: Vec<&str> = Vec::new();
        for finding in causes {
            if !words.contains(&finding.cause.as_str()) {
                words.push(finding.cause.as_str());
            }
        }
        let open = if self.verdict.untold.is_empty() { "" } else { "; not all can be told" };
        match (words.as_slice(), open) {
            ([], "") => "cause: none".into(),
            ([], _) => "cause: cannot be told".into(),
            ([one], _) => format!("cause: {one}{open}"),
            (words, _) => format!("causes: {}{open}", words.join(", ")),
        }
    }
}

impl fmt::Display for Triage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at: Vec<String> =
            self.at.iter().map(|(name, level)| format!("{name}={level}")).collect();
        writeln!(f, "{}", self.in_short())?;
        f.write_str(&wrapped(&format!("{} at {}", self.run, at.join(" ")), "", "  "))?;
        for finding in &self.verdict.causes {
            let also = [
                ("with a cap of 1", finding.without_per_million),
                ("on the other device", finding.elsewhere_per_million),
            ];
            let also = also.iter().filter_map(|(who, n)| Some((who, (*n)?.max(0.0))));
            let also: String =
                also.map(|(who, n)| format!(", {who} {}", count(n.round() as u64))).collect();
            let (cause, why) = (finding.cause.as_str(), &finding.why);
            let n = count(finding.per_million.round() as u64);
            let text = format!("{cause}: {why} Of a million with batches {n}{also}.");
            f.write_str("\n")?;
            f.write_str(&wrapped(&text, "", "  "))?;
        }
        for untold in &self.verdict.untold {
            f.write_str("\n")?;
            f.write_str(&wrapped(&format!("not told: {untold}"), "", "  "))?;
        }
        let own = self.seen.iter().find(|seen| seen.own && seen.cap == Cap::Batch);
        if own.is_some_and(|seen| !seen.sums.contains_key(LATE_AFTER)) {
            f.write_str(
                "\nnot looked at: whether packets come late behind the engine (--extra)\n",
            )?;
        }
        if own.is_some_and(|seen| !seen.sums.contains_key("core_late")) {
            f.write_str("\nnot looked at: whether the engine itself reorders packets (--extra)\n")?;
        }
        if self.left_out > 0 {
            let left_out = match self.left_out {
                1 => "1 pair that was not admitted or had its CPUs".to_owned(),
                n => format!("{n} pairs that were not admitted or had their CPUs"),
            };
            let left_out = format!("left out: {left_out} at another distance");
            write!(f, "\n{}", wrapped(&left_out, "", "  "))?;
        }
        let mut table = Table::new("seen", "", &COLUMNS);
        for seen in &self.seen {
            let cap = match seen.cap {
                Cap::One => "1",
                Cap::Two => "2",
                Cap::Batch => "batch",
            };
            let mut row = vec![Cell::text(&*seen.device), Cell::text(cap)];
            row.push(Cell::Count(seen.packets));
            let rates = FIGURES.map(|name| Cell::real(seen.per_million(name), 0, "not counted"));
            row.extend(rates);
            table.row(row);
        }
        write!(f, "\n{table}")?;
        // Without admitted windows, no counter was read.
        let is_counted = |seen: &&Seen| seen.cap == Cap::Batch && !seen.sums.is_empty();
        for seen in self.seen.iter().filter(is_counted) {
            f.write_str(&wrapped(&receivers(seen), "", "  "))?;
        }
        Ok(())
    }
}

/// Returns the receivers' kernel counts with batches that are not 0.
fn receivers(seen: &Seen) -> String {
    let some = |name: &&&str| seen.sums.get(**name).is_some_and(|n| *n > 0.0);
    let told: Vec<String> = RECEIVERS
        .iter()
        .filter(some)
        .map(|name| format!("{name} {:.0}", seen.sums[*name]))
        .collect();
    let told = if told.is_empty() { "all 0".to_owned() } else { told.join(", ") };
    format!("Counters of the hosts with {} and batches: {told}.", seen.device)
}
