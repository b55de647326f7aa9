//! Step `commits`: a commit's subject names its area, and the commit has no unrelated changes.
//!
//! Post 002 had to take stray edits out of `sch_generic.c`. What a machine can see of that: a
//! subject of the form `area: what`, no file of a change that differs in white space only, and no
//! code of a crate that the subject does not name. Documents and tests of the whole go with any.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo;
use crate::steps::Done;

/// The command that lists the commits to check. Their number, 60, is more than any unmerged change
/// has.
const LOG: [&str; 5] = ["log", "-60", "--no-merges", "--no-renames", "--numstat"];

/// Checks the last commits.
pub fn run(root: &Path) -> Result<Done> {
    if !root.join(".git").exists() {
        return Ok(Done::skipped("this is no clone", "git clone it"));
    }
    let log = |more: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(root).args(LOG).arg("--format=%x00%h %s").args(more);
        cargo::quiet(&mut git)
    };
    let (all, dense) = (log(&[])?, log(&["-b", "--ignore-blank-lines"])?);
    let mut found = Vec::new();
    let changes = all.split('\0').zip(dense.split('\0')).skip(1);
    for (change, dense) in changes.clone() {
        let (head, files) = change.split_once('\n').unwrap_or((change, ""));
        let (commit, subject) = head.split_once(' ').unwrap_or((head, ""));
        if !well_formed(subject) {
            found.push(format!("{commit}: `{subject}` is not of the form `area: what`"));
        }
        for file in stray(files, dense) {
            found.push(format!("{commit}: {file} changes in white space only"));
        }
        for file in unnamed(subject, files) {
            found.push(format!("{commit}: `{subject}` does not name the crate of {file}"));
        }
    }
    found.iter().for_each(|finding| eprintln!("{finding}"));
    if !found.is_empty() {
        bail!("{} findings", found.len());
    }
    Ok(format!("{} changes", changes.count()).into())
}

/// Returns true for `area: what`, where the area names crates, files or documents.
fn well_formed(subject: &str) -> bool {
    subject.split_once(": ").is_some_and(|(area, what)| {
        let named = |c: char| c.is_ascii_alphanumeric() || "-_./, ".contains(c);
        !area.is_empty() && area.len() <= 60 && area.chars().all(named) && !what.trim().is_empty()
    })
}

/// Returns the changed sources that a subject names neither by crate nor by a part of their path.
fn unnamed<'a>(subject: &str, all: &'a str) -> Vec<&'a str> {
    let (areas, _) = subject.split_once(": ").unwrap_or(("", ""));
    let areas: Vec<&str> = areas.split([',', ' ', '/']).filter(|area| !area.is_empty()).collect();
    let is_source = |file: &&str| {
        ["crates/", "instruments/", "xtask/"].iter().any(|folder| file.starts_with(folder))
            && file.contains("/src/")
    };
    let is_named = |file: &&str| {
        let mut parts = file.split('/').map(|part| part.trim_end_matches(".rs"));
        parts.any(|part| areas.contains(&part))
    };
    let files = all.lines().filter_map(|line| line.split('\t').nth(2));
    files.filter(is_source).filter(|file| !is_named(file)).collect()
}

/// Returns the files that a commit changes in white space only.
fn stray<'a>(all: &'a str, dense: &str) -> Vec<&'a str> {
    // Format: `added TAB removed TAB file`. New and deleted files have a 0, and are not checked.
    let changed = all.lines().filter_map(|line| {
        let [added, removed, file] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().ok()?;
        (added != "0" && removed != "0" && added != "-").then_some(file)
    });
    let touched = |file: &str| {
        let mut lines = dense.lines().filter(|line| !line.starts_with("0\t0\t"));
        lines.any(|line| line.split('\t').nth(2) == Some(file))
    };
    changed.filter(|file| !touched(file)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_of_a_crate_that_is_not_named_is_stray() {
        let all = "1\t1\tcrates/lab/src/ndr/path.rs\n2\t0\tcrates/cli/src/ndr.rs\n1\t0\tdocs/x.md\n\
                   1\t1\tcrates/skb/tests/churn.rs\n3\t3\txtask/src/commits.rs\n";
        assert_eq!(unnamed("lab, cli, xtask: what", all), [""; 0]);
        assert_eq!(unnamed("ndr: what", all), ["xtask/src/commits.rs"]);
        let of_lab = ["crates/cli/src/ndr.rs", "xtask/src/commits.rs"];
        assert_eq!(unnamed("lab: ndr is what", all), of_lab);
    }

    #[test]
    fn a_subject_names_its_area() {
        for good in ["lab: the shape of a run", "port/xdp, cli: rearm", "README: how to install"] {
            assert!(well_formed(good), "{good}");
        }
        for bad in ["fix things", "lab:", ": what", "Merge branch 'x'", "why? because: so"] {
            assert!(!well_formed(bad), "{bad}");
        }
    }

    #[test]
    fn a_file_that_only_changes_white_space_is_stray() {
        let all = "3\t2\ta.rs\n1\t1\tb.rs\n5\t0\tnew.rs\n-\t-\tpicture.png\n";
        assert_eq!(stray(all, "3\t2\ta.rs\n5\t0\tnew.rs\n"), ["b.rs"]);
        assert_eq!(stray(all, "3\t2\ta.rs\n0\t0\tb.rs\n5\t0\tnew.rs\n"), ["b.rs"]);
        assert_eq!(stray(all, all), Vec::<&str>::new());
    }
}
