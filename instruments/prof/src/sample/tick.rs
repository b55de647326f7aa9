//! The kernel's own tick as the clock of the samples: no timer is started for them, a record is
//! written where one fires anyway.
//!
//! The record is made deep in the interrupt, by the tracepoint `timer:hrtimer_expire_entry` of the
//! one timer whose function is the scheduler's tick. What it interrupted is found in the call
//! chain: behind the first of the stubs through which every interrupt of x86-64 enters, all of
//! which are named `asm_`.
//!
//! ```text
//! kernel | __hrtimer_run_queues       the tracepoint
//!        | hrtimer_interrupt
//!        | sysvec_apic_timer_interrupt
//!        | asm_sysvec_apic_timer_interrupt
//!        | clear_user                 the sample, if the kernel was interrupted
//! user   | main                       the sample, if nothing of the kernel stands before it
//! ```
//! Source: Linux kernel/time/hrtimer.c, `__run_hrtimer`; kernel/time/tick-sched.c,
//! `tick_nohz_handler`; arch/x86/include/asm/idtentry.h.

use std::ffi::CString;
use std::fs;
use std::io;

use linerate_sys::{Code, Error, Result};
use rustix::time::{ClockId, clock_getres};

use super::kallsyms::Kallsyms;
use super::note::Hit;
use super::tally::mark;
use crate::profile::Space;

/// Where the tick can be seen, and how to tell what it interrupted.
#[derive(Debug, Clone)]
pub(super) struct Tick {
    /// The tracepoint's number.
    pub(super) id: u64,
    /// Lets the tick through and no other timer.
    pub(super) filter: CString,
    pub(super) entries: Entries,
}

/// The code through which interrupts enter the kernel: first and last byte of each stub, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Entries(Vec<(u64, u64)>);

impl Tick {
    /// The running kernel's.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` on other CPUs than x86-64 and if there is no such tracepoint or timer,
    /// `E-PERM` if the kernel shows us neither.
    pub(super) fn here() -> Result<Tick> {
        if !cfg!(target_arch = "x86_64") {
            return Err(unsupported("how interrupts enter the kernel is known of x86-64 only"));
        }
        let id = tracepoint()?;
        let all = Kallsyms::here();
        if all.is_empty() {
            let why = "the kernel hides the names of its functions";
            return Err(Error::new(Code::Permission, WHAT, why)
                .fix("run with CAP_SYSLOG, or sysctl kernel.kptr_restrict=0"));
        }
        let function = all
            .iter()
            .find(|found| TIMERS.contains(&found.name))
            .ok_or_else(|| unsupported("this kernel has no timer of that name for its tick"))?;
        let filter = format!("function == {:#x}", function.address);
        let filter = CString::new(filter).map_err(|e| unsupported(&e.to_string()))?;
        Ok(Tick { id, filter, entries: Entries::of(&all) })
    }
}

impl Entries {
    fn of(all: &Kallsyms) -> Entries {
        let stubs = all.iter().filter(|found| found.name.starts_with("asm_"));
        Entries(
            stubs
                .map(|at| (at.address, at.address.saturating_add(at.bytes.unwrap_or(1)) - 1))
                .collect(),
        )
    }

    /// The sample as it would have been taken of what was interrupted; its space is unknown if no
    /// entry of an interrupt is in its call chain.
    pub(super) fn interrupted(&self, hit: &Hit) -> Hit {
        let mut space = Space::Unknown;
        let mut behind = false;
        for (at, &entry) in hit.chain.iter().enumerate() {
            match mark(entry) {
                Some(mark) => space = mark,
                None if behind && space != Space::Unknown => {
                    let chain = hit.chain.get(at..).unwrap_or_default().into();
                    return Hit { pid: hit.pid, space, address: entry, chain };
                }
                None => behind |= space == Space::Kernel && self.hold(entry - 1),
            }
        }
        Hit { pid: hit.pid, space: Space::Unknown, address: 0, chain: Box::default() }
    }

    /// Whether the call before a return address is in one of them.
    fn hold(&self, address: u64) -> bool {
        let next = self.0.partition_point(|&(first, _)| first <= address);
        next.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|&(_, last)| address <= last)
    }
}

/// How often the kernel ticks in a second: the resolution of its coarse clocks is one tick.
pub(super) fn hz() -> Option<f64> {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    let ns = tick.tv_sec as f64 * 1e9 + tick.tv_nsec as f64;
    (ns > 0.0).then_some(1e9 / ns)
}

