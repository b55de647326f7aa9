//! A source of paced, numbered, verifiable packets; [`sink`](crate::sink) verifies them.

mod burst;
mod pacer;
mod queue;
mod target;
mod traffic;

use linerate_skb::{Data, Pool, Result};

pub(crate) use pacer::Lateness;
pub use pacer::Pacer;
pub use traffic::mean_frame_bytes;

use crate::driver::{Driver, DriverFlags, DriverHelp, Needs, OpenContext, Opened, Plan};
use crate::obtained::{Direction, Obtained};
use crate::spec::Spec;
use burst::Burst;
use queue::GenQueue;
use traffic::Traffic;

/// Most flows, each with its own sequence numbers.
pub const FLOWS_MAX: u64 = 1 << 16;
/// Most packets that the option `burst` can let leave together.
pub const BURST_MAX: u64 = 1024;

/// The driver of `gen:[rate=1Mpps[,rate_for=1s][,burst=N]][,size=60|imix][,flows=1][,count=N]`,
/// with the further options `to=ADDR:PORT[,dev=eth0][,mac=MAC][,from=ADDR:PORT]`. The rate holds
/// for `rate_for`, or to the end; after that time packets are generated as fast as they are
/// accepted.
#[derive(Debug)]
pub struct Gen;

impl Driver for Gen {
    fn name(&self) -> &'static str {
        "gen"
    }

    fn help(&self) -> DriverHelp {
        DriverHelp {
            usage: "gen:[rate=1Mpps[,rate_for=1s][,burst=N]][,size=60|imix][,flows=1][,count=N]",
            text: "a source of numbered packets; UDP datagrams with\n\
                to=ADDR:PORT,dev=eth0[,mac=MAC][,from=ADDR:PORT]",
        }
    }

    fn flags(&self) -> DriverFlags {
        DriverFlags { nameless: true, ends: true, generates: true, ..DriverFlags::default() }
    }

    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        Ok(Box::new(GenPlan { traffic: Traffic::of(spec)?, spec: spec.clone() }))
    }
}

struct GenPlan {
    spec: Spec,
    traffic: Traffic,
}

impl Plan for GenPlan {
    fn needs(&self) -> Result<Needs> {
        let packet_max_bytes = self.traffic.longest();
        Ok(Needs { packet_max_bytes, direction: Direction::Source, ..Needs::default() })
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let traffic = &self.traffic;
        let (longest, room) = (traffic.longest(), room(cx.pool()));
        if longest > room {
            let why = format!("size {longest}: a frame of the pool holds {room} bytes");
            let fix = "use smaller packets, or larger frames: --fit or --jumbo";
            return Err(self.spec.error(why).fix(fix));
        }
        let rate = traffic.rate.map_or("no pause".to_owned(), |r| r.to_string());
        let then = traffic.rate_for.map(|time| format!(" for {time:?}, then at the highest rate"));
        let burst = Burst::new(traffic.burst, traffic.pps().unwrap_or_default());
        let bursts = match traffic.burst {
            Some(n) if n > 1 => format!(" in bursts of {n}"),
            None if burst.gathers() => " in bursts of up to 1 ms".into(),
            _ => String::new(),
        };
        let ends = traffic.to.as_ref().map(|to| to.ends(&self.spec, longest)).transpose()?;
        let to = ends.map_or(String::new(), |ends| {
            format!(" from {} to {} by {}", ends.src, ends.dst, ends.dst_mac)
        });
        let mode = format!("gen at {rate}{bursts}{}{to}", then.unwrap_or_default());
        let obtained = Obtained::new(&self.spec.name, mode, longest).direction(Direction::Source);
        Ok(Opened::single(GenQueue::new(traffic.clone(), ends)?, obtained))
    }
}

/// Returns the length of the longest packet that fits in one frame of the pool.
fn room(pool: &Pool) -> usize {
    match pool.data_from() {
        Data::Frames => pool.data_room().max(pool.jumbo_room()),
        Data::General => usize::MAX,
    }
}

/// Locally administered MAC address to which packets go.
const RECEIVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Locally administered MAC address from which packets come.
const GENERATOR: [u8; 6] = [2, 0, 0, 0, 0, 1];

#[cfg(test)]
mod tests;
