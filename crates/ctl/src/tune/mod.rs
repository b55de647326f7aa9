//! Changes the settings of a run from another process, over a socket that the program opens on request.
//!
//! ```text
//!  ask ──a line of JSON──► Listening ─► Server ── Control ─► orders to the workers
//!      ◄─a line of JSON──                     ◄── Stats ──── what they publish
//! ```
//!
//! [`SETTINGS`] is the one table of what can be set and shown. [`Server`] has a thread of its own, which never waits
//! for a client or a worker: a slow client loses its place, an order that is not obeyed in time is an error. One
//! request a connection; only this process's user and root are heard.

mod client;
mod request;
mod server;
mod setting;
mod target;
#[cfg(test)]
mod tests;
mod value;

pub use client::{Answer, ask};
pub use request::{Change, REQUEST_BYTES_MAX, Request, SCHEMA};
pub use server::{Listening, Server};
pub use setting::{LETTERS, SETTINGS, SettingRow};

use crate::report::ErrorReport;

/// The code of a request that makes no sense.
const USAGE: &str = "E-USAGE";

/// Returns a refusal in its four parts.
fn refusal(code: &str, what: &str, why: impl Into<String>, fix: impl Into<String>) -> ErrorReport {
    ErrorReport { code: code.into(), what: what.into(), why: why.into(), fix: fix.into() }
}

/// Refuses a word that is not among `known`, with the nearest one that is.
fn unknown<'a>(
    what: &str,
    noun: &str,
    word: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> ErrorReport {
    let all = || known.clone().collect::<Vec<_>>().join(" ");
    let fix = match linerate_port::nearest(word, known.clone()) {
        Some(near) => format!("did you mean {near}? There are: {}", all()),
        None => format!("there are: {}", all()),
    };
    refusal(USAGE, what, format!("there is no {noun} {word:?}"), fix)
}
