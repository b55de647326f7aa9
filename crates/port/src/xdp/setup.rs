//! Opening of the port: the interface, the program (attach.rs), the sockets, and their properties
//! (describe.rs).

use std::sync::Arc;

use linerate_skb::{Code, Error, Pool, Result};
use linerate_sys::bpf::Mode;
use linerate_sys::netif::{Interface, TxQueues};
use linerate_sys::packet::PacketSocket;
use linerate_sys::rtnl::{HostUse, XdpFeatures};

use crate::driver::Opened;
use crate::host::filter::Filter;
use crate::host::{Link, longest_frame};
use crate::obtained::{Direction, Obtained};
use crate::queue::QueueOps;

use super::attach::{Attached, attach};
use super::binding::{CopyMode, QueueBinding};
use super::checks::check;
use super::config::{Config, Wanted};
use super::describe::{describe, few_frames, silent, without_effect};
use super::foreign;
use super::hold;
use super::partial::{self, Checksums, Prepared};
use super::queue::{self, XdpQueue};
use super::vlan;

/// Returns the length of the longest packet that the port delivers.
pub(super) fn packet_max_bytes(config: &Config) -> Result<usize> {
    longest_frame(&Interface::find(&config.interface)?)
}

/// Returns the queues that a port uses: those requested, or all of the interface.
pub(super) fn queues(config: &Config) -> Result<Vec<u32>> {
    let there = Interface::find(&config.interface)?.rx_queues()?;
    chosen(config, there)
}

fn chosen(config: &Config, there: u32) -> Result<Vec<u32>> {
    if config.queues.is_empty() {
        return Ok((0..there).collect());
    }
    match config.queues.iter().find(|queue| **queue >= there) {
        None => Ok(config.queues.clone()),
        Some(queue) => {
            let (name, has) = (&config.interface, linerate_sys::text::queues(there as usize));
            let why = format!("there is no queue {queue}: {name} has {has}");
            let fix = format!(
                "queues= lists the numbers of queues; these are: ls /sys/class/net/{name}/queues"
            );
            Err(Error::new(Code::PortSyntax, cannot(config), why).fix(fix))
        }
    }
}

/// Opens an xdp port.
pub(super) fn open(config: &Config, pool: &Pool) -> Result<Opened> {
    let (queues, obtained) = open_queues(config, pool)?;
    let boxed = |queue| Box::new(queue) as Box<dyn QueueOps>;
    Ok(Opened { queues: queues.into_iter().map(boxed).collect(), obtained })
}

/// Opens the queues, in the order of their numbers.
pub(super) fn open_queues(config: &Config, pool: &Pool) -> Result<(Vec<XdpQueue>, Obtained)> {
    let interface = Interface::find(&config.interface)?;
    check(config, &interface, pool)?;
    let link = Link::open(&config.interface)?;
    let longest = longest_frame(&interface)?;
    let queues = chosen(config, interface.rx_queues()?)?;
    let copied = without_zero_copy(config, &interface, pool, longest)?;
    let packet_frames = longest.div_ceil(room(pool).max(1));
    let mut refused = Vec::new();
    let several = packet_frames > 1;
    let Ready { attached, mode, checksums, notes } =
        prepare(config, &interface, several, &queues, &mut refused)?;
    let wanted = copy_mode(config.mode, mode, copied.is_some());
    let tx_queues = interface.tx_queues()?;
    let opening = Opening {
        config,
        pool,
        attached,
        interface: &interface,
        packet_frames,
        checksums,
        tx_queues,
    };
    let (ops, zero_copy) = opening.all(&queues, wanted, &mut refused)?;
    refused.extend(copied.map(|why| format!("zero-copy: {why}")));
    refused.extend(notes.into_iter().chain(link.without_carrier()));
    refused.extend(without_effect(config));
    refused.extend(few_frames(config, queues.len(), pool));
    refused.extend(tx_queues.and_then(|there| silent(config, there, &queues)));
    let text = describe(config, &interface, mode, zero_copy, &queues);
    let mut obtained = Obtained::new(config.interface.clone(), text, longest).mac_of(&interface);
    obtained.queues = ops.len();
    obtained.filter = config.filter.chosen();
    if config.filter == Filter::Nothing {
        obtained.direction = Direction::Sink;
    }
    obtained.refused = refused;
    Ok((ops, obtained))
}

/// An interface that gives the port its packets, each as the port needs it.
struct Ready {
    attached: Arc<Attached>,
    /// The place of the program; `None` if it is not known.
    mode: Option<Mode>,
    checksums: Checksums,
    /// Notes of changes that were made, or could not be.
    notes: Vec<String>,
}

/// Attaches the program, or joins another owner's, and changes the settings of the interface that
/// would spoil what the port receives.
fn prepare(
    config: &Config,
    interface: &Interface,
    several: bool,
    queues: &[u32],
    refused: &mut Vec<String>,
) -> Result<Ready> {
    let (attached, mode) = match &config.map {
        Some(map) => foreign::join(config, map, interface, queues, refused)?,
        None => {
            let (own, mode) = attach(config, interface, several, queues, refused)?;
            (own, Some(mode))
        }
    };
    let Prepared { checksums, said, off } = partial::prepare(config, interface)?;
    let (tags_off, tags_said) = vlan::prepare(config, interface);
    let hold = hold::open(config, interface)?;
    let promiscuous =
        config.is_promiscuous().then(|| PacketSocket::promiscuous(interface)).transpose()?;
    let _off = off.into_iter().chain(tags_off).collect();
    let notes = said.into_iter().chain(tags_said).collect();
    let attached = Arc::new(Attached { _off, hold, promiscuous, ..attached });
    Ok(Ready { attached, mode, checksums, notes })
}

