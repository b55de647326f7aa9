//! Classic BPF: a socket's filter, which the kernel runs on every packet before the socket receives
//! it.
//!
//! A program loads a value into A, compares it and goes on or ahead, and returns how many bytes of
//! the packet the socket is to have; none is none. It has no loops and cannot fault: reading behind
//! the packet's end returns 0. The kernel checks it once, when it is attached.
//!
//! Source: Documentation/networking/filter.rst, include/uapi/linux/filter.h.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::{self, Errno};

use crate::error::check;

/// Address for [`Insn::load_word`]: the packet's class, one of the `PKTTYPE_*` of
/// [`packet`](crate::packet).
pub const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
/// Address for [`Insn::load_word`]: 1 if the packet had a VLAN tag, which is no longer among its
/// bytes.
pub const VLAN_TAG_PRESENT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32;
/// Address for [`Insn::load_word`]: the EtherType of the VLAN tag that is no longer among the
/// packet's bytes.
pub const VLAN_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TPID) as u32;

/// The program that drops every packet.
pub const DROP_ALL: &[Insn] = &[Insn::ret(0)];

/// One instruction (`struct sock_filter`). Jumps count the instructions that they skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    code: u16,
    yes: u8,
    no: u8,
    k: u32,
}

// The kernel reads the program in this memory layout.
const _: () = assert!(size_of::<Insn>() == size_of::<libc::sock_filter>());

impl Insn {
    /// A = the byte at `at`.
    #[must_use]
    pub const fn load_byte(at: u32) -> Insn {
        Insn::of(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, at)
    }

    /// A = the two bytes at `at`, as a number in network byte order.
    #[must_use]
    pub const fn load_half(at: u32) -> Insn {
        Insn::of(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at)
    }

    /// A = the four bytes at `at`, or the value of a named address.
    #[must_use]
    pub const fn load_word(at: u32) -> Insn {
        Insn::of(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
    }

    /// Loads the byte at X + `at` into A.
    #[must_use]
    pub const fn load_byte_behind(at: u32) -> Insn {
        Insn::of(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, at)
    }

    /// A = the two bytes at X + `at`.
    #[must_use]
    pub const fn load_half_behind(at: u32) -> Insn {
        Insn::of(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, at)
    }

    /// X = four times the low half of the byte at `at`: the length of an IPv4 header that starts at
    /// `at`.
    #[must_use]
    pub const fn load_ipv4_length(at: u32) -> Insn {
        Insn::of(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, at)
    }

    /// A = A and `k`, by bits.
    #[must_use]
    pub const fn and(k: u32) -> Insn {
        Insn::of(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, k)
    }

    /// Skips `yes` instructions if A is `k`, else `no` instructions.
    #[must_use]
    pub const fn jump_if_equal(k: u32, yes: u8, no: u8) -> Insn {
        Insn { yes, no, ..Insn::of(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k) }
    }

    /// Jumps if A is `k` or more.
    #[must_use]
    pub const fn jump_if_at_least(k: u32, yes: u8, no: u8) -> Insn {
        Insn { yes, no, ..Insn::of(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, k) }
    }

    /// Jumps if A and `k` have a bit in common.
    #[must_use]
    pub const fn jump_if_bits(k: u32, yes: u8, no: u8) -> Insn {
        Insn { yes, no, ..Insn::of(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, k) }
    }

    /// Returns the same instruction with other jump distances.
    #[must_use]
    pub const fn distances(self, yes: u8, no: u8) -> Insn {
        Insn { yes, no, ..self }
    }

    /// Ends the program: the socket receives the packet's first `bytes` bytes.
    #[must_use]
    pub const fn ret(bytes: u32) -> Insn {
        Insn::of(libc::BPF_RET | libc::BPF_K, bytes)
    }

    const fn of(code: u32, k: u32) -> Insn {
        // The opcodes have at most 8 bits, so the conversion loses nothing.
        Insn { code: code as u16, yes: 0, no: 0, k }
    }
}

/// Attaches `program` as the filter of `socket` (`SO_ATTACH_FILTER`), and replaces the previous
/// filter between two packets. The filter may be attached before the socket is bound, and stays
/// attached then.
///
/// # Errors
/// EINVAL for a program that the kernel refuses: none or more than 4096 instructions, a jump out of
/// it, an end without [`Insn::ret`]. ENOMEM if it has no memory for it.
pub fn attach(socket: impl AsFd, program: &[Insn]) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    let len = size_of_val(&filter) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `filter`, whose size it is, and the instructions that
    // `filter` counts from `program`, which is borrowed for the call; it writes neither.
    check(unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            len,
        )
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Returns the part of `packet` that remains after the kernel has run `program` on it.
    fn run(program: &[Insn], packet: &[u8]) -> Option<Vec<u8>> {
        let (a, b) = UnixDatagram::pair().unwrap();
        b.set_nonblocking(true).unwrap();
        attach(&b, program).unwrap();
        a.send(packet).unwrap();
        let mut left = vec![0; packet.len() + 1];
        let n = b.recv(&mut left).ok()?;
        left.truncate(n);
        Some(left)
    }

