//! Long runs with testpmd, started by hand: verified streams of `LINERATE_SOAK_S` seconds, and
//! either side killed `LINERATE_RESTARTS` times under load.
//!
//! ```text
//!   ours, gen ──► in.sock ── testpmd ── out.sock ──► ours, verifying sink
//! ```

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use linerate_tests::command::{Forward, Report};
use linerate_tests::or_skip;
use linerate_tests::process::Process;
use linerate_tests::wait::until_true;

use super::{copied, testpmd};

/// A rate at which testpmd, which drops packets without room, loses none on a shared CPU.
const SOURCE: &str = "gen:,rate=100kpps,size=imix";
/// Most packets that testpmd gets, and drops, before the sink is connected: those of two seconds.
const BEFORE_SINK: u64 = 200_000;
/// Longest wait for a start, and for an end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between a start and the next kill.
const UNDER_LOAD: Duration = Duration::from_millis(300);
/// Number of ends of our process in which testpmd 22.11 may crash once, because of a bug in its
/// memif driver.
const ENDS_PER_CRASH: u64 = 10;

/// Our role and options on either side of testpmd.
struct Way {
    role: &'static str,
    options: &'static str,
    /// True if testpmd's packet buffers are the memory that we map.
    theirs: bool,
}

const ZERO_COPY: Way = Way { role: "client", options: "", theirs: false };
const COPIES: Way = Way { role: "client", options: ",zerocopy=no", theirs: false };
const SERVER: Way = Way { role: "server", options: "", theirs: false };
const THEIRS: Way = Way { role: "server", options: ",trust=yes", theirs: true };

/// The sockets on either side of testpmd, in a folder that is removed at the end.
struct Chain<'a> {
    way: &'a Way,
    folder: PathBuf,
}

impl Chain<'_> {
    fn new<'a>(way: &'a Way, name: &str) -> Chain<'a> {
        let folder = format!("linerate-memif-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        Chain { way, folder }
    }

    fn port(&self, socket: &str) -> String {
        let (path, Way { role, options, .. }) = (self.folder.join(socket), self.way);
        format!("memif:{},role={role}{options}", path.display())
    }

    fn source(&self, time: Duration) -> Process {
        let time = format!("{}s", time.as_secs());
        let args = [SOURCE, &self.port("in.sock"), "--for", &time];
        Forward::here(Forward::command(&args, true))
    }

    fn sink(&self, time: Duration) -> Process {
        let time = format!("{}s", time.as_secs());
        let args = [&self.port("out.sock"), "sink:", "--for", &time];
        Forward::here(Forward::command(&args, true))
    }

    /// Starts testpmd in the other role, once its peer exists.
    fn testpmd(&self) -> Result<Process, String> {
        let sockets = ["in.sock", "out.sock"].map(|name| self.folder.join(name));
        let role = match self.way.role {
            "server" => {
                let listen = || sockets.iter().all(|socket| socket.exists());
                until_true("our sockets", PATIENCE, listen);
                "client"
            }
            _ => {
                sockets.iter().for_each(|socket| drop(fs::remove_file(socket)));
                "server"
            }
        };
        // testpmd's memif shares whole files, and one file for each page would be too many.
        let (memory, zero_copy) = match self.way.theirs {
            true => ("--single-file-segments", ",zero-copy=yes"),
            false => ("--no-huge", ""),
        };
        let [west, east] = sockets.each_ref().map(|socket| {
            format!("role={role},socket={},socket-abstract=no{zero_copy}", socket.display())
        });
        Ok(Forward::here(testpmd(&[memory], &west, &east)?))
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Checks that testpmd can have packet buffers in huge pages.
fn has_huge_pages() -> Result<(), String> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = |line: &str| line.strip_prefix("HugePages_Free:")?.trim().parse().ok();
    let free: u64 = text.lines().find_map(free).unwrap_or(0);
    match fs::read_to_string("/proc/mounts").unwrap_or_default().contains(" hugetlbfs ") {
        false => Err("no huge pages mounted (mount -t hugetlbfs none /dev/hugepages)".into()),
        true if free < 150 => Err(format!("{free} huge pages (sysctl vm.nr_hugepages=300)")),
        true => Ok(()),
    }
}

/// Returns the number in an environment variable, or the default.
fn asked(variable: &str, usual: u64) -> u64 {
    let asked = std::env::var(variable).ok().map(|text| text.parse().expect(variable));
    asked.unwrap_or(usual)
}

/// Returns the number of seconds in which testpmd has sent packets.
fn seconds_sent(between: &Process) -> usize {
    let told = between.stdout();
    let rates = told.split("Tx-pps:").skip(1).filter_map(|rest| rest.split_whitespace().next());
    rates.filter(|pps| *pps != "0").count()
}

