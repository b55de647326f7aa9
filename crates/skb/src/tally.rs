//! Tallies: holders report how many packets they have, so that a ledger can name the holders.

use std::sync::Arc;

use crate::books::TallyPage;
use crate::pool::Pool;

/// The number of packets that one holder has: a ring, a backlog, a table of a program's own.
///
/// A [`Ledger`](crate::Ledger) lists packets in flight by these names; it gives packets that no
/// tally counts to the program. Dropping a tally takes its name off the list.
#[derive(Debug)]
pub struct Tally {
    pool: Pool,
    page: Arc<TallyPage>,
}

impl Tally {
    pub(crate) fn new(pool: Pool, name: &str) -> Tally {
        let page = pool.umem().books.tally(name);
        Tally { pool, page }
    }

    /// Sets the number of packets that the holder has now.
    ///
    /// Cost: one store; for once a batch, not once a packet.
    pub fn set(&mut self, packets: usize) {
        self.page.packets.set(packets as u64);
    }
}

impl std::fmt::Debug for TallyPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.packets.value())
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.pool.umem().books.untally(&self.page);
    }
}
