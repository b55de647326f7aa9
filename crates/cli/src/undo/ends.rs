//! The two ends of a veth, and the XDP programs on them.

use std::thread;
use std::time::{Duration, Instant};

use linerate::Registry;
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;

use super::STEP;
use super::line::Line;
use crate::run::planned;

/// Longest time until the kernel has detached the XDP program of a process that has ended.
const DETACHED: Duration = Duration::from_millis(500);

/// Returns the indices of the interfaces of `ports`, and of their other ends in this namespace.
pub(super) fn ends<'a>(ports: impl IntoIterator<Item = &'a str>, drivers: &Registry) -> Vec<u32> {
    let mut ends = Vec::new();
    for text in ports {
        let Ok(plan) = planned(drivers, text) else { continue };
        let Some(Ok(interface)) = plan.interface().map(Interface::open) else { continue };
        ends.push(interface.index());
        ends.extend(other_end(&LinkInfo::of(&interface).unwrap_or_default()));
    }
    ends
}

/// Returns the index of the other end of a veth, if it is in this network namespace.
pub(super) fn other_end(info: &LinkInfo) -> Option<u32> {
    info.other.filter(|_| info.kind == "veth" && !info.other_is_elsewhere)
}

/// Returns the time at which the kernel has detached the programs of processes that have ended.
pub(super) fn detached() -> Instant {
    Instant::now() + DETACHED
}

/// Returns true if no XDP program is attached that may need the line's change, at the latest at
/// `until`.
pub(super) fn is_free_soon(line: &Line, until: Instant) -> bool {
    loop {
        match is_free(line) {
            Some(false) if Instant::now() < until => thread::sleep(STEP),
            known => return known == Some(true),
        }
    }
}

/// Returns true if no XDP program is attached that may need the line's change; `None` if that is
/// not known, for instance because the other end is in another network namespace.
fn is_free(line: &Line) -> Option<bool> {
    let info = |index| LinkInfo::of(&Interface::by_index(index).ok()?).ok();
    let own = info(line.index)?;
    let user = match (&line.left, other_end(&own)) {
        // The port is on the other end: what it receives lacks what the kernel leaves to the
        // offload.
        (left, Some(other)) if left.is_for_other_end() => info(other)?,
        (left, None) if left.is_for_other_end() && own.kind == "veth" => return None,
        _ => own,
    };
    Some(user.xdp_programs.is_empty())
}
