//! `linerate tune`: the settings of a run are shown and changed over its socket while packets pass.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_port::Port;
use linerate_sys::netif::{Interface, NapiHold};
use linerate_tests::capture::Folder;
use linerate_tests::command::{Forward, Refusal, linerate};
use linerate_tests::process::{Finished, Process};
use linerate_tests::topology::Hosts;
use linerate_tests::wait::{SOON, until, until_true};
use linerate_tests::{available, or_skip};
use rustix::process::{Signal, Uid, geteuid};
use serde_json::{Value, json};

/// A user without rights.
const NOBODY: u32 = 65_534;

/// A run with its socket.
struct Run {
    path: PathBuf,
    process: Process,
    /// The folder of the socket, unless the test has it.
    _folder: Option<Folder>,
}

impl Run {
    /// Starts `linerate WORDS --control PATH` with a path in a folder of its own, and waits until
    /// its control socket accepts a connection.
    fn start(words: &str, start: impl FnOnce(Command) -> Process) -> Run {
        let folder = Folder::new();
        let run = Run::start_at(folder.path("x.sock").into(), words, start);
        Run { _folder: Some(folder), ..run }
    }

    fn start_at(path: PathBuf, words: &str, start: impl FnOnce(Command) -> Process) -> Run {
        let mut command = Command::new(linerate());
        command.args(words.split(' ')).args(["--json", "--for", "120s", "--control"]).arg(&path);
        let run = Run { path, process: start(command), _folder: None };
        until_true("the run's socket", SOON, || UnixStream::connect(&run.path).is_ok());
        run
    }

    /// Starts `gen → ring → sink`, whose sink verifies every packet.
    fn verified() -> Run {
        Run::start("gen ring:r0 --size imix --flows 16", Forward::here)
    }

    fn ask(&self, request: Value) -> Value {
        ask(&self.path, request)
    }

    /// Sets one setting; returns the part of the answer about this setting.
    fn set(&self, port: &str, name: &str, value: &str) -> Value {
        let answer = self.ask(json!({"do": "set", "port": port, "settings": {name: value}}));
        assert_eq!(answer["set"][0]["applied"], value, "{answer}");
        answer["set"][0].clone()
    }

    /// Returns a setting of a port's first queue.
    fn value(&self, port: &str, name: &str) -> Value {
        let shown = self.ask(json!({"do": "show", "port": port}));
        let settings = shown["ports"][port]["queues"][0]["settings"].as_array().unwrap().clone();
        settings.into_iter().find(|row| row["name"] == name).unwrap()["value"].clone()
    }

    fn statistics(&self, port: &str) -> Value {
        self.ask(json!({"do": "show", "port": port}))["ports"][port]["statistics"].clone()
    }

    /// Returns the statistics of a port from a report that its worker writes after this call.
    fn fresh(&self, port: &str) -> Value {
        let mut last = calls(&self.statistics(port));
        let mut next = || {
            until("a report of the worker", SOON, || {
                let read = self.statistics(port);
                (calls(&read) != last).then(|| {
                    last = calls(&read);
                    read
                })
            })
        };
        // The first new report may have been started before the call.
        next();
        next()
    }

    /// Ends the run by SIGINT; checks that no packet was lost and the socket was removed.
    fn end(self) -> Value {
        self.process.signal(Signal::INT);
        let done = self.process.finish(SOON * 3);
        assert_eq!(done.code(), 130, "{done:?}");
        assert!(!self.path.exists(), "the socket goes with the run");
        let report: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(report["error"], Value::Null, "{report}");
        assert_eq!(report["ledger"]["dropped"], json!({}), "{report}");
        report
    }
}

