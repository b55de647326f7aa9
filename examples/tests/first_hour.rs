//! Runs the commands of docs/first-hour.md, docs/two-cards.md, docs/capabilities.md and the README's section "The first packets of your
//! own" block by block, as printed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use linerate::Port;
use linerate_tests::capture::Folder;
use linerate_tests::command::{copy_into, linerate};
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;
use linerate_tests::{available, installed, or_skip};

const FIRST_HOUR: &str = include_str!("../../docs/first-hour.md");
const README: &str = include_str!("../../README.md");
const TWO_CARDS: &str = include_str!("../../docs/two-cards.md");
const CAPABILITIES: &str = include_str!("../../docs/capabilities.md");
/// Longest time for all blocks on a busy machine, including a build of the facade.
const LONG: Duration = Duration::from_secs(900);

/// Replaces what the page installs: uses the programs of this build.
///
/// Names of namespaces and mounts are private to the shell, so that the page may choose plain ones.
const BEFORE: &str = "
set -u
mkdir -p /run/netns && mount -t tmpfs none /run/netns
cargo() { case $1 in install) ;; build) case \" $* \" in *\" -p \"*) ;; *) command cargo \"$@\" ;; esac ;; *) command cargo \"$@\" ;; esac; }
export CARGO_NET_OFFLINE=true CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_DEBUG=false
";

/// `sudo` for a test that runs as root. It becomes the command, so that a signal to it reaches the command, as with sudo.
const SUDO: &str = "#!/bin/sh
case $1 in install) ;; kill) \"$@\" ;; *) exec \"$@\" ;; esac
";

/// Checks that ports of `xdp` open, as the pages expect.
///
/// # Errors
/// The reason to skip: no privilege, memory that may not be locked, or a filter of system calls.
fn xdp_opens() -> Result<(), String> {
    let hosts = Hosts::new()?;
    available(hosts.middle.run(|| Port::open("xdp:w0").map(drop)))
}

