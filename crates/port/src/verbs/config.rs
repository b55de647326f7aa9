//! The options of a port text.

use std::net::{IpAddr, SocketAddr};

use linerate_skb::Result;

use crate::spec::Spec;

/// The TCP port at which ports meet, unless the text has another.
const MEET: u16 = 7471;
/// Requests of a queue. The post had 512 at the client and 4096 at the server.
const LEN: u32 = 512;
const LENS: std::ops::RangeInclusive<u32> = 32..=16_384;
/// Most queues.
pub(super) const QUEUES_MAX: usize = 16;
/// Most peers.
pub(super) const PEERS_MAX: usize = 64;
/// Most peers of a port that listens, unless the text has another number; one that connects has as
/// many as addresses.
const PEERS: usize = 8;
/// Most peers of a queue that have gone and keep their places until what they sent is received.
const GONE_MAX: usize = 2;
/// The MTU of packets, unless the text has another: Ethernet's.
const MTU: usize = 1500;
/// Bytes of a packet beside its MTU: the Ethernet header and a VLAN tag.
const HEADER_BYTES: usize = 18;

/// The way in which a port meets its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// It listens at an address, for up to a number of peers.
    Listen(SocketAddr, usize),
    /// It connects to each of these addresses, and does so again whenever a peer is gone.
    Connect(Vec<SocketAddr>),
}

/// A port text's options, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// The name of the RDMA device.
    pub device: String,
    /// The device's port; the first is 1.
    pub port: u8,
    /// The GID index of our address; `None` to look for it.
    pub gid: Option<u8>,
    pub role: Role,
    /// True if each peer gets a connection; false if all packets go as datagrams.
    pub is_connected: bool,
    /// Longest packet in bytes, from the destination MAC; a datagram may have to be shorter.
    pub longest_bytes: usize,
    /// Number of queues, each with its own pairs: as many as the peers have.
    pub queues: usize,
    /// The address of the group to which packets for several receivers are sent.
    pub group: Option<IpAddr>,
    /// Requests of the receive queue.
    pub rx_len: u32,
    /// Requests of each send queue.
    pub tx_len: u32,
}

impl Config {
    /// Reads the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        let (listen, connect) = (spec.value("listen", meeting)?, spec.value("connect", meetings)?);
        let peers = spec.value("peers", peers)?;
        let config = Config {
            device: spec.arg.clone(),
            port: spec.value("port", port)?.unwrap_or(1),
            gid: spec.value("gid", gid)?,
            role: Role::Connect(connect.clone().unwrap_or_default()),
            is_connected: !spec.flag("datagrams")?,
            longest_bytes: spec.value("packet_mtu", mtu)?.unwrap_or(MTU) + HEADER_BYTES,
            queues: spec.value("queues", queues)?.unwrap_or(1),
            group: spec.value("group", group)?,
            rx_len: spec.value("rx", len)?.unwrap_or(LEN),
            tx_len: spec.value("tx", len)?.unwrap_or(LEN),
        };
        spec.finish()?;
        if config.device.is_empty() {
            return Err(spec.error("which RDMA device?").fix("list them: rdma link"));
        }
        let config = match (listen, connect, peers) {
            (Some(at), None, peers) => {
                Config { role: Role::Listen(at, peers.unwrap_or(PEERS)), ..config }
            }
            (None, Some(_), None) => config,
            (None, Some(_), Some(_)) => {
                let why = "peers limits those of a port that listens";
                return Err(spec.error(why).fix("leave peers out"));
            }
            _ => {
                let why = "it meets its peers by listen or by connect, with an IP address";
                let fix = format!(
                    "verbs:{0},listen=10.0.0.1 at one end, verbs:{0},connect=10.0.0.1 at the others",
                    spec.arg
                );
                return Err(spec.error(why).fix(fix));
            }
        };
        let (peers, tx_len) = (config.peers(), config.tx_len);
        if !config.is_connected && peers > tx_len as usize {
            let why =
                format!("a packet to all {peers} peers needs more send requests than {tx_len}");
            return Err(spec.error(why).fix(format!("tx={}", peers.next_power_of_two())));
        }
        Ok(config)
    }

    /// Returns the number of peers that the port can have.
    pub fn peers(&self) -> usize {
        match &self.role {
            Role::Listen(_, peers) => *peers,
            Role::Connect(all) => all.len(),
        }
    }

    /// Returns the number of a queue's pairs for whose requests its completion queues have room.
    pub fn pairs(&self) -> usize {
        // Beside the peers' pairs, those of peers that have gone may exist: of some that keep their
        // places, and of as many as there are peers, if all have left and come again.
        1 + if self.is_connected { 2 * self.peers() + self.gone_max() } else { 0 }
    }

    /// Returns the most peers of a queue that have gone and keep their places.
    pub fn gone_max(&self) -> usize {
        self.peers().min(GONE_MAX)
    }

    /// Returns true if packets go as datagrams: all, or those to a group.
    pub fn has_datagrams(&self) -> bool {
        !self.is_connected || self.group.is_some()
    }

    /// Returns the number of the pool's frames that the queues of requests can hold.
    pub fn ring_frames(&self) -> usize {
        let of = |peers| if self.is_connected { peers } else { 0 };
        let (present, gone) = (of(self.peers()), of(self.gone_max()));
        let pairs = present + usize::from(self.has_datagrams());
        let (rx_len, tx_len) = (self.rx_len as usize, self.tx_len as usize);
        // The device soon gives up packets to a peer that has gone.
        self.queues * (pairs * (rx_len + tx_len) + gone * rx_len)
    }
}

