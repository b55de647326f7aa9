//! Runs docs/first-hour.md block by block, as it is printed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use linerate_tests::capture::Folder;
use linerate_tests::command::linerate;
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::{installed, or_skip};

const PAGE: &str = include_str!("../../docs/first-hour.md");
/// Longest time for all blocks on a busy machine, a build of the facade included.
const LONG: Duration = Duration::from_secs(300);

/// Stands in for what the page installs: the programs of this build, and no `sudo` where the test is root.
///
/// Names of namespaces and mounts are private to the shell, so that the page may choose plain ones.
const BEFORE: &str = "
set -u
mkdir -p /run/netns && mount -t tmpfs none /run/netns
sudo() { case $1 in install) ;; *) \"$@\" ;; esac; }
cargo() { case $1 in install) ;; build) case \" $* \" in *\" -p \"*) ;; *) command cargo \"$@\" ;; esac ;; *) command cargo \"$@\" ;; esac; }
export CARGO_NET_OFFLINE=true CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_DEBUG=false
";

#[test]
fn first_hour_works_as_printed() {
    for program in ["ip", "ping", "curl", "python3", "bash", "unshare"] {
        or_skip!(installed(program));
    }
    or_skip!(Netns::new()); // root, and a kernel that has namespaces
    let folder = Folder::new();
    let (mut script, mut printed) = (BEFORE.to_owned(), 0);
    for block in PAGE.split("```sh\n").skip(1) {
        let Some((block, _)) = block.split_once("```") else { continue };
        printed += 1;
        script.push_str(&format!("echo '== block {printed}'\n{block}"));
    }
    assert_eq!(printed, 8, "blocks on the page");
    let examples = Path::new(env!("CARGO_BIN_EXE_echo")).parent().unwrap();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().unwrap();
    let script = script
        .replace("answer/target/release", "answer-target/release")
        .replace(" target/release/", &format!(" {}/", examples.display()))
        .replace("../crates/linerate", &format!("{}/crates/linerate", root.display()));
    let path = folder.path("page.sh");
    fs::write(&path, script).unwrap();

    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--net", "bash", &path]).current_dir(folder.path(""));
    let bin = linerate().parent().unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{paths}", bin.display()));
    shell.env("CARGO_TARGET_DIR", folder.path("answer-target"));
    let done = Process::start(shell, |mut shell| shell.spawn()).finish(LONG);
    let said = format!("{}\n{}", done.stdout, done.stderr);
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
