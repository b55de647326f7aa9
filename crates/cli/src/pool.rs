//! Output about packet memory and its cost: a line in every result, and a table on request.

use std::fmt::Write;

use linerate_ctl::PoolReport;
use linerate_ctl::pool::{CoreReport, DwellTimes, RemoteFrees};
use linerate_sys::text::thousands;

/// Formats the line of a pool: memory held, hit rate of hot lists, and who freed the frames; if
/// calls were sampled, also the samples. `timing_ticks` returns the cost of timing one call, for an
/// upper bound of their cost.
pub fn line(pool: &PoolReport, timing_ticks: impl FnOnce() -> u64) -> String {
    let percent = |share: Option<f64>| share.map_or("-".into(), |s| format!("{:.1} %", s * 100.0));
    let mut text = format!(
        "pool     {} held  hot list hits {}  freed on another CPU {}\n",
        bytes(pool.memory_bytes),
        percent(pool.hit_share()),
        percent(pool.remote_frees.share),
    );
    if let Some(dwell) = &pool.dwell {
        // Lifetimes of packets freed by the worker that allocated them, and of those freed by
        // others.
        let all = [("lifetime", dwell.local), ("lifetime between workers", dwell.remote)];
        let some = all.iter().filter(|(_, times)| times.packets > 0);
        let lives: String = some.map(|(what, times)| lived(what, times)).collect();
        let allocs = mean(&pool.cores, |core| (core.ticks_per_alloc, core.allocs));
        let frees = mean(&pool.cores, |core| (core.ticks_per_free, core.frees));
        let _ = writeln!(text, "sampled  alloc {allocs} ticks/pkt  free {frees} ticks/pkt{lives}");
        text += &sampling(&pool.cores, timing_ticks());
    }
    text
}

/// Formats the line about the cost of sampling for the run.
fn sampling(cores: &[CoreReport], timing_ticks: u64) -> String {
    let timed: u64 = cores.iter().flat_map(|core| core.calls_timed).sum();
    let packets: u64 = cores.iter().map(|core| core.allocs).sum();
    let each = match packets {
        0 => "-".into(),
        n => format!("{:.3}", (timed as f64 * timing_ticks as f64) / n as f64),
    };
    let timed = thousands(timed);
    format!("         {timed} calls timed at {timing_ticks} ticks: {each} ticks/pkt at most\n")
}

/// Returns the mean ticks for each packet over all timed cores, weighted by their packets.
fn mean(cores: &[CoreReport], of: impl Fn(&CoreReport) -> (Option<f64>, u64)) -> String {
    let timed = cores.iter().map(of).filter_map(|(ticks, n)| ticks.map(|ticks| (ticks, n as f64)));
    let sum = |(ticks, packets), (t, n)| (ticks + t * n, packets + n);
    let (ticks, packets) = timed.fold((0.0, 0.0), sum);
    if packets > 0.0 { format!("{:.1}", ticks / packets) } else { "-".into() }
}

/// Formats the sampled lifetimes of packets of one kind.
fn lived(what: &str, times: &DwellTimes) -> String {
    let ticks = |n: Option<u64>| n.map_or("-".into(), thousands);
    format!("  {what} p50 {} p99 {} ticks", ticks(times.p50_ticks), ticks(times.p99_ticks))
}

/// Formats an amount of memory in about three digits: `17.4 MiB`.
fn bytes(n: u64) -> String {
    match n as f64 / 1024.0 {
        kib if kib >= 1024.0 * 1024.0 => format!("{:.1} GiB", kib / (1024.0 * 1024.0)),
        kib if kib >= 1024.0 => format!("{:.1} MiB", kib / 1024.0),
        kib => format!("{kib:.0} KiB"),
    }
}

/// Formats the table: each core's work, the cost of the depot's locks, and frees by CPU.
pub fn table(pool: &PoolReport) -> String {
    let locks = &pool.locks;
    format!(
        "\n{}depot lock: {} taken, {} contended, {} ticks waited\n{}",
        columns(&cores(&pool.cores)),
        thousands(locks.taken),
        thousands(locks.contended),
        thousands(locks.wait_ticks),
        columns(&matrix(&pool.remote_frees)),
    )
}

