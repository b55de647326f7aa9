//! The kernel's counts of both hosts and of the engine's devices, and the location of lost packets
//! derived from them.
//!
//! ```text
//!  host ── eth0 ═══ w0 ── engine ── e0 ═══ eth0 ── host       and the same way back: both ways are added up
//!            │ inlet │    core   │driver│ outlet │ receiver
//! ```
//!
//! Each part's loss is what entered it less what left it, so that a loss that a part does not
//! report still shows as a difference. Read while nothing passes: what is under way would be taken
//! for lost, and the next window would find it.

use std::fs::File;
use std::io::{self, Read, Seek};

use super::config::{Config, Port};
use super::hosts::Hosts;
use crate::scenario::pool_figures::Reading;
use crate::{Code, Error, Result};

/// Counts of a host's kernel, each by its protocol, its name and our name; the first [`DROPS`] are
/// packets that the host received and dropped.
const COUNTED: [(&str, &str, &str); 23] = [
    ("Ip:", "InHdrErrors", "ip_in_hdr_errors"),
    ("Ip:", "InDiscards", "ip_in_discards"),
    ("Tcp:", "InErrs", "tcp_in_errs"),
    ("Udp:", "InErrors", "udp_in_errors"),
    ("TcpExt:", "TCPBacklogDrop", "tcp_backlog_drop"),
    ("TcpExt:", "TCPRcvQDrop", "tcp_rcvq_drop"),
    ("TcpExt:", "TCPOFODrop", "tcp_ofo_drop"),
    ("TcpExt:", "TCPZeroWindowDrop", "tcp_zero_window_drop"),
    ("TcpExt:", "PFMemallocDrop", "pfmemalloc_drop"),
    ("Udp:", "RcvbufErrors", "udp_rcvbuf_errors"),
    ("TcpExt:", "PruneCalled", "tcp_prune_called"),
    ("TcpExt:", "TCPRcvCollapsed", "tcp_rcv_collapsed"),
    ("TcpExt:", "TCPToZeroWindowAdv", "tcp_zero_windows"),
    ("Tcp:", "RetransSegs", "tcp_retrans_segs"),
    ("TcpExt:", "TCPOFOQueue", "tcp_ofo_queue"),
    ("TcpExt:", "TCPTimeouts", "tcp_timeouts"),
    ("TcpExt:", "TCPLossProbes", "tcp_loss_probes"),
    ("TcpExt:", "TCPFastRetrans", "tcp_fast_retrans"),
    ("TcpExt:", "TCPSlowStartRetrans", "tcp_slow_start_retrans"),
    ("TcpExt:", "TCPLostRetransmit", "tcp_lost_retransmit"),
    ("TcpExt:", "TCPDSACKRecv", "tcp_dsack_recv"),
    ("TcpExt:", "TCPSACKReorder", "tcp_sack_reorder"),
    ("TcpExt:", "TCPSpuriousRtxHostQueues", "tcp_spurious_rtx_host_queues"),
];
const DROPS: usize = 9;

/// Errors and drops of the hosts' devices when they receive: our names, and the fields in
/// /proc/net/dev. They are no part of `receiver_lost`: a packet without room in the backlog is in
/// `backlog_drop` already, and the others do not reach the host's IP layer, so that `driver_lost`
/// or `outlet_lost` has them.
///
/// Source: net/core/net-procfs.c, `dev_seq_printf_stats`.
const DEVICE: [(&str, usize); 4] =
    [("rx_errs", 2), ("rx_drop", 3), ("rx_fifo", 4), ("rx_frame", 5)];

/// The figures of the input backlog, of [`COUNTED`]'s drops and errors, and of [`DEVICE`].
pub(crate) const RECEIVER: [&str; 1 + DROPS + DEVICE.len()] = {
    let mut names = ["backlog_drop"; 1 + DROPS + DEVICE.len()];
    let mut i = 0;
    while i < DROPS + DEVICE.len() {
        names[i + 1] = if i < DROPS { COUNTED[i].2 } else { DEVICE[i - DROPS].0 };
        i += 1;
    }
    names
};
const RETRANSMITTED: usize = 13;
const OUT_OF_ORDER: usize = 14;

