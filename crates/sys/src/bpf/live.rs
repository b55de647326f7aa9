//! A test run of a program on given frames as if a device had received them: a packet generator in
//! the kernel.
//!
//! Source: Documentation/bpf/bpf_prog_run.rst, net/bpf/test_run.c `bpf_test_run_xdp_live`.

use std::os::fd::AsRawFd;

use super::{PROG_TEST_RUN, Program, bpf};

/// A program's verdict: send the packet by the device that received it.
pub const XDP_TX: i32 = 3;

/// Flag of a test run: execute the verdict instead of only returning it.
const LIVE_FRAMES: u32 = 1 << 1;

/// `struct xdp_md`, the argument of a program.
#[repr(C)]
#[derive(Default)]
struct Context {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue: u32,
    egress_ifindex: u32,
}

impl Program {
    /// Runs the program on `count` copies of `frame`, in batches of `batch`, as if the interface
    /// with index `ingress` had received them. Executes its verdict for each copy: [`XDP_TX`] sends
    /// the copy from that interface.
    ///
    /// Frames that the device does not take are dropped by the kernel, and not counted here.
    ///
    /// Cost: one system call, which ends early on a signal. The kernel makes its pool of pages at
    /// the beginning and waits for it at the end, some 10 ms: `count` should be millions.
    ///
    /// # Errors
    /// The system's own: EPERM without CAP_NET_ADMIN and CAP_BPF, EINVAL before Linux 5.18 or for a
    /// frame shorter than an Ethernet header, ENODEV if there is no such interface in this thread's
    /// network namespace, EINTR after a signal.
    pub fn run_live(
        &self,
        ingress: u32,
        frame: &[u8],
        count: u32,
        batch: u32,
    ) -> rustix::io::Result<()> {
        #[repr(C)]
        #[derive(Default)]
        struct Attr {
            prog_fd: u32,
            returned: u32,
            in_bytes: u32,
            out_bytes: u32,
            frame: u64,
            out: u64,
            repeat: u32,
            duration: u32,
            context_in_bytes: u32,
            context_out_bytes: u32,
            context: u64,
            context_out: u64,
            flags: u32,
            cpu: u32,
            batch: u32,
            pad: u32,
        }
        let bytes = frame.len() as u32;
        let context = Context { data_end: bytes, ingress_ifindex: ingress, ..Context::default() };
        let mut attr = Attr {
            prog_fd: self.0.as_raw_fd() as u32,
            in_bytes: bytes,
            frame: frame.as_ptr().expose_provenance() as u64,
            repeat: count,
            context_in_bytes: size_of::<Context>() as u32,
            context: (&raw const context).expose_provenance() as u64,
            flags: LIVE_FRAMES,
            batch,
            ..Attr::default()
        };
        // SAFETY: frame and context have the given lengths, outlive the call and are only read; the
        // kernel writes only the attributes, which are exclusively borrowed.
        unsafe { bpf(PROG_TEST_RUN, &raw mut attr) }.map(drop)
    }
}
