//! Tests of records on a folder of the test, and of their lines.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use linerate_ctl::affinity::Was;
use linerate_sys::netif::{DeviceOffload, Interface, NapiHold, Rss};
use linerate_testing::{Scratch, in_netns, ip};
use rustix::fs::FlockOperation;

use super::left::{by_hand, is_left_of, is_of_neither, is_of_run};
use super::line::{exists, identity, pidns};
use super::lock::LOCK;
use super::netns::Netns;
use super::record::{Written, reason};
use super::*;

/// A number that no process has.
const NO_PROCESS: u32 = u32::MAX;

/// A folder of records, which is removed after the test.
struct Folder {
    path: Scratch,
    folder: OwnedFd,
}

impl Folder {
    fn new() -> Folder {
        let path = Scratch::new();
        let folder = open(&path.0, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        Folder { path, folder }
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        fs::write(self.path.0.join(name), text).unwrap();
        fs::set_permissions(self.path.0.join(name), Permissions::from_mode(mode)).unwrap();
    }

    /// Makes a file older than the age at which an unfinished one is removed.
    fn make_old(&self, name: &str) {
        let file = fs::File::options().write(true).open(self.path.0.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * ABANDONED).unwrap();
    }

    /// Returns the names of the files, without that of the lock.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path.0).unwrap().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| name != LOCK);
        names.sort_unstable();
        names
    }

    /// Undoes the records; returns the level and the text of each finding, and its reason.
    fn undo(&self) -> Vec<(Level, String, String)> {
        let found = undo_in(&self.path.0, &self.folder, &Screen::plain(true)).into_iter();
        found.map(|f| (f.level, f.what, f.why.unwrap_or_default())).collect()
    }
}

/// Another network namespace than that of any process.
const ELSEWHERE: Netns = Netns { inode: 0, cookie: None };

/// Returns the line of a run that has ended, on an interface that no longer exists.
fn ended(interface: &str, start: u64) -> Line {
    Line {
        pid: NO_PROCESS,
        start,
        pidns: pidns(),
        netns: Netns::here().unwrap(),
        index: 1 << 30,
        interface: interface.into(),
        left: Left::Offload(DeviceOffload::Checksums),
    }
}

fn rss(table: &[u32], key: &[u8]) -> Rss {
    let mut rss = Rss::default();
    (rss.table, rss.key) = (table.to_vec(), key.to_vec());
    rss
}

#[test]
fn records_that_cannot_be_read_are_reported_and_unfinished_ones_of_ended_runs_are_removed() {
    let folder = Folder::new();
    let (own, own_start) = identity("self").unwrap();
    folder.write("run-7-8", "half a li", 0o600);
    folder.write("run-7-9", &format!("{}\n", ended("gone0", 9)), 0o620);
    folder.write(&format!("run-{NO_PROCESS}-10"), "", 0o600);
    folder.write(&format!("new-run-{NO_PROCESS}-11"), "half a li", 0o600);
    folder.write(&format!("new-run-{own}-{own_start}"), "half a li", 0o600);
    folder.write("other", "half a li", 0o600);
    let ended = [format!("run-{NO_PROCESS}-10"), format!("new-run-{NO_PROCESS}-11")];
    folder.undo();
    assert!(ended.iter().all(|name| folder.names().contains(name)), "they may be of a container");
    ended.iter().for_each(|name| folder.make_old(name));
    folder.make_old(&format!("new-run-{own}-{own_start}"));
    let unread = unread_in(&folder.path.0, &folder.folder);
    assert_eq!(unread.len(), 2, "a run reports them, too");
    assert!(unread.iter().all(|finding| finding.level == Level::Warn), "{unread:?}");
    let found = folder.undo();
    assert_eq!(found.len(), 2, "{found:?}");
    for name in ["run-7-8", "run-7-9"] {
        let what = format!("the record {} cannot be read", folder.path.0.join(name).display());
        assert!(found.iter().any(|(level, told, _)| *level == Level::Miss && *told == what));
    }
    let unfinished = format!("new-run-{own}-{own_start}");
    assert_eq!(folder.names(), [unfinished.as_str(), "other", "run-7-8", "run-7-9"]);
}

