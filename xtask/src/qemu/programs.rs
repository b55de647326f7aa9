//! The programs of a guest: the test programs of the crates that need privileges, and `linerate`
//! itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo;

/// The crates whose tests need privileges or depend on the kernel.
const CRATES: [&str; 2] = ["crates/port", "crates/sys"];

/// The folder of the crate whose tests run in scenarios only, because each needs a machine that a
/// scenario has set up.
const OF_SCENARIOS: &str = "crates/ctl";

/// Tests of `CRATES` that are left out, by parts of their names, with the reason.
pub const LEFT_OUT: [(&[&str], &str); 3] = [
    (
        &[
            "pcap::",
            "verbs::tests::",
            "conformance::tests::broken::",
            "conformance::tests::ports::capture_",
            "conformance::tests::ports::generators::",
            "conformance::tests::ports::null_port::",
            "conformance::tests::ports::paced_generators::",
            "conformance::tests::ports::rings::",
            "conformance::tests::ports::short_rings::",
            "conformance::tests::ports::sinks::",
            "wrap::conforms::troubled_rings::",
            "wrap::conforms::watched_rings::",
            "r#gen::",
        ],
        "no kernel is asked",
    ),
    (&["the_cpu_time_of_a_child_is_known"], "an emulated shell counts to 200,000 for 20 s"),
    (&["a_full_send_buffer_is_waited_for"], "an emulated sender is slower than the shaper"),
];

/// A test program.
pub struct Tests {
    /// Name of the program's cargo target.
    pub name: String,
    /// Path of the test program.
    pub path: PathBuf,
    /// Number of tests that the program would run.
    pub count: usize,
}

/// Everything of this tree that a guest runs.
pub struct Programs {
    /// The test programs, built because each has at least one test to run.
    pub tests: Vec<Tests>,
    /// Names and paths of test programs that scenarios run.
    pub of_scenarios: Vec<(String, PathBuf)>,
    /// Path of the program `linerate`.
    pub linerate: PathBuf,
}

impl Programs {
    /// Builds the programs with the same settings as step `test`, so that cargo builds nothing
    /// twice, and copies them to `folder`. Programs without a test whose name contains one of the
    /// parts in `only` are left out.
    pub fn build(root: &Path, only: &str, folder: &Path) -> Result<Programs> {
        let mut command = cargo::cargo(root);
        command.args(["test", "--locked", "--workspace", "--no-run"]);
        command.arg("--message-format=json-render-diagnostics");
        let (mut tests, mut of_scenarios, mut linerate) = (Vec::new(), Vec::new(), None);
        for Built { name, path, manifest, test } in built(&cargo::quiet(&mut command)?) {
            let crates = CRATES.iter().map(|folder| root.join(folder).join("Cargo.toml"));
            if test && crates.into_iter().any(|ours| ours == manifest) {
                let count = count(&path, only)?;
                if count > 0 {
                    tests.push(Tests { name, path: stripped(&path, folder), count });
                }
            } else if test && manifest == root.join(OF_SCENARIOS).join("Cargo.toml") {
                of_scenarios.push((name, stripped(&path, folder)));
            } else if !test && name == "linerate" {
                linerate = Some(stripped(&path, folder));
            }
        }
        let linerate = linerate.context("cargo built no linerate")?;
        Ok(Programs { tests, of_scenarios, linerate })
    }

    /// Returns the same programs with the numbers of tests for another filter. Programs without a
    /// test are kept, because a scenario may run one.
    pub fn narrowed(&self, only: &str) -> Result<Programs> {
        let of = |tests: &Tests| -> Result<Tests> {
            let count = count(&tests.path, only)?;
            Ok(Tests { name: tests.name.clone(), path: tests.path.clone(), count })
        };
        let tests = self.tests.iter().map(of).collect::<Result<Vec<Tests>>>()?;
        let (of_scenarios, linerate) = (self.of_scenarios.clone(), self.linerate.clone());
        Ok(Programs { tests, of_scenarios, linerate })
    }
}

