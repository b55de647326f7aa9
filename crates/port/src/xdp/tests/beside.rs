//! Beside an XDP program of another owner, with its map of sockets and CAP_NET_RAW alone.

use std::ffi::{CString, c_long};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use linerate_skb::{Code, Error, Offload, Pool};
use linerate_sys::bpf::{Link, Mode, Program, SocketMap};
use linerate_sys::netif::Interface;
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities};

use super::super::Xdp;
use super::super::program::assemble;
use super::super::queue::tests::open;
use super::{frames, pass, settle, wait_until_up};
use crate::doctor::{Findings, Level, Trial};
use crate::host::filter::Filter;
use crate::host::testing::{
    Scratch, assert_settled, eventually, in_netns_with_xdp, ip, queue, queue_in, receive, send,
    veth,
};
use crate::{Plan, Port, Queue};

const MAP_CREATE: c_long = 0;
const OBJ_PIN: c_long = 6;
const ARRAY: u32 = 2;

/// Returns a pool that can be registered once within the 8 MiB that a user may usually lock, but
/// not twice.
fn pool() -> Pool {
    Pool::builder().frames(3072).build().unwrap()
}

/// Makes the pairs v0 and v1, w0 and w1.
fn two_pairs() {
    veth(1500);
    ip("link add w0 type veth peer name w1");
    ip("link set w0 up");
    ip("link set w1 up");
}

