//! Folded stacks and flame graphs, also of the difference between two profiles.
//!
//! ```text
//! net_rx_action;process_backlog;ip_rcv 12          folded: outermost first, then the count
//! ```
//! A profile without stacks is drawn as one level, a box for each function, and the title says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use inferno::flamegraph::{self, Options};
use linerate_show::words::harmless;

use crate::diff::{About, By, Diff, Scale, Warning, warnings};
use crate::profile::{Event, Profile};
use crate::stage::Part;
use crate::{Code, Error, Result};

/// The largest sum of counts that is drawn, because inferno adds counts in machine words. All
/// counts of a larger sum are divided by the same number.
const DRAWN_MAX: u64 = 1 << 40;

/// Width in per cent below which boxes are not drawn: they are thinner than a line, and a single
/// deep stack would make the picture very tall.
const NARROWEST_PCT: f64 = 0.1;

/// Most frames of a stack, eight times the kernel's default (kernel.perf_event_max_stack): a file
/// may have millions of them, and each is a level of the picture.
const FRAMES_MAX: usize = 1024;
/// The frame in place of the outermost ones of a longer stack.
const CUT_OFF: &str = "[cut off]";

/// A profile's folded stacks: one line for each stack, sorted by name.
///
/// `;` and what ends a line or gives orders to a terminal is escaped in names; of a name that ends
/// in a number as a count would, the last blank is a `_`.
#[derive(Debug, Clone, Copy)]
pub struct Folded<'a>(pub &'a Profile);

impl fmt::Display for Folded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stack, count) in fold(self.0) {
            writeln!(f, "{stack} {count}")?;
        }
        Ok(())
    }
}

/// The folded stacks of two profiles, for differential flame graphs of other tools: one line for
/// each stack, with its count without the change and its count with it.
#[derive(Debug, Clone)]
pub struct FoldedDiff(BTreeMap<String, [u64; 2]>);

impl FoldedDiff {
    /// Folds two profiles. Counts without the change are scaled `by` time, load or total, to be
    /// comparable.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` if the two do not count the same, or a side does not say by what it would
    /// have to be divided.
    pub fn between(without: &Profile, with: &Profile, by: By) -> Result<FoldedDiff> {
        let (ratio, _) = comparable(without, with, by)?;
        let mut folded = fold_both([without, with]);
        scale(&mut folded, ratio, by);
        Ok(FoldedDiff(folded))
    }
}

impl fmt::Display for FoldedDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stack, [without, with]) in &self.0 {
            writeln!(f, "{stack} {without} {with}")?;
        }
        Ok(())
    }
}

/// Draws a flame graph as a self-contained SVG, including its script.
///
/// # Errors
/// `E-FILE` if the profile is empty, or is not to be drawn.
pub fn svg(profile: &Profile) -> Result<String> {
    let folded = fold(profile);
    let total = folded.values().fold(0u64, |sum, n| sum.saturating_add(*n));
    let divisor = divisor(total);
    let lines = folded.iter().filter(|(_, count)| **count / divisor > 0);
    let lines = lines.map(|(stack, count)| format!("{stack} {}", count / divisor)).collect();
    let mut options = Options::default();
    options.title = format!("{}: {total} {}", name(&profile.event), unit(profile));
    options.subtitle = Some(subtitle(&[profile], divisor));
    draw(options, lines, profile)
}

