//! Reasons for which the kernel refuses AF_XDP or its memory, and the remedies.

use rustix::io::Errno;
use rustix::process::Rlimit;

use crate::capability::Capabilities;
use crate::error::{Code, Error, Result};
use crate::mem::{self, Pages, Region};

/// The words of the reason where this user may lock too little memory; the limit follows.
const LIMITED: &str = "RLIMIT_MEMLOCK lets this user lock";
/// The beginnings of the reasons where AF_XDP is refused before any interface is involved: the
/// socket, and the map and the program of BPF.
const REFUSED: [&str; 3] = ["socket(AF_XDP): ", "BPF_MAP_CREATE: ", "BPF_PROG_LOAD: "];

/// Returns true if `why`, the reason of an error or a text that contains it, says that this user
/// may lock too little packet memory. Tests skip by it.
#[doc(hidden)]
#[must_use]
pub fn is_limit_of_locked_memory(why: &str) -> bool {
    why.contains(LIMITED)
}

/// Returns true if `why`, the reason of an `E-PERM` or `E-UNSUPPORTED` or a text that contains it,
/// says that the kernel or a filter of system calls refuses AF_XDP to this process. Tests skip by
/// it.
#[doc(hidden)]
#[must_use]
pub fn is_refused(why: &str) -> bool {
    REFUSED.iter().any(|call| why.contains(call))
}

/// Returns the error for a call of an AF_XDP socket.
pub(super) fn refused(call: &str, errno: Errno) -> Error {
    let what = "cannot open an AF_XDP socket";
    match errno {
        Errno::PERM | Errno::ACCESS => {
            Error::os(Code::Permission, what, call, errno).fix(Capabilities::XDP.remedy())
        }
        Errno::AFNOSUPPORT | Errno::NOPROTOOPT => Error::os(Code::Unsupported, what, call, errno)
            .fix("Linux 5.11 or later, built with CONFIG_XDP_SOCKETS"),
        Errno::NOMEM => Error::os(Code::Memory, what, call, errno)
            .fix("a smaller pool, or fewer descriptors: ring=256"),
        _ => Error::os(Code::System, what, call, errno),
    }
}

/// Checks that the pages of `region`, all of which must stay resident, fit this process's cgroup;
/// beyond the limit, the kernel kills the process or another one of the cgroup.
pub(super) fn check_cgroup(region: &Region) -> Result<()> {
    // Reserve for the program, its stacks and its heap.
    const BESIDE_KIB: usize = 8 << 10;
    let (kib, most) = (region.len() >> 10, mem::cgroup_bytes().map(|bytes| bytes >> 10));
    // The cgroup's limit does not count huge pages.
    match most.filter(|most| kib + BESIDE_KIB > *most && region.pages() == Pages::Base) {
        None => Ok(()),
        Some(most) => {
            let why = format!(
                "{kib} KiB of packet memory must be locked in memory, and this process's cgroup has {most} KiB \
                 for all"
            );
            Err(Error::new(Code::Memory, "cannot register packet memory", why)
                .fix("a smaller pool, or more in the cgroup's memory.max"))
        }
    }
}

/// Returns the error for memory that exceeds what this user may lock, a limit that applies unless
/// the process has the privilege to lock any amount.
///
/// Source: net/xdp/xdp_umem.c, `xdp_umem_account_pages`.
pub(super) fn beyond_limit(bytes: usize, limit: &Rlimit) -> Error {
    let may = limit.current.map_or("without limit".into(), |most| format!("{} KiB", most >> 10));
    let why = format!(
        "{} KiB of packet memory must be locked in memory, and {LIMITED} {may}: XDP_UMEM_REG: ENOBUFS",
        bytes >> 10
    );
    let error = Error::new(Code::Memory, "cannot register packet memory", why);
    match limit.maximum {
        // The user may raise the limit in a shell.
        None => error.fix("a smaller pool, or: ulimit -l unlimited"),
        Some(_) => error.fix(format!("a smaller pool, or: {}", Capabilities::XDP.command())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_limit_of_locked_memory_is_recognized_as_one() {
        for maximum in [None, Some(64 << 10)] {
            let e = beyond_limit(1 << 20, &Rlimit { current: Some(64 << 10), maximum });
            let said = "1024 KiB of packet memory must be locked in memory, and RLIMIT_MEMLOCK lets this user lock 64 KiB";
            assert!(e.why.starts_with(said) && is_limit_of_locked_memory(&e.why), "{e}");
        }
        let used_up = refused("XDP_UMEM_REG", Errno::NOMEM);
        assert!(!is_limit_of_locked_memory(&used_up.why), "{used_up}");
    }

    #[test]
    fn only_the_refusal_of_a_socket_itself_is_one_of_af_xdp() {
        for errno in [Errno::PERM, Errno::AFNOSUPPORT] {
            assert!(is_refused(&refused("socket(AF_XDP)", errno).why));
            assert!(!is_refused(&refused("XDP_UMEM_REG", errno).why));
        }
    }
}
