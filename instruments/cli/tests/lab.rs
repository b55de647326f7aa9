//! `linerate lab list`, `show`, `run`, `report`, `compare` and `export`, as their users run them.

#[path = "../../../crates/cli/tests/command/mod.rs"]
mod command;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use command::{Ended, run};
use linerate_testing::Scratch;

/// An experiment that runs unprivileged on every machine: its sides are two ways to wait for a
/// moment.
const MINE: &str = r#"version = 1
id = "mine"
title = "True beside itself"
question = "Is it the same?"
scenario = "command"
[settings]
program = "echo"
args = ["{}"]
[a]
name = "one"
[b]
name = "other"
[plan]
window = "5ms"
warmup = 1
looks = [6]
half_width_pct = 1.0
quick = { pairs = 6, window = "5ms" }
[[factor]]
name = "size"
about = "Nothing."
[[factor.level]]
name = "small"
quick = true
[[factor.level]]
name = "large"
[[metric]]
name = "ms"
unit = "s"
about = "Wall time of a window."
value = "seconds"
better = "lower"
clock = "wall"
"#;

fn refused(told: &Ended, exit: i32, parts: &[&str]) {
    assert_eq!((told.exit, told.out.as_str()), (Some(exit), ""), "{told:?}");
    for part in parts {
        assert!(told.err.contains(part), "{part} is not in\n{}", told.err);
    }
}

#[test]
fn every_experiment_is_listed_on_lines_that_a_screen_holds() {
    let told = run("lab list");
    assert_eq!((told.exit, told.err.as_str()), (Some(0), ""), "{told:?}");
    let heads: Vec<&str> = told.out.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads, ["ID", "POST", "CELLS", "TIME", "QUICK", "HERE"]);
    assert!(told.out.lines().all(|line| line.chars().count() <= 100), "{}", told.out);
    let document = run("lab list --json").document();
    let listed = document.as_array().unwrap();
    assert!(listed.iter().all(|one| told.out.contains(one["id"].as_str().unwrap())));
    let skbinit = listed.iter().find(|one| one["id"] == "skbinit").unwrap();
    assert_eq!(skbinit["reproduces"], "004");
    assert!(skbinit["here"]["cells"].as_u64() <= skbinit["cells"].as_u64());
    assert!(skbinit["quick_planned_s"].as_f64().unwrap() <= 60.0);
}

#[test]
fn an_experiment_is_told_with_what_is_expected_and_by_whom() {
    let told = run("lab show skbinit");
    assert_eq!((told.exit, told.err.as_str()), (Some(0), ""), "{told:?}");
    for part in [
        "reproduces post 004",
        "Sides",
        "Factors",
        "expected -100 to -28 %",
        "A 64.05, B 237.21 cycles",
        "Plan",
        "Here",
        "Scenario churn",
    ] {
        assert!(told.out.contains(part), "{part}");
    }
    assert!(told.out.lines().all(|line| line.chars().count() <= 100), "{}", told.out);
    let document = run("lab show skbinit --json").document();
    assert_eq!(
        document["metrics"][0]["expect"][0]["change_pct"],
        serde_json::json!([-100.0, -28.0])
    );
    assert!(document["scenarios"][0]["settings"].as_array().is_some_and(|all| !all.is_empty()));
}

#[test]
fn a_file_of_ours_is_a_template_for_ones_own() {
    let scratch = Scratch::new();
    let toml = run("lab show skbinit --toml").out;
    let file = scratch.file("mine.toml", &toml.replace("id = \"skbinit\"", "id = \"mine\""));
    let told = run(&format!("lab show {file}"));
    assert_eq!(told.exit, Some(0), "{told:?}");
    assert!(told.out.starts_with("mine: "), "{}", told.out);
}

#[test]
fn a_setting_that_the_scenario_does_not_have_is_refused_before_anything_runs() {
    let scratch = Scratch::new();
    let file = scratch.file("mine.toml", &MINE.replace("program =", "programme ="));
    let told = run(&format!("lab run {file} --dir {}", scratch.0.display()));
    refused(&told, 2, &["error[E-EXPERIMENT]", "mine.toml:"]);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "a run was begun");
}

