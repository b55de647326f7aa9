//! Tests of `linerate profile`: recording, reading, comparing, watching and refusals.

#[path = "../../../crates/cli/tests/command/mod.rs"]
mod command;
#[path = "profile/killed.rs"]
mod killed;
#[path = "../../../tests/src/sampling.rs"]
mod sampling;
#[path = "profile/watch.rs"]
mod watch;

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use command::{Ended, command, run};
use linerate_testing::Scratch;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

fn post(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/seeds").join(name);
    path.to_str().unwrap().to_owned()
}

const POST_000: &str = "000_5d94cdb1dc74f564.txt";
const POST_003: &str = "003_5ab5121f9d39ea70.txt";

/// Packets that take some tenths of a second of CPU time.
const WORK: &str = "forward null: null: --count 20M";

/// Runs `linerate profile record words -- command` to its end; `None` where nothing can be sampled.
fn record(words: &str, recorded: &[&str]) -> Option<Ended> {
    let mut command = command(&format!("profile record {words} --"));
    let ended = Ended::from(command.args(recorded).stdin(Stdio::null()).output().unwrap());
    possible(ended)
}

/// Records this command itself.
fn record_work(words: &str) -> Option<Ended> {
    let work: Vec<&str> = WORK.split(' ').collect();
    let lab = Path::new(env!("CARGO_BIN_EXE_linerate-lab"));
    let linerate = lab.with_file_name("linerate");
    if !linerate.is_file() {
        eprintln!("skipped: {} is not built (cargo build -p linerate-cli)", linerate.display());
        return None;
    }
    record(words, &[&[linerate.to_str()?], &work[..]].concat())
}

/// Returns the ended command; prints the reason and returns `None` if the kernel does not allow
/// sampling, or this user to lock memory for the rings.
fn possible(ended: Ended) -> Option<Ended> {
    let said = format!("{}{}", ended.out, ended.err);
    let is_refused = ended.exit == Some(5) && sampling::is_refused(&said);
    if is_refused || sampling::is_limit_of_rings(&said) {
        eprintln!("skipped: {said}");
        return None;
    }
    Some(ended)
}

/// Asserts that a command is refused with the same error in text and in JSON.
fn refused(words: &str, exit: i32, fix: &str) {
    let (told, document) = (run(words), run(&format!("{words} --json")));
    assert_eq!((told.exit, document.exit), (Some(exit), Some(exit)), "{told:?} {document:?}");
    assert!(told.out.is_empty() && told.err.contains("error"), "{words}: {told:?}");
    assert!(told.err.contains(fix), "{words}: {fix}: {told:?}");
    let document = document.document();
    assert_eq!(document["schema"], "linerate-error/1", "{words}: {document}");
    assert!(document["error"]["why"].as_str().is_some_and(|why| !why.is_empty()), "{document}");
}

#[test]
fn a_command_is_recorded_saved_listed_and_compared() {
    let scratch = Scratch::new();
    let file = scratch.word("p.json");
    let Some(ended) = record_work(&format!("-o {file} --top 2")) else { return };
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let head = "\ncpu-clock, one sample for each 1,003,009 ns: clock\n";
    let (its, ours) = ended.out.split_once(head).unwrap();
    assert!(its.contains("balance  rx "), "the command's output is whole, before ours: {ended:?}");
    for part in ["\nrun: ", "\nown cost: ", " more functions)", " total\n"] {
        assert!(ours.contains(part), "{part}: {ours}");
    }
    // Samples without the kernel's functions are not of all CPU time, and are not compared with it.
    let is_left_out = ours.contains("the kernel's functions are left out");
    assert_eq!(ours.contains("CPU time over wall"), !is_left_out, "{ours}");
    // The head of top goes with it, on the screen and in the file.
    for part in [" processes: ", "\nCPU states: ", "\nMem: ", "\nSwap: "] {
        assert!(ours.contains(part), "{part}: {ours}");
    }
    assert!(ended.err.ends_with(&format!("print it again: linerate profile list {file}\n")));

    let document = run(&format!("profile list {file} --json")).document();
    assert!(document["head"]["processes"]["total"].as_u64().unwrap() > 0, "{document}");
    let rows = document["rows"].as_array().unwrap();
    let counted: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert!(counted >= 20, "{document}");
    assert!(rows.iter().any(|row| row["symbol"].as_str().unwrap().contains("linerate_")));
    let listed = run(&format!("profile list {file}"));
    assert_eq!((listed.exit, listed.err.as_str()), (Some(0), ""), "{listed:?}");
    let total = listed.out.lines().last().unwrap();
    assert_eq!(total.split_whitespace().next().unwrap().replace(',', ""), counted.to_string());

    let diff = run(&format!("profile diff {file} {file} --json")).document();
    assert_eq!(diff["schema"], "linerate-profile-diff/1");
    let total = &diff["total"];
    assert_eq!((&total["with"], &total["without"]), (&counted.into(), &counted.into()));
    assert!(diff["rows"].as_array().unwrap().iter().all(|row| row["with"] == row["without"]));
    let runs = run(&format!("profile diff {file} {file} --with {file} {file}"));
    assert!(runs.out.contains("without: 2 runs, ") && !runs.out.contains("one run a side"));
    assert!(runs.out.contains("the spread of 2 and 2 runs explains"), "{}", runs.out);
}

