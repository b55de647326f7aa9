//! Checksums that a virtual device leaves to hardware that its packets never reach.
//!
//! AF_XDP has no header that marks packets without a checksum, and their next receiver refuses
//! them. If the other end of a veth is in sight, its checksum offload is turned off. If it is in
//! another network namespace, and on a netkit, a TAP and the loopback interface, such packets are
//! recognised by what stands in the checksum's place (host/partial.rs), also in tunnels that are
//! known (host/tunnel.rs).

use linerate_skb::Result;
use linerate_sys::netif::{DeviceOffload, HARDWARE_LOOPBACK, Interface};
use linerate_sys::rtnl::LinkInfo;

use super::config::Config;
use crate::doctor::interface;
use crate::driver::Change;
use crate::host::filter::Filter;

/// State of the checksums of packets from an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Checksums {
    /// All checksums are complete.
    Whole,
    /// Some checksums are still to be computed, and some packets are longer than the MTU and still
    /// to be cut.
    Partial { mtu_bytes: usize },
}

impl Checksums {
    /// Reads the MTU of `interface` again, if superframes are recognised by it.
    ///
    /// Cost: two syscalls if some checksums are unfinished, which take no lock of the kernel's
    ///       network settings.
    pub fn look(&mut self, interface: &Interface) {
        if let Checksums::Partial { mtu_bytes } = self
            && let Ok(mtu) = interface.mtu_bytes()
        {
            *mtu_bytes = mtu as usize;
        }
    }
}

/// Makes the other end of `interface` complete its packets, if there is one in this namespace;
/// returns the state of packets after that, and a note.
pub(super) fn prepare(config: &Config, interface: &Interface) -> Result<Prepared> {
    let whole = |said, off| Prepared { checksums: Checksums::Whole, said, off };
    let (other, elsewhere) = match (config.filter == Filter::Nothing, other_end(interface)) {
        // This port receives nothing, so no receiver gets an incomplete checksum of the other end.
        (true, _) | (_, OtherEnd::None) => return Ok(whole(None, None)),
        (_, OtherEnd::Here(other)) => (Some(other), ""),
        (_, OtherEnd::Elsewhere(why)) => (None, why),
    };
    // In another namespace it has a number for us, but no name.
    let at = match (&other, LinkInfo::of(interface).ok().and_then(|info| info.other)) {
        (Some(other), _) => (String::new(), other.name().to_string()),
        (None, Some(index)) => {
            let number = format!(" on the other end (interface number {index} in its namespace)");
            (number, "IFACE".to_owned())
        }
        (None, None) => (" on the other end".to_owned(), "IFACE".to_owned()),
    };
    let why = match other {
        Some(other) if matches!(other.offload(DeviceOffload::Checksums), Ok(false)) => {
            return Ok(whole(None, None));
        }
        // Another port on the interface may live longer than this one, and need the offload off.
        Some(other) if config.map.is_some() => {
            format!("the checksum offload of {} is on", other.name())
        }
        Some(other) => match OffloadOff::of(other, DeviceOffload::Checksums) {
            Ok(off) => {
                let name = off.interface.name();
                let said =
                    format!("checksums: the offload of {name} is off while the port is open");
                return Ok(whole(Some(said), Some(off)));
            }
            Err(why) => why,
        },
        None => elsewhere.to_owned(),
    };
    let (at, name) = at;
    let mut said = format!(
        "checksums: {why}, so this port completes them, also in tunnels by IP in IP, VXLAN (port 4789 or 8472), Geneve and GRE"
    );
    // The kernel does not turn the offload of the loopback interface off.
    if !is_loopback(interface) {
        let remedy = format!("turn the offload off{at}: ethtool -K {name} tx off");
        said += &format!(". To avoid this cost, {remedy}");
    }
    let mtu_bytes = interface.mtu_bytes()? as usize;
    Ok(Prepared { checksums: Checksums::Partial { mtu_bytes }, said: Some(said), off: None })
}

/// Returns the settings that [`prepare`] will change.
pub(super) fn changes(config: &Config) -> Vec<Change> {
    if config.filter == Filter::Nothing || config.map.is_some() {
        return Vec::new();
    }
    match Interface::open(&config.interface).map(|interface| other_end(&interface)) {
        Ok(OtherEnd::Here(other))
            if matches!(other.offload(DeviceOffload::Checksums), Ok(true)) =>
        {
            vec![Change::of_offload(&other, DeviceOffload::Checksums)]
        }
        _ => Vec::new(),
    }
}

