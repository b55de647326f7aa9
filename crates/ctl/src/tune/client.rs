//! The client of a run's control socket: sends one request and reads one answer.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
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

/// Longest wait for the next byte of the answer.
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

/// Connects to the socket; tries again while too many other clients wait to be accepted.
fn connected(path: &Path) -> std::io::Result<OwnedFd> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    loop {
        match connect(path, SocketType::STREAM) {
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                let _ = poll_readable(&[], Some(RETRY));
            }
            other => return other,
        }
    }
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
    let what = format!("cannot ask the run at {}", path.display());
    let start = format!("start the run with it: linerate forward A B --control {}", quoted(path));
    let refuse = |code: Code, why: String, fix: &str| refusal(code.as_str(), &what, why, fix);
    if path.as_os_str().as_encoded_bytes().starts_with(b"@") {
        let why = "a name that begins with @ is not a file, and no run listens there";
        return Err(refuse(Code::File, why.into(), NAME_SOCKET));
    }
    let is_socket = || path.metadata().is_ok_and(|found| found.file_type().is_socket());
    let fd = connected(path).map_err(|e| {
        let (code, why, fix) = match e.kind() {
            ErrorKind::NotFound => (Code::File, "there is no such file", &*start),
            ErrorKind::ConnectionRefused if !is_socket() => {
                (Code::File, "it is not a socket", NAME_SOCKET)
            }
            ErrorKind::ConnectionRefused => (Code::File, "no process listens on it", &*start),
            ErrorKind::WouldBlock => (Code::Busy, "too many clients wait", "ask again"),
            ErrorKind::PermissionDenied => (
                Code::Permission,
                "it belongs to another user",
                "run the command as its user, or as root",
            ),
            _ => (Code::File, "it is not the control socket of a run", NAME_SOCKET),
        };
        refuse(code, format!("{why} (connect: {e})"), fix)
    })?;
    let again = without_answer(request);
    let broken = |e: std::io::Error| {
        let late = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        match late {
            true => refuse(Code::System, format!("no answer in {ANSWER_TIMEOUT:?}"), again),
            false => refuse(Code::System, format!("the connection broke: {e}"), again),
        }
    };
    let mut stream = UnixStream::from(fd);
    stream.set_nonblocking(false).map_err(broken)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(broken)?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).map_err(broken)?;
    // An error is ignored: a run that refuses this client has answered already and closed the
    // connection.
    let _ = stream.write_all(request.line().as_bytes());
    let mut line = String::new();
    let read = BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut line);
    if let Err(e) = read
        && line.is_empty()
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
