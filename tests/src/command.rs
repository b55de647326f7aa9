//! The `linerate` command of this tree, and its reports.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::capture::Folder;
use crate::netns::Netns;
use crate::process::{Finished, Process};

/// Longest time for a run that its test does not stop.
const RUN_MAX: &str = "120s";
/// Longest time for a stop: draining takes up to a second, the rest is for a busy machine.
const STOP: Duration = Duration::from_secs(15);

/// Returns the path of the command, built from this tree with the profile of the running test.
///
/// Cargo does not always build another package's binary for a test, so this runs `cargo build`,
/// which only compares time stamps if everything is built.
///
/// `LINERATE_PROGRAM` names a program that has been built already: a build with the features of all
/// tests together differs from a build of its own, which takes minutes.
///
/// # Panics
/// If it cannot be built.
pub fn linerate() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = std::env::var_os("LINERATE_PROGRAM") {
            return built.into();
        }
        // Example of a path: target/debug/deps/forward_packet-0123456789abcdef
        let this = std::env::current_exe().expect("the test runs from a file");
        let profile = this.parent().and_then(Path::parent).expect("target/PROFILE/deps");
        let target = profile.parent().expect("target/PROFILE");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args([
            "build",
            "--quiet",
            "--package",
            "linerate-cli",
            "--package",
            "linerate-lab-cli",
        ]);
        build.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
        build.arg("--target-dir").arg(target);
        match profile.file_name().and_then(|name| name.to_str()) {
            None | Some("debug") => {}
            Some(name) => {
                build.args(["--profile", name]);
            }
        }
        let done = build.output().unwrap_or_else(|e| panic!("{build:?}: {e}"));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{build:?}: {said}");
        profile.join("linerate")
    })
}

/// Copies the command into `folder`, where every user may execute it; returns the path of the copy.
///
/// Another process copies it: a child that this process forks meanwhile would inherit our
/// descriptor for writing, and the copy could not be executed (ETXTBSY).
///
/// # Panics
/// If it cannot be copied.
#[must_use]
pub fn copy_into(folder: &Folder) -> String {
    let copy = folder.path("linerate");
    let mut cp = Command::new("cp");
    cp.arg(linerate()).arg(&copy);
    let status = cp.status().unwrap_or_else(|e| panic!("{cp:?}: {e}"));
    assert!(status.success(), "{cp:?}: {status}");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("the copy is ours");
    copy
}

/// A running `linerate forward --json …`.
#[derive(Debug)]
pub struct Forward(pub Process);

impl Forward {
    /// Starts the command in `netns`; its ports may not be open yet.
    #[must_use]
    pub fn start(netns: &Netns, args: &[&str]) -> Forward {
        Forward(netns.start(Forward::command(args, true)))
    }

    /// Runs the command in the present namespace to its end.
    ///
    /// # Panics
    /// If it does not end by itself within a minute.
    #[must_use]
    pub fn run(args: &[&str]) -> Finished {
        Forward::here(Forward::command(args, true)).finish(Duration::from_secs(60))
    }

    /// Starts `command` in the present namespace.
    #[must_use]
    pub fn here(command: Command) -> Process {
        Process::start(command, |mut command| command.spawn())
    }

    /// Returns the command line of a run that ends even if nothing stops it.
    #[must_use]
    pub fn command(args: &[&str], json: bool) -> Command {
        let mut command = Command::new(linerate());
        command.arg("forward").args(args);
        if json {
            command.arg("--json");
        }
        if !args.contains(&"--for") && !args.contains(&"--count") {
            command.args(["--for", RUN_MAX]);
        }
        command
    }

    /// Ends the run by SIGINT, as a user does.
    ///
    /// # Panics
    /// Unless it ends soon with 130, its ledger balanced and nothing in flight.
    #[must_use]
    pub fn interrupt(self) -> Report {
        self.end(Signal::INT, 130)
    }

    /// Ends the run by `signal`, and checks that its exit code is `code`.
    ///
    /// # Panics
    /// Unless it does so soon, its ledger balanced and nothing in flight.
    #[must_use]
    pub fn end(self, signal: Signal, code: i32) -> Report {
        self.0.signal(signal);
        let done = self.0.finish(STOP);
        assert_eq!(done.code(), code, "{done:?}");
        let report = Report::of(&done);
        report.assert_whole();
        report
    }
}

/// The document that `linerate forward --json` prints.
#[derive(Debug, Clone)]
pub struct Report(pub Value);

