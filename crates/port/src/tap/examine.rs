//! Examination of a tap port: the device file, the privilege, and a trial.

use linerate_skb::{Code, Error};
use linerate_sys::netif::Interface;
use linerate_sys::rtnl::LinkInfo;

use crate::doctor::{Findings, Trial, full_trial, trial};
use crate::spec::Spec;

/// Examines a tap port; an interface that does not exist is created for the trial and removed.
pub(super) fn examine(spec: &Spec, how: Trial, found: &mut Findings) {
    let there = Interface::open(&spec.arg).and_then(|interface| LinkInfo::of(&interface));
    match there {
        Ok(info) if info.kind != "tun" => {
            let what = format!("{} is no TAP", spec.arg);
            let why = match info.kind.as_str() {
                "" => "another interface has that name".to_owned(),
                kind => format!("an interface of kind {kind} has that name"),
            };
            found.miss(
                &Error::new(Code::Busy, what, why)
                    .fix("choose another name; these are in use: ip -br link"),
            );
            return;
        }
        Ok(_) if how == Trial::Careful => {
            found
                .warn(format!("{} exists, and was not opened", spec.arg))
                .why("opening it would change its offloads and its carrier")
                .fix(full_trial(spec.text()));
            return;
        }
        _ => {}
    }
    // Leave the interface down, so that it sends no packet.
    match trial::open(&trial::with(spec.text(), &["up"], "up=off")) {
        Ok(mut obtained) => {
            obtained.refused.retain(|refused| !refused.starts_with("down: "));
            found.opened(obtained);
        }
        Err(e) => {
            found.miss(&e);
        }
    }
}
