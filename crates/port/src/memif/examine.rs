//! Examination of a memif port: a socket to listen on, or a server to connect to.

use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};

use crate::doctor::Findings;
use crate::port::Port;
use crate::queue::Health;
use crate::spec::Spec;

/// Longest time to wait for a server's answer: longer than the port itself waits.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Checks a port of memif. As server it listens for a moment; as client it connects, and leaves: a
/// server sees a client that comes and goes, and no packet.
pub(super) fn examine(spec: &Spec, found: &mut Findings) {
    if let Err(e) = meet(spec, found) {
        found.miss(&e);
    }
}

fn meet(spec: &Spec, found: &mut Findings) -> Result<()> {
    let mut port = Port::open(spec.text())?;
    let mut obtained = port.obtained().clone();
    // Messages below, with what there is to do about it.
    obtained.refused.retain(|refused| !refused.starts_with("no peer yet"));
    let serves = obtained.mode.contains("server");
    found.opened(obtained);
    let path = &spec.arg;
    match came(&mut port) {
        None => {
            found.ok(format!("{path}: the peer accepted a connection, which was closed again"));
        }
        // No client connects to a trial.
        Some(e) if serves => {
            found.ok(format!("listening at {path} is possible")).fix(&e.fix);
        }
        // connect(2) itself says so: there is no server, which may come later.
        Some(e) if e.why.contains("os error") => {
            found.lack(&e);
        }
        Some(e) => {
            found.miss(&e);
        }
    }
    Ok(())
}

/// Waits until a server that has accepted the connection answers; returns the error why there is no
/// peer.
fn came(port: &mut Port) -> Option<Error> {
    let first = port.health();
    let until = Instant::now() + HANDSHAKE_TIMEOUT;
    loop {
        let e = match port.health() {
            Health::Down(e) => e,
            _ => return None,
        };
        let left = until.saturating_duration_since(Instant::now());
        let open = first == Health::Down(e.clone()) && e.why.contains("answered yet");
        if !open || left.is_zero() {
            return Some(e);
        }
        if let Err(e) = port.wait(Some(left)) {
            return Some(Error::new(Code::System, "cannot wait for the peer", e.to_string()));
        }
    }
}
