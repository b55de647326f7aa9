//! The commands of a page, and a shell in namespaces of its own that runs them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use linerate::Port;
use linerate_tests::available;
use linerate_tests::capture::Folder;
use linerate_tests::command::linerate;
use linerate_tests::process::Process;
use linerate_tests::topology::Hosts;

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

/// `sudo` for a test that runs as root. It becomes the command, so that a signal to it reaches the
/// command, as with sudo.
const SUDO: &str = "#!/bin/sh
case $1 in install) ;; kill) \"$@\" ;; *) exec \"$@\" ;; esac
";

/// Two hosts, joined by this machine, as on the page of the first hour.
pub const TWO_HOSTS: &str = "
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

/// Checks that ports of `xdp` open, as the pages expect.
///
/// # Errors
/// The reason to skip: no privilege, memory that may not be locked, or a filter of system calls.
pub fn xdp_opens() -> Result<(), String> {
    let hosts = Hosts::new()?;
    available(hosts.middle.run(|| Port::open("xdp:w0").map(drop)))
}

/// Returns the commands that a page tells its reader to type, and the number of their blocks.
pub fn script(page: &str) -> (String, usize) {
    let blocks = page.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let blocks: Vec<&str> = blocks.map(|(block, _)| block).collect();
    let numbered = blocks.iter().enumerate();
    let text = numbered.map(|(i, block)| format!("echo '== block {}'\n{block}", i + 1));
    (text.collect(), blocks.len())
}

/// Runs a script in namespaces of its own, and returns its output.
pub fn ran(folder: &Folder, script: &str) -> String {
    ran_in(&folder.path(""), folder, script)
}

/// Runs a script as [`ran`] does, in the folder `place`.
pub fn ran_in(place: &str, folder: &Folder, script: &str) -> String {
    let path = folder.path("page.sh");
    fs::write(&path, format!("{BEFORE}{script}")).unwrap();
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
