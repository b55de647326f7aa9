//! Checks real interfaces in namespaces of their own, and that the checks change nothing.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use linerate_sys::bpf::{Insn, Link, Mode, Program, Reg, SocketMap, XDP_PASS, program_ids};
use linerate_sys::netif::Interface;
use linerate_sys::netns::{self, Netns};
use linerate_sys::xdp::{XdpSocket, is_refused};
use linerate_testing::{Scratch, eventually, unless};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;

const LONG: Duration = Duration::from_secs(10);

/// Runs `test` in a namespace of its own, where AF_XDP is available.
fn in_netns(test: impl FnOnce(&Netns) + Send) {
    let made = XdpSocket::new().and_then(|_| Netns::with_pair());
    if let Some(netns) = unless(made, |e| is_xdp_refused(e) || netns::is_refused(e)) {
        until(&netns, "v0", " state UP ");
        until(&netns, "v1", " state UP ");
        netns.run(|| test(&netns)).unwrap();
    }
}

/// Returns true if the kernel, or a filter of system calls, refuses AF_XDP or BPF to this process.
fn is_xdp_refused(e: &linerate_port::Error) -> bool {
    e.kind() == Kind::Unsupported && is_refused(&e.why)
}

/// Does as `in_netns`, if this process may also make BPF's maps, and lock the memory of a port.
///
/// The tests of linerate-port have this function too. They lock more, and it is compiled for them
/// alone.
fn in_netns_with_xdp(test: impl FnOnce(&Netns) + Send) {
    if let Some(bytes) = little_to_lock() {
        let (most, kib) = (LOCKED_BYTES >> 10, bytes >> 10);
        return eprintln!(
            "skipped: AF_XDP locks up to {most} KiB in a test, and RLIMIT_MEMLOCK is {kib} KiB (fix: ulimit -l unlimited)"
        );
    }
    if has_bpf() {
        in_netns(test);
    }
}

/// Most memory that a test of a port locks, with room for a test beside it.
const LOCKED_BYTES: u64 = 64 << 20;

/// Returns the limit of locked memory if it is too low for a port of AF_XDP.
fn little_to_lock() -> Option<u64> {
    let privileged = capabilities(None).unwrap().effective.contains(CapabilitySet::IPC_LOCK);
    getrlimit(Resource::Memlock).current.filter(|&bytes| !privileged && bytes < LOCKED_BYTES)
}

/// Returns true if this process may make maps and programs of BPF; false, with a message, if the
/// kernel refuses that, or a filter of system calls, as `container` of tests/src/setting.rs does.
fn has_bpf() -> bool {
    unless(SocketMap::new(1), is_xdp_refused).is_some()
}

/// Waits until `ip` prints `words` for interface `name`: the kernel updates the carrier's state
/// with a delay.
fn until(netns: &Netns, name: &str, words: &str) {
    eventually(|| netns.ip(&format!("-o link show {name}")).unwrap().contains(words));
}

/// State of the machine that a check must not change.
#[derive(Debug)]
struct Things {
    links: String,
    features: String,
    fds: usize,
}

impl Things {
    fn now(netns: &Netns) -> Things {
        let features = Command::new("ethtool").args(["-k", "v1"]).output();
        Things {
            links: netns.ip("-d link").unwrap(),
            features: features.map_or(String::new(), |o| String::from_utf8(o.stdout).unwrap()),
            fds: sockets_and_programs(),
        }
    }

    fn are_as(&self, before: &Things) -> bool {
        // Compare descriptors with `<=`: other tests of this process close theirs meanwhile.
        (&self.links, &self.features) == (&before.links, &before.features) && self.fds <= before.fds
    }
}

/// Returns the number of this process's descriptors of the kinds that a port has.
fn sockets_and_programs() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|fd| fs::read_link(fd.path()).ok());
    let names = links.map(|to| to.to_string_lossy().into_owned());
    names.filter(|to| to.starts_with("socket:") || to.contains("bpf")).count()
}

/// Checks `port`, and that the check leaves nothing behind.
fn checked(netns: &Netns, port: &str, trial: Trial) -> Vec<Finding> {
    let (before, programs) = (Things::now(netns), program_ids().collect::<BTreeSet<_>>());
    let found = check_with(port, trial, &Registry::default());
    // The kernel removes programs a moment later; other processes add and remove theirs.
    let mut left: BTreeSet<u32> = program_ids().filter(|id| !programs.contains(id)).collect();
    let deadline = Instant::now() + LONG;
    while !left.is_empty() || !Things::now(netns).are_as(&before) {
        assert!(Instant::now() < deadline, "{left:?}, {before:?}, {:?}", Things::now(netns));
        std::thread::sleep(Duration::from_millis(5));
        let now: BTreeSet<u32> = program_ids().collect();
        left.retain(|id| now.contains(id) && !others_have(*id));
    }
    found
}