/// State of the checksums of packets from an interface, and the changes made for it.
pub(super) struct Prepared {
    pub checksums: Checksums,
    /// Text for the report.
    pub said: Option<String>,
    /// The other end's offload, turned off for as long as this lives.
    pub off: Option<OffloadOff>,
}

/// The other end of an interface.
pub(super) enum OtherEnd {
    /// None that leaves checksums unfinished.
    None,
    Here(Interface),
    /// One whose offload this port does not change, for this reason.
    Elsewhere(&'static str),
}

pub(super) fn other_end(interface: &Interface) -> OtherEnd {
    // If the kernel reports no other end, none is known.
    let info = LinkInfo::of(interface).unwrap_or_default();
    match (interface::other_end(&info), info.kind.as_str()) {
        (Some(other), _) => OtherEnd::Here(other),
        (None, "veth") => OtherEnd::Elsewhere("the other end is in another namespace"),
        (None, "netkit") => OtherEnd::Elsewhere("the other end of a netkit leaves them out"),
        (None, "tun") => OtherEnd::Elsewhere("a virtual machine behind a TAP leaves them out"),
        (None, _) if is_loopback(interface) => OtherEnd::Elsewhere("this host leaves them out"),
        (None, _) => OtherEnd::None,
    }
}

fn is_loopback(interface: &Interface) -> bool {
    interface.hardware().is_ok_and(|hardware| hardware.kind == HARDWARE_LOOPBACK)
}

/// An offload that was on; it stays off until this is dropped.
#[derive(Debug)]
pub(super) struct OffloadOff {
    interface: Interface,
    which: DeviceOffload,
}

impl OffloadOff {
    /// Turns an offload of `interface` off; returns the reason if it cannot.
    pub fn of(
        interface: Interface,
        which: DeviceOffload,
    ) -> std::result::Result<OffloadOff, String> {
        match interface.set_offload(which, false) {
            Ok(()) => Ok(OffloadOff { interface, which }),
            Err(e) => {
                // It may be off, or the driver may turn it off later.
                let _ = interface.set_offload(which, true);
                Err(format!("{}: {}", interface.name(), e.why))
            }
        }
    }
}

impl Drop for OffloadOff {
    fn drop(&mut self) {
        // This fails if the interface was deleted, or moved to another network namespace, where its
        // offload stays off.
        let _ = self.interface.set_offload(self.which, true);
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::{Batch, Pool};
    use linerate_sys::netns::Netns;

    use super::super::queue::tests::open;
    use super::*;
    use crate::QueueOps;
    use crate::host::testing::{
        eventually, in_netns, in_netns_with_xdp, ip, queue, veth, wait_running,
    };

    #[test]
    fn unfinished_checksums_are_expected_from_virtual_senders() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            ip("link add b0 type bridge");
            let _tap = queue("tap:t0,up");
            let other = |name: &str| other_end(&Interface::open(name).unwrap());
            assert!(matches!(other("v0"), OtherEnd::Here(_)));
            assert!(matches!(other("b0"), OtherEnd::None));
            for name in ["t0", "lo"] {
                assert!(matches!(other(name), OtherEnd::Elsewhere(_)), "{name}");
            }
        });
    }

    #[test]
    fn a_change_of_the_mtu_is_followed_while_the_port_is_open() {
        in_netns_with_xdp(|| {
            veth(1500);
            let there = Netns::new().unwrap();
            ip(&format!("link set v1 netns {}", there.path()));
            there.ip("link set v1 up").unwrap();
            wait_running("v0");
            let pool = Pool::builder().frames(1024).build().unwrap();
            let (mut xdp, mut mem) = (open("v0,ring=64", &pool), pool.local());
            assert_eq!(xdp.device.checksums, Checksums::Partial { mtu_bytes: 1500 });
            ip("link set v0 mtu 1400");
            let mut batch = Batch::with_capacity(64);
            // Among the receives are 1,024 without a packet, after which the interface is checked.
            eventually(|| {
                xdp.rx(&mut mem, &mut batch, 64);
                batch.clear();
                xdp.device.checksums == Checksums::Partial { mtu_bytes: 1400 }
            });
        });
    }
}
