//! Differential flame graph: the call chains of both sides on one scale, coloured by the change.
//!
//! ```text
//!   A   ┌ schedule ─┐┌ ip_rcv ────────┐      a function lies on its caller and is as wide as its samples,
//!       ├ kthread ──┴┴────────────────┤      those of its callees included
//!   B   ┌ ip_rcv ────────┐                   ip_rcv as wide as before: not coloured; schedule fell
//!       ├ kthread ───────┤
//! ```
//! A difference is drawn twice, because what vanished has no width on the side with the change. The
//! page runs no script, so the graphs are drawn here, from the chains that [`flame`] folds.

use linerate_prof::diff::{Count, Diff, Row};
use linerate_prof::flame;
use linerate_prof::print::unit_of;
use linerate_prof::stage::Stage;
use linerate_show::escape::escape;
use linerate_show::number::figure;
use linerate_show::svg::Svg;
use linerate_show::table::{csv_link, quoted};

use super::figure_of;
use super::profile::fell_or_rose;
use crate::report::profiles::Profiles;
use crate::report::words::short;

/// Share of the width below which a function is not drawn.
const NARROWEST: f64 = 0.003;
/// Share of the width from which a function has its name.
const NAMED: f64 = 0.02;
/// Most functions that are drawn for a side.
const FRAMES_MAX: usize = 4000;
/// Most functions of a chain that are drawn, from the outermost; the kernel records fewer.
const DEPTH_MAX: usize = 160;
/// Most call chains in the CSV file, whose last line has the sum of the others. The run's document
/// has them, up to a limit in bytes, beyond which it has only the sum of the rarest.
const FILED_MAX: usize = 1000;
/// Height of a function.
const HIGH: f64 = 16.0;

/// A call chain from the outermost caller, with its counts on both sides.
type Chain<'a> = (Vec<&'a str>, [u64; 2]);

/// A function in one place of the graph.
struct Frame<'a> {
    name: &'a str,
    depth: usize,
    /// Left and right end, as shares of the width.
    ends: (f64, f64),
    /// The counts on both sides, those of callees included.
    counts: [u64; 2],
}

/// Draws the graphs of both sides, without idle time; empty if a side has no call chains.
pub(super) fn graphs(profiles: &Profiles, sides: [&str; 2]) -> String {
    let Profiles { a, b, diff, .. } = profiles;
    if a.stacks.is_empty() || b.stacks.is_empty() {
        return String::new();
    }
    let folded = flame::fold_busy([a, b], diff);
    let busy: Vec<(&str, [u64; 2])> =
        folded.iter().map(|(stack, counts)| (stack.as_str(), *counts)).collect();
    let split = busy.iter().map(|(stack, n)| (stack.split(';').take(DEPTH_MAX).collect(), *n));
    let mut chains: Vec<Chain<'_>> = split.collect();
    chains.sort_unstable();
    let totals = [0, 1].map(|side| scaled(diff, sum(&chains), side));
    let widest = totals[0].max(totals[1]);
    let unit = unit_of(diff);
    let both = [0, 1].map(|side| {
        let head = format!("{} {}: {} {unit}", ["A", "B"][side], sides[side], figure(totals[side]));
        let graph = graph(diff, &chains, (side, widest), &head);
        format!("<p class=\"unit\">{}</p>\n{graph}\n", escape(&head))
    });
    let caption = format!(
        "Call chains, without idle time: a function lies on its caller and is as wide as its samples in {unit}, \
         those of its callees included. It is coloured if it fell or rose beyond noise, and left out below \
         {} % of the width.",
        100.0 * NARROWEST
    );
    let legend = "<p class=\"legend\"><span class=\"key\"><i class=\"fell\"></i>fell</span> <span class=\"key\">\
                  <i class=\"rose\"></i>rose</span> <span class=\"key\"><i></i>within noise</span></p>\n";
    let file = csv_link("chains", &diff.with.event.name, &csv(diff, busy));
    format!(
        "<div class=\"flame\" tabindex=\"0\">\n{}{legend}{file}</div>\n",
        figure_of(&both.concat(), &caption)
    )
}