/// Returns true if another process has the program with that id: tests of other crates may run
/// meanwhile.
fn others_have(program: u32) -> bool {
    let line = format!("prog_id:\t{program}\n");
    let us = std::process::id().to_string();
    // Skip `self`, which is this process under another name.
    let processes = fs::read_dir("/proc").unwrap().flatten().filter(|p| {
        let name = p.file_name().to_string_lossy().into_owned();
        name != us && name.bytes().all(|b| b.is_ascii_digit())
    });
    let infos = processes.filter_map(|p| fs::read_dir(p.path().join("fdinfo")).ok());
    let mut infos = infos.flatten().flatten().filter_map(|f| fs::read_to_string(f.path()).ok());
    infos.any(|info| info.contains(&line))
}

/// Returns the only finding whose `what` is this text.
fn that<'a>(found: &'a [Finding], what: &str) -> &'a Finding {
    let mut those = found.iter().filter(|f| f.what.contains(what));
    let one = those.next().unwrap_or_else(|| panic!("no {what:?} in {found:#?}"));
    assert!(those.next().is_none(), "several {what:?} in {found:#?}");
    one
}

/// Serialises the tests that open sockets and programs: each counts those of the process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn a_healthy_interface_is_opened_by_every_driver_and_left_as_it_was() {
    let _alone = alone();
    in_netns_with_xdp(|netns| {
        let found = checked(netns, "xdp:v0,udp=7777", Trial::Careful);
        assert!(worst(&found) < Level::Miss, "{found:#?}");
        assert!(that(&found, "v0: veth, up, with a carrier").level == Level::Ok);
        assert!(
            that(&found, "opens: v0 AF_XDP native copy, queue 0 (tried with").level == Level::Ok
        );
        assert!(that(&found, "the only queue").level == Level::Ok);
        assert!(that(&found, "udp=7777 can be reserved").level == Level::Ok);
        assert!(that(&found, "v1, its other end, is in this network namespace").level == Level::Ok);
        let zero_copy = that(&found, "not obtained: zero-copy");
        assert_eq!((zero_copy.level, &zero_copy.fix), (Level::Warn, &None));

        let found = checked(netns, "packet:v0,tcp=80", Trial::Careful);
        assert!(that(&found, "opens: v0 AF_PACKET").what.contains("only tcp=80"), "{found:#?}");
        let found = checked(netns, "packet:v0,vnet=off", Trial::Careful);
        assert!(found.iter().all(|f| f.level != Level::Miss), "{found:#?}");
        let found = checked(netns, "tap:t0,up", Trial::Careful);
        assert!(that(&found, "opens: t0 TAP created").level == Level::Ok, "{found:#?}");
    });
}

#[test]
fn an_interface_that_is_down_or_alone_is_told_with_the_command_that_cures_it() {
    let _alone = alone();
    in_netns(|netns| {
        netns.ip("link set v1 down").unwrap();
        until(netns, "v0", "NO-CARRIER");
        until(netns, "v0", " state LOWERLAYERDOWN ");
        let found = check("packet:v0");
        let finding = that(&found, "has no carrier");
        assert_eq!(finding.level, Level::Warn);
        let fix = finding.fix.as_ref().unwrap();
        assert_eq!((fix.text.as_str(), fix.proof), ("ip link set v1 up", Proof::Ran));
        netns.ip("link set v0 down").unwrap();
        until(netns, "v0", " state DOWN ");
        for port in ["xdp:v0", "packet:v0"] {
            let found = checked(netns, port, Trial::Full);
            let finding = that(&found, "cannot use v0");
            assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-DEVICE-DOWN")));
            let fix = finding.fix.as_ref().unwrap();
            assert_eq!((fix.text.as_str(), fix.proof), ("ip link set v0 up", Proof::Ran));
            assert!(!found.iter().any(|f| f.what.starts_with("opens")), "{found:#?}");
        }
    });
}

#[test]
fn an_interface_that_is_not_there_is_named_with_one_that_may_have_been_meant() {
    let _alone = alone();
    in_netns(|netns| {
        for port in ["xdp:v9", "packet:v9"] {
            let found = checked(netns, port, Trial::Careful);
            let finding = that(&found, "network interface v9");
            assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-NODEV")));
            assert!(finding.fix.as_ref().unwrap().text.starts_with("did you mean v"));
        }
    });
}