/// The counts so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Kernel {
    /// Values in the order of [`COUNTED`]; `None` if the kernel lacks the count.
    named: [Option<u64>; COUNTED.len()],
    /// Packets given to the hosts' devices, accepted or not; and those that the devices refused.
    hosts_out: [u64; 2],
    /// Packets received by the hosts' IP layers.
    hosts_in: u64,
    /// Errors and drops of the hosts' devices, in the order of [`DEVICE`].
    hosts_rx: [u64; DEVICE.len()],
    /// Packets given to the engine's devices, accepted or not; and those that the devices refused.
    devices: [u64; 2],
    /// Packets for which a CPU's input backlog had no room, over all namespaces.
    backlog: u64,
    /// Packets that the engine received and sent, and those for which its rings had no room.
    engine: [u64; 3],
    /// True if the kernel has both hosts; otherwise it does not know what the eastern one gets.
    both: bool,
}

/// The open files of the counts.
#[derive(Debug)]
pub(super) struct Counters {
    hosts: Vec<[File; 3]>,
    /// `None` with TAP, where the engine itself passes packets to the hosts.
    devices: Option<File>,
    softnet: File,
    both: bool,
}

impl Kernel {
    /// Returns the number of retransmitted segments.
    pub fn retransmitted(&self) -> u64 {
        self.named[RETRANSMITTED].unwrap_or(0)
    }

    /// Returns the segments that arrived before an earlier one, which was late or lost.
    pub fn out_of_order(&self) -> u64 {
        self.named[OUT_OF_ORDER].unwrap_or(0)
    }

    /// Returns the counts of drops and errors since `before`, each by its name, in a line.
    pub fn drops_since(&self, before: &Kernel) -> String {
        let count = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let named = COUNTED.iter().zip(self.named.iter().zip(&before.named)).take(DROPS);
        let named = named.map(|((_, name, _), (now, then))| match count(*now, *then) {
            Some(n) => format!("{name} {n}"),
            None => format!("{name} n/a"),
        });
        let refused = self.devices[1].saturating_sub(before.devices[1]);
        let hosts = self.hosts_rx_since(before).map(|(name, n)| format!("{name} {n}"));
        let devices = [format!("refused by the engine's devices {refused}")];
        named.chain(hosts).chain(devices).collect::<Vec<_>>().join(", ")
    }

    /// Returns the errors and drops of the hosts' devices since `before`, each with its name.
    fn hosts_rx_since(&self, before: &Kernel) -> [(&'static str, u64); DEVICE.len()] {
        let since = |i: usize| self.hosts_rx[i].saturating_sub(before.hosts_rx[i]);
        std::array::from_fn(|i| (DEVICE[i].0, since(i)))
    }

    /// Passes the counts since `before` to `tell`: each count by its name, and the losses on each
    /// part of the path.
    pub fn since(&self, before: &Kernel, mut tell: impl FnMut(&str, f64)) {
        let pairs = self.named.iter().zip(&before.named);
        let named: Vec<Option<u64>> =
            pairs.map(|(now, then)| Some(now.as_ref()?.saturating_sub((*then)?))).collect();
        for ((_, _, name), count) in COUNTED.iter().zip(&named) {
            if let Some(count) = count {
                tell(name, *count as f64);
            }
        }
        for (name, count) in self.hosts_rx_since(before) {
            tell(name, count as f64);
        }
        let less = |now: u64, then: u64| now as f64 - then as f64;
        let [received, sent, missed] = [0, 1, 2].map(|i| less(self.engine[i], before.engine[i]));
        let [entered, full] = [0, 1].map(|i| less(self.hosts_out[i], before.hosts_out[i]));
        let [given, refused] = [0, 1].map(|i| less(self.devices[i], before.devices[i]));
        // The backlog counts all namespaces, so part of it may be from others: at most the packets
        // that the engine's devices refused are from this side.
        let backlog = less(self.backlog, before.backlog).clamp(0.0, refused.max(0.0));
        let drops = named[..DROPS].iter().flatten().sum::<u64>() as f64;
        tell("receiver_lost", backlog + drops);
        tell("backlog_drop", backlog);
        if !self.both {
            return;
        }
        tell("inlet_lost", entered - received);
        tell("inlet_refused", full);
        tell("inlet_missed", missed);
        tell("core_lost", received - sent);
        tell("driver_lost", sent - given);
        tell("outlet_lost", given - backlog - less(self.hosts_in, before.hosts_in));
    }
}

impl Counters {
    /// Opens the files of these hosts.
    pub fn of(config: &Config, hosts: &Hosts) -> Result<Counters> {
        // /proc/thread-self/net has the counts of the namespace of the thread that opens the file.
        let open = |name: &str| File::open(format!("/proc/thread-self/net/{name}"));
        let host = |host: &linerate_sys::netns::Netns| {
            let files = || Ok([open("snmp")?, open("netstat")?, open("dev")?]);
            host.run(files)?.map_err(|e| unreadable(&e))
        };
        let has_devices = config.port != Port::Tap;
        let devices = has_devices.then(|| hosts.middle.run(|| open("dev"))).transpose()?;
        Ok(Counters {
            hosts: vec![host(&hosts.west)?, host(&hosts.east)?],
            devices: devices.transpose().map_err(|e| unreadable(&e))?,
            softnet: open("softnet_stat").map_err(|e| unreadable(&e))?,
            both: !config.user_space,
        })
    }