impl Report {
    /// Parses the report from the output of a run.
    ///
    /// # Panics
    /// Unless stdout is exactly one document of the schema.
    #[must_use]
    pub fn of(done: &Finished) -> Report {
        let document: Value = serde_json::from_str(&done.stdout)
            .unwrap_or_else(|e| panic!("not JSON: {e}: {done:?}"));
        assert_eq!(document["schema"], "linerate-forward/1", "{done:?}");
        Report(document)
    }

    /// Returns a count of the ledger: `received`, `created`, `sent`, `consumed`, `in_flight`.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn ledger(&self, key: &str) -> u64 {
        number(&self.0["ledger"], key)
    }

    /// Returns the number of packets dropped, for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        let reasons = self.0["ledger"]["dropped"].as_object();
        reasons.map_or(0, |all| all.values().filter_map(Value::as_u64).sum())
    }

    /// Returns the number of packets dropped for one reason.
    #[must_use]
    pub fn dropped_as(&self, reason: &str) -> u64 {
        self.0["ledger"]["dropped"][reason].as_u64().unwrap_or(0)
    }

    /// Returns a count of the port at `index`: `rx` or `tx`, `packets` or `bytes`.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn port(&self, index: usize, way: &str, unit: &str) -> u64 {
        number(&self.0["ports"][index][way], unit)
    }

    /// Checks that the ledger balances, reports so, and has nothing in flight.
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_whole(&self) {
        let came = self.ledger("received") + self.ledger("created");
        let left = self.ledger("sent") + self.ledger("consumed") + self.dropped();
        let in_flight = self.ledger("in_flight");
        assert_eq!(came, left + in_flight, "{}", self.0);
        assert_eq!(in_flight, 0, "{}", self.0);
        assert_eq!(self.0["ledger"]["balanced"], true, "{}", self.0);
        let ports = || 0..self.0["ports"].as_array().map_or(0, Vec::len);
        let sent: u64 = ports().map(|i| self.port(i, "tx", "packets")).sum();
        assert_eq!(sent, self.ledger("sent"), "ports and ledger differ: {}", self.0);
    }
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("no number `{key}` in {of}"))
}

/// The error of a command that was refused: `what`, `why`, `fix` and a code, as text and in JSON.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The action that failed.
    pub what: String,
    /// The reason.
    pub why: String,
    /// The remedy.
    pub fix: String,
}

impl Refusal {
    /// Runs `command` twice, as text and with `--json`; checks that both runs have exit code
    /// `exit`, error code `code` and equal words.
    ///
    /// # Panics
    /// If it is anything else.
    #[must_use]
    pub fn expect(command: impl Fn(bool) -> Process, exit: i32, code: &str) -> Refusal {
        let (told, document) = (command(false).finish(STOP), command(true).finish(STOP));
        assert_eq!((told.code(), document.code()), (exit, exit), "{told:?} {document:?}");
        let document: Value = serde_json::from_str(&document.stdout)
            .unwrap_or_else(|e| panic!("not JSON: {e}: {document:?}"));
        let error = &document["error"];
        let word = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        // A remedy may contain the whole command, which has `--json` in the second run only.
        let fix = word("fix").replace(" --json", "");
        let refusal = Refusal { what: word("what"), why: word("why"), fix };
        assert_eq!(word("code"), code, "{document}");
        assert!(!refusal.what.is_empty() && !refusal.why.is_empty(), "{document}");
        let fix = if refusal.fix.is_empty() {
            String::new()
        } else {
            format!("  fix: {}\n", refusal.fix)
        };
        let lines = format!("error[{code}]: {}\n  why: {}\n{fix}", refusal.what, refusal.why);
        assert!(told.stderr.contains(&lines), "{told:?} {lines}");
        refusal
    }

    /// Runs `linerate forward args` in the present namespace, with the checks of
    /// [`Refusal::expect`].
    ///
    /// # Panics
    /// As [`Refusal::expect`].
    #[must_use]
    pub fn of(args: &[&str], exit: i32, code: &str) -> Refusal {
        Refusal::expect(|json| Forward::here(Forward::command(args, json)), exit, code)
    }

    /// Runs `linerate forward args` in `netns`, with the checks of [`Refusal::expect`].
    ///
    /// # Panics
    /// As [`Refusal::expect`].
    #[must_use]
    pub fn inside(netns: &Netns, args: &[&str], exit: i32, code: &str) -> Refusal {
        Refusal::expect(|json| netns.start(Forward::command(args, json)), exit, code)
    }
}