#[test]
fn wrong_request_is_refused_before_a_run_begins() {
    let scratch = Scratch::new();
    let file = scratch.file("mine.toml", MINE);
    let dir = scratch.0.display();
    for (words, exit, part) in [
        ("run skbinits".into(), 2, "did you mean \"skbinit\""),
        ("run".into(), 2, "what is missing: <ID|FILE>"),
        (format!("run {file} --only sice=small"), 2, "has no factor \"sice\""),
        (format!("run {file} --only size=tiny"), 2, "its levels are: small, large"),
        (format!("run {file} --quick --only size=large"), 2, "no quick cell"),
        (format!("run {file} --cpu 100000"), 2, "cannot run on CPU 100000"),
        (format!("run --resume last --dir {dir}/none"), 1, ""),
        (format!("report last --dir {dir}"), 1, "there is no run"),
        (format!("compare a b --dir {dir}"), 1, "a"),
        (format!("compare a b --fail-on ms --dir {dir}"), 2, "it has neither > nor <"),
        (format!("export nothing --csv - --dir {dir}"), 1, "nothing"),
    ] {
        refused(&run(&format!("lab {words}")), exit, &[part]);
    }
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "something was left");
}

#[test]
fn unsupported_experiment_is_exit_5() {
    let scratch = Scratch::new();
    let none = MINE.replace("program = \"echo\"", "program = \"no-such-program\"");
    let file = scratch.file("mine.toml", &none);
    refused(&run(&format!("lab run {file} --quick")), 5, &["cannot run no-such-program"]);
    let told = run(&format!("lab show {file}"));
    assert_eq!(told.exit, Some(0), "{told:?}");
    assert!(told.out.contains("2 cells, as size=small, cannot be run here"), "{}", told.out);
}

/// Returns the programs that the command starts, as strace reports them; without strace prints that
/// and returns `None`.
fn started(words: &str) -> Option<Vec<String>> {
    let program = env!("CARGO_BIN_EXE_linerate-lab");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=execve,execveat", program]);
    let traced = match strace.args(words.split_whitespace()).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: no strace");
            return None;
        }
        traced => traced.unwrap(),
    };
    let err = String::from_utf8_lossy(&traced.stderr).into_owned();
    if err.contains("PTRACE_") {
        eprintln!("skipped: strace can trace nothing here: {err}");
        return None;
    }
    assert!(err.contains("execve("), "{err}");
    Some(err.lines().filter(|line| line.contains("execve")).map(str::to_owned).collect())
}

#[test]
fn commands_that_only_read_start_no_program() {
    let scratch = Scratch::new();
    let probed = scratch.word("probed");
    let asks = format!("program = \"touch\"\nprobe = [{probed:?}]");
    let mine = MINE.replace("program = \"echo\"", &asks);
    // What it touches lies in the test's own folder.
    let touched = format!("args = [\"{}/touched\"]", scratch.0.display());
    let file = scratch.file("mine.toml", &mine.replace("args = [\"{}\"]", &touched));
    let dir = scratch.word("runs");
    let own = scratch.file("own.toml", MINE);
    let ran = run(&format!("lab run {own} --quick --dir {dir}"));
    assert!(ran.out.contains("\nruns     ") && ran.out.contains("/echo {}\n"), "{ran:?}");
    let profile =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/seeds/000_5d94cdb1dc74f564.txt");
    let words = [
        "lab list".to_owned(),
        format!("lab show {file}"),
        format!("lab show {file} --json"),
        format!("lab report last --dir {dir}"),
        format!("lab compare last last --allow-env --dir {dir}"),
        format!("lab export last --csv - --dir {dir}"),
        format!("profile list {profile}#1"),
        format!("profile diff {profile}#1 {profile}#2"),
    ];
    for words in words {
        let Some(all) = started(&words) else { return };
        assert_eq!(all.len(), 1, "{words}: {all:#?}");
    }
    assert!(!fs::exists(&probed).unwrap());
    let told = run(&format!("lab show {file}"));
    let line = format!("/touch {probed}\n");
    assert!(told.out.contains("  would run: /") && told.out.contains(&line), "{}", told.out);
    // A run says it first, and asks.
    let told = run(&format!("lab run {file} --quick --dir {dir}"));
    assert!(told.out.contains(&line) && fs::exists(&probed).unwrap(), "{told:?}");
}

