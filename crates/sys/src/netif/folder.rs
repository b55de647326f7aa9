//! An interface's folder in sysfs, in the network namespace of the calling thread.
//!
//! `/sys` shows the interfaces of the namespace in which it was mounted. So a sysfs is mounted for
//! the calling thread's own, detached: no path leads to it, and it is gone with its descriptor.
//! Without the privilege `/sys` is read, if the interface there is the one that is meant.
//!
//! Source: fsopen(2), Documentation/ABI/testing/sysfs-class-net.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Dir, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::{self, Errno, pread};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::{IfName, Interface, refused};
use crate::capability::Capabilities;
use crate::error::Result;

/// Most changes of an interface's name for which its folder is opened again.
const RENAMES_MAX: usize = 8;

/// The folder of one interface.
#[derive(Debug)]
pub struct NetFolder(OwnedFd);

impl NetFolder {
    /// Opens the folder of `interface`, which must be in the calling thread's namespace.
    ///
    /// # Errors
    /// `E-NODEV` if it is not there, `E-PERM` where that takes CAP_SYS_ADMIN.
    pub fn open(interface: &Interface) -> Result<NetFolder> {
        // The interface may have been opened by an alternative name, or renamed since.
        let mut name = interface.present_name();
        let mut opened = NetFolder::named(name, interface);
        for _ in 0..RENAMES_MAX {
            // The name may have changed after it was read.
            let now = interface.present_name();
            if opened.is_ok() || now == name {
                break;
            }
            name = now;
            opened = NetFolder::named(name, interface);
        }
        opened.map_err(|e| match e {
            Errno::NOENT => refused(&name, "open", Errno::NODEV),
            // No folder of a deleted interface can be opened, whatever the privilege.
            _ if interface.named().is_err() => refused(&name, "SIOCGIFNAME", Errno::NODEV),
            Errno::PERM | Errno::ACCESS => {
                refused(&name, "fsopen(sysfs)", e).fix(Capabilities::SYS_ADMIN.remedy())
            }
            e => refused(&name, "fsopen(sysfs)", e),
        })
    }

