//! The exchange of a queue's socket: closes one that is lost, takes its frames back, and binds
//! another.
//!
//! The frames of a closed socket stay lent as long as its device may have them: until the device is
//! gone, or another socket is bound to the queue. In copy mode they are taken back when the socket
//! is closed.

use std::time::{Duration, Instant};

use linerate_skb::{Code, DropReason, Error, Moved};
use rustix::io::Errno;

use super::Device;
use crate::host::Host;
use crate::xdp::binding::{CopyMode, Refused};
use crate::xdp::rings::Socket;

/// Interval of attempts to bind a lost socket again.
const REBIND_INTERVAL: Duration = Duration::from_millis(10);

impl Device {
    /// Closes the socket of a deleted interface, one that the kernel has unbound, or that of a
    /// device that returns no packets, and tries to bind another: its descriptor changes, the
    /// queue's own does not.
    pub(super) fn recover(&mut self, host: &mut Host) {
        if let Some(socket) = &self.socket {
            let is_stuck = self.tx.check_stuck(&socket.held);
            if !host.link.is_gone() && !self.is_unbound && !is_stuck {
                return;
            }
            // The kernel will complete packets that wait in it; another socket must not send them
            // before.
            if !host.link.is_gone() && self.is_read(socket) {
                if is_stuck {
                    self.tx.waits_on();
                }
                return;
            }
            self.detach(host);
        }
        self.rebind(host);
    }

    /// Returns true if the kernel may read packets in place until it completes them, although it
    /// copies: as long as it has packets.
    ///
    /// Cost: a syscall, if something was sent and not completed.
    pub(super) fn is_read(&self, socket: &Socket) -> bool {
        let copied = self.copy_mode == CopyMode::Always;
        copied && socket.held.sending > 0 && socket.rings.socket.has_packets()
    }

    /// Closes the socket, to bind another unless the interface is gone.
    pub(super) fn detach(&mut self, host: &mut Host) {
        if let Some(socket) = &self.socket {
            host.bell.forget(&*socket.rings.socket);
        }
        self.close_socket();
        let gone = host.link.is_gone();
        if gone || self.copy_mode == CopyMode::Always {
            // SAFETY: with the socket closed the kernel copies nothing into its frames any more; a
            // device that writes frames itself is gone.
            unsafe { self.reclaim_frames(DropReason::DEVICE_DOWN) };
        }
        if !gone {
            self.resets += 1;
            self.rebind_at = Some(Instant::now());
        }
    }

    /// Tries to bind a socket again, if the attempt is due.
    #[cold]
    fn rebind(&mut self, host: &mut Host) {
        let now = Instant::now();
        if self.rebind_at.is_none_or(|at| at > now) {
            return;
        }
        self.rebind_at = now.checked_add(REBIND_INTERVAL);
        // A new interface may have the index of a deleted one. Without the program nothing would
        // arrive. In zero-copy mode the frames stay lent until the queue is closed.
        if !self.binding.is_of(host.link.interface()) {
            (self.rebind_at, self.unbound) = (None, None);
            return host.link.replaced();
        }
        let bound = self.binding.try_bind(self.copy_mode, &mut self.unbound);
        // A failure is the queue's state until the next attempt succeeds: otherwise packets to
        // other stations would be missing, and nothing would report that.
        let joined = bound.and_then(|bound| {
            let promiscuous = self.binding.join_promiscuous(host.link.interface())?;
            Ok((bound, promiscuous))
        });
        let watched = joined.and_then(|joined| match host.bell.replace(&*joined.0.rings.socket) {
            Ok(()) => Ok(joined),
            Err(e) => {
                let why = format!("epoll_ctl: {e}");
                Err(Error::new(Code::System, "cannot wait for a device", why).into())
            }
        });
        match watched {
            Ok((bound, promiscuous)) => {
                // SAFETY: the kernel binds another socket to the queue only after the device has
                // given up the frames of the old one.
                unsafe { self.reclaim_frames(DropReason::DEVICE_DOWN) };
                self.start(bound.rings);
                (self.rebind_at, self.unbound, self.refused) = (None, None, None);
                self._promiscuous = promiscuous;
            }
            Err(refused) => {
                if let Refused::Bind(Errno::NODEV | Errno::NXIO) = refused {
                    host.link.look();
                }
                self.refused = Some(refused);
                if host.link.is_gone() {
                    (self.rebind_at, self.unbound) = (None, None);
                    // SAFETY: the device is gone.
                    unsafe { self.reclaim_frames(DropReason::DEVICE_DOWN) };
                }
            }
        }
    }

    /// Closes the socket, and unmaps its rings; the frames in them stay lent. Packets in the
    /// receive ring are lost, and counted.
    pub(super) fn close_socket(&mut self) {
        self.read_missed();
        let Some(mut socket) = self.socket.take() else { return };
        self.unread += self.rx.take_unread(&mut socket);
        self.is_lost_read = self.is_read(&socket);
        self.is_unbound = false;
        let Socket { rings, held } = socket;
        self.bad_descs += rings.corrupt() + held.bad_descs;
        self.binding.close(rings);
        self.rx.reset(DropReason::DEVICE_DOWN, &mut self.home);
        self.tx.reset();
        self.lost = Some(held);
    }

    /// Takes back the frames of a closed socket. Packets that the kernel may still read stay in
    /// flight for good, with their memory, because no event signals their completion.
    ///
    /// # Safety
    /// No device writes the frames of the closed socket any more.
    pub(super) unsafe fn reclaim_frames(&mut self, reason: DropReason) {
        let Some(mut held) = self.lost.take() else { return };
        let (mut frames, mut kept, mut dropped) = (Vec::new(), 0, Moved::default());
        let is_read = std::mem::take(&mut self.is_lost_read);
        held.take_all(
            |frame| frames.push(frame),
            |packet| match is_read {
                true => {
                    kept += packet.len();
                    // SAFETY: the handles are put nowhere, so none is taken a second time; the
                    // packets are leaked.
                    unsafe { packet.took(packet.len()) };
                }
                false => {
                    dropped += packet.count_from(0);
                    packet.discard(reason);
                }
            },
        );
        self.tx_lost += dropped;
        self.tx.publish(&held);
        self.leave_in_flight(kept);
        // SAFETY: each was lent, to be posted, and is in the table once; the caller guarantees that
        // no device writes them.
        unsafe { self.home.reclaim(&frames) };
    }

    /// Keeps packets in the ledger as those of a closed queue, for good.
    pub(super) fn leave_in_flight(&self, packets: usize) {
        if packets > 0 {
            let name = format!("xdp {}/{} closed tx", self.binding.name, self.binding.queue());
            let mut tally = self.binding.pool.tally(&name);
            tally.set(packets);
            // Leaked on purpose, as the packets.
            Box::leak(Box::new(tally));
        }
    }
}
