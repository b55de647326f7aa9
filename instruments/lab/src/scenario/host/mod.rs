//! The scenario `host`: real TCP from one host through the engine to another, as root.
//!
//! The hosts are network namespaces without a name, joined to the engine's by veth pairs
//! ([`hosts`]). They vanish with the process, however it ends: once it is killed in the middle of a
//! window, the kernel takes some seconds to give up its connections, and then they are gone. No
//! other process outlives it: what it starts is `ip`, which ends by itself, before the first
//! window, and the senders' processes, which the kernel kills with the threads that have started
//! them.

mod arrivals;
mod bench;
mod child;
mod config;
mod counters;
mod crew;
mod datagrams;
mod fault;
mod hosts;
mod latencies;
mod path;
mod placed;
mod sequence;
mod server;
mod split;
mod stack;
mod tcp;
#[cfg(test)]
mod tests;
mod web;

pub use child::serve as play;
pub(crate) use counters::RECEIVER as RECEIVER_COUNTERS;
pub(in crate::scenario) use hosts::wait_for_carrier;

use linerate_sys::netns::Netns;

use crate::knobs::Knob;
use crate::scenario::command::find;
use crate::scenario::{Bench, Figure, Place, Scenario, figures, joined, pool_figures};
use crate::settings::Settings;
use crate::{Code, Error, Result};
use bench::HostBench;
use config::{Config, KNOBS};

/// The scenario `host`: hosts with the engine between them.
#[derive(Debug)]
pub(super) struct Host;

impl Scenario for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn about(&self) -> &'static str {
        "Traffic from a host in the west through the engine to a host in the east, both of them \
         network namespaces of this machine. What is measured are the engine's workers; the hosts' \
         programs run on another CPU where there is one. A veth pair has no wire and no interrupt: \
         the kernel's work for a packet that the engine sends, TCP of the receiving host included, \
         is done in the worker's system call and is part of its cost. Unless offload = \"on\", the \
         hosts send packets as a wire carries them, for superframes hide what a buffer costs."
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn check(&self, settings: &Settings, place: &Place) -> Result<()> {
        Config::of(settings, place)?;
        find("ip", place)?;
        permitted(Netns::new()).map(drop)
    }

    fn probe(&self, _settings: &Settings, _place: &Place) -> Result<()> {
        try_links()
    }

    fn open(&self, settings: &Settings, place: &Place) -> Result<Box<dyn Bench>> {
        let config = Config::of(settings, place)?;
        try_links()?;
        Ok(Box::new(HostBench::open(config)?))
    }
}

/// Creates a namespace and a link in it, as a side would. Both are removed on return.
fn try_links() -> Result<()> {
    let link = "link add dev try0 type veth peer name try1";
    permitted(Netns::new().and_then(|netns| netns.ip(link))).map(drop)
}

/// The operation that fails without a privilege for namespaces and links, or without veth.
pub(super) const NO_LINKS: &str = "cannot make hosts and links of a scenario";

/// Texts by which `ip` reports a missing privilege, or a kernel without veth.
const REFUSALS: [&str; 4] = [
    "Operation not permitted",
    "Permission denied",
    "Unknown device type",
    "Operation not supported",
];

/// Adds the remedy for a missing privilege.
pub(super) fn permitted<T>(made: Result<T>) -> Result<T> {
    made.map_err(|e| {
        let is_refusal = match e.code {
            Code::Permission => true,
            Code::System => REFUSALS.iter().any(|text| e.why.contains(text)),
            _ => false,
        };
        if !is_refusal {
            return e;
        }
        Error::new(Code::Permission, NO_LINKS, format!("{}: {}", e.what, e.why))
            .fix("sudo linerate lab run …, or CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW")
    })
}

