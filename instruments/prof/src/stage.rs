//! The stage of the packet path to which a function belongs, by its name.
//!
//! A name is all that a listing gives. So this is a table of names, of the kernels of the posts and
//! of today's, and a name that is not in it is [`Stage::Other`], never a guess. What a function
//! costs is its own time, not that of its callers: the stage is that of the code which ran,
//! whatever function asked for it.

mod index;
mod names;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::profile::Space;
use index::Index;

named! {
    /// A stage of the packet path, or other work of the machine.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Stage {
        /// A network device's driver, its rings and its DMA.
        Driver = "driver",
        /// Code that handles packets of every protocol: NAPI, queues, type, filters, XDP.
        Core = "core",
        /// IP: routes, forwarding, fragments.
        Ip = "IP",
        /// The protocols TCP and UDP.
        Tcp = "TCP/UDP",
        /// Sockets, and system calls on sockets.
        Socket = "socket",
        /// Copying or summing of bytes.
        Copy = "copy",
        /// Scheduler, wake-ups, wait queues.
        Scheduler = "scheduler",
        /// Buffers and pages: allocation, freeing, mapping.
        Memory = "memory",
        /// Interrupts, soft interrupts, timers, clocks.
        Irq = "irq/timer",
        /// Entry into and exit from the kernel, for any system call.
        Syscall = "syscall",
        /// Busy-waiting in delay loops. A flat profile cannot show their callers.
        Spin = "spin",
        /// Locks: taking them, waiting for them, releasing them. A flat profile cannot show whose
        /// lock it is.
        Lock = "locks",
        /// Functions that are not in the table.
        Other = "other",
        /// Code of programs.
        User = "user",
        /// Disks and file systems: background, outside the packet path.
        Disk = "disk",
        /// Code that exists only for measuring.
        Instrument = "instrument",
        /// Idle time: the CPU has nothing to do.
        Idle = "idle",
    }
}

named! {
    /// A group of stages that are added up.
    #[derive(PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Part {
        /// Work for packets, according to the functions' names.
        Path = "packet path",
        /// Work of programs.
        User = "programs",
        /// Other work on the machine.
        Background = "background",
        /// The instrument itself.
        Instrument = "instrument",
        /// Idle time.
        Idle = "idle",
    }
}

impl Stage {
    /// Returns the part to which a stage is added.
    #[must_use]
    pub const fn part(self) -> Part {
        match self {
            Stage::Disk => Part::Background,
            Stage::Idle => Part::Idle,
            Stage::User => Part::User,
            Stage::Instrument => Part::Instrument,
            _ => Part::Path,
        }
    }
}

/// Returns the stage of `symbol`; `object` and `space` are its object and space, as far as known.
#[must_use]
pub fn stage_of(symbol: &str, object: Option<&str>, space: Space) -> Stage {
    stage_in(false, symbol, object, space)
}

/// Returns the stage of a function in a profile, perhaps of the whole machine. There, functions of
/// libraries such as `memcpy` are [`Stage::User`]: any program may have called them, and the
/// profile does not say which.
pub(crate) fn stage_in(
    whole_machine: bool,
    symbol: &str,
    object: Option<&str>,
    space: Space,
) -> Stage {
    let name = bare(symbol);
    let program = || program(name).or_else(|| LIBRARY.look_up(name).filter(|_| !whole_machine));
    match side_of(object, space) {
        Space::Kernel => kernel(name, object),
        Space::User => program().unwrap_or(Stage::User),
        // In a listing without objects, try the kernel's names first, because such listings are
        // profiles of kernels.
        Space::Unknown if name.contains("::") => program().unwrap_or(Stage::User),
        Space::Unknown => match kernel(name, object) {
            Stage::Other => program().unwrap_or(Stage::Other),
            known => known,
        },
    }
}

/// Returns true if `symbol` allocates or frees packet buffers, or their memory.
#[must_use]
pub fn is_buffer(symbol: &str) -> bool {
    names::BUFFER.contains(&bare(symbol))
}

static KERNEL: LazyLock<Index> = LazyLock::new(|| Index::of(names::KERNEL));
static MODULES: LazyLock<Index> = LazyLock::new(|| Index::of(names::MODULES));
static PROGRAM: LazyLock<Index> = LazyLock::new(|| Index::of(names::PROGRAM));
static LIBRARY: LazyLock<Index> = LazyLock::new(|| Index::of(names::LIBRARY));

