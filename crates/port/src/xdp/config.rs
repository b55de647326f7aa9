//! Options in the port text.

use std::sync::Arc;
use std::time::Duration;

use linerate_skb::{Error, Result};
use linerate_sys::bpf::SocketMap;
use linerate_sys::capability::Capabilities;

use super::hold;
use super::rings::Lens;
use super::spread::{self, Spread};
use crate::host::filter::Filter;
use crate::host::flow::Flow;
use crate::spec::Spec;

/// Default length of each ring in descriptors.
const RING_LEN: u32 = 1024;
const RING_LENS: std::ops::RangeInclusive<u32> = 64..=65_536;
/// Queues of a device.
const QUEUES_MAX: u32 = 1024;

/// Path of frames from the device to the rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The best available mode.
    Auto,
    /// Zero-copy: the device accesses the frames.
    ZeroCopy,
    /// Copied, in the driver.
    Native,
    /// Copies, after the driver has made an sk_buff.
    Generic,
}

/// The map of sockets of another owner's XDP program.
#[derive(Debug, Clone)]
pub(super) enum Map {
    /// In a file of a BPF file system.
    Pinned(String),
    /// Given by its descriptor.
    Given(Arc<SocketMap>),
}

/// A port text's options, checked.
#[derive(Debug, Clone)]
pub(super) struct Config {
    /// The name of the interface.
    pub interface: String,
    /// Filter of the packets to take from the kernel's stack; `All` if another owner's program
    /// decides.
    pub filter: Filter,
    /// The map of another owner's program for the sockets.
    pub map: Option<Map>,
    /// True if the text has a filter. Without one, all packets are taken, but only on an interface
    /// that the host does not use.
    pub is_said: bool,
    /// True if the text permits the port to take packets that the host needs.
    pub is_permitted: bool,
    /// Filter of the port text that has no effect, because the port only sends.
    pub unused: Option<Filter>,
    /// True or false if the text says whether packets to other stations are received.
    pub promisc: Option<bool>,
    pub mode: Wanted,
    /// Numbers of the queues; empty for all.
    pub queues: Vec<u32>,
    /// The requested division of packets among the queues.
    pub spread: Option<Spread>,
    /// Length of the receive and fill rings in descriptors.
    pub rx_len: u32,
    /// Length of the transmit and completion rings in descriptors.
    pub tx_len: u32,
    /// True if the kernel polls the device in this port's own calls.
    pub busy_poll: bool,
    /// Time for which NAPI leaves the device alone after a poll that found packets.
    pub hold: Option<Duration>,
}

impl Config {
    /// Reads the options of `spec`.
    pub fn of(spec: &Spec) -> Result<Config> {
        let ring = spec.value("ring", ring_len)?.unwrap_or(RING_LEN);
        let (asked, is_all) = Filter::with_permission(spec)?;
        let is_written = spec.flag("write")?;
        let map = spec.value("map", pinned)?;
        let is_said = is_written || asked.is_some() || map.is_some();
        let is_permitted = is_written || is_all || map.is_some();
        let (filter, unused) = match asked.clone() {
            unused if is_written => (Filter::Nothing, unused),
            filter => (filter.unwrap_or(Filter::All), None),
        };
        let config = Config {
            interface: spec.arg.clone(),
            filter,
            map,
            is_said,
            is_permitted,
            unused,
            promisc: spec.options.has("promisc").then(|| spec.flag("promisc")).transpose()?,
            mode: spec.value("mode", mode)?.unwrap_or(Wanted::Auto),
            queues: spec.value("queues", queues)?.unwrap_or_default(),
            spread: spec.value("rss", spread::spread)?,
            rx_len: spec.value("rx", ring_len)?.unwrap_or(ring),
            tx_len: spec.value("tx", ring_len)?.unwrap_or(ring),
            busy_poll: spec.flag("busy")?,
            hold: spec.value("hold", hold::time)?,
        };
        spec.finish()?;
        if config.interface.is_empty() {
            return Err(spec
                .error("which interface?")
                .fix("xdp:IFACE,udp=7777; list them: ip -br link"));
        }
        if config.map.is_some() {
            config.leaves_the_choice(spec, asked.as_ref())?;
        }
        Ok(config)
    }

