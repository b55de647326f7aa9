//! Opening of the port: the interface, the program, the sockets, and their properties.

use std::sync::Arc;

use linerate_skb::{Code, Data, Error, Pool, Result};
use linerate_sys::bpf::{self, Mode, Program, SocketMap};
use linerate_sys::capability::Capabilities;
use linerate_sys::netif::{Interface, RssGuard, TxQueues};
use linerate_sys::packet::PacketSocket;
use linerate_sys::rtnl::{HostUse, LinkInfo, UseKind};
use linerate_sys::xdp::XdpSocket;
use rustix::io::Errno;

use crate::driver::Opened;
use crate::host::{Link, Reservation, check_ethernet, longest_frame, open_when_closed};
use crate::obtained::{Direction, Obtained};
use crate::queue::QueueOps;

use super::binding::{CopyMode, QueueBinding};
use super::config::{Config, Wanted};
use super::foreign;
use super::hold::{self, Held};
use super::partial::{self, Checksums, OffloadOff, Prepared};
use super::program::assemble;
use super::queue::{self, XdpQueue};
use super::spread;
use super::vlan;
use crate::doctor::interface::too_few_queues;
use crate::host::filter::{Filter, Match};

/// Frame sizes that the kernel accepts for aligned chunks.
///
/// Source: net/xdp/xdp_umem.c, `XDP_UMEM_MIN_CHUNK_SIZE` and the page.
const FRAME_BYTES: [usize; 2] = [2048, 4096];

/// Name of the programs of this driver, as the kernel shows it.
const OWN_NAME: &str = "linerate";

/// The program on the interface, shared by all queues of a port.
///
/// The fields are in the order of their drop: the program is the last of those that change the
/// interface, because another process may attach its own as soon as this one is detached, and
/// would take the port's settings for the former ones.
#[derive(Debug)]
pub(super) struct Attached {
    /// Map in which the program finds the queues' sockets; `None` if it must not find them.
    pub map: Option<Arc<SocketMap>>,
    /// Keeps the interface promiscuous, if the port receives packets to other stations.
    pub promiscuous: Option<PacketSocket>,
    /// Offloads that spoil what the port receives. Nothing is received once these are dropped.
    pub _off: Vec<OffloadOff>,
    /// The hold of NAPI; `None` if the port cannot change it.
    pub hold: Option<Arc<Held>>,
    /// The changed division among the queues, if one was requested.
    pub _spread: Option<RssGuard>,
    /// `None` if the program belongs to another owner.
    pub _own: Option<OwnProgram>,
}

/// A program of the port's own, attached while one of the queues lives.
#[derive(Debug)]
pub(super) struct OwnProgram {
    _link: bpf::Link,
    _program: Program,
    /// Dropped last: until the program is detached no other process may get the ports that it
    /// takes.
    _reservation: Option<Reservation>,
}

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
            let fix =
                format!("queues= lists the numbers of queues; their count: ethtool -l {name}");
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
    let mut refused = Vec::new();
    let packet_frames = longest.div_ceil(room(pool).max(1));
    let driver = interface.driver().map(|(name, _)| name).unwrap_or_default();
    let cut = cut_by(&driver, room(pool), longest);
    if let (Wanted::ZeroCopy, Some(why)) = (config.mode, &cut) {
        let fix = "frames of 4096 bytes: --frame-size 4096, Pool::builder().frame_size(4096)";
        return Err(Error::new(Code::PoolSize, cannot(config), why).fix(fix));
    }
    let (attached, mode) = match &config.map {
        Some(map) => foreign::join(config, map, &interface, &queues, &mut refused)?,
        None => {
            let (own, mode) = attach(config, &interface, packet_frames > 1, &queues, &mut refused)?;
            (own, Some(mode))
        }
    };
    let Prepared { checksums, said, off } = partial::prepare(config, &interface)?;
    let (tags_off, tags_said) = vlan::prepare(config, &interface);
    let hold = hold::open(config, &interface)?;
    let _off = off.into_iter().chain(tags_off).collect();
    let promiscuous =
        config.is_promiscuous().then(|| PacketSocket::promiscuous(&interface)).transpose()?;
    let attached = Arc::new(Attached { _off, hold, promiscuous, ..attached });
    let wanted = match (config.mode, mode) {
        (Wanted::ZeroCopy, _) => CopyMode::Never,
        (Wanted::Auto, Some(Mode::Native)) if cut.is_none() => CopyMode::Fallback,
        _ => CopyMode::Always,
    };
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
    // In the other modes zero-copy was not requested.
    let cut = cut.filter(|_| config.mode == Wanted::Auto);
    refused.extend(cut.map(|why| format!("zero-copy: {why}")));
    refused.extend(said.into_iter().chain(tags_said).chain(link.without_carrier()));
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

