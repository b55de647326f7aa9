use super::*;
use crate::scenario::pause::look_until;
use crate::settings::Value as Said;
use linerate_testing::Scratch;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

fn words(texts: &[&str]) -> Said {
    Said::List(texts.iter().map(|text| (*text).into()).collect())
}

fn shell(script: &str) -> Settings {
    Settings::new()
        .with("program", "sh")
        .with("args", words(&["-c", script]))
        .with("json", words(&["cycles=/case/cycles"]))
        .with("packets", "/packets")
        .with("disturbed", "/why")
}

fn window(script: &str) -> Result<Window> {
    let place = Place { cpus: vec![3, 5], seed: 7, program: None, stop: Arc::default() };
    Program.open(&shell(script), &place)?.window(Duration::from_millis(250))
}

#[test]
fn the_figures_are_those_that_the_program_prints() {
    let script = r#"echo begins; echo '{"case":{"cycles":12.5},"packets":64,"why":null}'"#;
    let window = window(script).unwrap();
    assert_eq!((window.figure("cycles"), window.packets), (Some(12.5), 64));
    assert!(window.disturbed.is_none() && window.void.is_none());
    assert!(window.wall_ns > 0 && window.cpu_ns.is_some_and(|ns| ns > 0), "{window:?}");
}

#[test]
fn cpus_seed_and_time_are_put_in_the_arguments() {
    let script =
        r#"echo "{\"case\":{\"cycles\":{cpu0}{cpu1}{seed}},\"packets\":0,\"why\":\"{seconds}\"}""#;
    let window = window(script).unwrap();
    assert_eq!(window.figure("cycles"), Some(357.0));
    assert_eq!(window.void.as_deref(), Some("0.25"));
}

#[test]
fn program_runs_on_the_cpus_in_its_arguments_or_on_any() {
    let place = Place { cpus: vec![3, 5], seed: 7, program: None, stop: Arc::default() };
    let cpus = |script| Program.open(&shell(script), &place).unwrap().cpus();
    assert_eq!(cpus("taskset -c {cpu0},{cpu1} true"), [3, 5]);
    assert_eq!(cpus("taskset -c {cpu1} true"), [5]);
    assert_eq!(cpus("true"), allowed_cpus().unwrap());
}

