//! A private folder in the system's temporary directory.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::errors::{Failure, RUNTIME};
use crate::signals;

/// Most names that are tried for a folder.
const TRIES: usize = 8;

/// A folder that no other user can read or write; removed with its contents when dropped, or when a
/// second signal ends the process.
#[derive(Debug)]
pub struct Temporary(PathBuf);

impl Temporary {
    /// Creates a folder with `name` in its name; an error says that it was for `contents`.
    pub fn new(name: &str, contents: &str) -> Result<Temporary, Failure> {
        // A name that no other program can predict, and that no earlier run can have left.
        let numbers = std::iter::repeat_with(|| RandomState::new().build_hasher().finish());
        let names = numbers.map(|n| format!("linerate-{name}-{}-{n:x}", std::process::id()));
        Temporary::first_of(&std::env::temp_dir(), names.take(TRIES), contents)
    }

    /// Creates the first of the named folders that does not exist yet.
    fn first_of(
        at: &Path,
        names: impl Iterator<Item = String>,
        contents: &str,
    ) -> Result<Temporary, Failure> {
        let mut last = String::new();
        for folder in names.map(|name| at.join(name)) {
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    signals::register_folder(&folder);
                    return Ok(Temporary(folder));
                }
                Err(e) => last = format!("{}: {e}", folder.display()),
            }
        }
        let what = format!("cannot create a folder for {contents}");
        let fix = "set TMPDIR to a folder that you can write";
        Err(Failure::new(RUNTIME, "E-FILE", &what, last, fix))
    }

    /// Returns the path of the file `name` in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Leave a folder that cannot be removed to the system, which cleans its temporary folder.
        let _ = fs::remove_dir_all(&self.0);
        signals::unregister_folder(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_exists_already_is_not_used_and_a_failure_names_its_path() {
        let at = std::env::temp_dir().join(format!("linerate-first-{}", std::process::id()));
        fs::create_dir(&at).unwrap();
        let first_of = |names: [&str; 2]| {
            Temporary::first_of(&at, names.map(str::to_owned).into_iter(), "a test")
        };
        let first = first_of(["a", "b"]).unwrap();
        let second = first_of(["a", "b"]).unwrap();
        assert_eq!([&first.0, &second.0], [&at.join("a"), &at.join("b")]);
        let e = first_of(["a", "b"]).unwrap_err();
        assert_eq!(e.error.what, "cannot create a folder for a test");
        assert!(e.error.why.starts_with(&format!("{}: File exists", at.join("b").display())));
        drop((first, second));
        // The folder must be empty now.
        fs::remove_dir(&at).unwrap();
    }

    #[test]
    fn folders_of_one_process_have_different_names_and_are_removed_with_their_contents() {
        let both = [(); 2].map(|()| Temporary::new("test", "a test").unwrap());
        assert_ne!(both[0].0, both[1].0);
        let file = both[0].file("data");
        fs::write(&file, b"1").unwrap();
        drop(both);
        assert!(!file.exists() && !file.parent().unwrap().exists());
    }
}