/// Sends a request as a line, as any program can; returns the answer's line, parsed.
fn ask(path: &Path, mut request: Value) -> Value {
    request["schema"] = "linerate-tune/1".into();
    let mut stream =
        UnixStream::connect(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    stream.set_read_timeout(Some(SOON)).unwrap();
    // An error is ignored: a run that refuses this client has answered already.
    let _ = stream.write_all(format!("{request}\n").as_bytes());
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// Runs `linerate tune PATH WORDS` to its end.
fn tune(path: &Path, words: &str) -> Finished {
    Forward::here(tune_command(path, words)).finish(SOON)
}

fn tune_command(path: &Path, words: &str) -> Command {
    let mut command = Command::new(linerate());
    command.arg("tune").arg(path).args(words.split_whitespace());
    command
}

/// Returns the transmit calls, keyed by the smallest number of packets of their range.
fn calls(statistics: &Value) -> BTreeMap<u64, u64> {
    let ranges = statistics["tx_calls"].as_array().unwrap();
    let number = |range: &Value, key: &str| range[key].as_u64().unwrap();
    ranges.iter().map(|range| (number(range, "packets"), number(range, "calls"))).collect()
}

/// Returns the calls that sent packets between two readings, by range.
fn grown(before: &Value, after: &Value) -> BTreeMap<u64, u64> {
    let before = calls(before);
    let grown = calls(after)
        .into_iter()
        .map(|(packets, n)| (packets, n - before.get(&packets).copied().unwrap_or_default()));
    grown.filter(|(packets, n)| *packets > 0 && *n > 0).collect()
}

#[test]
fn cap_of_one_makes_each_packet_a_call_of_its_own_under_load_and_nothing_is_lost() {
    let run = Run::verified();
    run.set("r0", "tx_batch", "64");
    let before = run.fresh("r0");
    until_true("calls of 64 packets", SOON, || {
        grown(&before, &run.statistics("r0")).keys().any(|packets| *packets >= 32)
    });
    let set = run.set("r0", "tx_batch", "1");
    assert_eq!(set["before"], json!(["64"]), "{set}");
    assert!(set["took_us"].as_f64().unwrap() > 0.0, "{set}");
    assert_eq!(run.value("r0", "tx_batch"), "1");
    let before = run.fresh("r0");
    let after = until("a thousand calls", SOON, || {
        let after = run.statistics("r0");
        (grown(&before, &after).values().sum::<u64>() > 1000).then_some(after)
    });
    assert_eq!(grown(&before, &after).into_keys().collect::<Vec<_>>(), [1], "{before} {after}");
    run.set("r0", "tx_batch", "auto");
    assert_eq!(run.value("r0", "tx_batch"), "auto");
    let report = run.end();
    assert!(report["verify"]["packets"].as_u64().unwrap() > 1000, "{report}");
}

#[test]
fn thousand_changes_over_the_socket_under_verified_load_lose_double_and_reorder_nothing() {
    let run = Run::verified();
    let caps = ["1", "64", "2", "auto", "1024"].into_iter().cycle();
    for (i, cap) in caps.take(1000).enumerate() {
        let port = ["r0", "sink"][i % 2];
        run.set(port, "tx_batch", cap);
        assert_eq!(run.value(port, "tx_batch"), cap);
    }
    let report = run.end();
    for fault in ["lost", "reordered", "duplicated", "corrupted"] {
        assert_eq!(report["verify"][fault], 0, "{report}");
    }
}

#[test]
fn a_doorbell_a_packet_on_a_real_interface_and_its_moderation_by_the_command() {
    let hosts = or_skip!(Hosts::new());
    let start = |command| hosts.middle.start(command);
    let run = Run::start("forward gen:,burst=64,rate=20kpps packet:e0,tx_batch=64", start);
    // Each call that sent packets rang one doorbell: if the counts differ, the reading mixes two
    // reports.
    let reading = |words: &str| {
        until(words, SOON, || {
            let read = run.fresh("e0");
            let rung: u64 = calls(&read).into_iter().filter(|(n, _)| *n > 0).map(|(_, n)| n).sum();
            (read["doorbells"] == rung).then_some(read)
        })
    };
    let doorbells = |read: &Value| read["doorbells"].as_u64().unwrap();
    let [before, after] = ["a reading", "another"].map(reading);
    let (rung, grew) = (doorbells(&after) - doorbells(&before), grown(&before, &after));
    assert!(grew.keys().any(|packets| *packets >= 32), "{grew:?}, {rung} doorbells");
    let told = tune(&run.path, "-K e0 tx-batch 1");
    assert!(told.code() == 0 && told.stdout.starts_with("tx-batch  64 -> 1  after "), "{told:?}");
    let shown = tune(&run.path, "-k e0").stdout;
    assert!(shown.contains("\n  tx-batch    1 ") && !shown.contains("rx-usecs"), "{shown}");
    let [before, after] = ["a reading", "another"].map(reading);
    let (rung, grew) = (doorbells(&after) - doorbells(&before), grown(&before, &after));
    assert_eq!(grew, BTreeMap::from([(1, rung)]), "as many doorbells as packets");
    assert!(rung > 0);

    let told = tune(&run.path, "-C e0 rx-usecs 50 rx-frames 16");
    assert!(told.stdout.contains("-> fixed:usecs=50,frames=16"), "{told:?}");
    let shown = tune(&run.path, "-c e0").stdout;
    for line in ["moderation  fixed:usecs=50,frames=16", "rx-usecs    50", "rx-frames   16"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert_eq!(run.value("e0", "rx_usecs"), "50");
    run.end();
}

/// S1.2.
#[test]
fn hold_of_an_interface_is_set_by_the_command_and_ends_with_the_run() {
    let hosts = or_skip!(Hosts::new());
    let start = |command| hosts.middle.start(command);
    or_skip!(available(hosts.middle.run(|| Port::open("xdp:w0").map(drop))));
    let run = Run::start("forward xdp:w0 xdp:e0", start);
    let now = || {
        let hold = hosts.middle.run(|| NapiHold::now(&Interface::open("w0").unwrap()).unwrap());
        hold.time().map(|time| time.as_micros())
    };
    let told = tune(&run.path, "-C w0 hold 250us");
    assert!(told.code() == 0 && told.stdout.starts_with("hold  off -> 250us"), "{told:?}");
    assert_eq!((now(), run.value("w0", "hold")), (Some(250), "250us".into()));
    assert!(tune(&run.path, "-c w0").stdout.contains("hold        250us"));
    let told = tune(&run.path, "-C w0 hold 1ms --revert-after 100ms");
    assert!(told.code() == 0 && now() == Some(1000), "{told:?}");
    until_true("the revert", SOON, || now() == Some(250));
    for (words, why) in [
        ("-C w0/0 hold off", "a device holds all its queues for the same time"),
        ("-C w0 hold 1us,frames=3", "NAPI counts no packets"),
        ("-C w0 hold 3", "needs a unit"),
    ] {
        let told = tune(&run.path, words);
        assert!(told.code() != 0 && told.stderr.contains(why), "{told:?}");
    }
    assert_eq!(now(), Some(250));
    run.end();
    assert_eq!(now(), None);
}

#[test]
fn hundred_silent_clients_block_neither_an_honest_one_nor_the_end_of_the_run() {
    let run = Run::start("forward null: null:", Forward::here);
    let connect = |_| {
        let mut stream = UnixStream::connect(&run.path).unwrap();
        stream.write_all(b"{\"schema\"").unwrap();
        stream
    };
    let silent: Vec<UnixStream> = (0..100).map(connect).collect();
    let told = tune(&run.path, "-K null tx-batch 7");
    assert_eq!(told.code(), 0, "{told:?}");
    assert_eq!(run.value("null", "tx_batch"), "7");
    run.end();
    drop(silent);
}

#[test]
fn client_of_another_user_is_refused() {
    let run = Run::start("forward null: null:", Forward::here);
    let mode = fs::metadata(&run.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    if !geteuid().is_root() {
        run.end();
        return eprintln!("skipped: only root can become another user");
    }
    let as_nobody = |ask: &(dyn Fn() -> String + Sync)| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // Change the user of this thread only.
                rustix::thread::set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
                ask()
            });
            thread.join().unwrap()
        })
    };
    let refused = as_nobody(&|| UnixStream::connect(&run.path).unwrap_err().to_string());
    assert!(refused.contains("Permission denied"), "{refused}");
    // Refused even if the file is open to all users.
    fs::set_permissions(&run.path, fs::Permissions::from_mode(0o666)).unwrap();
    let set = json!({"do": "set", "port": "null", "settings": {"tx_batch": 1}});
    let answer = as_nobody(&|| ask(&run.path, set.clone()).to_string());
    assert!(answer.contains("E-PERM") && answer.contains("user 65534"), "{answer}");
    assert_eq!(run.value("null", "tx_batch"), "auto");
    run.end();
}

