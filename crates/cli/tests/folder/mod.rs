//! Folders for tests of commands.

use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// Creates a folder with `name` in its name, which only this user can enter and no other program can predict. The
/// caller removes it.
pub fn create(name: &str) -> PathBuf {
    let number = RandomState::new().build_hasher().finish();
    let path = std::env::temp_dir().join(format!("linerate-{name}-{number:x}"));
    DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}
