//! A port of xdp: privileges, the program that is there already, memory, queues, offloads, a trial.

use linerate_port::xdp::check_host_use;
use linerate_port::{Code, Error, Result, Spec, plan};
use linerate_sys::bpf::{self, Insn, Program, Reg, SocketMap, XDP_PASS};
use linerate_sys::xdp::{XdpSocket, try_memory};

use super::finding::Findings;
use super::interface::{self, Found};
use super::{Trial, fix, flow, kernel, proc, trial};

/// Bytes of a frame, unless a pool is told otherwise, and what of it is left for a packet.
const FRAME_BYTES: usize = 2048;
const FRAME_ROOM: usize = FRAME_BYTES - linerate_sys::xdp::HEADROOM_BYTES as usize;
/// Frames of a port's pool that are not for its rings.
const PROGRAM_FRAMES: usize = 4096;
/// Ethernet header and one VLAN tag.
const LINK_HEADER_BYTES: usize = 18;

/// Checks a port of xdp.
pub(super) fn examine(spec: &Spec, how: Trial, found: &mut Findings) {
    match interface::examine(&spec.arg, found) {
        Ok(of) => examine_on(spec, &of, how, found),
        Err(e) => {
            found.miss(&e);
            privileges(found);
        }
    }
}

/// Checks it on an interface that is there.
pub(super) fn examine_on(spec: &Spec, of: &Found, how: Trial, found: &mut Findings) {
    if let Err(e) = check_host_use(spec) {
        found.miss(&e);
    }
    let may = privileges(found);
    let is_free = program(of, found);
    let rings = plan(spec.text()).and_then(|plan| plan.needs()).map(|needs| needs.ring_frames);
    queues(spec, of, rings.as_ref().ok().copied(), found);
    offloads(of, found);
    if of.is_up {
        flow::examine(spec, found);
    }
    let can = of.is_up && is_free && may;
    if can && (!of.is_hardware() || how == Trial::Full) {
        return tried(spec, of, found);
    }
    several(of, found);
    memory(rings.unwrap_or(0) + PROGRAM_FRAMES, found);
    if can {
        let finding = found.warn("which mode is obtained was not tried");
        finding
            .why("a driver may take its link down for a moment when a program comes or goes")
            .fix(fix::full_trial(spec.text()));
    }
}

/// Makes what takes privileges: a socket, a map, a program; false if it cannot.
pub(super) fn privileges(found: &mut Findings) -> bool {
    let made = || -> Result<()> {
        XdpSocket::new()?;
        SocketMap::new(1)?;
        Program::load(&[Insn::set(Reg::R0, XDP_PASS), Insn::exit()], true).map(drop)
    };
    match made() {
        Ok(()) => {
            found.ok("an AF_XDP socket, its BPF map and a program can be made");
            true
        }
        Err(e) => {
            found.miss(&e);
            false
        }
    }
}

/// Looks for a program that is attached already; true if there is none.
fn program(of: &Found, found: &mut Findings) -> bool {
    let name = of.interface.name();
    let names = of.info.xdp_programs.iter().map(|id| match bpf::program_name(*id) {
        Some(program) => format!("{program:?} (id {id})"),
        None => format!("id {id}"),
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return true;
    }
    let why = format!("the XDP program {} is attached to it", names.join(", "));
    let e = Error::new(Code::Busy, format!("{name} is taken"), why);
    found.miss(
        &e.fix(format!("end the program that owns it; if nobody does: ip link set {name} xdp off")),
    );
    false
}

/// Compares the queues that there are with those that the port takes.
fn queues(spec: &Spec, of: &Found, rings: Option<usize>, found: &mut Findings) {
    let name = of.interface.name();
    let Ok(there) = of.interface.rx_queues() else { return };
    // What one queue takes, as the driver says.
    let one = plan(&trial::with(spec.text(), &["queues"], "queues=0"));
    let one = one.and_then(|one| one.needs()).map(|needs| needs.ring_frames);
    let taken = match (rings, one) {
        (Some(all), Ok(one)) if one > 0 => all / one,
        _ => return,
    };
    if taken < there as usize {
        found
            .warn(format!("the port takes {taken} of {there} queues"))
            .why("a packet that comes by another goes to the kernel")
            .fix(format!(
                "without queues= it takes all; which packets come by which: ethtool -x {name}"
            ));
    } else {
        found.ok(match there {
            1 => "the port takes the one queue that there is".into(),
            n => format!("the port takes all {n} queues"),
        });
    }
}

/// What the other end leaves undone, and what the device does too much.
fn offloads(of: &Found, found: &mut Findings) {
    let name = of.interface.name();
    if of.interface.merging().is_ok_and(|merging| merging.by_device) {
        found
            .warn(format!("{name} merges packets that it receives (LRO)"))
            .why("most drivers take no XDP program while they do")
            .fix(format!("ethtool -K {name} lro off"));
    }
    if let Some(other) = of.other_end()
        && matches!(other.checksum_offload(), Ok(true))
    {
        let other = other.name();
        found.ok(format!(
            "{other}, its other end, is in sight: opening the port turns off {other}'s checksum offload"
        ));
    }
}

/// Opens the port as it will be, but for its filter.
fn tried(spec: &Spec, of: &Found, found: &mut Findings) {
    match trial::open_xdp(spec.text(), of) {
        Ok(mut obtained) => {
            // Not the filter that was asked for.
            obtained.mode = obtained.mode.replace(&format!(", diverts {}", trial::NOBODYS), "");
            obtained.mode += &format!(" (tried with {})", trial::NOBODYS);
            found.opened(obtained);
        }
        Err(e) if e.code == Code::Memory => {
            too_much(&e, found);
        }
        Err(e) => {
            found.miss(&e);
        }
    }
}

/// Whether packets that are longer than a frame can be had, where nothing is tried.
fn several(of: &Found, found: &mut Findings) {
    if of.mtu + LINK_HEADER_BYTES <= FRAME_ROOM {
        return;
    }
    let (name, most) = (of.interface.name(), FRAME_ROOM - LINK_HEADER_BYTES);
    if kernel::version().is_some_and(|version| version < kernel::FRAGS) {
        let what = format!("{name}: an MTU of {} takes several frames a packet", of.mtu);
        let e = Error::new(Code::Unsupported, what, "which AF_XDP has from Linux 6.6 on");
        found.miss(&e.fix(format!("ip link set {name} mtu {most}")));
    } else {
        let what = format!("{name}: an MTU of {} takes several frames a packet", of.mtu);
        found
            .warn(what)
            .why("not every driver has that for XDP, and it was not tried")
            .fix(format!("ip link set {name} mtu {most}"));
    }
}

/// Registers as much memory as a pool of `frames` has.
pub(super) fn memory(frames: usize, found: &mut Findings) {
    let bytes = frames * FRAME_BYTES;
    match try_memory(bytes) {
        Ok(()) => {
            let bytes = proc::size(bytes as u64);
            found.ok(format!("{bytes} of packet memory register ({})", proc::memlock()));
        }
        Err(e) if e.code == Code::Memory => too_much(&e, found),
        // Said already: no socket, no memory.
        Err(_) => {}
    }
}

/// Says what was to be registered; what the limit is, and how to be rid of it, stands in the error.
fn too_much(e: &Error, found: &mut Findings) {
    let what = "the packet memory cannot be registered";
    found.miss(&Error::new(Code::Memory, what, e.why.as_str()).fix(e.fix.as_str()));
}