/// Draws a difference: boxes have the widths of the profile with the change, red where the count
/// rose, blue where it fell. Counts without the change are first scaled `by` time, load or total,
/// to be comparable.
///
/// # Errors
/// `E-FILE` if the profile with the change is empty, or is not to be drawn; `E-UNSUPPORTED` if the
/// two do not count the same, or a side does not say by what it would have to be divided.
pub fn diff_svg(without: &Profile, with: &Profile, by: By) -> Result<String> {
    let (ratio, warnings) = comparable(without, with, by)?;
    let mut folded = fold_both([without, with]);
    let counted = total_of(&folded);
    scale(&mut folded, ratio, by);
    let totals = total_of(&folded);
    let divisor = divisor(totals[0].max(totals[1]));
    let line =
        |(stack, [a, b]): (&String, &[u64; 2])| format!("{stack} {} {}", a / divisor, b / divisor);
    let lines = folded.iter().map(line).collect();
    let mut options = Options::default();
    options.title = format!(
        "{}: {} {} without, {} with; red rose, blue fell",
        name(&with.event),
        counted[0],
        unit(with),
        counted[1]
    );
    let mut parts = vec![compared(by, ratio)];
    parts.extend(warnings.iter().filter_map(unlike));
    parts.push(subtitle(&[without, with], divisor));
    let gone = folded.values().filter(|pair| pair[1] == 0).count();
    let hidden = if with.cutoff.is_some_and(|n| n > 1) { " (or below the cut-off)" } else { "" };
    parts.push(format!("{gone} stacks were not seen with the change{hidden}: they have no width"));
    options.subtitle = Some(parts.join("; "));
    draw(options, lines, with)
}

/// Returns the number by which counts without the change are multiplied, and the warnings.
fn comparable(without: &Profile, with: &Profile, by: By) -> Result<(f64, Vec<Warning>)> {
    let scale = Scale::between(by, without, with)?;
    let warnings = warnings(without, with, scale);
    if let Some(grave) = warnings.iter().find(|warning| warning.is_grave()) {
        let why = harmless(&grave.to_string()).into_owned();
        return Err(Error::new(Code::Unsupported, WHAT, why).fix("record the same event twice"));
    }
    Ok((scale.without_factor / scale.with_factor, warnings))
}

/// Multiplies the counts without the change.
fn scale(folded: &mut BTreeMap<String, [u64; 2]>, ratio: f64, by: By) {
    if by != By::AsTheyAre {
        // The cast to u64 saturates: a larger value becomes the largest u64.
        folded.values_mut().for_each(|pair| pair[0] = (pair[0] as f64 * ratio).round() as u64);
    }
}

fn compared(by: By, ratio: f64) -> String {
    match by {
        By::AsTheyAre => "counts as they are".to_owned(),
        by => format!("compared {by}: counts without are multiplied by {ratio:.4}"),
    }
}

/// Returns the warning's text for a difference that would colour the whole picture if the counts
/// are not scaled.
fn unlike(warning: &Warning) -> Option<String> {
    let is_of_all = matches!(warning.about, About::Duration | About::Load);
    is_of_all.then(|| harmless(warning.to_string().trim_end_matches('.')).into_owned())
}

fn total_of(folded: &BTreeMap<String, [u64; 2]>) -> [u64; 2] {
    folded
        .values()
        .fold([0; 2], |sum, pair| [sum[0].saturating_add(pair[0]), sum[1].saturating_add(pair[1])])
}

const WHAT: &str = "cannot draw a flame graph";

fn draw(mut options: Options<'_>, lines: Vec<String>, profile: &Profile) -> Result<String> {
    options.count_name = unit(profile).to_owned();
    options.deterministic = true;
    options.min_width = NARROWEST_PCT;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .map_err(|e| Error::new(Code::File, WHAT, e.to_string()).fix("record for longer"))?;
    String::from_utf8(svg).map_err(|e| Error::new(Code::File, WHAT, e.to_string()))
}

fn fold(profile: &Profile) -> BTreeMap<String, u64> {
    fold_as(profile, profile.stacks.is_empty())
}

