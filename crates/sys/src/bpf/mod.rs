//! BPF programs and maps for XDP; each lives as long as its descriptor.
//!
//! Owner: every object here is a descriptor. A program that is attached by a link is detached when
//! the link's descriptor is closed, also by SIGKILL; nothing is pinned.
//!
//! Source: bpf(2), include/uapi/linux/bpf.h, net/core/dev.c `bpf_xdp_link_attach`.

mod insn;
mod live;
mod map;
#[cfg(test)]
mod tests;

use std::ffi::c_long;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::capability::Capabilities;
use crate::error::{Code, Error, Result};

pub use insn::{If, Insn, Reg, Size};
pub use live::XDP_TX;
pub use map::SocketMap;

/// The place where a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel makes an sk_buff.
    Native,
    /// In the stack, with an sk_buff: works on any device.
    Generic,
}

/// A program's verdict: pass the packet on as if there were no program.
pub const XDP_PASS: i32 = 2;
/// Helper: sends the packet to the socket in a map's entry.
///
/// Source: `bpf_redirect_map(map, key, flags)`, whose low flags are what it says if there is none.
pub const HELPER_REDIRECT_MAP: i32 = 51;
/// Offset of the packet's first byte in a program's context.
pub const CONTEXT_DATA: i16 = 0;
/// Offset of the pointer to the byte after the packet.
pub const CONTEXT_DATA_END: i16 = 4;
/// Offset of the number of the queue that received the packet.
pub const CONTEXT_RX_QUEUE: i16 = 16;

const PROG_LOAD: c_long = 5;
const PROG_GET_NEXT_ID: c_long = 11;
const PROG_GET_FD_BY_ID: c_long = 13;
const OBJ_GET_INFO_BY_FD: c_long = 15;
const PROG_TEST_RUN: c_long = 10;
const LINK_CREATE: c_long = 28;

const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Flag: the program accepts packets in several buffers.
const PROG_HAS_FRAGS: u32 = 1 << 5;
const LINK_GENERIC: u32 = 1 << 1;
const LINK_NATIVE: u32 = 1 << 2;
const NAME_BYTES: usize = 16;
/// Most bytes that are kept of the verifier's log.
const LOG_BYTES: usize = 16 << 10;
/// Most attempts to load a program while signals interrupt the verifier.
const LOADS_MAX: usize = 5;

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    jited_bytes: u32,
    xlated_bytes: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    created_by_uid: u32,
    map_ids: u32,
    map_ids_at: u64,
    name: [u8; NAME_BYTES],
}

impl Info {
    /// Reads the kernel's information on the program with this descriptor.
    fn of(program: BorrowedFd<'_>) -> rustix::io::Result<Info> {
        let mut info = Info::default();
        // SAFETY: all counts in `info` are zero, so the kernel follows none of its addresses.
        unsafe { info_of(program, &mut info) }.map(|()| info)
    }
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// An attachment of a program to an interface, which lasts as long as this value.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Program {
    /// Loads `insns` through the kernel's verifier; `frags` is true if the program accepts packets
    /// in several buffers.
    ///
    /// # Errors
    /// `E-PERM` without CAP_BPF and CAP_NET_ADMIN; `E-SYSTEM` with the verifier's last words.
    pub fn load(insns: &[Insn], frags: bool) -> Result<Program> {
        let load = |log: &mut [u8]| uninterrupted(|| Program::try_load(insns, frags, log));
        match load(&mut []) {
            Ok(program) => Ok(program),
            Err(first) => {
                // Load again, with a log for the verifier's message; the first try had no log,
                // because a log costs memory.
                let mut log = vec![0; LOG_BYTES];
                match load(&mut log) {
                    Ok(program) => Ok(program),
                    Err(second) => Err(load_refused(first, &log, second == Errno::NOSPC)),
                }
            }
        }
    }

    fn try_load(insns: &[Insn], frags: bool, log: &mut [u8]) -> rustix::io::Result<Program> {
        #[repr(C)]
        #[derive(Default)]
        struct Attr {
            prog_type: u32,
            insn_count: u32,
            insns: u64,
            license: u64,
            log_level: u32,
            log_bytes: u32,
            log: u64,
            kernel_version: u32,
            flags: u32,
            name: [u8; NAME_BYTES],
            ifindex: u32,
            attach_type: u32,
        }
        let attr = Attr {
            prog_type: PROG_TYPE_XDP,
            insn_count: insns.len() as u32,
            insns: insns.as_ptr().expose_provenance() as u64,
            license: c"Dual MIT/GPL".as_ptr().expose_provenance() as u64,
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() { 0 } else { log.as_mut_ptr().expose_provenance() as u64 },
            flags: if frags { PROG_HAS_FRAGS } else { 0 },
            name: name("linerate"),
            attach_type: ATTACH_XDP,
            ..Attr::default()
        };
        // SAFETY: instructions, licence and log have the given lengths and outlive the call; the
        // kernel writes only the log, which is exclusively borrowed.
        unsafe { open(PROG_LOAD, &attr) }.map(Program)
    }

