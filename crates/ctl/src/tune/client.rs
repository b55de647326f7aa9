//! The client of a run's control socket: sends one request and reads one answer.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use linerate_port::Code;
use linerate_sys::unix::{SocketType, connect};
use linerate_sys::wait::poll_readable;
use serde_json::Value;

use super::refusal;
use super::request::{Request, SCHEMA};
use crate::report::ErrorReport;

/// Longest wait for the whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of attempts to connect.
const RETRY: Duration = Duration::from_millis(2);
/// Longest answer: a queue has about 1 KiB.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Remedy if the path cannot be the socket of a run.
const NAME_SOCKET: &str = "name the socket of a run, the path after its --control";

/// Returns the remedy if a request was sent and its answer did not come.
fn without_answer(request: &Request) -> &'static str {
    match request {
        // The run reads the request when it goes on, although this client has gone.
        Request::Set(_) => "show the setting: the change may have been made, or may be made later",
        Request::Show { .. } | Request::Keep => "ask again",
    }
}

/// Returns the path as a word of a shell command.
fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,=@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Connects to the socket; until the time `until`, tries again while too many other clients wait to
/// be accepted.
fn connected(path: &Path, until: Instant) -> io::Result<OwnedFd> {
    loop {
        match connect(path, SocketType::STREAM) {
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                let _ = poll_readable(&[], Some(RETRY));
            }
            other => return other,
        }
    }
}

/// Returns the code, the reason and the remedy if the socket cannot be connected to.
fn unconnected(path: &Path, e: &io::Error) -> (Code, String, String) {
    let start =
        || format!("start the run with it: linerate forward A B --control {}", quoted(path));
    let is_socket = || path.metadata().is_ok_and(|found| found.file_type().is_socket());
    let (code, why, fix) = match e.kind() {
        ErrorKind::NotFound => (Code::File, "there is no such file", start()),
        ErrorKind::ConnectionRefused if !is_socket() => {
            (Code::File, "it is not a socket", NAME_SOCKET.into())
        }
        ErrorKind::ConnectionRefused => (Code::File, "no process listens on it", start()),
        ErrorKind::WouldBlock => (Code::Busy, "too many clients wait", "ask again".into()),
        ErrorKind::PermissionDenied => (
            Code::Permission,
            "it belongs to another user",
            "run the command as its user, or as root".into(),
        ),
        _ => (Code::File, "it is not the control socket of a run", NAME_SOCKET.into()),
    };
    (code, format!("{why} (connect: {e})"), fix)
}

/// A connection that is read until a deadline: a limit of each read alone would start again with
/// each byte.
struct ReadUntil {
    stream: UnixStream,
    until: Instant,
}

impl Read for ReadUntil {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Returns true for the error of a read or a write that took too long.
fn is_late(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// An answer of a run: a document of the schema `linerate-tune/1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The answer's line of JSON, as received.
    pub line: String,
    /// The answer, parsed.
    pub document: Value,
}

/// Sends a request to the run whose socket is at `path`; returns the run's answer.
///
/// # Errors
/// The run's refusal; `E-FILE` if no process listens there, `E-PERM` if the socket is another
/// user's, `E-BUSY` if too many clients wait, `E-SYSTEM` if the run does not answer: then a change
/// may have been made, or may be made later.
pub fn ask(path: &Path, request: &Request) -> Result<Answer, ErrorReport> {
    ask_within(path, request, ANSWER_TIMEOUT)
}

/// Asks as [`ask`] does, and waits for the whole answer for `timeout`.
fn ask_within(path: &Path, request: &Request, timeout: Duration) -> Result<Answer, ErrorReport> {
    let what = format!("cannot ask the run at {}", path.display());
    let refuse = |code: Code, why: String, fix: &str| refusal(code.as_str(), &what, why, fix);
    if path.as_os_str().as_encoded_bytes().starts_with(b"@") {
        let why = "a name that begins with @ is not a file, and no run listens there";
        return Err(refuse(Code::File, why.into(), NAME_SOCKET));
    }
    let until = Instant::now() + timeout;
    let fd = connected(path, until).map_err(|e| {
        let (code, why, fix) = unconnected(path, &e);
        refuse(code, why, &fix)
    })?;
    let again = without_answer(request);
    let broken = |e: io::Error| match is_late(&e) {
        true => refuse(Code::System, format!("no answer in {timeout:?}"), again),
        false => refuse(Code::System, format!("the connection broke: {e}"), again),
    };
    let mut stream = UnixStream::from(fd);
    stream.set_nonblocking(false).map_err(broken)?;
    stream.set_write_timeout(Some(timeout)).map_err(broken)?;
    // An error is ignored: a run that refuses this client has answered already and closed the
    // connection.
    let _ = stream.write_all(request.line().as_bytes());
    let mut line = String::new();
    let answering = ReadUntil { stream, until };
    let read = BufReader::new(answering.take(ANSWER_BYTES_MAX)).read_line(&mut line);
    if let Err(e) = read
        && (line.is_empty() || is_late(&e))
    {
        return Err(broken(e));
    }
    if line.is_empty() {
        let why = "it closed the connection without an answer: it ended, or has too many clients";
        return Err(refuse(Code::System, why.into(), again));
    }
    if line.len() as u64 == ANSWER_BYTES_MAX {
        let why = format!("its answer is longer than {ANSWER_BYTES_MAX} bytes");
        return Err(refuse(Code::System, why, "name a port, as in: -S eth0"));
    }
    if !line.ends_with('\n') {
        let why = "its answer was cut off: it has too many clients, or ended";
        return Err(refuse(Code::System, why.into(), again));
    }
    answer(&what, &line)
}

/// Reads the run's answer, or its refusal.
fn answer(what: &str, line: &str) -> Result<Answer, ErrorReport> {
    let other = "is the file a run's control socket?";
    let refuse = |why: String| refusal(Code::System.as_str(), what, why, other);
    let document: Value =
        serde_json::from_str(line).map_err(|e| refuse(format!("its answer is no JSON: {e}")))?;
    match document.get("error") {
        Some(error) => {
            let part = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
            Err(refusal(&part("code"), &part("what"), part("why"), part("fix")))
        }
        None if document.get("schema").and_then(Value::as_str) == Some(SCHEMA) => {
            Ok(Answer { line: line.trim_end().to_owned(), document })
        }
        None => Err(refuse(format!("its answer is not of the schema {SCHEMA}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use linerate_testing::Scratch;

    use super::*;

    #[test]
    fn answer_that_comes_byte_by_byte_is_not_awaited_longer_than_one_that_does_not_come() {
        let scratch = Scratch::new();
        let path = scratch.0.join("tune.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A byte comes within each interval of the time limit; it ends by itself after 5 s.
            for _ in 0..100 {
                if stream.write_all(b"1").is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let timeout = Duration::from_millis(200);
        let e = ask_within(&path, &Request::Keep, timeout).unwrap_err();
        assert_eq!((&*e.code, &*e.why), ("E-SYSTEM", "no answer in 200ms"));
        server.join().unwrap();
    }
}