#[test]
fn first_hour_works_as_printed() {
    for program in ["ip", "ping", "curl", "python3", "bash", "unshare"] {
        or_skip!(installed(program));
    }
    or_skip!(xdp_opens()); // needs root, and a kernel with namespaces
    let folder = Folder::new();
    let (script, printed) = script(FIRST_HOUR);
    assert_eq!(printed, 8, "blocks on the page");
    let clone = clone_in(&folder);
    // A reader sees that both servers are there, and can send again.
    let send = "sleep 2\nsudo ip netns exec east bash -c 'exec 3<>/dev/udp/10.7.0.2/7777";
    assert!(script.contains(send));
    let script = with_examples(&script).replace(send, &format!("{BOUND}\n{SERVED}\n{send}"));
    let said = ran_in(&clone, &folder, &script);
    for part in [
        "3 packets transmitted, 3 received",
        "== block 5\nhello\n200\n",
        "received 1 = sent 1 ",
        "+ in flight 0   OK",
        "balance  rx ",
        "== block 7\nhello again\n",
    ] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

/// Two hosts, joined by this machine, as on the page of the first hour.
const TWO_HOSTS: &str = "
mount -t tmpfs none /run
mkdir /run/netns
for host in east west; do ip netns add $host; done
ip link add e0 type veth peer name eth0 netns east
ip link add w0 type veth peer name eth0 netns west
ip -n east addr add 10.7.0.1/24 dev eth0
ip -n west addr add 10.7.0.2/24 dev eth0
ip -n east link set eth0 up
ip -n west link set eth0 up
";

#[test]
fn two_cards_are_joined_as_printed() {
    for program in ["ip", "ping", "sysctl", "unshare", "bash"] {
        or_skip!(installed(program));
    }
    or_skip!(xdp_opens());
    let (script, printed) = script(TWO_CARDS);
    assert_eq!(printed, 3, "blocks on the page");
    let show = "sudo linerate tune /run/linerate.sock -i";
    assert!(script.contains(show));
    let ping = "timeout 60 bash -c 'until ip netns exec east ping -c 1 -W 1 10.7.0.2; do :; done'";
    let script = script.replace(show, &format!("{ping}\n{show}"));
    let first = "echo '== block 1'";
    let script = script.replacen(first, &format!("{TWO_HOSTS}{first}"), 1);
    let said = ran(&Folder::new(), &script);
    for part in ["1 received", "AF_XDP native copy", "in flight 0   OK"] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

/// Waits until the web server of the page listens.
const SERVED: &str = "timeout 60 bash -c \
    'until ip netns exec west ss -Htln sport = :8000 | grep -q .; do sleep 0.1; done'";

/// Waits until the echo program has reserved its port.
const BOUND: &str = "timeout 60 bash -c \
    'until ip netns exec west ss -Huln sport = :7777 | grep -q .; do sleep 0.1; done'";

#[test]
fn first_packets_of_the_readme_pass_as_printed() {
    for program in ["ip", "bash", "unshare"] {
        or_skip!(installed(program));
    }
    or_skip!(Netns::new());
    // Where xdp does not open, the program receives copies, and says why.
    let device = match xdp_opens() {
        Ok(()) => "eth0 AF_XDP",
        Err(why) => {
            eprintln!("skipped in part: {why}");
            "eth0 AF_PACKET"
        }
    };
    let section = README.split("\n## The first packets").nth(1).unwrap();
    let (script, printed) = script(section.split("\n## ").next().unwrap());
    assert_eq!(printed, 1, "blocks of the section");
    // A reader would see that the echo program runs, and could send again.
    let script = with_examples(&script).replace("sleep 2", &format!("{BOUND}\nsleep 2"));
    let said = ran(&Folder::new(), &script);
    for part in [device, "hello\n", "received 1 = sent 1 ", "in flight 0   OK"] {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
}

/// Creates a folder `linerate` with the content of a clone, and returns its path.
fn clone_in(folder: &Folder) -> String {
    let clone = folder.path("linerate");
    fs::create_dir(&clone).unwrap();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap();
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "target" {
            symlink(entry.path(), Path::new(&clone).join(entry.file_name())).unwrap();
        }
    }
    clone
}

/// Returns a script that uses the examples of this build instead of those that the page builds.
fn with_examples(script: &str) -> String {
    let examples = Path::new(env!("CARGO_BIN_EXE_echo")).parent().unwrap();
    script.replace(" target/release/", &format!(" {}/", examples.display()))
}

/// The user of docs/capabilities.md, who has no privileges.
const NOBODY: &str = "
linerate() { setpriv --reuid=65534 --regid=65534 --clear-groups /usr/local/bin/linerate \"$@\"; }
";

#[test]
fn capabilities_do_instead_of_root_as_printed() {
    for program in ["ip", "setcap", "getcap", "setpriv", "unshare", "bash"] {
        or_skip!(installed(program));
    }
    or_skip!(xdp_opens());
    let folder = Folder::new();
    let copy = copy_into(&folder);
    fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).unwrap();
    let (script, printed) = script(CAPABILITIES);
    assert_eq!(printed, 4, "blocks on the page");
    let script = format!("{NOBODY}{script}").replace("/usr/local/bin/linerate", &copy);
    let said = ran(&folder, &script);
    assert!(said.contains("ok    opens: e0 AF_XDP"), "{said}");
    assert_eq!(said.matches("tx 1,000 + drop 0 + in flight 0   OK").count(), 4, "{said}");
}

/// Returns the commands that a page tells its reader to type, and the number of their blocks.
fn script(page: &str) -> (String, usize) {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let blocks: Vec<&str> = blocks.map(|(block, _)| block).collect();
    let numbered = blocks.iter().enumerate();
    let text = numbered.map(|(i, block)| format!("echo '== block {}'\n{block}", i + 1));
    (BEFORE.to_owned() + &text.collect::<String>(), blocks.len())
}

/// Runs a script in namespaces of its own, and returns its output.
fn ran(folder: &Folder, script: &str) -> String {
    ran_in(&folder.path(""), folder, script)
}

/// Runs a script as [`ran`] does, in the folder `place`.
fn ran_in(place: &str, folder: &Folder, script: &str) -> String {
    let path = folder.path("page.sh");
    fs::write(&path, script).unwrap();
    let sudo = folder.path("sudo");
    fs::write(&sudo, SUDO).unwrap();
    fs::set_permissions(&sudo, Permissions::from_mode(0o755)).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--net", "bash", &path]).current_dir(place);
    let paths = std::env::var("PATH").unwrap_or_default();
    let own = linerate().parent().unwrap();
    // The page names the folder of the build.
    shell.env_remove("CARGO_TARGET_DIR");
    shell.env("PATH", format!("{}:{}:{paths}", folder.path(""), own.display()));
    let done = Process::start(shell, |mut shell| shell.spawn()).finish(LONG);
    format!("{}\n{}", done.stdout, done.stderr)
}
