//! Runs a program under one of the settings of a machine: `under SETTING PROGRAM [ARGUMENT ..]`.
//! Without arguments it prints the names of the settings. `cargo xtask machines` names it to cargo
//! as the runner of what cargo builds.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use linerate_tests::setting::{self, SETTINGS};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let Some(name) = args.next() else {
        SETTINGS.iter().for_each(|setting| println!("{}", setting.name));
        return ExitCode::SUCCESS;
    };
    match run(&name.to_string_lossy(), args.collect()) {
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            eprintln!("under: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the program, and returns its exit code; 128 plus the number of the signal if a signal ended
/// it, as shells do.
fn run(name: &str, program: Vec<OsString>) -> Result<u8, String> {
    let setting = setting::named(name).ok_or_else(|| format!("no setting is called {name}"))?;
    let (program, args) = program.split_first().ok_or("name a program to run")?;
    // Its cgroup, if it has one, is removed after the program has ended.
    let entered = setting.enter()?.keeping_netns();
    let mut command = entered.command(program);
    let status = command.args(args).status().map_err(|e| format!("{command:?}: {e}"))?;
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}
