//! Packets in messages of an RDMA device: datagrams to peers and groups, or a connection with each
//! peer.
//!
//! ```text
//!   hot list ──► receive requests ──► device ──► completion ──► Skb                requests.rs, rx.rs
//!   Skb ──► chain of messages, one doorbell ──► send queue ──► device ──► completion, freed   tx.rs, flight.rs
//!        datagram to a peer | connection with a peer | datagram to a group                  peers.rs, macs.rs
//!   TCP ──► hello, ready ──► a way to a peer, made off the worker                           thread.rs, meeting.rs, roster.rs
//! ```
//!
//! A message is a packet with its Ethernet header, as it lies in its frame: no copy, except of a
//! packet that goes to each of several peers. Peers meet by TCP, and learn each other's MAC
//! addresses as a bridge does.
//!
//! docs/ports/verbs.md has the options, and the limits each with its cause; docs/adr/0018 has the
//! decisions.
//!
//! Source: rdma-core; Documentation/infiniband, and the posts on IPoIB whose device this is.

mod config;
mod control;
mod device;
mod examine;
mod flight;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hello;
mod macs;
mod meeting;
mod nic;
mod peers;
mod queue;
mod requests;
mod roster;
mod rx;
#[cfg(test)]
mod tests;
mod thread;
mod tx;

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Pool, Result};

use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::obtained::Obtained;
use crate::queue::{Health, QueueOps};
use crate::spec::Spec;

use config::{Config, Role};
use control::Control;
use device::{Found, RdmaNic};
use nic::{Fabric, Nic};
use queue::{Parts, VerbsQueue};
use rx::Own;

/// Longest time that the opening of a port which connects waits for a peer.
const MEETING: Duration = Duration::from_millis(200);

/// The driver of
/// `verbs:DEVICE,listen=ADDRESS|connect=ADDRESS[+ADDRESS..][,datagrams][,packet_mtu=1500]`
/// `[,queues=1][,group=ADDRESS][,peers=8][,rx=512][,tx=512][,port=1][,gid=N]`.
#[derive(Debug)]
pub struct Verbs;

impl Driver for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "verbs:DEVICE,listen=ADDRESS|connect=ADDRESS[,datagrams]",
            text: "packets between hosts by an RDMA device (InfiniBand, RoCE)",
        }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let (packet_max_bytes, ring_frames) = (self.longest_bytes, self.ring_frames());
        Ok(Needs { queues: self.queues, packet_max_bytes, ring_frames, ..Needs::default() })
    }

    fn examine(&self, spec: &Spec, how: Trial, found: &mut Findings) {
        examine::examine(self, spec, how, found);
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let (pool, found) = (cx.pool(), device::find(self)?);
        let longest = device::longest(self, &found);
        let mut queues = rdma_queues(self, &found, pool, longest)?;
        if matches!(self.role, Role::Connect(_)) {
            let until = Instant::now() + MEETING;
            queues.iter_mut().for_each(|queue| queue.meet(until));
        }
        let mut obtained = Obtained::new(&*self.device, mode(self, &found), longest);
        obtained.queues = queues.len();
        if let Some(Health::Down(why)) = queues.first().map(QueueOps::health) {
            obtained = obtained.refused(format!("{}; {}", why.why, why.fix));
        }
        let queues = queues.into_iter().map(|queue| Box::new(queue) as Box<dyn QueueOps>);
        Ok(Opened { queues: queues.collect(), obtained })
    }
}

/// Opens the queues of a port of the device that was found.
fn rdma_queues(
    config: &Config,
    found: &Found,
    pool: &Pool,
    longest: usize,
) -> Result<Vec<VerbsQueue<RdmaNic>>> {
    let ways = device::open(config, found, pool)?;
    let pairs = ways.iter().map(|(_, nic)| nic.pair()).collect();
    let most = found.state.mtu_bytes.min(longest);
    let group = config.group.map(|_| (most, Own { gid: found.gid, pairs }));
    queues(config, ways, pool, longest, group)
}

/// Starts the control thread, and makes a queue of each part of the device that moves packets.
fn queues<F: Fabric + 'static, N: Nic<Peer = F::Peer> + 'static>(
    config: &Config,
    ways: Vec<(F, N)>,
    pool: &Pool,
    longest: usize,
    group: Option<(usize, Own)>,
) -> Result<Vec<VerbsQueue<N>>> {
    let (fabrics, nics): (Vec<F>, Vec<N>) = ways.into_iter().unzip();
    let (control, rosters) = Control::start(config, fabrics, longest)?;
    let queue = |(nic, roster)| {
        VerbsQueue::new(Parts {
            nic,
            control: Arc::clone(&control),
            roster,
            pool: pool.clone(),
            name: format!("verbs:{}", config.device),
            rx_len: config.rx_len,
            tx_len: config.tx_len,
            datagrams_len: if config.has_datagrams() { config.rx_len } else { 0 },
            longest,
            gone_max: config.gone_max(),
            remedy: remedy(&config.role),
            group: group.clone(),
        })
    };
    nics.into_iter().zip(rosters).map(queue).collect()
}

/// Returns the remedy for a port without a peer.
fn remedy(role: &Role) -> &'static str {
    match role {
        Role::Listen(..) => {
            "start a port with connect= and the same queues=, datagrams and group= at another \
             host; this one listens"
        }
        Role::Connect(_) => {
            "start the port with listen= and the same queues=, datagrams and group= at that \
             address; this port connects when it listens"
        }
    }
}

/// Returns the description of a port's mode.
fn mode(config: &Config, found: &Found) -> String {
    let what = if config.is_connected { "a connection for each peer" } else { "datagrams only" };
    let how = match &config.role {
        Role::Listen(at, _) => format!("listens at {at}"),
        Role::Connect(all) => {
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            format!("connects to {}", all.join(", "))
        }
    };
    let group = config.group.map_or(String::new(), |group| format!(", group {group}"));
    let (kind, mtu) = (&found.kind, found.state.mtu_bytes);
    let copies = "no copy, except of a packet that goes to each of several peers";
    format!("verbs by {kind}, {what}, {how}{group}, datagrams of {mtu}, {copies}")
}