#[test]
fn a_run_is_kept_told_exported_and_compared() {
    let scratch = Scratch::new();
    let file = scratch.file("mine.toml", MINE);
    let dir = scratch.word("runs");
    let told = run(&format!("lab run {file} --quick --seed 7 --note first --dir {dir}"));
    // How noisy the machine is decides between the two.
    assert!(matches!(told.exit, Some(0 | 4)), "{told:?}");
    for part in ["options  quick, 1 of 2 cells, 6 pairs, seed 7", "kept in", "--html"] {
        assert!(told.out.contains(part), "{part} is not in\n{}", told.out);
    }
    assert!(!told.err.contains('\r'), "no terminal: {:?}", told.err);

    let report = run(&format!("lab report last --dir {dir}"));
    assert_eq!(report.exit, Some(0), "{report:?}");
    assert!(told.out.contains(&report.out), "{}\nis not in\n{}", report.out, told.out);
    let document = run(&format!("lab report last --dir {dir} --json")).document();
    let triage = run(&format!("lab triage last --dir {dir}"));
    refused(&triage, 1, &["cannot triage", "not of the scenario `host`", "batch"]);
    assert_eq!((&document["run"]["seed"], &document["run"]["complete"]), (&7.into(), &true.into()));
    let (html, theirs) = (scratch.word("report.html"), scratch.word("theirs"));
    for ending in ["new", "part"] {
        std::os::unix::fs::symlink(&theirs, format!("{html}.{ending}")).unwrap();
    }
    assert_eq!(run(&format!("lab report last --dir {dir} --html {html}")).exit, Some(0));
    assert!(fs::metadata(&theirs).is_err(), "written through a link");
    assert!(fs::read_to_string(&html).unwrap().to_lowercase().starts_with("<!doctype html>"));

    let csv = run(&format!("lab export last --csv - --dir {dir}"));
    assert_eq!(csv.exit, Some(0), "{csv:?}");
    assert!(csv.out.lines().count() > 18, "six pairs of three windows: {}", csv.out);
    let to = scratch.word("effects.csv");
    let named = run(&format!("lab export last --effects --csv {to} --dir {dir}"));
    assert_eq!((named.exit, named.out.trim()), (Some(0), to.as_str()));
    // On a busy machine nothing may be told of the only metric: the head is there all the same.
    assert!(fs::read_to_string(&to).unwrap().contains("metric"));

    let same = run(&format!("lab compare last last --allow-env --dir {dir} --fail-on ms>+1000%"));
    if same.err.contains("disturbed in most pairs of this cell") {
        // There is nothing to compare then, and that is said.
        assert_eq!(same.exit, Some(1), "{same:?}");
        return;
    }
    if same.out.contains("not decided: ") {
        // Most pairs were disturbed, or fewer than six were not.
        assert_eq!(same.exit, Some(4), "{same:?}");
        return;
    }
    assert_eq!(same.exit, Some(0), "{same:?}");
    // It fell by less than any fall: whatever changed is above -99 %.
    let failed =
        run(&format!("lab compare last last --dir {dir} --json --allow-env --fail-on ms>-99%"));
    assert_eq!(failed.exit, Some(3), "{failed:?}");
    assert!(!failed.document()["failed"].as_array().unwrap().is_empty());
}

/// Two senders, each a process, on two hosts with the engine between them.
const HOSTS: &str = r#"version = 1
id = "hosts"
title = "Batches and none"
question = "Do processes send?"
scenario = "host"
[settings]
port = "xdp"
workload = "stream"
rate = 2e6
connections = 2
senders = "processes"
cpus = "apart"
probes = 0
[a]
name = "one"
set = { tx_batch = 1, nodelay = true }
[b]
name = "auto"
[plan]
window = "50ms"
warmup = 0
fresh = false
looks = [6]
half_width_pct = 1.0
[[metric]]
name = "senders"
unit = "ns"
about = "CPU time of the senders."
value = "senders_cpu_ns"
clock = "cost"
"#;

/// The words of the reasons where a machine, or this user, cannot have hosts.
const MISSING: [&str; 6] = [
    "cannot make hosts and links of a scenario",
    "cannot run ip",
    "the hosts' programs need a CPU of their own",
    "socket(AF_XDP): ",
    "BPF_MAP_CREATE: ",
    "BPF_PROG_LOAD: ",
];

