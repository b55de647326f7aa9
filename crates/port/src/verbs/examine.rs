//! Examination of a verbs port: its device, its memory, and a peer.

use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};

use super::config::Config;
use super::device;
use crate::doctor::{Findings, Trial};
use crate::port::Port;
use crate::queue::Health;
use crate::spec::Spec;

/// Longest time to wait for a peer.
const MEETING: Duration = Duration::from_secs(3);

/// Checks a verbs port. A careful trial only looks at the device; another one opens the port, and
/// waits a moment for a peer, which sees a peer come and go, and gets no packet.
pub(super) fn examine(config: &Config, spec: &Spec, how: Trial, found: &mut Findings) {
    let done = match how {
        Trial::Careful => device::find(config).map(|device| {
            let (name, kind) = (&config.device, &device.kind);
            let longest = device::longest(config, &device);
            found.ok(format!(
                "{name}: {kind}, active, packets up to {longest} bytes; no peer was called"
            ));
        }),
        _ => meet(spec, found),
    };
    if let Err(e) = done {
        found.miss(&e);
    }
}

fn meet(spec: &Spec, found: &mut Findings) -> Result<()> {
    let mut port = Port::open(spec.text())?;
    let mut obtained = port.obtained().clone();
    // The findings below report a missing peer with its remedy.
    obtained.refused.retain(|refused| !refused.starts_with("no peer"));
    let listens = obtained.mode.contains("listens");
    found.opened(obtained);
    match came(&mut port) {
        Health::Up => found.ok(format!("{}: a peer was met, and left again", spec.arg)),
        // During a trial no peer may call, so a missing peer is no error for a port that listens.
        Health::Down(e) if listens => found.ok("listening is possible").fix(&e.fix),
        Health::Down(e) => found.lack(&e),
        health => found.miss(
            &health
                .check()
                .err()
                .unwrap_or_else(|| Error::new(Code::System, "cannot use the port", "it has ended")),
        ),
    };
    Ok(())
}

/// Waits for a peer; returns the state of the port then.
fn came(port: &mut Port) -> Health {
    let until = Instant::now() + MEETING;
    loop {
        let health = port.health();
        let left = until.saturating_duration_since(Instant::now());
        if !matches!(health, Health::Down(_)) || left.is_zero() {
            return health;
        }
        if let Err(e) = port.wait(Some(left)) {
            let e = Error::new(Code::System, "cannot wait for a peer", e.to_string());
            return Health::Failed(e);
        }
    }
}
