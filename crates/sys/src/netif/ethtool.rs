//! The device below an interface: its driver, queues and offloads.
//!
//! Source: include/uapi/linux/ethtool.h.

use rustix::io::Errno;

use super::{Interface, NetFolder, ioctl, refused};
use crate::error::{Code, Error, Result};

/// The merging of received packets into superframes, by the kernel or by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Merging {
    /// True if the kernel merges packets so that they can be divided into the original ones again
    /// (GRO).
    pub by_kernel: bool,
    /// True if the device merges packets, which then cannot be divided into the original ones again
    /// (LRO).
    pub by_device: bool,
}

/// Work that an interface takes over from the kernel, and that can be turned off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOffload {
    /// The checksums of outgoing packets. Without it the interface accepts no superframes either,
    /// and its kernel sends complete packets.
    Checksums,
    /// The VLAN tags of outgoing packets (`txvlan`). Without it the kernel writes them into the
    /// packets.
    VlanInsertion,
    /// The VLAN tags of received packets (`rxvlan`). Without it they stay in the packets.
    VlanRemoval,
}

impl std::fmt::Display for DeviceOffload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DeviceOffload::Checksums => "checksum offload",
            DeviceOffload::VlanInsertion => "VLAN offload of sent packets (txvlan)",
            DeviceOffload::VlanRemoval => "VLAN offload of received packets (rxvlan)",
        })
    }
}

/// The transmit queues of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxQueues {
    /// The number of queues in use.
    pub count: u32,
    /// The largest number that `ethtool -L` sets.
    pub most: u32,
    /// True if the number is set by `ethtool -L IFACE combined`, false by `tx`.
    pub is_combined: bool,
}

/// `struct ethtool_channels`: the most channels that a device can have, and those in use.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    cmd: u32,
    max: Channels,
    now: Channels,
}

/// Numbers of channels, by their kind.
#[repr(C)]
#[derive(Default)]
struct Channels {
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

const _: () = assert!(size_of::<EthtoolChannels>() == 36);

/// Source: `ETH_FLAG_TXVLAN`, `ETH_FLAG_RXVLAN` and `ETH_FLAG_LRO`, include/uapi/linux/ethtool.h.
const FLAG_TXVLAN: u32 = 1 << 7;
const FLAG_RXVLAN: u32 = 1 << 8;
const FLAG_LRO: u32 = 1 << 15;

impl Interface {
    /// Turns an offload on or off. This changes the machine.
    ///
    /// # Errors
    /// As [`Interface::set_up`]; `E-UNSUPPORTED` or `E-SYSTEM` if the driver cannot.
    ///
    /// Source: `ETHTOOL_STXCSUM` and `ETHTOOL_SFLAGS`, include/uapi/linux/ethtool.h.
    pub fn set_offload(&self, which: DeviceOffload, on: bool) -> Result<()> {
        const ETHTOOL_STXCSUM: u32 = 0x17;
        const ETHTOOL_SFLAGS: u32 = 0x26;
        let flag = match which {
            DeviceOffload::Checksums => {
                return self.ethtool(ETHTOOL_STXCSUM, on.into(), "ETHTOOL_STXCSUM").map(drop);
            }
            DeviceOffload::VlanInsertion => FLAG_TXVLAN,
            DeviceOffload::VlanRemoval => FLAG_RXVLAN,
        };
        let flags = self.ethtool_flags()?;
        let flags = if on { flags | flag } else { flags & !flag };
        self.ethtool(ETHTOOL_SFLAGS, flags, "ETHTOOL_SFLAGS")?;
        // The call succeeds also if the driver has refused.
        if self.offload(which)? != on {
            let (what, to) = (format!("cannot use {}", self.name), if on { "on" } else { "off" });
            let why = format!("its driver does not turn the {which} {to}");
            return Err(Error::new(Code::Unsupported, what, why));
        }
        Ok(())
    }

