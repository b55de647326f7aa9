//! Outcome over all posts: how many figures agree, and how many errors the posts have.

use std::fmt;

use serde::Serialize;

use super::{Check, Report};

/// The numbers of checks and errors over all posts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Number of figures compared with a post.
    pub checks: usize,
    /// Checks whose values differ, each with the post's number.
    pub failed: Vec<(&'static str, Check)>,
    /// Number of errors and misleading statements in the posts.
    pub errata: usize,
}

impl Outcome {
    /// Sums up `reports`.
    #[must_use]
    pub fn of(reports: &[Report]) -> Outcome {
        let failed = |report: &Report| {
            let id = report.post.id;
            report.failed().map(|check| (id, check.clone())).collect::<Vec<_>>()
        };
        Outcome {
            checks: reports.iter().map(|report| report.checks.len()).sum(),
            failed: reports.iter().flat_map(failed).collect(),
            errata: reports.iter().map(|report| report.errata.len()).sum(),
        }
    }
}

/// Formats the document of `reports` and `outcome`, `linerate-seeds/1`, on one line.
#[must_use]
pub fn document(reports: &[Report], outcome: &Outcome) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: &'static str,
        posts: &'a [Report],
        outcome: &'a Outcome,
    }
    let document = Document { schema: "linerate-seeds/1", posts: reports, outcome };
    // This cannot fail: every key is a string, and a number that is not finite becomes null.
    serde_json::to_string(&document).unwrap_or_default()
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { checks, failed, errata } = self;
        match failed.len() {
            0 => write!(f, "{checks} checks, all as expected; ")?,
            n => write!(f, "{checks} checks, {n} FAILED; ")?,
        }
        write!(f, "{errata} errors and misleading statements in the posts, shown above")?;
        failed.iter().try_for_each(|(id, check)| {
            let Check { what, line, posted, computed, .. } = check;
            write!(f, "\npost {id}, line {line}: {what}: {posted} posted, {computed} computed")
        })
    }
}
