//! Another version of the engine: the command of a commit, built in a git worktree.
//!
//! ```text
//!  target/lab-versions/COMMIT/tree      the commit's files (git worktree)
//!  target/lab-versions/COMMIT/linerate  its command
//!  target/lab-versions/build            cargo's, of all of them: what they depend on is built once
//!  target/lab-versions/lock             locked during a build, of any commit
//! ```
//!
//! A commit that is built is not built again. A name as HEAD means the same commit for as long as
//! this process lives, so that all pairs of a run compare the same two versions; a run is not
//! resumed if the name means another commit. The compiler is that of the directory that this
//! program is started in, for every version: what differs is the engine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{find, process};
use crate::scenario::Place;
use crate::{Code, Error, Result};

/// The longest time for git and a build.
const PATIENCE: Duration = Duration::from_hours(1);
/// Number of last lines of a failed build in the error.
const LINES: usize = 6;
/// The folder of all versions, in the repository's root.
const FOLDER: &str = "target/lab-versions";
/// Digits of a commit in the name of its folder.
const DIGITS: usize = 12;
/// The package of the command; the next constant is the name of the command.
const PACKAGE: &str = "linerate-cli";
const COMMAND: &str = "linerate";

/// Returns the path of the command of `commit` in the repository, as typed in a shell.
pub(super) fn command(commit: &str) -> String {
    format!("{FOLDER}/{commit}/{COMMAND}")
}

/// Returns the commands that build `commit`, as typed in a shell.
pub(super) fn commands(commit: &str) -> [String; 2] {
    let folder = format!("{FOLDER}/{commit}");
    [
        format!("git worktree add --detach --force --force {folder}/tree {commit}"),
        format!(
            "cargo build --release --locked -p {PACKAGE} --manifest-path {folder}/tree/Cargo.toml"
        ),
    ]
}

/// Returns the command of `commit`, built if it does not exist yet, and the full name of the
/// commit; the repository is that of the working directory.
///
/// # Errors
/// `E-EXPERIMENT` for a commit that there is not, `E-UNSUPPORTED` outside of a repository, without
/// git or cargo, `E-BUSY` while another process builds one, `E-SYSTEM` with the last lines of a
/// build that fails.
pub(super) fn built(commit: &str, place: &Place) -> Result<(PathBuf, String)> {
    built_in(Path::new("."), commit, place)
}

/// Returns the full name of `commit`; the repository is that of the working directory.
///
/// # Errors
/// As [`built`], except those of a build.
pub(super) fn whole(commit: &str, place: &Place) -> Result<String> {
    resolved(Path::new("."), commit, place).map(|(_, whole)| whole)
}

/// Returns the root of the repository around `dir`, and the full name of `commit` in it.
fn resolved(dir: &Path, commit: &str, place: &Place) -> Result<(String, String)> {
    let git = find("git", place)?;
    let ask = |args: &[&str]| said(&git, dir, args, &place.stop);
    let root = ask(&["rev-parse", "--show-toplevel"]).map_err(|e| {
        Error::new(Code::Unsupported, format!("cannot build commit {commit}"), e.why)
            .fix("start it in a clone of linerate's repository")
    })?;
    let whole = once(&root, commit, || {
        // `--end-of-options` keeps git from taking a name that begins with `-` as an option.
        let name = format!("{commit}^{{commit}}");
        let whole = ask(&["rev-parse", "--verify", "--end-of-options", &name]).map_err(|e| {
            Error::new(Code::Experiment, format!("there is no commit {commit}"), e.why)
                .fix(format!("git log --oneline, or git fetch, in {root}"))
        })?;
        // Newer versions of git also print `--end-of-options`, so take only the last line.
        Ok(whole.lines().last().unwrap_or_default().to_owned())
    })?;
    Ok((root, whole))
}

