//! A client that sends files of a file system which it serves itself: their close waits for as long
//! as it likes.
//!
//! The file system is served by a process of its own. When that process ends, in whatever way, the
//! kernel ends every wait for it.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::null;

use linerate_sys::seqpacket::Seqpacket;

use super::super::channel::Channel;
use super::super::message::Message;
use super::crowd::cpu_of;
use super::hostile::sealed;
use super::neighbours::{LONG, Worker, as_nobody, assert_served, init, next, pool};
use super::peer::place;
use super::*;
use crate::doctor::kernel;

/// Environment variable that marks the process that serves the file system.
const SERVER: &str = "LINERATE_TEST_MEMIF_FUSE";
const TEST: &str = "memif::tests::fuse::files_of_a_client_whose_close_waits_starve_no_other_user";

/// A file whose close waits until this value is dropped.
struct Stuck {
    server: Child,
    file: File,
}

impl Stuck {
    /// Starts the process that serves the file system; returns `None`, with a note on stderr, if it
    /// cannot.
    fn new() -> Option<Stuck> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST]).env(SERVER, "1");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        // SAFETY: prctl makes a system call and allocates nothing. The process ends with this
        // thread, which may be killed while it waits for a close.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let mut server = command.spawn().unwrap();
        // The end of the socket that the child has is its last.
        drop(command);
        let mut told = String::new();
        BufReader::new(ours).read_line(&mut told).unwrap();
        match told.trim().parse::<RawFd>() {
            Ok(root) => {
                let path = format!("/proc/{}/fd/{root}", server.id());
                Some(Stuck { file: File::open(path).unwrap(), server })
            }
            Err(_) => {
                // No privilege, no device, or no such file system in the kernel.
                let errnos = [libc::EPERM, libc::EACCES, libc::ENOENT, libc::ENODEV];
                let is_reason = |errno| told.contains(&format!("(os error {errno})"));
                assert!(errnos.into_iter().any(is_reason), "{told:?}");
                eprintln!("skipped: no file system in user space: {told}");
                let _ = (server.kill(), server.wait());
                None
            }
        }
    }

    /// Offers the file as a region, or as a doorbell, as a client that was admitted; returns false
    /// if it was not.
    fn send(&self, name: &str, is_bell: bool) -> bool {
        let Ok(socket) = Seqpacket::connect(Path::new(name)) else { return false };
        let channel = Channel(socket);
        let is_greeted = matches!(next(&channel), Some(Message::Hello { .. }));
        if !is_greeted || channel.send(&init(""), None).is_err() {
            return false;
        }
        if next(&channel) != Some(Message::Ack) {
            return false;
        }
        let region = Message::AddRegion { index: 0, bytes: 4096 };
        if is_bell
            && (channel.send(&region, Some(sealed(4096))).is_err()
                || next(&channel) != Some(Message::Ack))
        {
            return false;
        }
        let message = if is_bell { Message::AddRing(place(0, true)) } else { region };
        // Not by Channel::send, which closes the descriptor.
        let is_sent = channel.0.send(&message.encode(""), Some(self.file.as_fd())).is_ok();
        is_sent && next(&channel).is_some()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let _ = (self.server.kill(), self.server.wait());
    }
}

/// Fails with the error of a system call that returned a negative number.
fn done(result: libc::c_long) -> io::Result<RawFd> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Mounts a file system whose root is a file, and nowhere else; returns its device and the mount.
///
/// Source: fsopen(2), fsconfig(2), fsmount(2), fuse(4).
fn mount() -> io::Result<(File, OwnedFd)> {
    const SET_STRING: u32 = 1;
    const CREATE: u32 = 6;
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = std::ffi::CString::new(device.as_raw_fd().to_string())?;
    // SAFETY: the call reads a string that ends with a zero.
    let fs = done(unsafe { libc::syscall(libc::SYS_fsopen, c"fuse".as_ptr(), 1) })?;
    // SAFETY: the kernel has just returned this descriptor, and nobody else owns it.
    let fs = unsafe { OwnedFd::from_raw_fd(fs) };
    let set = |command: u32, key: Option<&CStr>, value: Option<&CStr>| {
        let [key, value] = [key, value].map(|text| text.map_or(null(), CStr::as_ptr));
        // SAFETY: the call reads the strings, which live longer, and takes no address without one.
        done(unsafe { libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), command, key, value, 0) })
    };
    set(SET_STRING, Some(c"fd"), Some(&number))?;
    set(SET_STRING, Some(c"rootmode"), Some(c"100444"))?;
    set(SET_STRING, Some(c"user_id"), Some(c"0"))?;
    set(SET_STRING, Some(c"group_id"), Some(c"0"))?;
    set(CREATE, None, None)?;
    // SAFETY: the call takes numbers only.
    let root = done(unsafe { libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), 1, 0) })?;
    // SAFETY: as above.
    Ok((device, unsafe { OwnedFd::from_raw_fd(root) }))
}

