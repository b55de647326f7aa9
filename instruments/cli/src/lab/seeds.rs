//! `linerate lab seeds`: recomputes the figures of the posts.

use std::fs;
use std::path::Path;

use linerate_seeds::{Outcome, POSTS, Post, Report, document};

use super::args::Seeds;
use crate::errors::{CHECK, Failure, RUNTIME, USAGE};
use crate::profile::file::write;
use crate::screen::Screen;

/// Runs the command; returns the exit status.
pub fn seeds(asked: &Seeds, screen: &Screen) -> Result<u8, Failure> {
    let posts = chosen(&asked.posts)?;
    let mut reports = Vec::with_capacity(posts.len());
    for post in posts {
        reports.push(match &asked.from {
            Some(directory) => post.report_of(&post.copy_in(directory)?)?,
            None => post.report()?,
        });
    }
    let outcome = Outcome::of(&reports);
    let exit = if outcome.failed.is_empty() { 0 } else { CHECK };
    match &asked.csv {
        Some(to) if to == Path::new("-") => screen.result(|| csv(&reports), String::new)?,
        Some(directory) => {
            let written = write_csv(&reports, directory)?;
            screen.result(|| written, String::new)?;
        }
        None if asked.as_posted => screen.result(|| as_posted(&reports), String::new)?,
        None => {
            let text = || text(&reports, &outcome);
            return screen.result(text, || document(&reports, &outcome)).map(|()| exit);
        }
    }
    // The CSV and the posts' tables have no place for failed checks, so print them as a note.
    if exit != 0 {
        screen.note(&format!("{outcome}\n"));
    }
    Ok(exit)
}

/// Returns the named posts without repetition and in order; all if none is named.
fn chosen(names: &[String]) -> Result<Vec<&'static Post>, Failure> {
    let mut wanted = Vec::new();
    for name in names {
        let post = Post::named(name).ok_or_else(|| {
            let all: Vec<&str> = POSTS.iter().flat_map(|post| [post.id, post.experiment]).collect();
            let why = format!("the posts are {}", all.join(", "));
            let what = format!("there is no post {:?}", name.chars().take(40).collect::<String>());
            Failure::new(USAGE, "E-USAGE", &what, why, "linerate lab seeds 003")
        })?;
        wanted.push(post.id);
    }
    let asked_for = |post: &&Post| wanted.is_empty() || wanted.contains(&post.id);
    Ok(POSTS.iter().filter(asked_for).collect())
}

fn text(reports: &[Report], outcome: &Outcome) -> String {
    let each = reports.iter().map(|report| format!("{report}\n")).collect::<Vec<_>>();
    format!("{}\n{outcome}\n", each.join("\n"))
}

/// Formats only the posts' tables, with a blank line between.
fn as_posted(reports: &[Report]) -> String {
    reports.iter().map(|report| report.as_posted.as_str()).collect::<Vec<_>>().join("\n")
}

/// Formats all tables as CSV, each after a line that names it.
fn csv(reports: &[Report]) -> String {
    let tables = reports.iter().flat_map(|report| {
        report.csv().map(|(name, csv)| format!("# {}\n{csv}", file_of(report, name)))
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Writes a file for each table; returns their names, a line each.
fn write_csv(reports: &[Report], directory: &Path) -> Result<String, Failure> {
    fs::create_dir_all(directory).map_err(|e| {
        let what = format!("cannot create {}", directory.display());
        Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), "")
    })?;
    let mut written = String::new();
    for report in reports {
        for (name, csv) in report.csv() {
            let path = directory.join(file_of(report, name));
            write(&path, &csv)?;
            written += &format!("{}\n", path.display());
        }
    }
    Ok(written)
}

fn file_of(report: &Report, table: &str) -> String {
    format!("{}_{table}.csv", report.post.id)
}
