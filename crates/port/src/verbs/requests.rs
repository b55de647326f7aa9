//! The frames that a queue pair has to fill.

use linerate_skb::{Local, Pool};
use linerate_sys::verbs::Receive;

/// Most requests of one call.
const CHAIN: usize = 32;
/// Marks a request that the device does not have.
const NONE: u64 = u64::MAX;

/// The place of a request's memory in its frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Offset of the first byte.
    pub from: u64,
    /// Length in bytes: to the end of the frame.
    pub len: u32,
}

/// The receive requests of a queue pair, each with its frame. Frames of requests that the device
/// still has go back to the pool when the value is dropped: drop the pair before.
#[derive(Debug)]
pub(super) struct Requests {
    pool: Pool,
    frames: Box<[u64]>,
    /// Numbers of the requests that the device does not have.
    free: Vec<u32>,
}

impl Requests {
    /// Creates `len` requests for frames of `pool`; the device has none of them.
    pub fn new(pool: &Pool, len: u32) -> Requests {
        let frames = vec![NONE; len as usize].into();
        Requests { pool: pool.clone(), frames, free: (0..len).collect() }
    }

    /// Returns the number of requests that the device has.
    pub fn posted(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    /// Returns true if the device has none of the requests.
    pub fn is_dry(&self) -> bool {
        !self.frames.is_empty() && self.posted() == 0
    }

    /// Takes back the frame of a completed request; `None` if the device did not have it.
    pub fn take(&mut self, id: u32) -> Option<u64> {
        let place = self.frames.get_mut(id as usize)?;
        let frame = std::mem::replace(place, NONE);
        if frame == NONE {
            return None;
        }
        self.free.push(id);
        Some(frame)
    }

    /// Posts free frames by `post` until the device has all requests, the pool has no frame, or the
    /// device takes no more. The numbers of the requests have `number` in their upper half.
    ///
    /// Shape:  hot list -> device; lent until [`Requests::take`], or until the value is dropped.
    /// Cost:   a call for 32 frames.
    ///
    /// # Safety
    /// `post` gives the requests to the pair of this value, and returns how many of them the device
    /// took.
    pub unsafe fn refill(
        &mut self,
        number: u32,
        shape: Shape,
        mem: &mut Local,
        mut post: impl FnMut(&[Receive]) -> usize,
    ) {
        while !self.free.is_empty() {
            let (mut frames, mut requests) = ([0; CHAIN], [Receive::default(); CHAIN]);
            let want = self.free.len().min(CHAIN);
            let n = mem.lend(&mut frames[..want]);
            let first = self.free.len() - n;
            for ((request, frame), id) in
                requests.iter_mut().zip(&frames[..n]).zip(&self.free[first..])
            {
                let id = u64::from(number) << 32 | u64::from(*id);
                *request = Receive { id, offset: frame + shape.from, len: shape.len };
            }
            let posted = post(&requests[..n]).min(n);
            for (request, frame) in requests[..posted].iter().zip(&frames) {
                self.frames[request.id as u32 as usize] = *frame;
            }
            // SAFETY: these were lent just now, and the device did not take them.
            unsafe { mem.reclaim(&frames[posted..n]) };
            self.free.drain(first..first + posted);
            if posted < CHAIN {
                break;
            }
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let mut mem = self.pool.local_with(0);
        for frame in self.frames.iter().filter(|frame| **frame != NONE) {
            // SAFETY: it was lent by `refill` and has not come back; the pair has been dropped, so
            // no device writes it.
            unsafe { mem.reclaim(&[*frame]) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { from: 216, len: 1832 };

    #[test]
    fn a_frame_comes_back_once_and_the_rest_with_the_pair() {
        let pool = Pool::builder().frames(64).build().unwrap();
        assert!(!Requests::new(&pool, 0).is_dry(), "it needs no frame");
        let (mut mem, mut requests) = (pool.local(), Requests::new(&pool, 40));
        assert!(requests.is_dry());
        let mut ids = Vec::new();
        // SAFETY: there is no device, and so none writes.
        unsafe {
            requests.refill(7, SHAPE, &mut mem, |some| {
                ids.extend(some.iter().map(|request| request.id));
                // The device takes no more than 36.
                some.len().min(36 - requests_before(&ids, some.len()))
            });
        }
        assert_eq!(
            (requests.posted(), pool.ledger().holders().contains(&("device rings", 36))),
            (36, true)
        );
        assert!(ids.iter().all(|id| id >> 32 == 7));
        let id = ids[0] as u32;
        let frame = requests.take(id).unwrap();
        assert_eq!((requests.take(id), requests.take(1000), requests.posted()), (None, None, 35));
        // SAFETY: taken back just now.
        unsafe { mem.reclaim(&[frame]) };
        drop((requests, mem));
        assert!(pool.ledger().is_drained(), "{}", pool.ledger());
        assert!(!pool.ledger().holders().iter().any(|(name, n)| *name == "device rings" && *n > 0));
    }

    /// Returns the number of requests before the last `n`.
    fn requests_before(ids: &[u64], n: usize) -> usize {
        ids.len() - n
    }
}
