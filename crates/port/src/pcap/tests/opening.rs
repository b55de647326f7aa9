//! Tests of opening and examination: files of the wrong kind, of other content, and without
//! permission.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code};
use rustix::fs::{FileType, FlockOperation, flock};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::super::config::{Config, Mode};
use super::super::examine::examine;
use super::super::{target, write};
use super::{classic, kinds, pool};
use crate::Port;
use crate::doctor::{Findings, Level, worst};
use crate::host::testing::Scratch;
use crate::queue::{QueueOps, Want};

/// Runs `test` on a thread without effective capabilities, so that the modes of files apply. It
/// keeps the permitted ones, by which access(2) would grant what open(2) refuses.
fn unprivileged<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let of_no_privilege = || {
            let own = capabilities(None).unwrap();
            let sets = CapabilitySets { effective: CapabilitySet::empty(), ..own };
            set_capabilities(None, sets).unwrap();
            test()
        };
        scope.spawn(of_no_privilege).join().unwrap()
    })
}

/// Returns the level of the worst finding about a port that writes `path`.
fn examined(path: &str) -> Level {
    let spec = crate::parse(&format!("pcap:{path},write")).unwrap();
    let mut found = Findings::default();
    examine(Mode::Write, &spec, &mut found);
    worst(&found.into_vec())
}

#[test]
fn what_cannot_be_opened_says_why() {
    let scratch = Scratch::new();
    let folder = scratch.0.display().to_string();
    let cooked = scratch.file("cooked.pcap", &classic(false, false, 113, &[(1, 1, b"x")]));
    let text = scratch.file("notes.txt", b"not a capture");
    let packed = scratch.file("a.pcap.gz", b"\x1f\x8b\x08\x00 and so on");
    let pool = pool(4);
    for (port, code, why) in [
        (format!("{folder}/none.pcap"), Code::File, "No such file"),
        (folder.clone(), Code::File, "directory"),
        (format!("{folder},write"), Code::File, "directory"),
        (format!("{folder}/no/where.pcap,write"), Code::File, "No such file"),
        (cooked, Code::Capture, "link type 113 (LINUX_SLL), not Ethernet"),
        (text, Code::Capture, "neither pcap nor pcapng"),
        (packed, Code::Capture, "1f 8b 08 00"),
        ("/dev/null".into(), Code::Capture, "it is empty"),
        ("/dev/full,write".into(), Code::File, "No space left"),
    ] {
        let e = Port::open_with(&format!("pcap:{port}"), &pool).unwrap_err();
        assert_eq!(e.code, code, "{e}");
        assert!(e.why.contains(why) && !e.fix.is_empty(), "{e}");
    }
}

#[test]
fn only_a_capture_or_an_empty_file_is_overwritten() {
    let scratch = Scratch::new();
    let pool = pool(4);
    let notes = "notes of a week";
    for (content, is_kept) in [
        (notes.as_bytes(), true),
        (b"abc", true),
        (&classic(true, false, 1, &[(1, 1, b"x")]), false),
        (&classic(false, true, 1, &[]), false),
        (b"", false),
    ] {
        let file = scratch.file("file", content);
        let port = format!("pcap:{file},write");
        let missed = examined(&file) == Level::Miss;
        let opened = Port::open_with(&port, &pool).map(|mut port| _ = port.arm(Want::Room));
        assert_eq!((opened.is_err(), missed), (is_kept, is_kept), "{content:?} {opened:?}");
        assert_eq!(fs::read(&file).unwrap() == content, is_kept, "{content:?}");
        if let Err(e) = opened {
            assert!(e.code == Code::File && e.why.contains("no capture"), "{e}");
            assert!(e.fix.contains("another file"), "{e}");
        }
    }
}

#[test]
fn block_device_is_refused() {
    let e = target::check_kind(FileType::BlockDevice, "/dev/sda").unwrap_err();
    assert!(e.code == Code::File && e.why.contains("block device"), "{e}");
    for kind in [FileType::RegularFile, FileType::CharacterDevice, FileType::Fifo] {
        assert!(target::check_kind(kind, "a").is_ok(), "{kind:?}");
    }
}

/// Tests that a file is locked before its content is read: another port may still write it.
#[test]
fn file_that_another_port_writes_is_busy_whatever_it_has_so_far() {
    let scratch = Scratch::new();
    let path = scratch.file("a.pcap", b"\x0a\x0d");
    let other = fs::File::open(&path).unwrap();
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    let e = Port::open_with(&format!("pcap:{path},write"), &pool(4)).unwrap_err();
    assert_eq!(e.code, Code::Busy, "{e}");
    flock(&other, FlockOperation::Unlock).unwrap();
    let e = Port::open_with(&format!("pcap:{path},write"), &pool(4)).unwrap_err();
    assert!(e.code == Code::File && e.why.contains("no capture"), "{e}");
}

