//! Step `commits`: a commit's subject names its area, and the commit has no unrelated changes.
//!
//! Post 002 had to take stray edits out of `sch_generic.c`. What a machine can see of that: a
//! subject of the form `area: what`, no hunk of a change that differs in white space only, and no
//! code of a crate, or of the package of the tests, that the subject does not name. Documents,
//! tests, examples and fuzz targets go with any. A change of many crates is one change only if its
//! text says of each what was done there.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo;
use crate::steps::Done;

/// The command that lists the commits to check. Their number, 60, is more than any unmerged change
/// has. The other options are those by which a user's settings could change the output.
const LOG: [&str; 8] = [
    "log",
    "-60",
    "--no-merges",
    "--no-renames",
    "-U3",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
];

/// Commits whose subjects name too few crates. Documents in `results/` name a later commit, so
/// these cannot be reworded without making that one unknown. Once none of them is among the last 60
/// any more, this list has no effect and can go.
const KEPT: [&str; 6] = ["0f504c44", "3f73acae", "860e2062", "8d97989d", "02e4305e", "47488ef6"];

/// Most areas that a subject names without a line for each in the text below it.
const AREAS_MAX: usize = 4;
/// The last commit before that rule. Documents in `results/` name commits before it.
const SINCE: &str = "cba5d36be8f6d14916a59fd2d5acc4c0d8672af1";

/// The hunks of each file: the lines of the new file that they have.
type Hunks<'a> = BTreeMap<&'a str, Vec<Range<usize>>>;

/// Checks the last commits.
pub fn run(root: &Path) -> Result<Done> {
    if !root.join(".git").exists() {
        return Ok(Done::skipped("this is no clone", "git clone it"));
    }
    let log =
        |more: &[&str]| cargo::quiet(git(root).args(LOG).arg("--format=%x00%h %s").args(more));
    let (all, dense) = (log(&[])?, log(&["-b", "--ignore-blank-lines"])?);
    let cut = cut(root)?;
    let mut found = Vec::new();
    let changes = all.split('\0').zip(dense.split('\0')).skip(1);
    let changes = changes.filter(|(change, _)| !is_cut(&cut, change));
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
        let is_kept = KEPT.iter().any(|kept| commit.starts_with(kept));
        for file in unnamed(subject, files.into_keys()).into_iter().filter(|_| !is_kept) {
            found.push(format!("{commit}: `{subject}` does not name the crate of {file}"));
        }
    }
    let younger = younger(root, SINCE)?;
    for (commit, text) in younger.split('\0').filter_map(|one| one.split_once(' ')) {
        let areas = untold(text).into_iter();
        found.extend(
            areas.map(|area| format!("{commit}: no line `{area}: what` says what was done there")),
        );
    }
    found.iter().for_each(|finding| eprintln!("{finding}"));
    if !found.is_empty() {
        bail!("{} findings", found.len());
    }
    Ok(format!("{} changes", changes.count()).into())
}

/// Returns git for the clone at `root`, which may belong to another user (tidy/tree.rs).
fn git(root: &Path) -> Command {
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*"]).current_dir(root);
    git
}