    #[test]
    fn instructions_do_what_they_say() {
        let packet = [0x45, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20];
        let keeps = |load: &[Insn], test: Insn| {
            let program = [load, &[test, Insn::ret(2), Insn::ret(0)]].concat();
            run(&program, &packet).map(|left| left.len()) == Some(2)
        };
        let equal = |k| Insn::jump_if_equal(k, 0, 1);
        assert!(keeps(&[Insn::load_byte(3)], equal(3)) && !keeps(&[Insn::load_byte(3)], equal(4)));
        assert!(keeps(&[Insn::load_half(3)], equal(0x0304)));
        assert!(keeps(&[Insn::load_word(3)], equal(0x0304_0506)));
        let behind = [Insn::load_ipv4_length(0), Insn::load_half_behind(2)];
        assert!(!keeps(&behind, equal(0)), "twenty and two bytes on is behind the end");
        let behind = [Insn::load_ipv4_length(1), Insn::load_half_behind(2)];
        assert!(keeps(&behind, equal(0x0607)));
        let behind = [Insn::load_ipv4_length(1), Insn::load_byte_behind(3)];
        assert!(keeps(&behind, equal(7)));
        assert!(keeps(&[Insn::load_byte(7), Insn::and(3)], equal(3)));
        for (at, more) in [(6, false), (7, true), (8, true)] {
            assert_eq!(keeps(&[Insn::load_byte(at)], Insn::jump_if_at_least(7, 0, 1)), more);
        }
        assert!(keeps(&[Insn::load_byte(6)], Insn::jump_if_bits(3, 0, 1)));
        assert!(!keeps(&[Insn::load_byte(4)], Insn::jump_if_bits(3, 0, 1)));
        assert!(keeps(&[Insn::load_word(VLAN_TAG_PRESENT)], equal(0)));
        assert!(keeps(&[Insn::load_word(PACKET_TYPE)], equal(0)));
    }

    #[test]
    fn filter_that_reads_behind_the_end_drops_the_packet() {
        for load in [Insn::load_byte(60), Insn::load_half(59), Insn::load_word(57)] {
            assert_eq!(run(&[load, Insn::ret(u32::MAX)], &[1; 60]), None);
        }
        assert_eq!(run(&[Insn::load_half(58), Insn::ret(u32::MAX)], &[1; 60]), Some(vec![1; 60]));
        assert_eq!(run(DROP_ALL, &[1; 60]), None);
    }

    #[test]
    fn a_program_that_runs_out_of_itself_is_refused() {
        let (a, _b) = UnixDatagram::pair().unwrap();
        let long = vec![Insn::ret(0); 70_000];
        for program in [&[][..], &[Insn::load_byte(0)], &[Insn::jump_if_equal(0, 1, 0)], &long] {
            assert_eq!(attach(&a, program), Err(Errno::INVAL));
        }
    }
}