fn streams(way: &Way, name: &str) {
    let chain = Chain::new(way, name);
    let time = Duration::from_secs(asked("LINERATE_SOAK_S", 60));
    // The sink outlives its source, so that it receives the last packet.
    let sink = chain.sink(time + Duration::from_secs(6));
    let source = chain.source(time + Duration::from_secs(3));
    let between = or_skip!(chain.testpmd());
    let [sent, came] = [source, sink].map(|side| {
        let done = side.finish(time + PATIENCE);
        assert_eq!(done.code(), 0, "{done:?}");
        Report::of(&done)
    });
    drop(between);
    let verify = |key: &str| came.0["verify"][key].as_u64().unwrap();
    println!(
        "{name}: sent {}, verified {}, lost {}; copied out {} B, in {} B",
        sent.ledger("sent"),
        verify("packets"),
        verify("lost"),
        copied(&sent, 1),
        copied(&came, 0)
    );
    sent.assert_whole();
    came.assert_whole();
    let wanted = sent.ledger("sent") / 100 * 99;
    assert!(verify("packets") + BEFORE_SINK >= wanted, "{sent:?} {came:?}");
    assert!(verify("packets") > 0, "{came:?}");
    for wrong in ["corrupted", "reordered", "duplicated", "late"] {
        assert_eq!(verify(wrong), 0, "{wrong}: {came:?}");
    }
}

#[test]
#[ignore = "LINERATE_SOAK_S seconds (60)"]
fn stream_of_a_zero_copy_client_through_testpmd_arrives_whole() {
    streams(&ZERO_COPY, "zero-copy");
}

#[test]
#[ignore = "LINERATE_SOAK_S seconds (60)"]
fn stream_of_a_copying_client_through_testpmd_arrives_whole() {
    streams(&COPIES, "copies");
}

#[test]
#[ignore = "LINERATE_SOAK_S seconds (60)"]
fn stream_of_a_server_through_testpmd_arrives_whole() {
    streams(&SERVER, "server");
}

#[test]
#[ignore = "LINERATE_SOAK_S seconds (60), 150 huge pages, and hugetlbfs mounted"]
fn stream_in_the_memory_of_testpmd_arrives_whole() {
    or_skip!(has_huge_pages());
    streams(&THEIRS, "theirs");
}

/// Kills testpmd under load, again and again; packets pass each time.
fn testpmd_is_killed(way: &Way, name: &str) {
    let (chain, day) = (Chain::new(way, name), Duration::from_secs(86_400));
    let (mut sink, mut source) = (chain.sink(day), chain.source(day));
    let mut longest = Duration::ZERO;
    for _ in 0..asked("LINERATE_RESTARTS", 100) {
        let started = Instant::now();
        let between = or_skip!(chain.testpmd());
        until_true("packets behind testpmd", PATIENCE, || seconds_sent(&between) > 0);
        longest = longest.max(started.elapsed());
        std::thread::sleep(UNDER_LOAD);
        assert!(sink.runs() && source.runs(), "{}{}", sink.stderr(), source.stderr());
    }
    println!("{name}: packets passed within {longest:.1?} of each start");
    let _ = Forward(source).interrupt();
    let came = Forward(sink).interrupt();
    assert!(came.0["verify"]["packets"].as_u64() > Some(0), "{came:?}");
}

#[test]
#[ignore = "some seconds for each of LINERATE_RESTARTS (100)"]
fn packets_of_clients_pass_again_after_testpmd_was_killed() {
    testpmd_is_killed(&ZERO_COPY, "clients");
}

// A memif client of testpmd connects only once, at its start: so our server is not killed before.
#[test]
#[ignore = "some seconds for each of LINERATE_RESTARTS (100)"]
fn packets_of_servers_pass_again_after_testpmd_was_killed() {
    testpmd_is_killed(&SERVER, "servers");
}

#[test]
#[ignore = "some seconds for each of LINERATE_RESTARTS (100)"]
fn packets_pass_again_after_a_client_before_testpmd_was_killed() {
    let (chain, day) = (Chain::new(&ZERO_COPY, "killed"), Duration::from_secs(86_400));
    let mut between = or_skip!(chain.testpmd());
    let mut sink = chain.sink(day);
    let (ends, mut crashes) = (asked("LINERATE_RESTARTS", 100), 0);
    for _ in 0..ends {
        let source = chain.source(day);
        // The count of the next second includes packets of the previous one.
        let before = seconds_sent(&between) + 1;
        until_true("packets behind testpmd", PATIENCE, || {
            !between.runs() || seconds_sent(&between) > before
        });
        std::thread::sleep(UNDER_LOAD);
        assert!(sink.runs(), "{}", sink.stderr());
        drop(source);
        std::thread::sleep(UNDER_LOAD);
        if !between.runs() {
            let ended = between.finish(PATIENCE);
            assert_eq!(ended.code(), 128 + 11, "no SIGSEGV: {ended:?}");
            crashes += 1;
            assert!(
                crashes * ENDS_PER_CRASH <= ends.max(ENDS_PER_CRASH),
                "testpmd died {crashes} times"
            );
            between = or_skip!(chain.testpmd());
        }
    }
    println!("packets passed each time; testpmd died of {crashes} of {ends} ends");
}
