//! Tests a run and its clients in one process, without privileges.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Running, Worker};
use serde_json::Value;

use super::target::Target;
use super::*;
use linerate_testing::may_pin;

mod hold;
mod reverts;
mod workers;

const LONG: Duration = Duration::from_secs(20);

/// A run of `gen → sink` with its socket.
struct Run {
    path: PathBuf,
    running: Running,
    server: Server,
}

impl Run {
    fn start(name: &str) -> Run {
        Run::with_sink(name, "west")
    }

    /// Starts a run whose sink has the name `sink`.
    fn with_sink(name: &str, sink: &str) -> Run {
        let path = std::env::temp_dir().join(format!("tune-{}-{name}.sock", std::process::id()));
        let listening = Listening::at(&path).unwrap();
        let engine = Engine::builder().port("east", "gen:").port(sink, "sink:");
        let engine = engine.wire("east", sink).build().unwrap();
        let stats = engine.stats();
        let running = engine.start().unwrap();
        let server = listening.serve(running.control(), stats).unwrap();
        Run { path, running, server }
    }

    fn show(&self, port: &str) -> Value {
        ask(&self.path, &Request::Show { port: Some(port.into()) }).unwrap().document
    }

    /// Returns a setting of a port's first queue.
    fn value(&self, port: &str, name: &str) -> Value {
        let shown = self.show(port);
        let settings = shown["ports"][port]["queues"][0]["settings"].as_array().unwrap().clone();
        let row = settings.into_iter().find(|row| row["name"] == name).unwrap();
        if row["value"].is_null() { row["why"].clone() } else { row["value"].clone() }
    }

