//! An error as a part of a document.

use linerate_port::Error;

#[cfg(feature = "json")]
use serde::Serialize;

/// An error in four parts: code, what, why and fix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct ErrorReport {
    /// The stable error code.
    pub code: String,
    /// The action that failed, or the event.
    pub what: String,
    /// The cause.
    pub why: String,
    /// The remedy; empty if none is known.
    pub fix: String,
}

impl From<&Error> for ErrorReport {
    fn from(e: &Error) -> ErrorReport {
        ErrorReport {
            code: e.code.as_str().into(),
            what: e.what.clone(),
            why: e.why.clone(),
            fix: e.fix.clone(),
        }
    }
}