    /// Sets `map` for the sockets, unless `spec` names a map itself.
    pub fn give(&mut self, spec: &Spec, map: &Arc<SocketMap>) -> Result<()> {
        if self.map.is_some() {
            return Err(spec.error("a map is already given by the program").fix("leave map= out"));
        }
        let filter =
            Some(&self.filter).filter(|filter| self.is_said && **filter != Filter::Nothing);
        self.leaves_the_choice(spec, filter)?;
        self.map = Some(Map::Given(map.clone()));
        (self.is_said, self.is_permitted) = (true, true);
        Ok(())
    }

    /// Refuses a filter for a port with a map, whose program chooses the packets.
    fn leaves_the_choice(&self, spec: &Spec, filter: Option<&Filter>) -> Result<()> {
        let Some(filter) = filter else { return Ok(()) };
        let why = format!("{filter}: the XDP program of the map selects the packets");
        Err(spec.error(why).fix(format!("leave {filter} out, or the map")))
    }

    /// Returns true if the port is to receive packets to other stations, too. By default a port for
    /// which its own program selects packets does, unless these are packets of the host.
    pub fn is_promiscuous(&self) -> bool {
        let is_own = self.map.is_none() && !self.filter.is_of_a_host();
        self.filter != Filter::Nothing && self.promisc.unwrap_or(is_own)
    }

    /// Returns the capabilities that opening the port requires.
    pub fn capabilities(&self) -> Capabilities {
        let flow = self.filter.flow().map_or(Capabilities::NONE, Flow::capabilities);
        let configures = self.busy_poll || spread::wanted_by(self).is_some();
        match (&self.map, configures) {
            (None, _) => Capabilities::XDP.and(flow),
            (Some(_), false) => Capabilities::NET_RAW,
            (Some(_), true) => Capabilities::NET_RAW.and(Capabilities::NET_ADMIN),
        }
    }

    /// Returns `e` with advice that names only the capabilities that the port requires.
    pub fn least(&self, mut e: Error) -> Error {
        let (all, own) = (Capabilities::XDP, self.capabilities());
        let locks = own.and(Capabilities::IPC_LOCK).command();
        e.fix = e.fix.replace(&all.remedy(), &own.remedy()).replace(&all.command(), &locks);
        e
    }

    /// Returns the same port with no filter in its text.
    pub fn without_filter(&self) -> Config {
        Config { filter: Filter::All, is_said: false, is_permitted: false, ..self.clone() }
    }

    /// Returns the text of this port up to its filter, for other options to be put behind it.
    pub fn text(&self) -> String {
        let taken = match &self.map {
            Some(Map::Pinned(path)) => format!(",map={path}"),
            None if self.is_said => self.words(),
            _ => String::new(),
        };
        format!("xdp:{}{taken}", self.interface)
    }

    /// Returns the words of the filter, each after a comma, with those that permit it.
    pub fn words(&self) -> String {
        let needs_permission = self.filter.needs_permission() && self.filter != Filter::All;
        let permission = if needs_permission && self.is_permitted { ",all" } else { "" };
        format!(",{}{permission}", self.filter)
    }

    /// Returns the descriptors of the rings of one queue. The fill ring has room for all frames
    /// that the receive ring can hold, and as many more, so that it is not empty while that one is
    /// full.
    pub fn lens(&self) -> Lens {
        Lens { fill: 2 * self.rx_len, rx: self.rx_len, tx: self.tx_len, completion: self.tx_len }
    }

    /// Returns the number of frames that the rings of one queue can hold: posted frames in the fill
    /// ring, the receive ring or the device's own, sent frames in the transmit or the completion
    /// ring.
    pub fn ring_frames(&self) -> usize {
        let lens = self.lens();
        (lens.fill + lens.rx + lens.tx) as usize
    }
}

fn pinned(text: &str) -> std::result::Result<Map, String> {
    match text {
        "" => Err("the file of a pinned map, as /sys/fs/bpf/xsks_map".into()),
        path => Ok(Map::Pinned(path.to_owned())),
    }
}

