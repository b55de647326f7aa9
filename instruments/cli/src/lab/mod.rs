//! `linerate lab`: the experiments, and the posts whose figures they reproduce.

mod args;
mod report;
mod run;
mod seeds;
mod triage;

use crate::errors::Failure;
use crate::screen::Screen;
use args::LabCommand;

pub use args::Lab;

impl Lab {
    /// Returns the settings of the command's output: text or JSON, progress or none.
    pub fn screen(&self) -> Screen {
        let (json, quiet) = match &self.command {
            LabCommand::List(list) => (list.json, false),
            LabCommand::Show(show) => (show.json, false),
            LabCommand::Run(run) => (run.json, run.quiet),
            LabCommand::Report(report) => (report.json, false),
            LabCommand::Compare(compare) => (compare.json, false),
            LabCommand::Triage(triage) => (triage.json, false),
            LabCommand::Export(_)
            | LabCommand::Sample(_)
            | LabCommand::Look(_)
            | LabCommand::Play
            | LabCommand::Flood(_) => (false, false),
            LabCommand::Seeds(seeds) => (seeds.json, false),
        };
        let mut screen = Screen::plain(json);
        screen.quiet = quiet;
        screen
    }

    /// Runs the command; returns the exit status.
    pub fn run(&self, screen: &Screen) -> Result<u8, Failure> {
        match &self.command {
            LabCommand::List(_) => report::list(screen),
            LabCommand::Show(show) => report::show(show, screen),
            LabCommand::Run(run) => run::run(run, screen),
            LabCommand::Report(report) => report::report(report, screen),
            LabCommand::Compare(compare) => report::compare(compare, screen),
            LabCommand::Triage(asked) => triage::triage(asked, screen),
            LabCommand::Export(export) => report::export(export, screen),
            LabCommand::Seeds(asked) => seeds::seeds(asked, screen),
            LabCommand::Sample(asked) => {
                let line = linerate_lab::buffers::sample(&asked.words)?;
                screen.result(|| line + "\n", String::new).map(|()| 0)
            }
            LabCommand::Look(asked) => Ok(linerate_lab::far::serve(&asked.words).map(|()| 0)?),
            LabCommand::Play => Ok(linerate_lab::scenario::play().map(|()| 0)?),
            LabCommand::Flood(asked) => {
                Ok(linerate_lab::flood::send(&asked.interface, asked.size).map(|()| 0)?)
            }
        }
    }
}
