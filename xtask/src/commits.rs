//! Step `commits`: a commit's subject names its area, and the commit has no unrelated changes.
//!
//! Post 002 had to take stray edits out of `sch_generic.c`. What a machine can see of that: a
//! subject of the form `area: what`, no hunk of a change that differs in white space only, and no
//! code of a crate that the subject does not name. Documents and tests of the whole go with any.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::cargo;
use crate::steps::Done;

/// The command that lists the commits to check. Their number, 60, is more than any unmerged change
/// has.
const LOG: [&str; 5] = ["log", "-60", "--no-merges", "--no-renames", "-U3"];

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
        let (head, patch) = change.split_once('\n').unwrap_or((change, ""));
        let files = hunks(patch);
        let (commit, subject) = head.split_once(' ').unwrap_or((head, ""));
        if !well_formed(subject) {
            found.push(format!("{commit}: `{subject}` is not of the form `area: what`"));
        }
        for file in stray(&files, &hunks(dense)) {
            found.push(format!("{commit}: a hunk of {file} changes white space only"));
        }
        for file in unnamed(subject, files.into_keys()) {
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
fn unnamed<'a>(subject: &str, files: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
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
    files.filter(is_source).filter(|file| !is_named(file)).collect()
}

/// Returns the files of a patch, each with the number of its hunks.
fn hunks(patch: &str) -> BTreeMap<&str, usize> {
    let (mut files, mut file) = (BTreeMap::new(), "");
    for line in patch.lines() {
        if let Some(names) = line.strip_prefix("diff --git a/") {
            // Both names are the same, because renames are not followed.
            file = names.get(..names.len().saturating_sub(" b/".len()) / 2).unwrap_or(names);
            files.insert(file, 0);
        } else if line.starts_with("@@ ") {
            *files.entry(file).or_default() += 1;
        }
    }
    files
}

/// Returns the files that have fewer hunks in `dense`, which leaves out changes of white space.
fn stray<'a>(all: &BTreeMap<&'a str, usize>, dense: &BTreeMap<&str, usize>) -> Vec<&'a str> {
    let rest = |file: &str| dense.get(file).copied().unwrap_or(0);
    all.iter().filter(|(file, n)| rest(file) < **n).map(|(file, _)| *file).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_of_a_crate_that_is_not_named_is_stray() {
        let all = [
            "crates/cli/src/ndr.rs",
            "crates/lab/src/ndr/path.rs",
            "crates/skb/tests/churn.rs",
            "docs/x.md",
            "xtask/src/commits.rs",
        ];
        let of = |subject: &str| unnamed(subject, all.into_iter());
        assert_eq!(of("lab, cli, xtask: what"), [""; 0]);
        assert_eq!(of("ndr: what"), ["xtask/src/commits.rs"]);
        assert_eq!(of("lab: ndr is what"), ["crates/cli/src/ndr.rs", "xtask/src/commits.rs"]);
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

    /// S2.39.
    #[test]
    fn a_hunk_that_only_changes_white_space_is_stray() {
        let of = |file: &str, hunks: &str| format!("diff --git a/{file} b/{file}\n{hunks}");
        let (one, other) = ("@@ -1 +1 @@\n-a\n+b\n", "@@ -9 +9 @@ fn x\n-\tc\n+c\n");
        let all = of("a b.rs", one) + &of("c.rs", &format!("{one}{other}")) + &of("d.rs", other);
        let dense = of("a b.rs", one) + &of("c.rs", one);
        assert_eq!(hunks(&all), [("a b.rs", 1), ("c.rs", 2), ("d.rs", 1)].into());
        assert_eq!(stray(&hunks(&all), &hunks(&dense)), ["c.rs", "d.rs"]);
        assert_eq!(stray(&hunks(&all), &hunks(&all)), [""; 0]);
        let picture = of("p.png", "Binary files a/p.png and b/p.png differ\n");
        assert_eq!(stray(&hunks(&picture), &BTreeMap::new()), [""; 0]);
    }
}
