//! CSV, for spreadsheets and `join`: a header with units, then a line for each function or stage.
//!
//! Of a stage nothing but what is listed is known if a listing was cut off: its bounds are empty
//! too.
//!
//! Quoted as RFC 4180 has it; lines end in a line feed alone. Names and numbers are whole: nothing
//! is shortened, rounded or escaped, and what is not known is empty. But before a name that begins
//! as a formula does (`=`, `+`, `-`, `@`, a tab or a carriage return) is a `'`: a spreadsheet would
//! run it. Counts are as listed, whatever the scale; only what was saved is scaled, and its unit
//! says so.

use std::borrow::Cow;
use std::fmt;

use linerate_show::table::quoted;

use super::preface;
use crate::diff::{Count, Diff, Figures, Sum};
use crate::profile::{self, Event, Row, Space};

/// A profile with a line for each row, in its order.
#[derive(Debug, Clone, Copy)]
pub struct Profile<'a>(pub &'a profile::Profile);

/// A difference, with a line for each function, by falling saving.
#[derive(Debug, Clone, Copy)]
pub struct Ranked<'a>(pub &'a Diff);

/// Subtotals of a difference, with a line for each stage.
#[derive(Debug, Clone, Copy)]
pub struct Stages<'a>(pub &'a Diff);

impl fmt::Display for Profile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.0;
        let count = format!("count ({})", unit_of(&profile.event));
        let load = format!("load ({}/byte)", preface::unit(profile.event.unit));
        let head = ["symbol", "object", "space", "stage", "address (hex)", &count, "code (bytes)"];
        record(f, head.into_iter().chain([load.as_str()]))?;
        for row in &profile.rows {
            let space = match row.space {
                Space::Kernel => "kernel",
                Space::User => "user",
                Space::Unknown => "",
            };
            let cells = [
                text(&row.symbol),
                text(row.object.as_deref().unwrap_or_default()),
                space.into(),
                profile.stage_of(row).as_str().into(),
                row.address.map(|a| format!("{a:x}")).unwrap_or_default().into(),
                row.count.to_string().into(),
                row.code_bytes.map(|b| b.to_string()).unwrap_or_default().into(),
                load_of(row).into(),
            ];
            record(f, cells)?;
        }
        Ok(())
    }
}

impl fmt::Display for Ranked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diff = self.0;
        let [with, without] = units(diff);
        let head = [
            "symbol".to_owned(),
            "object".to_owned(),
            "stage".to_owned(),
            format!("with ({with})"),
            format!("with is below ({with})"),
            format!("without ({without})"),
            format!("without is below ({without})"),
        ];
        record(f, head.into_iter().chain(saved_head(diff)).chain(["change".to_owned()]))?;
        for row in &diff.rows {
            let names = [text(&row.symbol), text(row.object.as_deref().unwrap_or_default())];
            let names = names.into_iter().chain([row.stage.as_str().into()]);
            let counts = [row.with, row.without].into_iter().flat_map(|count| match count {
                Count::Is(n) => [n.to_string().into(), "".into()],
                Count::Below(n) => ["".into(), n.to_string().into()],
            });
            let change = [diff.change(row).as_str().into()];
            let saved = saved(row.sum().figures(diff.scale));
            record(f, names.chain(counts).chain(saved).chain(change))?;
        }
        Ok(())
    }
}

impl fmt::Display for Stages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let diff = self.0;
        let [with, without] = units(diff);
        let head = [
            "stage".to_owned(),
            "part".to_owned(),
            "functions".to_owned(),
            format!("with, as listed ({with})"),
            format!("with, hidden is below ({with})"),
            format!("without, as listed ({without})"),
            format!("without, hidden is below ({without})"),
        ];
        record(f, head.into_iter().chain(saved_head(diff)))?;
        for (stage, sum) in diff.stages() {
            let Sum { functions, without, with, hidden_without, hidden_with } = sum;
            let names = [stage.as_str().into(), stage.part().as_str().into()];
            let counts = [functions, with, hidden_with, without, hidden_without];
            let counts = counts.map(|n| n.to_string().into());
            record(f, names.into_iter().chain(counts).chain(saved(diff.figures_of(sum))))?;
        }
        Ok(())
    }
}

/// Returns the count for each byte of code: as printed by the source, else computed with all
/// digits; empty if it is not known.
fn load_of(row: &Row) -> String {
    match (row.load, row.code_bytes) {
        (None, Some(bytes)) if bytes > 0 => (row.count as f64 / bytes as f64).to_string(),
        _ => Some(super::load_of(row)).filter(|load| load != "n/a").unwrap_or_default(),
    }
}