fn built_in(dir: &Path, commit: &str, place: &Place) -> Result<(PathBuf, String)> {
    let (root, whole) = resolved(dir, commit, place)?;
    let all = Path::new(&root).join(FOLDER);
    let folder = all.join(whole.get(..DIGITS).unwrap_or(&whole));
    let (tree, program) = (folder.join("tree"), folder.join(COMMAND));
    if program.is_file() {
        return Ok((program, whole));
    }
    let _lock = locked(&all, commit)?;
    // Another process may have built it before this one had the lock.
    if program.is_file() {
        return Ok((program, whole));
    }
    let failed = |e: std::io::Error| {
        Error::new(Code::File, format!("cannot keep the command of {commit}"), e.to_string())
    };
    if tree.is_dir() {
        // Without the command, the files may be incomplete, or changed.
        fs::remove_dir_all(&tree).map_err(|e| {
            Error::new(Code::File, format!("cannot remove {}", tree.display()), e.to_string())
        })?;
    }
    // The first `--force` is for a folder that was removed and that git still has registered. The
    // second one is for a folder that git has locked, because it was killed while it filled it.
    let (git, at) = (find("git", place)?, tree.to_string_lossy());
    let add: [&str; 7] = ["worktree", "add", "--detach", "--force", "--force", &at, &whole];
    said(&git, dir, &add, &place.stop)?;
    build(commit, &tree, &all.join("build"), place)?;
    // Copy to another name and rename, because an existing command counts as completely built.
    let part = folder.join("part");
    fs::copy(all.join("build").join("release").join(COMMAND), &part).map_err(failed)?;
    fs::rename(&part, &program).map_err(failed)?;
    Ok((program, whole))
}

/// Locks the folder of all versions against other processes, until the file is dropped. There is
/// one lock for all commits, because their builds put the command in the same place.
///
/// # Errors
/// `E-BUSY` if another process has it; `E-FILE`.
fn locked(all: &Path, commit: &str) -> Result<File> {
    let path = all.join("lock");
    let failed = |code, why: String| {
        let why = format!("{}: {why}", path.display());
        Error::new(code, format!("cannot build commit {commit}"), why)
    };
    let io = |e: std::io::Error| failed(Code::File, e.to_string());
    fs::create_dir_all(all).map_err(io)?;
    let file = File::create(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let e = failed(Code::Busy, "another process builds a commit".to_owned());
            Err(e.fix("wait until the other run has built its commits, and start this one again"))
        }
        Err(TryLockError::Error(e)) => Err(io(e)),
    }
}

/// Returns the full name of the commit that `name` denoted in the repository at `root` at the first
/// call; that call gets the full name from `ask`.
///
/// # Errors
/// Those of `ask`; they are not remembered.
fn once(root: &str, name: &str, ask: impl FnOnce() -> Result<String>) -> Result<String> {
    static KNOWN: Mutex<BTreeMap<[String; 2], String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(match known.entry([root.to_owned(), name.to_owned()]) {
        Entry::Occupied(whole) => whole.get().clone(),
        Entry::Vacant(place) => place.insert(ask()?).clone(),
    })
}

/// Builds the command of `tree` in `target`.
fn build(commit: &str, tree: &Path, target: &Path, place: &Place) -> Result<()> {
    let words = ["build", "--release", "--locked", "--quiet", "-p", PACKAGE, "--bin", COMMAND];
    let mut args: Vec<OsString> = words.map(OsString::from).into();
    args.extend(["--manifest-path".into(), tree.join("Cargo.toml").into_os_string()]);
    args.extend(["--target-dir".into(), target.as_os_str().to_owned()]);
    let cargo = find("cargo", place)?;
    let built = process::run_telling(&cargo, &args, PATIENCE, &place.stop, LINES);
    built.map(drop).map_err(|e| {
        let fix = format!(
            "cd {} && cargo build --release; repair it in another commit, because this tree is \
             made again at every build",
            tree.display()
        );
        Error::new(e.code, format!("commit {commit} does not build"), e.why).fix(fix)
    })
}

