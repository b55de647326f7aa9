//! One registration of a pool's memory for all sockets on it, so that forwarding between them copies
//! nothing.
//!
//! The kernel identifies a umem by a socket that has it, and lets other sockets join one that is *bound*.
//! If this pool has no bound socket, the memory is registered anew: pages that are registered twice work
//! as well, but count twice against the limit of locked memory.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use linerate_skb::{Pool, Result};
use linerate_sys::xdp::XdpSocket;

use super::rings::Rings;

/// Sockets of a pool that are bound: any of them is the umem's name.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    bound: Mutex<Vec<Bound>>,
}

/// A socket that is bound, and whether its umem takes packets in several frames.
#[derive(Debug)]
struct Bound {
    socket: Weak<XdpSocket>,
    several: bool,
}

impl Sockets {
    /// Returns the sockets of `pool`, or an empty set for the first.
    pub fn of(pool: &Pool) -> Result<Arc<Sockets>> {
        pool.attached(|mut known: Vec<Arc<Sockets>>| Ok(known.pop().unwrap_or_default()))
    }

    /// Runs `bind` with a socket that is bound, if there is one whose umem takes packets in several
    /// frames, or does not, as is wanted; what it binds is another one.
    pub fn join<E>(
        &self,
        several: bool,
        bind: impl FnOnce(Option<&XdpSocket>) -> std::result::Result<Rings, E>,
    ) -> std::result::Result<Rings, E> {
        // Held over the call: two first ones would register twice.
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.retain(|one| one.socket.strong_count() > 0);
        let like = bound.iter().filter(|one| one.several == several);
        let first = like.filter_map(|one| one.socket.upgrade()).next();
        let rings = bind(first.as_deref())?;
        bound.push(Bound { socket: Arc::downgrade(&rings.socket), several });
        Ok(rings)
    }

    /// Drops a socket and its rings. Not while another thread is joining it, so that it is closed when
    /// this returns.
    pub fn part(&self, rings: Rings) {
        let _bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        drop(rings);
    }
}