#[test]
fn former_capture_is_kept_until_the_port_is_used() {
    let (scratch, pool) = (Scratch::new(), pool(4));
    let former = classic(true, false, 1, &[(1, 1, b"x")]);
    let file = scratch.file("a.pcap", &former);
    let open = || {
        fs::write(&file, &former).unwrap();
        Port::open_with(&format!("pcap:{file},write"), &pool).unwrap()
    };
    let port = open();
    let says = format!("pcapng file, copy, replaces a capture of {} bytes", former.len());
    assert_eq!(port.obtained().mode, says);
    drop(port);
    assert_eq!(fs::read(&file).unwrap(), former, "nothing was sent");

    let is_whole = |capture: &[u8]| kinds(capture).is_empty() && capture.len() > 60;
    let mut port = open();
    assert!(!port.arm(Want::Room), "there is room");
    drop(port);
    assert!(is_whole(&fs::read(&file).unwrap()), "it declares an interface");

    fs::write(&file, &former).unwrap();
    let spec = crate::parse(&format!("pcap:{file},write")).unwrap();
    let (mut queue, former_bytes) = write::open(&Config::of(&spec).unwrap()).unwrap();
    assert_eq!(former_bytes, former.len() as u64);
    queue.close(Instant::now());
    drop(queue);
    assert!(is_whole(&fs::read(&file).unwrap()), "the end of a run without packets");

    let (mut port, mut batch) = (open(), Batch::with_capacity(1));
    assert!(batch.push(pool.local().alloc_copy(b"packet").unwrap()).is_ok());
    assert_eq!(port.xmit(&mut batch), 1);
    drop(port);
    assert_eq!(kinds(&fs::read(&file).unwrap()), [(1, 6, 6)]);

    let new = scratch.0.join("new.pcapng").display().to_string();
    let port = Port::open_with(&format!("pcap:{new},write"), &pool).unwrap();
    assert_eq!(port.obtained().mode, "pcapng file, copy");
    drop(port);
    assert!(is_whole(&fs::read(&new).unwrap()), "a new file is a capture without use");
}

#[test]
fn a_file_that_may_be_written_and_not_read_is_kept_and_the_error_says_so() {
    let scratch = Scratch::new();
    let file = scratch.file("file", &classic(true, false, 1, &[]));
    fs::set_permissions(&file, Permissions::from_mode(0o200)).unwrap();
    let open = || Port::open_with(&format!("pcap:{file},write"), &pool(4)).unwrap_err();
    let e = unprivileged(open);
    assert!(e.code == Code::File && e.why.contains("Permission denied"), "{e}");
}

#[test]
fn doctor_reports_files_and_folders_that_may_not_be_written() {
    let scratch = Scratch::new();
    let folder = scratch.0.display().to_string();
    let (empty, new) = (scratch.file("empty", b""), format!("{folder}/new"));
    let full = scratch.file("full", &classic(true, false, 1, &[]));
    let levels = || unprivileged(|| [&empty, &full, &new].map(|path| examined(path)));
    let set_mode =
        |path: &str, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    assert_eq!(levels(), [Level::Ok, Level::Warn, Level::Ok]);
    set_mode(&empty, 0o400);
    set_mode(&full, 0o400);
    set_mode(&folder, 0o500);
    let denied = levels();
    set_mode(&folder, 0o700);
    assert_eq!(denied, [Level::Miss; 3]);
    assert_eq!(examined(&folder), Level::Miss, "a folder is no file");
}

#[test]
fn fifo_without_a_reader_is_refused_and_one_with_a_reader_is_written() {
    let scratch = Scratch::new();
    let fifo = scratch.fifo();
    let port = format!("pcap:{fifo},write");
    let e = Port::open_with(&port, &pool(4)).unwrap_err();
    assert!(e.code == Code::File && e.why == "no process reads the pipe", "{e}");
    assert!(e.fix.starts_with("start the reader first"), "{e}");
    let mut options = fs::OpenOptions::new();
    let mut reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
    drop(Port::open_with(&port, &pool(4)).unwrap());
    // A process that another test has just started keeps the writer's descriptor until its exec.
    rustix::io::ioctl_fionbio(&reader, false).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert!(kinds(&bytes).is_empty() && bytes.len() > 60, "it declares an interface");
}

#[test]
fn fifo_whose_reader_comes_a_moment_later_is_written() {
    let scratch = Scratch::new();
    let fifo = scratch.fifo();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            let mut options = fs::OpenOptions::new();
            // Without O_NONBLOCK, this would wait without end for a writer that has given up.
            options.read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap()
        });
        let opened = Port::open_with(&format!("pcap:{fifo},write"), &pool(4));
        assert!(opened.is_ok(), "{:?}", opened.err());
        drop(reader.join().unwrap());
    });
}
