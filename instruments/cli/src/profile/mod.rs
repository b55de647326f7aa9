//! `linerate profile`: the distribution of the CPU's time or events over functions.

pub mod args;
pub mod file;
mod list;
mod record;
mod recording;
mod watch;

pub use args::Profile;

use crate::errors::Failure;
use crate::screen::Screen;

impl Profile {
    /// Returns true if one JSON document is requested instead of text.
    pub fn json(&self) -> bool {
        match self {
            Profile::Record(args) => args.json,
            Profile::List(args) => args.json,
            Profile::Diff(args) => args.json,
            Profile::Events(args) => args.json,
            Profile::Watch(args) => args.json,
        }
    }

    /// Runs the command; returns the exit status.
    pub fn run(&self, screen: &Screen) -> Result<u8, Failure> {
        match self {
            Profile::Record(args) => record::record(args, screen),
            Profile::List(args) => list::list(args, screen),
            Profile::Diff(args) => list::diff(args, screen),
            Profile::Events(_) => list::events(screen),
            Profile::Watch(args) => watch::watch(args, screen),
        }
    }
}

/// Formats a value as one JSON document.
fn document(value: &impl serde::Serialize) -> String {
    // Writing into memory fails only if a type's Serialize fails, and no type of ours has a map
    // with keys other than text.
    serde_json::to_string(value).unwrap_or_else(|e| format!("{{\"error\":{:?}}}", e.to_string()))
}
