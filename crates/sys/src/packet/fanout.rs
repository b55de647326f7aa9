//! Groups of sockets on one interface, each of whose frames one socket of the group receives.
//!
//! Source: packet(7), net/packet/af_packet.c fanout_add.

use std::os::fd::AsRawFd;

use super::PacketSocket;
use crate::error::check;

/// The rule by which a group of sockets shares received frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fanout {
    /// One socket for all frames of a flow in both directions (`PACKET_FANOUT_HASH`): by addresses,
    /// protocol and ports; for fragments by addresses and protocol.
    #[default]
    Hash,
    /// One socket for all frames that one CPU receives (`PACKET_FANOUT_CPU`).
    Cpu,
    /// The next socket for each frame (`PACKET_FANOUT_LB`): the frames of a flow go to all sockets.
    RoundRobin,
    /// One socket for all frames of one receive queue of the device (`PACKET_FANOUT_QM`).
    DeviceQueue,
}

impl Fanout {
    fn number(self) -> u32 {
        match self {
            Fanout::Hash => libc::PACKET_FANOUT_HASH,
            Fanout::Cpu => libc::PACKET_FANOUT_CPU,
            Fanout::RoundRobin => libc::PACKET_FANOUT_LB,
            Fanout::DeviceQueue => libc::PACKET_FANOUT_QM,
        }
    }
}

/// A group of sockets of one network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FanoutGroup(u16);

/// Most sockets of a group, unless it is created for more.
pub const FANOUT_SOCKETS_MAX: u32 = 256;

impl PacketSocket {
    /// Adds the socket to `group`, or to a new group: each frame goes to one socket of the group,
    /// which `fanout` chooses. A socket that is closed leaves the group, and `fanout` divides the
    /// frames among the others.
    ///
    /// Of all sockets of a group interface and `fanout` must be the same. Kernels that do not know
    /// `PACKET_FANOUT_FLAG_IGNORE_OUTGOING`, and do not say so, have a group receive the frames
    /// that this machine sends, whatever its sockets ask for: filters tell them by
    /// [`PKTTYPE_OUTGOING`](super::PKTTYPE_OUTGOING).
    ///
    /// # Errors
    /// EINVAL if the interface is down or the group is of another kind, ENOSPC in one of
    /// [`FANOUT_SOCKETS_MAX`] sockets, EALREADY for a socket that is in one, ENOMEM if there are
    /// 65,536 groups.
    ///
    /// Source: net/packet/af_packet.c fanout_add.
    pub fn join_fanout(
        &self,
        fanout: Fanout,
        group: Option<FanoutGroup>,
    ) -> rustix::io::Result<FanoutGroup> {
        let mut flags = fanout.number() | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        if group.is_none() {
            flags |= libc::PACKET_FANOUT_FLAG_UNIQUEID;
        }
        let number = group.map_or(0, |group| u32::from(group.0));
        self.set(libc::PACKET_FANOUT, &(number | flags << 16))?;
        match group {
            Some(group) => Ok(group),
            None => self.fanout_group(),
        }
    }

    /// Returns the socket's group, whose number is in the low half of the option's value.
    fn fanout_group(&self) -> rustix::io::Result<FanoutGroup> {
        let mut said: u32 = 0;
        let mut len = size_of_val(&said) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `said`, whose size `len` is, and the
        // length to `len`; both are exclusively borrowed for the call.
        check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_FANOUT,
                (&raw mut said).cast(),
                &raw mut len,
            )
        })?;
        Ok(FanoutGroup(said as u16))
    }
}
