//! The interrupts of one queue: irqs or NAPI threads, with their original CPUs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// Returns true if both are of the same setting.
    fn is_of(&self, other: &Was) -> bool {
        match (self, other) {
            (Was::Irq(one, _), Was::Irq(other, _)) => one == other,
            (Was::Thread(one, _), Was::Thread(other, _)) => one == other,
            (one, other) => one == other,
        }
    }

    /// Returns true if both are of the same setting and have the same CPUs, however listed.
    fn is_like(&self, other: &Was) -> bool {
        let cpus = |was: &Was| cpus_of(std::slice::from_ref(was));
        self.is_of(other) && cpus(self) == cpus(other)
    }

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
    before: Vec<Was>,
    /// Irqs and threads that were moved, each with the CPUs that it had after the last move. Clones
    /// share it, because one restores what another one has moved.
    moved: Arc<Mutex<Vec<Was>>>,
}

impl QueuePin {
    pub(super) fn new(proc: &Path, interface: &str, queue: usize, found: Was) -> QueuePin {
        let (proc, interface) = (proc.to_owned(), interface.to_owned());
        let (found, before, moved) = (vec![found], Vec::new(), Arc::default());
        QueuePin { proc, interface, queue, found, before, moved }
    }

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

    /// Sets all irqs and threads to their original CPUs.
    pub(super) fn put_all(&self) -> Result<()> {
        each(&self.found, |was| self.set(was))
    }

    /// Restores irqs and threads that were moved, unless another program has moved them since.
    pub(super) fn restore(&self) -> Result<()> {
        each(&self.found, |was| self.restore_one(was))
    }

    /// Restores as [`QueuePin::restore`]; an irq or a thread that no longer exists is no error.
    pub(super) fn restore_existing(&self) -> Result<()> {
        each(&self.found, |was| match self.restore_one(was) {
            Err(e) if self.is_gone(was, &e) => Ok(()),
            restored => restored,
        })
    }

    fn restore_one(&self, was: &Was) -> Result<()> {
        // Locked meanwhile, so that no clone moves it between the comparison and the write.
        let mut moved = self.moved();
        let last = moved.iter().find(|last| last.is_of(was)).cloned();
        let Some(last) = last else { return Ok(()) };
        if self.now(was)?.is_like(&last) {
            self.set_in(&mut moved, was)?;
        }
        moved.retain(|last| !last.is_of(was));
        Ok(())
    }

    fn moved(&self) -> MutexGuard<'_, Vec<Was>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.set_in(&mut self.moved(), was)
    }

    /// Sets the CPUs of an irq or a thread, and writes to `moved` those that it has then.
    fn set_in(&self, moved: &mut Vec<Was>, was: &Was) -> Result<()> {
        match was {
            Was::Irq(irq, cpus) => fs::write(list_of(&self.proc, *irq), cpus)
                .map_err(|e| refused(&self.interface, *irq, &e))?,
            Was::Thread(thread, cpus) => move_thread(*thread, cpus)?,
            Was::NotThreaded => return Ok(()),
        }
        // The kernel may leave some of these CPUs out.
        let now = self.now(was).unwrap_or_else(|_| was.clone());
        moved.retain(|last| !last.is_of(was));
        moved.push(now);
        Ok(())
    }
}

/// Does something with each, also after an error; returns the first error.
fn each(all: &[Was], act: impl Fn(&Was) -> Result<()>) -> Result<()> {
    all.iter().map(act).fold(Ok(()), Result::and)
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
        each(&self.before, |was| self.set(was))
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
    use linerate_testing::unless;
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
        let guards = QueuePin::new(&proc, "eth0", 0, Was::Irq(34, "0-3".into()));
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
    fn irq_that_never_moved_or_that_another_program_has_moved_is_not_restored() {
        let scratch = linerate_testing::Scratch::new();
        let list = scratch.file("irq/34/smp_affinity_list", "0,1\n");
        let now = || fs::read_to_string(&list).unwrap().trim().to_owned();
        let guards = QueuePin::new(&scratch.0, "eth0", 0, Was::Irq(34, "0-3".into()));
        guards.restore().unwrap();
        assert_eq!(now(), "0,1", "it was never moved");
        let mut pin = guards.clone();
        let _ = pin.pin(&[2, 3]).unwrap();
        fs::write(&list, "5\n").unwrap();
        guards.restore_existing().unwrap();
        assert_eq!(now(), "5", "another program has moved it");
        let _ = pin.pin(&[2, 3]).unwrap();
        // The kernel lists them so.
        fs::write(&list, "2-3\n").unwrap();
        guards.restore_existing().unwrap();
        assert_eq!(now(), "0-3");
        fs::write(&list, "2,3\n").unwrap();
        guards.restore().unwrap();
        assert_eq!(now(), "2,3", "it was restored before");
    }

    #[test]
    fn thread_that_another_program_has_moved_is_not_restored() {
        let all = thread::allowed_cpus().unwrap();
        let [first, .., last] = all[..] else { return println!("skipped: there is one CPU") };
        let moved = std::thread::spawn(move || {
            let own = Was::Thread(thread::id(), all.clone());
            let guards = QueuePin::new(Path::new("/proc"), "eth0", 0, own);
            let mut pin = guards.clone();
            if unless(pin.pin(&[first]), thread::is_filtered).is_none() {
                return;
            }
            move_thread(thread::id(), &[last]).unwrap();
            guards.restore_existing().unwrap();
            assert_eq!(thread::allowed_cpus().unwrap(), [last]);
            let _ = pin.pin(&[first]).unwrap();
            guards.restore_existing().unwrap();
            assert_eq!(thread::allowed_cpus().unwrap(), all);
        });
        moved.join().unwrap();
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
