//! JSON of a difference. For the JSON of a profile, see [`crate::read::json`], which writes and
//! reads it.
//!
//! One document, whole: nothing is shortened, rounded or scaled away, and names are as they are,
//! with whatever a terminal or XML would not take. A count that is not known is `{"below": n}`, and
//! a saving that is not known is null beside its bounds. Of a total, a part or a stage the bounds
//! are null too if a listing was cut off: what it left out is in none of them. `saved_as_listed`
//! takes it for 0.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::diff::{self, Change, Count, Figures, Scale, Side, Warning};
use crate::stage::{Part, Stage};

/// The schema of a difference.
pub const SCHEMA: &str = "linerate-profile-diff/1";

/// A difference as a JSON document; [`Display`](fmt::Display) writes it on one line.
#[derive(Debug, Clone, Copy)]
pub struct Diff<'a>(pub &'a diff::Diff);

impl fmt::Display for Diff<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // This does not fail: the keys are strings, and a number that is not finite is written as
        // null.
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl Serialize for Diff<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        document(self.0).serialize(serializer)
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    warnings: Vec<WarningText<'a>>,
    doubtful: bool,
    scale: Scale,
    without: &'a Side,
    with: &'a Side,
    total: Sum,
    total_without_idle: Sum,
    makers_total: Option<Sum>,
    fell: Sum,
    rose: Sum,
    unclear: Sum,
    noise: Sum,
    parts: Vec<Of>,
    stages: Vec<Of>,
    rows: Vec<Row<'a>>,
    remarks: &'a [String],
}

#[derive(Serialize)]
struct WarningText<'a> {
    #[serde(flatten)]
    warning: &'a Warning,
    grave: bool,
    text: String,
}

#[derive(Serialize)]
struct Sum {
    #[serde(flatten)]
    counts: diff::Sum,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Of {
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<Stage>,
    part: Part,
    #[serde(flatten)]
    sum: Sum,
}

#[derive(Serialize)]
struct Row<'a> {
    symbol: &'a str,
    object: Option<&'a str>,
    stage: Stage,
    without: Count,
    with: Count,
    change: Change,
    #[serde(flatten)]
    figures: Figures,
}

fn document(diff: &diff::Diff) -> Document<'_> {
    let scale = diff.scale;
    let sum = |counts: diff::Sum| Sum { counts, figures: diff.figures_of(counts) };
    // The source's total includes functions that its listing leaves out, so a cut-off does not
    // affect it.
    let of_all = |counts: diff::Sum| Sum { counts, figures: counts.figures(scale) };
    let moved = diff.moved();
    let text_of =
        |warning| WarningText { warning, grave: warning.is_grave(), text: warning.to_string() };
    let of_part = |&part: &Part| {
        let sum = sum(diff.sum_of(|row| row.stage.part() == part));
        Of { stage: None, part, sum }
    };
    let of_stage = |(stage, counts): (Stage, _)| Of {
        stage: Some(stage),
        part: stage.part(),
        sum: sum(counts),
    };
    Document {
        schema: SCHEMA,
        warnings: diff.warnings.iter().map(text_of).collect(),
        doubtful: diff.is_doubtful(),
        scale,
        without: &diff.without,
        with: &diff.with,
        total: sum(diff.sum()),
        total_without_idle: sum(diff.sum_without_idle()),
        makers_total: diff.makers_total().map(of_all),
        fell: sum(moved.fell),
        rose: sum(moved.rose),
        unclear: sum(moved.unclear),
        noise: sum(moved.noise),
        parts: Part::ALL.iter().map(of_part).collect(),
        stages: diff.stages().into_iter().map(of_stage).collect(),
        rows: diff
            .rows
            .iter()
            .map(|row| Row {
                symbol: &row.symbol,
                object: row.object.as_deref(),
                stage: row.stage,
                without: row.without,
                with: row.with,
                change: diff.change(row),
                figures: row.sum().figures(scale),
            })
            .collect(),
        remarks: &diff.remarks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Event, Origin, Profile, Row as Seen, Unit};
    use serde_json::{Value, json};

    #[test]
    fn a_document_has_its_schema_its_bounds_and_whole_names() {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut without = Profile::new(event, Origin::Counter);
        let name = format!("\u{1b}{}", "x".repeat(300));
        without.rows = vec![Seen::new("speedo_rx", 3358), Seen::new(&name, u64::MAX)];
        let mut with = without.clone();
        with.rows = vec![];
        with.cutoff = Some(216);
        let diff = diff::Diff::between(&without, &with);
        let text = Diff(&diff).to_string();
        assert_eq!(text.lines().count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        assert_eq!(value["rows"][0]["symbol"], name);
        assert_eq!(value["rows"][0]["without"], json!({"is": u64::MAX}));
        let row = &value["rows"][1];
        assert_eq!(row["with"], json!({"below": 216}));
        assert_eq!(row["saved"], Value::Null);
        assert_eq!(row["saved_least"], 3142.0);
        assert_eq!(row["change"], "fell");
        assert_eq!(value["warnings"][0]["about"], "cutoff");
        assert_eq!(value["total"]["functions"], 2);
        let total = &value["total"];
        for unknown in ["saved", "saved_least", "saved_most", "saving_pct", "saving_pct_at_least"] {
            assert_eq!(total[unknown], Value::Null, "{unknown}: anything may be below the cut-off");
        }
        assert_eq!(total["saving_as_listed_pct"], 100.0);
    }
}