    /// Returns true if an offload is on.
    ///
    /// # Errors
    /// `E-NODEV` if the interface is gone, `E-SYSTEM` if its driver does not say.
    ///
    /// Source: `ETHTOOL_GTXCSUM` and `ETHTOOL_GFLAGS`, include/uapi/linux/ethtool.h.
    pub fn offload(&self, which: DeviceOffload) -> Result<bool> {
        const ETHTOOL_GTXCSUM: u32 = 0x16;
        Ok(match which {
            DeviceOffload::Checksums => self.ethtool(ETHTOOL_GTXCSUM, 0, "ETHTOOL_GTXCSUM")? != 0,
            DeviceOffload::VlanInsertion => self.ethtool_flags()? & FLAG_TXVLAN != 0,
            DeviceOffload::VlanRemoval => self.ethtool_flags()? & FLAG_RXVLAN != 0,
        })
    }

    fn ethtool_flags(&self) -> Result<u32> {
        const ETHTOOL_GFLAGS: u32 = 0x25;
        self.ethtool(ETHTOOL_GFLAGS, 0, "ETHTOOL_GFLAGS")
    }

    /// Returns whether the kernel, the device, or both merge received packets.
    ///
    /// # Errors
    /// As [`Interface::offload`].
    ///
    /// Source: `ETHTOOL_GGRO` and `ETHTOOL_GFLAGS`, include/uapi/linux/ethtool.h.
    pub fn merging(&self) -> Result<Merging> {
        const ETHTOOL_GGRO: u32 = 0x2b;
        let by_kernel = self.ethtool(ETHTOOL_GGRO, 0, "ETHTOOL_GGRO")? != 0;
        Ok(Merging { by_kernel, by_device: self.ethtool_flags()? & FLAG_LRO != 0 })
    }

    /// Makes an ethtool request that takes a number and returns a number.
    fn ethtool(&self, cmd: u32, data: u32, call: &str) -> Result<u32> {
        #[repr(C)]
        struct EthtoolValue {
            cmd: u32,
            data: u32,
        }
        let mut value = EthtoolValue { cmd, data };
        let mut request = self.named()?;
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: for all commands of this function's callers, the pointer in the ifreq is that of
        // an ethtool_value. The kernel reads and writes `value`, which outlives the call.
        unsafe { ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request) }
            .map_err(|e| refused(&self.name, call, e))?;
        Ok(value.data)
    }

    /// Returns the number of the interface's receive queues; 1 if it is not known. A driver that
    /// does not report its channels, as that of TAP devices, has those that the kernel lists.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    ///
    /// Source: `ETHTOOL_GCHANNELS`, include/uapi/linux/ethtool.h.
    pub fn rx_queues(&self) -> Result<u32> {
        let of = |channels: EthtoolChannels| channels.now.rx.saturating_add(channels.now.combined);
        let is_rx = |name: &String| name.starts_with("rx-");
        let listed = || {
            let names = NetFolder::open(self).map(|folder| folder.names("queues"));
            names.map_or(0, |names| names.iter().filter(|name| is_rx(name)).count() as u32)
        };
        Ok(self.channels()?.map_or_else(listed, of).max(1))
    }

    /// Returns the interface's transmit queues; `None` if its driver does not report them.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone.
    ///
    /// Source: `ETHTOOL_GCHANNELS`, include/uapi/linux/ethtool.h.
    pub fn tx_queues(&self) -> Result<Option<TxQueues>> {
        let of = |EthtoolChannels { max, now, .. }: EthtoolChannels| {
            let is_combined = now.combined > 0;
            TxQueues {
                count: now.tx.saturating_add(now.combined),
                most: if is_combined { max.combined } else { max.tx },
                is_combined,
            }
        };
        // Every interface has a transmit queue, so no queue means that the driver counts them
        // otherwise.
        Ok(self.channels()?.map(of).filter(|queues| queues.count > 0))
    }

