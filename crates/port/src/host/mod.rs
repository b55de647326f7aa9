//! Common parts of the ports onto the host's own interfaces: state, descriptor, the offload header of
//! their frames, and the traffic that they take from the host's own stack.

mod bell;
pub(crate) mod flow;
pub(crate) mod headers;
mod link;
pub(crate) mod offload;
mod reserve;
pub(crate) mod segment;
#[cfg(test)]
pub(crate) mod testing;

use std::time::Duration;

use linerate_skb::{Skb, Trust};

pub use bell::Bell;
pub(crate) use link::Link;
pub(crate) use reserve::Reservation;

/// Longest packet exchanged: what Linux allows by default for a superframe or for `lo`, whose MTU
/// is 65,536, with the Ethernet header.
pub(crate) const PACKET_BYTES_MAX: usize = 65_550;

/// Interval of retries for resources whose release is not announced: a free frame, a place in a device's
/// queue.
pub(crate) const RETRY: Duration = Duration::from_millis(1);

/// Most frames of one packet: a superframe in frames of 256 bytes, the smallest. Longer chains
/// cannot be made.
pub(crate) const CHAIN_FRAMES_MAX: usize = 258;

/// Returns true if a peer can write the packet's memory, so that it cannot be lent to the kernel.
pub(crate) fn is_exported(skb: &Skb) -> bool {
    skb.trust() == Trust::Exported
}
