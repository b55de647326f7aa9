//! Shared parts of the end-to-end tests: network namespaces, processes that cannot outlive a test,
//! the `linerate` command and its reports.
//!
//! ```text
//! netns     a network namespace, held by a descriptor: nothing to clean up, whatever happens
//! topology  hosts in namespaces of their own, and what joins them
//! scenario  what joined hosts do with each other
//! process   a program with a deadline
//! command   `linerate forward …`, and the document it prints
//! traffic   TCP and UDP between namespaces, from this process
//! capture   the bytes of capture files, good and bad
//! setting   settings of a machine that hold for a process and its children
//! wait      bounded polling
//! ```
//!
//! A test that cannot run here returns early by [`or_skip!`], which says so.

pub mod capture;
pub mod command;
pub mod idle;
pub mod netns;
pub mod process;
pub mod scenario;
pub mod setting;
pub mod topology;
pub mod traffic;
pub mod wait;

/// Returns the value of a `Result<T, String>`; for `Err(why)` prints `skipped: why` and returns
/// from the test.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => {
                eprintln!("skipped: {why}");
                return;
            }
        }
    };
}

/// Checks that the program `name` is installed.
///
/// # Errors
/// The reason to skip, if it is not.
pub fn installed(name: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(name).is_file()) {
        Ok(())
    } else {
        Err(format!("there is no `{name}` command"))
    }
}
