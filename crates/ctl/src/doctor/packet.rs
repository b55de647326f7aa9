//! A port of packet: the interface, what it merges, and a trial.

use linerate_port::{Code, Spec};

use super::finding::Findings;
use super::interface::{self, Found};
use super::{flow, trial};

/// Checks a port of packet.
///
/// Its socket gets copies, so that trying it takes nothing from anybody. It is not made promiscuous,
/// which others would notice.
pub(super) fn examine(spec: &Spec, found: &mut Findings) {
    let of = match interface::examine(&spec.arg, found) {
        Ok(of) => of,
        Err(e) => {
            found.miss(&e);
            return;
        }
    };
    merging(spec, &of, found);
    if !of.is_up {
        return;
    }
    match trial::open(&trial::with(spec.text(), &["promisc"], "promisc=off")) {
        Ok(obtained) => found.opened(obtained),
        Err(e) if e.code == Code::Busy => {
            found.miss(&flow::owned(e));
        }
        Err(e) => {
            found.miss(&e);
        }
    }
}

/// Superframes pass unharmed with the offload header, if they can be cut again.
fn merging(spec: &Spec, of: &Found, found: &mut Findings) {
    let name = of.interface.name();
    let Ok(merging) = of.interface.merging() else { return };
    if merging.by_device {
        found
            .warn(format!("{name} merges packets that it receives (LRO)"))
            .why("they cannot be cut again as they were: not for what forwards")
            .fix(format!("ethtool -K {name} lro off"));
    }
    let vnet = spec.flag("vnet").unwrap_or(true) || !spec.text().contains(",vnet");
    if merging.by_kernel && !vnet {
        found
            .warn(format!("{name} merges packets that it receives (GRO)"))
            .why("without the offload header superframes are dropped as too_long")
            .fix(format!("ethtool -K {name} gro off"));
    }
}
