//! Runs the commands of further pages as printed: blocks of a shell, and commands that stand
//! between other lines. A page that measures is not among them.

use linerate_tests::capture::Folder;
use linerate_tests::{installed, may_pin, may_use, or_skip};

use crate::README;
use crate::page::{TWO_HOSTS, ran, script, xdp_opens};

const BATCHING: &str = include_str!("../../docs/howto-batching.md");
const DOCTOR: &str = include_str!("../../docs/doctor.md");
const MODERATION: &str = include_str!("../../docs/moderation.md");
const PCAP: &str = include_str!("../../docs/ports/pcap.md");
const PLACEMENT: &str = include_str!("../../docs/placement.md");
const TUNE: &str = include_str!("../../docs/tune.md");
const WRAP: &str = include_str!("../../docs/ports/wrap.md");

/// Ends the shell at the first command that fails, with what still runs in it, and has the words
/// for Ctrl-C.
///
/// Ctrl-C comes when a ping has passed, or, where only UDP passes, when the port is open.
const STRICT: &str = r#"
set -e -o pipefail
trap 'kill $(jobs -p) 2> /dev/null || :' EXIT
joined() { timeout 60 bash -c 'until ip netns exec east ping -q -c 1 -W 0.5 10.7.0.2; do :; done' > /dev/null; }
attached() { timeout 60 bash -c 'until ip link show | grep -q prog/xdp; do sleep 0.1; done'; }
ended() { local code=0; wait $! || code=$?; [ $code = $1 ]; }
until_ctrl_c() {
    "$@" &
    case $* in *udp=*) attached ;; *) joined ;; esac
    kill -INT $!
    ended 130
}
"#;

/// Ends the run that a page leaves in the background.
const TERMINATED: &str = "
kill $!
ended 143
";

#[test]
fn batches_are_changed_as_printed() {
    or_skip!(ready(&[]));
    let (script, printed) = script(BATCHING);
    assert_eq!(printed, 1, "blocks on the page");
    let said = done(&hosts("e0", "w0"), &(when_joined(&script) + TERMINATED));
    says(&said, &["tx-batch    auto ", "tx-batch  auto -> 1 ", "tx-batch  1 -> auto "]);
    says(&said, &["Statistics of w0:", "doorbells: ", "tx_calls.", "in flight 0   OK"]);
}

/// Replaces OpenBSD's nc, which few machines have.
const NC: &str = r#"
cat > nc << 'END'
#!/usr/bin/env python3
import socket, sys
assert sys.argv[1:3] == ["-U", "-N"], sys.argv
run = socket.socket(socket.AF_UNIX)
run.connect(sys.argv[3])
run.sendall(sys.stdin.buffer.read())
run.shutdown(socket.SHUT_WR)
print(run.makefile().read(), end="")
END
chmod +x nc
"#;

