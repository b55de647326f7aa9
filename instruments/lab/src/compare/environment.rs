//! Differences between the environments of two runs, and the decision if their times can be
//! compared.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::record::Run;

/// The properties that must be equal before times may be compared.
const DECIDES: [&str; 8] =
    ["kernel", "cmdline", "cpu", "microcode", "virt", "governor", "clocksource", "mitigations"];

/// The properties whose difference is only noted: it may be the change under test.
const TOLD: [&str; 2] = ["mhz", "thp"];

/// The properties that identify the program.
const TOOL: [&str; 4] = ["version", "commit", "rustc", "target_cpu"];

/// A property that differs between two runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name of the property, as `kernel`.
    pub name: String,
    /// In the first.
    pub a: String,
    /// In the second.
    pub b: String,
    /// True if the difference makes times incomparable.
    pub decides: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} -> {}", self.name, self.a, self.b)
    }
}

/// Returns the properties in which two runs differ.
pub(super) fn differences(one: &Run, other: &Run) -> Vec<Difference> {
    let env = |names: &'static [&'static str], decides| {
        names.iter().map(move |name| {
            let of = |run: &Run| printed(run.env.get(name));
            (*name, of(one), of(other), decides)
        })
    };
    let tool = TOOL.iter().map(|name| {
        let of = |run: &Run| run.run.tool.get(*name).cloned().unwrap_or_else(|| "n/a".into());
        (*name, of(one), of(other), false)
    });
    let all = env(&DECIDES, true).chain(env(&TOLD, false)).chain(tool);
    all.filter(|(_, a, b, _)| a != b)
        .map(|(name, a, b, decides)| Difference { name: name.into(), a, b, decides })
        .collect()
}

/// A time in nanoseconds as cycles of the CPU that a run was made on, at its nominal rate.
pub(super) fn cycles(run: &Run, ns: f64) -> Option<f64> {
    let mhz = run.env.get("mhz")?.as_f64().filter(|mhz| *mhz > 0.0)?;
    Some(ns * mhz / 1e3)
}

fn printed(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "n/a".into(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