#[test]
fn socket_of_a_killed_run_is_replaced_and_that_of_a_living_one_is_not() {
    let folder = Folder::new();
    let path = PathBuf::from(folder.path("x.sock"));
    let start = || Run::start_at(path.clone(), "forward null: null:", Forward::here);
    let run = start();
    let again = ["null:", "null:", "--control", path.to_str().unwrap()];
    let refusal = Refusal::of(&again, 1, "E-BUSY");
    assert!(refusal.why.contains("another process listens there"), "{refusal:?}");
    run.process.signal(Signal::KILL);
    let _ = run.process.finish(SOON);
    assert!(path.exists());
    let left = Refusal::expect(|json| asked(&path, json), 1, "E-FILE");
    assert!(left.why.contains("no process listens on it"), "{left:?}");
    start().end();
    let none = Refusal::expect(|json| asked(&path, json), 1, "E-FILE");
    assert!(none.why.contains("no such file") && none.fix.contains("--control"), "{none:?}");
    fs::write(&path, "a file").unwrap();
    let refusal = Refusal::of(&again, 1, "E-BUSY");
    assert!(refusal.why.contains("not a socket"), "{refusal:?}");
}

fn asked(path: &Path, json: bool) -> Process {
    Forward::here(tune_command(path, if json { "--json" } else { "" }))
}

#[test]
fn refusals_of_a_run_have_the_exit_statuses_of_the_command() {
    let run = Run::start("forward null: null:", Forward::here);
    for (words, exit, code) in [
        ("-K null tx-bach 1", 2, "E-USAGE"),
        ("-K null tx-batch 0", 2, "E-PORT-SYNTAX"),
        ("-K nul tx-batch 1", 2, "E-USAGE"),
        ("-K null/9 tx-batch 1", 2, "E-USAGE"),
        ("-G null rx-ring 4096", 5, "E-UNSUPPORTED"),
        ("-L null cpu 99999", 2, "E-CPU"),
    ] {
        let start = |json: bool| {
            let json = if json { " --json" } else { "" };
            Forward::here(tune_command(&run.path, &format!("{words}{json}")))
        };
        assert!(!Refusal::expect(start, exit, code).fix.is_empty(), "{words}");
    }
    let document = tune(&run.path, "--json").stdout;
    assert!(document.starts_with(r#"{"schema":"linerate-tune/1","ports":{"#), "{document}");
    run.end();
}
