//! Checks before anything is changed: options that cannot work, and packets that the host needs.

use linerate_skb::{Code, Data, Error, Pool, Result};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::{HostUse, UseKind};
use linerate_sys::xdp::XdpSocket;

use super::config::Config;
use super::setup::cannot;
use crate::host::check_ethernet;
use crate::host::filter::{Filter, Match};

/// Frame sizes that the kernel accepts for aligned chunks.
///
/// Source: net/xdp/xdp_umem.c, `XDP_UMEM_MIN_CHUNK_SIZE` and the page.
const FRAME_BYTES: [usize; 2] = [2048, 4096];

/// Refuses options that cannot work, before anything is changed.
pub(super) fn check(config: &Config, interface: &Interface, pool: &Pool) -> Result<()> {
    check_ethernet(interface, || cannot(config))?;
    check_host_use(config, interface)?;
    if pool.data_from() == Data::General {
        let why = "the device writes into the pool's frames, and this pool has none: its data is in the allocator's memory";
        return Err(Error::new(Code::Unsupported, cannot(config), why)
            .fix("a pool of frames: --buffers frames, Pool::builder().data(Data::Frames)"));
    }
    if !FRAME_BYTES.contains(&pool.frame_size()) {
        let why = format!("frames of {} bytes: the kernel accepts 2048 or 4096", pool.frame_size());
        let fix = "frames of 2048 or 4096 bytes: --frame-size 4096 in place of --fit, Pool::builder().frame_size(4096)";
        return Err(Error::new(Code::PoolSize, cannot(config), why).fix(fix));
    }
    // A kernel with bpf(2) and without AF_XDP returns EINVAL for a map of its sockets.
    XdpSocket::new().map(drop).map_err(|mut e| {
        e.what = cannot(config);
        e
    })
}

/// Returns the use that the host makes of the packets which a filter selects, if it cannot be
/// reached without them.
pub(super) fn needed(filter: &Filter, interface: &Interface) -> Result<Option<HostUse>> {
    match filter {
        filter if filter.cuts_off() => HostUse::of(interface),
        filter if filter.takes_sessions() => HostUse::session(interface),
        filter if filter.takes_tagged() => HostUse::of_tagged(interface),
        _ => Ok(None),
    }
}

/// Refuses to take packets without which the host cannot be reached, of an interface that the host
/// uses, unless the text permits it by `all`; and all packets to an address of the host.
pub(super) fn check_host_use(config: &Config, interface: &Interface) -> Result<()> {
    // An interface may have the address of a group, which is not this host's alone.
    if let Filter::Only(Match::To(address)) = config.filter
        && !config.filter.cuts_off()
        && HostUse::has_address(interface, address)?
    {
        let (name, text) = (&config.interface, config.text());
        let why = format!(
            "{address} is an address of this host, or the broadcast address of one of its networks: the \
             port takes every packet to it, such as those of ssh or DHCP"
        );
        let fix = format!(
            "in place of {text} name a port, as in xdp:{name},udp=7777, or an address that the host does not have; to \
             take every packet in spite of this: xdp:{name},all"
        );
        return Err(Error::new(Code::Busy, cannot(config), why).fix(fix));
    }
    let used = if config.is_permitted { None } else { needed(&config.filter, interface)? };
    let Some(used) = used else { return Ok(()) };
    let (name, text, filter) = (&config.interface, config.text(), &config.filter);
    let [whose, which] = match (&used.kind, filter) {
        (UseKind::Station(_), _) => ["others on this machine", "that others on this machine need"],
        (_, Filter::Only(Match::To(_))) => {
            ["this host", "that this host may need, as for neighbour discovery or DHCP"]
        }
        _ => ["this host, ssh included", "without which ssh to this host ends"],
    };
    let (why, fix) = if config.is_said {
        (
            format!("{filter} takes packets {which}: {used}"),
            format!(
                "take yours only, as xdp:{name},udp=7777 does; to take these in spite of this: {text},all"
            ),
        )
    } else {
        (
            format!("without a filter it takes every packet from {whose}: {used}"),
            format!(
                "add a filter, as in {text},udp=7777; to take every packet in spite of this: {text},all"
            ),
        )
    };
    Err(Error::new(Code::Busy, cannot(config), why).fix(fix))
}
