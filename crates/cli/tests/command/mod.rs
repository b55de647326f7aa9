//! Runs the command as its users run it.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest time for a run; a quick experiment takes minutes on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(600);

/// The program of the crate to which these tests belong: `linerate-lab`, or `linerate`.
const PROGRAM: &str = match option_env!("CARGO_BIN_EXE_linerate-lab") {
    Some(program) => program,
    None => match option_env!("CARGO_BIN_EXE_linerate") {
        Some(program) => program,
        None => "linerate",
    },
};

/// Returns the command with `words`, separated by spaces.
pub fn command(words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words.split_whitespace());
    command
}

/// Runs the command to its end.
pub fn run(words: &str) -> Ended {
    Ended::from(finish(start(command(words).stdin(Stdio::null()))))
}

/// Starts a command whose output [`finish`] returns.
pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a command and of its output, as `Child::wait_with_output` does; kills the
/// command and panics if that takes longer than [`RUN_MAX`].
pub fn finish(mut child: Child) -> Output {
    drop(child.stdin.take());
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + RUN_MAX;
    loop {
        let status = child.try_wait().unwrap();
        if let Some(status) = status.filter(|_| stdout.is_finished() && stderr.is_finished()) {
            let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap());
            return Output { status, stdout, stderr };
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("no end of the command and its output in {RUN_MAX:?}: {status:?}");
        }
        sleep(Duration::from_millis(2));
    }
}

/// Reads a pipe to its end on a thread.
fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        bytes
    })
}

/// The outcome of a finished command.
#[derive(Debug)]
pub struct Ended {
    pub exit: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            exit: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    /// Parses the only document on stdout.
    pub fn document(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.out).unwrap()
    }
}
