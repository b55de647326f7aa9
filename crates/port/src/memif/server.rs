//! A queue of the server's, which maps the client's memory: it copies packets out of buffers that the
//! client has filled, and into those that it has posted empty.

use std::sync::Arc;

use linerate_skb::{Batch, Local, Moved};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::copies::{Buffers, Copies, Stop};
use super::ring::{Desc, Lie, ServerRing};

/// The regions of the client, by their numbers.
pub(super) type Regions = Arc<[Arc<PeerMemory>]>;

/// A ring, and the memory that its descriptors speak of.
pub(super) struct Side {
    pub ring: ServerRing,
    pub bell: EventFd,
    pub regions: Regions,
    /// Buffers worked on and not given back.
    worked: u16,
    /// The most that were ever there to be worked on.
    most: u16,
}

impl Side {
    pub fn new(ring: ServerRing, bell: EventFd, regions: Regions) -> Side {
        Side { ring, bell, regions, worked: 0, most: 0 }
    }

    /// Buffers that the client has posted, and that were not worked on.
    pub fn ready(&mut self) -> Result<u16, Lie> {
        let posted = self.ring.poll()?;
        self.most = self.most.max(posted);
        Ok(posted - self.worked)
    }

    /// The most that were ever posted: as many as the ring has, of a client that posts all it can.
    pub fn most(&self) -> u16 {
        self.most
    }

    /// Buffers that were filled and not posted anew. A client that has taken what is in them posts
    /// as many as ever, at once or soon.
    pub fn under_way(&self) -> usize {
        (self.most - self.ring.posted()).into()
    }

    /// Receives up to `budget` packets.
    pub fn receive(
        &mut self,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (Moved, Result<(), Lie>) {
        let (packets, bytes) = (out.len(), copies.bytes);
        let (n, received) = match self.ready() {
            Ok(ready) => copies.receive(self, ready, mem, out, budget),
            Err(lie) => (0, Err(lie)),
        };
        if n > 0 {
            self.ring.give_back(n);
        }
        (Moved { packets: out.len() - packets, bytes: copies.bytes - bytes }, received)
    }

    /// Copies packets from the front of `batch` into buffers; they are freed as sent. What they were, and why
    /// there are no more.
    pub fn put(
        &mut self,
        batch: &mut Batch,
        copies: &mut Copies,
        mem: &mut Local,
    ) -> Result<(Moved, Stop), Lie> {
        let ready = self.ready()?;
        let (worked, moved, stop) = copies.send_run(self, ready, mem, batch)?;
        self.worked += worked;
        Ok((moved, stop))
    }

    /// Lets the client see what was filled, and wakes it if it sleeps.
    ///
    /// Cost: a Release store and a full fence; two syscalls if the client sleeps.
    pub fn post(&mut self) {
        if self.worked == 0 {
            return;
        }
        self.ring.give_back(std::mem::take(&mut self.worked));
        if self.ring.shared.rings() {
            self.bell.signal_shared();
        }
    }
}

impl Buffers for Side {
    fn len(&self) -> u16 {
        self.ring.shared.len()
    }

    fn buffer(&self, i: u16) -> Result<(Desc, &PeerMemory, usize), Lie> {
        let desc = self.ring.shared.desc(self.ring.at(self.worked + i));
        let memory = self.regions.get(usize::from(desc.region)).ok_or(Lie::Outside)?;
        let (offset, len) = (desc.offset as usize, desc.len as usize);
        if memory.has(offset, len) { Ok((desc, memory, offset)) } else { Err(Lie::Outside) }
    }

    fn fill(&self, i: u16, len: u32, flags: u16) {
        let at = self.ring.at(self.worked + i);
        let region = self.ring.shared.desc(at).region;
        self.ring.shared.set_filled(at, Desc { flags, region, len, offset: 0 });
    }
}
