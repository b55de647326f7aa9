//! The `linerate` command: moves packets between ports, and says where every one of them went.
#![forbid(unsafe_code)]

mod args;
mod doctor;
mod errors;
mod far;
mod forward;
mod r#gen;
mod lab;
mod ndr;
mod phases;
mod pool;
mod preface;
mod profile;
mod progress;
mod report;
mod run;
mod screen;
mod signals;
mod troubles;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use errors::Failure;
use screen::Screen;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => return ExitCode::from(args::refuse(&e)),
    };
    let (screen, done) = match args.command {
        Command::Version => return ExitCode::from(args::version()),
        Command::Doctor(doctor) => {
            let screen = Screen::plain(doctor.json);
            (screen, doctor.run(&screen))
        }
        Command::Forward(forward) => {
            let screen = Screen::of(&forward.run, &forward.ports());
            (screen, forward::forward(&forward, &screen))
        }
        Command::Gen(r#gen) => {
            let screen = Screen::of(&r#gen.run, &[&r#gen.port]);
            (screen, r#gen::generate(&r#gen, &screen))
        }
        Command::Lab(lab) => {
            let screen = lab.screen();
            (screen, lab.run(&screen))
        }
        Command::Ndr(ndr) => {
            let screen = Screen::plain(ndr.json);
            (screen, ndr.run(&screen))
        }
        Command::Profile(profile) => {
            let screen = Screen::plain(profile.json());
            (screen, profile.run(&screen))
        }
    };
    let exit = done.unwrap_or_else(|failure: Failure| {
        screen.failure(&failure.told);
        failure.exit
    });
    ExitCode::from(exit)
}
