//! The stage of the packet path that a function belongs to, by its name.
//!
//! A name is all that a listing gives. So this is a table of names, of the kernels of the posts and
//! of today's, and a name that is not in it is [`Stage::Other`], never a guess. What a function costs
//! is its own time, not that of its callers: the stage is that of the code which ran, whoever asked
//! for it.

mod index;
mod names;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::profile::Space;
use index::Index;

/// A stage of the path, or what is not of the path at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A network device's driver, its rings and its DMA.
    Driver,
    /// Code that every packet passes whatever its protocol: NAPI, queues, type, filters, XDP.
    Core,
    /// IP: routes, forwarding, fragments.
    Ip,
    /// TCP and UDP.
    Tcp,
    /// Sockets and the calls on them.
    Socket,
    /// Bytes moved or summed.
    Copy,
    /// Scheduler, wake-ups, wait queues.
    Scheduler,
    /// Buffers and pages: allocated, freed, mapped.
    Memory,
    /// Interrupts, soft interrupts, timers, clocks.
    Irq,
    /// The way into the kernel and out again, whatever the call.
    Syscall,
    /// The CPU waits at full speed: delay loops. On whose behalf, a flat profile cannot say.
    Spin,
    /// Locks, taken, waited for and let go. Whose lock it is, a flat profile cannot say.
    Lock,
    /// Disks and file systems: not of the packet path, background.
    Disk,
    /// The CPU has nothing to do.
    Idle,
    /// Programs.
    User,
    /// Code that was there only to measure.
    Instrument,
    /// Not in the table.
    Other,
}

/// A group of stages that are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Work for packets, as far as a name tells.
    Path,
    /// Programs.
    User,
    /// Other work on the machine.
    Background,
    /// The instrument itself.
    Instrument,
    /// Nothing to do.
    Idle,
}

impl Stage {
    /// All of them, in the order in which they are printed.
    pub const ALL: [Stage; 17] = [
        Stage::Driver,
        Stage::Core,
        Stage::Ip,
        Stage::Tcp,
        Stage::Socket,
        Stage::Copy,
        Stage::Scheduler,
        Stage::Memory,
        Stage::Irq,
        Stage::Syscall,
        Stage::Spin,
        Stage::Lock,
        Stage::Other,
        Stage::User,
        Stage::Disk,
        Stage::Instrument,
        Stage::Idle,
    ];

    /// As printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Stage::Driver => "driver",
            Stage::Core => "core",
            Stage::Ip => "IP",
            Stage::Tcp => "TCP/UDP",
            Stage::Socket => "socket",
            Stage::Copy => "copy",
            Stage::Scheduler => "scheduler",
            Stage::Memory => "memory",
            Stage::Irq => "irq/timer",
            Stage::Syscall => "syscall",
            Stage::Spin => "spin",
            Stage::Lock => "locks",
            Stage::Disk => "disk",
            Stage::Idle => "idle",
            Stage::User => "user",
            Stage::Instrument => "instrument",
            Stage::Other => "other",
        }
    }

    /// With which it is added up.
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

impl Part {
    /// All of them, in the order in which they are printed.
    pub const ALL: [Part; 5] =
        [Part::Path, Part::User, Part::Background, Part::Instrument, Part::Idle];

    /// As printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Part::Path => "packet path",
            Part::User => "programs",
            Part::Background => "background",
            Part::Instrument => "instrument",
            Part::Idle => "idle",
        }
    }
}

/// The stage of `symbol`, which is in `object` and in `space` as far as these are known.
#[must_use]
pub fn stage_of(symbol: &str, object: Option<&str>, space: Space) -> Stage {
    let name = bare(symbol);
    match side_of(object, space) {
        Space::Kernel => kernel(name, object),
        Space::User => program(name).unwrap_or(Stage::User),
        // A listing without objects: the kernel's names first, since its makers profiled the kernel.
        Space::Unknown if name.contains("::") => program(name).unwrap_or(Stage::User),
        Space::Unknown => match kernel(name, object) {
            Stage::Other => program(name).unwrap_or(Stage::Other),
            known => known,
        },
    }
}