/// Reads an address with or without the number of a TCP port.
fn meeting(text: &str) -> std::result::Result<SocketAddr, String> {
    let bare = || text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, MEET));
    let at: SocketAddr = text
        .parse()
        .or_else(|_| bare())
        .map_err(|_| "an IP address, as 10.0.0.1 or [fd00::1]:7471".to_owned())?;
    // At port 0 the kernel would choose one, which no caller knows.
    if at.port() == 0 {
        Err("TCP port 0 cannot be called: leave it out".to_owned())
    } else {
        Ok(at)
    }
}

fn meetings(text: &str) -> std::result::Result<Vec<SocketAddr>, String> {
    let mut all = text.split('+').map(meeting).collect::<std::result::Result<Vec<_>, _>>()?;
    all.sort_unstable();
    all.dedup();
    if all.len() > PEERS_MAX { Err(format!("at most {PEERS_MAX} addresses")) } else { Ok(all) }
}

fn group(text: &str) -> std::result::Result<IpAddr, &'static str> {
    let group = text.parse::<IpAddr>().ok().filter(IpAddr::is_multicast);
    group.ok_or("the IP address of a group, as 239.1.2.3 or ff0e::1:2")
}

fn peers(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=PEERS_MAX).contains(&n) => Ok(n),
        _ => Err(format!("how many, 1 to {PEERS_MAX}")),
    }
}

fn queues(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=QUEUES_MAX).contains(&n) => Ok(n),
        _ => Err(format!("how many, 1 to {QUEUES_MAX}")),
    }
}

fn port(text: &str) -> std::result::Result<u8, &'static str> {
    text.parse().ok().filter(|n| *n > 0).ok_or("the number of the device's port, from 1 on")
}

fn gid(text: &str) -> std::result::Result<u8, &'static str> {
    text.parse().map_err(|_| "the number of an address of the device's port, from 0 to 255")
}

fn mtu(text: &str) -> std::result::Result<usize, &'static str> {
    text.parse().ok().filter(|n| (256..=65_000).contains(n)).ok_or("bytes, from 256 to 65000")
}