    /// Runs the program once on `packet`, which is not sent; returns the verdict.
    ///
    /// # Errors
    /// The system's own: EINVAL for a packet shorter than an Ethernet header.
    pub fn test(&self, packet: &[u8]) -> rustix::io::Result<u32> {
        #[repr(C)]
        #[derive(Default)]
        struct Attr {
            prog_fd: u32,
            returned: u32,
            in_bytes: u32,
            out_bytes: u32,
            packet: u64,
            out: u64,
            repeat: u32,
            duration: u32,
        }
        let mut attr = Attr {
            prog_fd: self.0.as_raw_fd() as u32,
            in_bytes: packet.len() as u32,
            packet: packet.as_ptr().expose_provenance() as u64,
            repeat: 1,
            ..Attr::default()
        };
        // SAFETY: the packet has the given length, outlives the call and is only read; the kernel
        // writes only the attributes, which are exclusively borrowed.
        unsafe { bpf(PROG_TEST_RUN, &raw mut attr) }?;
        Ok(attr.returned)
    }

    /// Returns the program's id, which no other program has while this one exists.
    ///
    /// # Errors
    /// The system's own.
    pub fn id(&self) -> rustix::io::Result<u32> {
        Info::of(self.as_fd()).map(|info| info.id)
    }

    /// Attaches the program to the interface with index `index`, until the link is dropped.
    ///
    /// # Errors
    /// The system's own error: EBUSY if there is a program, EOPNOTSUPP if the driver has no place
    /// for one, ERANGE or EINVAL if the MTU is too large for it.
    pub fn attach(&self, index: u32, mode: Mode) -> rustix::io::Result<Link> {
        #[repr(C)]
        struct Attr {
            prog_fd: u32,
            target: u32,
            attach_type: u32,
            flags: u32,
        }
        let attr = Attr {
            prog_fd: self.0.as_raw_fd() as u32,
            target: index,
            attach_type: ATTACH_XDP,
            flags: match mode {
                Mode::Native => LINK_NATIVE,
                Mode::Generic => LINK_GENERIC,
            },
        };
        // SAFETY: the attributes contain no address.
        unsafe { open(LINK_CREATE, &attr) }.map(Link)
    }
}

/// Returns the ids of the loaded programs, in ascending order; none if this process lacks the
/// privilege.
pub fn program_ids() -> impl Iterator<Item = u32> {
    #[repr(C)]
    #[derive(Default)]
    struct NextId {
        start: u32,
        next: u32,
        flags: u32,
    }
    std::iter::successors(Some(0), |start| {
        let mut attr = NextId { start: *start, ..NextId::default() };
        // SAFETY: the attributes contain no address; the kernel writes the answer into them.
        unsafe { bpf(PROG_GET_NEXT_ID, &raw mut attr) }.ok()?;
        // Stop if the ids do not rise, so that the iteration always ends.
        (attr.next > *start).then_some(attr.next)
    })
    .skip(1)
}

/// Returns the name of the program with that id; `None` if it does not exist, or this process lacks
/// the privilege.
#[must_use]
pub fn program_name(id: u32) -> Option<String> {
    #[repr(C)]
    #[derive(Default)]
    struct ById {
        id: u32,
        next: u32,
        flags: u32,
    }
    // SAFETY: the attributes contain no address.
    let program = unsafe { open(PROG_GET_FD_BY_ID, &ById { id, ..ById::default() }) }.ok()?;
    let info = Info::of(program.as_fd()).ok()?;
    let end = info.name.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
    Some(String::from_utf8_lossy(&info.name[..end]).into_owned())
}