/// Properties that the queues of a port share.
struct Opening<'a> {
    config: &'a Config,
    pool: &'a Pool,
    attached: Arc<Attached>,
    interface: &'a Interface,
    packet_frames: usize,
    checksums: Checksums,
    /// The transmit queues; `None` if their number is not known.
    tx_queues: Option<TxQueues>,
}

impl Opening<'_> {
    /// Opens all queues in one mode; returns them, and true if they are zero-copy.
    ///
    /// If the first queue has zero-copy and another one is refused it, all are opened again, with
    /// copies.
    fn all(
        &self,
        queues: &[u32],
        wanted: CopyMode,
        refused: &mut Vec<String>,
    ) -> Result<(Vec<XdpQueue>, bool)> {
        let mut obtained = wanted;
        match self.each(queues, &mut obtained, refused) {
            Err(e)
                if wanted == CopyMode::Fallback
                    && obtained == CopyMode::Never
                    && may_be_of_zero_copy(&e) =>
            {
                refused.push(format!("zero-copy: {}: {}", e.what, e.why));
                // The others are closed; each is bound again as soon as the kernel has released it.
                let ops = self.each(queues, &mut CopyMode::Always, refused)?;
                Ok((ops, false))
            }
            done => done.map(|ops| (ops, obtained == CopyMode::Never)),
        }
    }

    /// Opens the queues: the first one in `mode`, which becomes the mode that it has, and the
    /// others in that.
    fn each(
        &self,
        queues: &[u32],
        mode: &mut CopyMode,
        refused: &mut Vec<String>,
    ) -> Result<Vec<XdpQueue>> {
        let Opening { config, pool, attached, interface, packet_frames, checksums, tx_queues } =
            self;
        let mut ops = Vec::with_capacity(queues.len());
        for queue in queues {
            let can_send = tx_queues.is_none_or(|there| *queue < there.count);
            let frames = *packet_frames;
            let binding =
                QueueBinding::new(config, pool, attached, interface, *queue, frames, can_send)?;
            let link = Link::open(&config.interface)?;
            let (queue, obtained, why) = queue::open(binding, link, *mode, *checksums)?;
            refused.extend(why.map(|why| format!("zero-copy: {why}")));
            *mode = obtained;
            ops.push(queue);
        }
        Ok(ops)
    }
}

/// Returns false for an error that a queue with copies would have, too.
fn may_be_of_zero_copy(e: &Error) -> bool {
    !matches!(e.code, Code::Busy | Code::NoDevice | Code::DeviceDown | Code::Permission)
}

/// Returns the bytes of a packet that fit into one frame of `pool`.
fn room(pool: &Pool) -> usize {
    let headroom = pool.headroom().max(linerate_sys::xdp::HEADROOM_BYTES as usize);
    pool.frame_size().saturating_sub(headroom)
}

/// Returns how sockets are bound to the driver's queues: `mode` is where the program runs, and
/// `is_copied` is true if a port that takes zero-copy if it can is to do without.
pub(super) fn copy_mode(wanted: Wanted, mode: Option<Mode>, is_copied: bool) -> CopyMode {
    match (wanted, mode) {
        (Wanted::ZeroCopy, _) => CopyMode::Never,
        (Wanted::Auto, Some(Mode::Native)) if !is_copied => CopyMode::Fallback,
        _ => CopyMode::Always,
    }
}

/// Returns the reason why a port that takes zero-copy if it can does not: it would cut packets, or
/// the host uses the interface.
///
/// # Errors
/// The first reason, for a port that must have zero-copy.
fn without_zero_copy(
    config: &Config,
    interface: &Interface,
    pool: &Pool,
    longest: usize,
) -> Result<Option<String>> {
    let driver = interface.driver().map(|(name, _)| name).unwrap_or_default();
    match (config.mode, cut_by(&driver, room(pool), longest)) {
        (Wanted::ZeroCopy, Some(why)) => {
            let fix = "frames of 4096 bytes: --frame-size 4096, Pool::builder().frame_size(4096)";
            Err(Error::new(Code::PoolSize, cannot(config), why).fix(fix))
        }
        (Wanted::Auto, Some(why)) => Ok(Some(why)),
        (Wanted::Auto, None) => Ok(copied_for_host(config, interface)),
        // In the other modes zero-copy was not requested.
        _ => Ok(None),
    }
}

/// Returns the reason why a port that takes zero-copy if it can does not, where the driver has it:
/// the host uses the interface, or may use it. There the host's packets need the port's frames, so
/// that a program which a debugger stops would stop them, too. A port that takes every packet leaves
/// none to the host.
pub(super) fn copied_for_host(config: &Config, interface: &Interface) -> Option<String> {
    // Before Linux 6.3 the driver does not say what it has.
    let has = XdpFeatures::of(interface).ok().flatten().is_none_or(XdpFeatures::has_zero_copy);
    if config.mode != Wanted::Auto || config.filter == Filter::All || !has {
        return None;
    }
    let used = match HostUse::of(interface) {
        Ok(used) => used?.to_string(),
        Err(e) => e.to_string(),
    };
    Some(format!(
        "not tried, because this host uses the interface ({used}), and a program that stops would stop its packets, too; mode=zerocopy takes it"
    ))
}

/// Returns the reason why zero-copy would cut packets: an igb is given the frame's room in whole
/// KiB, and writes the rest of a packet as a further one (seen on Linux 7.2, docs/qemu.md).
pub(super) fn cut_by(driver: &str, room: usize, longest: usize) -> Option<String> {
    let written = room / 1024 * 1024;
    (driver == "igb" && written < longest).then(|| {
        format!("igb writes {written} bytes of a frame and cuts the rest of a packet of {longest}")
    })
}

pub(super) fn cannot(config: &Config) -> String {
    format!("cannot open xdp:{}", config.interface)
}