#[test]
fn senders_are_processes_which_end_with_the_run() {
    const MARK: &str = "LINERATE_TEST_SENDERS";
    let scratch = Scratch::new();
    let file = scratch.file("hosts.toml", HOSTS);
    let words = format!("lab run {file} --dir {}/runs", scratch.0.display());
    let mut command = command::command(&words);
    command.env(MARK, &scratch.0).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mark = format!("{MARK}={}", scratch.0.display());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(senders(&mark));
        std::thread::sleep(Duration::from_millis(20));
    }
    let told = Ended::from(child.wait_with_output().unwrap());
    let is_limited = ["error[E-MEMORY]", "RLIMIT_MEMLOCK"].iter().all(|it| told.err.contains(it));
    // The lines may be broken anywhere between words.
    let words = told.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_missing = told.exit == Some(5) && MISSING.iter().any(|it| words.contains(it));
    if is_missing || is_limited {
        return println!("skipped: {}", told.err);
    }
    // How noisy the machine is decides between the two.
    assert!(matches!(told.exit, Some(0 | 4)), "{told:?}");
    assert_eq!((most, senders(&mark)), (6, 0), "two on each of three sides");
    let csv = run(&format!("lab export last --csv - --dir {}/runs", scratch.0.display())).out;
    // A reason may have commas, and is in quotes then.
    let outside = |row: &str| row.split('"').step_by(2).collect::<String>();
    let csv: Vec<String> = csv.lines().map(outside).collect();
    let mut rows = csv.iter().map(|row| row.split(',').collect::<Vec<_>>());
    let head = rows.next().unwrap();
    for name in ["senders_cpu_ns", "goodput_bytes"] {
        let at = head.iter().position(|head| head.contains(name)).unwrap();
        let is_positive = |row: &Vec<&str>| row[at].parse::<f64>().is_ok_and(|value| value > 0.0);
        assert!(rows.clone().count() > 0 && rows.clone().all(|row| is_positive(&row)), "{csv:?}");
    }
}

/// Counts the sending processes that have `mark` in their environment.
fn senders(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let ours = |process: &PathBuf| {
        let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
        read("cmdline").ends_with(b"lab\0play\0")
            && read("environ").split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
    };
    processes.filter(ours).count()
}

#[test]
fn a_reader_of_a_fabric_tells_its_run_why_it_cannot_read() {
    let words = format!("lab look memif:@linerate-test-{} 99999 look", std::process::id());
    let told = run(&words);
    let refusal = told.document()["Err"].clone();
    assert_eq!(refusal["code"], "E-CPU", "{told:?}");
    assert_eq!(refusal["what"], "cannot pin a thread to CPU 99999", "{told:?}");
    assert_eq!((told.exit, told.err.as_str()), (Some(0), ""), "its run prints the error");
}

#[test]
fn hidden_commands_are_not_in_the_help() {
    let told = run("lab --help").out;
    assert!(
        !["sample", "look", "play", "flood"].iter().any(|hidden| told.contains(hidden)),
        "{told}"
    );
}

#[test]
fn a_folder_with_a_name_that_is_not_utf_8_keeps_runs() {
    let scratch = Scratch::new();
    let file = scratch.file("mine.toml", MINE);
    let dir = scratch.0.join(OsStr::from_bytes(b"runs-\xff"));
    let mut command = command::command(&format!("lab run {file} --quick --dir"));
    let told = Ended::from(command.arg(&dir).stdin(Stdio::null()).output().unwrap());
    // How noisy the machine is decides between the two.
    assert!(matches!(told.exit, Some(0 | 4)), "{told:?}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}

#[test]
fn an_interrupted_run_is_kept_and_can_be_gone_on_with() {
    let scratch = Scratch::new();
    // So many pairs that it does not end by itself before it is interrupted.
    let file = scratch.file("mine.toml", &MINE.replace("looks = [6]", "looks = [6, 10000]"));
    let dir = scratch.0.join("runs");
    let words = format!("lab run {file} --only size=small --dir {}", dir.display());
    let mut command = command::command(&words);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pairs = || {
        let run = fs::read_dir(&dir).ok()?.next()?.ok()?;
        fs::read_to_string(run.path().join("pairs.ndjson"))
            .ok()
            .filter(|text| text.lines().count() > 5)
    };
    let patience = Instant::now();
    while pairs().is_none() {
        assert!(patience.elapsed() < Duration::from_secs(60), "no pair within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let told = Ended::from(child.wait_with_output().unwrap());
    assert_eq!(told.exit, Some(130), "{told:?}");
    assert!(told.out.contains("resume: linerate lab run --resume "), "{}", told.out);
    let document = run(&format!("lab report last --json --dir {}", dir.display())).document();
    assert_eq!(document["run"]["complete"], false);
    assert!(!document["cells"][0]["pairs"].as_array().unwrap().is_empty());
    let other = run(&format!("lab run skbinit --resume last --dir {}", dir.display()));
    refused(&other, 2, &["last is a run of \"mine\""]);
}
