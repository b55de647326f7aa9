//! The two heads of `top` in post 000, compared with the profiles.

use linerate_prof::agree::{Headline, Means, Reading, Tolerance};
use linerate_prof::proc::Head;
use linerate_prof::profile::Profile;
use linerate_prof::stage::{Stage, stage_of};
use linerate_prof::{Code, Error, Result};
use linerate_show::table::{Cell, Column, Row, Table};

use super::super::{Report, Text};

/// Tolerated difference between a profile and `top`, in percentage points.
pub(super) const POINTS: f64 = 2.0;
const TOLERANCE: Tolerance = Tolerance::within(POINTS);

/// A head of `top`, with its line in the post.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) line: usize,
    pub(super) head: Head,
}

impl Posted {
    /// Returns the share of user, system and nice time.
    pub(super) fn busy_pct(&self) -> f64 {
        let cpu = self.head.cpu;
        cpu.user_pct + cpu.system_pct + cpu.nice_pct
    }
}

/// Names of the two sides.
const SIDES: [&str; 2] = ["as is", "frames"];

/// Parses both heads: as is, and with frames.
pub(super) fn heads(text: &Text<'_>, all: &str) -> Result<[Posted; 2]> {
    let (heads, complaints) = Head::all(all);
    if let Some(first) = complaints.first() {
        let line = usize::try_from(first.line).unwrap_or(usize::MAX);
        return Err(text.wrong(line, &first.why));
    }
    let lines = text.lines_from(1).filter(|(_, line)| line.contains(" processes:"));
    let posted: Vec<Posted> =
        lines.zip(heads).map(|((line, _), head)| Posted { line, head }).collect();
    let found = posted.len();
    posted.try_into().map_err(|_| {
        let why = format!("two heads of top should be in it, not {found}");
        Error::new(Code::File, "cannot read post 000", why)
    })
}

/// Builds the table of both heads, side by side. It includes memory, because used memory is the
/// price of a cache.
pub(super) fn table(posted: &[Posted; 2]) -> Table {
    let columns = [
        Column::new("figure", "top", ""),
        Column::new("as_is", "as is", ""),
        Column::new("frames", "frames", ""),
        Column::new("difference", "difference", ""),
        Column::new("unit", "unit", ""),
    ];
    let mut table = Table::new("top", "The heads of top: CPU, and memory held", &columns);
    let [a, b] = posted;
    let mut count = |name: &str, unit: &str, figure: &dyn Fn(&Head) -> u64| {
        let (a, b) = (figure(&a.head), figure(&b.head));
        table.row(vec![
            Cell::text(name),
            Cell::Count(a),
            Cell::Count(b),
            Cell::Gain(i128::from(b) - i128::from(a)),
            Cell::text(unit),
        ]);
    };
    count("processes", "n", &|h| h.processes.total);
    count("sleeping", "n", &|h| h.processes.sleeping);
    count("running", "n", &|h| h.processes.running);
    count("zombie", "n", &|h| h.processes.zombie);
    count("stopped", "n", &|h| h.processes.stopped);
    count("memory", "KiB", &|h| h.mem.av_kb);
    count("memory used", "KiB", &|h| h.mem.used_kb);
    count("memory free", "KiB", &|h| h.mem.free_kb);
    count("memory shared", "KiB", &|h| h.mem.shrd_kb.unwrap_or_default());
    count("memory in buffers", "KiB", &|h| h.mem.buff_kb);
    count("memory in cached files", "KiB", &|h| h.mem.cached_kb);
    count("swap", "KiB", &|h| h.swap.av_kb);
    count("swap used", "KiB", &|h| h.swap.used_kb);
    count("swap free", "KiB", &|h| h.swap.free_kb);
    let share = |name: &str, figure: &dyn Fn(&Head) -> f64| {
        let (a, b) = (figure(&a.head), figure(&b.head));
        Row::Cells(vec![
            Cell::text(name),
            Cell::Real(a, 1),
            Cell::Real(b, 1),
            Cell::Change(b - a, 1),
            Cell::text("%"),
        ])
    };
    let shares = [
        share("CPU user", &|h| h.cpu.user_pct),
        share("CPU system", &|h| h.cpu.system_pct),
        share("CPU nice", &|h| h.cpu.nice_pct),
        share("CPU idle", &|h| h.cpu.idle_pct),
    ];
    table.rows.splice(5..5, shares);
    table.note(
        "Used memory holds the cached files. How much of it the pool of frames holds, the post \
        does not say.",
    );
    table
}

/// Compares the share of busy CPU time according to the profile and to `top`.
pub(super) fn busy(report: &mut Report, profiles: [&Profile; 2], posted: &[Posted; 2]) {
    for ((profile, posted), side) in profiles.into_iter().zip(posted).zip(SIDES) {
        let idle: u64 = profile
            .rows
            .iter()
            .filter(|row| stage_of(&row.symbol, row.object.as_deref(), row.space) == Stage::Idle)
            .map(|row| row.count)
            .fold(0, u64::saturating_add);
        let all = profile.total_count();
        let ticks = all.saturating_sub(idle);
        let cpu = posted.head.cpu;
        let by_profile = Reading::new(
            "profile",
            Means::TickProfile,
            100.0 * ticks as f64 / all as f64,
            format!("{ticks} of {all} ticks: all but idle"),
        );
        let by_top = Reading::new(
            "top",
            Means::TickAccount,
            posted.busy_pct(),
            format!(
                "user {:.1}, system {:.1}, nice {:.1}",
                cpu.user_pct, cpu.system_pct, cpu.nice_pct
            ),
        );
        let headline = Headline::new(format!("CPU busy, {side}"), "%", 1);
        report.headline(&headline.by(by_profile).by(by_top).judge(TOLERANCE));
    }
}

/// Checks the sums in each head.
pub(super) fn checks(report: &mut Report, posted: &[Posted; 2]) {
    for (Posted { line, head }, side) in posted.iter().zip(SIDES) {
        let p = head.processes;
        let states = [p.sleeping, p.running, p.zombie, p.stopped];
        let sum = states.into_iter().fold(0, u64::saturating_add);
        report.check(format!("processes, sum of their states, {side}"), *line, p.total, sum);
        let used = head.mem.used_kb.saturating_add(head.mem.free_kb);
        let what = format!("memory, used + free, {side}, KiB");
        report.check(what, line + 2, head.mem.av_kb, used);
        let used = head.swap.used_kb.saturating_add(head.swap.free_kb);
        let what = format!("swap, used + free, {side}, KiB");
        report.check(what, line + 3, head.swap.av_kb, used);
    }
}
