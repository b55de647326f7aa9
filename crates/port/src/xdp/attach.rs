//! The program on the interface: loads it, attaches it, and explains why that failed.

use std::sync::Arc;

use linerate_skb::{Code, Error, Result};
use linerate_sys::bpf::{self, Mode, Program, SocketMap};
use linerate_sys::capability::Capabilities;
use linerate_sys::netif::{Interface, RssGuard};
use linerate_sys::packet::PacketSocket;
use linerate_sys::rtnl::LinkInfo;
use rustix::io::Errno;

use super::config::{Config, Wanted};
use super::hold::Held;
use super::partial::OffloadOff;
use super::program::assemble;
use super::setup::cannot;
use super::spread;
use crate::doctor::interface::too_few_queues;
use crate::host::{Reservation, open_when_closed};

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
    pub own: Option<OwnProgram>,
}

/// A program of the port's own, attached while one of the queues lives.
#[derive(Debug)]
pub(super) struct OwnProgram {
    _link: bpf::Link,
    program: Program,
    /// Dropped last: until the program is detached no other process may get the ports that it
    /// takes.
    _reservation: Option<Reservation>,
}

impl Attached {
    /// Returns false if the port's own program is not on `interface`: another interface has its
    /// index, or the program was detached. A program of another owner, and one of which nothing can
    /// be said, count as attached.
    ///
    /// Cost: three syscalls, which wait for RTNL.
    pub fn is_on(&self, interface: &Interface) -> bool {
        let Some(own) = &self.own else { return true };
        let (Ok(id), Ok(info)) = (own.program.id(), LinkInfo::of(interface)) else { return true };
        info.xdp_programs.contains(&id)
    }
}

/// The reason why the program of a bond does not run in a driver.
const MEMBERS_ONLY: &str = "the program of a bond would run on its members, and the bond's socket \
                            would receive none of their packets";

/// Loads the filter's program, and attaches it, in the driver if possible.
pub(super) fn attach(
    config: &Config,
    interface: &Interface,
    several: bool,
    queues: &[u32],
    refused: &mut Vec<String>,
) -> Result<(Attached, Mode)> {
    let is_bond = LinkInfo::of(interface).is_ok_and(|info| info.kind == "bond");
    if is_bond && matches!(config.mode, Wanted::Native | Wanted::ZeroCopy) {
        return Err(on_a_bond(config));
    }
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
        Wanted::Auto if is_bond => {
            refused.push(format!("native: {MEMBERS_ONLY}"));
            (Mode::Generic, attach(Mode::Generic))
        }
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
            let own = OwnProgram { _link: link, program, _reservation: reservation };
            Ok((
                Attached {
                    map: Some(map),
                    own: Some(own),
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

/// Returns the error of a mode in which the program of a bond would run on its members.
///
/// Source: net/xdp/xsk.c, `xsk_rcv_check`: a socket takes the packets of its own device only.
fn on_a_bond(config: &Config) -> Error {
    let fix = format!(
        "use a port for each member, as in xdp:MEMBER: ip link show master {}",
        config.interface
    );
    Error::new(Code::Unsupported, cannot(config), MEMBERS_ONLY).fix(fix)
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
                .fix(format!("Linux 5.11 or later, or packet:{name}"))
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

/// Returns the names of the programs with these ids; only the id for a name that this process may
/// not read.
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