/// Reads the kernel's information on an object into `info`, the beginning of its structure.
///
/// # Safety
/// Every address in `info` is of memory that the kernel may write as far as the count beside it
/// says.
unsafe fn info_of<I>(object: BorrowedFd<'_>, info: &mut I) -> rustix::io::Result<()> {
    #[repr(C)]
    struct Attr {
        fd: u32,
        bytes: u32,
        info: u64,
    }
    let mut attr = Attr {
        fd: object.as_raw_fd() as u32,
        bytes: size_of::<I>() as u32,
        info: std::ptr::from_mut(info).expose_provenance() as u64,
    };
    // SAFETY: the kernel writes at most `bytes` to `info`, whose size `bytes` is, and the number of
    // written bytes to the attributes; both are exclusively borrowed. The caller guarantees the
    // addresses in `info`.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &raw mut attr) }.map(drop)
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn name(text: &str) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    // The last byte stays 0, as the kernel requires.
    for (to, from) in name.iter_mut().zip(text.bytes().take(NAME_BYTES - 1)) {
        *to = from;
    }
    name
}

/// Makes a bpf(2) call that returns a new descriptor.
///
/// # Safety
/// As for [`bpf`], and `command` returns one.
unsafe fn open<A>(command: c_long, attr: &A) -> rustix::io::Result<OwnedFd> {
    // SAFETY: the caller guarantees what `bpf` requires.
    let fd = unsafe { bpf(command, attr) }?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel has just made the descriptor for this call, so nothing else owns it; it is
    // close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls bpf(2).
///
/// # Safety
/// `attr` is what `command` takes, or the beginning of it, and every address in it is of memory
/// that the kernel may use for the call as `command` does. If `command` writes results into the
/// attributes, `attr` is of an exclusive borrow.
unsafe fn bpf<A>(command: c_long, attr: *const A) -> rustix::io::Result<c_long> {
    // SAFETY: the kernel reads, and for some commands writes, only the `size_of::<A>()` bytes of
    // `attr`, and takes all further attributes as zero; the caller guarantees the rest.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<A>()) };
    if done < 0 { Err(crate::error::last_errno()) } else { Ok(done) }
}

/// Calls `load` again while it fails with EAGAIN, up to a limit: the verifier ends so if a signal
/// is pending.
///
/// Source: kernel/bpf/verifier.c `do_check`.
fn uninterrupted<T>(mut load: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let mut loaded = load();
    for _ in 1..LOADS_MAX {
        if !matches!(loaded, Err(Errno::AGAIN)) {
            break;
        }
        loaded = load();
    }
    loaded
}

/// Returns the last line of the verifier's log, which has the reason for a refusal; no text if
/// `is_cut` and the log lacks its end, the verifier's statistics.
fn last_words(log: &[u8], is_cut: bool) -> String {
    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    let is_statistics = |line: &str| line.starts_with("processed ");
    let mut lines = text.lines().rev().filter(|line| !line.is_empty()).peekable();
    if is_cut && !lines.peek().is_some_and(|line| is_statistics(line)) {
        return String::new();
    }
    lines.find(|line| !is_statistics(line)).unwrap_or("").to_owned()
}

/// Returns the error of a program that was refused; `is_cut` is true if the verifier's log did not
/// fit in `log`.
fn load_refused(errno: Errno, log: &[u8], is_cut: bool) -> Error {
    let (what, call) = ("cannot load an XDP program", "BPF_PROG_LOAD");
    let words = last_words(log, is_cut);
    if words.is_empty() && !is_cut {
        return refused(what, call, errno);
    }
    // The verifier, too, refuses with EACCES: a lack of capabilities is reported before the
    // verifier runs, so this is no `Code::Permission`.
    let mut error = Error::os(Code::System, what, call, errno);
    if !words.is_empty() {
        error.why = format!("{}; the verifier says: {words}", error.why);
    }
    error
}

/// The remedy where a process has the capabilities and the call is refused nevertheless.
const FILTERED: &str = "this process has the capabilities: run it outside of a user namespace (rootless container), or allow bpf(2) in its system call filter (seccomp)";

fn refused(what: &str, call: &str, errno: Errno) -> Error {
    match errno {
        Errno::PERM if Capabilities::BPF.and(Capabilities::NET_ADMIN).are_held() => {
            Error::os(Code::Permission, what, call, errno).fix(FILTERED)
        }
        Errno::PERM | Errno::ACCESS => {
            Error::os(Code::Permission, what, call, errno).fix(Capabilities::XDP.remedy())
        }
        Errno::NOSYS => Error::os(Code::Unsupported, what, call, errno)
            .fix("Linux 5.11 or later, built with CONFIG_BPF_SYSCALL"),
        Errno::NOMEM => Error::os(Code::Memory, what, call, errno).fix("ulimit -l unlimited"),
        _ => Error::os(Code::System, what, call, errno),
    }
}