    fn set(
        &self,
        settings: &[(&str, &str)],
        revert: Option<Duration>,
    ) -> Result<Value, ErrorReport> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let settings = settings.iter().map(owned).collect();
        let (port, queue, revert_after) = ("west".into(), None, revert);
        let change = Request::Set(Change { port, queue, settings, revert_after });
        ask(&self.path, &change).map(|answer| answer.document)
    }

    /// Sets a setting, and checks that the answer has the value that was shown before and
    /// `applied`, which is shown afterwards.
    fn check_set(&self, name: &str, value: &str, applied: &str) {
        let before = self.value("west", name);
        let answer = self.set(&[(name, value)], None).unwrap();
        let set = &answer["set"][0];
        assert_eq!((&set["name"], &set["before"][0]), (&name.into(), &before), "{answer}");
        assert_eq!((&set["asked"], &set["applied"]), (&value.into(), &applied.into()), "{answer}");
        assert_eq!(self.value("west", name), applied, "{}", self.show("west"));
    }

    /// Ends the run, and checks that no packet was lost.
    fn end(self) {
        drop(self.server);
        assert!(!self.path.exists(), "the socket goes with the server");
        let stopped = self.running.stop(LONG);
        stopped.check().unwrap();
        assert_eq!(stopped.ledger.sent, stopped.ledger.created, "{stopped}");
        let found = stopped.ports[1].verified.unwrap();
        assert_eq!((found.lost, found.reordered, found.duplicated, found.corrupted), (0, 0, 0, 0));
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Sends bytes to the socket, and returns the answer's line.
fn send(path: &Path, bytes: &[u8]) -> String {
    let mut stream = connect(path);
    // An error is ignored: a server that has read enough closes the connection.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line);
    line
}

#[test]
fn every_setting_that_can_be_set_is_shown_as_it_was_set() {
    let run = Run::start("all");
    for (name, value) in [("tx_batch", "1"), ("tx_batch", "auto"), ("moderation", "busy")] {
        run.check_set(name, value, value);
    }
    let answer = run.set(&[("rx_usecs", "50")], None).unwrap();
    assert_eq!(answer["set"][0]["applied"], "fixed:usecs=50,frames=32");
    let note = answer["set"][0]["note"].as_str().unwrap();
    assert!(note.contains("no device queues its packets"), "{note}");
    assert!(
        run.value("west", "rx_usecs").as_str().unwrap().contains("no device queues its packets")
    );
    assert_eq!(run.value("east", "moderation"), "adaptive:latency=250us", "another port's");
    let answer = run.set(&[("rx_frames", "7"), ("tx_batch", "9")], None).unwrap();
    assert_eq!(answer["set"][0]["applied"], "fixed:usecs=50,frames=7", "the other number stays");
    assert_eq!(answer["set"][1]["applied"], "9");
    run.end();
}

#[test]
fn cpu_that_is_set_is_shown_as_it_was_set() {
    if !may_pin() {
        return;
    }
    let run = Run::start("cpu");
    let all = linerate_port::thread::allowed_cpus().unwrap();
    let first = all[0].to_string();
    run.check_set("cpu", &first, &first);
    // If the process may use one CPU only, any CPU is that one.
    run.check_set("cpu", "any", if all.len() == 1 { &first } else { "any" });
    run.end();
}

#[test]
fn drops_of_a_run_are_shown_by_reason_while_it_runs() {
    let path = std::env::temp_dir().join(format!("tune-{}-drops.sock", std::process::id()));
    let listening = Listening::at(&path).unwrap();
    let engine = Engine::builder()
        .port("east", "gen:,rate=100kpps")
        .port("west", "sink:,shape=1Mbit,qdisc=fifo,limit=256");
    let engine = engine.wire("east", "west").build().unwrap();
    let stats = engine.stats();
    let running = engine.start().unwrap();
    let server = listening.serve(running.control(), stats).unwrap();
    let until = Instant::now() + LONG;
    let dropped = || ask(&path, &Request::Show { port: None }).unwrap().document["dropped"].clone();
    while dropped()["queue_limit"].as_u64().unwrap_or_default() == 0 {
        assert!(Instant::now() < until, "{}", dropped());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(server);
    let _ = running.stop(Duration::ZERO);
}

#[test]
fn rate_of_a_port_is_changed_and_reverted_while_packets_pass() {
    let path = std::env::temp_dir().join(format!("tune-{}-shape.sock", std::process::id()));
    let listening = Listening::at(&path).unwrap();
    let engine =
        Engine::builder().port("east", "gen:,rate=10kpps").port("west", "sink:,shape=1Gbit");
    let engine = engine.wire("east", "west").build().unwrap();
    let stats = engine.stats();
    let running = engine.start().unwrap();
    let server = listening.serve(running.control(), stats).unwrap();
    let run = Run { path, running, server };
    run.check_set("shape", "2.5Gbit", "2.5Gbit");
    run.set(&[("shape", "18Mbit")], Some(Duration::from_millis(1))).unwrap();
    let start = Instant::now();
    while run.value("west", "shape") != "2.5Gbit" {
        assert!(start.elapsed() < LONG, "{}", run.show("west"));
    }
    let e = run.set(&[("shape", "10Mbps")], None).unwrap_err();
    assert!(e.code == "E-PORT-SYNTAX" && e.fix.contains("say 10Mbit for bits"), "{e:?}");
    assert_eq!(run.value("east", "shape"), "it was opened without shape=");
    run.end();
}

#[test]
fn change_that_cannot_be_made_is_refused_and_nothing_of_it_is_made() {
    let run = Run::start("refused");
    let allowed = format!("grep Cpus_allowed_list /proc/{}/status", std::process::id());
    for (name, value, code, why, fix) in [
        ("tx_bach", "1", "E-USAGE", "no setting", "did you mean tx_batch"),
        ("tx_batch", "0", "E-PORT-SYNTAX", "not a number of packets", "1 to 1024"),
        ("moderation", "nappi", "E-PORT-SYNTAX", "no mode", "did you mean napi"),
        ("rx_usecs", "0", "E-USAGE", "1..=10000 us", "100 is usual"),
        ("rx_frames", "0", "E-USAGE", "1..=65536 packets", "32 is usual"),
        ("rx_frames", "many", "E-USAGE", "1..=65536 packets", "32 is usual"),
        ("moderation", "fixed:usecs=0", "E-PORT-SYNTAX", "usecs is 1..=10000 us", "100 us"),
        ("moderation", "fixed:frames=0", "E-PORT-SYNTAX", "frames is 1..=65536", "32 packets"),
        ("moderation", "adaptive:latency=9us", "E-PORT-SYNTAX", "latency is 10..=10000", "250"),
        ("moderation", "adaptive:cpu=0%", "E-PORT-SYNTAX", "cpu is 1..=100", "20"),
        ("rx_ring", "4096", "E-UNSUPPORTED", "while packets pass", "when a device is opened"),
        ("shape", "10Mbit", "E-UNSUPPORTED", "no rate", "shape="),
        ("qdisc", "fq_codel", "E-UNSUPPORTED", "while packets pass", "qdisc="),
        ("cpu", "99999", "E-CPU", "may use", &*allowed),
    ] {
        let other = if name == "tx_batch" { ("rx_usecs", "20") } else { ("tx_batch", "2") };
        let e = run.set(&[(name, value), other], None).unwrap_err();
        assert!(e.code == code && e.why.contains(why) && e.fix.contains(fix), "{name}: {e:?}");
        assert_eq!(run.value("west", "tx_batch"), "auto");
        assert_eq!(run.value("west", "moderation"), "adaptive:latency=250us");
    }
    let e = run.set(&[("moderation", "napi"), ("rx_usecs", "9")], None).unwrap_err();
    assert!(e.why.contains("napi has no rx_usecs"), "{e:?}");
    let e = ask(&run.path, &Request::Show { port: Some("wes".into()) }).unwrap_err();
    assert!(e.fix.contains("did you mean west"), "{e:?}");
    let settings = [("tx_batch".to_owned(), "2".to_owned())].into();
    let (port, queue, revert_after) = ("west".into(), Some(1), None);
    let change = Request::Set(Change { port, queue, settings, revert_after });
    assert_eq!(ask(&run.path, &change).unwrap_err().fix, "west has 1 queue, number 0");
    run.end();
}

/// A client reads `run/1` as queue 1 of `run`, but it may be the name of a port, as of
/// `memif:run/1`.
#[test]
fn port_whose_name_ends_as_a_queue_is_found() {
    let run = Run::with_sink("slash", "run/1");
    let set = |port: &str, queue, size: &str| {
        let settings = [("tx_batch".to_owned(), size.to_owned())].into();
        let (port, revert_after) = (port.into(), None);
        ask(&run.path, &Request::Set(Change { port, queue, settings, revert_after }))
    };
    for (port, queue, size) in
        [("run", Some(1), "3"), ("run/1", Some(0), "4"), ("run/1", None, "5")]
    {
        set(port, queue, size).unwrap();
        assert_eq!(run.value("run/1", "tx_batch"), size);
    }
    assert!(set("run", Some(2), "6").unwrap_err().why.contains("no port"));
    assert!(set("run/1", Some(1), "6").unwrap_err().why.contains("no queue 1"));
    run.end();
}

#[test]
fn change_is_taken_back_unless_it_is_kept_or_made_again() {
    let run = Run::start("revert");
    let (soon, later) = (Some(Duration::from_millis(1)), Some(Duration::from_secs(600)));
    run.set(&[("tx_batch", "64")], None).unwrap();
    run.set(&[("tx_batch", "2"), ("moderation", "busy")], later).unwrap();
    let answer = run.set(&[("tx_batch", "1")], soon).unwrap();
    assert!(answer["this_reverts_in_seconds"].is_number(), "{answer}");
    let start = Instant::now();
    while run.value("west", "tx_batch") != "64" {
        assert!(start.elapsed() < LONG, "{}", run.show("west"));
    }
    assert_eq!(run.value("west", "moderation"), "busy", "its time has not come");
    assert!(run.show("west")["reverts_in_seconds"].as_f64().unwrap() > 500.0);
    assert_eq!(ask(&run.path, &Request::Keep).unwrap().document["kept"], 1);
    run.set(&[("tx_batch", "3")], later).unwrap();
    assert_eq!(ask(&run.path, &Request::Keep).unwrap().document["kept"], 1);
    assert!(run.show("west")["reverts_in_seconds"].is_null());
    run.set(&[("tx_batch", "4"), ("moderation", "napi")], later).unwrap();
    let answer = run.set(&[("tx_batch", "5")], None).unwrap();
    assert!(answer["this_reverts_in_seconds"].is_null(), "it is to stay: {answer}");
    assert!(answer["reverts_in_seconds"].is_number(), "another setting is taken back: {answer}");
    assert!(run.show("west")["reverts_in_seconds"].is_number(), "the moderation is taken back");
    assert_eq!(ask(&run.path, &Request::Keep).unwrap().document["kept"], 1);
    assert_eq!(run.value("west", "tx_batch"), "5");
    run.end();
}

#[test]
fn hundred_silent_clients_block_neither_an_honest_one_nor_the_end() {
    let run = Run::start("silent");
    let mut silent = Vec::new();
    let mut half = |i: usize| {
        let mut stream = connect(&run.path);
        // Some clients send half of a line, some send a request and do not read the answer.
        match i % 3 {
            0 => {}
            1 => stream.write_all(b"{\"schema\":").unwrap(),
            _ => stream.write_all(Request::Show { port: None }.line().as_bytes()).unwrap(),
        }
        silent.push(stream);
    };
    (0..50).for_each(&mut half);
    assert_eq!(run.set(&[("tx_batch", "8")], None).unwrap()["set"][0]["applied"], "8");
    (50..100).for_each(&mut half);
    assert_eq!(run.value("west", "tx_batch"), "8");
    run.end();
    drop(silent);
}

#[test]
fn hostile_bytes_get_an_error_and_change_nothing() {
    let run = Run::start("hostile");
    let long = vec![b'x'; 1 << 20];
    for bytes in [
        &b"\n"[..],
        b"\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{\"schema\":\"linerate-tune/1\",\"do\":\"set\",\"port\":\"west\",\"settings\":{\"tx_batch\":\"1",
        b"{\"schema\":\"linerate-tune/1\",\"do\":\"show\",\"port\":\"\\u001b[2J\"}\n",
        &long,
    ] {
        let answer = send(&run.path, bytes);
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{answer}: {e}"));
        assert!(answer["error"]["why"].is_string(), "{answer}");
    }
    assert_eq!(send(&run.path, b""), "", "nothing asked, nothing said");
    let line = Request::Show { port: None }.line();
    let ends = send(&run.path, line.trim_end().as_bytes());
    assert!(ends.contains(SCHEMA), "the end of what is sent ends the line");
    assert_eq!(run.value("west", "tx_batch"), "auto");
    run.end();
}

#[test]
fn run_that_is_not_there_is_told_apart_from_one_that_does_not_answer() {
    let path = std::env::temp_dir().join(format!("tune-{}-none.sock", std::process::id()));
    let e = ask(&path, &Request::Keep).unwrap_err();
    assert!(e.why.contains("no such file") && e.fix.contains("--control"), "{e:?}");
    std::fs::write(&path, "a file").unwrap();
    assert!(Listening::at(&path).unwrap_err().why.contains("not a socket"));
    let e = ask(&path, &Request::Keep).unwrap_err();
    assert!(e.code == "E-FILE" && e.why.contains("not a socket"), "{e:?}");
    assert!(!e.fix.contains("linerate forward"), "a run refuses that path: {e:?}");
    std::fs::remove_file(&path).unwrap();
    let e = Listening::at(Path::new("@name")).unwrap_err();
    assert!(e.why.contains("no owner"), "{e}");
    let e = ask(Path::new("@name"), &Request::Keep).unwrap_err();
    assert!(e.why.contains("begins with @") && !e.fix.contains('@'), "{e:?}");
    let listening = Listening::at(&path).unwrap();
    let deaf = std::thread::spawn({
        let path = path.clone();
        move || ask(&path, &Request::Keep).unwrap_err()
    });
    // The client waits for its answer when the socket closes.
    std::thread::sleep(Duration::from_millis(20));
    drop(listening);
    let e = deaf.join().unwrap();
    assert!(["E-BUSY", "E-FILE", "E-SYSTEM"].contains(&&*e.code), "{e:?}");
}

#[test]
fn client_without_an_answer_says_that_its_change_may_have_been_made() {
    let path = std::env::temp_dir().join(format!("tune-{}-no answer.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    for (request, fix) in [
        (Request::Set(change("west", ("tx_batch", "1"), None)), "may have been made"),
        (Request::Show { port: None }, "ask again"),
    ] {
        let e = std::thread::scope(|scope| {
            scope.spawn(|| drop(listener.accept().unwrap()));
            ask(&path, &request).unwrap_err()
        });
        assert!(e.fix.contains(fix), "{e:?}");
    }
    drop(listener);
    let e = ask(&path, &Request::Keep).unwrap_err();
    assert!(e.why.contains("no process listens"), "{e:?}");
    assert!(e.fix.ends_with(&format!(" --control '{}'", path.display())), "{e:?}");
    std::fs::remove_file(&path).unwrap();
}

/// Returns a run of `gen → sink` whose worker only obeys when the test turns it.
fn unturned() -> (Target, Worker) {
    let engine = Engine::builder().port("east", "gen:count=1").port("west", "sink:");
    let engine = engine.wire("east", "west").build().unwrap();
    let stats = engine.stats();
    let worker = engine.into_workers().remove(0);
    (Target::new(worker.control(), stats, Box::new(|_, _| ())), worker)
}

fn change(port: &str, setting: (&str, &str), revert_after: Option<Duration>) -> Change {
    let settings = [(setting.0.to_owned(), setting.1.to_owned())].into();
    Change { port: port.into(), queue: None, settings, revert_after }
}

/// Returns the value of a setting in the document of [`Target::show`].
fn shown(target: &Target, name: &str) -> Value {
    let all: Value = serde_json::from_str(&target.show(None).unwrap()).unwrap();
    let rows = all["ports"]["west"]["queues"][0]["settings"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap()["value"].clone()
}

#[test]
fn change_without_an_answer_is_taken_back_and_one_whose_time_has_passed_is_never_made() {
    let second = Duration::from_secs(1);
    for waits in [true, false] {
        let ((mut target, mut worker), now) = (unturned(), Instant::now());
        let change = change("west", ("tx_batch", "2"), Some(5 * second));
        let pending = target.begin(&change, now).unwrap();
        let later = now + 2 * second;
        if waits {
            let e = target.finish(&pending, later).unwrap().unwrap_err();
            assert!(e.code == "E-BUSY" && e.what == "'west' was not set", "{e:?}");
            assert_eq!(target.revert_at(), None, "nothing is to be reverted");
        }
        drop(pending);
        worker.turn(later);
        assert_eq!(shown(&target, "tx_batch"), if waits { "auto" } else { "2" });
        target.revert(now + 7 * second, second);
        worker.turn(later);
        assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("auto".into(), None));
    }
}

#[test]
fn permanent_change_that_fails_leaves_the_revert_of_the_one_before_pending() {
    let (second, now) = (Duration::from_secs(1), Instant::now());
    let (mut target, mut worker) = unturned();
    let mut set = |target: &mut Target, to: &str, revert_after, obeys: bool| {
        let pending = target.begin(&change("west", ("tx_batch", to), revert_after), now).unwrap();
        if obeys {
            worker.turn(now);
        }
        target
            .finish(&pending, now + if obeys { Duration::ZERO } else { 2 * second })
            .unwrap()
            .is_ok()
    };
    assert!(set(&mut target, "2", Some(60 * second), true));
    assert!(!set(&mut target, "4", None, false), "it is withdrawn");
    assert_eq!(target.revert_at(), Some(now + 60 * second));
    // A second temporary change that fails leaves the time of the first, and one that is made has
    // its own.
    assert!(!set(&mut target, "4", Some(second), false));
    assert_eq!(target.revert_at(), Some(now + 60 * second));
    assert!(set(&mut target, "4", Some(5 * second), true));
    assert_eq!(target.revert_at(), Some(now + 5 * second));
    assert!(set(&mut target, "8", None, true));
    assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("8".into(), None));
}

#[test]
fn each_temporary_change_is_reverted_at_its_own_time() {
    let (second, now) = (Duration::from_secs(1), Instant::now());
    let (mut target, mut worker) = unturned();
    for (setting, after) in [(("tx_batch", "2"), 60 * second), (("moderation", "napi"), second)] {
        let pending = target.begin(&change("west", setting, Some(after)), now).unwrap();
        worker.turn(now);
        target.finish(&pending, now).unwrap().unwrap();
    }
    target.revert(now + 2 * second, second);
    worker.turn(now);
    assert_ne!(shown(&target, "moderation"), "napi");
    assert_eq!(shown(&target, "tx_batch"), "2");
    assert_eq!(target.revert_at(), Some(now + 60 * second));
    target.revert(now + 60 * second, second);
    worker.turn(now);
    assert_eq!((shown(&target, "tx_batch"), target.revert_at()), ("auto".into(), None));
}

#[test]
fn change_of_a_client_that_loses_its_place_is_withdrawn() {
    let path = std::env::temp_dir().join(format!("tune-{}-places.sock", std::process::id()));
    let engine = Engine::builder().port("east", "gen:count=1").port("west", "sink:");
    let engine = engine.wire("east", "west").build().unwrap();
    let stats = engine.stats();
    let mut worker = engine.into_workers().remove(0);
    let server = Listening::at(&path).unwrap().serve(worker.control(), stats.clone()).unwrap();
    let order = |setting| {
        let mut stream = connect(&path);
        let change = Request::Set(change("west", setting, None));
        stream.write_all(change.line().as_bytes()).unwrap();
        stream
    };
    let mut oldest = order(("tx_batch", "2"));
    let others: Vec<_> = (1..16).map(|_| order(("moderation", "busy"))).collect();
    let silent = connect(&path);
    // The oldest client is disconnected; on a slow machine it may get the answer that its time is
    // over, or lose its place before the server has read its change.
    let ended = std::io::copy(&mut oldest, &mut std::io::sink()).map_err(|e| e.kind());
    assert!(matches!(ended, Ok(_) | Err(std::io::ErrorKind::ConnectionReset)), "{ended:?}");
    worker.turn(Instant::now());
    assert_eq!(
        shown(&Target::new(worker.control(), stats, Box::new(|_, _| ())), "tx_batch"),
        "auto"
    );
    drop((others, silent, server));
}

#[test]
fn part_of_a_change_that_was_ordered_is_withdrawn_if_the_rest_is_refused() {
    let (second, (mut target, mut worker)) = (Duration::from_secs(1), unturned());
    let now = Instant::now();
    // Fifteen of the sixteen orders that a worker can hold: the change needs two, and only one
    // fits.
    for _ in 0..15 {
        let _ = target.begin(&change("west", ("moderation", "busy"), None), now).unwrap();
    }
    let mut both = change("west", ("moderation", "napi"), Some(second));
    both.settings.insert("tx_batch".into(), "2".into());
    assert_eq!(target.begin(&both, now).unwrap_err().code, "E-BUSY");
    assert_eq!(target.revert_at(), None);
    worker.turn(now);
    assert_eq!(
        (shown(&target, "moderation"), shown(&target, "tx_batch")),
        ("busy".into(), "auto".into())
    );
}

/// CPUs belong to a worker, whichever of its ports names it.
#[test]
fn cpus_of_a_worker_that_two_ports_share_are_taken_back_once() {
    let all = linerate_port::thread::allowed_cpus().unwrap();
    let [first, .., last] = all[..] else { return println!("skipped: one CPU") };
    if !may_pin() {
        return;
    }
    let (second, (mut target, mut worker)) = (Duration::from_secs(1), unturned());
    let (first, last, now) = (first.to_string(), last.to_string(), Instant::now());
    // Turn the worker on a thread of its own, because that thread is the one that is moved.
    let turn = |worker: &mut Worker| {
        std::thread::scope(|scope| scope.spawn(|| worker.turn(now)).join().map(drop).unwrap());
    };
    let set = |target: &mut Target, worker: &mut Worker, port, cpu: &str, revert| {
        let pending = target.begin(&change(port, ("cpu", cpu), revert), now).unwrap();
        turn(worker);
        target.finish(&pending, now).unwrap().unwrap();
    };
    set(&mut target, &mut worker, "west", &first, Some(second));
    set(&mut target, &mut worker, "east", &last, Some(second));
    target.revert(now + second, second);
    turn(&mut worker);
    assert_eq!(shown(&target, "cpu"), "any", "as before the first of the two");
    set(&mut target, &mut worker, "west", &first, Some(second));
    set(&mut target, &mut worker, "east", &last, None);
    assert_eq!(target.revert_at(), None, "the last one is to stay");
    assert_eq!(shown(&target, "cpu"), *last);
}