#[test]
fn a_program_that_is_attached_is_named_and_stays() {
    let _alone = alone();
    if !has_bpf() {
        return;
    }
    in_netns(|netns| {
        let _theirs = attach_to("v0");
        let found = checked(netns, "xdp:v0", Trial::Full);
        let finding = that(&found, "v0 is taken");
        assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-BUSY")));
        assert!(finding.why.as_ref().unwrap().contains("\"linerate\" (id "), "{finding:?}");
        let fix = finding.fix.as_ref().unwrap();
        assert_eq!(
            fix.command, None,
            "the kernel refuses to detach a program that a link attached"
        );
        assert!(fix.text.contains("close that port, or end its process"), "{fix}");
        assert!(netns.ip("link show v0").unwrap().contains("xdp"));
        assert!(!found.iter().any(|f| f.what.starts_with("opens")), "{found:#?}");
    });
}

/// Attaches a program that passes everything.
fn attach_to(name: &str) -> (Program, Link) {
    let program = Program::load(&[Insn::set(Reg::R0, XDP_PASS), Insn::exit()], true).unwrap();
    let link = program.attach(Interface::open(name).unwrap().index(), Mode::Native).unwrap();
    (program, link)
}

#[test]
fn a_port_that_somebody_has_is_told_with_who_has_it() {
    let _alone = alone();
    in_netns_with_xdp(|netns| {
        let theirs = UdpSocket::bind("0.0.0.0:7777").unwrap();
        for port in ["xdp:v0,udp=7777", "packet:v0,udp=7777"] {
            let found = check(port);
            let finding = that(&found, "cannot reserve UDP port 7777");
            assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-BUSY")));
            let us = format!("(process {})", std::process::id());
            assert!(finding.why.as_ref().unwrap().ends_with(&us), "{finding:?}");
        }
        drop(theirs);
        let found = checked(netns, "xdp:v0,udp=7777", Trial::Careful);
        assert!(worst(&found) < Level::Miss, "{found:#?}");
    });
}

#[test]
fn an_interface_that_the_host_uses_is_told_with_the_filter_to_type() {
    let _alone = alone();
    in_netns_with_xdp(|netns| {
        netns.ip("addr add 192.0.2.7/24 dev v0").unwrap();
        let found = checked(netns, "xdp:v0", Trial::Careful);
        let finding = that(&found, "cannot open xdp:v0");
        assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-BUSY")));
        assert!(finding.why.as_ref().unwrap().ends_with("v0 has the address 192.0.2.7"));
        assert!(finding.fix.as_ref().unwrap().text.contains("xdp:v0,udp=7777"), "{finding:?}");
        // All other checks are reported as well.
        that(&found, "opens: v0 AF_XDP native copy, queue 0 (tried with");
        for port in ["xdp:v0,all", "xdp:v0,udp=7777", "xdp:v0,write"] {
            assert!(worst(&check(port)) < Level::Miss, "{port}");
        }
    });
}

#[test]
fn an_interface_by_which_a_container_receives_is_taken_whole_only_with_all() {
    let _alone = alone();
    in_netns_with_xdp(|netns| {
        let container = Netns::new().unwrap();
        let named = "name m0 address 02:00:00:00:00:07 type macvlan mode bridge";
        let add = format!("link add link v0 netns {} {named}", container.path());
        let no_macvlan = ["Unknown device type", "Operation not supported"];
        match netns.ip(&add) {
            Err(e) if no_macvlan.iter().any(|why| e.why.contains(why)) => {
                return eprintln!("skipped: this kernel has no macvlan: {e}");
            }
            made => drop(made.unwrap()),
        }
        container.ip("link set m0 up").unwrap();
        let found = checked(netns, "xdp:v0", Trial::Careful);
        let finding = that(&found, "cannot open xdp:v0");
        assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-BUSY")));
        let why = finding.why.as_ref().unwrap();
        let takes = "takes every packet from others on this machine: v0 also receives for the station 02:00:00:00:00:07 of";
        assert!(why.contains(takes), "{why}");
        assert!(finding.fix.as_ref().unwrap().text.contains("xdp:v0,all"), "{finding:?}");
        assert!(worst(&check("xdp:v0,all")) < Level::Miss);
    });
}

