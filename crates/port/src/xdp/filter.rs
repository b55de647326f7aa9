//! Which packets a port takes from the kernel's stack, in words.
//!
//! All others go on to the kernel, and so does whatever it takes more than its first headers to
//! tell: fragments, IPv6 with extension headers, packets cut short. A VLAN's packets belong to the
//! VLAN's own interface: only `all`, `ethertype=` and `not=` see them.

use std::fmt;

use linerate_skb::Result;

use crate::spec::Spec;

/// Ports of one filter.
const PORTS_MAX: usize = 16;

/// What is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Filter {
    /// Everything.
    All,
    /// These and nothing else.
    Only(Match),
    /// Everything but these.
    Not(Match),
}

/// What a packet is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match {
    /// Of an Ethernet type.
    Ethertype(u16),
    /// UDP, to one of these ports.
    Udp(Vec<u16>),
    /// TCP, to one of these ports.
    Tcp(Vec<u16>),
}

impl Filter {
    /// Reads `all`, `ethertype=0x88b5`, `udp=7777`, `tcp=80+443` and `not=tcp:22` of a port text.
    pub fn of(spec: &Spec) -> Result<Filter> {
        let mut found = Vec::new();
        if spec.flag("all")? {
            found.push(Filter::All);
        }
        for key in ["ethertype", "udp", "tcp"] {
            if let Some(one) = spec.value(key, |text| Match::parse(key, text))? {
                found.push(Filter::Only(one));
            }
        }
        let not = |text: &str| {
            let (key, value) = text.split_once(':').ok_or("not=tcp:22, not=ethertype:0x0806")?;
            Match::parse(key, value)
        };
        if let Some(one) = spec.value("not", not)? {
            found.push(Filter::Not(one));
        }
        match found.len() {
            0 => Ok(Filter::All),
            1 => Ok(found.swap_remove(0)),
            _ => {
                let why = format!("{} and {} at once", found[0], found[1]);
                Err(spec.error(&why).fix("one of all, ethertype=, udp=, tcp=, not="))
            }
        }
    }
}

impl Match {
    fn parse(key: &str, text: &str) -> std::result::Result<Match, String> {
        match key {
            "ethertype" => ethertype(text).map(Match::Ethertype),
            "udp" => ports(text).map(Match::Udp),
            "tcp" => ports(text).map(Match::Tcp),
            _ => Err(format!("'{key}' is none of ethertype, udp, tcp")),
        }
    }
}

fn ethertype(text: &str) -> std::result::Result<u16, String> {
    let digits = text.strip_prefix("0x").ok_or("as 0x88b5")?;
    match u16::from_str_radix(digits, 16) {
        Ok(n) if n >= 0x600 => Ok(n),
        _ => Err("0x0600 to 0xffff; what is below is a length".into()),
    }
}

fn ports(text: &str) -> std::result::Result<Vec<u16>, String> {
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

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Filter::All => f.write_str("all"),
            Filter::Only(one) => {
                let (key, value) = one.words();
                write!(f, "{key}={value}")
            }
            Filter::Not(one) => {
                let (key, value) = one.words();
                write!(f, "not={key}:{value}")
            }
        }
    }
}

impl Match {
    fn words(&self) -> (&'static str, String) {
        let list = |ports: &[u16]| ports.iter().map(u16::to_string).collect::<Vec<_>>().join("+");
        match self {
            Match::Ethertype(n) => ("ethertype", format!("{n:#06x}")),
            Match::Udp(ports) => ("udp", list(ports)),
            Match::Tcp(ports) => ("tcp", list(ports)),
        }
    }
}
