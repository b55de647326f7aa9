//! The interrupts of one queue: irqs or NAPI threads, with their original CPUs.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use linerate_port::{Code, Error, Result};
use linerate_sys::thread;

use super::{Pin, move_thread};

/// The errnos of a file that this user may not write, and of one in a /proc that is mounted
/// read-only; Linux has these numbers on all machines.
const EACCES: i32 = 13;
const EROFS: i32 = 30;

/// The original state of one setting of an interface's interrupts. Displays as text that
/// [`Was::read`] parses, because a record of it on disk outlives a program that is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Was {
    /// An irq, with its list of CPUs.
    Irq(u32, String),
    /// A NAPI thread, with its CPUs.
    Thread(i32, Vec<usize>),
    /// NAPI of the interface was not threaded.
    NotThreaded,
}

impl fmt::Display for Was {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Was::Irq(irq, cpus) => write!(f, "irq={irq}={cpus}"),
            Was::Thread(thread, cpus) => write!(f, "thread={thread}={}", list(cpus)),
            Was::NotThreaded => f.write_str("not-threaded"),
        }
    }
}

impl Was {
    /// Parses the displayed form; `None` for any other text.
    #[must_use]
    pub fn read(text: &str) -> Option<Was> {
        let mut words = text.split('=');
        let was = match (words.next()?, words.next(), words.next()) {
            ("not-threaded", None, None) => Was::NotThreaded,
            (kind, Some(number), Some(cpus)) if is_list(cpus) => match kind {
                "irq" => Was::Irq(number.parse().ok()?, cpus.to_owned()),
                "thread" => Was::Thread(number.parse().ok()?, thread::listed(cpus)),
                _ => return None,
            },
            _ => return None,
        };
        words.next().is_none().then_some(was)
    }
}

