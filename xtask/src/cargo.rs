//! Runs cargo as a child, quietly or with its output passed through.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

/// Limit of one command, in the syntax of timeout(1): a command that hangs fails its step.
const LIMIT: &str = "30m";

/// Returns the cargo that started us, or the one in `PATH`, for the workspace's folder and without
/// stdin.
pub fn cargo(root: &Path) -> Command {
    cargo_within(root, LIMIT)
}

/// Returns the cargo command with another limit.
pub fn cargo_within(root: &Path, limit: &str) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // timeout(1) runs the command in a process group of its own, which a Ctrl-C at the terminal
    // does not reach. At a terminal, the user can stop a command that hangs, so timeout(1) is not
    // used.
    let mut command = if std::io::stdin().is_terminal() {
        Command::new(program)
    } else {
        let mut bounded = Command::new("timeout");
        bounded.args(["--kill-after=10s", limit]).arg(program);
        bounded
    };
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Returns the folder in which cargo builds.
pub fn target_dir(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns the path of `name` in `PATH` or in the system's folders.
pub fn located(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let files = std::env::split_paths(&path).chain(system).map(|folder| folder.join(name));
    files.into_iter().find(|file| file.is_file())
}

/// Runs `command` and returns its stdout; prints its output only if it fails.
pub fn quiet(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        eprint!("\n{stdout}{}", String::from_utf8_lossy(&output.stderr));
        bail!("{}: {}", shown(command), output.status);
    }
    Ok(stdout)
}

/// Runs `command` with its output passed through, and returns the lines that `keep` accepts.
pub fn streamed(command: &mut Command, keep: fn(&str) -> bool) -> Result<Vec<String>> {
    let (kept, error) = told(command, keep)?;
    error.map_or(Ok(kept), Err)
}

/// Runs `command` as [`streamed`] does, and returns the lines even if it fails, because they may
/// show the cause.
pub fn told(
    command: &mut Command,
    keep: fn(&str) -> bool,
) -> Result<(Vec<String>, Option<anyhow::Error>)> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let kept = thread::scope(|scope| {
        let out = scope.spawn(|| pass(out, std::io::stdout(), keep));
        let mut kept = pass(err, std::io::stderr(), keep);
        kept.extend(out.join().unwrap_or_default());
        kept
    });
    let status = child.wait()?;
    let error = (!status.success()).then(|| anyhow!("{}: {status}", shown(command)));
    Ok((kept, error))
}

/// Runs `command` with its output in the file `log`, and returns as [`told`] does.
pub fn logged(
    command: &mut Command,
    log: &Path,
    keep: fn(&str) -> bool,
) -> Result<(Vec<String>, Option<anyhow::Error>)> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let status = command.stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("cannot start {command:?}"))?;
    let kept = pass(Some(File::open(log)?), std::io::sink(), keep);
    let error = (!status.success()).then(|| anyhow!("{}: {status}", shown(command)));
    Ok((kept, error))
}

fn pass(from: Option<impl Read>, mut to: impl Write, keep: fn(&str) -> bool) -> Vec<String> {
    let mut kept = Vec::new();
    let Some(from) = from else { return kept };
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        // If the terminal is closed, continue reading, or the child would block on a full pipe.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let text = String::from_utf8_lossy(&line);
        if keep(text.trim()) {
            kept.push(text.trim().to_owned());
        }
        line.clear();
    }
    kept
}

fn shown(command: &Command) -> String {
    let words = command.get_args().map(|arg| arg.to_string_lossy());
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    [program.to_string_lossy()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn lines_are_kept_from_both_outputs() {
        let script = "echo '  keep out'; echo drop; echo 'keep err' >&2; printf 'keep last'";
        let mut kept = streamed(&mut shell(script), |line| line.starts_with("keep")).unwrap();
        kept.sort();
        assert_eq!(kept, ["keep err", "keep last", "keep out"]);
    }

    #[test]
    fn a_failed_command_still_tells_what_it_printed() {
        let script = "echo 'keep this'; exit 3";
        let (kept, error) = told(&mut shell(script), |line| line.starts_with("keep")).unwrap();
        assert_eq!(kept, ["keep this"]);
        assert!(error.is_some());
    }

    #[test]
    fn a_failed_command_is_an_error_that_names_it() {
        let error = streamed(&mut shell("exit 3"), |_| false).unwrap_err();
        assert_eq!(error.to_string(), "sh -c exit 3: exit status: 3");
        assert!(quiet(&mut shell("exit 3")).is_err());
        assert_eq!(quiet(&mut shell("echo x")).unwrap(), "x\n");
    }
}