/// Returns a row for each core. Columns of ticks, and of allocations without a frame, are left out
/// if they are all empty.
fn cores(cores: &[CoreReport]) -> Vec<Vec<String>> {
    let timed = cores.iter().any(|c| c.ticks_per_alloc.or(c.ticks_per_free).is_some());
    let starved = cores.iter().any(|c| c.no_frame > 0);
    let row = |start: [String; 8], no_frame: String, ticks: [String; 2]| {
        let no_frame = Some(no_frame).filter(|_| starved);
        start.into_iter().chain(no_frame).chain(ticks.into_iter().filter(|_| timed)).collect()
    };
    let head = ["core", "cpu", "list", "allocs", "frees", "hits", "misses", "discards"];
    let ticks = ["ticks/alloc", "ticks/free"].map(str::to_owned);
    let mut rows = vec![row(head.map(str::to_owned), "no frame".into(), ticks)];
    for c in cores {
        let cpu = c.cpu.map_or("-".into(), |cpu| cpu.to_string());
        let [list, allocs, frees, hits, misses, discards] =
            [c.hot_list_len, c.allocs, c.frees, c.hits, c.misses, c.discards]
                .map(|n| n.to_string());
        let start = [c.name.clone(), cpu, list, allocs, frees, hits, misses, discards];
        let ticks = [c.ticks_per_alloc, c.ticks_per_free];
        let ticks = ticks.map(|t| t.map_or("-".into(), |t| format!("{t:.1}")));
        rows.push(row(start, c.no_frame.to_string(), ticks));
    }
    rows
}

/// Returns a row for each CPU that allocated, with a column for each that freed; empty with a
/// single CPU.
fn matrix(frees: &RemoteFrees) -> Vec<Vec<String>> {
    if frees.cpus.len() < 2 {
        return Vec::new();
    }
    let cpus = || frees.cpus.iter().map(|cpu| format!("CPU {cpu}"));
    let mut rows = vec![std::iter::once("allocated, and freed on".into()).chain(cpus()).collect()];
    for (cpu, row) in cpus().zip(&frees.matrix) {
        rows.push(std::iter::once(cpu).chain(row.iter().map(u64::to_string)).collect());
    }
    rows
}

/// Formats rows of equal length: the first column left-aligned, the others right-aligned.
fn columns(rows: &[Vec<String>]) -> String {
    let width = |i: usize| rows.iter().map(|row| row[i].len()).max().unwrap_or(0);
    let widths: Vec<_> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match i {
                0 => write!(text, "{cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_ctl::pool::{DwellReport, LocksReport};

    #[test]
    fn what_was_sampled_has_a_line_of_its_own() {
        let local = DwellTimes { packets: 9, p50_ticks: Some(1024), p99_ticks: Some(65_536) };
        let dwell = DwellReport { local, ..DwellReport::default() };
        let core = |ticks_per_alloc, allocs| CoreReport {
            ticks_per_alloc,
            allocs,
            calls_timed: [1, 0],
            ..Default::default()
        };
        let cores = vec![core(Some(2.0), 30), core(Some(4.0), 10), core(None, 60)];
        let pool = PoolReport { dwell: Some(dwell), cores, ..PoolReport::default() };
        let text = line(&pool, || 50);
        let sampled = "\
sampled  alloc 2.5 ticks/pkt  free - ticks/pkt  lifetime p50 1,024 p99 65,536 ticks
         3 calls timed at 50 ticks: 1.500 ticks/pkt at most
";
        assert!(text.ends_with(sampled), "{text}");
    }

    #[test]
    fn memory_is_in_units_that_can_be_read() {
        for (n, text) in [(0, "0 KiB"), (18_245_632, "17.4 MiB"), (3 << 29, "1.5 GiB")] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn the_table_is_as_wide_as_its_numbers() {
        let core = |name: &str, cpu, allocs, frees| CoreReport {
            name: name.into(),
            cpu,
            allocs,
            frees,
            hot_list_len: 1024,
            ..CoreReport::default()
        };
        let mut pool = PoolReport {
            cores: vec![core("worker 0", Some(0), 123_456, 0), core("worker 1", None, 0, 123_400)],
            locks: LocksReport { taken: 2048, contended: 3, wait_ticks: 91_000 },
            remote_frees: RemoteFrees {
                cpus: vec![0, 1],
                matrix: vec![vec![0, 123_400], vec![0, 0]],
                ..RemoteFrees::default()
            },
            ..PoolReport::default()
        };
        let screen = "
core      cpu  list  allocs   frees  hits  misses  discards
worker 0    0  1024  123456       0     0       0         0
worker 1    -  1024       0  123400     0       0         0
depot lock: 2,048 taken, 3 contended, 91,000 ticks waited
allocated, and freed on  CPU 0   CPU 1
CPU 0                        0  123400
CPU 1                        0       0
";
        assert_eq!(table(&pool), screen);
        (pool.cores[0].ticks_per_alloc, pool.cores[1].no_frame) = (Some(7.2), 5);
        let text = table(&pool);
        assert!(text.contains("discards  no frame  ticks/alloc  ticks/free\n"), "{text}");
        assert!(text.contains("       0          7.2           -\n"), "{text}");
    }
}