    /// Opens the folder called `name`, which must be that of `interface`.
    fn named(name: IfName, interface: &Interface) -> io::Result<NetFolder> {
        let folder = format!("class/net/{name}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |at: io::Result<OwnedFd>| openat(at?, &*folder, flags, Mode::empty());
        let (own, all) = (own_sysfs(), openat(CWD, "/sys", flags, Mode::empty()));
        match own {
            // A folder that /sys lacks may be in the thread's own sysfs, which could not be mounted.
            Err(e) => match open(all).map(NetFolder) {
                Ok(of) if of.is_of(interface) => Ok(of),
                Ok(_) | Err(Errno::NOENT) => Err(e),
                Err(other) => Err(other),
            },
            // Another interface has taken the name, if the index differs.
            own => open(own).map(NetFolder).and_then(|of| match of.index() {
                Some(index) if index == interface.index() => Ok(of),
                _ => Err(Errno::NOENT),
            }),
        }
    }

    /// Opens any folder in place of an interface's: for tests of devices that the machine does not
    /// have.
    ///
    /// # Errors
    /// The system's own.
    #[doc(hidden)]
    pub fn at(path: &std::path::Path) -> std::io::Result<NetFolder> {
        std::fs::File::open(path).map(|folder| NetFolder(folder.into()))
    }

    /// Returns true if the folder is that of `interface`: both have the same index and address.
    fn is_of(&self, interface: &Interface) -> bool {
        let address = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        let mac = interface.hardware().ok().map(|hardware| address(hardware.mac));
        self.index() == Some(interface.index()) && self.read("address") == mac
    }

    fn index(&self) -> Option<u32> {
        self.read("ifindex")?.parse().ok()
    }

    /// Returns the text of a file in the folder, without the newline; `None` if the file is missing
    /// or has no value.
    #[must_use]
    pub fn read(&self, file: &str) -> Option<String> {
        let fd = openat(&self.0, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = String::new();
        File::from(fd).read_to_string(&mut text).ok()?;
        Some(text.trim_end().to_owned())
    }

    /// Opens a file in the folder that holds a number, to read it again and again.
    ///
    /// # Errors
    /// The system's own.
    pub fn number(&self, file: &str) -> std::io::Result<NetNumber> {
        let fd = openat(&self.0, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(NetNumber(fd))
    }

    /// Writes a file in the folder. This changes the machine.
    ///
    /// # Errors
    /// The system's own.
    pub fn write(&self, file: &str, text: &str) -> std::io::Result<()> {
        let fd = openat(&self.0, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        File::from(fd).write_all(text.as_bytes())
    }

    /// Locks a file in the folder until the returned value is dropped, so that no other guard of
    /// the same setting works beside this one; `None` if another one has locked it. Only programs
    /// that lock it, too, respect the lock, and each one that may read the file can.
    ///
    /// # Errors
    /// The system's own.
    pub(super) fn lock(&self, file: &str) -> io::Result<Option<NetLock>> {
        let fd = openat(&self.0, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(NetLock(fd))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns the names in a subfolder, in ascending order; none if it is missing.
    #[must_use]
    pub fn names(&self, folder: &str) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(fd) = openat(&self.0, folder, flags, Mode::empty()) else { return Vec::new() };
        let Ok(entries) = Dir::new(fd) else { return Vec::new() };
        let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok().map(str::to_owned);
        let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
        names.retain(|name| !name.starts_with('.'));
        names.sort_unstable();
        names
    }
}

/// A lock of a file of an interface's folder.
#[derive(Debug)]
pub(super) struct NetLock(OwnedFd);

impl Drop for NetLock {
    fn drop(&mut self) {
        // A process that another thread starts has the descriptor, too, until it runs its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// A file of an interface's folder that holds a number, such as `statistics/tx_dropped`.
#[derive(Debug)]
pub struct NetNumber(OwnedFd);

impl NetNumber {
    /// Returns the present number; `None` if the interface is gone, or the file holds no number.
    ///
    /// Cost: one syscall.
    #[must_use]
    pub fn read(&self) -> Option<u64> {
        // The longest number has 20 digits, and a newline follows.
        let mut text = [0; 24];
        let n = pread(&self.0, &mut text, 0).ok()?;
        std::str::from_utf8(text.get(..n)?).ok()?.trim_end().parse().ok()
    }
}

/// Returns a mount of sysfs for the calling thread's network namespace, which is not attached to
/// the file tree.
fn own_sysfs() -> io::Result<OwnedFd> {
    let fs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn the_folder_is_that_of_the_namespace_s_own_interface() {
        in_netns(|| {
            ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
            let interface = Interface::open("v0").unwrap();
            let folder = NetFolder::open(&interface).unwrap();
            assert_eq!(folder.read("ifindex").unwrap(), interface.index().to_string());
            assert!(folder.is_of(&interface));
            assert_eq!(folder.names("queues"), ["rx-0", "rx-1", "tx-0", "tx-1"]);
            assert_eq!((folder.read("no-such"), folder.names("no-such")), (None, vec![]));
            let number = folder.number("statistics/tx_dropped").unwrap();
            assert_eq!((number.read(), number.read()), (Some(0), Some(0)));
            let [text, missing] = ["operstate", "no-such"].map(|file| folder.number(file));
            assert!(text.unwrap().read().is_none() && missing.is_err());
            let lock = folder.lock("gro_flush_timeout").unwrap().unwrap();
            assert!(folder.lock("gro_flush_timeout").unwrap().is_none());
            let of_child = lock.0.try_clone().unwrap();
            drop(lock);
            assert!(folder.lock("gro_flush_timeout").unwrap().is_some(), "a child has it");
            drop(of_child);
            folder.write("queues/rx-1/rps_cpus", "1").unwrap();
            assert_eq!(folder.read("queues/rx-1/rps_cpus").unwrap().trim_start_matches('0'), "1");
            assert!(!folder.is_of(&Interface::open("lo").unwrap()));
            ip("link set v0 name w0");
            assert!(NetFolder::open(&interface).unwrap().is_of(&interface));
            ip("link del w0");
            assert_eq!(number.read(), None);
            assert_eq!(NetFolder::open(&interface).unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn interface_that_only_another_sysfs_shows_is_not_reported_as_missing() {
        use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
        in_netns(|| {
            ip("link add unshown0 type veth peer name unshown1");
            let interface = Interface::open("unshown0").unwrap();
            let open = || {
                let of_no_privilege = || {
                    let own = capabilities(None).unwrap();
                    let sets = CapabilitySets { effective: CapabilitySet::empty(), ..own };
                    set_capabilities(None, sets).unwrap();
                    NetFolder::open(&interface).unwrap_err()
                };
                std::thread::scope(|scope| scope.spawn(of_no_privilege).join().unwrap())
            };
            let e = open();
            assert!(e.code == Code::Permission && e.why.starts_with("fsopen(sysfs): "), "{e}");
            assert!(e.fix.contains("CAP_SYS_ADMIN") && !e.fix.contains("CAP_NET_ADMIN"), "{e}");
            ip("link del unshown0");
            assert_eq!(open().code, Code::NoDevice);
        });
    }

    #[test]
    fn the_folder_is_never_that_of_another_interface_that_takes_the_name() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let interface = Interface::open("v0").unwrap();
            let swap = "link set v0 name w0\nlink set v1 name v0\nlink set v0 name v1\n\
                        link set w0 name v0\n";
            let scratch = linerate_testing::Scratch::new();
            let path = scratch.file("swaps", &swap.repeat(500));
            let mut renaming =
                std::process::Command::new("ip").arg("-batch").arg(&path).spawn().unwrap();
            let mut found = 0;
            while renaming.try_wait().unwrap().is_none() {
                match NetFolder::open(&interface) {
                    Ok(folder) => assert_eq!(folder.index(), Some(interface.index())),
                    Err(e) => assert_eq!(e.code, Code::NoDevice, "{e}"),
                }
                found += 1;
            }
            assert!(found > 10, "{found}");
            assert!(NetFolder::open(&interface).unwrap().is_of(&interface));
        });
    }
}
