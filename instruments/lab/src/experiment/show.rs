//! Description of an experiment: its question, its method, the expected values and their sources.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use linerate_seeds::Post;
use linerate_seeds::stats::Goal;
use linerate_show::number::grouped;
use linerate_show::words::wrapped;
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

use super::here::{at_most, commands};
use crate::analysis::SAME_PCT;
use crate::experiment::{
    Clock, Experiment, Factor, Family, FixedPoint, Metric, OverallExpectation, origin,
};
use crate::scenario::{Place, Scenario, named};
use crate::settings::Settings;

/// A description of one experiment: question, sides, factors, metrics, expectations with their
/// sources, fixed points.
#[derive(Debug)]
pub struct Show<'a> {
    /// The experiment to show.
    pub experiment: &'a Experiment,
    /// The place for which the experiment is checked.
    pub place: &'a Place,
}

impl fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.experiment;
        let mut text = wrapped(&format!("{}: {}", one.id, one.title), "", "  ");
        if let Some(post) = one.post.as_deref().and_then(Post::named) {
            let told = format!("post {}, {}, {}: {}", post.id, post.author, post.date, post.title);
            text += &wrapped(&told, "reproduces ", "  ");
        }
        for paragraph in one.question.split("\n\n") {
            text += &format!("\n{}", wrapped(paragraph, "  ", "  "));
        }
        text += &self.sides();
        text += &self.factors();
        text += &self.metrics();
        text += &self.fixed_points();
        text += &self.plan();
        text += &self.here();
        for scenario in self.scenarios() {
            text += &told(scenario);
        }
        f.write_str(&text)
    }
}

impl Show<'_> {
    fn sides(&self) -> String {
        let Experiment { a, b, .. } = self.experiment;
        let (shared, own_a) = shared(&a.settings, &b.settings);
        let (_, own_b) = self::shared(&b.settings, &a.settings);
        let rows = [("A", a.name.as_str(), own_a), ("B", &b.name, own_b), ("both", "", shared)];
        let widest = rows.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
        let mut text = head("Sides");
        for (side, name, told) in
            rows.iter().filter(|(_, name, told)| !name.is_empty() || !told.is_empty())
        {
            let first = format!("  {side:4}  {name:widest$}  ");
            text += &wrapped(told, &first, &" ".repeat(widest + 10));
        }
        text
    }

    fn factors(&self) -> String {
        let factors = &self.experiment.factors;
        if factors.is_empty() {
            return String::new();
        }
        let mut text = head("Factors (* is in the quick run)");
        for factor in factors {
            text += &wrapped(&factor.about, &format!("  {}: ", factor.name), "    ");
            text += &levels(factor);
        }
        text
    }

    fn metrics(&self) -> String {
        let mut text = head("Metrics (the first is the headline)");
        for metric in &self.experiment.metrics {
            let Metric { name, unit, formula, .. } = metric;
            let how = format!("{name} = {formula}, in {unit}, {}", kind(metric));
            text += &wrapped(&how, "  ", "      ");
            text += &wrapped(&metric.about, "      ", "      ");
            for expected in &metric.expected {
                let (from, to) = expected.change_pct;
                let at: Vec<String> =
                    expected.at.iter().map(|(factor, level)| format!("{factor}={level}")).collect();
                let at = if at.is_empty() { "everywhere".into() } else { at.join(" ") };
                let told = format!("expected {from:+} to {to:+} %, {at}: {}", expected.source);
                text += &wrapped(&told, "      ", "        ");
            }
            if let Some(overall) = &metric.expected_overall {
                let OverallExpectation { sum_pct, geomean_pct, source } = overall;
                for (of, (from, to)) in [("sum", sum_pct), ("geometric mean", geomean_pct)] {
                    let told =
                        format!("expected {from:+} to {to:+} %, {of} over all cells: {source}");
                    text += &wrapped(&told, "      ", "        ");
                }
            }
        }
        text
    }

    fn fixed_points(&self) -> String {
        let points = &self.experiment.fixed_points;
        if points.is_empty() {
            return String::new();
        }
        let mut text = head("Published, to stand beside; absolute values are not compared");
        for point in points {
            let FixedPoint { name, unit, a, b, source } = point;
            let (a, b) = (grouped(&a.to_string()), grouped(&b.to_string()));
            text += &wrapped(&format!("{name}: A {a}, B {b} {unit} ({source})"), "  ", "      ");
        }
        text
    }

    fn plan(&self) -> String {
        let one = self.experiment;
        let mut text = head("Plan");
        for (name, quick) in [("whole", false), ("quick", true)] {
            let cells = one.cells(quick).count();
            let told = format!(
                "{cells} {}, {}; {}",
                if cells == 1 { "cell" } else { "cells" },
                pairs(one, quick),
                at_most(one.planned(quick))
            );
            text += &wrapped(&told, &format!("  {name}  "), "         ");
        }
        if one.profiles {
            text += "  then a profile of each side in each cell, which is beyond these times\n";
        }
        text
    }

    fn here(&self) -> String {
        let here = self.experiment.here(self.place);
        let mut text = head("Here") + &format!("  {}\n", here.in_short());
        for obstacle in &here.obstacles {
            text += &wrapped(&obstacle.to_string(), "  ", "    ");
        }
        for command in commands(&self.experiment.cells, self.place) {
            // Do not wrap a command: wrapping would merge several spaces inside an argument.
            text += &format!("  would run: {command}\n");
        }
        text
    }

    /// Returns the scenarios of the experiment's cells, in order of first use.
    fn scenarios(&self) -> Vec<&'static dyn Scenario> {
        let mut names: Vec<&str> = Vec::new();
        for cell in &self.experiment.cells {
            if !names.contains(&cell.scenario.as_str()) {
                names.push(&cell.scenario);
            }
        }
        names.into_iter().filter_map(named).collect()
    }
}