/// Returns true if `symbol` makes or frees packet buffers, or the memory under them.
#[must_use]
pub fn is_buffer(symbol: &str) -> bool {
    names::BUFFER.contains(&bare(symbol))
}

static KERNEL: LazyLock<Index> = LazyLock::new(|| Index::of(names::KERNEL));
static MODULES: LazyLock<Index> = LazyLock::new(|| Index::of(names::MODULES));
static PROGRAM: LazyLock<Index> = LazyLock::new(|| Index::of(names::PROGRAM));

fn kernel(name: &str, object: Option<&str>) -> Stage {
    let by_name = KERNEL.look_up(name);
    by_name.or_else(|| MODULES.look_up(module(object?)?)).unwrap_or(Stage::Other)
}

fn program(name: &str) -> Option<Stage> {
    // `<linerate_port::xdp::Xdp as linerate_port::Port>::rx_burst` is of the type's crate.
    let path = name.trim_start_matches(['<', '&', '*', '(', '[']);
    let path = path.strip_prefix("dyn ").or(path.strip_prefix("mut ")).unwrap_or(path);
    PROGRAM.look_up(path)
}

/// The name as its source has it: without what compilers and system call wrappers add.
fn bare(symbol: &str) -> &str {
    let name = symbol.split("+0x").next().unwrap_or(symbol);
    if name.contains("::") {
        return name;
    }
    // `.isra.0`, `.constprop.0`, `.part.0`, `.cold`, `.llvm.123`.
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

/// On which side of the system call what is in `object` is, as far as that or `space` says.
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

/// Name of the module that `object` is: `[e1000e]`, `/lib/modules/…/e1000e.ko.xz`.
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
    fn the_stages_are_listed_once_each() {
        for stage in Stage::ALL {
            assert_eq!(Stage::ALL.iter().filter(|s| **s == stage).count(), 1, "{stage:?}");
        }
    }

    #[test]
    fn what_compilers_and_wrappers_add_does_not_hide_a_function() {
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
    fn the_loop_that_waits_is_idle_and_the_loop_around_it_is_not() {
        assert_eq!(of("poll_idle"), Stage::Idle);
        assert_eq!(of("default_idle"), Stage::Idle);
        assert_eq!(of("cpu_idle"), Stage::Scheduler);
        assert_eq!(of("do_idle"), Stage::Scheduler);
        assert_eq!(of("pv_native_safe_halt"), Stage::Idle);
    }

    #[test]
    fn a_delay_loop_is_busy() {
        assert_eq!(of("__rdtsc_delay").part(), Part::Path);
    }

    #[test]
    fn locks_are_a_stage() {
        for name in ["_raw_spin_lock_irqsave", "rt_spin_lock", "rt_read_lock", "mutex_unlock"] {
            assert_eq!(of(name), Stage::Lock, "{name}");
        }
        for name in ["native_queued_spin_lock_slowpath", ".text.lock.sched", "stext_lock"] {
            assert_eq!(of(name), Stage::Lock, "{name}");
        }
        assert_eq!(Stage::Lock.part(), Part::Path);
        assert_eq!(of("lock_sock_nested"), Stage::Socket, "a socket's owner, not a lock's word");
    }

    #[test]
    fn a_beginning_that_others_share_does_not_decide() {
        for name in ["copy_process", "copy_page_range", "copy_fd_bitmaps", "dev_attr_show"] {
            assert_eq!(of(name), Stage::Other, "{name}");
        }
        assert_eq!(of("copy_user_enhanced_fast_string"), Stage::Copy);
        assert_eq!(of("copy_page_to_iter"), Stage::Copy);
        assert_eq!(of("__dev_queue_xmit"), Stage::Core);
        assert_eq!(of("dev_gro_receive"), Stage::Core);
        assert_eq!(of("rt_cache_get"), Stage::Ip);
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
    }

    #[test]
    fn an_unknown_name_is_other_and_an_odd_one_does_no_harm() {
        for name in ["", ".", "+0x", "::", "<", "f\u{1b}[2J", "ａ.b"] {
            assert!(matches!(of(name), Stage::Other | Stage::User), "{name:?}");
            let _ = (is_buffer(name), stage_of(name, Some(name), Space::Kernel));
        }
    }
}
