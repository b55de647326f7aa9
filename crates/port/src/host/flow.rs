//! The ports of UDP or TCP that a port text takes for itself: `udp=7777`, `tcp=80+443`.

use std::fmt;

use linerate_skb::Result;
use linerate_sys::capability::Capabilities;

use crate::spec::Spec;

/// Ports below this one are privileged, unless `net.ipv4.ip_unprivileged_port_start` says otherwise.
const PRIVILEGED_BELOW: u16 = 1024;
/// Ports of one flow.
pub(crate) const PORTS_MAX: usize = 16;

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Udp,
    Tcp,
}

impl Protocol {
    /// Returns its number in IPv4's and IPv6's headers.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Udp => 17,
            Protocol::Tcp => 6,
        }
    }

    /// Returns the key of a port text.
    pub fn key(self) -> &'static str {
        match self {
            Protocol::Udp => "udp",
            Protocol::Tcp => "tcp",
        }
    }
}

/// Packets to some ports of one protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flow {
    pub protocol: Protocol,
    /// In rising order, each once; at least one, at most [`PORTS_MAX`].
    pub ports: Vec<u16>,
}

impl Flow {
    /// Reads `udp=` or `tcp=` of a port text, if one is there.
    pub fn of(spec: &Spec) -> Result<Option<Flow>> {
        let read = |protocol: Protocol| -> Result<Option<Flow>> {
            let ports = spec.value(protocol.key(), ports)?;
            Ok(ports.map(|ports| Flow { protocol, ports }))
        };
        match (read(Protocol::Udp)?, read(Protocol::Tcp)?) {
            (Some(_), Some(_)) => {
                Err(spec.error("udp= and tcp= at once").fix("open a port for each of them"))
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    /// Capabilities that reserving its ports takes.
    pub fn capabilities(&self) -> Capabilities {
        let is_low = self.ports.iter().any(|port| *port < PRIVILEGED_BELOW);
        if is_low { Capabilities::NET_BIND_SERVICE } else { Capabilities::NONE }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, port) in self.ports.iter().enumerate() {
            match i {
                0 => write!(f, "{}={port}", self.protocol.key())?,
                _ => write!(f, "+{port}")?,
            }
        }
        Ok(())
    }
}

/// Reads ports: `7777`, `80+443`; returns them in rising order, each once.
pub(crate) fn ports(text: &str) -> std::result::Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for one in text.split('+') {
        match one.parse::<u16>() {
            Ok(port) if port > 0 => ports.push(port),
            _ => return Err(format!("'{one}' is no port: 1 to 65535, several as 80+443")),
        }
    }
    ports.sort_unstable();
    ports.dedup();
    if ports.len() > PORTS_MAX {
        return Err(format!("{} ports, at most {PORTS_MAX}", ports.len()));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(options: &str) -> Result<Option<Flow>> {
        Flow::of(&Spec::parse(&format!("packet:x{options}"), &["packet"])?)
    }

    #[test]
    fn a_port_text_names_a_protocol_and_its_ports() {
        assert_eq!(flow("").unwrap(), None);
        let udp = Flow { protocol: Protocol::Udp, ports: vec![7777] };
        assert_eq!(flow(",udp=7777").unwrap(), Some(udp));
        let tcp = flow(",tcp=443+80+443").unwrap().unwrap();
        assert_eq!((tcp.protocol, &tcp.ports[..]), (Protocol::Tcp, &[80, 443][..]));
        assert_eq!(tcp.to_string(), "tcp=80+443");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many: Vec<_> = (1..=17).map(|port: u16| port.to_string()).collect();
        for (options, why) in [
            (",udp", "needs a value"),
            (",udp=0", "'0' is no port"),
            (",udp=65536", "'65536' is no port"),
            (",tcp=80+", "'' is no port"),
            (",tcp=80-90", "several as 80+443"),
            (",udp=53,tcp=53", "at once"),
            (&format!(",tcp={}", many.join("+")), "17 ports, at most 16"),
        ] {
            let e = flow(options).unwrap_err();
            assert!(e.why.contains(why), "{options}: {e}");
        }
        flow(&format!(",tcp={}", many[1..].join("+"))).unwrap();
    }
}