    /// Returns the numbers of the interface's channels; `None` if its driver does not report them.
    fn channels(&self) -> Result<Option<EthtoolChannels>> {
        const ETHTOOL_GCHANNELS: u32 = 0x3c;
        let mut channels = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
        let mut request = self.named()?;
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        // SAFETY: for this command, the pointer in the ifreq is that of an ethtool_channels. The
        // kernel writes `channels`, which outlives the call.
        let done = unsafe { ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request) };
        match done {
            Ok(()) => Ok(Some(channels)),
            Err(e @ Errno::NODEV) => Err(refused(&self.name, "ETHTOOL_GCHANNELS", e)),
            Err(_) => Ok(None),
        }
    }

    /// Returns the driver of the interface, and its bus address: `tun` on `tap`, `veth`,
    /// `virtio_net` on a PCI address.
    ///
    /// # Errors
    /// `E-NODEV` if it is gone, `E-SYSTEM` if its driver does not say.
    ///
    /// Source: `ETHTOOL_GDRVINFO`, include/uapi/linux/ethtool.h.
    pub fn driver(&self) -> Result<(String, String)> {
        #[repr(C)]
        struct EthtoolDriver {
            cmd: u32,
            driver: [u8; 32],
            versions: [u8; 64],
            bus: [u8; 32],
            rest: [u8; 64],
        }
        const ETHTOOL_GDRVINFO: u32 = 3;
        const _: () = assert!(size_of::<EthtoolDriver>() == 196);
        let mut value = EthtoolDriver {
            cmd: ETHTOOL_GDRVINFO,
            driver: [0; 32],
            versions: [0; 64],
            bus: [0; 32],
            rest: [0; 64],
        };
        let mut request = self.named()?;
        request.ifr_ifru.ifru_data = (&raw mut value).cast();
        // SAFETY: for this command, the pointer in the ifreq is that of an ethtool_drvinfo. The
        // kernel writes `value`, which outlives the call.
        unsafe { ioctl(&self.socket, libc::SIOCETHTOOL as libc::Ioctl, &mut request) }
            .map_err(|e| refused(&self.name, "ETHTOOL_GDRVINFO", e))?;
        let text = |bytes: &[u8]| {
            let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Ok((text(&value.driver), text(&value.bus)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_testing::{in_netns, ip};

    #[test]
    fn an_interface_says_which_packets_are_merged_or_left_unfinished() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let a = Interface::open("v0").unwrap();
            assert!(!a.merging().unwrap().by_device);
            let all = [
                DeviceOffload::Checksums,
                DeviceOffload::VlanInsertion,
                DeviceOffload::VlanRemoval,
            ];
            for which in all {
                a.set_offload(which, false).unwrap();
                for other in all {
                    assert_eq!(a.offload(other).unwrap(), other != which, "{which} is off");
                }
                a.set_offload(which, true).unwrap();
            }
            ip("link del v0");
            assert_eq!(a.merging().unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn an_interface_says_how_many_queues_it_has_in_each_direction() {
        in_netns(|| {
            ip("link add v0 numrxqueues 3 numtxqueues 2 type veth peer name v1");
            let v0 = Interface::open("v0").unwrap();
            assert_eq!(v0.rx_queues().unwrap(), 3);
            let queues = TxQueues { count: 2, most: 2, is_combined: false };
            assert_eq!(v0.tx_queues().unwrap(), Some(queues));
            // Its driver does not report queues.
            let lo = Interface::open("lo").unwrap();
            assert_eq!((lo.rx_queues().unwrap(), lo.tx_queues().unwrap()), (1, None));
            ip("link del v0");
            assert_eq!(v0.rx_queues().unwrap_err().code, Code::NoDevice);
            assert_eq!(v0.tx_queues().unwrap_err().code, Code::NoDevice);
        });
    }

    #[test]
    fn offload_that_is_turned_on_or_off_leaves_the_others() {
        in_netns(|| {
            ip("link add v0 type veth peer name v1");
            let v0 = Interface::open("v0").unwrap();
            let [insert, remove] = [DeviceOffload::VlanInsertion, DeviceOffload::VlanRemoval];
            assert!(v0.offload(insert).unwrap() && v0.offload(remove).unwrap());
            for (one, other) in [(insert, remove), (remove, insert)] {
                for on in [false, true] {
                    v0.set_offload(one, on).unwrap();
                    assert_eq!((v0.offload(one).unwrap(), v0.offload(other).unwrap()), (on, true));
                }
            }
        });
    }
}
