//! Filters of system calls (seccomp(2)), each for the calling process and its children.

const ALLOW: libc::sock_filter = instruction(libc::BPF_RET, 0, libc::SECCOMP_RET_ALLOW);

const fn instruction(code: u32, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf, k }
}

/// An instruction that loads the number of the system call.
const CALL: libc::sock_filter = instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0);

/// Returns an instruction that loads the lower half of an argument of the call.
const fn argument(index: u32) -> libc::sock_filter {
    let offset = 16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 };
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, offset)
}

/// Returns an instruction that skips the next `n` instructions unless the loaded value is `k` (or
/// at least `k`).
const fn unless_is(k: u32, n: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, n, k)
}
const fn unless_from(k: u32, n: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, n, k)
}

const fn refuse(errno: i32) -> libc::sock_filter {
    instruction(libc::BPF_RET, 0, libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// Forbids this process and its children the system calls for BPF, performance counters and page
/// faults.
///
/// Source: seccomp(2), its example; Docker's default profile refuses these to who has no
///         CAP_SYS_ADMIN.
pub(super) fn refuse_as_containers_do() -> std::io::Result<()> {
    filtered(&mut [
        CALL,
        unless_is(libc::SYS_bpf as u32, 1),
        refuse(libc::EPERM),
        unless_is(libc::SYS_perf_event_open as u32, 1),
        refuse(libc::EPERM),
        unless_is(libc::SYS_userfaultfd as u32, 1),
        refuse(libc::EPERM),
        ALLOW,
    ])
}

/// Forbids this process and its children to set the CPUs of threads.
///
/// Source: systemd.exec(5): `SystemCallFilter=~@resources` with `SystemCallErrorNumber=EPERM`.
pub(super) fn refuse_affinity() -> std::io::Result<()> {
    filtered(&mut [
        CALL,
        unless_is(libc::SYS_sched_setaffinity as u32, 1),
        refuse(libc::EPERM),
        ALLOW,
    ])
}

/// Forbids this process and its children to create IPv6 sockets.
pub(super) fn refuse_ipv6() -> std::io::Result<()> {
    filtered(&mut [
        CALL,
        unless_is(libc::SYS_socket as u32, 3),
        argument(0),
        unless_is(libc::AF_INET6 as u32, 1),
        refuse(libc::EAFNOSUPPORT),
        ALLOW,
    ])
}

/// Lets it have none of the system calls since Linux 5.12, of the advice of madvise(2) since 5.14,
/// of the options of sockets since 5.14 and of AF_XDP's since 6.17, and of the names of memory
/// since 5.17.
///
/// A filter does not see what stands behind a pointer: the attributes of bpf(2), messages of
/// netlink, the flags of a bind.
///
/// Source: include/uapi of Linux 5.11 (asm-generic/unistd.h, mman-common.h, socket.h,
///         linux/if_xdp.h, prctl.h).
pub(super) fn refuse_what_came_after_5_11() -> std::io::Result<()> {
    const FIRST_CALL: u32 = 442;
    const FIRST_ADVICE: u32 = 22;
    const FIRST_OPTION: u32 = 71;
    const FIRST_OF_XDP: u32 = 9;
    let options_of = |call: i64| {
        [
            // The block, and what allows the call after it.
            unless_is(call as u32, 10),
            argument(1),
            unless_is(libc::SOL_SOCKET as u32, 3),
            argument(2),
            unless_from(FIRST_OPTION, 1),
            refuse(libc::ENOPROTOOPT),
            unless_is(libc::SOL_XDP as u32, 3),
            argument(2),
            unless_from(FIRST_OF_XDP, 1),
            refuse(libc::ENOPROTOOPT),
            ALLOW,
        ]
    };
    let calls = [
        CALL,
        unless_from(FIRST_CALL, 1),
        refuse(libc::ENOSYS),
        unless_is(libc::SYS_madvise as u32, 4),
        argument(2),
        unless_from(FIRST_ADVICE, 1),
        refuse(libc::EINVAL),
        ALLOW,
        unless_is(libc::SYS_prctl as u32, 4),
        argument(0),
        unless_is(libc::PR_SET_VMA as u32, 1),
        refuse(libc::EINVAL),
        ALLOW,
    ];
    let options = [libc::SYS_setsockopt, libc::SYS_getsockopt].map(options_of);
    filtered(&mut [&calls[..], &options[0], &options[1], &[ALLOW]].concat())
}

/// Installs a seccomp filter for this process and its children.
fn filtered(filter: &mut [libc::sock_filter]) -> std::io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: prctl(2) gets numbers, and a pointer to a filter program that outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