fn kernel(name: &str, object: Option<&str>) -> Stage {
    let by_name = KERNEL.look_up(name);
    by_name.or_else(|| MODULES.look_up(module(object?)?)).unwrap_or(Stage::Other)
}

fn program(name: &str) -> Option<Stage> {
    // `<linerate_port::xdp::Xdp as linerate_port::Port>::rx_burst` belongs to the crate of the
    // type.
    let path = name.trim_start_matches(['<', '&', '*', '(', '[']);
    let path = path.strip_prefix("dyn ").or(path.strip_prefix("mut ")).unwrap_or(path);
    PROGRAM.look_up(path)
}

/// Returns the function's name in its source: without the suffixes of compilers and system call
/// wrappers.
fn bare(symbol: &str) -> &str {
    let name = symbol.split("+0x").next().unwrap_or(symbol);
    if name.contains("::") {
        return name;
    }
    // Remove the suffixes of compilers: `.isra.0`, `.constprop.0`, `.part.0`, `.cold`, `.llvm.123`.
    let name = match name.find('.') {
        Some(at) if at > 0 => name.get(..at).unwrap_or(name),
        _ => name,
    };
    ["__x64_", "__ia32_", "__arm64_", "__se_", "__do_"]
        .iter()
        .filter_map(|wrapper| name.strip_prefix(wrapper))
        .find(|rest| rest.starts_with("sys_"))
        .unwrap_or(name)
}

/// Returns the space of code in `object`, from the object's name or else from `space`.
pub(crate) fn side_of(object: Option<&str>, space: Space) -> Space {
    match (space, object) {
        (Space::Unknown, Some(object)) if is_kernel_object(object) => Space::Kernel,
        (Space::Unknown, Some(object)) if object.starts_with('/') => Space::User,
        _ => space,
    }
}

fn is_kernel_object(object: &str) -> bool {
    module(object).is_some() || object.contains("vmlinux") || object.starts_with("[kernel")
}