/// The figures that only hosts can measure.
const OWN: &[Figure] = figures! {
    "goodput_bytes" "bytes" "Bytes that the hosts' programs have read.";
    "starved_connections" "connections" "Connections over which nothing has arrived in the window (stream).";
    "due" "messages" "Messages or requests whose time had come; without a rate, those sent.";
    "sent" "messages" "Messages or requests that were sent.";
    "offered_pct" "%" "Of what was due, what was sent; of a side with a rate. Below 100 the rate was not reached.";
    "achieved_pct" "%" "Of what was due, what had arrived when the window ended: bytes (stream), answers (web, rpc), datagrams (load); of a side with a rate.";
    "senders_cpu_ns" "ns" "CPU time of the senders, until the window's last message was out; the kernel's work in their system calls is in it.";
    "path_cpu_ns" "ns" "CPU time of NAPI's threads, the workers and the programs that read; of a side that is placed, as the next four.";
    "napi_cpu_ns" "ns" "CPU time of NAPI's threads of the engine's devices: their interrupts' work.";
    "readers_cpu_ns" "ns" "CPU time of the programs that read in the east.";
    "switches" "times" "Context switches of all these threads, where the kernel tells.";
    "migrations" "times" "Moves of one of them to another CPU, where the kernel tells.";
    "programs_cpu_ns" "ns" "CPU time of the hosts' programs, senders and receivers, and of the lab beside them.";
    "workers_user_ns" "ns" "CPU time of the workers in user space: polling with and without work, the engine. This and the next four in ticks, rough in one window.";
    "workers_system_ns" "ns" "The same in the kernel: system calls, the device, and IP and TCP of the host that a packet goes to.";
    "programs_user_ns" "ns" "CPU time of the hosts' programs, and of the lab beside them, in user space: the application.";
    "programs_system_ns" "ns" "The same in the kernel: their sockets, IP and TCP, and their devices.";
    "interrupts_ns" "ns" "Time of all CPUs in hard and soft interrupts that the kernel bills to no thread.";
    "programs_delay_ns" "ns" "Time in which threads of the hosts' programs were ready and had no CPU, added up: senders and receivers wait for each other where they share one.";
    "reordered" "segments" "Segments of TCP that came before an earlier one, late or lost; of a load, datagrams that came after a later one of their flow.";
    "duplicated" "datagrams" "Datagrams of the load that came again; known of the first 262,144 of a flow.";
    "lost" "datagrams" "Datagrams of the load that were sent and did not arrive within 0.2 s of the window either.";
    "load_count" "datagrams" "Datagrams of the load whose latency counts: all that were due, but for the window's last tenth.";
    "load_pending" "datagrams" "Of these, those not read when the window ended.";
    "load_p50_ns" "ns" "From when a datagram of the load was due to its being read, median.";
    "load_p99_ns" "ns" "The same, 99th percentile.";
    "load_p999_ns" "ns" "The same, 99.9th percentile.";
    "load_late_p50_ns" "ns" "From when it was due to its being sent, median: the sender's share of the above.";
    "load_late_p99_ns" "ns" "The same, 99th percentile.";
    "load_late_p999_ns" "ns" "The same, 99.9th percentile.";
    "requests" "requests" "Requests sent (web, rpc).";
    "responses" "responses" "Responses that arrived in whole (web, rpc).";
    "failed" "requests" "Requests that were sent and never answered in whole (web, rpc).";
    "request_count" "requests" "Requests whose latency counts: all that were due, but for the window's last tenth.";
    "request_pending" "requests" "Of these, those without a response when the window ended: they took at least until then.";
    "request_p50_ns" "ns" "From when a request was due to the end of its response, median; at least, if above a tenth of the window and some are pending. Without a rate a request is due when it is sent.";
    "request_p99_ns" "ns" "The same, 99th percentile.";
    "request_p999_ns" "ns" "The same, 99.9th percentile.";
    "retransmits" "segments" "TCP segments that either host sent again.";
    "inlet_lost" "packets" "Packets that hosts gave their devices and the engine did not get; this and the next four with what was under way when the window ended.";
    "core_lost" "packets" "Packets that the engine got and did not give a device.";
    "driver_lost" "packets" "Packets that a driver says it sent and no device was given.";
    "outlet_lost" "packets" "Packets that a device was given and the kernel of no host got, but for those in `backlog_drop`.";
    "receiver_lost" "packets" "Packets that a host's kernel got and threw away: the counts from `backlog_drop` to `pfmemalloc_drop`.";
    "inlet_refused" "packets" "Of `inlet_lost`, those for which the device's own queue had no room: veth's, of 256.";
    "inlet_missed" "packets" "Of `inlet_lost`, those for which the ring that the engine reads had no room; by tap, what the interface counts as dropped.";
    "core_late" "packets" "Packets that left the engine after one that had come later; with check = true.";
    "backlog_drop" "packets" "Packets for which a CPU's input backlog had no room (/proc/net/softnet_stat), at most those that the engine's devices refused.";
    "ip_in_hdr_errors" "packets" "InHdrErrors of IP, of both hosts, as all that follow; each is there if the kernel has it.";
    "ip_in_discards" "packets" "InDiscards of IP.";
    "tcp_in_errs" "segments" "InErrs of TCP.";
    "udp_in_errors" "datagrams" "InErrors of UDP, RcvbufErrors among them.";
    "tcp_backlog_drop" "segments" "TCPBacklogDrop: the program had the socket for too long.";
    "tcp_rcvq_drop" "segments" "TCPRcvQDrop: the socket's buffer was full.";
    "tcp_ofo_drop" "segments" "TCPOFODrop: no room to keep a segment that came early.";
    "tcp_zero_window_drop" "segments" "TCPZeroWindowDrop: sent although the window was closed.";
    "pfmemalloc_drop" "packets" "PFMemallocDrop: the system had no memory.";
    "udp_rcvbuf_errors" "datagrams" "RcvbufErrors of UDP: the socket's buffer was full.";
    "tcp_prune_called" "times" "PruneCalled: a socket's buffer was searched for memory.";
    "tcp_rcv_collapsed" "segments" "TCPRcvCollapsed: segments that were merged for that.";
    "tcp_zero_windows" "times" "TCPToZeroWindowAdv: a receiver said that it takes nothing more.";
    "tcp_retrans_segs" "segments" "RetransSegs, the settling of the window included: `retransmits` is without.";
    "tcp_ofo_queue" "segments" "TCPOFOQueue: segments that came before an earlier one.";
    "tcp_timeouts" "times" "TCPTimeouts: nothing was acknowledged for long.";
    "tcp_loss_probes" "segments" "TCPLossProbes: the last segment again, in case it is lost.";
    "tcp_fast_retrans" "segments" "TCPFastRetrans.";
    "tcp_slow_start_retrans" "segments" "TCPSlowStartRetrans.";
    "tcp_lost_retransmit" "segments" "TCPLostRetransmit: what was sent again was lost, too.";
    "tcp_dsack_recv" "segments" "TCPDSACKRecv: the receiver had it already, so it was sent again for nothing.";
    "tcp_sack_reorder" "times" "TCPSACKReorder: TCP has seen that packets came in another order.";
    "tcp_spurious_rtx_host_queues" "segments" "TCPSpuriousRtxHostQueues: to be sent again, and still in the host's own queue.";
    "rx_errs" "packets" "errs of the hosts' devices when they receive (/proc/net/dev). This and the next three are no part of `receiver_lost`: `driver_lost` and `outlet_lost` count packets that do not reach a host's IP layer.";
    "rx_drop" "packets" "drop: the device, or the kernel behind it, dropped them; those without room in the input backlog among them.";
    "rx_fifo" "packets" "fifo: the device's receive queue overran.";
    "rx_frame" "packets" "frame: errors of length, checksum or alignment, and overruns.";
    "probes" "datagrams" "Probes sent from west to east.";
    "probes_lost" "datagrams" "Of these, those that did not arrive: not within 0.2 s of the window either.";
    "receipt_count" "datagrams" "Probes whose latency counts: all that were due, but for the window's last tenth.";
    "receipt_pending" "datagrams" "Of these, those not read when the window ended: they took at least until then.";
    "receipt_p50_ns" "ns" "From when a probe was due to its being read, median; at least, if above a tenth of the window and some are pending: then `receipt_p50_ns_at_least` is 1, as of every quantile.";
    "receipt_p99_ns" "ns" "The same, 99th percentile.";
    "receipt_p999_ns" "ns" "The same, 99.9th percentile.";
    "probe_late_p50_ns" "ns" "From when a probe was due to its being sent, median: the sender's share of the above.";
    "probe_late_p99_ns" "ns" "The same, 99th percentile.";
    "probe_late_p999_ns" "ns" "The same, 99.9th percentile.";
    "irqs_device" "irqs" "Ends of a sleep by a device of the engine's.";
    "irqs_timer" "irqs" "Ends of a sleep by a timer, which let packets gather.";
    "rechecks" "times" "Sleeps that did not come to be, because something came meanwhile.";
    "rx_packets" "packets" "Packets that came in by the engine's devices.";
    "doorbells" "doorbells" "Doorbells of the transmit rings: system calls that sent, or tails that were shown to a peer.";
    "tx_calls" "calls" "Calls that gave packets to a device.";
    "tx_calls_1" "calls" "Of these, those in which the device took one packet; `tx_calls_2` 2 or 3, `tx_calls_4` 4 to 7 and so on, `tx_calls_0` none.";
    "tx_calls_full" "calls" "Of these, those in which the device accepted no packet: it was full, or the driver dropped them all.";
    "posted_writes" "writes" "MODEL: posted writes of registers, with toll.";
    "flushing_reads" "reads" "MODEL: flushing reads of registers, with toll.";
    "hold_ns" "ns" "Part of asleep_ns in holds, in which packets gathered.";
    "flushing_ns" "ns" "MODEL: CPU time of the flushing reads, spun by the workers: part of register_ns.";
    "register_ns" "ns" "MODEL: CPU time of both, spun by the workers: part of cpu_ns.";
    "cpu_share" "%" "CPU time of all workers for each wall time: 100 is one CPU.";
    "total_ticks" "TSC ticks" "CPU time of the workers, in ticks.";
};

/// All figures of a window.
static FIGURES: [Figure; OWN.len() + pool_figures::FIGURES.len()] =
    joined(OWN, pool_figures::FIGURES);
