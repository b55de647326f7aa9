//! The reasons why a machine, or this user, cannot run a side of a scenario. Tests skip by them.

use linerate_sys::{netns, xdp};

use super::host::NO_LINKS;
use crate::{Code, Error, Kind};

/// The words of the reasons where the machine has too few CPUs, an old kernel without NAPI's
/// threads, or a kernel that refuses packet sockets or taps.
const LACKS: [&str; 7] = [
    " threads need a CPU each, and there are ",
    " different CPUs, and may use ",
    "two workers need two CPUs, and one CPU is given",
    "the hosts' programs need a CPU of their own, and one CPU is given",
    "NAPI has no threads before Linux 5.12",
    "socket(AF_PACKET): ",
    "open(/dev/net/tun): ",
];

/// Returns true if `e`, of a side that was checked or opened, says that this machine lacks
/// something for the side, that the kernel refuses it to this user, or that the user may lock too
/// little memory. Any other error is no reason to skip a test.
#[doc(hidden)]
#[must_use]
pub fn is_missing_here(e: &Error) -> bool {
    if e.kind() != Kind::Unsupported {
        return e.code == Code::Memory && xdp::is_limit_of_locked_memory(&e.why);
    }
    let is_without_links = e.what == NO_LINKS || e.what == "cannot run ip" || netns::is_refused(e);
    is_without_links || xdp::is_refused(&e.why) || LACKS.iter().any(|words| e.why.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_missing(code: Code, what: &str, why: &str) -> bool {
        is_missing_here(&Error::new(code, what, why))
    }

    #[test]
    fn what_the_machine_lacks_is_a_reason_to_skip_and_another_refusal_is_none() {
        let open = "cannot open xdp:v0";
        assert!(is_missing(Code::Permission, open, "BPF_MAP_CREATE: Operation not permitted"));
        assert!(is_missing(Code::Permission, NO_LINKS, "unshare: Operation not permitted"));
        assert!(is_missing(Code::Unsupported, "cannot run ip", "it is not on the PATH"));
        assert!(is_missing(Code::Memory, open, "RLIMIT_MEMLOCK lets this user lock 9 KiB"));
        for code in [Code::Unsupported, Code::Permission, Code::Memory, Code::System] {
            assert!(!is_missing(code, open, "a reason"), "{code:?}");
        }
        assert!(!is_missing(Code::System, open, "BPF_MAP_CREATE: Invalid argument"));
    }
}