#[test]
fn null_figure_is_unknown_and_an_absent_one_is_an_error() {
    let unknown = window(r#"echo '{"case":{"cycles":null},"packets":1,"why":null}'"#).unwrap();
    assert_eq!(unknown.figure("cycles"), None);
    let why = |script| window(script).unwrap_err().why;
    assert_eq!(why(r#"echo '{"packets":1,"why":null}'"#), "it printed no /case/cycles");
    assert_eq!(why(r#"echo '{"case":{"cycles":"x"}}'"#), "its /case/cycles is no number");
    assert_eq!(
        why(r#"echo '{"case":{"cycles":1},"packets":-1}'"#),
        "its /packets is no whole number"
    );
    assert_eq!(why("echo nothing"), "it printed no JSON");
    assert_eq!(why("true"), "it printed no JSON");
}

#[test]
fn a_program_that_fails_is_an_error_with_its_last_words() {
    let e = window("echo once >&2; echo 'no huge pages' >&2; echo >&2; exit 7").unwrap_err();
    assert_eq!(e.why, "exit status 7: no huge pages");
    assert_eq!(window("kill -9 $$").unwrap_err().why, "killed by signal 9: it gave no reason");
}

#[test]
fn a_program_that_prints_without_end_is_an_error_and_fills_no_memory() {
    let e = window("exec yes").unwrap_err();
    // SIGPIPE kills the program, but its output is the cause.
    assert!(e.why.contains("16 MiB"), "{e}");
}

#[test]
fn a_program_that_does_not_end_is_killed_with_all_that_it_started() {
    let start = Instant::now();
    let settings = shell("sleep 600 & sleep 600").with("timeout_s", 1);
    let mut bench = Program.open(&settings, &Place::default()).unwrap();
    let e = bench.window(Duration::ZERO).unwrap_err();
    assert_eq!(e.why, "it did not end within 1 s and was killed");
    // The program's child held the pipes open: a surviving child would have delayed this by 600 s.
    assert!(start.elapsed() < Duration::from_secs(300));
}

#[test]
fn background_processes_of_a_program_do_not_keep_the_window_open() {
    let start = Instant::now();
    let script = r#"sleep 600 & echo '{"case":{"cycles":1},"packets":0,"why":null}'"#;
    window(script).unwrap();
    assert!(start.elapsed() < Duration::from_secs(300));
}

/// A process that has left its program's session and keeps the program's output open; killed when
/// this is dropped.
struct Left(Scratch);

impl Left {
    /// Returns a script that starts the process, waits until it runs, and continues with `then`.
    fn script(&self, then: &str) -> String {
        let file = self.0.word("pid");
        format!(
            "setsid sh -c 'echo $$ > {file}; exec sleep 60' & \
             until test -s {file}; do sleep 0.02; done; {then}"
        )
    }

    fn pid(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.0.word("pid")).ok()?;
        Pid::from_raw(text.trim().parse().ok()?)
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // There is no such process if the program was killed before it started one.
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Returns the error of a window of `script`, which must come long before the process in another
/// session ends.
fn refused_soon(script: &str, timeout_s: i64, stop: &Arc<AtomicBool>) -> String {
    let (start, settings) = (Instant::now(), shell(script).with("timeout_s", timeout_s));
    let place = Place { stop: Arc::clone(stop), ..Place::default() };
    let mut bench = Program.open(&settings, &place).unwrap();
    let e = bench.window(Duration::ZERO).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}: {e}", start.elapsed());
    e.why
}

#[test]
fn process_in_another_session_that_keeps_the_output_open_is_an_error_and_not_waited_for() {
    let left = Left(Scratch::new());
    let script = left.script(r#"echo '{"case":{"cycles":1},"packets":0,"why":null}'"#);
    let why = refused_soon(&script, 30, &Arc::default());
    assert!(why.starts_with("a process that it started keeps its output open: let "), "{why}");
    let left = Left(Scratch::new());
    let why = refused_soon(&left.script("echo no such device >&2; exit 1"), 30, &Arc::default());
    assert_eq!(why, "exit status 1: no such device");
}

#[test]
fn process_in_another_session_delays_neither_the_time_limit_nor_the_end_of_a_run() {
    let left = Left(Scratch::new());
    let why = refused_soon(&left.script("exec sleep 600"), 1, &Arc::default());
    assert_eq!(why, "it did not end within 1 s and was killed");
    let (left, stop) = (Left(Scratch::new()), Arc::new(AtomicBool::new(false)));
    let why = std::thread::scope(|s| {
        s.spawn(|| {
            look_until(Duration::from_secs(20), || left.pid().is_some());
            stop.store(true, Ordering::Relaxed);
        });
        refused_soon(&left.script("exec sleep 600"), 600, &stop)
    });
    assert_eq!(why, "it was killed, because the run was ended");
}

#[test]
fn a_program_that_is_not_there_is_unsupported_and_one_that_says_no_too() {
    let absent = Settings::new().with("program", "no-such-program-here");
    let e = Program.check(&absent, &Place::default()).unwrap_err();
    assert_eq!((e.code, e.why.as_str()), (Code::Unsupported, "it is not on the PATH"));
    let ours = Settings::new().with("program", "receive");
    let place = Place { program: Some("/no/where/linerate-lab".into()), ..Place::default() };
    let e = Program.check(&ours, &place).unwrap_err();
    assert_eq!(e.why, "it is neither /no/where/receive nor on the PATH");
    let fix = "cargo build --release -p linerate-tests --bin receive in linerate's repository, and copy \
               target/release/receive to /no/where/receive";
    assert_eq!((e.code, e.fix.as_str()), (Code::Unsupported, fix));
    let no = shell("").with("probe", Said::List(vec!["-c".into(), "echo no >&2; exit 5".into()]));
    assert_eq!(Program.check(&no, &Place::default()), Ok(()));
    let e = Program.probe(&no, &Place::default()).unwrap_err();
    assert_eq!((e.code, e.why.as_str()), (Code::Unsupported, "exit status 5: no"));
    assert!(e.what.starts_with("cannot run `sh -c "), "{e}");
    let said = "echo '  why: no pages' >&2; echo '  fix: more' >&2; exit 5";
    let no = shell("").with("probe", Said::List(vec!["-c".into(), said.into()]));
    let e = Program.probe(&no, &Place::default()).unwrap_err();
    assert_eq!((e.why.as_str(), e.fix.as_str()), ("exit status 5: no pages", "more"));
    let own = Settings::new().with("program", "self");
    assert_eq!(Program.check(&own, &Place::default()).unwrap_err().code, Code::Unsupported);
}

#[test]
fn a_figure_without_a_pointer_is_refused_with_its_line() {
    for odd in ["cycles", "=/a", "cycles=a", "cy cles=/a"] {
        let e = named(odd, 9).unwrap_err();
        assert_eq!(e.why, format!("line 9: {odd:?} is not \"NAME=/pointer\""));
    }
    let e = Program.check(&Settings::new(), &Place::default()).unwrap_err();
    assert!(e.why.contains("no program"), "{e}");
}

#[test]
fn a_program_is_asked_once_whether_it_can_be_run_here() {
    let asked = std::env::temp_dir().join(format!("linerate-asked-{}", std::process::id()));
    let script = format!("echo asked >> {}; test -e /no-such-file", asked.display());
    let side = shell("").with("probe", Said::List(vec!["-c".into(), Said::Text(script)]));
    let said = [(); 3].map(|()| Program.probe(&side, &Place::default()).unwrap_err());
    let lines = std::fs::read_to_string(&asked).unwrap();
    std::fs::remove_file(&asked).unwrap();
    assert_eq!(lines, "asked\n");
    assert!(said.iter().all(|e| e.code == Code::Unsupported && e.why == said[0].why), "{said:?}");
}

#[test]
fn commands_are_shown_as_they_would_be_started() {
    let side =
        Settings::new().with("program", "/no/prog").with("args", words(&["-c", "a  \u{1b}[2J"]));
    let told = Program.commands(&side.with("probe", words(&["ask", ""])), &Place::default());
    assert_eq!(told, ["/no/prog ask \"\"", "/no/prog -c \"a  \\u{1b}[2J\""]);
}

#[test]
fn script_is_run_by_bash_and_told_by_its_name() {
    let place = Place { program: Some("/bin/lab".into()), ..Place::default() };
    let side = Settings::new()
        .with("program", "forward.sh")
        .with("probe", words(&["linerate", "xdp", "{self}", "probe"]))
        .with("args", words(&["linerate", "xdp"]))
        .with("more", words(&["{self}", "{seconds}"]));
    let told = Program.commands(&side, &place);
    let shown = ["linerate xdp {self} probe", "linerate xdp {self} {seconds}"];
    assert_eq!(told, shown.map(|words| format!("forward.sh {words}")));
    assert!(Program.keeps_time(&side));
    let config = Config::read(&side).unwrap();
    let program = Found { path: "bash".into(), built: None };
    let line = config.line(&config.args, &program, &place, Duration::from_secs(2));
    assert_eq!((line.len(), line[0].to_str()), (7, Some("-c")));
    assert_eq!(line[2..], ["forward.sh", "linerate", "xdp", "/bin/lab", "2"]);
    assert_eq!(line[1], SCRIPTS[0].1, "nothing in the script is replaced");
}

#[test]
fn a_script_measures_the_program_of_a_commit_and_shows_how_it_is_built() {
    let side = Settings::new()
        .with("program", "forward.sh")
        .with("commit", "abc1234")
        .with("args", words(&["{built}", "xdp"]));
    let told = Program.commands(&side, &Place::default());
    assert!(told[0].starts_with("git worktree add ") && told[1].starts_with("cargo build "));
    assert_eq!(told[2..], ["forward.sh target/lab-versions/abc1234/linerate xdp"]);
    let config = Config::read(&side).unwrap();
    let built = Some(("/a/linerate".into(), "abc1234def".into()));
    let program = Found { path: "bash".into(), built };
    let line = config.line(&config.args, &program, &Place::default(), Duration::ZERO);
    assert_eq!(line[2..], ["forward.sh", "/a/linerate", "xdp"]);
    for odd in [
        side.clone().with("args", words(&["linerate", "xdp"])),
        Settings::new().with("program", "forward.sh").with("args", words(&["{built}"])),
        Settings::new().with("commit", "abc1234").with("args", words(&["{built}"])),
    ] {
        let e = Program.check(&odd, &Place::default()).unwrap_err();
        assert!(e.why.contains("{built} is the program of a commit"), "{e}");
    }
    let other = side.with("program", "/no/where/prog");
    let e = Program.check(&other, &Place::default()).unwrap_err();
    assert!(e.why.contains("program selects another program"), "{e}");
}

#[test]
fn a_program_keeps_a_windows_time_if_it_is_told_it() {
    assert!(Program.keeps_time(&shell("sleep {seconds}")));
    assert!(!Program.keeps_time(&shell("sleep 1")));
}