/// The number of the tracepoint at which timers fire.
fn tracepoint() -> Result<u64> {
    let mut refused = None;
    for directory in TRACEFS {
        let path = format!("{directory}/events/timer/hrtimer_expire_entry/id");
        match fs::read_to_string(&path) {
            Ok(text) => {
                return text.trim().parse().map_err(|_| unsupported(&format!("{path}: {text:?}")));
            }
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => refused = Some((path, e)),
            Err(_) => {}
        }
    }
    Err(refused.map_or_else(
        || {
            unsupported("tracefs is not mounted, or the kernel has no tracepoints")
                .fix("mount -t tracefs none /sys/kernel/tracing")
        },
        |(path, e)| {
            Error::new(Code::Permission, WHAT, format!("{path}: {e}"))
                .fix("run as root, or sample by time: that needs no tracepoint")
        },
    ))
}

fn unsupported(why: &str) -> Error {
    Error::new(Code::Unsupported, WHAT, why).fix("sample by time: that needs nothing of this kind")
}

const WHAT: &str = "cannot sample by the kernel's tick";
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The tick's function, from Linux 6.9 on and before.
const TIMERS: [&str; 2] = ["tick_nohz_handler", "tick_sched_timer"];
/// Entries of a call chain that are enough to find what was interrupted: the interrupt's own are six
/// or seven.
pub(super) const DEPTH: u16 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const IN_KERNEL: u64 = -128i64 as u64;
    const IN_USER: u64 = -512i64 as u64;
    const HANDLER: u64 = 0xffff_ffff_8200_0040;
    const ENTRY: u64 = 0xffff_ffff_8100_0e06;

    fn entries() -> Entries {
        let list = "ffffffff81000df0 T asm_sysvec_apic_timer_interrupt\n\
                    ffffffff81000e10 T entry_SYSCALL_64\n\
                    ffffffff82000000 t hrtimer_interrupt\n";
        Entries::of(&Kallsyms::read(list.as_bytes()))
    }

    fn hit(chain: &[u64]) -> Hit {
        Hit { pid: 7, space: Space::Kernel, address: HANDLER, chain: chain.into() }
    }

    #[test]
    fn a_tick_in_user_code_is_where_that_code_was() {
        let found =
            entries().interrupted(&hit(&[IN_KERNEL, HANDLER, ENTRY, IN_USER, 0x1000, 0x2000]));
        assert_eq!((found.pid, found.space, found.address), (7, Space::User, 0x1000));
        assert_eq!(*found.chain, [0x1000, 0x2000]);
    }

    #[test]
    fn a_tick_in_the_kernel_is_where_the_kernel_was_and_not_its_caller() {
        let inside = 0xffff_ffff_8100_0e20;
        let chain = [IN_KERNEL, HANDLER, ENTRY, inside, inside + 8, IN_USER, 0x1000];
        let found = entries().interrupted(&hit(&chain));
        assert_eq!((found.space, found.address), (Space::Kernel, inside));
        assert_eq!(*found.chain, [inside, inside + 8, IN_USER, 0x1000]);
    }

    #[test]
    fn an_interrupt_of_an_interrupt_is_found_in_the_outer_one() {
        let chain = [IN_KERNEL, HANDLER, ENTRY, HANDLER + 4, ENTRY, IN_USER, 0x1000];
        let found = entries().interrupted(&hit(&chain));
        assert_eq!((found.space, found.address), (Space::Kernel, HANDLER + 4));
    }

    #[test]
    fn a_chain_without_an_entry_or_with_nothing_behind_it_is_unknown() {
        let chains: [&[u64]; 6] = [
            &[],
            &[IN_KERNEL, HANDLER, IN_USER, 0x1000],
            &[IN_KERNEL, HANDLER, ENTRY],
            &[IN_KERNEL, HANDLER, ENTRY, IN_USER, 0],
            &[IN_USER, ENTRY, 0x1000],
            &[IN_KERNEL, 1, u64::MAX, u64::MAX - 4096],
        ];
        for chain in chains {
            assert_eq!(entries().interrupted(&hit(chain)).space, Space::Unknown, "{chain:x?}");
        }
    }

    #[test]
    fn the_kernel_ticks_at_a_rate_that_it_can_be_built_for() {
        let hz = hz().unwrap();
        // Alpha had 1,200; the least of all architectures is 24.
        assert!((24.0..=1_200.0).contains(&hz), "{hz}");
    }
}
