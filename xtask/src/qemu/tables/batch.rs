//! Tests of the script of the guest `batch` without a guest: a shell runs it as the guest does,
//! except that a network namespace is a folder, that `/proc` is a folder of files in it, and that
//! nothing is sent.

use std::fs::DirBuilder;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// Tools that the script may call. It finds no other, so that it changes nothing of this machine.
const TOOLS: [&str; 5] = ["cat", "mkdir", "sed", "sh", "tr"];

/// A guest whose kernel and cards take every setting, as functions of the script.
///
/// The kernel separates the numbers of a sysctl by tabs. A card has 256 descriptors until they are
/// set.
const STUBS: &str = r#"
seconds=1
begun() { :; }
ended() { :; }
soon() { :; }
number() { echo 8; }
nic_of() { nic=e1; }
awk() { echo 1; }
timeout() { :; }
iperf3() { :; }
kill() { :; }
sleep() { :; }
poweroff() { :; }
host() {
    mkdir -p "$1/proc/sys/net/ipv4"
    echo '4096 16384 4194304' >"$1/proc/sys/net/ipv4/tcp_wmem"
    echo '4096 131072 6291456' >"$1/proc/sys/net/ipv4/tcp_rmem"
}
ip() {
    [ "$1 $2" = 'netns exec' ] || return 0
    (cd "$3" && shift 3 && "$@")
}
cat() {
    case $1 in
    proc/sys/*) tr ' ' '\t' <"$1" ;;
    *) command cat "$1" ;;
    esac
}
ethtool() {
    case $1,$3,$5 in
    -G,rx,tx) echo "$4 $6" >"rings.$2" ;;
    -g,,)
        rx=256 tx=256
        [ ! -f "rings.$2" ] || read -r rx tx <"rings.$2"
        printf 'Pre-set maximums:\nRX:\t\t4096\nTX:\t\t4096\nCurrent hardware settings:\n'
        printf 'RX:\t\t%s\nRX Mini:\tn/a\nTX:\t\t%s\n' "$rx" "$tx"
        ;;
    esac
}
"#;

/// The settings of post 002, in the order in which the guest applies them.
const APPLIED: [&str; 13] = [
    "machine core/rmem_max 4194304, as in the post",
    "machine core/wmem_max 4194304, as in the post",
    "machine core/netdev_max_backlog 120000, as in the post",
    "west ipv4/tcp_wmem 4096 524288 4194304, as in the post",
    "west ipv4/tcp_rmem 4096 1048576 4194304, as in the post",
    "east ipv4/tcp_wmem 4096 524288 4194304, as in the post",
    "east ipv4/tcp_rmem 4096 1048576 4194304, as in the post",
    "queue of the engine RX 512",
    "queue of the engine TX 512",
    "queue of the receiver RX 4096",
    "queue of the receiver TX 4096",
    "east ipv4/tcp_wmem 4096 524288 4194304, as in the post",
    "east ipv4/tcp_rmem 4096 1048576 4194304, as in the post",
];

/// Returns a folder with the files of the guest's kernel, and with [`TOOLS`].
fn folder(name: &str) -> PathBuf {
    // No other program can predict the name, and create the folder first.
    let number = RandomState::new().build_hasher().finish();
    let folder = std::env::temp_dir().join(format!("linerate-{name}-{number:x}"));
    DirBuilder::new().mode(0o700).create(&folder).unwrap();
    for inner in ["bin", "proc/net", "proc/sys/net/core", "west", "east/proc/net"] {
        fs::create_dir_all(folder.join(inner)).unwrap();
    }
    for tool in TOOLS {
        symlink(cargo::located(tool).unwrap(), folder.join("bin").join(tool)).unwrap();
    }
    for name in ["rmem_max", "wmem_max", "netdev_max_backlog"] {
        fs::write(folder.join("proc/sys/net/core").join(name), "1000\n").unwrap();
    }
    fs::write(folder.join("proc/net/softnet_stat"), "0000000a 00000003\n").unwrap();
    fs::write(folder.join("east/proc/net/dev"), "    lo: 1 2\n  eth0: 7 0 0 3\n").unwrap();
    folder
}

/// Returns what the script tells of a guest that differs from [`STUBS`] by the functions `more`.
fn run(name: &str, more: &str) -> Told {
    let folder = folder(name);
    let init = named("batch").unwrap().init;
    let script = init.strip_prefix(include_str!("../table.sh")).unwrap();
    let script = format!("{STUBS}{more}{}", script.replace("/proc/", "proc/"));
    fs::write(folder.join("script"), script).unwrap();
    let mut shell = Command::new(folder.join("bin/sh"));
    shell.arg("script").current_dir(&folder).env_clear().env("PATH", folder.join("bin"));
    let output = shell.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), &output.stderr);
    let mut lines = out.lines().filter_map(|line| line.trim_end().strip_prefix("guest: "));
    let mut told = Told::default();
    lines.clone().for_each(|line| told.line(line));
    assert_eq!(lines.next_back(), Some("done 0"), "{out}{}", String::from_utf8_lossy(err));
    fs::remove_dir_all(&folder).unwrap();
    told
}

/// S2.28.
#[test]
fn every_sysctl_and_both_queues_of_post_002_are_applied_and_said_with_their_values() {
    let told = run("batch-applied", "");
    assert_eq!(told.applied, APPLIED);
    assert_eq!((told.wrong, told.lacking), (Vec::new(), Vec::new()));
    // Two tests with four sizes and three numbers of connections; two figures by two devices with
    // two caps.
    assert_eq!((told.rows.len(), told.columns.len()), (24, 8));
}

/// S2.28.
#[test]
fn a_setting_of_post_002_that_is_not_applied_is_a_wrong_result() {
    // A shell writes the sysctls.
    let refuse = "sh() { :; }\nethtool() { case $1 in -G) echo busy; return 1 ;; esac\n\
                  printf 'Current:\\nRX: 256\\nTX: 256\\n'; }\n";
    let told = run("batch-refused", refuse);
    let east = ["tcp_wmem: it is 4096 16384 4194304 in", "tcp_rmem: it is 4096 131072 6291456 in"];
    let of_host = |host: &str| east.map(|what| format!("ipv4/{what} {host}"));
    let machine = ["rmem_max", "wmem_max", "netdev_max_backlog"];
    let machine = machine.map(|name| format!("core/{name}: it is 1000"));
    let queue = |of: &str, length: u32| {
        let why = format!("256 descriptors, and not {length}: busy");
        ["RX", "TX"].map(|way| format!("{way} queue of the {of}: {why}"))
    };
    let queues = [queue("engine", 512), queue("receiver", 4096)].concat();
    let hosts = [of_host("west"), of_host("east")].concat();
    let all = [&machine[..], &hosts[..], &queues[..], &of_host("east")[..]].concat();
    assert_eq!(told.wrong, all);
    assert_eq!(told.lacking, [""; 0]);
    assert_eq!(wrong(&[("6.12".into(), told)]).len(), APPLIED.len(), "the run fails");
}

/// S2.32.
#[test]
fn segments_that_batches_cause_to_be_sent_again_are_a_wrong_result() {
    let again = |n| format!("number() {{ [ $2$side = retransmitsnew ] && echo {n} || echo 8; }}\n");
    let by = |device| format!("segments sent again by {device}: 2400 with batches, 192 without");
    assert_eq!(run("batch-again", &again(100)).wrong, ["veth", "e1000"].map(by));
    assert_eq!(run("batch-as-often", &again(16)).wrong, [""; 0]);
}

/// S2.28.
#[test]
fn a_setting_of_post_002_that_the_guest_does_not_have_is_n_a() {
    let lack = "host() { :; }\nethtool() { echo 'no rings'; return 1; }\n";
    let told = run("batch-absent", lack);
    let of_host = |host: &str| {
        ["tcp_wmem", "tcp_rmem"].map(|name| format!("ipv4/{name}: it is not there in {host}"))
    };
    let queue = |of: &str| {
        ["RX", "TX"]
            .map(|way| format!("{way} queue of the {of}: its length is not shown: no rings"))
    };
    let all = [of_host("west"), of_host("east"), queue("engine"), queue("receiver")].concat();
    assert_eq!(told.lacking, [&all[..], &of_host("east")[..]].concat());
    assert_eq!(told.wrong, [""; 0]);
    assert_eq!(told.applied[..3], APPLIED[..3], "those of the machine are there");
}

/// S2.35.
#[test]
fn the_receiver_s_counters_of_drops_are_printed_with_each_run_of_the_matrix() {
    let told = run("batch-counters", "");
    let of = |run: &str| {
        format!(
            "softnet_stat of the machine, {run}: 0000000a 00000003\nreceiver, {run}: eth0: 7 0 0 3\n"
        )
    };
    assert_eq!(told.text, ["veth org", "veth new", "e1000 org", "e1000 new"].map(of).concat());
}