/// Returns a message if the fill rings of all queues take the whole pool.
fn few_frames(config: &Config, queues: usize, pool: &Pool) -> Option<String> {
    let (filled, frames) = (queues * config.lens().fill as usize, pool.frames());
    (config.filter != Filter::Nothing && filled >= frames).then(|| {
        format!("frames: its fill rings can hold {filled} and the pool has {frames}, so that a program may find none to send, and another port none to receive into: a larger pool, or a shorter ring")
    })
}

/// Returns a message if some of `queues` send nothing, because the interface has fewer transmit queues.
pub(super) fn silent(config: &Config, there: TxQueues, queues: &[u32]) -> Option<String> {
    let (name, count) = (&config.interface, there.count);
    let silent: Vec<u32> = queues.iter().copied().filter(|queue| *queue >= count).collect();
    let needed = silent.last()?.saturating_add(1);
    let fix = match there.is_combined {
        _ if needed > there.most && count == 1 => format!("{},queues=0", config.text()),
        _ if needed > there.most => format!("{},queues=0-{}", config.text(), count - 1),
        true => format!("ethtool -L {name} combined {needed}"),
        false => format!("ethtool -L {name} tx {needed}"),
    };
    let s = if count == 1 { "" } else { "s" };
    let does = match (config.filter == Filter::Nothing, silent.len()) {
        (true, 1) => "sends nothing",
        (true, _) => "send nothing",
        (false, 1) => "only receives",
        (false, _) => "only receive",
    };
    let which = numbers(&silent);
    Some(format!("queues: {name} has {count} transmit queue{s}, so {which} {does}: {fix}"))
}

