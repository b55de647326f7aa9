//! What a driver is, and the drivers there are.

use linerate_skb::{Pool, Result};

use crate::obtained::Obtained;
use crate::queue::QueueOps;
use crate::spec::Spec;
use crate::{r#gen, null, packet, pcap, sink, tap};

/// What opening a device gave.
pub struct Opened {
    /// Its queues.
    pub queues: Vec<Box<dyn QueueOps>>,
    /// What they are.
    pub obtained: Obtained,
}

impl Opened {
    /// A device of one queue.
    #[must_use]
    pub fn single(queue: impl QueueOps + 'static, obtained: Obtained) -> Opened {
        Opened { queues: vec![Box::new(queue)], obtained }
    }
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("obtained", &self.obtained).finish_non_exhaustive()
    }
}

/// Opens devices of one kind.
pub trait Driver: Sync {
    /// What stands before the colon of a port text.
    fn name(&self) -> &'static str;

    /// True if a port of this kind is either read or written, as the flags `read` and `write` say.
    fn directed(&self) -> bool {
        false
    }

    /// Largest packet it may hand over, in bytes; a pool is sized by it before the device is open.
    ///
    /// # Errors
    /// As `open`, if it cannot be known.
    fn packet_max_bytes(&self, spec: &Spec) -> Result<usize>;

    /// Opens the device that `spec` names; its queues receive into `pool`.
    ///
    /// # Errors
    /// What, why and what to do; nothing is left behind.
    fn open(&self, spec: &Spec, pool: &Pool) -> Result<Opened>;
}

/// The drivers of this crate. `ring` is not among them: its two ends are made together, by
/// [`Port::pair`](crate::Port::pair) or by an engine that knows both.
#[must_use]
pub fn drivers() -> &'static [&'static dyn Driver] {
    &[&r#gen::Gen, &null::Null, &packet::Packet, &pcap::Pcap, &sink::Sink, &tap::Tap]
}

/// Opens the device that `spec` names with the driver that it names.
///
/// # Errors
/// As [`Driver::open`].
pub fn open(spec: &Spec, pool: &Pool) -> Result<Opened> {
    driver_of(spec)?.open(spec, pool)
}

/// The driver that `spec` names.
///
/// # Errors
/// `E-PORT-SYNTAX` for a ring, whose two ends only an engine or `Port::pair` can open.
pub fn driver_of(spec: &Spec) -> Result<&'static dyn Driver> {
    drivers().iter().copied().find(|d| d.name() == spec.driver).ok_or_else(|| {
        spec.error("a ring's two ends are opened together")
            .fix("Port::pair() in a program; in an engine name both ends ring:NAME")
    })
}
