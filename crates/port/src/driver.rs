//! What a driver is.

use linerate_skb::{Pool, Result, Trust};
use linerate_sys::capability::Capabilities;

use crate::obtained::{Direction, Obtained};
use crate::queue::QueueOps;
use crate::spec::Spec;

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

    /// True if a port of this kind opens nothing by name: what stands behind the colon of its text is
    /// its first option.
    fn is_nameless(&self) -> bool {
        false
    }

    /// The way packets can go, as far as the text says it.
    fn direction(&self, _: &Spec) -> Direction {
        Direction::Both
    }

    /// True if a port of this kind may be told by the flag `write` to take nothing in. An engine tells
    /// it where nobody would get what comes in.
    fn can_only_write(&self) -> bool {
        false
    }

    /// Capabilities that opening the port of `spec` takes.
    fn capabilities(&self, _: &Spec) -> Capabilities {
        Capabilities::NONE
    }

    /// Largest packet it may hand over, in bytes; a pool is sized by it before the device is open.
    ///
    /// # Errors
    /// As `open`, if it cannot be known.
    fn packet_max_bytes(&self, spec: &Spec) -> Result<usize>;

    /// Frames of the pool that the device's own rings can hold, over all its queues; hot lists and
    /// the pool are sized by it. None for a driver that copies: its rings are not of the pool.
    ///
    /// # Errors
    /// As `open`, if it cannot be known.
    fn ring_frames(&self, _: &Spec) -> Result<usize> {
        Ok(0)
    }

    /// Who may write the frames of a pool that is made for this port. A driver that shares them with a
    /// peer says so; all others leave them private.
    ///
    /// # Errors
    /// As `open`, if it cannot be known.
    fn trust(&self, _: &Spec) -> Result<Trust> {
        Ok(Trust::Private)
    }

    /// Opens the device that `spec` names; its queues receive into `pool`.
    ///
    /// A device that reads or writes frames itself needs them in the pool's umem. Its driver
    /// refuses a pool whose data is the system allocator's
    /// ([`Data::General`](linerate_skb::Data::General)) with `E-UNSUPPORTED`; one that copies takes
    /// any pool.
    ///
    /// # Errors
    /// What, why and what to do; nothing is left behind.
    fn open(&self, spec: &Spec, pool: &Pool) -> Result<Opened>;
}
