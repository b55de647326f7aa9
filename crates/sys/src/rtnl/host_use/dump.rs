//! Dumps: answers of the kernel that list all objects of a kind, in several parts.
//!
//! Objects may change while the kernel lists them. Such a dump is torn: its objects are not
//! reported, and it is requested again.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::Protocol;

use crate::rtnl::{Answer, HEADER_BYTES, NLMSG_ERROR, errno, receive, send_by, u16_at, u32_at};

const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLMSG_DONE: u16 = 3;
/// Flag of the messages of a dump from which an object may be missing, because objects changed
/// meanwhile.
pub(super) const NLM_F_DUMP_INTR: u16 = 0x10;
/// Most attempts to get a dump without this flag.
const DUMPS_MAX: usize = 10;
/// Largest part of an answer that the kernel sends.
const PART_BYTES: usize = 64 << 10;

/// Requests all objects of a kind, and calls `each` with the body of each message. If objects
/// change meanwhile, repeats the request first.
pub(in crate::rtnl) fn dump(kind: u16, body: &[u8], each: impl FnMut(&[u8])) -> Answer<()> {
    dump_by(None, kind, body, each)
}

/// Requests as [`dump`] does, by `protocol`; without one, by rtnetlink.
pub(in crate::rtnl) fn dump_by(
    protocol: Option<Protocol>,
    kind: u16,
    body: &[u8],
    each: impl FnMut(&[u8]),
) -> Answer<()> {
    let attempt = |bodies: &mut Bodies| -> Answer<Dump> {
        let socket = send_by(protocol, kind, NLM_F_DUMP, body)?;
        let mut dump = Dump::default();
        while !dump.has_ended {
            dump.receive_part(&socket, &mut |body: &[u8]| bodies.push(body))?;
        }
        Ok(dump)
    };
    untorn(attempt, each)
}

/// Calls `attempt` until a dump is not torn, and then `each` with the bodies of that dump only.
pub(super) fn untorn(
    mut attempt: impl FnMut(&mut Bodies) -> Answer<Dump>,
    mut each: impl FnMut(&[u8]),
) -> Answer<()> {
    for _ in 0..DUMPS_MAX {
        let mut bodies = Bodies::default();
        if !attempt(&mut bodies)?.is_torn {
            let mut start = 0;
            for end in bodies.ends {
                each(&bodies.bytes[start..end]);
                start = end;
            }
            return Ok(());
        }
    }
    Err(Errno::AGAIN)
}

/// The bodies of the messages of a dump, one after the other.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    bytes: Vec<u8>,
    /// End of each body in `bytes`.
    ends: Vec<usize>,
}

impl Bodies {
    pub fn push(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
        self.ends.push(self.bytes.len());
    }
}

/// State of an answer in several parts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dump {
    pub has_ended: bool,
    /// True if objects changed meanwhile, so that some may be missing.
    pub is_torn: bool,
}

impl Dump {
    fn receive_part(&mut self, socket: &OwnedFd, each: &mut impl FnMut(&[u8])) -> Answer<()> {
        let mut bytes = vec![0; PART_BYTES];
        let n = receive(socket, &mut bytes)?;
        self.part(&bytes[..n], each)
    }

    /// Reads one part of the answer.
    pub fn part(&mut self, mut rest: &[u8], each: &mut impl FnMut(&[u8])) -> Answer<()> {
        if rest.is_empty() {
            return Err(Errno::PROTO);
        }
        while !rest.is_empty() && !self.has_ended {
            let len = u32_at(rest, 0).ok_or(Errno::PROTO)? as usize;
            let message = rest.get(..len).filter(|m| m.len() >= HEADER_BYTES);
            let message = message.ok_or(Errno::PROTO)?;
            self.is_torn |= u16_at(message, 6).is_some_and(|flags| flags & NLM_F_DUMP_INTR != 0);
            match u16_at(message, 4) {
                // The dump failed in the middle if the last message has an error number.
                Some(NLMSG_DONE) if u32_at(message, HEADER_BYTES).is_some_and(|e| e != 0) => {
                    return Err(errno(message));
                }
                Some(NLMSG_DONE) => self.has_ended = true,
                Some(NLMSG_ERROR) => return Err(errno(message)),
                _ => each(&message[HEADER_BYTES..]),
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }
}