/// Builds the library's test program of a package, and returns its path.
pub fn library_tests(root: &Path, package: &str) -> Result<PathBuf> {
    let mut command = cargo::cargo(root);
    command.args(["test", "--locked", "--lib", "--no-run", "--package", package]);
    command.arg("--message-format=json-render-diagnostics");
    let built = built(&cargo::quiet(&mut command)?);
    let tests =
        built.into_iter().find(|built| built.test && built.name == package.replace('-', "_"));
    Ok(tests.context("cargo built no tests")?.path)
}

/// An executable that cargo built.
#[derive(Debug, PartialEq, Eq)]
struct Built {
    name: String,
    path: PathBuf,
    manifest: PathBuf,
    test: bool,
}

/// Returns the executables in cargo's JSON messages.
fn built(messages: &str) -> Vec<Built> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let executable = |message: Value| {
        Some(Built {
            name: message["target"]["name"].as_str()?.to_owned(),
            path: message["executable"].as_str()?.into(),
            manifest: message["manifest_path"].as_str()?.into(),
            test: message["profile"]["test"].as_bool()?,
        })
    };
    messages.filter_map(executable).collect()
}

/// Returns the number of tests of the program at `path` that have one of `only` in their names.
fn count(path: &Path, only: &str) -> Result<usize> {
    let mut command = Command::new(path);
    command.args(["--list", "--format", "terse"]).args(filter(only)).stdin(Stdio::null());
    let listed = cargo::quiet(&mut command)?;
    Ok(listed.lines().filter(|line| line.ends_with(": test")).count())
}

/// Returns the arguments with which a test program runs only tests whose names contain one of the
/// parts in `only`.
pub fn filter(only: &str) -> Vec<&str> {
    let only = only.split(',').filter(|part| !part.is_empty());
    let names = LEFT_OUT.iter().flat_map(|(names, _)| *names);
    only.chain(names.flat_map(|name| ["--skip", name])).collect()
}

/// Returns the path of a copy of the program in `folder`, without debug information, which is nine
/// tenths of the program. Without strip(1), returns the original path.
pub fn stripped(path: &Path, folder: &Path) -> PathBuf {
    let to = folder.join(path.file_name().unwrap_or_default());
    let mut strip = Command::new("strip");
    strip.arg("--strip-debug").arg("-o").args([&to, path]).stdin(Stdio::null());
    match strip.output() {
        Ok(output) if output.status.success() => to,
        _ => path.to_owned(),
    }
}

/// Returns the shared libraries that a program loads, and its loader, by the paths in the program.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot start ldd")?;
    if !output.status.success() {
        // ldd fails for a statically linked program, which has no libraries.
        return Ok(Vec::new());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = said.lines().find(|line| line.contains("not found")) {
        bail!("{}: {}", program.display(), line.trim());
    }
    Ok(said.lines().filter_map(library).collect())
}

/// Returns the path in one of the lines `libc.so.6 => /lib/libc.so.6 (0x…)`, `/lib/ld.so (0x…)`.
fn library(line: &str) -> Option<PathBuf> {
    let path = line.split_whitespace().find(|word| word.starts_with('/'))?;
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_names_test_programs_and_others() {
        let message = |name: &str, test: bool, executable: Value| {
            serde_json::json!({ "reason": "compiler-artifact", "target": { "name": name },
                "profile": { "test": test }, "executable": executable,
                "manifest_path": "/t/Cargo.toml" })
            .to_string()
        };
        let messages = [
            message("linerate_sys", true, "/t/linerate_sys-1".into()),
            message("linerate", false, Value::Null),
            message("linerate", false, "/t/linerate".into()),
            String::from("{\"reason\":\"build-finished\",\"success\":true}"),
        ];
        let of = |name: &str, path: &str, test| Built {
            name: name.into(),
            path: path.into(),
            manifest: "/t/Cargo.toml".into(),
            test,
        };
        let expected =
            [of("linerate_sys", "/t/linerate_sys-1", true), of("linerate", "/t/linerate", false)];
        assert_eq!(built(&messages.join("\n")), expected);
    }

    #[test]
    fn a_library_is_copied_from_where_the_loader_finds_it() {
        let line = "\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)";
        assert_eq!(library(line), Some("/lib/x86_64-linux-gnu/libc.so.6".into()));
        assert_eq!(
            library("\t/lib64/ld-linux-x86-64.so.2 (0x0)"),
            Some("/lib64/ld-linux-x86-64.so.2".into())
        );
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007ffc)"), None);
    }
}
