//! Changes the settings of a run from another process, over a socket that the program opens on
//! request.
//!
//! ```text
//!  ask ──a line of JSON──► Listening ─► Server ── Control ─► orders to the workers
//!      ◄─a line of JSON──                     ◄── Stats ──── what they publish
//! ```
//!
//! [`SETTINGS`] is the one table of settings that can be shown and changed. [`Server`] has a thread
//! of its own, which never waits for a client or a worker: a slow client is disconnected, and an
//! order that is not executed in time is an error. Each connection carries one request; only
//! requests of this process's user and of root are accepted.

mod client;
mod request;
mod reverts;
mod server;
mod setting;
mod target;
#[cfg(test)]
mod tests;
mod value;

pub use client::{Answer, ask};
pub use request::{Change, REQUEST_BYTES_MAX, REVERT_AFTER, Request, SCHEMA};
pub use server::{Listening, Server};
pub use setting::{LETTERS, SETTINGS, SettingRow};

use crate::report::ErrorReport;

/// The error code of an invalid request.
const USAGE: &str = "E-USAGE";

/// Returns an error with its four parts.
fn refusal(code: &str, what: &str, why: impl Into<String>, fix: impl Into<String>) -> ErrorReport {
    ErrorReport { code: code.into(), what: what.into(), why: why.into(), fix: fix.into() }
}

/// Refuses a word that is not in `known`, and suggests the nearest known word.
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
