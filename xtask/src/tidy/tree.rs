//! The files of the tree with their texts, each read once.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;

/// Every file that git tracks or would track, by its path from the workspace's folder.
///
/// A file that is not UTF-8 (a capture) has an empty text.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads the tree at `root`.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut git = Command::new("git");
        // The tree may belong to another user than the one who checks it (CI as root). Trusting it
        // adds no risk, because its code already runs as that user.
        git.args(["-c", "safe.directory=*"]);
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listed = cargo::quiet(git.current_dir(root))?;
        let mut files = BTreeMap::new();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            let Some(bytes) = bytes(&root.join(path))? else { continue };
            files.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default());
        }
        Ok(Tree { files })
    }

    /// Returns a tree in memory, for the tests of the rules.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Tree { files: files.iter().map(owned).collect() }
    }

    /// Returns the number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the text of the file at `path`, if it exists.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Returns true if `path` is a file or a non-empty folder.
    pub fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        let below = self.files.range(folder.clone()..).next();
        path.is_empty()
            || self.files.contains_key(path)
            || below.is_some_and(|(file, _)| file.starts_with(&folder))
    }

    /// Returns every file with its text, by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the files whose paths end in `suffix`, with their texts.
    pub fn ending(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.ends_with(suffix))
    }
}

/// Returns the bytes of a file, or the target of a link. `None` for a file that is deleted, which
/// git lists until that is committed, and for another repository's folder.
fn bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    let target = fs::read_link(path).map(|to| to.into_os_string().into_encoded_bytes());
    match target.or_else(|_| fs::read(path)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) => match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory => Ok(None),
            // No rule would look at a file that is left out.
            _ => Err(e).with_context(|| format!("cannot read {}", path.display())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_and_cannot_be_read_is_an_error_and_a_deleted_one_is_not() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(bytes(&own).unwrap().is_some_and(|text| text.starts_with(b"[package]")));
        for gone in [own.with_extension("gone"), own.join("below"), own.with_file_name("src")] {
            assert_eq!(bytes(&gone).unwrap(), None, "{}", gone.display());
        }
        // No file has such a name, because the kernel ends a path there.
        assert!(bytes(Path::new("Cargo\0toml")).is_err());
    }
}
