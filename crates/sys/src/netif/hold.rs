//! The time for which NAPI leaves a device alone after a poll that found packets: reads it, and
//! changes it temporarily.
//!
//! Without a hold NAPI enables a device's interrupt when a poll has emptied its ring. With one it
//! sets a timer instead, and polls again at its end; after a number of polls that found nothing it
//! enables the interrupt, so that the next packet is delivered immediately.
//!
//! Source: Documentation/networking/napi.rst, "Software IRQ coalescing"; `napi_complete_done`,
//! net/core/dev.c (Linux 5.8).

use std::time::Duration;
use std::{fmt, io};

use rustix::io::Errno;

use super::folder::NetLock;
use super::{IfName, Interface, NetFolder};
use crate::error::{Code, Error, Result};

const TIME: &str = "gro_flush_timeout";
const POLLS: &str = "napi_defer_hard_irqs";

/// The hold of an interface's NAPI instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NapiHold {
    /// Time from a poll to the next, in nanoseconds; 0 for no hold.
    pub time_ns: u64,
    /// Number of polls without packets for which the interrupt stays off; 0 for no hold.
    pub polls: u32,
}

impl NapiHold {
    /// Returns the hold after which a single poll without packets enables the interrupt.
    #[must_use]
    pub fn of_time(time: Duration) -> NapiHold {
        NapiHold { time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), polls: 1 }
    }

    /// Reads the present hold of an interface.
    ///
    /// # Errors
    /// As [`NetFolder::open`]; `E-UNSUPPORTED` if the kernel does not tell it.
    pub fn now(interface: &Interface) -> Result<NapiHold> {
        read(&NetFolder::open(interface)?).ok_or_else(|| unknown(&interface.name()))
    }

    /// Returns the time for which a device is left alone; `None` without a hold.
    #[must_use]
    pub fn time(self) -> Option<Duration> {
        (self.time_ns > 0 && self.polls > 0).then(|| Duration::from_nanos(self.time_ns))
    }

    /// Sets the hold of all queues of an interface. This changes the machine.
    ///
    /// # Errors
    /// As [`NapiHold::hold`].
    pub fn set(self, interface: &Interface) -> Result<()> {
        self.write(&NetFolder::open(interface)?).map_err(|e| refused(&interface.name(), &e))
    }

    /// Sets the hold of all queues of an interface, for all its packets, until the guard is
    /// dropped.
    ///
    /// # Errors
    /// As [`NapiHoldGuard::set`] and [`NapiHold::now`].
    pub fn hold(self, interface: &Interface) -> Result<NapiHoldGuard> {
        let mut guard = NapiHoldGuard::of(interface)?;
        guard.set(self)?;
        Ok(guard)
    }

    fn write(self, folder: &NetFolder) -> io::Result<()> {
        folder.write(TIME, &self.time_ns.to_string())?;
        folder.write(POLLS, &self.polls.to_string())
    }
}

impl fmt::Display for NapiHold {
    /// Writes the time of the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.time_ns as f64 / 1e3)
    }
}

fn read(folder: &NetFolder) -> Option<NapiHold> {
    let time_ns = folder.read(TIME)?.parse().ok()?;
    Some(NapiHold { time_ns, polls: folder.read(POLLS)?.parse().ok()? })
}

/// The hold of one interface, to be changed from any network namespace. Dropping the guard restores
/// the hold that the first change replaced, unless another program has changed it meanwhile.
///
/// The hold is that of the interface. Since Linux 6.13 each NAPI instance has a hold of its own
/// (`napi-set` of the `netdev` family), and writing the interface's overwrites it in all instances:
/// each change, and the restoring, gives all instances the same hold. Their own former holds are
/// lost.
///
/// One guard at a time changes an interface, of all processes: two would restore each other's hold.
/// A change locks the interface's `gro_flush_timeout` (flock(2)) until the guard is dropped.
#[derive(Debug)]
#[must_use = "dropping it restores the former hold"]
pub struct NapiHoldGuard {
    interface: IfName,
    /// The interface's folder in sysfs, of the namespace in which it was opened.
    folder: NetFolder,
    /// The hold before the first change, and the hold that was set last.
    changed: Option<(NapiHold, NapiHold)>,
    /// The locked file, from the first change on.
    lock: Option<NetLock>,
}

