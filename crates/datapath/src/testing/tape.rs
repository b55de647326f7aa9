//! The devices of a run, which are in memory, and the order and times of their frames.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use linerate_port::pcap::Frame;
use linerate_port::wait::EventFd;
use linerate_port::{Caps, Health, QueueOps, Want};
use linerate_skb::{Batch, Local, Moved};

use super::unfinished::{self, Left};

/// The frames that a port has sent.
pub(super) type Collected = Arc<Mutex<Vec<Frame>>>;

/// The times at which a run delivers frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Times {
    /// Each frame at its stamp.
    Stamps,
    /// As many consecutive frames at the stamp of the last of them.
    Gathered(usize),
}

/// The order in which the frames of a run are delivered, with the time and the port of each.
#[derive(Debug)]
pub(super) struct Schedule {
    deliveries: Vec<(u64, usize)>,
    /// Number of frames delivered.
    at: usize,
}

impl Schedule {
    /// Orders the frames of the ports by their stamps; those with equal stamps in the order of the
    /// ports. The time never goes back: a frame whose stamp is earlier than that of the frame
    /// before it in its port is delivered at the time of that one.
    pub fn new(inputs: &[(&str, &[Frame])], times: Times) -> Schedule {
        let mut deliveries = Vec::new();
        for (port, (_, frames)) in inputs.iter().enumerate() {
            let mut time = 0;
            for frame in *frames {
                time = frame.stamp_ns.max(time);
                deliveries.push((time, port));
            }
        }
        deliveries.sort_by_key(|(time, _)| *time);
        if let Times::Gathered(frames) = times {
            for gathered in deliveries.chunks_mut(frames) {
                let last = gathered.last().map_or(0, |(time, _)| *time);
                gathered.iter_mut().for_each(|(time, _)| *time = last);
            }
        }
        Schedule { deliveries, at: 0 }
    }

    /// Returns the time of the next frame.
    pub fn next_ns(&self) -> Option<u64> {
        self.deliveries.get(self.at).map(|(time, _)| *time)
    }

    /// Returns the time of the last frame.
    pub fn last_ns(&self) -> Option<u64> {
        self.deliveries.last().map(|(time, _)| *time)
    }

    /// Takes the next frames, up to `most`, all of one port and at one time; returns the time, the
    /// port and their number.
    pub fn take(&mut self, most: usize) -> Option<(u64, usize, usize)> {
        let left = self.deliveries.get(self.at..)?;
        let &(time, port) = left.first()?;
        let n = left.iter().take(most).take_while(|next| **next == (time, port)).count();
        self.at += n;
        Some((time, port, n))
    }
}

/// A device in memory: delivers frames, and records the frames sent to it.
pub(super) struct Tape {
    bell: EventFd,
    frames: std::vec::IntoIter<Frame>,
    /// The work on each frame that the tape leaves to a device.
    left: Left,
    /// Number of frames that the next poll may deliver.
    admitted: Arc<AtomicUsize>,
    collected: Collected,
}

impl Tape {
    pub fn new(
        frames: Vec<Frame>,
        left: Left,
        admitted: Arc<AtomicUsize>,
        collected: Collected,
    ) -> linerate_port::Result<Tape> {
        Ok(Tape { bell: EventFd::new()?, frames: frames.into_iter(), left, admitted, collected })
    }
}

impl QueueOps for Tape {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let mut moved = Moved::default();
        let admitted = self.admitted.swap(0, Ordering::Relaxed);
        assert!(admitted <= budget, "a poll has room for a batch");
        for mut frame in self.frames.by_ref().take(admitted) {
            let offload = self.left.of(&mut frame.bytes);
            let Some(mut skb) = mem.alloc_copy(&frame.bytes) else {
                panic!("the test's pool has no frame: the stage keeps all {}", super::FRAMES)
            };
            skb.set_stamp_ns(frame.stamp_ns);
            skb.set_offload(offload);
            assert!(out.push(skb).is_ok(), "a batch has room for the budget");
            moved += Moved { packets: 1, bytes: frame.bytes.len() as u64 };
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let mut collected = self.collected.lock().unwrap_or_else(PoisonError::into_inner);
        batch.retain(unfinished::finish);
        for skb in batch.iter() {
            let mut bytes = vec![0; skb.len()];
            skb.copy_to(0, &mut bytes);
            collected.push(Frame { stamp_ns: skb.stamp_ns().unwrap_or(0), bytes });
        }
        batch.sent(batch.len(), mem)
    }

    fn arm(&mut self, _: Want) -> bool {
        true
    }

    // Declared as in-process, so that partial checksums and superframes reach `xmit`, which checks
    // and completes them; VLAN tags in the metadata are inserted, as before any device.
    fn caps(&self) -> Caps {
        Caps { keeps_vlan: false, ..Caps::IN_PROCESS }
    }

    fn health(&self) -> Health {
        if self.frames.len() == 0 { Health::Finished } else { Health::Up }
    }
}

impl AsFd for Tape {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
