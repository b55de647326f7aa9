//! A queue of the server, which maps the client's memory: it copies packets from buffers that the
//! client has filled, and into empty buffers that the client has posted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Local, Moved};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::copies::{Buffers, Copies, Stop};
use super::queue::SHORT_MAX;
use super::ring::{Checked, Desc, NEXT, ProtocolError, ServerRing, Shared};
use super::rings::{RxRing, TxRing};

/// The regions of the client, by their numbers.
pub(super) type Regions = Arc<[Arc<PeerMemory>]>;

/// A ring in the client's memory, and the regions that its descriptors refer to.
pub(super) struct MappedRing {
    pub ring: ServerRing,
    pub bell: EventFd,
    pub regions: Regions,
    /// Number of buffers that were processed and not given back yet.
    worked: u16,
    /// The highest number of buffers that the client has had posted at one time, and the time since
    /// which it is the highest.
    most: u16,
    most_since: Instant,
    /// The place of the next buffer and the number of posted ones at the last `reap`, and the time
    /// since which they are the same.
    same: Option<((u16, u16), Instant)>,
}

/// Time after which buffers that the client does not post again count as read. Clients post several
/// at a time, VPP's and DPDK's at least 32, so the last ones are never posted if no packet follows.
const READ_AFTER: Duration = Duration::from_millis(500);
/// Most buffers that a client has read and does not post again before it gets more packets.
const HELD_BACK_MAX: u16 = 31;
/// Time for which a packet waits for a client that has more of them.
const STOPPED_MAX: Duration = Duration::from_secs(10);

impl MappedRing {
    pub fn new(ring: ServerRing, bell: EventFd, regions: Regions) -> MappedRing {
        let most_since = Instant::now();
        MappedRing { ring, bell, regions, worked: 0, most: 0, most_since, same: None }
    }

    /// Returns the number of buffers that the client has posted and that are not processed yet.
    fn available(&mut self) -> Checked<u16> {
        let posted = self.ring.poll()?;
        if posted > self.most {
            (self.most, self.most_since) = (posted, Instant::now());
        }
        Ok(posted - self.worked)
    }
}

impl RxRing for MappedRing {
    fn shared(&self) -> &Shared {
        &self.ring.shared
    }

    fn bell(&self) -> &EventFd {
        &self.bell
    }

    fn ready(&mut self) -> Checked<u16> {
        self.available()
    }

    fn receive(
        &mut self,
        copies: &mut Copies,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> (Moved, Checked<()>) {
        let (packets, bytes) = (out.len(), copies.bytes);
        let (n, received) = match self.available() {
            Ok(ready) => copies.receive(self, ready, mem, out, budget),
            Err(error) => (0, Err(error)),
        };
        if n > 0 {
            self.ring.give_back(n);
        }
        (Moved { packets: out.len() - packets, bytes: copies.bytes - bytes }, received)
    }

    fn unread(&mut self) -> usize {
        let ready = self.available().unwrap_or(0);
        let flags = |i| self.ring.shared.desc(self.ring.at(i)).flags;
        (0..ready).filter(|i| flags(*i) & NEXT == 0).count()
    }

    fn into_mapped(self: Box<Self>) -> Option<MappedRing> {
        Some(*self)
    }
}

/// Returns the time for which a packet waits for a client that has so many `filled` buffers: a
/// second if it may have read them all, because VPP and DPDK hold back up to 31. A client that has
/// more has probably stopped, and will post some when it goes on; but it may have fewer buffers now
/// than it once had, or post more of them at a time.
fn patience(filled: u16) -> Duration {
    if filled <= HELD_BACK_MAX { SHORT_MAX } else { STOPPED_MAX }
}

impl TxRing for MappedRing {
    fn put(
        &mut self,
        batch: &mut Batch,
        copies: &mut Copies,
        mem: &mut Local,
    ) -> Checked<(Moved, Stop)> {
        let ready = self.available()?;
        let (worked, moved, stop) = copies.send_run(self, ready, mem, batch)?;
        self.worked += worked;
        Ok((moved, stop))
    }

    fn post(&mut self) -> bool {
        if self.worked == 0 {
            return false;
        }
        self.ring.give_back(std::mem::take(&mut self.worked));
        if self.ring.shared.rings() {
            self.bell.signal_shared();
        }
        true
    }

    fn reap(&mut self, _: &mut Local) -> Checked<()> {
        self.available()?;
        let state = (self.ring.at(0), self.ring.known());
        if self.same.is_none_or(|(before, _)| before != state) {
            self.same = Some((state, Instant::now()));
        }
        Ok(())
    }

    fn room(&self) -> u16 {
        self.ring.known()
    }

    /// Returns the highest number of buffers posted at one time. It is the ring's length if the
    /// client posts all of its buffers.
    fn size(&self) -> usize {
        self.most.into()
    }

    fn has_room(&mut self) -> Checked<bool> {
        Ok(self.available()? > 0)
    }

    fn patience(&self) -> Option<Duration> {
        Some(patience(self.most.saturating_sub(self.ring.known())))
    }

    /// Returns the number of buffers that were filled and that the client has not posted again,
    /// which it does after it has read them; 0 if the number has been the same for [`READ_AFTER`].
    fn under_way(&self) -> usize {
        let state = (self.ring.at(0), self.ring.known());
        match self.same {
            Some((same, since)) if same == state && since.elapsed() >= READ_AFTER => 0,
            _ => (self.most - state.1).into(),
        }
    }
}

impl Buffers for MappedRing {
    fn len(&self) -> u16 {
        self.ring.shared.len()
    }

    fn most(&self) -> u16 {
        // A client may still post its first buffers, which take more than one portion.
        if self.most_since.elapsed() < SHORT_MAX { self.len() } else { self.most }
    }

    fn buffer(&self, i: u16) -> Checked<(Desc, &PeerMemory, usize)> {
        let desc = self.ring.shared.desc(self.ring.at(self.worked + i));
        let memory = self.regions.get(usize::from(desc.region)).ok_or(ProtocolError::Outside)?;
        let (offset, len) = (desc.offset as usize, desc.len as usize);
        if memory.has(offset, len) {
            Ok((desc, memory, offset))
        } else {
            Err(ProtocolError::Outside)
        }
    }

    fn fill(&self, i: u16, desc: Desc, _: u32) {
        self.ring.shared.set_filled(self.ring.at(self.worked + i), desc);
    }

    fn unchain(&self, i: u16, n: u16) {
        (i..i + n).for_each(|i| self.ring.shared.unchain(self.ring.at(self.worked + i)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_may_hold_back_all_its_buffers_is_given_up_sooner_than_a_stopped_one() {
        assert_eq!([0, 31].map(patience), [SHORT_MAX; 2]);
        assert_eq!([32, u16::MAX].map(patience), [STOPPED_MAX; 2]);
    }
}