#[test]
fn the_name_of_anothers_process_gives_no_orders_to_a_terminal() {
    let _alone = alone();
    in_netns(|_| {
        let scratch = Scratch::new();
        let program = scratch.0.join("\u{1b}]0;p\u{7}\nok  x");
        fs::copy("/bin/sleep", &program).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:7777").unwrap();
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty()).unwrap();
        let mut theirs = Command::new(&program).arg("60").spawn().unwrap();
        drop(socket);
        let found = check("packet:v0,udp=7777");
        theirs.kill().unwrap();
        theirs.wait().unwrap();
        let finding = that(&found, "cannot reserve UDP port 7777");
        let why = finding.why.as_ref().unwrap();
        assert!(why.contains("\\u{1b}]0;p\\u{7}\\u{a}ok  x (process "), "{why:?}");
        assert!(!why.chars().any(char::is_control), "{why:?}");
    });
}

#[test]
fn queues_that_are_left_to_the_kernel_are_told() {
    let _alone = alone();
    in_netns(|netns| {
        netns.ip("link add w0 numrxqueues 2 numtxqueues 2 type veth peer name w1").unwrap();
        netns.ip("link set w0 up").unwrap();
        netns.ip("link set w1 up").unwrap();
        until(netns, "w0", " state UP ");
        until(netns, "w1", " state UP ");
        let there = Interface::open("w0").unwrap().rx_queues().unwrap();
        assert_eq!(there, 2);
        let found = checked(netns, "xdp:w0,queues=1", Trial::Careful);
        assert_eq!(that(&found, "takes 1 of 2 queues").level, Level::Warn);
        let found = check("xdp:w0,queues=2");
        assert_eq!(that(&found, "xdp:w0").code, Some("E-PORT-SYNTAX"));
    });
}

#[test]
fn a_tap_that_exists_is_left_alone_unless_asked() {
    let _alone = alone();
    in_netns(|netns| {
        netns.ip("tuntap add t0 mode tap").unwrap();
        let found = checked(netns, "tap:t0", Trial::Careful);
        assert_eq!(that(&found, "t0 exists, and was not opened").level, Level::Warn);
        let found = check_with("tap:t0", Trial::Full, &Registry::default());
        assert_eq!(that(&found, "opens: t0 TAP attached").level, Level::Ok);
        let found = checked(netns, "tap:v0", Trial::Full);
        assert_eq!(that(&found, "v0 is no TAP").code, Some("E-BUSY"));
    });
}

#[test]
fn what_cannot_be_a_port_is_refused_and_what_needs_no_device_opens() {
    let bad = ["v0", "packt:v0", "null:,sise=60", "xdp:v0,ring=3", "packet:v0,vnet=maybe"];
    for text in bad.into_iter().chain(["null:,qdisc=htb"]) {
        let found = check(text);
        assert_eq!((found.len(), found[0].code), (1, Some("E-PORT-SYNTAX")), "{found:?}");
    }
    // The engine reads the options of the last one itself.
    for text in ["null:", "gen:,count=1", "sink:", "ring:r0", "null:,qdisc=fifo,tx_batch=8"] {
        assert_eq!(worst(&check(text)), Level::Ok, "{text}");
    }
}

#[test]
fn a_capture_that_is_there_keeps_its_contents() {
    let scratch = Scratch::new();
    let file = scratch.0.join("x.pcap");
    let of = |more: &str| check(&format!("pcap:{}{more}", file.display())).remove(0);
    assert_eq!((of("").level, of(",write").level), (Level::Miss, Level::Ok));
    assert!(of("").fix.unwrap().text.contains(",write"));
    assert!(!file.exists());
    fs::write(&file, "no capture").unwrap();
    assert_eq!((of("").level, of(",write").level), (Level::Miss, Level::Miss));
    assert_eq!(fs::read(&file).unwrap(), b"no capture");
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1u32].map(u32::to_ne_bytes).concat();
    fs::write(&file, &header).unwrap();
    assert_eq!((of("").level, of(",write").level), (Level::Ok, Level::Warn));
    assert_eq!(fs::read(&file).unwrap(), header);
    drop(scratch);
    assert_eq!(of(",write").code, Some("E-FILE"));
    assert_eq!(check("pcap:/dev/zero").remove(0).level, Level::Warn);
}