fn ring_len(text: &str) -> std::result::Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n.is_power_of_two() && RING_LENS.contains(&n) => Ok(n),
        _ => Err(format!("a power of two from {} to {}", RING_LENS.start(), RING_LENS.end())),
    }
}

fn mode(text: &str) -> std::result::Result<Wanted, String> {
    match text {
        "auto" => Ok(Wanted::Auto),
        "zerocopy" => Ok(Wanted::ZeroCopy),
        "native" => Ok(Wanted::Native),
        "generic" => Ok(Wanted::Generic),
        _ => Err("one of auto, zerocopy, native, generic".into()),
    }
}

/// Reads the numbers of queues: `3`, `0-3`, `0+2+5`.
fn queues(text: &str) -> std::result::Result<Vec<u32>, String> {
    let bad = || format!("'{text}' names no queues: 3, 0-3 or 0+2+5");
    let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n < QUEUES_MAX);
    let mut queues = Vec::new();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = number(first).zip(number(last)).ok_or_else(bad)?;
        if first > last {
            return Err(bad());
        }
        queues.extend(first..=last);
    }
    queues.sort_unstable();
    queues.dedup();
    Ok(queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_a_map_requires_net_admin_only_for_options_that_configure_the_device() {
        let of = |words: &str| {
            let text = format!("xdp:v0,map=/sys/fs/bpf/socks{words}");
            Config::of(&crate::parse(&text).unwrap()).unwrap().capabilities()
        };
        let with_admin = Capabilities::NET_RAW.and(Capabilities::NET_ADMIN);
        assert_eq!([of(""), of(",rss=even,write")], [Capabilities::NET_RAW; 2]);
        assert_eq!([of(",busy"), of(",rss=even")], [with_admin; 2]);
    }

    #[test]
    fn a_ring_has_1024_descriptors_unless_told_otherwise() {
        for (words, lens) in [
            ("", (1024, 1024)),
            (",ring=4096", (4096, 4096)),
            (",tx=256", (1024, 256)),
            (",ring=4096,rx=64", (64, 4096)),
        ] {
            let config = Config::of(&crate::parse(&format!("xdp:v0{words}")).unwrap()).unwrap();
            assert_eq!((config.rx_len, config.tx_len), lens, "{words}");
        }
    }

    #[test]
    fn port_receives_packets_to_other_stations_unless_it_takes_those_of_the_host() {
        for (words, is_promiscuous) in [
            ("", true),
            (",all", true),
            (",dst=10.0.0.9", true),
            (",not=tcp:22", true),
            (",udp=7777", false),
            (",icmp", false),
            (",write", false),
            (",write,promisc", false),
            (",map=/sys/fs/bpf/socks", false),
            (",map=/sys/fs/bpf/socks,promisc", true),
            (",udp=7777,promisc=on", true),
            (",promisc=off", false),
        ] {
            let config = Config::of(&crate::parse(&format!("xdp:v0{words}")).unwrap()).unwrap();
            assert_eq!(config.is_promiscuous(), is_promiscuous, "{words}");
        }
    }

    #[test]
    fn a_text_keeps_its_filter_and_what_permits_it() {
        for (words, text) in [
            ("", ""),
            (",udp=7777,ring=64", ",udp=7777"),
            (",all", ",all"),
            (",not=tcp:22", ",not=tcp:22"),
            (",not=tcp:22,all", ",not=tcp:22,all"),
            (",ethertype=0x8100,all", ",ethertype=0x8100,all"),
            (",ethertype=0x8864,all", ",ethertype=0x8864,all"),
            (",all,dst=ff02::1", ",dst=ff02::1,all"),
            (",write", ",write"),
            (",map=/sys/fs/bpf/socks", ",map=/sys/fs/bpf/socks"),
        ] {
            let config = Config::of(&crate::parse(&format!("xdp:v0{words}")).unwrap()).unwrap();
            assert_eq!(config.text(), format!("xdp:v0{text}"));
        }
    }
}