/// Formats the most frequent call chains as CSV, the functions of a chain from the outermost, with
/// `;` between them, and the counts scaled as they are drawn. The last line has the number and the
/// sum of the chains that are left out, if there are any.
fn csv(diff: &Diff, mut chains: Vec<(&str, [u64; 2])>) -> String {
    chains.sort_by_key(|(_, [a, b])| std::cmp::Reverse(a.saturating_add(*b)));
    let others = chains.split_off(chains.len().min(FILED_MAX));
    let line = |(stack, counts): &(&str, [u64; 2])| {
        let [a, b] = [0, 1].map(|side| scaled(diff, *counts, side));
        format!("{},{a},{b}\n", quoted(stack))
    };
    let unit = unit_of(diff);
    let mut csv = format!("chain,a ({unit}),b ({unit})\n");
    csv.extend(chains.iter().map(line));
    if !others.is_empty() {
        let name = format!("[{} more in the run's document]", others.len());
        csv += &line(&(name.as_str(), sum(&others)));
    }
    csv
}

/// Draws the chains of one side, where `widest` has the whole width.
fn graph(diff: &Diff, chains: &[Chain<'_>], (side, widest): (usize, f64), desc: &str) -> String {
    let mut frames = Vec::new();
    place(chains, (0, 0.0), &|counts| scaled(diff, counts, side) / widest, &mut frames);
    let deepest = frames.iter().map(|frame| frame.depth).max().unwrap_or(0);
    let mut svg = Svg::new("Call chains", desc);
    for Frame { name, depth, ends, counts } in &frames {
        let [without, with] = counts.map(Count::Is);
        let (symbol, object, stage) = (String::new(), None, Stage::Other);
        let row = Row { symbol, object, stage, without, with, noise: 0.0 };
        let (class, what) = fell_or_rose(diff.change(&row));
        let [a, b] = [0, 1].map(|side| figure(scaled(diff, *counts, side)));
        let name = short(name);
        let label = if ends.1 - ends.0 < NAMED { "" } else { &name };
        let top = (deepest - depth) as f64 * HIGH;
        let tip = format!("{name}: {a} → {b} {}, {what}", unit_of(diff));
        svg.frame(*ends, (top, top + HIGH), &format!("frame {class}"), (&tip, label));
    }
    svg.finish((deepest + 1) as f64 * HIGH)
}

/// Places the functions at `depth` of chains with the same callers, and their callees, from `left`.
fn place<'a>(
    chains: &[Chain<'a>],
    (depth, mut left): (usize, f64),
    width: &impl Fn([u64; 2]) -> f64,
    frames: &mut Vec<Frame<'a>>,
) {
    for same in chains.chunk_by(|(one, _), (other, _)| one.get(depth) == other.get(depth)) {
        let counts = sum(same);
        let right = left + width(counts);
        // Chains that end here are the samples of the caller itself.
        if let Some(name) = same[0].0.get(depth)
            && right - left >= NARROWEST
            && frames.len() < FRAMES_MAX
        {
            frames.push(Frame { name, depth, ends: (left, right), counts });
            place(same, (depth + 1, left), width, frames);
        }
        left = right;
    }
}

fn scaled(diff: &Diff, [a, b]: [u64; 2], side: usize) -> f64 {
    if side == 0 { diff.scale.without(a) } else { diff.scale.with(b) }
}

fn sum<T>(chains: &[(T, [u64; 2])]) -> [u64; 2] {
    let plus = |[a, b]: [u64; 2], (_, [c, d]): &(T, [u64; 2])| {
        [a.saturating_add(*c), b.saturating_add(*d)]
    };
    chains.iter().fold([0; 2], plus)
}