#[test]
fn a_memif_server_is_met_and_left_and_one_that_refuses_is_told() {
    let name = format!("@linerate-doctor-{}", std::process::id());
    let of = |more: &str| check(&format!("memif:{name}{more}"));
    let absent = of("");
    let finding = that(&absent, "has no server");
    assert_eq!((finding.level, finding.code), (Level::Warn, Some("E-DEVICE-DOWN")));
    assert!(finding.why.as_ref().unwrap().contains("refused"), "{finding:?}");
    assert_eq!(worst(&of(",role=server")), Level::Ok);

    let text = format!("memif:{name},role=server,secret=s");
    // A child forked by another test has a copy of the trial's socket until it executes its
    // program.
    let server = std::iter::repeat_with(|| linerate_port::Port::open(&text));
    let mut server = server.take(100_000).find_map(Result::ok).expect("a free port is found");
    let done = std::sync::atomic::AtomicBool::new(false);
    let health = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let left = |server: &linerate_port::Port| match server.health() {
                linerate_port::Health::Down(e) => e.why.contains("has disconnected"),
                _ => false,
            };
            let until = std::time::Instant::now() + Duration::from_secs(20);
            // The server may notice that the client has left after the client's call has returned.
            while !done.load(std::sync::atomic::Ordering::Relaxed)
                || !left(&server) && std::time::Instant::now() < until
            {
                server.wait(Some(Duration::from_millis(20))).unwrap();
            }
            server.health()
        });
        let found = of(",secret=s");
        assert_eq!(worst(&found), Level::Ok, "{found:#?}");
        let goodbye = format!("{name}: the peer accepted a connection, which was closed again");
        assert_eq!(that(&found, &goodbye).level, Level::Ok);
        assert_eq!(worst(&of(",secret=other")), Level::Miss);
        assert_eq!(that(&of(",role=server"), "cannot listen").code, Some("E-BUSY"));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        serving.join().unwrap()
    });
    let linerate_port::Health::Down(after) = health else { panic!("{health:?}") };
    assert!(after.why.contains("has disconnected"), "{after:?}");
}

#[test]
fn the_machine_is_looked_at_and_keeps_its_interfaces() {
    let _alone = alone();
    let before = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let names = |text: &str| {
        text.lines().filter_map(|l| Some(l.split_once(':')?.0.to_owned())).collect::<Vec<_>>()
    };
    let found = machine();
    assert!(found.iter().any(|f| f.what.starts_with("Linux ")), "{found:#?}");
    assert!(found.iter().any(|f| f.what.contains("may be used")), "{found:#?}");
    let no_pages = found.iter().find(|f| f.what.starts_with("there are no free 2 MiB pages"));
    // The remedy is a command, and adds to the pages that there are: other programs use them.
    let fix = no_pages.and_then(|f| f.fix.as_ref());
    let pages = fix.map(|fix| fix.text.strip_prefix("sysctl -w vm.nr_hugepages=").map(str::parse));
    let there = linerate_port::doctor::proc::number("/proc/sys/vm/nr_hugepages").unwrap_or(0);
    assert!(pages.is_none_or(|n| matches!(n, Some(Ok(n)) if there < n)), "{fix:?}");
    let after = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    assert_eq!(names(&before), names(&after));
}

/// Runs this test program again, with this test alone, as a user who may lock little memory.
#[test]
fn memory_that_may_not_be_locked_is_told_with_the_limit() {
    const CHILD: &str = "LINERATE_DOCTOR_LIMITED";
    if std::env::var_os(CHILD).is_some() {
        return limited();
    }
    let this = "doctor::tests::memory_that_may_not_be_locked_is_told_with_the_limit";
    let exe = std::env::current_exe().unwrap();
    let child = Command::new(exe).args(["--exact", this, "--nocapture"]).env(CHILD, "1").output();
    let child = child.unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success() && out.contains("1 passed"), "{out}{err}");
    eprint!("{err}");
}

fn limited() {
    in_netns(|netns| {
        // A limit that is lower already cannot be raised.
        let most = getrlimit(Resource::Memlock).maximum.unwrap_or(u64::MAX).min(1 << 20);
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(Resource::Memlock, limit).unwrap();
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        sets.permitted.remove(CapabilitySet::IPC_LOCK);
        sets.inheritable.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).unwrap();
        for down in [false, true] {
            if down {
                netns.ip("link set v0 down").unwrap();
            }
            let found = check("xdp:v0");
            let finding = that(&found, "the packet memory cannot be registered");
            assert_eq!((finding.level, finding.code), (Level::Miss, Some("E-MEMORY")));
            let limit = format!("RLIMIT_MEMLOCK lets this user lock {} KiB", most >> 10);
            assert!(finding.why.as_ref().unwrap().contains(&limit), "{finding:?}");
            assert!(finding.fix.as_ref().unwrap().text.contains("cap_ipc_lock"), "{finding:?}");
        }
        let mut none = capabilities(None).unwrap();
        none.effective = CapabilitySet::empty();
        set_capabilities(None, none).unwrap();
        let found = check("xdp:v0");
        let codes: Vec<_> = found.iter().filter_map(|f| f.code).collect();
        assert!(codes.contains(&"E-PERM"), "{found:#?}");
    });
}
