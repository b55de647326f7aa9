//! The ports of UDP or TCP that a port text reserves: `udp=7777`, `tcp=80+443`.

use std::fmt;

use linerate_sys::capability::Capabilities;

/// The lowest port that is not privileged, unless `net.ipv4.ip_unprivileged_port_start` has another
/// value.
const PRIVILEGED_BELOW: u16 = 1024;
/// Most ports of one flow.
pub(crate) const PORTS_MAX: usize = 16;

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Udp,
    Tcp,
}

impl Protocol {
    /// Returns the protocol's number in the headers of IPv4 and IPv6.
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
    /// The ports, in ascending order without duplicates; from one to [`PORTS_MAX`] of them.
    pub ports: Vec<u16>,
}

impl Flow {
    /// Returns the capabilities that reserving the ports requires.
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

/// Parses a list of ports: `7777`, `80+443`; returns them in ascending order without duplicates.
pub(crate) fn ports(text: &str) -> std::result::Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    for one in text.split('+') {
        match one.parse::<u16>() {
            Ok(port) if port > 0 => ports.push(port),
            _ => return Err(format!("'{one}' is not a port: 1 to 65535, several as 80+443")),
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

    #[test]
    fn a_port_text_names_a_protocol_and_its_ports() {
        let tcp = Flow { protocol: Protocol::Tcp, ports: ports("443+80+443").unwrap() };
        assert_eq!(tcp.to_string(), "tcp=80+443");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many: Vec<_> = (1..=17).map(|port: u16| port.to_string()).collect();
        for (text, why) in [
            ("0", "'0' is not a port"),
            ("65536", "'65536' is not a port"),
            ("80+", "'' is not a port"),
            ("80-90", "several as 80+443"),
            (&many.join("+"), "17 ports, at most 16"),
        ] {
            let e = ports(text).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
        ports(&many[1..].join("+")).unwrap();
    }
}