/// Returns a message for each option that has no effect because the port only sends.
fn without_effect(config: &Config) -> Vec<String> {
    let no_hold = config.hold.is_some() && hold::wanted(config).is_none();
    let no_spread = config.spread.is_some() && spread::wanted_by(config).is_none();
    let mut options: Vec<String> = config.unused.iter().map(ToString::to_string).collect();
    options.extend(no_hold.then(|| "hold".to_owned()));
    options.extend(no_spread.then(|| "rss".to_owned()));
    let is_refused = config.promisc == Some(true) && !config.is_promiscuous();
    options.extend(is_refused.then(|| "promisc".to_owned()));
    options.iter().map(|option| format!("{option}: this port only sends")).collect()
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
    /// If the first queue has zero-copy and another one is refused it, all are opened again, with copies.
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

    /// Opens the queues: the first one in `mode`, which becomes the mode that it has, and the others in that.
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

/// Returns the reason why zero-copy would cut packets: an igb is given the frame's room in whole
/// KiB, and writes the rest of a packet as a further one (seen on Linux 7.2, docs/qemu.md).
pub(super) fn cut_by(driver: &str, room: usize, longest: usize) -> Option<String> {
    let written = room / 1024 * 1024;
    (driver == "igb" && written < longest).then(|| {
        format!("igb writes {written} bytes of a frame and cuts the rest of a packet of {longest}")
    })
}

/// Refuses options that cannot work, before anything is changed.
fn check(config: &Config, interface: &Interface, pool: &Pool) -> Result<()> {
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

/// Refuses to take packets without which the host cannot be reached, of an interface that the host uses, unless the
/// text permits it by `all`; and all packets to an address of the host.
pub(super) fn check_host_use(config: &Config, interface: &Interface) -> Result<()> {
    if let Filter::Only(Match::To(address)) = config.filter
        && HostUse::has_address(interface, address)?
    {
        let (name, text) = (&config.interface, config.text());
        let why = format!(
            "{address} is an address of this host: the port takes every packet to it, ssh included"
        );
        let fix = format!(
            "in place of {text} name a port, as in xdp:{name},udp=7777, or an address that the host does not have; to \
             take every packet in spite of this: xdp:{name},all"
        );
        return Err(Error::new(Code::Busy, cannot(config), why).fix(fix));
    }
    if config.is_permitted || !config.filter.cuts_off() {
        return Ok(());
    }
    let Some(used) = HostUse::of(interface)? else { return Ok(()) };
    let (name, text, filter) = (&config.interface, config.text(), &config.filter);
    let [whose, which] = match used.kind {
        UseKind::Station(_) => ["others on this machine", "that others on this machine need"],
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

pub(super) fn cannot(config: &Config) -> String {
    format!("cannot open xdp:{}", config.interface)
}

/// Loads the filter's program, and attaches it, in the driver if possible.
fn attach(
    config: &Config,
    interface: &Interface,
    several: bool,
    queues: &[u32],
    refused: &mut Vec<String>,
) -> Result<(Attached, Mode)> {
    let reservation =
        config.filter.flow().map(|flow| Reservation::of(flow, interface)).transpose()?;
    let entries = queues.last().map_or(1, |last| last + 1);
    let map = Arc::new(SocketMap::new(entries)?);
    let insns = assemble(&config.filter, map.raw_fd());
    let program = match Program::load(&insns, true) {
        Ok(program) => program,
        // XDP has packets in several buffers since Linux 5.18.
        Err(e) if several => return Err(e),
        Err(_) => Program::load(&insns, false)?,
    };
    let attach = |mode| attach_to(&program, interface, mode);
    let (mode, link) = match config.mode {
        Wanted::Generic => (Mode::Generic, attach(Mode::Generic)),
        Wanted::Native | Wanted::ZeroCopy => (Mode::Native, attach(Mode::Native)),
        Wanted::Auto => match attach(Mode::Native) {
            Err(e) if !is_taken(&e) => {
                let (why, fix) = native_refused(interface, e);
                refused.push(
                    fix.map_or(format!("native: {why}"), |fix| format!("native: {why}; {fix}")),
                );
                (Mode::Generic, attach(Mode::Generic))
            }
            done => (Mode::Native, done),
        },
    };
    match link {
        Ok(link) => {
            // Some drivers rebuild the RSS table when a program is attached: so read it only after
            // that.
            let set = |spread| spread::set(spread, &config.interface, queues);
            let _spread = spread::wanted_by(config).map(set).transpose()?;
            let own = OwnProgram { _link: link, _program: program, _reservation: reservation };
            Ok((
                Attached {
                    map: Some(map),
                    _own: Some(own),
                    _spread,
                    hold: None,
                    _off: Vec::new(),
                    promiscuous: None,
                },
                mode,
            ))
        }
        Err(e) => Err(not_attached(config, interface, mode, e)),
    }
}

fn is_taken(e: &Errno) -> bool {
    matches!(*e, Errno::BUSY | Errno::EXIST)
}

/// Attaches the program, and waits a moment for another one to go.
fn attach_to(
    program: &Program,
    interface: &Interface,
    mode: Mode,
) -> rustix::io::Result<bpf::Link> {
    open_when_closed(is_taken, || program.attach(interface.index(), mode))
}

/// Returns the reason why a driver refused the program, and the remedy if one is known.
fn native_refused(interface: &Interface, e: Errno) -> (String, Option<String>) {
    let info = || LinkInfo::of(interface).unwrap_or_default();
    match e {
        Errno::OPNOTSUPP => ("the driver has no XDP".into(), None),
        Errno::RANGE | Errno::INVAL => {
            (format!("the driver refuses this MTU or its offloads ({e})"), None)
        }
        Errno::NOSPC => match too_few_queues(interface, &info()) {
            Some((why, fix)) => (why, Some(fix)),
            None => (e.to_string(), None),
        },
        e => (e.to_string(), None),
    }
}

fn not_attached(config: &Config, interface: &Interface, mode: Mode, e: Errno) -> Error {
    let name = &config.interface;
    match e {
        e if is_taken(&e) => {
            let ids = LinkInfo::of(interface).map(|info| info.xdp_programs).unwrap_or_default();
            let why = match program_names(&ids).as_str() {
                "" => "another XDP program is attached to it".to_owned(),
                names => format!("the XDP program {names} is attached to it"),
            };
            Error::new(Code::Busy, cannot(config), why).fix(beside(name, &ids))
        }
        Errno::PERM | Errno::ACCESS => {
            Error::os(Code::Permission, cannot(config), "BPF_LINK_CREATE", e)
                .fix(Capabilities::XDP.remedy())
        }
        // Generic mode asks no driver, so EINVAL means that the kernel does not know the call.
        Errno::INVAL if mode == Mode::Generic => {
            Error::os(Code::Unsupported, cannot(config), "BPF_LINK_CREATE", e)
                .fix(format!("Linux 5.9 or later, or packet:{name}"))
        }
        e => {
            let how = if mode == Mode::Native { "in its driver" } else { "at all" };
            let (why, more) = native_refused(interface, e);
            let why = format!("no XDP program can be attached to it {how}: {why}");
            let fix = format!("{},mode=generic, or packet:{name}", config.text());
            let fix = more.map_or(fix.clone(), |more| format!("{fix}; or {more}"));
            Error::new(Code::Unsupported, cannot(config), why).fix(fix)
        }
    }
}

/// Returns the text that reports the properties of the opened port.
fn describe(
    config: &Config,
    interface: &Interface,
    mode: Option<Mode>,
    zero_copy: bool,
    queues: &[u32],
) -> String {
    let taken = match &config.map {
        Some(_) if config.filter != Filter::Nothing => foreign::feeder(interface),
        _ => config.filter.diverts(),
    };
    let mut text = mode_text(&taken, mode, zero_copy, queues);
    if let Some(by) = spread::describe(config, interface) {
        text += &format!(", {by}");
    }
    if let Some(held) = hold::describe(interface) {
        text += &format!(", {held}");
    }
    if config.is_promiscuous() {
        text += ", promiscuous";
    }
    text
}

/// Returns the text that reports the mode of the opened port, and the packets it takes.
fn mode_text(taken: &str, mode: Option<Mode>, zero_copy: bool, queues: &[u32]) -> String {
    let attached = match mode {
        Some(Mode::Native) => "native ",
        Some(Mode::Generic) => "generic ",
        None => "",
    };
    let copy = if zero_copy { "zero-copy" } else { "copy" };
    format!("AF_XDP {attached}{copy}, {taken}, {}", numbers(queues))
}

/// Returns a text with the numbers of `queues`, which are in order.
fn numbers(queues: &[u32]) -> String {
    match queues {
        [one] => format!("queue {one}"),
        [first, .., last] if (last - first) as usize + 1 == queues.len() => {
            format!("queues {first}-{last}")
        }
        some => format!("queues {some:?}"),
    }
}

/// Returns the remedy for the programs with these ids, which are attached already.
pub(super) fn beside(name: &str, ids: &[u32]) -> String {
    let is_ours = |id: &u32| bpf::program_name(*id).is_some_and(|program| program == OWN_NAME);
    if ids.iter().any(is_ours) { beside_ours(name) } else { beside_theirs(name) }
}

/// Returns the remedy if the program belongs to another port.
fn beside_ours(name: &str) -> String {
    format!(
        "another xdp port of linerate has the interface, in this process or another: close that port, or end its \
         process; or give one port the packets of both, as xdp:{name},udp=7777+7778 does; or use packet:{name} beside it"
    )
}

/// Returns the remedy if the program belongs to another owner.
fn beside_theirs(name: &str) -> String {
    format!(
        "beside it, if it has a map of sockets: xdp:{name},map=FILE; or end the process that attached it, with which a \
         program goes that is attached by a link; if it is attached without a link: ip link set {name} xdp off"
    )
}

/// Returns the names of the programs with these ids; only the id for a name that this process may not read.
pub(super) fn program_names(ids: &[u32]) -> String {
    let each = ids.iter().map(|id| match bpf::program_name(*id) {
        Some(program) => format!("{program:?} (id {id})"),
        None => format!("id {id}"),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{beside_ours, beside_theirs};

    #[test]
    fn the_remedy_for_an_attached_program_depends_on_its_owner() {
        let ours = beside_ours("c0");
        assert!(
            ours.contains("close that port") && ours.contains("xdp:c0,udp=7777+7778"),
            "{ours}"
        );
        // The program of a port is attached by a link, so this command fails.
        assert!(!ours.contains("xdp off"), "{ours}");
        let theirs = beside_theirs("c0");
        assert!(theirs.contains("xdp:c0,map=FILE") && theirs.contains("by a link"), "{theirs}");
        assert!(theirs.ends_with(": ip link set c0 xdp off"), "{theirs}");
    }
}
