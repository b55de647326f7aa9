//! Examination of a memif port: a socket to listen on, or a server to connect to.

use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};

use super::link::no_server;
use crate::doctor::Findings;
use crate::port::Port;
use crate::queue::Health;
use crate::spec::Spec;

/// Longest time to wait for a server's answer. It exceeds the time that the port itself waits.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// Checks a memif port. A server listens for a moment. A client connects and disconnects; its
/// server sees both, and gets no packet.
pub(super) fn examine(spec: &Spec, found: &mut Findings) {
    if let Err(e) = meet(spec, found) {
        found.miss(&e);
    }
}

fn meet(spec: &Spec, found: &mut Findings) -> Result<()> {
    let mut port = Port::open(spec.text())?;
    let mut obtained = port.obtained().clone();
    // Drop the refusal "no peer yet", because the findings below report a missing peer with its
    // remedy.
    obtained.refused.retain(|refused| !refused.starts_with("no peer yet"));
    let serves = obtained.mode.contains("server");
    found.opened(obtained);
    let path = &spec.arg;
    match came(&mut port) {
        None => {
            found.ok(format!("{path}: the peer accepted a connection, which was closed again"));
        }
        // During a trial no client connects, so a missing peer is no error for a server.
        Some(e) if serves => {
            found.ok(format!("listening at {path} is possible")).fix(&e.fix);
        }
        // The server may start later.
        Some(e) if e.what == no_server(path) => {
            found.lack(&e);
        }
        Some(e) => {
            found.miss(&e);
        }
    }
    Ok(())
}

/// Waits for the answer of a server that has accepted the connection; returns the error that
/// explains a missing peer.
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

#[cfg(test)]
mod tests {
    use super::*;

    use crate::doctor::Level;
    use linerate_sys::unix::{Listener, SocketType};

    #[test]
    fn socket_of_another_kind_is_an_error_and_a_server_that_is_not_started_is_a_warning() {
        let name = format!("linerate-memif-kind-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let spec = crate::parse(&format!("memif:{}", path.display())).unwrap();
        let examined = || {
            let mut found = Findings::default();
            examine(&spec, &mut found);
            found.into_vec().pop().expect("the last finding is about the server")
        };
        let absent = examined();
        assert_eq!(absent.level, Level::Warn, "{absent:?}");
        let _other = Listener::bind(&path, 0o600, SocketType::STREAM).unwrap();
        let found = examined();
        assert_eq!(found.level, Level::Miss, "{found:?}");
        assert!(found.fix.is_some_and(|fix| fix.text.contains("of another kind")));
    }
}
