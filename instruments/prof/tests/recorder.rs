//! What a recorder refuses, and what it leaves behind: no program, no process of another name.
//!
//! What changes its own process, its limits or its namespace, runs in this file's own `program`,
//! started anew by the tests with a role.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::time::Duration;

use linerate_prof::profile::Profile;
use linerate_prof::sample::{Recorder, Recording, Target, What};
use linerate_prof::{Code, Result};

const ROLE: &str = "LINERATE_RECORDER_ROLE";
const FILE: &str = "LINERATE_RECORDER_FILE";

#[test]
#[ignore = "what the other tests start in a process of its own"]
fn program() {
    match std::env::var(ROLE).as_deref() {
        Ok("works") => works_seven(300_000_000),
        Ok("few-descriptors") => few_descriptors(),
        Ok("foreign-proc") => foreign_proc(),
        role => panic!("{ROLE} is {role:?}"),
    }
}

fn role(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "program", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

#[inline(never)]
fn works_seven(turns: u64) {
    let step = |x: u64, _| (x ^ x >> 9).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    black_box((0..black_box(turns)).fold(black_box(7), step));
}

/// A recording, or the reason why this machine gives none.
fn started(recording: Result<Recording>) -> Option<Recording> {
    match recording {
        Ok(recording) => Some(recording),
        Err(e) if matches!(e.code, Code::Permission | Code::Unsupported) => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

fn at(hz: u32) -> Recorder {
    Recorder::new(What::Time { hz }).calibrate(false)
}

fn count(profile: &Profile, part: &str) -> u64 {
    profile.rows.iter().filter(|row| row.symbol.contains(part)).map(|row| row.count).sum()
}

#[test]
fn a_refused_recording_starts_no_program() {
    // A limit of descriptors is the whole process's: the test runs on in one of its own.
    let ran = std::env::temp_dir().join(format!("linerate-not-run-{}", std::process::id()));
    let status = role("few-descriptors").env(FILE, &ran).status().unwrap();
    assert!(status.success(), "{status}");
    assert!(!ran.exists(), "{} was made", ran.display());
}

/// Leaves itself no descriptor for an event, and tries to record a program that makes a file.
fn few_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let recorder = at(1_000);
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let free = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
    // One for the trial event, none for those that count.
    let current = Some(u64::try_from(free).unwrap() + 1);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let mut command = Command::new("touch");
    command.arg(std::env::var_os(FILE).unwrap());
    let e = match recorder.start(Target::Child(command)) {
        Err(e) if matches!(e.code, Code::Permission | Code::Unsupported) => return,
        Err(e) => e,
        Ok(recording) => panic!("{recording:?}"),
    };
    assert_eq!(e.code, Code::System, "{e}");
    assert!(e.why.contains("descriptors are needed, soft limit"), "{e}");
    assert!(e.fix.contains("ulimit -n ") || e.fix.contains("prlimit"), "{e}");
}

#[test]
fn a_child_that_outlives_its_recording_can_be_taken_back_and_ended() {
    let mut command = Command::new("sleep");
    command.arg("1000");
    let Some(mut recording) = started(at(1_000).start(Target::Child(command))) else { return };
    let pid = recording.child().unwrap();
    assert!(recording.poll(Duration::ZERO).unwrap().target_alive);
    let mut child = recording.take_child().unwrap();
    assert_eq!(child.id(), pid);
    assert!(recording.take_child().is_none() && recording.child().is_none());
    assert_eq!(recording.wait().unwrap(), None);
    recording.finish().unwrap();
    assert_eq!(child.try_wait().unwrap(), None, "it lives on");
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_process_that_lives_in_another_namespace_than_proc_is_refused_and_not_mistaken() {
    let mut inside = Command::new("unshare");
    let Ok(own) = std::env::current_exe() else { return };
    inside.args(["--pid", "--fork"]).arg(own).stdin(Stdio::null());
    inside.args(["--ignored", "--exact", "program", "--nocapture"]).env(ROLE, "foreign-proc");
    match inside.output() {
        Ok(output) if String::from_utf8_lossy(&output.stderr).starts_with("unshare: ") => {
            println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(e) => println!("skipped: unshare: {e}"),
    }
}

/// Process 1 of its namespace, which in this /proc is another one.
fn foreign_proc() {
    for target in [Target::Pid(std::process::id()), Target::ThisProcess] {
        let e = match at(1_000).start(target) {
            Err(e) => e,
            Ok(recording) => panic!("{recording:?}"),
        };
        assert!(matches!(e.code, Code::Permission | Code::Unsupported), "{e}");
        assert!(e.code == Code::Permission || e.why.contains("another PID namespace"), "{e}");
    }
    let Some(mut recording) = started(at(1_000).start(Target::ThisThread)) else { return };
    works_seven(100_000_000);
    recording.poll(Duration::ZERO).unwrap();
    let profile = recording.finish().unwrap();
    assert!(count(&profile, "works_seven") >= 30, "{profile:?}");
    let workload = profile.conditions.workload.unwrap();
    assert!(workload.contains("--exact program"), "{workload}");
    let mut recording = at(1_000).start(Target::Child(role("works"))).unwrap();
    recording.wait().unwrap();
    let profile = recording.finish().unwrap();
    assert!(count(&profile, "works_seven") >= 100, "{profile:?}");
    let told = |remark: &String| remark.contains("another PID namespace");
    assert!(profile.remarks.iter().any(told), "{profile:?}");
}

#[test]
fn a_rate_that_nobody_has_calibrated_has_a_bound() {
    match at(100_000).start(Target::ThisThread) {
        Err(e) if e.code == Code::Permission => println!("skipped: {e}"),
        Err(e) => assert!(e.code == Code::Unsupported && e.fix.contains("20000"), "{e}"),
        Ok(recording) => panic!("{recording:?}"),
    }
}