fn len(text: &str) -> std::result::Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n.is_power_of_two() && LENS.contains(&n) => Ok(n),
        _ => Err(format!("a power of two from {} to {}", LENS.start(), LENS.end())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<Config> {
        Config::of(&Spec::parse(text, &["verbs"])?)
    }

    #[test]
    fn a_device_and_a_meeting_are_enough() {
        let expected = Config {
            device: "rxe0".into(),
            port: 1,
            gid: None,
            role: Role::Listen("10.0.0.1:7471".parse().unwrap(), 8),
            is_connected: true,
            longest_bytes: 1518,
            queues: 1,
            group: None,
            rx_len: 512,
            tx_len: 512,
        };
        assert_eq!(config("verbs:rxe0,listen=10.0.0.1").unwrap(), expected);
        let all = config(
            "verbs:mlx5_0,connect=[fd00::2]:99+10.0.0.1+10.0.0.1,packet_mtu=9000,group=239.1.2.3,port=2,gid=3,rx=4096,tx=64,queues=4",
        )
        .unwrap();
        let [near, far] = ["10.0.0.1:7471", "[fd00::2]:99"].map(|at| at.parse().unwrap());
        assert_eq!((&all.role, all.queues), (&Role::Connect(vec![near, far]), 4));
        assert_eq!((all.longest_bytes, all.port, all.gid, all.peers()), (9018, 2, Some(3), 2));
        let frames = 4 * (3 * 4160 + 2 * 4096);
        assert_eq!((all.rx_len, all.tx_len, all.ring_frames()), (4096, 64, frames));
        let datagrams = config("verbs:rxe0,listen=10.0.0.1,datagrams").unwrap();
        assert_eq!((datagrams.is_connected, datagrams.ring_frames()), (false, 1024));
    }

    #[test]
    fn connections_of_peers_that_have_gone_have_frames_and_completions() {
        for (peers, frames, pairs) in
            [(1, 1024 + 512, 4), (2, 2 * 1024 + 2 * 512, 7), (8, 8 * 1024 + 2 * 512, 19)]
        {
            let connections = config(&format!("verbs:rxe0,listen=10.0.0.1,peers={peers}")).unwrap();
            assert_eq!((connections.ring_frames(), connections.pairs()), (frames, pairs));
        }
    }

    #[test]
    fn a_packet_to_all_peers_has_a_send_request_for_each() {
        let text = "verbs:rxe0,listen=10.0.0.1,peers=64,tx=32";
        assert!(config(text).is_ok(), "a connection has its own");
        let e = config(&format!("{text},datagrams")).unwrap_err();
        assert_eq!(e.fix, "tx=64", "{e}");
        assert!(config("verbs:rxe0,listen=10.0.0.1,peers=64,tx=64,datagrams").is_ok());
    }

    #[test]
    fn text_that_makes_no_sense_is_refused_with_what_would() {
        for (text, why) in [
            ("verbs:,listen=10.0.0.1", "which RDMA device"),
            ("verbs:rxe0", "listen or by connect"),
            ("verbs:rxe0,listen=10.0.0.1,connect=10.0.0.2", "listen or by connect"),
            ("verbs:rxe0,listen=eth0", "an IP address"),
            ("verbs:rxe0,connect=10.0.0.1,peers=2", "a port that listens"),
            ("verbs:rxe0,listen=10.0.0.1,peers=0", "1 to 64"),
            ("verbs:rxe0,listen=10.0.0.1,peers=65", "1 to 64"),
            ("verbs:rxe0,listen=10.0.0.1,queues=0", "1 to 16"),
            ("verbs:rxe0,listen=10.0.0.1,queues=17", "1 to 16"),
            ("verbs:rxe0,listen=10.0.0.1,packet_mtu=255", "from 256"),
            ("verbs:rxe0,listen=10.0.0.1,packet_mtu=70000", "65000"),
            ("verbs:rxe0,listen=10.0.0.1,rx=16", "from 32"),
            ("verbs:rxe0,listen=10.0.0.1,group=10.0.0.2", "address of a group"),
            ("verbs:rxe0,listen=10.0.0.1,rx=100", "power of two"),
            ("verbs:rxe0,listen=10.0.0.1,port=0", "from 1 on"),
            ("verbs:rxe0,listen=10.0.0.1,gid=v2", "from 0 to 255"),
            ("verbs:rxe0,listen=10.0.0.1,gid=256", "from 0 to 255"),
            ("verbs:rxe0,listen=10.0.0.1:0", "port 0 cannot be called"),
            ("verbs:rxe0,connect=10.0.0.1+[fd00::1]:0", "port 0 cannot be called"),
        ] {
            let e = config(text).unwrap_err();
            assert!(e.why.contains(why) || e.fix.contains(why), "{text}: {e}");
        }
        let all = |n| (1..=n).map(|i| format!("10.0.0.{i}")).collect::<Vec<_>>().join("+");
        let of = |n: u8| config(&format!("verbs:rxe0,connect={}", all(n)));
        assert_eq!(of(64).unwrap().peers(), 64);
        assert!(of(65).unwrap_err().why.contains("at most 64 addresses"));
    }
}
