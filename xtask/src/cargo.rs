//! Runs cargo as a child, quietly or with its output passed through.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

/// Time limit of one build or test run, in the syntax of timeout(1): a command that hangs fails its
/// step.
pub const LIMIT: &str = "30m";

/// Option of timeout(1) before the limit: a command that still runs 10 s after its limit is killed.
const KILL_AFTER: &str = "--kill-after=10s";

/// The error of a command that failed, and its exit code; a command that a signal ended has none.
pub type Failure = (anyhow::Error, Option<i32>);

/// Returns the cargo that started us, or the one in `PATH`, for the workspace's folder and without
/// stdin.
pub fn cargo(root: &Path) -> Command {
    cargo_within(root, LIMIT)
}

/// Returns the cargo command with another limit.
pub fn cargo_within(root: &Path, limit: &str) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = within(program, limit);
    command.current_dir(root);
    command
}

/// Returns the command that runs `program` without stdin and with a time limit.
pub fn within(program: impl AsRef<OsStr>, limit: &str) -> Command {
    // timeout(1) runs the command in a process group of its own, which a Ctrl-C at the terminal
    // does not reach. At a terminal, the user can stop a command that hangs, so timeout(1) is not
    // used.
    let mut command = if std::io::stdin().is_terminal() {
        Command::new(program)
    } else {
        let mut bounded = timeout();
        bounded.args([KILL_AFTER, limit]).arg(program);
        bounded
    };
    command.stdin(Stdio::null());
    command
}

/// Returns the command timeout(1), by its full path because a caller may change `PATH`.
///
/// The process group of timeout(1) gets no signal from the limit of the whole run (`.ci/run`).
/// Where setpriv(1) is installed, the kernel sends timeout(1) a signal when our process ends.
fn timeout() -> Command {
    let timeout = located("timeout").unwrap_or_else(|| "timeout".into());
    let Some(setpriv) = setpriv() else { return Command::new(timeout) };
    let mut tied = Command::new(setpriv);
    tied.args(["--pdeathsig", "TERM"]).arg(timeout);
    tied
}

/// Returns the path of setpriv(1), if it has the option `--pdeathsig`, which busybox's lacks.
fn setpriv() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let path = located("setpriv")?;
        let tried = Command::new(&path).args(["--pdeathsig", "TERM", "true"]).output();
        tried.is_ok_and(|output| output.status.success()).then_some(path)
    };
    FOUND.get_or_init(find).as_deref()
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
    let (kept, failure) = told(command, keep)?;
    failure.map_or(Ok(kept), |(error, _)| Err(error))
}

/// Runs `command` as [`streamed`] does, and returns the lines even if it fails, because they may
/// show the cause.
pub fn told(
    command: &mut Command,
    keep: fn(&str) -> bool,
) -> Result<(Vec<String>, Option<Failure>)> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = thread::scope(|scope| {
        let out = scope.spawn(|| pass(out, std::io::stdout(), keep));
        let err = pass(err, std::io::stderr(), keep);
        (out.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), err)
    });
    let status = child.wait()?;
    // Lines that were not read could be those that the caller looks for.
    let mut kept = err.context("cannot read the command's stderr")?;
    kept.extend(out.context("cannot read the command's stdout")?);
    Ok((kept, failure(command, status)))
}

/// Runs `command` with its output in the file `log`, and returns as [`told`] does.
pub fn logged(
    command: &mut Command,
    log: &Path,
    keep: fn(&str) -> bool,
) -> Result<(Vec<String>, Option<Failure>)> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let status = command.stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("cannot start {command:?}"))?;
    let kept = pass(Some(File::open(log)?), std::io::sink(), keep)?;
    Ok((kept, failure(command, status)))
}

fn failure(command: &Command, status: ExitStatus) -> Option<Failure> {
    let error = || anyhow!("{}: {status}", shown(command));
    (!status.success()).then(|| (error(), status.code()))
}

/// Passes lines on, and returns those that `keep` accepts.
fn pass(
    from: Option<impl Read>,
    mut to: impl Write,
    keep: fn(&str) -> bool,
) -> std::io::Result<Vec<String>> {
    let mut kept = Vec::new();
    let Some(from) = from else { return Ok(kept) };
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        // If the terminal is closed, continue reading, or the child would block on a full pipe.
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let text = String::from_utf8_lossy(&line);
        if keep(text.trim()) {
            kept.push(text.trim().to_owned());
        }
        line.clear();
    }
    Ok(kept)
}

/// Returns the words of a command, without those of timeout(1) and setpriv(1) before it.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program()];
    words.extend(command.get_args());
    let start = words.iter().position(|word| *word == KILL_AFTER).map_or(0, |at| at + 2);
    let mut words = words.into_iter().skip(start);
    let program = words.next().and_then(|path| Path::new(path).file_name()).unwrap_or_default();
    let words = [program].into_iter().chain(words).map(OsStr::to_string_lossy);
    words.collect::<Vec<_>>().join(" ")
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
    fn output_that_cannot_be_read_is_an_error() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("broken"))
            }
        }
        assert!(pass(Some(Broken), std::io::sink(), |_| true).is_err());
    }

    #[test]
    fn a_failed_command_still_tells_what_it_printed() {
        let script = "echo 'keep this'; exit 3";
        let (kept, failure) = told(&mut shell(script), |line| line.starts_with("keep")).unwrap();
        assert_eq!(kept, ["keep this"]);
        assert_eq!(failure.and_then(|(_, code)| code), Some(3));
    }

    #[test]
    fn a_command_with_a_limit_starts_whatever_its_path_is() {
        let mut command = within("/bin/sh", "1m");
        command.env_clear().env("PATH", "/nowhere").args(["-c", "echo x"]);
        assert_eq!(quiet(&mut command).unwrap(), "x\n");
    }

    #[test]
    fn a_command_with_a_limit_is_shown_without_it() {
        let mut command = within("/x/cargo", "1m");
        assert_eq!(shown(command.arg("test")), "cargo test");
    }

    #[test]
    fn a_failed_command_is_an_error_that_names_it() {
        let error = streamed(&mut shell("exit 3"), |_| false).unwrap_err();
        assert_eq!(error.to_string(), "sh -c exit 3: exit status: 3");
        assert!(quiet(&mut shell("exit 3")).is_err());
        let killed = streamed(&mut shell("kill -9 $$"), |_| false).unwrap_err();
        assert!(killed.to_string().contains("signal: 9"), "{killed}");
        assert_eq!(quiet(&mut shell("echo x")).unwrap(), "x\n");
    }
}
