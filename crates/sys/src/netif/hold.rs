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
        read(&NetFolder::open(interface)?).ok_or_else(|| {
            Error::new(Code::Unsupported, cannot(&interface.name()), format!("it has no {POLLS}"))
        })
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
    /// `E-PERM` without the right to write the interface's files in sysfs, which root with
    /// CAP_NET_ADMIN has; as [`NapiHold::now`].
    pub fn hold(self, interface: &Interface) -> Result<NapiHoldGuard> {
        let before = NapiHold::now(interface)?;
        let guard = NapiHoldGuard { folder: NetFolder::open(interface)?, before, set: self };
        // If only the first of the two files can be written, dropping the guard restores it.
        match self.write(&guard.folder) {
            Ok(()) => Ok(guard),
            Err(e) => Err(refused(&interface.name(), &e)),
        }
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

/// A changed hold. Dropping the guard restores the old one, unless it was changed meanwhile.
#[derive(Debug)]
#[must_use = "dropping it restores the former hold"]
pub struct NapiHoldGuard {
    /// The interface's folder in sysfs, of the namespace in which it was opened.
    folder: NetFolder,
    before: NapiHold,
    set: NapiHold,
}

impl Drop for NapiHoldGuard {
    fn drop(&mut self) {
        let Some(now) = read(&self.folder) else { return };
        // Restore each file by itself: perhaps only the first was written. Keep a change that another program has made
        // meanwhile.
        if now.time_ns == self.set.time_ns {
            let _ = self.folder.write(TIME, &self.before.time_ns.to_string());
        }
        if now.polls == self.set.polls {
            let _ = self.folder.write(POLLS, &self.before.polls.to_string());
        }
    }
}

fn cannot(name: &IfName) -> String {
    format!("cannot make NAPI of {name} wait between polls")
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
    use crate::testing::{in_netns, ip};

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
}
