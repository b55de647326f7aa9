//! `linerate lab report`, `compare`, `export`, `list` and `show`.

use std::path::Path;

use linerate_lab::compare::{self, Comparison, FailOn};
use linerate_lab::experiment::{self, BUILTIN, Experiment};
use linerate_lab::record::{self, Run, csv, effects_csv};
use linerate_lab::scenario::Place;
use linerate_lab::settings::in_file;
use linerate_lab::{Kind, report};

use super::args::{Compare, Export, Report, Show};
use crate::errors::{CHECK, Failure, INCONCLUSIVE, UNBALANCED};
use crate::profile::file::write;
use crate::screen::Screen;

/// Reports runs; returns the exit status.
pub fn report(asked: &Report, screen: &Screen) -> Result<u8, Failure> {
    let runs = asked.runs.iter().map(|name| read(name, &asked.kept.dir));
    let runs: Vec<Run> = runs.collect::<Result<_, _>>()?;
    match (&asked.html, runs.as_slice()) {
        (Some(file), runs) if file == Path::new("-") => {
            screen.result(|| report::html(runs), String::new)?;
        }
        (Some(file), runs) => {
            write(file, &report::html(runs))?;
            screen.result(|| format!("{}\n", file.display()), String::new)?;
        }
        (None, [run]) => screen.result(|| report::text(run), || document(run))?,
        (None, runs) => {
            let texts = || runs.iter().map(report::text).collect::<Vec<_>>().join("\n");
            screen.result(texts, || document(&runs))?;
        }
    }
    Ok(exit(&runs, 0))
}

/// Compares runs with the first; returns the exit status.
pub fn compare(asked: &Compare, screen: &Screen) -> Result<u8, Failure> {
    let fail_on = asked.fail_on.iter().map(|text| FailOn::parse(text));
    let fail_on: Vec<FailOn> = fail_on.collect::<Result<_, _>>()?;
    let baseline = read(&asked.baseline, &asked.kept.dir)?;
    let runs = asked.runs.iter().map(|name| read(name, &asked.kept.dir));
    let runs: Vec<Run> = runs.collect::<Result<_, _>>()?;
    let all = runs.iter().map(|run| compare::compare(&baseline, run, &fail_on, asked.allow_env));
    let all: Vec<Comparison> = all.collect::<Result<_, _>>()?;
    let texts = || all.iter().map(Comparison::to_string).collect::<Vec<_>>().join("\n");
    screen.result(texts, || match all.as_slice() {
        [one] => document(one),
        all => document(&all),
    })?;
    Ok(compared(&all, runs.iter().chain([&baseline])))
}

/// Returns the exit status of comparisons of `runs`: lost packets precede conditions that are met,
/// and these precede conditions that are not decided.
fn compared<'a>(all: &[Comparison], runs: impl IntoIterator<Item = &'a Run>) -> u8 {
    let status = match () {
        () if all.iter().any(|one| !one.failed.is_empty()) => CHECK,
        () if all.iter().any(|one| !one.undecided.is_empty()) => INCONCLUSIVE,
        () => 0,
    };
    exit(runs, status)
}

/// Writes a run's figures; returns the exit status.
pub fn export(asked: &Export, screen: &Screen) -> Result<u8, Failure> {
    let run = read(&asked.run, &asked.kept.dir)?;
    let text = if asked.effects { effects_csv(&run) } else { csv(&run) };
    match &asked.csv {
        Some(file) if file != Path::new("-") => {
            write(file, &text)?;
            screen.result(|| format!("{}\n", file.display()), String::new)?;
        }
        _ => screen.result(|| text, String::new)?,
    }
    Ok(exit([&run], 0))
}

/// Reads the run with that name in `dir`.
pub fn read(name: &str, dir: &Path) -> Result<Run, Failure> {
    Ok(record::read(&record::find(dir, name)?)?)
}

/// Returns the exit status for printed `runs`: a status of its own if a cell has lost packets,
/// whose results are withheld, else `otherwise`.
pub fn exit<'a>(runs: impl IntoIterator<Item = &'a Run>, otherwise: u8) -> u8 {
    if runs.into_iter().all(Run::conserved) { otherwise } else { UNBALANCED }
}

/// Lists the experiments; returns the exit status.
pub fn list(screen: &Screen) -> Result<u8, Failure> {
    let all = BUILTIN.iter().map(|(id, _)| experiment::builtin(id));
    let experiments: Vec<Experiment> = all.collect::<Result<_, _>>()?;
    let place = Place::of(&[], 0)?;
    let list = experiment::List { experiments: &experiments, place: &place };
    screen.result(|| list.to_string(), || document(&list))?;
    Ok(0)
}

/// Shows an experiment; returns the exit status.
pub fn show(asked: &Show, screen: &Screen) -> Result<u8, Failure> {
    let experiment = Experiment::find(&asked.experiment)?;
    if asked.toml {
        screen.result(|| experiment.toml.clone(), String::new)?;
        return Ok(0);
    }
    let place = Place::of(&[], 0)?;
    for cell in &experiment.cells {
        // Refuse only invalid cells. Cells that this machine cannot run are printed as such.
        if let Some(e) = cell.check(&place).err().filter(|e| e.kind() == Kind::Usage) {
            return Err(in_file(e, &asked.experiment).into());
        }
    }
    let show = experiment::Show { experiment: &experiment, place: &place };
    screen.result(|| show.to_string(), || document(&show))?;
    Ok(0)
}

/// Formats a value as one JSON document.
pub fn document(told: &impl serde::Serialize) -> String {
    // This fails only for a map whose keys are not strings, and no printed type has one.
    serde_json::to_string(told).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}

#[cfg(test)]
mod tests {
    use linerate_lab::record::{CellRecord, Ledger, Ledgers};

    use super::*;

    fn comparison(failed: &[&str], undecided: &[&str]) -> Comparison {
        let owned = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        Comparison {
            experiment: "pool".into(),
            a: "main".into(),
            b: "pr".into(),
            rows: Vec::new(),
            withheld: Vec::new(),
            environment: Vec::new(),
            failed: owned(failed),
            undecided: owned(undecided),
            notes: Vec::new(),
        }
    }

    #[test]
    fn lost_packets_precede_a_condition_that_is_met_and_this_one_that_is_not_decided() {
        let sound = Run::default();
        let b = Ledger { balanced: false, ..Ledger::default() };
        let ledger = Ledgers { b, ..Ledgers::default() };
        let cell = CellRecord { ledger, ..CellRecord::default() };
        let leaking = Run { cells: vec![cell], ..Run::default() };
        let met = "x>+1%: +3.00%";
        let open = "y>+1%: a run has too few set-ups of its sides";
        let cases: [(&[&str], &[&str], u8); 3] =
            [(&[], &[], 0), (&[met], &[open], CHECK), (&[], &[open], INCONCLUSIVE)];
        for (failed, undecided, status) in cases {
            let all = [comparison(&[], &[]), comparison(failed, undecided)];
            assert_eq!(compared(&all, [&sound, &sound]), status);
            assert_eq!(compared(&all, [&sound, &leaking]), UNBALANCED);
        }
    }
}
