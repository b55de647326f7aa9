//! Kernels that have not all that a port takes, and containers that do not let it be had: played by
//! a filter on the test's own system calls.

use std::ffi::c_long;

use linerate_skb::Code;
use linerate_sys::bpf::Mode;
use linerate_sys::cbpf::Insn;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::XdpFeatures;
use rustix::io::Errno;

use super::super::binding::CopyMode;
use super::super::config::Wanted;
use super::super::setup::copy_mode;
use super::pool;
use crate::Port;
use crate::host::testing::{assert_settled, in_netns_with_xdp, ip, veth};

/// Commands of bpf(2).
const MAP_CREATE: u32 = 0;
const PROG_LOAD: u32 = 5;
const LINK_CREATE: u32 = 28;

/// Lets the kernel have only `errno`, from now on, for a system call of this thread, and of what it
/// starts, if the first argument is `first`: as a kernel without the feature, or a container's
/// filter.
///
/// Source: seccomp(2), `struct seccomp_data`.
fn refuse(call: c_long, first: u32, errno: Errno) {
    const NUMBER_AT: u32 = 0;
    const FIRST_AT: u32 = if cfg!(target_endian = "big") { 20 } else { 16 };
    let program = [
        Insn::load_word(NUMBER_AT),
        Insn::jump_if_equal(call as u32, 0, 3),
        Insn::load_word(FIRST_AT),
        Insn::jump_if_equal(first, 0, 1),
        Insn::ret(libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32),
        Insn::ret(libc::SECCOMP_RET_ALLOW),
    ];
    rustix::thread::set_no_new_privs(true).unwrap();
    let filter =
        libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads `filter`, and the number of instructions that it contains from
    // `program`. Both live during the call, and the kernel writes neither.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// A system call, its first argument, and what the kernel has for it.
type Lack = (c_long, u32, Errno);

#[test]
fn a_missing_kernel_feature_is_an_error_with_the_call_and_the_remedy() {
    const NO_SOCKETS: Lack = (libc::SYS_socket, libc::AF_XDP as u32, Errno::AFNOSUPPORT);
    let bpf = |command, errno| (libc::SYS_bpf, command, errno);
    let (unsupported, permission) = (Code::Unsupported, Code::Permission);
    // The test has the capabilities, so only a filter can refuse these calls.
    const FILTER: &str = "allow bpf(2) in its system call filter";
    for (lacks, code, named, remedy) in [
        // A kernel without AF_XDP has no map type for its sockets either.
        (
            vec![NO_SOCKETS, bpf(MAP_CREATE, Errno::INVAL)],
            unsupported,
            "socket(AF_XDP)",
            "built with CONFIG_XDP_SOCKETS",
        ),
        (
            vec![bpf(MAP_CREATE, Errno::NOSYS), bpf(PROG_LOAD, Errno::NOSYS)],
            unsupported,
            "BPF_MAP_CREATE",
            "built with CONFIG_BPF_SYSCALL",
        ),
        // The kernel has the system call, but not this command.
        (vec![bpf(LINK_CREATE, Errno::INVAL)], unsupported, "BPF_LINK_CREATE", "Linux 5.11"),
        (vec![bpf(MAP_CREATE, Errno::PERM)], permission, "BPF_MAP_CREATE", FILTER),
        (vec![bpf(PROG_LOAD, Errno::PERM)], permission, "BPF_PROG_LOAD", FILTER),
        (vec![bpf(LINK_CREATE, Errno::PERM)], permission, "BPF_LINK_CREATE", "CAP_NET_ADMIN"),
    ] {
        in_netns_with_xdp(move || {
            veth(1500);
            lacks.into_iter().for_each(|(call, first, errno)| refuse(call, first, errno));
            let pool = pool(4096);
            let e = Port::open_with("xdp:v0", &pool).unwrap_err();
            assert_eq!(e.code, code, "{e:?}");
            assert!(e.why.contains(named) && e.fix.contains(remedy), "{e:?}");
            assert!(!ip("link show v0").contains("prog/xdp"), "{}", ip("link show v0"));
            assert_settled(&pool);
            // The port that does not need the feature is opened, and reports which port it
            // replaces.
            let other = Port::first_of(["xdp:v0", "packet:v0"]).unwrap();
            let obtained = other.obtained().to_string();
            assert!(obtained.contains(named), "{obtained}");
        });
    }
}

#[test]
fn zero_copy_is_not_tried_on_an_interface_that_the_host_uses() {
    let native = Some(Mode::Native);
    assert_eq!(copy_mode(Wanted::Auto, native, false), CopyMode::Fallback);
    assert_eq!(copy_mode(Wanted::Auto, native, true), CopyMode::Always);
    assert_eq!(copy_mode(Wanted::ZeroCopy, native, true), CopyMode::Never);
    in_netns_with_xdp(|| {
        veth(1500);
        let v0 = Interface::open("v0").unwrap();
        let noted = |text| {
            let port = Port::open(text).unwrap();
            let refused = port.obtained().refused.iter();
            refused.filter(|why| why.starts_with("zero-copy: ")).cloned().collect::<Vec<_>>()
        };
        assert_eq!(noted("xdp:v0,udp=7777"), ["zero-copy: the driver has none"]);
        ip("addr add 192.0.2.1/24 dev v0");
        // A kernel that reports what drivers have says that a veth has none.
        let is_known = XdpFeatures::of(&v0).unwrap().is_some();
        let [why] = &noted("xdp:v0,udp=7777")[..] else { panic!("once") };
        let begin = "zero-copy: not tried, because this host uses the interface (v0 has the address 192.0.2.1)";
        assert!(why.starts_with(begin) != is_known, "{why}");
        assert_eq!(noted("xdp:v0,all"), ["zero-copy: the driver has none"], "none is the host's");
        assert_eq!(noted("xdp:v0,udp=7777,mode=native"), [""; 0], "it was not asked for");
    });
}