#[test]
fn the_whole_machine_is_recorded_with_the_disk_s_load_apart_and_a_total_by_the_kernel_s_text() {
    let scratch = Scratch::new();
    let (file, data) = (scratch.word("machine.json"), scratch.word("data"));
    let linerate = Path::new(env!("CARGO_BIN_EXE_linerate-lab")).with_file_name("linerate");
    let path = match linerate.is_file() {
        true => format!("{} forward null: null: --for 1s --quiet & ", linerate.display()),
        false => String::new(),
    };
    let dd = format!(
        "{path}dd if=/dev/zero of={data} bs=4k count=20000 conv=fsync 2>/dev/null; sleep 1; wait"
    );
    let words = format!("--all-cpus --rate 250 -o {file}");
    let Some(ended) = record(&words, &["sh", "-c", &dd]) else { return };
    for part in ["run: the whole machine, beside sh -c ", "\nbus: memory "] {
        assert!(ended.exit == Some(0) && ended.out.contains(part), "{part}: {ended:?}");
    }
    let document: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(document["conditions"]["bus"].is_object(), "{document}");
    let [samples, sampled_ns] = ["samples", "target_cpu_ns"]
        .map(|name| document["own_cost"][name].as_u64().unwrap_or_else(|| panic!("{document}")));
    assert!(samples * 4_000_000 >= sampled_ns / 10, "{samples} in {sampled_ns} ns");
    if ["left out", "hides"].iter().any(|why| document["remarks"].to_string().contains(why)) {
        return eprintln!("skipped: {}", document["remarks"]);
    }
    let table = run(&format!("profile list {file} --top 100000"));
    assert!(table.out.split_whitespace().any(|word| word == "disk"), "{table:?}");
    let rows = run(&format!("profile list {file} --csv")).out;
    let copies = |row: &&str| row.contains(",user,copy,") || row.contains(",user,memory,");
    let foreign = rows.lines().filter(copies).find(|row| !row.contains("::"));
    assert_eq!(foreign, None, "a library's function can be any program's");
    // The packet path stands beside the disk's load.
    let is_of_path =
        |row: &str| row.contains("linerate_port::") || row.contains("linerate_datapath::");
    assert!(path.is_empty() || rows.lines().any(is_of_path), "{rows}");
    let listing = run(&format!("profile list {file} --form readprofile")).out;
    let load = listing.lines().next().unwrap().strip_prefix(&format!("{samples} total "));
    assert!(load.is_some_and(|load| load.parse::<f64>().is_ok_and(|load| load > 0.0)), "{listing}");
    assert!(listing.lines().filter(|line| !line.ends_with(" 0.0")).count() > 10, "{listing}");
    let count = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(listing.lines().rev().map(count).is_sorted(), "{listing}");
    // Other programs may leave the machine no idle time during the sleep.
    if document["head"]["cpu"]["idle_pct"].as_f64().is_some_and(|pct| pct > 5.0) {
        let rows = run(&format!("profile list {file} --csv")).out;
        assert!(rows.lines().any(|row| row.contains(",idle,")), "{rows}");
    }
}

#[test]
fn without_perf_it_is_refused_with_what_to_install() {
    let mut command = command("profile record --json -- /bin/true");
    let ended = Ended::from(command.env("PATH", "/nonexistent").output().unwrap());
    if ended.exit == Some(0) {
        return eprintln!("skipped: there is a perf for each kernel, which PATH does not hide");
    }
    assert_eq!(ended.exit, Some(5), "{ended:?}");
    let Some(fix) = ended.document()["error"]["fix"].as_str().map(str::to_owned) else {
        panic!("{ended:?}")
    };
    assert!(fix.contains("apt-get install linux-perf") || fix.contains("perf_event"), "{ended:?}");
}

