//! The other end of a virtual interface, and the checksums that it leaves to hardware.
//!
//! The kernel hands packets over a veth without a checksum: hardware would fill it in, if the packets ever
//! reach any. AF_XDP has no header that marks them, and their next receiver refuses them. If the other end
//! is in sight, its checksum offload is turned off; if it is in another network namespace, such packets
//! are recognised (partial.rs).

use linerate_skb::Result;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;

/// State of the checksums of packets from an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    /// As they are on a wire.
    Whole,
    /// Some are still to be computed, and some packets are longer than the MTU and still to be cut.
    Partial { mtu_bytes: usize },
}

/// Has the other end of `interface` finish its packets, where there is one and it is in sight; what
/// they are then, and what to say.
pub(super) fn prepare(interface: &Interface) -> Result<(Checksums, Option<String>)> {
    // Where the kernel does not tell, nothing is known of another end.
    let info = LinkInfo::of(interface).unwrap_or_default();
    if info.kind != "veth" {
        return Ok((Checksums::Whole, None));
    }
    let here = info.other.filter(|_| !info.other_is_elsewhere);
    let why = match here.map(Interface::by_index) {
        Some(Ok(other)) => match finish_at(&other) {
            Ok(said) => return Ok((Checksums::Whole, said)),
            Err(e) => format!("{}: {}", other.name(), e.why),
        },
        _ => "the other end is in another namespace".to_owned(),
    };
    let said = format!(
        "checksums: {why}; they are completed here; cheaper, at the other end: ethtool -K IFACE tx off"
    );
    let mtu_bytes = interface.mtu_bytes()? as usize;
    Ok((Checksums::Partial { mtu_bytes }, Some(said)))
}

/// Turns the checksum offload of `other` off; what to say if it was on.
fn finish_at(other: &Interface) -> Result<Option<String>> {
    if !other.checksum_offload()? {
        return Ok(None);
    }
    other.set_checksum_offload(false)?;
    let name = other.name();
    Ok(Some(format!(
        "checksums: the offload of {name} was turned off, and stays so: ethtool -K {name} tx on"
    )))
}
