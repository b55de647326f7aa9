//! A device without a device: every packet allocated and initialised, dispatched, freed, counted.
//!
//! It shows what the path itself costs. The payload is not touched.

use std::os::fd::{AsFd, BorrowedFd};

use linerate_skb::{Batch, Local, Moved, Pool, Result};
use linerate_sys::wait::EventFd;

use crate::driver::{Driver, Opened};
use crate::obtained::Obtained;
use crate::queue::{QueueOps, Want};
use crate::spec::Spec;
use crate::units;

/// Ethernet's minimum without FCS.
const SIZE_BYTES: u64 = 60;

/// The driver of `null:[,size=60]`.
#[derive(Debug)]
pub struct Null;

impl Driver for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn packet_max_bytes(&self, spec: &Spec) -> Result<usize> {
        Ok(spec.value("size", units::count)?.unwrap_or(SIZE_BYTES) as usize)
    }

    fn open(&self, spec: &Spec, pool: &Pool) -> Result<Opened> {
        let size_bytes = self.packet_max_bytes(spec)?;
        spec.finish()?;
        if size_bytes == 0 || size_bytes > pool.data_room() {
            let why = format!("size={size_bytes}: a frame holds 1 to {} bytes", pool.data_room());
            return Err(spec.error(why));
        }
        let bell = EventFd::new()?;
        bell.signal();
        let mode = format!("null, {size_bytes} B");
        let obtained = Obtained::new(spec.name.clone(), mode, pool.data_room());
        Ok(Opened::single(NullQueue { bell, size_bytes }, obtained))
    }
}

struct NullQueue {
    /// Rung once and never drained: there is always work.
    bell: EventFd,
    size_bytes: usize,
}

impl QueueOps for NullQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> usize {
        let before = out.len();
        let n = mem.alloc(out, budget);
        out.commit_behind(before, self.size_bytes);
        n
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        false
    }
}

impl AsFd for NullQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