/// Returns the module named by `object`: `[e1000e]`, `/lib/modules/…/e1000e.ko.xz`.
fn module(object: &str) -> Option<&str> {
    if let Some(name) = object.strip_prefix('[').and_then(|o| o.strip_suffix(']')) {
        let is_mapping = matches!(name, "vdso" | "vsyscall" | "stack" | "heap" | "unknown");
        return (!is_mapping).then_some(name);
    }
    let file = object.rsplit('/').next()?;
    file.split_once(".ko").map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(symbol: &str) -> Stage {
        stage_of(symbol, None, Space::Unknown)
    }

    #[test]
    fn suffixes_of_compilers_do_not_hide_a_function() {
        for name in ["ip_rcv.isra.0", "ip_rcv.part.3.cold", "ip_rcv+0x1c/0x200"] {
            assert_eq!(of(name), Stage::Ip, "{name}");
        }
        assert_eq!(of("__x64_sys_recvfrom"), Stage::Socket);
        assert_eq!(of("__do_softirq"), Stage::Irq, "a wrapper's prefix is one before sys_ only");
    }

    #[test]
    fn the_longest_prefix_decides_and_a_whole_name_before_any() {
        assert_eq!(of("tcp_v4_rcv"), Stage::Tcp);
        assert_eq!(of("tcp_copy_to_iovec"), Stage::Copy, "whole name, though it begins with tcp_");
        assert_eq!(of("skb_release_data"), Stage::Memory);
        assert_eq!(of("skb_copy_datagram_iter"), Stage::Copy);
        assert_eq!(of("skb_gso_segment"), Stage::Core);
    }

    #[test]
    fn idle_loops_locks_and_shared_beginnings_are_told_apart() {
        for (stage, names) in [
            (Stage::Idle, "poll_idle default_idle pv_native_safe_halt"),
            (Stage::Scheduler, "cpu_idle do_idle"),
            (Stage::Spin, "__rdtsc_delay"),
            (Stage::Lock, "_raw_spin_lock_irqsave rt_spin_lock rt_read_lock mutex_unlock"),
            (Stage::Lock, "native_queued_spin_lock_slowpath .text.lock.sched stext_lock"),
            (Stage::Socket, "lock_sock_nested"),
            (Stage::Other, "copy_process copy_page_range copy_fd_bitmaps dev_attr_show"),
            (Stage::Copy, "copy_user_enhanced_fast_string copy_page_to_iter"),
            (Stage::Core, "__dev_queue_xmit dev_gro_receive"),
            (Stage::Ip, "rt_cache_get"),
        ] {
            names.split(' ').for_each(|name| assert_eq!(of(name), stage, "{name}"));
        }
        assert_eq!((Stage::Spin.part(), Stage::Lock.part()), (Part::Path, Part::Path));
    }

    #[test]
    fn a_module_tells_whose_an_unknown_name_is() {
        let kernel = |symbol, object| stage_of(symbol, Some(object), Space::Kernel);
        assert_eq!(kernel("frobnicate", "[e1000e]"), Stage::Driver);
        assert_eq!(kernel("frobnicate", "/lib/modules/6.18.0/ice.ko.zst"), Stage::Driver);
        assert_eq!(kernel("frobnicate", "[nvme_core]"), Stage::Disk);
        assert_eq!(kernel("frobnicate", "[kernel]"), Stage::Other);
        assert_eq!(kernel("ip_rcv", "[e1000e]"), Stage::Ip, "the name is the closer witness");
    }

    #[test]
    fn a_program_is_a_program_whatever_its_functions_are_called() {
        assert_eq!(stage_of("tcp_v4_rcv", Some("/bin/x"), Space::User), Stage::User);
        assert_eq!(stage_of("tcp_v4_rcv", Some("/bin/x"), Space::Unknown), Stage::User);
        assert_eq!(of("tokio::runtime::park"), Stage::User);
        assert_eq!(of("USER"), Stage::User);
    }

    #[test]
    fn our_own_functions_are_of_their_crate_s_stage() {
        let of = |symbol| stage_of(symbol, Some("/usr/bin/linerate"), Space::User);
        assert_eq!(of("linerate_port::xdp::Xdp::rx_burst"), Stage::Driver);
        assert_eq!(of("<linerate_port::Ring as linerate_port::Port>::rx_burst"), Stage::Driver);
        assert_eq!(of("<linerate_skb::Skb as core::ops::drop::Drop>::drop"), Stage::Memory);
        assert_eq!(of("linerate_datapath::worker::turn"), Stage::Core);
        assert_eq!(of("linerate_prof::region::Timer::stop"), Stage::Instrument);
        assert_eq!(of("__memmove_avx_unaligned_erms"), Stage::Copy);
        assert_eq!(of("main"), Stage::User);
        for name in [
            "linerate_wire::partial::Check::sum",
            "linerate_smoltcp::checksum::is_right",
            "smoltcp::wire::ip::checksum::data",
            "smoltcp::wire::tcp::Packet<T>::fill_checksum",
        ] {
            assert_eq!(of(name), Stage::Copy, "{name}");
        }
        for name in [
            "<linerate_smoltcp::RxToken as smoltcp::phy::RxToken>::consume",
            "smoltcp::socket::tcp::Socket::process",
            "smoltcp::iface::interface::Interface::poll",
        ] {
            assert_eq!(of(name), Stage::Tcp, "{name}");
        }
        assert_eq!(of("linerate_wire::partial::Check::of"), Stage::Core);
    }

    #[test]
    fn a_library_s_functions_are_the_programs_in_a_profile_of_the_whole_machine() {
        let libc = |whole, symbol| stage_in(whole, symbol, Some("/usr/lib/libc.so.6"), Space::User);
        for symbol in ["__memmove_avx_unaligned_erms", "memcpy", "malloc", "cfree@GLIBC_2.2.5"] {
            assert_ne!(libc(false, symbol), Stage::User, "{symbol}");
            assert_eq!(libc(true, symbol), Stage::User, "{symbol}");
        }
        assert_eq!(libc(true, "linerate_skb::pool::Local::alloc"), Stage::Memory);
        assert_eq!(stage_in(true, "memcpy", Some("[kernel]"), Space::Kernel), Stage::Copy);
    }

    #[test]
    fn an_unknown_name_is_other_and_an_odd_one_does_no_harm() {
        for name in ["", ".", "+0x", "::", "<", "f\u{1b}[2J", "ａ.b"] {
            assert!(matches!(of(name), Stage::Other | Stage::User), "{name:?}");
            let _ = (is_buffer(name), stage_of(name, Some(name), Space::Kernel));
        }
    }
}