/// Serializes everything that the text contains.
impl Serialize for Show<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let one = self.experiment;
        let plan = &one.plan;
        let document = json!({
            "id": one.id, "title": one.title, "question": one.question, "reproduces": one.post,
            "a": one.a, "b": one.b, "factors": one.factors, "metrics": one.metrics,
            "fixed": one.fixed_points,
            "plan": {
                "window_ns": plan.window_ns, "warmup": plan.warmup, "fresh": plan.fresh, "looks": plan.looks,
                "half_width_pct": plan.half_width_pct, "family": plan.family(), "cells": one.cells.len(),
                "planned_s": one.planned(false).map(|time| time.as_secs_f64()), "quick_pairs": plan.quick_pairs,
                "quick_cells": one.cells(true).count(),
                "quick_planned_s": one.planned(true).map(|time| time.as_secs_f64()), "profiles": one.profiles,
            },
            "here": one.here(self.place),
            "commands": commands(&one.cells, self.place),
            "scenarios": self.scenarios().into_iter().map(scenario).collect::<Vec<_>>(),
        });
        document.serialize(serializer)
    }
}

fn head(title: &str) -> String {
    format!("\n{title}\n")
}

fn levels(factor: &Factor) -> String {
    let widest = factor.levels.iter().map(|level| level.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for level in &factor.levels {
        let mut told: Vec<String> =
            level.scenario.iter().map(|s| format!("scenario {s}")).collect();
        told.extend(level.fresh.map(|fresh| {
            if fresh { "sides set up for every pair" } else { "sides set up for several pairs" }
                .to_owned()
        }));
        for (side, settings) in [("", &level.both), ("A: ", &level.a), ("B: ", &level.b)] {
            let settings = said(settings.iter().map(|(name, one)| (name, one.value.to_string())));
            told.extend((!settings.is_empty()).then(|| format!("{side}{settings}")));
        }
        let mark = if level.quick { '*' } else { ' ' };
        let first = format!("    {mark} {:widest$}  ", level.name);
        text += &wrapped(&told.join("; "), &first, &" ".repeat(widest + 8));
    }
    text
}

/// Describes a scenario's settings and figures.
fn told(scenario: &dyn Scenario) -> String {
    let mut text = head(&format!("Scenario {}", scenario.name()));
    text += &wrapped(scenario.about(), "  ", "  ");
    for knob in scenario.knobs() {
        let usual = knob.default_text();
        let usual = if usual.is_empty() { "none" } else { &usual };
        let told = format!("{} = {} ({usual}): {}", knob.name, knob.values, knob.about);
        text += &wrapped(&told, "  ", "      ");
    }
    if !scenario.figures().is_empty() {
        text += "  It counts\n";
    }
    for figure in scenario.figures() {
        let told = format!("{}, {}: {}", figure.name, figure.unit, figure.about);
        text += &wrapped(&told, "    ", "        ");
    }
    text
}

fn scenario(scenario: &dyn Scenario) -> Json {
    let knobs = scenario.knobs().iter().map(|knob| {
        json!({
            "name": knob.name, "values": knob.values.to_string(), "default": knob.default_text(), "about": knob.about,
        })
    });
    let figures = scenario
        .figures()
        .iter()
        .map(|figure| json!({ "name": figure.name, "unit": figure.unit, "about": figure.about }));
    json!({
        "name": scenario.name(), "about": scenario.about(),
        "settings": knobs.collect::<Vec<_>>(), "figures": figures.collect::<Vec<_>>(),
    })
}

/// Returns the settings that both sides share, and those of the first side only.
fn shared(one: &Settings, other: &Settings) -> (String, String) {
    let alike = |name: &str, value| other.get(name).is_some_and(|said| said.value == value);
    let all = || one.iter().map(|(name, one)| (name, one.value.clone()));
    let both = all().filter(|(name, value)| alike(name, value.clone()));
    let own = all().filter(|(name, value)| !alike(name, value.clone()));
    let printed = |(name, value): (_, crate::settings::Value)| (name, value.to_string());
    (said(both.map(printed)), said(own.map(printed)))
}

fn said<'a>(settings: impl Iterator<Item = (&'a str, String)>) -> String {
    let mut text = String::new();
    for (name, value) in settings {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{name} = {value}");
    }
    text
}

