//! A queue: its rings while it has a socket, and what becomes of their frames when it has none.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Error, Local, Moved, Result};
use rustix::io::Errno;

use crate::caps::Caps;
use crate::host::{Bell, Link};
use crate::queue::{Health, QueueOps, Want};
use crate::stats::{Counters, DriverCounts};

use super::held::Held;
use super::partial;
use super::peer::Checksums;
use super::rings::Rings;
use super::rx::Rx;
use super::seat::{Copying, Refused, Seat};
use super::tx::Tx;

/// Interval of attempts to bind a lost socket again.
const RETAKE: Duration = Duration::from_millis(10);

/// Interval at which an idle queue checks that its interface still exists. An AF_XDP socket that has lost
/// its interface is not readable, and reports no error that could be waited for.
///
/// Source: net/xdp/xsk.c, `xsk_poll`, which says nothing of a socket that is not bound.
const LOOK: Duration = Duration::from_secs(1);

/// One queue of an interface.
pub(super) struct XdpQueue {
    seat: Seat,
    /// `None` until a lost socket is bound again, and for good once the interface is gone.
    rings: Option<Rings>,
    copying: Copying,
    checksums: Checksums,
    rx: Rx,
    tx: Tx,
    held: Held,
    link: Link,
    bell: Bell,
    /// Cache of frames for the rings, used when a call brings no hot list.
    home: Local,
    /// The kernel's counters of this socket at the last reading, and the sum over all sockets so far.
    missed_before: [u64; 2],
    missed: [u64; 2],
    bad_descs: u64,
    resets: u64,
    /// Time of the next attempt to bind a lost socket.
    retake_at: Option<Instant>,
    /// Error of the last bind(2).
    refused: Option<Errno>,
    /// Time at which an idle queue checks its interface next.
    look_at: Option<Instant>,
    /// `arm` said that there was nothing, and what woke the caller has not been looked at.
    armed: bool,
}

impl XdpQueue {
    /// Takes `seat`; the queue, whether it is by copies, and why, if it was to be otherwise.
    pub fn open(
        seat: Seat,
        link: Link,
        copying: Copying,
        checksums: Checksums,
    ) -> Result<(XdpQueue, Copying, Option<String>)> {
        let taken = seat.take(copying)?;
        let name = format!("xdp {}/{}", seat.name, seat.queue());
        let held = Held::new(seat.memory_bytes(), seat.pool.frame_size());
        let tx = Tx::new(seat.pool.clone(), seat.pool.tally(&format!("{name} tx")));
        let copying = if taken.zero_copy { Copying::Never } else { Copying::Always };
        let mut queue = XdpQueue {
            bell: Bell::new(&*taken.rings.socket)?,
            home: seat.pool.local_named(&name, 0),
            seat,
            rings: None,
            copying,
            checksums,
            rx: Rx::default(),
            tx,
            held,
            link,
            missed_before: [0; 2],
            missed: [0; 2],
            bad_descs: 0,
            resets: 0,
            retake_at: None,
            refused: None,
            look_at: None,
            armed: false,
        };
        queue.fill(taken.rings);
        Ok((queue, copying, taken.why))
    }

    /// Begins to work on `rings`: frames are posted at once, also where nothing is to be received,
    /// since there are drivers that lose theirs otherwise.
    fn fill(&mut self, mut rings: Rings) {
        self.rx.refill(&mut rings, &mut self.held, &mut self.home);
        self.rings = Some(rings);
        self.missed_before = [0; 2];
    }

    /// Finds out how the interface is, once in [`LOOK`].
    ///
    /// Cost: a clock read; two syscalls if it is time.
    fn look(&mut self) {
        self.armed = false;
        let now = Instant::now();
        if self.look_at.is_none_or(|at| at <= now) {
            self.look_at = now.checked_add(LOOK);
            self.link.look();
        }
    }

    /// Closes the socket of an interface that is gone, or of a device that gives nothing back, and
    /// tries to have another: its descriptor changes, the queue's own does not.
    fn mend(&mut self) {
        if self.rings.is_some() {
            let gone = self.link.is_gone();
            if !gone && !self.tx.is_stuck(&self.held) {
                return;
            }
            if gone {
                self.close();
                return self.bring_home(DropReason::DEVICE_DOWN);
            }
            self.let_go();
        }
        self.retake();
    }