impl NapiHoldGuard {
    /// Opens the files of an interface's hold, and leaves the hold as it is.
    ///
    /// # Errors
    /// As [`NetFolder::open`].
    pub fn of(interface: &Interface) -> Result<NapiHoldGuard> {
        let folder = NetFolder::open(interface)?;
        Ok(NapiHoldGuard { interface: interface.name(), folder, changed: None, lock: None })
    }

    /// Returns the present hold; `None` if the kernel does not tell it.
    #[must_use]
    pub fn now(&self) -> Option<NapiHold> {
        read(&self.folder)
    }

    /// Returns the hold that dropping the guard restores; `None` if the guard has changed nothing.
    #[must_use]
    pub fn former(&self) -> Option<NapiHold> {
        self.changed.map(|(before, _)| before)
    }

    /// Sets the hold of all queues of the interface, for all its packets.
    ///
    /// # Errors
    /// `E-PERM` without the right to write the interface's files in sysfs, which root with
    /// CAP_NET_ADMIN has; `E-UNSUPPORTED` if the kernel does not tell the hold; `E-BUSY` while
    /// another guard of the interface has changed it.
    pub fn set(&mut self, hold: NapiHold) -> Result<()> {
        // Lock before the hold is read: it may be another guard's until then.
        let locked = self.lock()?;
        let last = self.now().ok_or_else(|| unknown(&self.interface))?;
        let before = self.changed.map_or(last, |(before, _)| before);
        if let Err(e) = hold.write(&self.folder) {
            // Perhaps only the first of the two files was written.
            let _ = last.write(&self.folder);
            return Err(refused(&self.interface, &e));
        }
        self.changed = Some((before, hold));
        self.lock = self.lock.take().or(locked);
        Ok(())
    }

    /// Returns the lock of the interface's hold; `None` if the guard has it already.
    fn lock(&self) -> Result<Option<NetLock>> {
        if self.lock.is_some() {
            return Ok(None);
        }
        match self.folder.lock(TIME) {
            Ok(Some(lock)) => Ok(Some(lock)),
            Ok(None) => Err(held(&self.interface)),
            Err(Errno::NOENT) => Err(unknown(&self.interface)),
            Err(e) => Err(refused(&self.interface, &e.into())),
        }
    }
}

impl Drop for NapiHoldGuard {
    fn drop(&mut self) {
        let (Some((before, set)), Some(now)) = (self.changed, self.now()) else { return };
        // Restore each file by itself: another program may have changed one of them meanwhile.
        if now.time_ns == set.time_ns {
            let _ = self.folder.write(TIME, &before.time_ns.to_string());
        }
        if now.polls == set.polls {
            let _ = self.folder.write(POLLS, &before.polls.to_string());
        }
    }
}

fn unknown(name: &IfName) -> Error {
    Error::new(Code::Unsupported, cannot(name), format!("it has no {POLLS}"))
}

fn cannot(name: &IfName) -> String {
    format!("cannot make NAPI of {name} wait between polls")
}

fn held(name: &IfName) -> Error {
    let why = "another port has changed the hold of the interface, which all its queues share";
    let fix = format!("leave out hold=, or close that port: fuser /sys/class/net/{name}/{TIME}");
    Error::new(Code::Busy, cannot(name), why).fix(fix)
}