/// Folds the stacks of a profile, or its rows if `flat` is true. Of a stack with more than
/// [`FRAMES_MAX`] frames, the innermost ones are kept.
fn fold_as(profile: &Profile, flat: bool) -> BTreeMap<String, u64> {
    let mut folded: BTreeMap<String, u64> = BTreeMap::new();
    let mut add = |stack: String, count: u64| {
        let sum = folded.entry(stack).or_default();
        *sum = sum.saturating_add(count);
    };
    if flat {
        profile.rows.iter().for_each(|row| add(frame(&row.symbol), row.count));
        return folded;
    }
    for stack in &profile.stacks {
        let cut = stack.frames.len().saturating_sub(FRAMES_MAX);
        let mark = (cut > 0).then(|| CUT_OFF.to_owned());
        let kept = stack.frames.iter().skip(cut).map(|name| frame(name));
        let frames: Vec<String> = mark.into_iter().chain(kept).collect();
        add(if frames.is_empty() { "[unknown]".to_owned() } else { frames.join(";") }, stack.count);
    }
    folded
}

/// Folds both profiles into one map: each stack, as in [`Folded`], with its counts in both. If only
/// one has stacks, the rows of both are used, because rows are not parts of stacks.
#[must_use]
pub fn fold_both(profiles: [&Profile; 2]) -> BTreeMap<String, [u64; 2]> {
    let flat = profiles.iter().any(|profile| profile.stacks.is_empty());
    let mut both: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    for (side, profile) in profiles.into_iter().enumerate() {
        for (stack, count) in fold_as(profile, flat) {
            both.entry(stack).or_default()[side] = count;
        }
    }
    both
}

/// Folds both profiles as [`fold_both`] does, without the stacks that end in a function of idle
/// time; `diff` is their difference.
#[must_use]
pub fn fold_busy(profiles: [&Profile; 2], diff: &Diff) -> BTreeMap<String, [u64; 2]> {
    let idle: BTreeSet<&str> = diff.rows_of(Part::Idle).map(|row| row.symbol.as_str()).collect();
    let mut folded = fold_both(profiles);
    folded.retain(|stack, _| !stack.rsplit(';').next().is_some_and(|last| idle.contains(last)));
    folded
}

/// Returns a name, escaped so that a reader of folded stacks takes it as one frame.
fn frame(name: &str) -> String {
    let mut text = harmless(name.trim()).replace(';', "\\u{3b}");
    if text.is_empty() {
        return "[unknown]".to_owned();
    }
    // Readers of folded stacks would parse `f 7` before a count as a frame with two counts, and `#
    // f` as a remark.
    if let Some(at) = text.rfind(' ')
        && text[at + 1..].bytes().all(|b| b.is_ascii_digit() || b == b'.')
    {
        text.replace_range(at..=at, "_");
    }
    if text.starts_with("# ") {
        text.replace_range(1..2, "_");
    }
    text
}

const fn divisor(total: u64) -> u64 {
    total / DRAWN_MAX + 1
}

fn subtitle(profiles: &[&Profile], divisor: u64) -> String {
    let any = |is: fn(&Profile) -> bool| profiles.iter().any(|profile| is(profile));
    let mut origins: Vec<&str> = profiles.iter().map(|profile| profile.origin.as_str()).collect();
    origins.dedup();
    let lost = profiles.iter().fold(0u64, |sum, profile| sum.saturating_add(profile.lost));
    let flat = "no stacks were recorded: one level, a box for each function";
    let hidden = "what is below a cut-off is not drawn";
    let parts = [
        Some(origins.join("; ")),
        any(|profile| profile.stacks.is_empty()).then(|| flat.to_owned()),
        (lost > 0).then(|| format!("{lost} samples were lost")),
        any(|profile| profile.cutoff.is_some_and(|n| n > 1)).then(|| hidden.to_owned()),
        Some(format!("boxes below {NARROWEST_PCT} % are not drawn")),
        (divisor > 1).then(|| format!("counts are divided by {divisor}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn name(event: &Event) -> String {
    let mut text = match event.name.as_str() {
        "unknown" => "event unknown".to_owned(),
        name => harmless(name).chars().take(60).collect(),
    };
    if let Some(period) = event.period {
        text.push_str(&format!(", a sample for each {period}{}", event.period_unit()));
    }
    text
}

const fn unit(profile: &Profile) -> &'static str {
    crate::print::unit(profile.event.unit)
}

#[cfg(test)]
mod tests;
