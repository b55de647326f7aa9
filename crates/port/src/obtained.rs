//! Properties of an opened device. Programs report them, so that users notice a slower mode.

use std::fmt;

use linerate_sys::netif::Interface;
use linerate_wire::Mac;

/// Directions in which packets can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Receives and sends.
    #[default]
    Both,
    /// Only receives: the device is read from.
    Source,
    /// Only sends: the device is written to.
    Sink,
}

/// The properties of an opened port.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Obtained {
    /// The name of the device: interface, file, ring.
    pub device: String,
    /// Driver and mode of the device, such as: `AF_PACKET TPACKET_V3, copy, MTU 1500`.
    pub mode: String,
    /// Number of the port's queues.
    pub queues: usize,
    /// Directions in which packets can go.
    pub direction: Direction,
    /// Longest packet that the device sends or receives, in bytes from the destination MAC:
    /// superframes included, or the interface's MTU, an Ethernet header and a VLAN tag. So an
    /// untagged packet of this length may be longer than the MTU, which `mode` has.
    pub packet_max_bytes: usize,
    /// The MAC address of the port's interface; `None` if the port has no interface.
    pub mac: Option<Mac>,
    /// The filter that selects the packets of the port, in the syntax of port texts; empty if the
    /// port takes all packets.
    pub filter: String,
    /// Features that were requested, or would be better, and are not available; each with its
    /// reason.
    pub refused: Vec<String>,
}

impl Obtained {
    /// Describes a device with one queue, in both directions, for packets up to `packet_max_bytes`.
    #[must_use]
    pub fn new(
        device: impl Into<String>,
        mode: impl Into<String>,
        packet_max_bytes: usize,
    ) -> Obtained {
        Obtained {
            device: device.into(),
            mode: mode.into(),
            queues: 1,
            direction: Direction::Both,
            packet_max_bytes,
            mac: None,
            filter: String::new(),
            refused: Vec::new(),
        }
    }

    /// Sets the direction.
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Obtained {
        self.direction = direction;
        self
    }

    /// Sets the MAC address to that of an interface, as it is now.
    #[must_use]
    pub(crate) fn mac_of(mut self, interface: &Interface) -> Obtained {
        self.mac = interface.hardware().ok().map(|hardware| Mac(hardware.mac));
        self
    }

    /// Adds a feature that is not available, with its reason.
    #[must_use]
    pub fn refused(mut self, what_and_why: impl Into<String>) -> Obtained {
        self.refused.push(what_and_why.into());
        self
    }
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.device, self.mode)?;
        if self.queues > 1 {
            write!(f, ", {} queues", self.queues)?;
        }
        match self.direction {
            Direction::Both => {}
            Direction::Source => f.write_str(", read only")?,
            Direction::Sink => f.write_str(", write only")?,
        }
        for (i, refused) in self.refused.iter().enumerate() {
            write!(f, "{}{refused}", if i == 0 { " (" } else { "; " })?;
        }
        f.write_str(if self.refused.is_empty() { "" } else { ")" })
    }
}
