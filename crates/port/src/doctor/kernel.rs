//! Properties of the kernel: its version, and the memory and programs that it accepts from this
//! process.

use linerate_skb::{Code, Error, Result};
use linerate_sys::bpf::{Insn, Program, Reg, SocketMap, XDP_PASS};
use linerate_sys::xdp::{XdpSocket, try_memory};

use super::finding::Findings;
use super::proc;

/// Bytes of a frame, unless a pool sets another size.
pub(crate) const FRAME_BYTES: usize = 2048;

/// Returns the major and minor number of the kernel.
#[must_use]
pub fn version() -> Option<(u32, u32)> {
    numbers(&proc::text("/proc/sys/kernel/osrelease")?)
}

/// Tests operations that need privileges (a socket, a map, a program); returns false if one fails.
pub fn privileges(found: &mut Findings) -> bool {
    let made = || -> Result<()> {
        XdpSocket::new()?;
        SocketMap::new(1)?;
        let insns = [Insn::set(Reg::R0, XDP_PASS), Insn::exit()];
        // Before Linux 5.18 no program accepts packets in several buffers.
        Program::load(&insns, true).or_else(|_| Program::load(&insns, false)).map(drop)
    };
    match made() {
        Ok(()) => {
            found.ok("an AF_XDP socket, its BPF map and a program can be made");
            true
        }
        Err(e) => {
            found.miss(&e);
            false
        }
    }
}

/// Tests whether the memory of a pool of `frames` frames can be registered.
pub fn memory(frames: usize, found: &mut Findings) {
    if XdpSocket::new().is_err() {
        // Without a socket no memory can be registered; `privileges` has already reported this.
        return;
    }
    let bytes = frames * FRAME_BYTES;
    match try_memory(bytes) {
        Ok(()) => {
            let bytes = proc::size(bytes as u64);
            found.ok(format!("{bytes} of packet memory register ({})", proc::memlock()));
        }
        Err(e) if e.code == Code::Memory => too_much(&e, found),
        Err(e) => {
            found.miss(&e);
        }
    }
}

/// Adds a finding on memory that was too large to register; the error has the limit and the remedy.
pub(crate) fn too_much(e: &Error, found: &mut Findings) {
    let what = "the packet memory cannot be registered";
    found.miss(&Error::new(Code::Memory, what, e.why.as_str()).fix(e.fix.as_str()));
}

/// Parses a version's numbers: `6.18.44-foo` gives (6, 18).
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read() {
        assert_eq!(numbers("6.18.44-foo\n"), Some((6, 18)));
        assert_eq!(numbers("5.10-rc1"), Some((5, 10)));
        assert_eq!((numbers("six"), numbers("6")), (None, None));
        assert!(version().is_some());
    }
}