/// Runs git in `dir`; returns what it prints.
fn said(git: &Path, dir: &Path, args: &[&str], stop: &AtomicBool) -> Result<String> {
    let at: [OsString; 2] = ["-C".into(), dir.as_os_str().to_owned()];
    let args: Vec<OsString> = at.into_iter().chain(args.iter().map(OsString::from)).collect();
    let ran = process::run(git, &args, PATIENCE, stop)?;
    Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{Scratch, unless};

    /// Creates a repository with one commit, whose command is `main`; returns `None` without git.
    fn repository(main: &str) -> Option<Scratch> {
        let dir = Scratch::new();
        let manifest = "[package]\nname = \"linerate-cli\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\
                        [[bin]]\nname = \"linerate\"\npath = \"src/main.rs\"\n";
        dir.file("Cargo.toml", manifest);
        let lock = "version = 4\n[[package]]\nname = \"linerate-cli\"\nversion = \"0.0.0\"\n";
        dir.file("Cargo.lock", lock);
        dir.file("src/main.rs", main);
        unless(find("git", &Place::default()), |_| true)?;
        git(&dir.0, &["init", "-q"]);
        git(&dir.0, &["add", "-A"]);
        git(&dir.0, &["commit", "-q", "-m", "a"]);
        Some(dir)
    }

    /// Creates such a repository to build its commit; returns `None` without git or cargo.
    fn buildable(main: &str) -> Option<Scratch> {
        unless(find("cargo", &Place::default()), |_| true)?;
        repository(main)
    }

    /// Runs git in `dir` with a fixed name of the committer.
    fn git(dir: &Path, args: &[&str]) {
        let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let plain = ["-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null", "-C"];
        let mut git = std::process::Command::new("git");
        let done = git.args(who).args(plain).arg(dir).args(args).output().unwrap();
        assert!(done.status.success(), "git {args:?}: {done:?}");
    }

    #[test]
    fn a_name_means_the_same_commit_after_another_one_was_made() {
        let Some(dir) = buildable("fn main() { println!(\"{}\", 1) }") else { return };
        let first = built_in(&dir.0, "HEAD", &Place::default()).unwrap();
        fs::write(dir.0.join("src/main.rs"), "fn main() { println!(\"{}\", 2) }").unwrap();
        git(&dir.0, &["commit", "-q", "-a", "-m", "b"]);
        assert_eq!(built_in(&dir.0, "HEAD", &Place::default()), Ok(first.clone()));
        // Another name is resolved again, so it denotes the new commit.
        let second = built_in(&dir.0, "HEAD~0", &Place::default()).unwrap();
        assert_ne!(second, first);
    }

    #[test]
    fn a_commit_is_built_once_and_one_that_there_is_not_is_told() {
        let main = "fn main() { println!(\"{}\", 42) }";
        let Some(dir) = buildable(main) else { return };
        let (program, whole) = built_in(&dir.0, "HEAD", &Place::default()).unwrap();
        let ran = process::run(&program, &[], PATIENCE, &AtomicBool::new(false)).unwrap();
        assert_eq!((ran.stdout.as_slice(), whole.len()), (&b"42\n"[..], 40));
        // An existing build is reused under each name of its commit.
        fs::remove_dir_all(dir.0.join("target/lab-versions/build")).unwrap();
        assert_eq!(built_in(&dir.0, &whole[..8], &Place::default()), Ok((program, whole)));
        for name in ["no-such", "--help", "0000000000000000000000000000000000000000"] {
            let e = built_in(&dir.0, name, &Place::default()).unwrap_err();
            assert_eq!((e.code, e.what), (Code::Experiment, format!("there is no commit {name}")));
            assert!(e.why.contains("fatal") && e.fix.contains("git fetch"), "{} {}", e.why, e.fix);
        }
    }

    #[test]
    fn a_worktree_that_is_not_the_commits_is_made_again_before_a_build() {
        let Some(dir) = buildable("fn main() { println!(\"{}\", 1) }") else { return };
        let (program, whole) = built_in(&dir.0, "HEAD", &Place::default()).unwrap();
        fs::remove_file(&program).unwrap();
        let tree = program.with_file_name("tree");
        fs::write(tree.join("src/main.rs"), "fn main() { println!(\"{}\", 2) }").unwrap();
        assert_eq!(built_in(&dir.0, &whole, &Place::default()), Ok((program.clone(), whole)));
        let ran = process::run(&program, &[], PATIENCE, &AtomicBool::new(false)).unwrap();
        assert_eq!(ran.stdout, b"1\n");
    }

    #[test]
    fn second_build_at_the_same_time_is_refused() {
        let Some(dir) = repository("fn main() {}") else { return };
        let held = locked(&dir.0.join("target/lab-versions"), "other").unwrap();
        let e = built_in(&dir.0, "HEAD", &Place::default()).unwrap_err();
        assert!(e.code == Code::Busy && e.fix.starts_with("wait"), "{e}");
        drop(held);
    }

    #[test]
    fn a_build_that_fails_is_told_with_its_last_lines() {
        let Some(dir) = buildable("fn main() { no_such_function() }") else { return };
        let e = built_in(&dir.0, "HEAD", &Place::default()).unwrap_err();
        assert_eq!(e.what, "commit HEAD does not build");
        assert!(e.why.contains("no_such_function") && e.why.lines().count() > 2, "{}", e.why);
        let parts = ["cargo build --release", "this tree is made again at every build"];
        assert!(parts.iter().all(|part| e.fix.contains(part)), "{}", e.fix);
        let outside = built_in(Path::new("/"), "HEAD", &Place::default()).unwrap_err();
        assert_eq!(outside.code, Code::Unsupported);
    }
}
