//! memif: rings and buffers in memory that is shared with another process.
//!
//! ```text
//!   client (owns the memory)                       server (maps it)
//!   packets ──► ring from the client: places of packets ──► read, or copied out
//!   free frames ──► ring to the client: empty buffers ────► filled in
//!          ▲ tail: done with, freed as sent; filled, received
//! ```
//!
//! As client the pool can be the memory itself: a frame that any port has received reaches the peer
//! by one descriptor, and returns to the hot list when the peer is done with it. As server, and
//! towards peers that are to see no more than what they get, packets are copied.
//!
//! Trust: docs/adr/0012 says what a peer may write, and what is believed of it. Options and limits:
//! docs/ports/memif.md.
//!
//! Source: memif protocol 2.0, as VPP, libmemif and DPDK speak it.

mod channel;
mod client;
mod client_memory;
mod client_rx;
mod client_tx;
mod closer;
mod config;
mod connector;
mod control;
mod copies;
mod endpoint;
mod examine;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handover;
mod handshake;
mod link;
mod listener;
mod message;
mod queue;
mod reader;
mod ring;
mod rings;
mod room;
mod server;
mod sync;
#[cfg(test)]
mod tests;
mod turn;

use std::time::Duration;

use linerate_skb::{Result, Trust};
use linerate_sys::wait::EventFd;

use crate::doctor::{Findings, Trial};
use crate::driver::{Driver, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::obtained::Obtained;
use crate::queue::{Health, QueueOps};
use crate::spec::Spec;

use config::{Config, PACKET_BYTES_MAX, Role, Sharing};
use link::Link;
use queue::MemifQueue;

pub use reader::{Counts, Frame, Frames, Held, Reader};

/// Our name in messages to a peer.
const NAME: &str = concat!("linerate ", env!("CARGO_PKG_VERSION"));
/// Longest time for a peer to finish the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The driver of `memif:PATH[,role=client|server][,id=0][,secret=TEXT][,rings=1][,size=1024]`
/// `[,buffer=2048][,zerocopy=yes|read|no][,trust=no][,peer=UID|any][,memory=MIB][,secret-file=FILE]`.
#[derive(Debug)]
pub struct Memif;

impl Driver for Memif {
    fn name(&self) -> &'static str {
        "memif"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "memif:PATH[,role=client|server][,id=0][,secret=TEXT][,zerocopy=yes|read|no]",
            text: "memory shared with another process: VPP, DPDK, or linerate",
        }
    }

    fn between_processes(&self, place: &str) -> Option<[String; 2]> {
        // Map all of the other process's memory, however large its pool is.
        let server = format!("memif:{place},role=server,memory=8192");
        Some([server, format!("memif:{place}")])
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(Config::of(spec)?))
    }
}

impl Plan for Config {
    fn needs(&self) -> Result<Needs> {
        let queues = usize::from(self.rings);
        let ring = queues * self.size as usize;
        let (ring_frames, trust) = match self.sharing {
            Sharing::Write => (2 * ring, Trust::Exported),
            Sharing::Read => (ring, Trust::Private),
            Sharing::Nothing => (0, Trust::Private),
        };
        let packet_max_bytes = PACKET_BYTES_MAX;
        Ok(Needs { queues, packet_max_bytes, ring_frames, trust, ..Needs::default() })
    }

    fn by_copies(&self) -> std::result::Result<Box<dyn Plan>, &'static str> {
        if self.sharing_given {
            return Err("say zerocopy=no");
        }
        Ok(Box::new(Config { sharing: Sharing::Nothing, ..self.clone() }))
    }

    fn examine(&self, spec: &Spec, _: Trial, found: &mut Findings) {
        examine::examine(spec, found);
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let (pool, queues) = (cx.pool(), usize::from(self.rings));
        let link = Link::open(self.clone(), pool)?;
        let ops = (0..queues)
            .map(|i| Ok(Box::new(MemifQueue::new(link.clone(), i, pool)?) as Box<dyn QueueOps>))
            .collect::<Result<Vec<_>>>()?;
        let place = self.path.to_string_lossy();
        let mut obtained = Obtained::new(place, mode(self), PACKET_BYTES_MAX);
        obtained.queues = queues;
        if !EventFd::new()?.can_signal_shared() {
            // Each thread has its own context, so the result need not hold for a worker.
            // docs/ports/memif.md describes what a peer can do with such a doorbell.
            obtained = obtained.refused(
                "doorbells that cannot block: the opening thread got no AIO context, and other \
                 threads may get none (CONFIG_AIO, fs.aio-max-nr)",
            );
        }
        if let Some(Health::Down(why)) = ops.first().map(|queue| queue.health()) {
            obtained = obtained.refused(format!("no peer yet, {}; {}", why.why, why.fix));
        }
        Ok(Opened { queues: ops, obtained })
    }
}

/// Returns the description of a port's mode.
fn mode(config: &Config) -> String {
    let what = match (config.role, config.sharing) {
        (Role::Server, _) => "server, by copies",
        (Role::Client, Sharing::Write) => "client, zero copy",
        (Role::Client, Sharing::Read) => "client, zero copy out",
        (Role::Client, Sharing::Nothing) => "client, by copies",
    };
    match config.role {
        Role::Client => format!("memif {what}, rings of {}", config.size),
        // The client chooses the length of the rings.
        Role::Server => format!("memif {what}"),
    }
}