    /// Closes the socket, to have another.
    fn let_go(&mut self) {
        self.close();
        if self.copying == Copying::Always {
            // With the socket closed nobody copies into or out of its frames any more.
            self.bring_home(DropReason::DEVICE_DOWN);
        }
        self.resets += 1;
        self.retake_at = Some(Instant::now());
    }

    /// Tries to have the socket again, if it is time.
    #[cold]
    fn retake(&mut self) {
        let now = Instant::now();
        if self.retake_at.is_none_or(|at| at > now) {
            return;
        }
        self.retake_at = now.checked_add(RETAKE);
        match self.seat.try_take(self.copying) {
            Ok(taken) if self.bell.replace(&*taken.rings.socket).is_ok() => {
                // Bound again, so that the device has nothing of the old one's any more.
                self.bring_home(DropReason::DEVICE_DOWN);
                self.fill(taken.rings);
                (self.retake_at, self.refused) = (None, None);
            }
            Err(Refused::Bind(Errno::NODEV | Errno::NXIO)) => {
                self.link.look();
                if self.link.is_gone() {
                    self.retake_at = None;
                    self.bring_home(DropReason::DEVICE_DOWN);
                }
            }
            Err(Refused::Bind(e)) => self.refused = Some(e),
            _ => {}
        }
    }

    /// Closes the socket, and unmaps its rings.
    fn close(&mut self) {
        self.ask();
        let Some(rings) = self.rings.take() else { return };
        self.bad_descs += rings.corrupt();
        self.bell.forget(&*rings.socket);
        self.seat.close(rings);
        self.rx.reset(DropReason::DEVICE_DOWN, &mut self.home);
        self.tx.reset();
    }

    /// Asks the kernel what it has counted of packets that did not come.
    fn ask(&mut self) {
        let Some(Ok(now)) = self.rings.as_ref().map(|rings| rings.socket.statistics()) else {
            return;
        };
        let now = [now.rx_ring_full.unwrap_or(0), now.rx_dropped];
        for ((sum, now), before) in self.missed.iter_mut().zip(now).zip(self.missed_before) {
            *sum = sum.saturating_add(now.saturating_sub(before));
        }
        self.missed_before = now;
    }

    /// Takes back what the rings had, once nobody works on it.
    fn bring_home(&mut self, reason: DropReason) {
        let mut frames = Vec::new();
        let posted = |frame| frames.push(frame);
        self.held.take_all(posted, |packet| packet.discard(reason));
        // SAFETY: each was lent, to be posted, and is in the table once; the socket is closed, and its
        // device has cleared up behind it, say the callers.
        unsafe { self.home.reclaim(&frames) };
    }
}