fn is_list(cpus: &str) -> bool {
    !cpus.is_empty() && cpus.chars().all(|c| c.is_ascii_digit() || c == ',' || c == '-')
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// The interrupts of one queue of an interface, which can be placed next to workers: one or two
/// irqs, or a NAPI thread. The [`InterruptGuard`](super::InterruptGuard) restores them.
#[derive(Debug, Clone)]
pub struct QueuePin {
    /// `/proc`, or another folder in a test.
    pub(super) proc: PathBuf,
    pub(crate) interface: String,
    pub(super) queue: usize,
    pub(super) found: Vec<Was>,
    /// Irqs and threads with their CPUs before the first call of [`Pin::pin`].
    pub(super) before: Vec<Was>,
}

impl QueuePin {
    /// Returns the number of the queue, in the device's numbering.
    #[must_use]
    pub fn queue(&self) -> usize {
        self.queue
    }

    /// Returns the queue's irqs and threads with their original CPUs.
    #[must_use]
    pub fn found(&self) -> &[Was] {
        &self.found
    }

    /// Moves the irqs and threads to these CPUs, all of them or none; returns each with its CPUs
    /// before.
    pub(super) fn move_all(&self, cpus: &[usize]) -> Result<Vec<Was>> {
        let mut moved = Vec::new();
        for was in &self.found {
            let to = match was {
                Was::Irq(irq, _) => Was::Irq(*irq, list(cpus)),
                Was::Thread(thread, _) => Was::Thread(*thread, cpus.to_vec()),
                Was::NotThreaded => continue,
            };
            match self.now(was).and_then(|now| self.set(&to).map(|()| now)) {
                Ok(now) => moved.push(now),
                Err(e) => {
                    self.set_all(&moved);
                    return Err(e);
                }
            }
        }
        Ok(moved)
    }

    /// Moves irqs and threads back, as far as possible.
    pub(super) fn set_all(&self, all: &[Was]) {
        all.iter().for_each(|was| _ = self.set(was));
    }

    pub(super) fn restore(&self) -> Result<()> {
        self.put(&self.found)
    }

    fn put(&self, all: &[Was]) -> Result<()> {
        let mut done = Ok(());
        for was in all {
            done = done.and(self.set(was));
        }
        done
    }

    /// Restores as [`QueuePin::restore`]; an irq or a thread that no longer exists is no error.
    pub(super) fn restore_existing(&self) -> Result<()> {
        let mut done = Ok(());
        for was in &self.found {
            done = done.and(match self.set(was) {
                Err(e) if self.is_gone(was, &e) => Ok(()),
                set => set,
            });
        }
        done
    }

    /// Returns true if an irq or a thread no longer exists, which could not be moved because of
    /// `e`.
    fn is_gone(&self, was: &Was, e: &Error) -> bool {
        match was {
            Was::Irq(irq, _) => {
                list_of(&self.proc, *irq).try_exists().is_ok_and(|is_there| !is_there)
            }
            // The code of ESRCH only.
            Was::Thread(..) => e.code == Code::System,
            Was::NotThreaded => false,
        }
    }

    /// Returns an irq or a thread with its present CPUs.
    fn now(&self, was: &Was) -> Result<Was> {
        Ok(match was {
            Was::Irq(irq, _) => {
                let list = fs::read_to_string(list_of(&self.proc, *irq));
                let list = list.map_err(|e| refused(&self.interface, *irq, &e))?;
                Was::Irq(*irq, list.trim().to_owned())
            }
            Was::Thread(thread, _) => Was::Thread(*thread, thread::allowed_cpus_of(*thread)?),
            Was::NotThreaded => Was::NotThreaded,
        })
    }

    fn set(&self, was: &Was) -> Result<()> {
        match was {
            Was::Irq(irq, cpus) => fs::write(list_of(&self.proc, *irq), cpus)
                .map_err(|e| refused(&self.interface, *irq, &e)),
            Was::Thread(thread, cpus) => move_thread(*thread, cpus),
            Was::NotThreaded => Ok(()),
        }
    }
}

impl Pin for QueuePin {
    fn name(&self) -> String {
        let irqs = self.found.iter().filter_map(|was| match was {
            Was::Irq(irq, _) => Some(irq.to_string()),
            _ => None,
        });
        let threads = self.found.iter().filter_map(|was| match was {
            Was::Thread(thread, _) => Some(thread.to_string()),
            _ => None,
        });
        let (irqs, threads): (Vec<_>, Vec<_>) = (irqs.collect(), threads.collect());
        let (kind, numbers) =
            if irqs.is_empty() { ("NAPI thread", threads) } else { ("irq", irqs) };
        format!("{kind} {} of {}", numbers.join(","), self.interface)
    }

    fn pin(&mut self, cpus: &[usize]) -> Result<Vec<usize>> {
        let now = self.move_all(cpus)?;
        let cpus = cpus_of(&now);
        if self.before.is_empty() {
            self.before = now;
        }
        Ok(cpus)
    }

    /// Restores each irq and thread to its own CPUs; `before` is only their union.
    fn put_back(&mut self, _before: &[usize]) -> Result<()> {
        self.put(&self.before)
    }
}

/// Returns the CPUs of all of these irqs and threads.
pub(super) fn cpus_of(all: &[Was]) -> Vec<usize> {
    let mut cpus = Vec::new();
    for was in all {
        match was {
            Was::Irq(_, list) => cpus.extend(thread::listed(list)),
            Was::Thread(_, list) => cpus.extend(list),
            Was::NotThreaded => {}
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

pub(super) fn list_of(proc: &Path, irq: u32) -> PathBuf {
    proc.join(format!("irq/{irq}/smp_affinity_list"))
}

/// Returns the error of an irq whose list of CPUs could not be read or written.
pub(super) fn refused(interface: &str, irq: u32, e: &std::io::Error) -> Error {
    let what = format!("cannot move irq {irq} of {interface}");
    // Source: kernel/irq/proc.c, `write_irq_affinity`: EIO, or EPERM in later kernels, for an irq
    // that its controller cannot move; EINVAL if no CPU is online. So EPERM does not say that the
    // process lacks a privilege.
    let (code, fix) = match e.raw_os_error() {
        Some(EACCES) => (Code::Permission, "run as root, who owns this file"),
        Some(EROFS) => (Code::Permission, "make /proc/irq writable, or run outside the container"),
        _ => (
            Code::Cpu,
            "choose an irq that the kernel can move, and CPUs of this list: cat /sys/devices/system/cpu/online",
        ),
    };
    Error::new(code, what, format!("/proc/irq/{irq}/smp_affinity_list: {e}")).fix(fix)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn irq_that_only_root_may_move_is_told_apart_from_one_that_the_kernel_does_not_move() {
        for (errno, code, fix) in [
            (Errno::ACCESS, Code::Permission, "run as root"),
            (Errno::ROFS, Code::Permission, "outside the container"),
            (Errno::PERM, Code::Cpu, "that the kernel can move"),
            (Errno::IO, Code::Cpu, "that the kernel can move"),
        ] {
            let e = refused("eth0", 34, &std::io::Error::from(errno));
            assert!(e.code == code && e.fix.contains(fix), "{e}");
        }
    }

    #[test]
    fn irq_that_was_moved_before_a_pin_returns_there_and_at_the_end_to_where_it_was_found() {
        let scratch = linerate_testing::Scratch::new();
        scratch.file("irq/34/smp_affinity_list", "2");
        let proc = scratch.0.clone();
        let list = list_of(&proc, 34);
        let found = vec![Was::Irq(34, "0-3".into())];
        let interface = "eth0".to_owned();
        let guards = QueuePin { proc, interface, queue: 0, found, before: Vec::new() };
        let mut pin = guards.clone();
        assert_eq!(pin.pin(&[1]).unwrap(), [2]);
        assert_eq!(pin.pin(&[0]).unwrap(), [1]);
        pin.put_back(&[2]).unwrap();
        let back = fs::read_to_string(&list).unwrap();
        guards.restore().unwrap();
        let end = fs::read_to_string(&list).unwrap();
        assert_eq!((back.as_str(), end.as_str()), ("2", "0-3"));
    }

    #[test]
    fn what_was_found_is_read_as_it_is_written_and_nothing_else_is() {
        for was in [Was::Irq(34, "0-3,7".into()), Was::Thread(6253, vec![0, 1]), Was::NotThreaded] {
            assert_eq!(Was::read(&was.to_string()), Some(was));
        }
        for bad in [
            "",
            "irq",
            "irq=1",
            "irq=1=",
            "irq=x=0",
            "irq=1=0=0",
            "irq=-1=0",
            "nmi=1=0",
            "irq=1=../x",
            "thread=1=0 ",
            "not-threaded=1",
            "not-threaded=1=1",
        ] {
            assert_eq!(Was::read(bad), None, "{bad}");
        }
    }
}