#[test]
fn settings_are_changed_as_printed() {
    or_skip!(ready(&["jq", "python3"]));
    let (script, printed) = script(TUNE);
    assert_eq!(printed, 3, "blocks on the page");
    let said = done(&(hosts("e0", "w0") + NC), &(when_joined(&script) + TERMINATED));
    says(&said, &["Settings of w0:", "tx-batch  auto -> 1 ", "Statistics of w0:"]);
    says(&said, &["moderation  adaptive:latency=250us -> fixed:usecs=50,frames=16 "]);
    let counted = |port: &str| said.contains(&format!("linerate_rx_packets{{port=\"{port}\"}} "));
    assert!(counted("e0") && counted("w0") && !said.contains("\"} 0\n"), "{said}");
    says(&said, &[r#"{"schema":"linerate-tune/1","ports":{"e0":{"driver":"xdp","#]);
    says(&said, &[r#""before":["1"],"asked":"16","applied":"16","#, r#""kept":2}"#]);
    says(&said, &["in flight 0   OK"]);
}

#[test]
fn modes_of_moderation_are_chosen_as_printed() {
    or_skip!(ready(&[]));
    let (script, printed) = script(MODERATION);
    assert_eq!(printed, 2, "blocks on the page");
    let said = done(&hosts("eth0", "eth1"), &interrupted(&script));
    says(&said, &["never held by napi", "held for 250 us by NAPI"]);
    assert_eq!(said.matches("in flight 0   OK").count(), 3, "{said}");
}

/// The interfaces that the page about doctor adds to those of [`hosts`].
const VETHS: &str = "
ip -n east addr add 192.0.2.1/24 dev eth0
ip link add veth0 type veth peer name veth1
ip link set veth0 up
ip link set veth1 up
";

/// Kills a run when it has changed veth1.
const KILLED: &str = "
linerate forward xdp:veth0,udp=7777 sink:blind > killed.txt 2>&1 &
timeout 60 bash -c 'until grep -q ^options killed.txt; do sleep 0.1; done'
kill -KILL $!
ended 137
";

#[test]
fn doctor_prints_what_its_page_prints() {
    or_skip!(ready(&["ethtool"]));
    let (script, printed) = script(DOCTOR);
    assert_eq!(printed, 4, "blocks on the page");
    let (machine, undo) = ("# check this machine", "sudo linerate doctor --undo");
    assert!(script.contains(machine) && script.contains(undo));
    // The machine of a test may lack something, such as TAP devices.
    let script = script.replace(machine, "|| [ $? = 3 ]");
    let script = script.replace(undo, &format!("{KILLED}{undo}"));
    // Terminals differ in width.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = words(&done(&(hosts("eth0", "w0") + VETHS), &script));
    let page = words(DOCTOR);
    for part in [
        "ok veth0: veth, up, with a carrier, MTU 1500",
        "ok an AF_XDP socket, its BPF map and a program can be made",
        "ok the port takes the only queue",
        "ok veth1, its other end, is in this network namespace: while the port is open, veth1's",
        "ok udp=7777 can be reserved",
        "ok opens: veth0 AF_XDP native copy, queue 0 (tried with ethertype=0x88b6)",
        "warn not obtained: zero-copy why: the driver has none",
        "warn not obtained: checksums why: the offload of veth1 is off while the port is open",
        "restoring the VLAN offload of sent packets (txvlan) of veth1",
        "restoring the checksum offload of veth1",
        "ok veth1: its VLAN offload of sent packets (txvlan) is on again, as before process ",
        "ok veth1: its checksum offload is on again, as before process ",
        "ok eth0: veth, up, with a carrier, MTU 1500",
        "ok opens: eth0 AF_XDP native copy, queue 0 (tried with answer=192.0.2.1)",
        "ok packets pass both ways: 192.0.2.1 answered an ARP probe through the socket after ",
        "ok the link of eth0 stayed up",
    ] {
        assert!(page.contains(part), "no `{part}` on the page");
        says(&said, &[part]);
    }
}

#[test]
fn three_things_of_the_readme_are_done_as_printed() {
    or_skip!(ready(&[]));
    let section = README.split("\n## Three things").nth(1).unwrap();
    let (script, printed) = script(section.split("\n## ").next().unwrap());
    assert_eq!(printed, 1, "blocks of the section");
    assert_eq!(script.matches("eth0").count(), 1, "names that stand for an interface");
    let said = done(&hosts("e0", "w0"), &interrupted(&script.replace("eth0", "e0")));
    says(&said, &["opens: e0 AF_XDP", "w0  AF_XDP", "gen at 100kpps", "late p50"]);
    assert_eq!(said.matches("in flight 0   OK").count(), 2, "{said}");
}

#[test]
fn workers_are_placed_as_printed() {
    or_skip!(ready(&[]));
    or_skip!(may_pin());
    // The page has `--cpu 0,1`.
    or_skip!(may_use(&[0, 1]));
    let commands = typed(PLACEMENT);
    let choice = "--place workers|auto|napi\n";
    assert!(commands.contains(choice));
    let commands = interrupted(&commands.replace(choice, "--place workers\n"));
    let (pair, queues) = ("type veth peer name eth0", "numrxqueues 2 numtxqueues 2");
    let hosts = hosts("eth0", "eth1").replace(pair, &format!("{queues} {pair} {queues}"));
    let said = done(&hosts, &commands);
    // The search itself may last longer than this run.
    says(&said, &["fanout hash, 2 queues", "placement"]);
    assert_eq!(said.matches(" 2 workers ").count(), 3, "{said}");
    assert_eq!(said.matches("in flight 0   OK").count(), 3, "{said}");
}

#[test]
fn registers_have_a_price_as_printed() {
    or_skip!(ready(&[]));
    let said = done(&hosts("v0", "v1"), &interrupted(&typed(WRAP)));
    says(&said, &["v0: MODEL: ", "in flight 0   OK"]);
}

#[test]
fn a_capture_is_replayed_as_printed() {
    or_skip!(ready(&[]));
    let captured = "linerate forward gen:rate=1kpps,count=100 pcap:day.pcapng,write\n";
    let said = done(&hosts("eth0", "eth1"), &format!("{captured}{}", typed(PCAP)));
    says(&said, &["rx 100 = tx 100 + drop 0 + in flight 0   OK"]);
}

/// Checks that commands of pages can run here, with these programs beside the usual ones.
///
/// # Errors
/// The reason to skip.
fn ready(programs: &[&str]) -> Result<(), String> {
    for program in ["ip", "ping", "timeout", "unshare", "bash"].iter().chain(programs) {
        installed(program)?;
    }
    xdp_opens()
}

/// Returns the commands that make two hosts, and name this machine's interfaces to them.
fn hosts(east: &str, west: &str) -> String {
    format!("{TWO_HOSTS}ip link set e0 name {east} up\nip link set w0 name {west} up\n")
}

/// Returns the commands of `linerate` that a page prints, each on an indented line.
fn typed(page: &str) -> String {
    let lines = page.lines().filter_map(|line| line.strip_prefix("    "));
    let commands = lines.filter(|line| line.starts_with("linerate "));
    // Two blanks separate a remark.
    commands.map(|line| format!("{}\n", line.split("  ").next().unwrap_or(line))).collect()
}

/// Returns a script that goes on when packets pass, and not only after the time of the page.
fn when_joined(script: &str) -> String {
    let time = "sleep 2\n";
    assert_eq!(script.matches(time).count(), 1, "the time until the run has started: {script}");
    script.replace(time, &format!("{time}joined\n"))
}

/// Returns a script that ends each run in the foreground by Ctrl-C.
fn interrupted(script: &str) -> String {
    let run = "linerate forward ";
    script.replace(&format!("sudo {run}"), run).replace(run, &format!("until_ctrl_c {run}"))
}

/// Runs commands after those of `setup`, and returns their output.
///
/// # Panics
/// If one of them fails.
fn done(setup: &str, commands: &str) -> String {
    let said = ran(&Folder::new(), &format!("{STRICT}{setup}{commands}\necho '== end'\n"));
    assert!(said.contains("\n== end\n"), "a command failed:\n{said}");
    said
}

/// Checks that the output has these parts.
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}