impl QueueOps for XdpQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let Some(rings) = &mut self.rings else {
            self.mend();
            return Moved::default();
        };
        // Frames of another pool would be lent as if they were this one's.
        let mem = if *mem.pool() == self.seat.pool { mem } else { &mut self.home };
        self.tx.poll(rings, &mut self.link, &mut self.held, mem);
        let before = out.len();
        let moved = self.rx.receive(rings, &mut self.held, mem, out, budget);
        if moved.packets > 0 {
            self.bell.busy(&*rings.socket);
            self.armed = false;
            if let Checksums::Partial { mtu_bytes } = self.checksums {
                out.iter_mut().skip(before).for_each(|skb| partial::mark(skb, mtu_bytes));
            }
        } else {
            self.link.refresh();
            if self.armed {
                self.look();
            }
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        self.link.refresh();
        let Some(rings) = &mut self.rings else {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            self.mend();
            return Moved::default();
        };
        let moved = self.tx.send(rings, &mut self.link, &mut self.held, mem, batch);
        self.bell.busy(&*rings.socket);
        if !batch.is_empty() {
            self.mend();
        }
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        self.link.refresh();
        if self.armed || self.look_at.is_none() {
            self.look();
        }
        self.mend();
        let (room, frames) = match &mut self.rings {
            Some(rings) => {
                self.tx.poll(rings, &mut self.link, &mut self.held, &mut self.home);
                self.tx.publish(&self.held);
                (self.tx.has_room(rings), rings.rx.available() > 0)
            }
            // What is sent now is dropped at once.
            None => (true, false),
        };
        let room = room || !self.link.is_up();
        if self.link.take_news() || (want.frames() && frames) || (want.room() && room) {
            return false;
        }
        let alarm = [
            self.link.look_at(),
            self.rx.retry_at().filter(|_| want.frames()),
            self.tx.look_at(&self.held),
            self.retake_at,
            self.look_at.filter(|_| !self.link.is_gone()),
        ];
        let alarm = alarm.into_iter().flatten().min();
        // Room comes with completions, which nobody announces: the alarm looks for them.
        let watch = want.frames().then_some(Want::Frames);
        if let Some(rings) = &self.rings {
            self.bell.watch(&*rings.socket, watch, alarm);
        } else {
            self.bell.alarm(alarm);
        }
        self.armed = true;
        true
    }

    fn alarm(&mut self, at: Instant) -> bool {
        self.bell.no_later(at)
    }

    fn health(&self) -> Health {
        if self.rings.is_none() && self.link.is_up() {
            if let Some(errno) = self.refused {
                return Health::Down(self.seat.error(Refused::Bind(errno)));
            }
            let what = format!("cannot use {}", self.seat.name);
            let why = "its AF_XDP socket is being had again";
            return Health::Down(Error::new(Code::Busy, what, why));
        }
        self.link.health().clone()
    }

    fn counters(&mut self) -> Counters {
        self.ask();
        let corrupt = self.rings.as_ref().map_or(0, Rings::corrupt);
        let driver = DriverCounts {
            copied_bytes: Some(self.tx.copied_bytes()),
            missed_ring_full: self.missed[0],
            missed_no_frame: self.missed[1],
            bad_descs: self.bad_descs + self.held.lies + corrupt,
            resets: self.resets,
        };
        let (rx_missed, rx_nombuf) = (self.missed.iter().sum(), self.rx.no_frame());
        Counters { rx_missed, rx_nombuf, driver, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps { rx_ring_len: Some(self.seat.rx_len()), ..Caps::default() }
    }
}

impl Drop for XdpQueue {
    fn drop(&mut self) {
        self.close();
        // A device that writes the frames itself may do so until the kernel has cleared up. If that
        // cannot be known, the frames stay lent, in the ledger too.
        let cleared = self.copying == Copying::Always
            || self.link.is_gone()
            || self.seat.is_vacant(self.copying);
        if cleared {
            self.bring_home(DropReason::STOPPED);
        }
    }
}

impl AsFd for XdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{config::Config, setup};
    use super::*;
    use linerate_skb::Pool;
    use std::os::fd::AsRawFd;

    /// Opens the only queue of an interface, with options or as it is.
    pub fn open(interface: &str, pool: &Pool) -> XdpQueue {
        let spec = crate::parse(&format!("xdp:{interface}")).unwrap();
        setup::open_queues(&Config::of(&spec).unwrap(), pool).unwrap().0.remove(0)
    }

    impl XdpQueue {
        /// Puts the first packet of `batch` into the transmit ring as one that the kernel skips and
        /// never completes.
        pub fn lose(&mut self, batch: &mut Batch) {
            let rings = self.rings.as_mut().unwrap();
            let span = batch.iter().next().unwrap().spans().next().unwrap();
            let outside = linerate_sys::xdp::Desc { addr: u64::MAX / 2, len: 60, options: 0 };
            rings.tx.write(0, outside);
            rings.tx.submit(1);
            self.held.send(std::iter::once(span.offset), batch);
            let _ = rings.socket.wake_tx();
        }

        /// Loses the socket, as one whose device gives nothing back is lost, and has not asked for
        /// another yet.
        pub fn lose_socket(&mut self) {
            self.let_go();
        }

        /// Returns the kernel's setting of SO_PREFER_BUSY_POLL for the socket.
        pub fn prefers_busy_poll(&self) -> bool {
            let socket = self.rings.as_ref().unwrap().socket.as_fd().as_raw_fd();
            let (mut value, mut bytes) = (0i32, size_of::<i32>() as libc::socklen_t);
            let (level, option) = (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL);
            let at = (&raw mut value).cast();
            // SAFETY: the kernel writes at most `bytes` to `value`, whose size it is.
            assert_eq!(unsafe { libc::getsockopt(socket, level, option, at, &raw mut bytes) }, 0);
            value == 1
        }
    }
}