/// Makes a map of four-byte keys and values.
fn map(kind: u32, entries: u32) -> OwnedFd {
    let attr = [kind, 4, 4, entries, 0];
    // SAFETY: the attributes contain no pointers, and have the length that is passed.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the kernel has just created this descriptor, and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn pin(object: i32, path: &Path) {
    #[repr(C)]
    struct Attr {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let text = CString::new(path.to_str().unwrap()).unwrap();
    let attr = Attr { path: text.as_ptr().addr() as u64, fd: object as u32, flags: 0 };
    // SAFETY: the path lives during the call, and the kernel only reads it.
    let done = unsafe { libc::syscall(libc::SYS_bpf, OBJ_PIN, &raw const attr, size_of::<Attr>()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Texts by which `mount` reports a user namespace that may not mount a BPF file system, or a
/// kernel without it.
const REFUSALS: [&str; 6] = [
    "permission denied",
    "Permission denied",
    "Operation not permitted",
    "not mount point",
    "unknown filesystem type",
    "No such device",
];

/// Calls `mount`; returns false, with a message, if that cannot be done here.
fn mounted(args: &[&str]) -> bool {
    let mount = match Command::new("mount").env("LC_ALL", "C").args(args).output() {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: there is no `mount` command");
            return false;
        }
        mount => mount.unwrap(),
    };
    let said = String::from_utf8_lossy(&mount.stderr);
    if REFUSALS.iter().any(|why| said.contains(why)) {
        eprintln!("skipped: a BPF file system cannot be mounted: {}", said.trim());
        return false;
    }
    assert!(mount.status.success(), "{args:?}: {said}");
    true
}

/// A BPF file system in a mount namespace of the test's thread.
struct BpfFs(Scratch);

impl BpfFs {
    fn mount() -> Option<BpfFs> {
        let scratch = Scratch::new();
        // A process that may have a network namespace may have this one, too.
        // SAFETY: NEWNS changes only which files this thread sees; its descriptors stay shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        let folder = scratch.0.to_str().unwrap();
        let calls = [&["--make-rprivate", "/"][..], &["-t", "bpf", "bpf", folder]];
        calls.iter().all(|args| mounted(args)).then_some(BpfFs(scratch))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).status();
    }
}

/// A program of another owner: it gives stamped frames to the sockets in its map.
struct Theirs {
    map: SocketMap,
    link: Option<Link>,
    program: Program,
}

impl Theirs {
    fn attach(interface: &str, mode: Mode, entries: u32) -> Theirs {
        let map = SocketMap::new(entries).unwrap();
        let filter = Filter::of(&crate::parse("xdp:v0,ethertype=0x88b5").unwrap());
        let insns = assemble(&filter.unwrap().unwrap(), map.raw_fd());
        let program = Program::load(&insns, true).unwrap();
        let mut theirs = Theirs { map, link: None, program };
        theirs.attach_to(interface, mode);
        theirs
    }

    fn attach_to(&mut self, interface: &str, mode: Mode) {
        self.link = None;
        let index = Interface::open(interface).unwrap().index();
        eventually(|| {
            self.link = self.program.attach(index, mode).ok();
            self.link.is_some()
        });
    }

    fn pinned(interface: &str, mode: Mode, entries: u32, fs: &BpfFs) -> (Theirs, String) {
        let theirs = Theirs::attach(interface, mode, entries);
        let path = fs.file(interface);
        pin(theirs.map.raw_fd(), &path);
        let text = format!("xdp:{interface},map={},ring=256", path.display());
        (theirs, text)
    }
}

/// Runs `test` on a thread that has only `capabilities`.
fn with_only(capabilities: CapabilitySet, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (effective, permitted) = (capabilities, capabilities);
            let inheritable = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Opens a port that may lock little: the kernel counts the memory of a closed one a moment longer.
fn open_within_limit(text: &str, pool: &Pool) -> Port {
    let mut opened = None;
    eventually(|| match Port::open_with(text, pool) {
        Err(e) if e.code == Code::Memory => false,
        port => {
            opened = Some(port.unwrap());
            true
        }
    });
    opened.unwrap()
}

fn refused(text: &str) -> Error {
    Port::open_with(text, &pool()).unwrap_err()
}

/// Checks that stamped frames that `from` sends are the kernel's.
fn assert_passed_on(from: &mut Queue, kernel: &mut Queue) {
    send(from, &frames(10, 60), Offload::NONE);
    receive(kernel, 10);
}

#[test]
fn a_pinned_map_and_cap_net_raw_are_enough_and_the_program_stays() {
    in_netns_with_xdp(|| {
        veth(1500);
        let Some(fs) = BpfFs::mount() else { return };
        let (_theirs, text) = Theirs::pinned("v0", Mode::Native, 4, &fs);
        let (mut far, mut kernel) = (queue("packet:v1"), queue("packet:v0"));
        with_only(CapabilitySet::NET_RAW, || {
            let pool = pool();
            for _ in 0..2 {
                let port = open_within_limit(&text, &pool);
                let told = port.obtained().to_string();
                assert!(
                    told.contains("AF_XDP native ") && told.contains("filled by the program id "),
                    "{told}"
                );
                let mut xdp = port.into_queues().remove(0);
                pass(&mut far, &mut xdp, &frames(200, 60));
                pass(&mut xdp, &mut far, &frames(200, 60));
                settle(&mut xdp);
                drop(xdp);
                assert!(ip("link show v0").contains("prog/xdp"), "{}", ip("link show v0"));
                // The port's map entry is removed with it, so that the program passes the packets
                // on to the kernel.
                assert_passed_on(&mut far, &mut kernel);
            }
            assert_settled(&pool);
        });
    });
}

#[test]
fn a_descriptor_serves_as_well_and_a_lost_socket_is_entered_again() {
    in_netns_with_xdp(|| {
        veth(1500);
        let theirs = Theirs::attach("v0", Mode::Generic, 4);
        // SAFETY: `dup` returns a new descriptor of ours, which has one owner.
        let copy = unsafe { OwnedFd::from_raw_fd(libc::dup(theirs.map.raw_fd())) };
        let xdp = Xdp::new().with_map("v0", copy).unwrap();
        let (mut far, pool) = (queue("packet:v1"), pool());
        let port = Port::open_driver_with(&xdp, "xdp:v0,ring=256", &pool).unwrap();
        assert!(
            port.obtained().mode.contains("AF_XDP generic copy, filled by"),
            "{}",
            port.obtained()
        );
        let mut near = port.into_queues().remove(0);
        pass(&mut far, &mut near, &frames(100, 60));
        drop(near);
        for (text, words) in [
            ("xdp:v0,udp=7", "udp=7: the XDP program of the map selects the packets"),
            ("xdp:v0,map=/sys/fs/bpf/x", "a map is already given"),
        ] {
            let e = Port::open_driver(&xdp, text).unwrap_err();
            assert!(e.code == Code::PortSyntax && e.why.contains(words), "{e}");
        }
        let Some(fs) = BpfFs::mount() else { return };
        pin(theirs.map.raw_fd(), &fs.file("m"));
        let mut ops = open(&format!("v0,map={},ring=256", fs.file("m").display()), &pool);
        ops.lose_socket();
        let mut near = Queue::new(Box::new(ops), pool.local());
        wait_until_up(&mut near);
        pass(&mut far, &mut near, &frames(100, 60));
        settle(&mut near);
        drop(near);
        assert_settled(&pool);
    });
}

#[test]
fn what_is_no_map_of_sockets_is_refused_with_what_it_is() {
    in_netns_with_xdp(|| {
        ip(
            "link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1 numrxqueues 2 numtxqueues 2",
        );
        ip("link set v0 up");
        ip("link set v1 up");
        let Some(fs) = BpfFs::mount() else { return };
        let (theirs, text) = Theirs::pinned("v0", Mode::Native, 1, &fs);
        pin(map(ARRAY, 4).as_raw_fd(), &fs.file("array"));
        pin(theirs.program.as_fd().as_raw_fd(), &fs.file("program"));
        let scratch = Scratch::new();
        let plain = scratch.file("plain", b"x");
        let of = |path: &Path| format!("xdp:v0,map={}", path.display());
        for (text, code, words, fix) in [
            (
                of(&fs.file("array")),
                Code::PortSyntax,
                "a map of the kind array, not xskmap",
                "bpftool map list",
            ),
            (
                of(&fs.file("program")),
                Code::PortSyntax,
                "it is not a BPF map: bpf-prog",
                "bpftool map list",
            ),
            (of(&fs.file("none")), Code::File, "BPF_OBJ_GET", "ls /sys/fs/bpf"),
            (of(Path::new(&plain)), Code::File, "not in a BPF file system", "bpftool map pin"),
            (text.clone(), Code::PortSyntax, "has 1 entries, none for queue 1", ",queues=0-0"),
            (
                format!("{text},udp=7"),
                Code::PortSyntax,
                "udp=7: the XDP program",
                "leave udp=7 out",
            ),
            ("xdp:v0,map=".into(), Code::PortSyntax, "the file of a pinned map", ""),
            (
                format!("{text},queues=0,mode=generic"),
                Code::Unsupported,
                "in its driver",
                "without mode=",
            ),
        ] {
            let e = refused(&text);
            assert_eq!(e.code, code, "{text}: {e}");
            assert!(e.why.contains(words) && e.fix.contains(fix), "{text}: {e}");
        }
        let e = SocketMap::of(std::fs::File::open(&plain).unwrap().into()).unwrap_err();
        assert_eq!(e.code, Code::PortSyntax, "{e}");
        // Try without the right to the file, and without the capability.
        std::os::unix::fs::chown(fs.file("v0"), Some(1), Some(1)).unwrap();
        with_only(CapabilitySet::NET_RAW, || {
            let e = refused(&format!("{text},queues=0"));
            assert_eq!(e.code, Code::Permission, "{e}");
            assert!(e.fix.ends_with(&format!("chown USER {}", fs.file("v0").display())), "{e}");
        });
        with_only(CapabilitySet::DAC_OVERRIDE, || {
            let e = refused(&format!("{text},queues=0"));
            assert_eq!(e.code, Code::Permission, "{e}");
            assert!(e.fix.contains("CAP_NET_RAW: setcap cap_net_raw+ep "), "{e}");
        });
    });
}

#[test]
fn an_entry_that_has_another_socket_stays_his() {
    in_netns_with_xdp(|| {
        two_pairs();
        let Some(fs) = BpfFs::mount() else { return };
        let (_theirs, text) = Theirs::pinned("v0", Mode::Native, 4, &fs);
        let (pool, mut far) = (pool(), queue("packet:v1"));
        let mut first = queue_in(&text, &pool);
        let e = refused(&text.replace("xdp:v0", "xdp:w0"));
        assert_eq!(e.code, Code::Busy, "{e}");
        assert!(e.why.contains("another socket has the entry of queue 0"), "{e}");
        pass(&mut far, &mut first, &frames(100, 60));
        // A port that only sends has no entry in the map.
        let mut writer =
            queue_in(&text.replace("xdp:v0", "xdp:w0").replace(",ring", ",write,ring"), &pool);
        pass(&mut writer, &mut queue("packet:w1"), &frames(100, 60));
        settle(&mut writer);
        drop((writer, first));
        assert_settled(&pool);
    });
}

#[test]
fn a_second_port_of_a_pool_needs_no_more_locked_memory() {
    in_netns_with_xdp(|| {
        two_pairs();
        let Some(fs) = BpfFs::mount() else { return };
        let (_west, first) = Theirs::pinned("v0", Mode::Native, 4, &fs);
        let (_east, second) = Theirs::pinned("w0", Mode::Native, 4, &fs);
        with_only(CapabilitySet::NET_RAW, || {
            let pool = pool();
            let _first = open_within_limit(&first, &pool);
            let port = Port::open_with(&second, &pool).unwrap();
            assert!(port.obtained().mode.contains(" copy"), "{}", port.obtained());
        });
    });
}

#[test]
fn hold_is_reported_as_one_for_all_ports_that_share_the_interface() {
    in_netns_with_xdp(|| {
        veth(1500);
        let Some(fs) = BpfFs::mount() else { return };
        let (_theirs, text) = Theirs::pinned("v0", Mode::Native, 4, &fs);
        let port = Port::open_with(&format!("{text},hold=300us"), &pool()).unwrap();
        let refused = &port.obtained().refused;
        assert!(refused.iter().any(|why| why.contains("closed last")), "{refused:?}");
    });
}

#[test]
fn doctor_tries_it_and_takes_nothing_from_the_one_who_has_the_map() {
    in_netns_with_xdp(|| {
        veth(1500);
        let Some(fs) = BpfFs::mount() else { return };
        let (mut theirs, text) = Theirs::pinned("v0", Mode::Native, 4, &fs);
        let examined = |text: &str| {
            let spec = crate::parse(text).unwrap();
            let plan: Box<dyn Plan> = crate::plan(text).unwrap();
            let mut found = Findings::default();
            plan.examine(&spec, Trial::Careful, &mut found);
            found.into_vec()
        };
        let is = |text: &str, level: Level, words: &str| {
            let found = examined(text);
            assert!(found.iter().any(|f| f.level == level && f.what.contains(words)), "{found:#?}");
        };
        is(&text, Level::Ok, "the map has 4 entries");
        is(&text, Level::Ok, "\"linerate\" (id ");
        is(&text, Level::Ok, "opens: v0 AF_XDP native copy, queue 0 (tried with write)");
        is(&format!("{text},hold=300us"), Level::Warn, "hold= was not tried");
        assert!(ip("link show v0").contains("prog/xdp"));
        is("xdp:v0", Level::Miss, "v0 is taken");
        theirs.link = None;
        eventually(|| !ip("link show v0").contains("prog/xdp"));
        is(&text, Level::Warn, "no XDP program is attached to v0");
        let port = Port::open_with(&text, &pool()).unwrap();
        assert!(
            port.obtained().refused.iter().any(|why| why.starts_with("packets: no XDP program"))
        );
    });
}

/// Debian has libxdp's program for AF_XDP sockets, and bpftool loads it.
#[test]
fn the_program_of_libxdp_loaded_by_bpftool_feeds_a_port() {
    const OBJECT: &str = "bpf/xsk_def_xdp_prog.o";
    in_netns_with_xdp(|| {
        veth(1500);
        let Some(fs) = BpfFs::mount() else { return };
        let arch = std::env::consts::ARCH;
        let folders =
            [format!("/usr/lib/{arch}-linux-gnu"), "/usr/lib64".into(), "/usr/lib".into()];
        let object = folders.iter().map(|folder| format!("{folder}/{OBJECT}"));
        let Some(object) = object.into_iter().find(|file| Path::new(file).exists()) else {
            return eprintln!("skipped: there is no {OBJECT}");
        };
        let (program, maps) = (fs.file("program"), fs.file("maps"));
        std::fs::create_dir(&maps).unwrap();
        let mut bpftool = Command::new("bpftool");
        bpftool.args(["prog", "load", &object]).arg(&program).arg("pinmaps").arg(&maps);
        match bpftool.output() {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return eprintln!("skipped: there is no `bpftool` command");
            }
            done => {
                let done = done.unwrap();
                let said = String::from_utf8_lossy(&done.stderr);
                // Ubuntu's command is a script that looks for the kernel's own; libbpf needs the
                // kernel's types.
                if ["not found for kernel", "BTF"].iter().any(|why| said.contains(why)) {
                    return eprintln!("skipped: {}", said.trim());
                }
                assert!(done.status.success(), "{said}");
            }
        }
        ip(&format!("link set v0 xdp pinned {}", program.display()));
        let text = format!("xdp:v0,map={},ring=256", maps.join("xsks_map").display());
        let (pool, mut far) = (pool(), queue("packet:v1"));
        let port = Port::open_with(&text, &pool).unwrap();
        assert!(port.obtained().mode.contains("\"xsk_def_prog\" (id "), "{}", port.obtained());
        let mut near = port.into_queues().remove(0);
        pass(&mut far, &mut near, &frames(100, 60));
        pass(&mut near, &mut far, &frames(100, 60));
        settle(&mut near);
        drop(near);
        assert!(ip("link show v0").contains("xsk_def_prog"), "{}", ip("link show v0"));
        assert_settled(&pool);
    });
}