/// Returns the commits at which the history of a shallow clone is cut, one a line. Git shows each
/// of them as a root commit, with the whole tree as its patch.
fn cut(root: &Path) -> Result<String> {
    let path = cargo::quiet(git(root).args(["rev-parse", "--git-path", "shallow"]))?;
    let path = root.join(path.trim_end());
    match fs::read_to_string(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Returns true if the text of a change begins with one of the commits `cut`, abbreviated.
fn is_cut(cut: &str, change: &str) -> bool {
    let commit = change.split_whitespace().next().unwrap_or_default();
    cut.lines().any(|whole| whole.starts_with(commit))
}

/// Returns the commits after `since`, each as a null character, its hash and its text. In a clone
/// without `since`, no commit is known to be younger.
fn younger(root: &Path, since: &str) -> Result<String> {
    let exists = git(root).args(["cat-file", "-e", since]).output().context("cannot start git")?;
    match exists.status.code() {
        Some(0) => {
            let range = format!("{since}..HEAD");
            cargo::quiet(git(root).args(["log", "--no-merges", "--format=%x00%h %B", &range]))
        }
        Some(1) => Ok(String::new()),
        _ => bail!("git cat-file: {}", String::from_utf8_lossy(&exists.stderr).trim()),
    }
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
    let folders = ["crates/", "instruments/", "tests/", "xtask/"];
    let is_source = |file: &&str| {
        folders.iter().any(|folder| file.starts_with(folder)) && file.contains("/src/")
    };
    let is_named = |file: &&str| {
        let mut parts = file.split('/').map(|part| part.trim_end_matches(".rs"));
        parts.any(|part| areas.contains(&part))
    };
    files.filter(is_source).filter(|file| !is_named(file)).collect()
}

/// Returns the areas of a commit's text that no line below the subject is of, if the subject names
/// more than [`AREAS_MAX`].
fn untold(text: &str) -> Vec<&str> {
    let (subject, body) = text.split_once('\n').unwrap_or((text, ""));
    let (areas, _) = subject.split_once(": ").unwrap_or(("", ""));
    let areas: Vec<&str> = areas.split(", ").collect();
    let is_told = |area: &&str| {
        body.lines().any(|line| {
            line.trim_start_matches(['-', ' '])
                .strip_prefix(*area)
                .is_some_and(|rest| rest.starts_with(": "))
        })
    };
    if areas.len() <= AREAS_MAX {
        Vec::new()
    } else {
        areas.into_iter().filter(|area| !is_told(area)).collect()
    }
}

/// Returns the files of a patch, each with its hunks.
fn hunks(patch: &str) -> Hunks<'_> {
    let (mut files, mut file) = (Hunks::new(), "");
    for line in patch.lines() {
        if let Some(names) = line.strip_prefix("diff --git a/") {
            // Both names are the same, because renames are not followed.
            file = names.get(..names.len().saturating_sub(" b/".len()) / 2).unwrap_or(names);
            files.insert(file, Vec::new());
        } else if let Some(lines) = line.strip_prefix("@@ ").and_then(new_lines) {
            files.entry(file).or_default().push(lines);
        }
    }
    files
}

/// Returns the lines of the new file in a hunk that begins with `-1,4 +1,5 @@`.
fn new_lines(head: &str) -> Option<Range<usize>> {
    let new = head.split(' ').nth(1)?.strip_prefix('+')?;
    let (first, n) = new.split_once(',').unwrap_or((new, "1"));
    let (first, n): (usize, usize) = (first.parse().ok()?, n.parse().ok()?);
    Some(first..first + n.max(1))
}

/// Returns the files with a hunk of which nothing is left in `dense`, which leaves out changes of
/// white space.
fn stray<'a>(all: &Hunks<'a>, dense: &Hunks<'_>) -> Vec<&'a str> {
    let is_left = |file: &str, hunk: &Range<usize>| {
        let mut rest = dense.get(file).into_iter().flatten();
        rest.any(|one| one.start < hunk.end && hunk.start < one.end)
    };
    let files = all.iter().filter(|(file, hunks)| !hunks.iter().all(|hunk| is_left(file, hunk)));
    files.map(|(file, _)| *file).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_source_of_a_crate_that_is_not_named_is_stray() {
        let all = [
            "crates/cli/src/ndr.rs",
            "crates/lab/src/ndr/path.rs",
            "crates/skb/tests/churn.rs",
            "docs/x.md",
            "examples/echo.rs",
            "instruments/show/src/lib.rs",
            "tests/src/traffic.rs",
            "tests/tests/netns.rs",
            "xtask/src/commits.rs",
        ];
        let of = |subject: &str| unnamed(subject, all.into_iter());
        let (tests, xtask) = ("tests/src/traffic.rs", "xtask/src/commits.rs");
        assert_eq!(of("lab, cli, show, tests, xtask: what"), [""; 0]);
        assert_eq!(of("lab, cli, show, xtask: tests of what"), [tests]);
        assert_eq!(of("ndr, show: what"), [tests, xtask]);
        let show = "instruments/show/src/lib.rs";
        assert_eq!(of("lab: ndr is what"), ["crates/cli/src/ndr.rs", show, tests, xtask]);
    }

    /// A new repository, deleted with the test.
    struct Repository(PathBuf);

    impl Repository {
        /// Creates one; prints why and returns `None` if there is no git.
        fn new(name: &str) -> Option<Repository> {
            if cargo::located("git").is_none() {
                eprintln!("skipped: there is no git");
                return None;
            }
            let name = format!("linerate-{name}-{}", std::process::id());
            let repository = Repository(std::env::temp_dir().join(name));
            fs::create_dir_all(&repository.0).unwrap();
            repository.git(&["init", "-q"]);
            Some(repository)
        }

        fn git(&self, words: &[&str]) -> String {
            let settings = ["user.name=x", "user.email=x@example.org", "commit.gpgsign=false"];
            let mut git = Command::new("git");
            git.args(settings.iter().flat_map(|setting| ["-c", *setting])).args(words);
            cargo::quiet(git.current_dir(&self.0)).unwrap()
        }

        fn commit(&self, subject: &str) {
            self.git(&["commit", "-q", "--allow-empty", "-m", subject]);
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_clone_with_a_commit_that_names_no_area_fails_the_step() {
        let Some(clone) = Repository::new("commits") else { return };
        clone.commit("lab: what");
        assert!(run(&clone.0).is_ok());
        clone.commit("fix things");
        assert!(run(&clone.0).is_err_and(|e| e.to_string() == "1 findings"));
    }

    #[test]
    fn a_commit_at_which_a_shallow_clone_is_cut_is_left_out() {
        let Some(clone) = Repository::new("shallow") else { return };
        fs::create_dir_all(clone.0.join("crates/ring/src")).unwrap();
        fs::write(clone.0.join("crates/ring/src/lib.rs"), "//! A ring.\n").unwrap();
        clone.git(&["add", "."]);
        clone.commit("ring: what");
        clone.commit("lab: what");
        clone.commit("lab: more");
        let note = || run(&clone.0).map(|done| done.note().to_owned()).unwrap();
        assert_eq!(note(), "3 changes");
        // What `git clone --depth 2` writes.
        let cut = clone.git(&["rev-parse", "HEAD~1"]);
        fs::write(clone.0.join(".git/shallow"), cut).unwrap();
        assert_eq!(note(), "1 changes");
    }

    #[test]
    fn no_commit_is_after_one_that_is_absent_and_a_failure_of_git_is_an_error() {
        let Some(clone) = Repository::new("younger") else { return };
        clone.commit("lab: what");
        let first = clone.git(&["rev-parse", "HEAD"]);
        clone.commit("lab: more");
        let told = younger(&clone.0, first.trim()).unwrap();
        assert!(told.starts_with('\0') && told.trim_end().ends_with(" lab: more"), "{told:?}");
        assert_eq!(younger(&clone.0, SINCE).unwrap(), "");
        assert!(younger(&clone.0, "no-such-name").is_err());
    }

    #[test]
    fn many_areas_need_a_line_each() {
        assert_eq!(untold("port, sys, wire, ctl: what\n"), [""; 0]);
        let many = "port, sys, wire, ctl, lab: what\n\n- port: this\nsys: that\nlab, ctl: these\n";
        assert_eq!(untold(many), ["wire", "ctl", "lab"]);
        assert_eq!(untold("port, sys, wire, ctl, lab: what").len(), 5);
    }

    #[test]
    fn a_subject_names_its_area() {
        for good in ["lab: the shape of a run", "port/xdp, cli: rearm", "README: how to install"] {
            assert!(well_formed(good), "{good}");
        }
        let long = format!("{}: what", "a".repeat(61));
        for bad in ["fix things", "lab:", ": what", "Merge branch 'x'", "why? because: so", &long] {
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
        let lines = |first: usize| first..first + 1;
        let of_c = vec![lines(1), lines(9)];
        let files = [("a b.rs", vec![lines(1)]), ("c.rs", of_c), ("d.rs", vec![lines(9)])];
        assert_eq!(hunks(&all), files.into());
        assert_eq!(new_lines("-3,2 +4,7 @@ fn x"), Some(4..11));
        assert_eq!(
            new_lines("-3,2 +2,0 @@ fn x"),
            Some(2..3),
            "lines that are removed have a place"
        );
        assert_eq!(stray(&hunks(&all), &hunks(&dense)), ["c.rs", "d.rs"]);
        assert_eq!(stray(&hunks(&all), &hunks(&all)), [""; 0]);
        // As many hunks are left, two of the first.
        let (long, parts) = ("@@ -1,9 +1,9 @@\n", "@@ -1,2 +1,2 @@\n@@ -8,2 +8,2 @@\n");
        let all = of("c.rs", &format!("{long}@@ -20,3 +20,3 @@\n"));
        assert_eq!(stray(&hunks(&all), &hunks(&of("c.rs", parts))), ["c.rs"]);
        // What is left begins where the hunk of the change ends.
        let all = of("c.rs", "@@ -1,3 +1,3 @@\n");
        assert_eq!(stray(&hunks(&all), &hunks(&of("c.rs", "@@ -4 +4 @@\n"))), ["c.rs"]);
        let picture = of("p.png", "Binary files a/p.png and b/p.png differ\n");
        assert_eq!(stray(&hunks(&picture), &BTreeMap::new()), [""; 0]);
    }
}
