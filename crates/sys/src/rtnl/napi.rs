//! The NAPI instances of an interface, by the kernel's `netdev` family of generic netlink: the irq
//! of each, and its thread, if NAPI is threaded. Opens and changes nothing.
//!
//! Source: Documentation/netlink/specs/netdev.yaml, `napi-get`; include/uapi/linux/netdev.h (Linux
//!         6.8).

use rustix::io::Errno;
use rustix::net::netlink::GENERIC;

use super::netdev::{attribute, command, family, find};
use super::{Answer, dump_by, refused, u32_at};
use crate::error::Result;
use crate::netif::Interface;

const NETDEV_CMD_NAPI_GET: u8 = 11;
const NETDEV_A_NAPI_IFINDEX: u16 = 1;
const NETDEV_A_NAPI_ID: u16 = 2;
const NETDEV_A_NAPI_IRQ: u16 = 3;
const NETDEV_A_NAPI_PID: u16 = 4;
/// Most instances of an interface that are listed: more than any device has queues.
const INSTANCES_MAX: usize = 4096;

/// One NAPI instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Napi {
    /// The instance's id; it rises with the queue's number.
    pub id: u32,
    /// The instance's irq, if its driver reports it.
    pub irq: Option<u32>,
    /// The instance's thread, if it has one: its number in the first process's namespace.
    pub thread: Option<i32>,
}

impl Napi {
    /// Returns the instances of `interface`, in ascending order of their ids; none if the interface
    /// is down. Returns `None` before Linux 6.8, which does not report instances.
    ///
    /// # Errors
    /// `E-NODEV` if the interface is gone, `E-SYSTEM` if the kernel does not answer.
    ///
    /// Cost: two requests. For setup.
    pub fn of(interface: &Interface) -> Result<Option<Vec<Napi>>> {
        match ask(interface.index()) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT | Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::INVAL) => Ok(None),
            Err(e) => Err(refused(interface.name(), "netdev-genl", e)),
        }
    }
}

fn ask(index: u32) -> Answer<Vec<Napi>> {
    let about = attribute(NETDEV_A_NAPI_IFINDEX, &index.to_ne_bytes());
    let mut found = Vec::new();
    let each =
        |message: &[u8]| found.extend(read(message, index).filter(|_| found.len() < INSTANCES_MAX));
    dump_by(Some(GENERIC), family()?, &command(NETDEV_CMD_NAPI_GET, &about), each)?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Parses a message about an instance of the interface with index `index`.
fn read(message: &[u8], index: u32) -> Option<Napi> {
    let number = |kind| find(message, kind).and_then(|value| u32_at(value, 0));
    if number(NETDEV_A_NAPI_IFINDEX)? != index {
        return None;
    }
    let thread = number(NETDEV_A_NAPI_PID).and_then(|thread| i32::try_from(thread).ok());
    Some(Napi {
        id: number(NETDEV_A_NAPI_ID)?,
        irq: number(NETDEV_A_NAPI_IRQ),
        thread: thread.filter(|thread| *thread > 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::netif::NetFolder;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn a_veth_has_an_instance_a_queue_and_a_thread_each_if_napi_is_threaded() {
        in_netns(|| {
            ip("link add v0 numrxqueues 2 numtxqueues 2 type veth peer name v1");
            ip("link set v0 up");
            let v0 = Interface::open("v0").unwrap();
            let Some(none) = Napi::of(&v0).unwrap() else {
                return eprintln!("skipped: this kernel does not say");
            };
            assert!(none.iter().all(|napi| napi.thread.is_none() && napi.irq.is_none()));
            let folder = NetFolder::open(&v0).unwrap();
            if let Err(e) = folder.write("threaded", "1") {
                // Linux before 5.12 has no such file.
                assert!(matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOENT)), "{e}");
                return eprintln!("skipped: no NAPI of a veth without a program: {e}");
            }
            let threads = || Napi::of(&v0).unwrap().unwrap();
            assert!(threads().iter().all(|napi| napi.id > 0));
            for thread in threads().iter().filter_map(|napi| napi.thread) {
                let name = std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap();
                assert!(name.starts_with("napi/v0-"), "{name}");
            }
            ip("link del v0");
            let e = Napi::of(&v0);
            assert!(
                matches!(&e, Ok(Some(none)) if none.is_empty())
                    || e.unwrap_err().code == Code::NoDevice
            );
        });
    }

    #[test]
    fn a_message_that_is_cut_off_or_of_another_interface_is_none() {
        let body = [
            attribute(NETDEV_A_NAPI_PID, &77u32.to_ne_bytes()),
            attribute(NETDEV_A_NAPI_IRQ, &34u32.to_ne_bytes()),
            attribute(NETDEV_A_NAPI_ID, &2450u32.to_ne_bytes()),
            attribute(NETDEV_A_NAPI_IFINDEX, &3u32.to_ne_bytes()),
        ];
        let whole = command(NETDEV_CMD_NAPI_GET, &body.concat());
        let napi = Napi { id: 2450, irq: Some(34), thread: Some(77) };
        assert_eq!((read(&whole, 3), read(&whole, 4)), (Some(napi), None));
        assert!((0..whole.len()).all(|len| read(&whole[..len], 3).is_none()));
        let hostile = [attribute(NETDEV_A_NAPI_PID, &u32::MAX.to_ne_bytes()), body[2..].concat()];
        let read = read(&command(NETDEV_CMD_NAPI_GET, &hostile.concat()), 3).unwrap();
        assert_eq!((read.thread, read.irq), (None, None));
    }
}