fn refused(name: &IfName, e: &io::Error) -> Error {
    let errno = Errno::from_io_error(e).unwrap_or(Errno::IO);
    let code = match errno {
        Errno::PERM | Errno::ACCESS | Errno::ROFS => Code::Permission,
        _ => Code::System,
    };
    Error::os(code, cannot(name), "write gro_flush_timeout, napi_defer_hard_irqs", errno)
        .fix("as root, with CAP_NET_ADMIN, where /sys can be written")
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{in_netns, ip};

    fn veth() -> Interface {
        ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
        Interface::open("v0").unwrap()
    }

    #[test]
    fn hold_is_set_until_its_guard_is_dropped() {
        in_netns(|| {
            let v0 = veth();
            assert_eq!(NapiHold::now(&v0).unwrap(), NapiHold::default());
            let hold = NapiHold::of_time(Duration::from_micros(250));
            let guard = hold.hold(&v0).unwrap();
            let now = NapiHold::now(&v0).unwrap();
            assert_eq!((now.time_ns, now.polls), (250_000, 1));
            assert_eq!(now.time(), Some(Duration::from_micros(250)));
            assert_eq!(now.to_string(), "250 us");
            drop(guard);
            assert_eq!(NapiHold::now(&v0).unwrap().time(), None);
        });
    }

    #[test]
    fn former_hold_comes_back_and_a_change_by_another_program_stays() {
        in_netns(|| {
            let v0 = veth();
            let former = NapiHold { time_ns: 20_000, polls: 2 };
            former.set(&v0).unwrap();
            let hold = NapiHold::of_time(Duration::from_millis(1));
            drop(hold.hold(&v0).unwrap());
            assert_eq!(NapiHold::now(&v0).unwrap(), former);
            let guard = hold.hold(&v0).unwrap();
            let other = NapiHold { time_ns: 70_000, polls: 3 };
            other.set(&v0).unwrap();
            drop(guard);
            assert_eq!(NapiHold::now(&v0).unwrap(), other);
        });
    }

    #[test]
    fn several_changes_are_undone_as_one() {
        in_netns(|| {
            let v0 = veth();
            let former = NapiHold { time_ns: 20_000, polls: 2 };
            former.set(&v0).unwrap();
            let mut guard = NapiHoldGuard::of(&v0).unwrap();
            for hold in [NapiHold::of_time(Duration::from_millis(1)), NapiHold::default()] {
                guard.set(hold).unwrap();
                assert_eq!(guard.now(), Some(hold));
            }
            drop(guard);
            assert_eq!(NapiHold::now(&v0).unwrap(), former);
            drop(NapiHoldGuard::of(&v0).unwrap());
            assert_eq!(NapiHold::now(&v0).unwrap(), former, "nothing was changed");
        });
    }

    #[test]
    fn second_guard_changes_nothing_until_the_first_has_restored_the_hold() {
        in_netns(|| {
            let v0 = veth();
            let [one, other] = [50, 100].map(|us| NapiHold::of_time(Duration::from_micros(us)));
            let first = one.hold(&v0).unwrap();
            let mut second = NapiHoldGuard::of(&v0).unwrap();
            let e = second.set(other).unwrap_err();
            assert!(e.code == Code::Busy && e.fix.contains("fuser /sys/class/net/v0/"), "{e}");
            assert_eq!((second.now(), second.former()), (Some(one), None));
            drop(first);
            assert_eq!(second.now(), Some(NapiHold::default()));
            second.set(other).unwrap();
            assert_eq!(second.former(), Some(NapiHold::default()));
            drop(second);
            assert_eq!(NapiHold::now(&v0).unwrap(), NapiHold::default());
        });
    }

    #[test]
    fn deleted_interface_is_an_error_and_leaves_a_guard_without_work() {
        in_netns(|| {
            let v0 = veth();
            let hold = NapiHold::of_time(Duration::from_micros(50));
            let guard = hold.hold(&v0).unwrap();
            ip("link del v0");
            drop(guard);
            assert_eq!(hold.hold(&v0).unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn each_part_of_a_hold_is_restored_unless_another_program_has_changed_it() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let v0 = Interface::open("v0").unwrap();
            let hold = |(time_ns, polls)| NapiHold { time_ns, polls };
            for (other, after) in [((50_000, 9), (20_000, 9)), ((70_000, 1), (70_000, 2))] {
                hold((20_000, 2)).set(&v0).unwrap();
                let guard = hold((50_000, 1)).hold(&v0).unwrap();
                hold(other).set(&v0).unwrap();
                drop(guard);
                assert_eq!(NapiHold::now(&v0).unwrap(), hold(after));
            }
        });
    }
}
