//! Examination of a packet port: the interface, its merging offloads, and a trial.

use linerate_skb::Code;

use super::config::Config;
use crate::doctor::interface::{self, InterfaceInfo};
use crate::doctor::{Findings, flow, trial};
use crate::spec::Spec;

/// Checks a packet port.
///
/// Its socket gets copies, so that the trial takes no packet from another socket. It is not made
/// promiscuous, which others would notice.
pub(super) fn examine(config: &Config, spec: &Spec, found: &mut Findings) {
    let of = match interface::examine(&spec.arg, found) {
        Ok(of) => of,
        Err(e) => {
            found.miss(&e);
            return;
        }
    };
    interface::standing(&of, "packet", None, found);
    merging(config, &of, found);
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

/// Reports receive merging. If offload headers are exchanged, superframes pass unchanged, but their
/// sender must be able to cut them.
fn merging(config: &Config, of: &InterfaceInfo, found: &mut Findings) {
    let why =
        "merged packets cannot be cut back into the originals, so LRO must be off for forwarding";
    interface::lro(of, why, found);
    if !config.vnet && of.interface.merging().is_ok_and(|merging| merging.by_kernel) {
        let name = of.interface.name();
        found
            .warn(format!("{name} merges packets that it receives (GRO)"))
            .why("without the offload header superframes are dropped as too_long, and those not longer than the MTU leave as one packet")
            .fix(format!("ethtool -K {name} gro off"));
    }
}