#[test]
fn an_event_that_only_perf_knows_is_sampled_under_its_name() {
    let Some(ended) = record_work("--json --event irq_vectors:local_timer_entry") else { return };
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let document = ended.document();
    assert_eq!(document["event"]["name"], "irq_vectors:local_timer_entry");
    assert_eq!((&document["origin"], &document["event"]["period"]), (&"kernel".into(), &1.into()));
    // What perf would replace by time is not passed on.
    let ended = run("profile record --event cycles:u -- true");
    assert!(ended.exit == Some(5) && ended.err.contains("fix: one of cycles, "), "{ended:?}");
}

#[test]
fn one_document_on_stdout_and_what_the_command_prints_beside_it() {
    let Some(ended) = record_work("--json") else { return };
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let document = ended.document();
    assert_eq!(document["schema"], "linerate-profile/1");
    assert_eq!(document["event"]["period"], 1_003_009, "{document}");
    let is_clock = document["origin"] == "clock";
    assert!(is_clock && document["conditions"]["bus"].is_null(), "{document}");
    assert!(ended.err.contains("balance  rx "), "{ended:?}");
    assert!(document["conditions"]["workload"].as_str().unwrap().ends_with(WORK), "{document}");
}

#[test]
fn old_file_is_kept_and_a_failed_recording_leaves_it_alone() {
    let scratch = Scratch::new();
    let file = scratch.word("p.json");
    fs::write(&file, "mine").unwrap();
    let ended = run(&format!("profile record -o {file} -- /nonexistent"));
    assert_eq!(ended.exit, Some(1), "{ended:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let Some(ended) = record(&format!("-o {file}"), &["true"]) else { return };
    assert!(ended.err.contains(&format!("the former file is {file}.old")), "{ended:?}");
    assert_eq!(fs::read_to_string(scratch.word("p.json.old")).unwrap(), "mine");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_profile_that_does_not_fit_on_the_disk_is_printed_and_the_file_is_named() {
    let Some(ended) = record("-o /dev/full", &["true"]) else { return };
    assert_eq!(ended.exit, Some(1), "{ended:?}");
    assert!(ended.out.contains("\ncpu-clock, one sample for each "), "{ended:?}");
    for part in
        ["error[E-FILE]: cannot save to /dev/full\n", "No space left", "fix: df -h /dev/full"]
    {
        assert!(ended.err.contains(part), "{part}: {ended:?}");
    }
}

#[test]
fn wrong_requests_are_refused_with_what_to_do_instead() {
    let null = "profile record --event";
    let two = "fix: linerate profile record --pid PID, or linerate profile record -- ";
    for (words, exit, fix) in [
        ("profile record", 2, two),
        ("profile record --period 10 --pid 1", 2, "fix: --rate 997, or --event "),
        ("profile record --rate 0 --pid 1", 2, "1..=100000"),
        ("profile record --event page-faults --rate 9 --pid 1", 2, "fix: --period 10007, or "),
        ("profile record --pid 0", 2, "is not in 1..="),
        ("profile record --all-cpus --pid 1", 2, "cannot be used with"),
        ("profile record --pid 1 --for 10", 2, "needs a unit"),
        (&format!("{null} no-such-event --pid 1"), 5, "fix: one of cycles, "),
        ("profile list /nonexistent", 1, "fix: linerate profile record -- COMMAND makes"),
        ("profile list /nonexistent#0", 2, "number 1"),
        (&format!("profile list {}#3", post(POST_003)), 1, "there are 2, numbers 1 to 2\n  fix: "),
        ("profile diff - -", 2, "fix: save one of them in a file"),
        ("profile diff - --with a -", 2, "fix: save one of them in a file"),
        ("profile diff a b c", 2, "fix: linerate profile diff before*.json --with after*.json"),
        (&format!("profile diff {0} {0} --per kpacket", post(POST_000)), 5, "  fix: "),
        ("profile watch --every 0", 2, "needs a unit"),
        ("profile watch --every 0s", 2, "shorter than 1ms"),
        ("profile watch --for -1s", 2, "error"),
        ("profile watch --replay /nonexistent", 1, "fix: linerate profile watch -o FILE writes"),
    ] {
        refused(words, exit, fix);
    }
    let ended = run("profile record --pid 1 -- true");
    let forms = "--pid <PID>, or linerate profile record [OPTIONS] -- <COMMAND>...";
    assert!(ended.exit == Some(2) && ended.err.contains(forms), "{ended:?}");
    let ended = run("profile record --pid 999999999");
    assert!(ended.exit == Some(1) && ended.err.contains("fix: pgrep"), "{ended:?}");
    let ended = run("profile record --json -o a.json -- true");
    let code = ended.document()["error"]["code"].clone();
    assert_eq!((ended.exit, code), (Some(2), "E-USAGE".into()));
}

#[test]
fn a_command_s_status_is_the_recording_s_and_its_failure_is_told() {
    let scratch = Scratch::new();
    let file = scratch.word("p.json");
    let words = format!("-o {file}");
    for (script, exit, remark) in [
        ("exit 0", 0, None),
        ("exit 3", 3, Some("note: the command failed (exit status: 3)")),
        ("kill -9 $$", 137, Some("note: the command failed (signal: 9 (SIGKILL))")),
    ] {
        let Some(ended) = record(&words, &["sh", "-c", script]) else { return };
        assert_eq!(ended.exit, Some(exit), "{ended:?}");
        let again = run(&format!("profile list {file}"));
        match remark {
            Some(remark) => assert!(ended.out.contains(remark) && again.out.contains(remark)),
            None => assert!(!ended.out.contains("the command"), "{ended:?}"),
        }
    }
}

/// Starts a recording, in a process group of its own, of a command that writes the file `pid`;
/// returns the recording and the command's process number after that.
fn start(scratch: &Scratch, words: &str, script: &str) -> Option<(Child, i32)> {
    match try_start(scratch, words, script) {
        Ok(started) => Some(started),
        Err(ended) => {
            assert!(possible(ended).is_none(), "it ended before its command");
            None
        }
    }
}

/// Starts a recording of a short time. On a busy machine that time may be over before the command
/// starts; then a longer recording is started.
fn start_for_short(scratch: &Scratch, script: &str) -> Option<(Child, i32)> {
    for time in ["300ms", "2s"] {
        match try_start(scratch, &format!("--for {time}"), script) {
            Ok(started) => return Some(started),
            Err(ended) => _ = possible(ended)?,
        }
    }
    start(scratch, "--for 7s", script)
}

/// Starts as [`start`] does; the error is the end of a recording whose command was not seen to
/// start.
fn try_start(scratch: &Scratch, words: &str, script: &str) -> Result<(Child, i32), Ended> {
    let (file, pid) = (scratch.word("p.json"), scratch.word("pid"));
    let mut command = command(&format!("profile record -o {file} {words} -- sh -c"));
    command.arg(format!("echo $$ > {pid}.new; mv {pid}.new {pid}; {script}")).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(20) {
        if let Ok(pid) = fs::read_to_string(&pid) {
            return Ok((child, pid.trim().parse().unwrap()));
        }
        if child.try_wait().unwrap().is_some() {
            return Err(Ended::from(child.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("the command did not start: {:?}", child.wait_with_output());
}

fn ended(child: Child) -> Ended {
    Ended::from(child.wait_with_output().unwrap())
}

fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn a_command_does_not_outlive_its_recording() {
    let scratch = Scratch::new();
    let Some((child, pid)) = start_for_short(&scratch, "exec sleep 60") else { return };
    let told = ended(child);
    assert_eq!(told.exit, Some(0), "what was asked was done: {told:?}");
    assert!(!runs(pid), "{told:?}");
    assert!(Path::new(&scratch.word("p.json")).exists());
}

#[test]
fn a_command_that_ignores_sigterm_is_named_and_waited_for() {
    let scratch = Scratch::new();
    let script = "trap '' TERM; exec sleep 8";
    let Some((child, pid)) = start_for_short(&scratch, script) else { return };
    let told = ended(child);
    assert!(told.err.contains(&format!("perf waits for it: kill -9 {pid}\n")), "{told:?}");
    assert_eq!(told.exit, Some(0), "{told:?}");
    assert!(!runs(pid) && Path::new(&scratch.word("p.json")).exists());
}

#[test]
fn a_recorder_that_is_killed_leaves_the_earlier_profile_and_the_next_one_is_saved() {
    let scratch = Scratch::new();
    let file = scratch.word("p.json");
    fs::write(&file, "the earlier one").unwrap();
    let Some((mut child, pid)) = start(&scratch, "", "exec sleep 60") else { return };
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "the earlier one");
    // No process is left to end the command: the kernel has closed the events, and nothing else.
    assert!(runs(pid));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let Some(again) = record(&format!("-o {file}"), &["true"]) else { return };
    assert_eq!(again.exit, Some(0), "{again:?}");
    assert_eq!(fs::read_to_string(format!("{file}.old")).unwrap(), "the earlier one");
    assert!(!Path::new(&format!("{file}.new")).exists(), "the draft of the one that was killed");
}

#[test]
fn a_ring_that_exceeds_what_the_user_may_lock_is_refused_with_both_limits() {
    let scratch = Scratch::new();
    // The rings of this recording take all that kernel.perf_event_mlock_kb allows.
    let Some((first, pid)) = start(&scratch, "", "exec sleep 60") else { return };
    let file = scratch.word("second.json");
    let mut limited = Command::new("setpriv");
    limited.args(["--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=0"]);
    limited.arg(env!("CARGO_BIN_EXE_linerate-lab")).args(["profile", "record", "-o"]);
    limited.args([file.as_str(), "--", "true"]);
    let second = limited.stdin(Stdio::null()).output().map(Ended::from);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    ended(first);
    let told = match second {
        Ok(told) if told.err.starts_with("setpriv: ") => {
            return eprintln!("skipped: {}", told.err);
        }
        Ok(told) if told.exit == Some(0) => {
            return eprintln!("skipped: kernel.perf_event_mlock_kb or _paranoid allows more rings");
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return eprintln!("skipped: setpriv: {e}");
        }
        told => told.unwrap(),
    };
    assert_eq!(told.exit, Some(1), "{told:?}");
    assert!(
        sampling::is_limit_of_rings(&told.err) && told.err.contains("this process, 0 KiB"),
        "{told:?}"
    );
    assert!(!Path::new(&file).exists(), "{told:?}");
}

#[test]
fn a_signal_ends_recording_and_command_and_the_profile_so_far_is_saved() {
    // As a terminal does it, to both; and to the recorder alone, who then ends the command.
    for (signal, both, exit) in
        [(Signal::INT, true, 130), (Signal::TERM, true, 143), (Signal::TERM, false, 143)]
    {
        let scratch = Scratch::new();
        let script = "while :; do :; done";
        let Some((child, pid)) = start(&scratch, "--top 1", script) else { return };
        let recorder = Pid::from_child(&child);
        match both {
            true => kill_process_group(recorder, signal).unwrap(),
            false => kill_process(recorder, signal).unwrap(),
        }
        let told = ended(child);
        assert_eq!(told.exit, Some(exit), "{told:?}");
        assert!(!runs(pid), "{told:?}");
        assert!(!told.out.contains("the command failed"), "{told:?}");
        assert!(told.out.contains("cpu-clock") && told.err.contains("saved to "), "{told:?}");
        let saved = fs::read_to_string(scratch.word("p.json")).unwrap();
        assert!(saved.starts_with("{\"schema\":\"linerate-profile/1\""), "{saved}");
    }
}

#[test]
fn the_difference_of_003_is_the_post_s_byte_for_byte() {
    let post = post(POST_003);
    let ended = run(&format!("profile diff {post}#1 {post}#2 --as-posted"));
    assert_eq!((ended.exit, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    let text = fs::read_to_string(&post).unwrap();
    let is_row = |line: &&str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.len() == 4 && words[1..].iter().all(|word| word.parse::<i64>().is_ok())
    };
    let posted: Vec<&str> = text.lines().filter(is_row).collect();
    assert_eq!(posted.len(), 68);
    assert_eq!(ended.out, posted.join("\n") + "\n");
}

#[test]
fn the_posts_listings_are_printed_as_they_were() {
    let bare = |name: &str, is_row: fn(&str) -> bool| {
        let text = fs::read_to_string(post(name)).unwrap();
        let rows =
            text.lines().map(|line| line.trim_start_matches('>')).filter(|line| is_row(line));
        rows.map(|row| format!("{row}\n")).collect::<String>()
    };
    let ticks = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.len() == 3 && [0, 2].iter().all(|&at| words[at].parse::<f64>().is_ok())
    };
    for (name, form, is_row) in [
        (POST_000, "readprofile", ticks as fn(&str) -> bool),
        (POST_003, "kernprof", |line| line.contains("]: ")),
    ] {
        let list = |n: usize| run(&format!("profile list {}#{n} --form {form}", post(name))).out;
        let printed = list(1) + &list(2);
        assert!(printed.lines().count() >= 40);
        assert_eq!(printed, bare(name, is_row), "{name}");
    }
    // Which of two is meant is asked back, but not of who has said it.
    let first = run(&format!("profile list {} --form kernprof", post(POST_003)));
    assert!(first.err.contains("the first of 2 profiles"), "{first:?}");
}

#[test]
fn pictures_and_tables_for_programs_are_written() {
    let scratch = Scratch::new();
    let (flame, post) = (scratch.word("f.svg"), post(POST_003));
    let ended = run(&format!("profile list {post}#1 --flame {flame} --csv"));
    assert_eq!(ended.err, format!("drawn into {flame}\n"), "{ended:?}");
    let svg = fs::read_to_string(&flame).unwrap();
    assert!(svg.contains("</svg>") && svg.contains("L2_LINES_OUT: 291873 samples"));
    let mut lines = ended.out.lines();
    let head = lines.next().unwrap();
    assert!(
        head.starts_with("symbol,object,space,stage,address (hex),count (samples of L2_LINES_OUT)")
    );
    assert_eq!(lines.count(), 68);

    let words = format!("{post}#1 {post}#2 --flame {flame}");
    let ended = run(&format!("profile diff {words} --csv"));
    assert_eq!((ended.exit, ended.out.lines().count()), (Some(0), 69), "{ended:?}");
    assert!(fs::read_to_string(&flame).unwrap().contains("</svg>"));
    let stages = run(&format!("profile diff {post}#1 {post}#2 --csv=stages"));
    assert!(stages.out.starts_with("stage,part,functions,"), "{stages:?}");
    let Some(ended) = record_work(&format!("-g -o {}", scratch.word("g.json"))) else { return };
    assert!(ended.err.contains(" --flame flame.svg\n"), "{ended:?}");
    let folded = run(&format!("profile list {} --form folded", scratch.word("g.json")));
    assert!(folded.out.lines().any(|line| line.contains(';')), "{folded:?}");
    let both = format!("profile diff {0} {0} --chains", scratch.word("g.json"));
    assert!(run(&both).out.contains("(all without idle)\n"), "{both}");
    let twice = |line: &str| format!("{line} {}\n", line.rsplit_once(' ').unwrap().1);
    let twice: String = folded.out.lines().map(twice).collect();
    assert_eq!(run(&format!("{both}=folded")).out, twice);
}

#[test]
fn the_text_of_perf_script_is_read_from_a_pipe() {
    let script =
        "  w 24260 [000] 24006.973324:  1000000 cpu-clock:  7fb3e165df38 spin+0x158 (/bin/w)\n";
    let mut child = command("profile list - --form kernprof")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.repeat(3).as_bytes()).unwrap();
    let ended = ended(child);
    assert_eq!((ended.exit, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    assert!(ended.out.starts_with("spin") && ended.out.ends_with(": 3\n"), "{ended:?}");
}

#[test]
fn an_event_counts_here_or_has_its_reason_remedy_and_stand_in() {
    let ended = run("profile events --json");
    assert_eq!(ended.exit, Some(0), "{ended:?}");
    let document = ended.document();
    let text = run("profile events").out;
    let events = document["events"].as_array().unwrap();
    let hardware: Vec<&Value> = events.iter().filter(|e| !is_software(e)).collect();
    assert_eq!(hardware.len(), 7, "{document}");
    let counts = document["capacity"]["at_once"].as_u64().is_some_and(|n| n > 0);
    for event in events {
        let name = event["name"].as_str().unwrap();
        assert!(text.contains(&format!("\n{name} ")), "{name}: {text}");
        let refused = &event["refused"];
        if refused.is_null() {
            continue;
        }
        assert!(!(counts && ["cycles", "instructions"].contains(&name)), "{name}: {document}");
        for key in ["code", "why", "fix", "fallback"] {
            assert!(
                refused[key].as_str().is_some_and(|s| !s.is_empty()),
                "{name}.{key}: {refused}"
            );
        }
    }
    if !counts {
        assert!(hardware.iter().all(|event| !event["refused"].is_null()), "{document}");
        let ended = run("profile record --event cycles -- true");
        // Without permission, as under a container's filter, other events are refused as well.
        let fix = match ended.err.contains("error[E-PERM]") {
            true => "CAP_PERFMON",
            false => "leave --event out",
        };
        assert!(ended.exit == Some(5) && ended.err.contains(fix), "{ended:?}");
    }
}

fn is_software(event: &Value) -> bool {
    let names = ["cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations"];
    names.contains(&event["name"].as_str().unwrap())
}