    /// Reads the counts so far, including those of the engine.
    pub fn read(&mut self, engine: &Reading) -> Result<Kernel> {
        let engine = [engine.received(), engine.sent().packets, engine.missed()];
        let mut kernel = Kernel { engine, both: self.both, ..Kernel::default() };
        let mut taken = 0;
        for [snmp, netstat, dev] in &mut self.hosts {
            let text = format!("{}{}", text(snmp)?, text(netstat)?);
            for ((protocol, name, _), sum) in COUNTED.iter().zip(&mut kernel.named) {
                if let Some(count) = field(&text, protocol, name) {
                    *sum = Some(sum.unwrap_or(0) + count);
                }
            }
            kernel.hosts_in += field(&text, "Ip:", "InReceives")
                .ok_or_else(|| unreadable(&io::Error::other("no InReceives in /proc/net/snmp")))?;
            let [sent, refused, received, errors @ ..] = devices(&self::text(dev)?);
            kernel.hosts_out[0] += sent + refused;
            kernel.hosts_out[1] += refused;
            taken += received;
            kernel.hosts_rx.iter_mut().zip(errors).for_each(|(sum, n)| *sum += n);
        }
        kernel.devices = match &mut self.devices {
            Some(dev) => {
                let [sent, refused, ..] = devices(&text(dev)?);
                [sent + refused, refused]
            }
            None => [taken, 0],
        };
        kernel.backlog = dropped(&text(&mut self.softnet)?);
        Ok(kernel)
    }
}

fn text(file: &mut File) -> Result<String> {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.map(|_| text).map_err(|e| unreadable(&e))
}

/// Reads a number from /proc/net/snmp or netstat, whose lines come in pairs of names and values.
fn field(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|known| known == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

/// Reads the packets sent, refused and received from /proc/net/dev, and the counts of [`DEVICE`],
/// over all interfaces except the loopback.
fn devices(dev: &str) -> [u64; 3 + DEVICE.len()] {
    let mut sums = [0; 3 + DEVICE.len()];
    for (name, counts) in dev.lines().filter_map(|line| line.split_once(':')) {
        if name.trim() == "lo" {
            continue;
        }
        let counts: Vec<u64> = counts.split_whitespace().flat_map(str::parse).collect();
        let fields = [9, 11, 1].into_iter().chain(DEVICE.map(|(_, at)| at));
        for (sum, at) in sums.iter_mut().zip(fields) {
            *sum += counts.get(at).copied().unwrap_or(0);
        }
    }
    sums
}

/// Reads the packets dropped for lack of room in an input backlog from /proc/net/softnet_stat: a
/// line for each CPU, in hexadecimal.
fn dropped(softnet: &str) -> u64 {
    let of = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    softnet.lines().filter_map(of).sum()
}

fn unreadable(e: &io::Error) -> Error {
    Error::new(Code::File, "cannot read what the hosts' kernel has counted", e.to_string())
}

#[cfg(test)]
mod tests {
    use linerate_skb::Pool;

    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "Ip: Forwarding X\nIp: 1 2\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 17 0\n";
        assert_eq!(field(text, "Tcp:", "RetransSegs"), Some(17));
        assert_eq!(field(text, "Tcp:", "OutRsts"), None);
        assert_eq!(field("Tcp: RetransSegs\n", "Tcp:", "RetransSegs"), None);
        assert_eq!(field("Tcp: RetransSegs\nTcp: x\n", "Tcp:", "RetransSegs"), None);
    }

    #[test]
    fn devices_and_backlogs_are_read_as_the_kernel_prints_them() {
        let dev = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12\n  \
                   eth0: 100 20 6 3 7 8 0 0 900 30 0 4 0 0 0 0\n  eth1:1 1 0 40 0 50 0 0 1 1 0 1 0 0 0 0\n";
        assert_eq!(devices(dev), [31, 5, 21, 6, 43, 7, 58]);
        assert_eq!(devices("eth0: x\n:\n"), [0; 7]);
        assert_eq!(dropped("0938cdaf 00005d5c 0000000d\n08e8eea1 00000001 0000001d\nx\n"), 0x5d5d);
    }

    #[test]
    fn counts_of_both_hosts_are_added_up_and_those_of_the_engines_devices_are_apart() {
        let scratch = linerate_testing::Scratch::new();
        let file = |name: &str, text: &str| File::open(scratch.file(name, text)).unwrap();
        let netstat = "TcpExt: PruneCalled PFMemallocDrop\nTcpExt: 0 2\n";
        let host = |name: &str, dev: &str| {
            let snmp = "Ip: InReceives InDiscards\nIp: 50 1\n";
            [("snmp", snmp), ("netstat", netstat), ("dev", dev)]
                .map(|(kind, text)| file(&format!("{name}-{kind}"), text))
        };
        let west = host("west", "eth0: 0 60 1 2 3 4 0 0 0 70 0 5 0 0 0 0\n");
        let east = host("east", "eth0: 0 61 10 20 30 40 0 0 0 71 0 0 0 0 0 0\n");
        let mut counters = Counters {
            hosts: vec![west, east],
            devices: Some(file("middle", "w0: 0 9 500 500 500 500 0 0 0 80 0 6 0 0 0 0\n")),
            softnet: file("softnet", "00000001 0000000a 00000000\n"),
            both: true,
        };
        let pool = Pool::builder().frames(1024).build().unwrap();
        let kernel = counters.read(&Reading::of_pool(&pool)).unwrap();
        assert_eq!(kernel.hosts_rx, [11, 22, 33, 44]);
        assert_eq!((kernel.hosts_out, kernel.hosts_in), ([70 + 5 + 71, 5], 100));
        assert_eq!((kernel.devices, kernel.backlog), ([86, 6], 10));
        let drops = kernel.drops_since(&Kernel { named: kernel.named, ..Kernel::default() });
        let told = "PFMemallocDrop 0, rx_errs 11, rx_drop 22, rx_fifo 33, rx_frame 44, refused by";
        assert!(drops.contains(told), "{drops}");
    }

    #[test]
    fn each_part_of_the_way_has_the_losses_between_its_ends() {
        let before = Kernel { backlog: 7, hosts_rx: [0, 5, 0, 0], ..Kernel::default() };
        let mut named = [Some(0); COUNTED.len()];
        (named[5], named[9]) = (Some(2), Some(99));
        let now = Kernel {
            named,
            hosts_out: [100, 1],
            engine: [97, 92, 2],
            devices: [90, 3],
            hosts_in: 86,
            // These are told, and are no part of the receiver's losses.
            hosts_rx: [1, 25, 300, 4000],
            both: true,
            // At most three of these are this side's: a device refused three.
            backlog: 11,
        };
        let mut told = std::collections::BTreeMap::new();
        let zero = Kernel { named: [Some(0); COUNTED.len()], ..before };
        now.since(&zero, |name, value| told.extend([(name.to_owned(), value)]));
        let lost = ["inlet", "core", "driver", "outlet", "receiver"];
        let lost = lost.map(|part| told[&format!("{part}_lost")]);
        assert_eq!(lost, [3.0, 5.0, 2.0, 1.0, 3.0 + 2.0], "{told:?}");
        assert_eq!(["inlet_refused", "inlet_missed"].map(|name| told[name]), [1.0, 2.0]);
        let device = ["rx_errs", "rx_drop", "rx_fifo", "rx_frame"];
        assert_eq!(device.map(|name| told[name]), [1.0, 20.0, 300.0, 4000.0]);
        assert!(device.iter().all(|name| RECEIVER.contains(name)), "{RECEIVER:?}");
        let drops = now.drops_since(&zero);
        assert!(
            drops.starts_with("InHdrErrors 0, InDiscards 0, InErrs 0, InErrors 0, "),
            "{drops}"
        );
        assert!(drops.contains("TCPRcvQDrop 2,") && drops.ends_with("devices 3"), "{drops}");
        let device = "rx_errs 1, rx_drop 20, rx_fifo 300, rx_frame 4000, refused by";
        assert!(drops.contains(device), "{drops}");
    }
}