/// Answers every request but those of close(2), until the process is killed.
///
/// Source: include/uapi/linux/fuse.h.
fn answer(mut device: File) -> io::Result<()> {
    const GETATTR: u32 = 3;
    const OPEN: u32 = 14;
    const RELEASE: u32 = 18;
    const FLUSH: u32 = 25;
    const INIT: u32 = 26;
    /// Requests that have no answer.
    const SILENT: [u32; 3] = [2, 36, 42];
    const ENOSYS: i32 = -38;
    let mut request = vec![0; 1 << 17];
    loop {
        let n = device.read(&mut request)?;
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        assert!(n >= 40);
        let (error, body) = match word(4) {
            FLUSH => continue,
            kind if SILENT.contains(&kind) => continue,
            // Version 7.31, no flags; and the longest write.
            INIT => (0, [7, 31, 0, 0, 0, 4096].into_iter().chain([0; 10]).collect()),
            OPEN => (0, vec![0; 4]),
            // Of the attributes, the mode and the number of links.
            GETATTR => {
                let mut words = vec![0; 26];
                (words[4], words[19], words[20]) = (1, 0o100444, 1);
                (0, words)
            }
            RELEASE => (0, Vec::new()),
            _ => (ENOSYS, Vec::new()),
        };
        let body: Vec<u8> = body.into_iter().flat_map(u32::to_ne_bytes).collect();
        let head = [16 + body.len() as u32, error as u32].into_iter().flat_map(u32::to_ne_bytes);
        let reply: Vec<u8> = head.chain(request[8..16].iter().copied()).chain(body).collect();
        device.write_all(&reply)?;
    }
}

/// Serves the file system if this process is the one for it; returns false in any other process.
fn is_server() -> bool {
    if std::env::var_os(SERVER).is_none() {
        return false;
    }
    let stdin = io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut parent = UnixStream::from(stdin);
    match mount() {
        Ok((device, root)) => {
            writeln!(parent, "{}", root.as_raw_fd()).unwrap();
            let _ = answer(device);
        }
        Err(e) => writeln!(parent, "{e}").unwrap(),
    }
    true
}

/// Asserts that the threads of memif sleep: in one of several seconds they use less than 100 ms of
/// CPU time. Other tests of this process use these threads, too.
fn assert_sleeping() {
    let cpu_s = || cpu_of(std::process::id())[0];
    let start = Instant::now();
    loop {
        let before_s = cpu_s();
        std::thread::sleep(Duration::from_secs(1));
        let used_s = cpu_s() - before_s;
        if used_s < 0.1 {
            return;
        }
        assert!(start.elapsed() < 3 * LONG, "{used_s:.2} s of CPU time in a second");
    }
}

/// Tests a client of another user than the honest one, which sends as many files as it may.
#[test]
fn files_of_a_client_whose_close_waits_starve_no_other_user() {
    if is_server() {
        return;
    }
    let Some(stuck) = Stuck::new() else { return };
    let (name, pool) = (name(), pool());
    let worker = Worker::of_port(&format!("memif:{name},role=server,peer=any"), &pool);
    // More clients than there are places for objects that wait. Before Linux 6.16 the socket of
    // each takes one.
    let refusals = if kernel::version() >= Some((6, 16)) { 200 } else { 20 };
    let flood = || {
        let (mut sent, mut refused) = (0, 0);
        while sent < 1000 && refused < refusals {
            let is_sent = stuck.send(&name, sent % 2 == 0);
            (sent, refused) = if is_sent { (sent + 1, 0) } else { (sent, refused + 1) };
        }
        sent
    };
    let Some(sent) = as_nobody(flood) else { return };
    eprintln!("{sent} files whose close waits");
    assert!((8..100).contains(&sent));
    assert_served(&format!("memif:{name},zerocopy=no"), &pool);
    // The sockets of many clients wait for their close.
    assert_sleeping();
    worker.end();
}