fn unit_of(event: &Event) -> String {
    match event.name.as_str() {
        "unknown" => preface::unit(event.unit).to_owned(),
        name => format!("{} of {name}", preface::unit(event.unit)),
    }
}

fn units(diff: &Diff) -> [String; 2] {
    [&diff.with, &diff.without].map(|side| unit_of(&side.event))
}

fn saved_head(diff: &Diff) -> Vec<String> {
    let unit = preface::unit_of(diff);
    let saved = ["saved", "saved at least", "saved at most", "saved as listed"];
    let saving = ["saving (%)", "saving at least (%)", "saving as listed (%)"];
    saved.map(|what| format!("{what} ({unit})")).into_iter().chain(saving.map(Into::into)).collect()
}

fn saved(figures: Figures) -> [Cow<'static, str>; 7] {
    let Figures { saved, saved_least, saved_most, saved_as_listed, .. } = figures;
    let Figures { saving_pct, saving_pct_at_least, saving_as_listed_pct, .. } = figures;
    let listed = Some(saved_as_listed);
    [saved, saved_least, saved_most, listed, saving_pct, saving_pct_at_least, saving_as_listed_pct]
        .map(|x| x.map(|x| x.to_string()).unwrap_or_default().into())
}

fn record<'a, C>(f: &mut fmt::Formatter<'_>, cells: impl IntoIterator<Item = C>) -> fmt::Result
where
    C: Into<Cow<'a, str>>,
{
    for (i, cell) in cells.into_iter().enumerate() {
        if i > 0 {
            f.write_str(",")?;
        }
        f.write_str(&quoted(&cell.into()))?;
    }
    f.write_str("\n")
}

/// Returns a name, escaped so that spreadsheets do not read it as a formula.
fn text(name: &str) -> Cow<'_, str> {
    if name.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        return Cow::Owned(format!("'{name}"));
    }
    Cow::Borrowed(name)
}

#[cfg(test)]
mod tests {
    use crate::profile::{Load, Origin, Unit};

    use super::*;

    fn of(rows: Vec<Row>) -> profile::Profile {
        let event = Event { name: "cycles".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = profile::Profile::new(event, Origin::Counter);
        profile.rows = rows;
        profile
    }

    #[test]
    fn a_name_with_commas_quotes_and_line_ends_stays_one_field() {
        let text = Profile(&of(vec![Row::new("f<a, \"b\">\n", 7)])).to_string();
        let head = "symbol,object,space,stage,address (hex),count (samples of cycles),code (bytes),\
                    load (samples/byte)\n";
        assert_eq!(text, format!("{head}\"f<a, \"\"b\"\">\n\",,,other,,7,,\n"));
    }

    #[test]
    fn no_name_is_a_formula() {
        let mut of = of(["=1+1", "+f", "-f", "@f", "\tf", "\rf"].map(|n| Row::new(n, 1)).into());
        of.rows[0].object = Some("=2".into());
        let csv = Profile(&of).to_string();
        for start in ["'=1+1,'=2,", "'+f,", "'-f,", "'@f,", "'\tf,", "\"'\rf\","] {
            assert!(csv.lines().any(|line| line.starts_with(start)), "{start} in {csv}");
        }
        assert!(Ranked(&Diff::between(&of, &of)).to_string().contains("\n'=1+1,'=2,"));
    }

    #[test]
    fn a_load_is_as_printed_or_computed_with_all_digits() {
        let printed = Load { value: 584.25, digits: 4 };
        let rows = vec![
            Row { load: Some(printed), ..Row::new("default_idle", 28044) },
            Row { code_bytes: Some(3), address: Some(0xc010), ..Row::new("kfree", 2) },
        ];
        let text = Profile(&of(rows)).to_string();
        assert!(text.contains("default_idle,,,idle,,28044,,584.2500\n"), "{text}");
        assert!(text.contains("kfree,,,memory,c010,2,3,0.6666666666666666\n"), "{text}");
    }

    #[test]
    fn a_bound_is_in_a_column_of_its_own_and_never_0() {
        let without = of(vec![Row::new("speedo_rx", 3358)]);
        let mut with = of(vec![]);
        with.cutoff = Some(216);
        let diff = Diff::between(&without, &with);
        let text = Ranked(&diff).to_string();
        let row = text.lines().nth(1).unwrap();
        assert!(row.starts_with("speedo_rx,,driver,,216,3358,,,3142,3358,3358,,93.5"), "{row}");
        let stages = Stages(&diff).to_string();
        let row = stages.lines().nth(1).unwrap();
        assert_eq!(row, "driver,packet path,1,0,216,3358,0,,,,3358,,,100", "no bound of a stage");
        let fields = |text: &str| text.lines().map(|l| l.split(',').count()).collect::<Vec<_>>();
        assert_eq!(fields(&text), [15, 15]);
    }
}