/// Serializes the factors' values of an expectation as an object.
pub(super) fn as_map<S: Serializer>(
    at: &[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(at.iter().map(|(factor, level)| (factor, level)))
}

/// Serializes the margin that holds, declared or not.
pub(super) fn margin<S: Serializer>(
    same_pct: &Option<f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(same_pct.unwrap_or(SAME_PCT))
}

/// Returns a description of the looks and of a window's length.
fn pairs(one: &Experiment, quick: bool) -> String {
    let plan = &one.plan;
    let looks: Vec<String> = plan.looks(quick).iter().map(u32::to_string).collect();
    let window_ns = if quick { plan.quick_window_ns } else { plan.window_ns };
    let (half_width, warmup) = (plan.half_width_pct, plan.warmup);
    let until = match looks.len() {
        1 => String::new(),
        _ => format!(" until ± {half_width} % is known"),
    };
    let anew: BTreeSet<Option<u32>> =
        one.cells(quick).map(|(_, cell)| one.pairs_per_set_up(cell, quick)).collect();
    let anew: Vec<String> = anew
        .into_iter()
        .map(|pairs| match pairs {
            None => "for every window".into(),
            Some(1) => "for every pair".into(),
            Some(pairs) => format!("after {pairs} pairs"),
        })
        .collect();
    let (anew, family) = (anew.join(" or "), one.family(quick));
    let of = match one.plan.family() {
        Family::Metric => "cells of each metric",
        Family::Experiment => "cells and metrics together",
    };
    let from = origin(one.plan.family.is_some());
    let (looks, ms) = (looks.join(", "), window_ns as f64 / 1e6);
    format!(
        "looks after {looks} pairs{until}; windows of {ms} ms unless a level says so, the first \
         {warmup} of each side not counted; both are set up anew {anew}; chances are corrected over \
         {family} {of}, {from}"
    )
}

fn kind(metric: &Metric) -> String {
    let by = match metric.clock {
        Clock::Cost => "CPU time",
        Clock::Wall => "wall time",
        Clock::Count => "counted",
    };
    let goal = metric.goal.map_or(String::new(), |goal| format!("{} is better, ", better(goal)));
    let from = origin(metric.same_pct.is_some());
    format!("{goal}{by}, same within ±{} %, {from}", metric.same_pct())
}

fn better(goal: Goal) -> &'static str {
    match goal {
        Goal::More => "higher",
        Goal::Less => "lower",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::testing::{experiment, metric};

    #[test]
    fn margin_and_family_are_shown_with_their_origin_and_the_margin_is_a_number_in_json() {
        let told = metric("cost");
        assert!(kind(&told).ends_with(", same within ±1 %, the default"), "{}", kind(&told));
        let declared = Metric { same_pct: Some(2.5), ..told.clone() };
        assert!(kind(&declared).ends_with("±2.5 %, declared"), "{}", kind(&declared));
        let json = |metric: &Metric| serde_json::to_value(metric).unwrap()["same_pct"].clone();
        assert_eq!((json(&told), json(&declared)), (json!(1.0), json!(2.5)));
        let mut one = experiment();
        assert!(pairs(&one, false).ends_with("over 2 cells of each metric, the default"));
        one.plan.family = Some(Family::Experiment);
        assert!(pairs(&one, false).ends_with("over 2 cells and metrics together, declared"));
    }
}