#[test]
fn folder_of_a_user_is_known_only_if_the_environment_names_it() {
    let of_user = |name: &str| base(false, Some(name.into()));
    let folder = std::env::temp_dir();
    assert_eq!(of_user(folder.to_str().unwrap()), Some(folder));
    for name in ["", "run/user/1000", "/nonexistent/user/1000", "/dev/null"] {
        assert_eq!(of_user(name), None, "{name}");
    }
    assert_eq!((base(false, None), base(true, None)), (None, Some("/run".into())));
}

#[test]
fn records_of_later_runs_are_undone_first_and_each_record_from_its_end() {
    let folder = Folder::new();
    // Names whose order is not that of the times.
    for (name, start, interfaces) in [
        ("run-1-a", 20, ["c0", "d0"]),
        ("run-2-b", 10, ["a0", "b0"]),
        ("run-3-c", 30, ["e0", "f0"]),
    ] {
        let lines = interfaces.map(|interface| format!("{}\n", ended(interface, start)));
        folder.write(name, &lines.concat(), 0o600);
    }
    let told: Vec<String> = folder.undo().into_iter().map(|(_, what, _)| what).collect();
    let names = ["f0", "e0", "d0", "c0", "b0", "a0"];
    let gone = |name: &str| format!("{name} no longer exists, so nothing has to be restored");
    assert_eq!(told, names.map(gone));
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn setting_that_a_running_process_has_changed_since_is_not_undone() {
    let folder = Folder::new();
    let (pid, start) = identity("self").unwrap();
    let running = Line { pid, start, ..ended("gone0", 0) };
    let hold = Left::Hold { sets: vec![NapiHold::default()], before: NapiHold::default() };
    let other = Line { left: hold, ..ended("gone0", 3) };
    folder.write("run-1", &format!("{running}\n"), 0o600);
    folder.write("run-2", &format!("{}\n", ended("gone0", 2)), 0o600);
    folder.write("run-3", &format!("{other}\n"), 0o600);
    let found = folder.undo();
    let has = |level, part: &str| found.iter().any(|f| f.0 == level && f.2.contains(part));
    assert!(has(Level::Warn, "still runs, and will restore it"), "{found:?}");
    assert!(has(Level::Miss, "needs it as it is"), "{found:?}");
    assert_eq!(folder.names(), ["run-1", "run-2"], "a hold is another setting");
    fs::remove_file(folder.path.0.join("run-1")).unwrap();
    assert_eq!(folder.undo()[0].0, Level::Ok);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn hold_of_a_run_that_was_killed_after_an_earlier_one_has_started_is_undone() {
    let folder = Folder::new();
    let (pid, start) = identity("self").unwrap();
    let hold = || Left::Hold { sets: vec![NapiHold::default()], before: NapiHold::default() };
    let running = Line { pid, start, left: hold(), ..ended("gone0", 0) };
    folder.write("run-1", &format!("{running}\n"), 0o600);
    folder.write(
        "run-2",
        &format!("{}\n", Line { left: hold(), ..ended("gone0", start - 1) }),
        0o600,
    );
    folder.write(
        "run-3",
        &format!("{}\n", Line { left: hold(), ..ended("gone0", start + 1) }),
        0o600,
    );
    folder.undo();
    assert_eq!(folder.names(), ["run-1", "run-2"], "the run that started later is undone");
}

#[test]
fn line_that_is_undone_is_removed_from_its_record() {
    let folder = Folder::new();
    let line = Line { netns: ELSEWHERE, ..ended("away0", 5) };
    let text = format!("half a li\n{line}\n{}\n", ended("gone0", 5));
    folder.write("run-1", &text, 0o600);
    folder.write("new-run-1", "of a killed process", 0o600);
    folder.undo();
    assert_eq!(folder.names(), ["run-1"]);
    let text = fs::read_to_string(folder.path.0.join("run-1")).unwrap();
    assert_eq!(text, format!("half a li\n{line}\n"));
}

#[test]
fn folder_that_another_process_has_locked_does_not_prevent_an_undo() {
    let folder = Folder::new();
    folder.write("run-1", &format!("{}\n", ended("gone0", 5)), 0o600);
    // Any user can do this to a folder that all may read.
    let again = open(&folder.path.0, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    rustix::fs::flock(&again, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(folder.undo()[0].0, Level::Ok);
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn folder_that_is_called_as_a_record_is_none() {
    let folder = Folder::new();
    fs::create_dir(folder.path.0.join("run-west")).unwrap();
    // As systemd makes for a service with a user of its own.
    std::os::unix::fs::symlink("run-west", folder.path.0.join("run-east")).unwrap();
    assert!(unread_in(&folder.path.0, &folder.folder).is_empty());
    assert!(folder.undo().is_empty());
}

#[test]
fn nothing_is_undone_while_another_process_has_locked_the_records() {
    let folder = Folder::new();
    folder.write("run-1", &format!("{}\n", ended("gone0", 5)), 0o600);
    let lock = Lock::take(&folder.folder, Duration::ZERO).unwrap();
    let found = undo_in(&folder.path.0, &folder.folder, &Screen::plain(true));
    assert_eq!((found.len(), found[0].level, found[0].code), (1, Level::Miss, Some("E-BUSY")));
    assert_eq!(folder.names(), ["run-1"]);
    drop(lock);
    assert_eq!(folder.undo()[0].0, Level::Ok);
}

#[test]
fn run_whose_process_is_hidden_may_still_run() {
    let hidden = || Err(io::Error::from(Errno::NOENT));
    assert_eq!(Run::in_proc(hidden(), 5, |_| true), Run::Hidden);
    assert_eq!(Run::in_proc(hidden(), 5, |_| false), Run::Ended);
    let stat = || fs::read_to_string("/proc/self/stat");
    let (own, start) = identity("self").unwrap();
    assert_eq!(Run::in_proc(stat(), start, |_| true), Run::Lives);
    assert_eq!(Run::in_proc(stat(), start + 1, |_| true), Run::Ended, "a later process");
    let refused = io::Error::from(Errno::ACCESS);
    assert!(exists(own, &refused));
    if own == std::process::id() {
        assert!(!exists(NO_PROCESS, &refused) && !exists(0, &refused));
    }
}

#[test]
fn run_of_another_pid_namespace_may_still_run() {
    let Some(own) = pidns() else { return println!("skipped: the kernel has no PID namespaces") };
    let folder = Folder::new();
    let line = Line { pidns: Some(own + 1), ..ended("gone0", 5) };
    folder.write("run-1", &format!("{line}\n"), 0o600);
    let found = folder.undo();
    assert!(found[0].0 == Level::Warn && found[0].2.contains("PID namespace"), "{found:?}");
    let found = undo_in(&folder.path.0, &folder.folder, &Screen::plain(true));
    let remove = format!("remove the record (rm {})", folder.path.0.join("run-1").display());
    assert!(found[0].fix.as_ref().unwrap().text.contains(&remove), "{found:?}");
    assert_eq!((folder.names(), line.pending()), (vec!["run-1".into()], None));
    assert!(!line.is_of_ended_run_here() && ended("gone0", 5).is_of_ended_run_here());
}

#[test]
fn record_of_another_network_namespace_is_kept_and_named_because_that_may_be_gone() {
    let folder = Folder::new();
    folder.write("run-1", &format!("{}\n", Line { netns: ELSEWHERE, ..ended("away0", 5) }), 0o600);
    let found = undo_in(&folder.path.0, &folder.folder, &Screen::plain(true));
    assert_eq!((found.len(), found[0].level), (1, Level::Warn), "{found:?}");
    let fix = &found[0].fix.as_ref().unwrap().text;
    let remove = format!("and remove the record (rm {})", folder.path.0.join("run-1").display());
    assert!(fix.contains("ip netns exec NAME") && fix.contains("was deleted"), "{fix}");
    assert!(fix.ends_with(&remove), "{fix}");
    assert_eq!(folder.names(), ["run-1"]);
}

#[test]
fn hold_of_an_interface_that_was_renamed_is_recorded_for_that_interface() {
    in_netns(|| {
        ip("link add v0 type veth peer name v1");
        let v0 = Interface::open("v0").unwrap();
        let hold = NapiHold { time_ns: 20_000, polls: 2 };
        hold.set(&v0).unwrap();
        let mut written = Written::default();
        ip("link set v0 name w0");
        ip("link add v0 type veth peer name v2");
        let set = |us| NapiHold::of_time(Duration::from_micros(us));
        written.note_hold(v0.index(), set(50)).unwrap();
        ip("link set w0 name x0");
        written.note_hold(v0.index(), set(70)).unwrap();
        let [line] = &written.lines[..] else { panic!("{:?}", written.lines) };
        assert_eq!((line.index, &*line.interface), (v0.index(), "w0"));
        assert_eq!(line.left, Left::Hold { sets: vec![set(70)], before: hold });
        set(70).set(&v0).unwrap();
        assert!(line.may_be_left(true));
        ip("link del x0");
        assert_eq!(written.note_hold(v0.index(), set(90)), Err(Errno::NODEV));
    });
}

#[test]
fn time_and_polls_of_a_hold_are_compared_separately() {
    let hold = |time_ns, polls| NapiHold { time_ns, polls };
    let (sets, before) = ([hold(250_000, 1)], hold(20_000, 2));
    // The run was killed between the writes of the two.
    for now in [hold(250_000, 1), hold(250_000, 2), hold(20_000, 1)] {
        assert!(is_of_run(now, &sets, before), "{now:?}");
    }
    // Another program has set the time, and the same number of polls by chance.
    for now in [hold(70_000, 1), hold(250_000, 3)] {
        assert!(!is_of_run(now, &sets, before), "{now:?}");
    }
}

#[test]
fn rss_table_that_is_neither_set_nor_former_is_left_to_the_user() {
    let (set, before) = (rss(&[0, 2, 0, 2], &[]), rss(&[0, 1, 2, 0], &[7, 0xff]));
    let is_unknown = |now: &Rss| is_of_neither(now, &set, &before);
    assert!(!is_unknown(&rss(&[0, 2, 0, 2], &[7, 0xff])), "it is to be restored");
    assert!(!is_unknown(&rss(&[0, 1, 2, 0], &[7, 0xff])), "it is restored");
    assert!(!is_unknown(&rss(&[0, 1, 2, 0], &[9])), "the run has set no key");
    assert!(is_unknown(&rss(&[0, 0, 0, 0], &[7, 0xff])));
    let is_left = |table: &[u32]| is_left_of(&rss(table, &[7, 0xff]), &set, &before, true);
    assert_eq!(is_left(&[0, 2, 0, 2]), Some(true));
    assert_eq!(is_left(&[0, 1, 2, 0]), Some(false));
    assert_eq!(is_left(&[0, 0, 0, 0]), None, "it may be left");
    let even = by_hand("eth0", &set, &before);
    assert!(even.ends_with(": ethtool -X eth0 equal 3"), "{even}");
    let set = rss(&[0, 2, 0, 2], &[1, 1]);
    assert!(by_hand("eth0", &set, &before).ends_with(" -X eth0 hkey 07:ff equal 3"));
    let mut default = before.clone();
    default.is_default = true;
    let text = by_hand("eth0", &set, &default);
    let command = "ethtool -X eth0 hkey 07:ff && ethtool -X eth0 default";
    assert!(text.ends_with(&format!(": {command}")), "{text}");
    let text = by_hand("eth0", &rss(&[0, 2, 0, 2], &[]), &default);
    assert!(text.ends_with(": ethtool -X eth0 default"), "{text}");
    let odd = by_hand("eth0", &set, &rss(&[2, 2, 0, 0], &[7]));
    assert!(odd.contains("table (2,2,0,0 hkey 07) by hand"), "{odd}");
}

#[test]
fn default_rss_table_that_a_killed_run_wrote_again_is_restored() {
    let (set, mut before) = (rss(&[0, 1, 0, 1], &[]), rss(&[0, 1, 0, 1], &[7]));
    before.is_default = true;
    let back = set.undone(&before, &before).unwrap();
    assert!(back.is_default && back.table == before.table && back.key.is_empty());
    // After the run it is the default again, and looks the same; after a kill it is written.
    assert_eq!(is_left_of(&before, &set, &before, false), Some(false));
    assert_eq!(is_left_of(&before, &set, &before, true), None);
    // The default for another number of queues is no other table.
    let mut wider = rss(&[0, 1, 2, 3], &[7]);
    wider.is_default = true;
    assert!(!is_of_neither(&wider, &set, &before));
    assert_eq!(is_left_of(&wider, &set, &before, false), Some(false));
    wider.is_default = false;
    assert!(is_of_neither(&wider, &set, &before));
    let keyed = rss(&[0, 1, 0, 1], &[1]);
    assert_eq!(is_left_of(&keyed, &keyed, &before, true), Some(true), "the key is left");
    let text = Left::Rss { set, before }.to_string();
    assert_eq!(text, "rss=0,1,0,1/=0,1,0,1/07/default");
    let read = Left::of(&text);
    assert!(matches!(&read, Some(Left::Rss { before, .. }) if before.is_default), "{read:?}");
}

#[test]
fn a_line_is_read_as_it_is_written_and_nothing_else_is() {
    let mut line = Line {
        pid: 7,
        start: 8,
        pidns: Some(6),
        netns: Netns { inode: 9, cookie: Some(77) },
        index: 3,
        interface: "v1".into(),
        left: Left::Offload(DeviceOffload::Checksums),
    };
    let text = "linerate-undo/3 7 8 6 9:77 3 v1 checksum-offload";
    assert_eq!((line.to_string().as_str(), Line::of(text).as_ref()), (text, Some(&line)));
    let former = Line::of("linerate-undo/2 7 8 6 9 3 v1 checksum-offload").unwrap();
    line.netns.cookie = None;
    assert_eq!(former, line);
    // The first form has no PID namespace.
    line.pidns = None;
    let text = "linerate-undo/1 7 8 9 3 v1 checksum-offload";
    assert_eq!((line.to_string().as_str(), Line::of(text)), (text, Some(line)));
    for was in [Was::read("irq=34=0-1").unwrap(), Was::read("thread=5=0,1").unwrap()] {
        let line = Line::of(&format!("linerate-undo/1 7 8 9 3 v1 {was}")).unwrap();
        assert_eq!(line.left, Left::Interrupts(was));
    }
    for text in ["hold=250000/1=20000/2", "hold=250000/1,0/0=20000/2"] {
        let line = Line::of(&format!("linerate-undo/1 7 8 9 3 v0 {text}")).unwrap();
        assert_eq!(line.left.to_string(), text);
        assert_eq!(line.left.descriptions().1, "NAPI holds it for 20 us again");
    }
    let text = "rss=0,2,0,2/=0,1,2,3/6d5a00ff";
    let line = Line::of(&format!("linerate-undo/1 7 8 9 3 eth0 {text}")).unwrap();
    let Left::Rss { set, before } = &line.left else { panic!("{line:?}") };
    assert_eq!((&set.table, &set.key), (&vec![0, 2, 0, 2], &vec![]));
    assert_eq!((&before.table, &before.key), (&vec![0, 1, 2, 3], &vec![0x6d, 0x5a, 0, 0xff]));
    assert_eq!(line.left.to_string(), text);
    for bad in [
        "",
        "linerate-undo/1 7 8 9 3 v1 rss=0,1/",
        "linerate-undo/1 7 8 9 3 v1 rss=0,1/=0,x/",
        "linerate-undo/1 7 8 9 3 v1 rss=0,1/=0,1/6d5",
        "linerate-undo/1 7 8 9 3 v1 rss=0,1/=0,1/+f",
        "linerate-undo/1 7 8 9 3 v1 rss=/=0,1/",
        "linerate-undo/1 7 8 9 3 v1 queues",
        "linerate-undo/1 7 8 9 3 v1 hold=250000/1",
        "linerate-undo/1 7 8 9 3 v1 hold=250000/1,=0/0",
        "linerate-undo/1 7 8 9 3 v1 hold=250000/1=-1/0",
        "linerate-undo/1 7 8 9 3 v1 irq=34=/../0",
        "linerate-undo/1 -7 8 9 3 v1 checksum-offload",
        "linerate-undo/1 7 8 9 3 v1 checksum-offload more",
        "linerate-undo/1 7 8 6 9 3 v1 checksum-offload",
        "linerate-undo/2 7 8 9 3 v1 checksum-offload",
        "linerate-undo/4 7 8 6 9 3 v1 checksum-offload",
        "linerate-undo/3 7 8 6 9: 3 v1 checksum-offload",
        "linerate-undo/3 7 8 6 9:x 3 v1 checksum-offload",
    ] {
        assert_eq!(Line::of(bad), None, "{bad}");
    }
}

#[test]
fn a_process_is_told_from_a_later_one_of_its_number() {
    let (pid, start) = identity("self").unwrap();
    assert!(start > 0 && Run::of(pid, start) == Run::Lives);
    assert_eq!(Run::of(pid, start - 1), Run::Ended);
    assert_eq!(Run::of(NO_PROCESS, start), Run::Ended);
    assert!(!is_own(fs::File::open("/dev/null").unwrap(), FileType::RegularFile));
}

#[test]
fn reason_of_a_missing_record_names_what_is_missing() {
    for (e, at, why) in [
        (Errno::SRCH, "/run/linerate", "/proc is not mounted"),
        (Errno::NOENT, "$XDG_RUNTIME_DIR/linerate", "XDG_RUNTIME_DIR names no folder"),
        (Errno::NOSPC, "/run/linerate", "/run/linerate: "),
    ] {
        assert!(reason(e, at).starts_with(why), "{e}");
    }
}

#[test]
fn lines_that_stay_keep_their_order() {
    let folder = Folder::new();
    let away = |name: &str| Line { netns: ELSEWHERE, ..ended(name, 5) };
    let text = format!("{}\n{}\n{}\n", away("away0"), ended("gone0", 5), away("away1"));
    folder.write("run-1", &text, 0o600);
    folder.undo();
    let kept = fs::read_to_string(folder.path.0.join("run-1")).unwrap();
    assert_eq!(kept, format!("{}\n{}\n", away("away0"), away("away1")));
}

#[test]
fn record_that_is_too_long_or_of_another_user_is_not_used() {
    let folder = Folder::new();
    let line = format!("{}\n", ended("gone0", 5));
    let long = line.repeat(BYTES_MAX as usize / line.len() + 1);
    folder.write("run-1", &long, 0o600);
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        folder.write("run-2", &line, 0o600);
        std::os::unix::fs::chown(folder.path.0.join("run-2"), Some(65_534), None).unwrap();
    }
    let found = folder.undo();
    assert_eq!(found.len(), 1 + usize::from(is_root), "{found:?}");
    assert!(
        found
            .iter()
            .all(|(level, what, _)| *level == Level::Miss && what.contains("cannot be read"))
    );
    assert_eq!(fs::read_to_string(folder.path.0.join("run-1")).unwrap(), long);
    assert_eq!(folder.names().len(), found.len());
}

#[test]
fn unfinished_file_of_another_pid_namespace_stays() {
    let Some(own) = pidns() else { return println!("skipped: the kernel has no PID namespaces") };
    let folder = Folder::new();
    let (here, away) = (format!("new-run-{NO_PROCESS}-1"), format!("new-run-{NO_PROCESS}-2"));
    folder.write(&here, &format!("{}\n", ended("gone0", 1)), 0o600);
    let line = Line { pidns: Some(own + 1), ..ended("gone0", 2) };
    folder.write(&away, &format!("{line}\n"), 0o600);
    folder.undo();
    assert_eq!(folder.names(), [away]);
}

#[test]
fn process_that_waits_for_its_parent_has_ended() {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (front, behind) = stat.rsplit_once(") ").unwrap();
    let zombie = format!("{front}) Z{}", &behind[1..]);
    let (_, start) = identity("self").unwrap();
    assert_eq!(Run::in_proc(Ok(stat), start, |_| true), Run::Lives);
    assert_eq!(Run::in_proc(Ok(zombie), start, |_| true), Run::Ended);
}

#[test]
fn run_in_another_network_namespace_does_not_need_an_interface_of_this_one() {
    let folder = Folder::new();
    let (pid, start) = identity("self").unwrap();
    let running = Line { pid, start, netns: ELSEWHERE, ..ended("gone0", 0) };
    folder.write("run-1", &format!("{running}\n"), 0o600);
    folder.write("run-2", &format!("{}\n", ended("gone0", 2)), 0o600);
    folder.undo();
    assert_eq!(folder.names(), ["run-1"]);
}

/// Runs `test` in a network namespace with the two ends of a veth, v0 and v1.
fn with_pair(test: impl FnOnce() + Send) {
    if let Some(netns) = linerate_testing::netns_with_pair() {
        netns.run(test).unwrap();
    }
}

/// Returns the line of an ended run that turned the checksum offload of `interface` off.
fn turned_off(interface: &str) -> Line {
    let index = linerate_sys::netif::Interface::open(interface).unwrap().index();
    Line { index, ..ended(interface, 5) }
}

#[test]
fn interface_that_has_the_name_of_another_one_is_not_restored() {
    with_pair(|| {
        let folder = Folder::new();
        let line = Line { interface: "v0".into(), ..turned_off("v1") };
        folder.write("run-1", &format!("{line}\n"), 0o600);
        let found = folder.undo();
        assert!(found[0].0 == Level::Miss && found[0].2.contains("is called v1 now"), "{found:?}");
        assert_eq!(folder.names(), ["run-1"]);
    });
}

#[test]
fn run_begins_with_the_settings_from_before_killed_runs_on_its_own_interfaces_only() {
    with_pair(|| {
        let v1 = linerate_sys::netif::Interface::open("v1").unwrap();
        let is_on = || v1.offload(DeviceOffload::Checksums).unwrap();
        let begin = |folder: &Folder, port| {
            let (drivers, screen) = (Registry::default(), Screen::plain(true));
            recover(&folder.path.0, &folder.folder, std::iter::once(port), &drivers, &screen);
        };
        v1.set_offload(DeviceOffload::Checksums, false).unwrap();
        let folder = Folder::new();
        let interrupts = Left::Interrupts(Was::read("irq=999999=0").unwrap());
        for (name, line) in [
            ("run-1", Line { netns: ELSEWHERE, ..turned_off("v1") }),
            ("run-2", Line { left: interrupts, ..turned_off("v1") }),
        ] {
            folder.write(name, &format!("{line}\n"), 0o600);
        }
        begin(&folder, "packet:v0");
        assert!(!is_on() && folder.names() == ["run-1", "run-2"], "{:?}", folder.names());
        folder.write("run-3", &format!("{}\n", turned_off("v1")), 0o600);
        begin(&folder, "packet:lo");
        assert!(!is_on() && folder.names().len() == 3, "of another interface");
        begin(&folder, "packet:v0");
        assert!(is_on() && folder.names() == ["run-1", "run-2"], "{:?}", folder.names());
        // What is restored already is forgotten, so that a later change by hand stays.
        folder.write("run-3", &format!("{}\n", turned_off("v1")), 0o600);
        begin(&folder, "packet:v0");
        assert_eq!(folder.names(), ["run-1", "run-2"]);
        v1.set_offload(DeviceOffload::Checksums, false).unwrap();
        begin(&folder, "packet:v0");
        assert!(!is_on());
    });
}

#[test]
fn change_in_a_deleted_namespace_is_not_undone_in_a_later_one_of_its_number() {
    with_pair(|| {
        let here = Netns::here().unwrap();
        let Some(cookie) = here.cookie else { return println!("skipped: Linux before 5.14") };
        let v1 = linerate_sys::netif::Interface::open("v1").unwrap();
        v1.set_offload(DeviceOffload::Checksums, false).unwrap();
        let folder = Folder::new();
        let deleted = Netns { cookie: Some(cookie - 1), ..here };
        assert!(!deleted.is_here() && here.is_here());
        folder.write("run-1", &format!("{}\n", Line { netns: deleted, ..turned_off("v1") }), 0o600);
        let found = folder.undo();
        assert!(found[0].2.starts_with("it is in another network namespace"), "{found:?}");
        assert!(!v1.offload(DeviceOffload::Checksums).unwrap());
        // A record of a former version has no cookie.
        let former = Netns { cookie: None, ..here };
        folder.write("run-1", &format!("{}\n", Line { netns: former, ..turned_off("v1") }), 0o600);
        folder.undo();
        assert!(v1.offload(DeviceOffload::Checksums).unwrap());
    });
}
