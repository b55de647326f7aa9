//! A queue with its socket, and the handling of frames when it has none.

mod recovery;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Weak;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, DropReason, Error, Local, Moved, Result};
use linerate_sys::clock::now_and_ns;
use linerate_sys::packet::PacketSocket;
use linerate_sys::wait::poll_readable;
use rustix::io::Errno;

use crate::caps::Caps;
use crate::host::{Bell, Host, HostDevice, HostQueue, Late, Link, RETRY, both_names, partial};
use crate::moderation::HoldControl;
use crate::queue::{Health, HealthKind, Want};
use crate::stats::{Counters, DriverCounts};

use super::binding::{CopyMode, QueueBinding, Refused};
use super::held::Held;
use super::partial::Checksums;
use super::rings::{Rings, Socket};
use super::rx::Rx;
use super::tx::Tx;

/// Interval at which an idle queue checks that its interface still exists. An AF_XDP socket that
/// has lost its interface is not readable, and reports no error that could be waited for.
///
/// Source: net/xdp/xsk.c, `xsk_poll`, which reports nothing of a socket that is not bound.
const INTERFACE_INTERVAL: Duration = Duration::from_secs(1);

/// Receives without a packet after which the clock is read, to check the interface if it is time.
const EMPTY_POLLS: u16 = 1024;

/// The longest wait of a queue on closing for packets that the kernel still reads.
const LINGER: Duration = Duration::from_secs(1);

/// Returns the next full second of the monotonic clock, so that all queues of a worker check at one
/// wake-up.
fn next_check() -> Option<Instant> {
    let (now, ns) = now_and_ns();
    let passed = Duration::from_nanos(ns % INTERFACE_INTERVAL.as_nanos() as u64);
    now.checked_add(INTERFACE_INTERVAL.saturating_sub(passed))
}

/// One queue of an interface.
pub(super) type XdpQueue = HostQueue<Device>;

/// The device of a queue: its socket, with the packets in flight on it.
pub(super) struct Device {
    binding: QueueBinding,
    /// `None` until a lost socket is bound again, and for good once the interface was deleted.
    socket: Option<Socket>,
    /// Frames of a closed socket, which its device may still have.
    lost: Option<Held>,
    /// True if the kernel had packets of the lost socket, and may still read them in copy mode.
    is_lost_read: bool,
    /// True if the kernel has unbound the socket, which reports that once.
    is_unbound: bool,
    /// True once the device is closed for good.
    is_closed: bool,
    copy_mode: CopyMode,
    pub checksums: Checksums,
    rx: Rx,
    tx: Tx,
    /// Cache of frames for the rings, used when a call brings no hot list.
    home: Local,
    /// The kernel's counters of this socket at the last reading, and the sum over all sockets so
    /// far.
    missed_before: Missed,
    missed: Missed,
    /// Packets that were in the receive rings of closed sockets.
    unread: u64,
    late: Late,
    /// Descriptors of earlier sockets that made no sense.
    bad_descs: u64,
    /// Packets that were accepted, and dropped because the device was lost.
    tx_lost: Moved,
    resets: u64,
    /// Time of the next attempt to bind a lost socket.
    rebind_at: Option<Instant>,
    /// A socket that could not be bound, for the next attempt: the pool's memory is registered with
    /// it.
    unbound: Option<Rings>,
    /// Reason why the last attempt failed.
    refused: Option<Refused>,
    /// Keeps the interface promiscuous after a loss of the socket.
    _promiscuous: Option<PacketSocket>,
    /// Time at which an idle queue checks its interface next.
    check_at: Option<Instant>,
    /// Number of receives without a packet, modulo [`EMPTY_POLLS`]. At 0 the interface is checked:
    /// a caller that never waits would not notice its end.
    empty_polls: u16,
}

/// Packets that the kernel had for a socket and did not deliver, by cause.
#[derive(Debug, Clone, Copy, Default)]
struct Missed {
    ring_full: u64,
    no_frame: u64,
}

impl Missed {
    /// Adds the packets that a socket missed between two readings of its counters.
    fn add_between(&mut self, before: Missed, now: Missed) {
        let sum = |sum: u64, before, now: u64| sum.saturating_add(now.saturating_sub(before));
        self.ring_full = sum(self.ring_full, before.ring_full, now.ring_full);
        self.no_frame = sum(self.no_frame, before.no_frame, now.no_frame);
    }
}

/// Binds a socket; returns its queue, whether it copies, and the reason if zero-copy was tried.
pub(super) fn open(
    binding: QueueBinding,
    link: Link,
    copy_mode: CopyMode,
    checksums: Checksums,
) -> Result<(XdpQueue, CopyMode, Option<String>)> {
    let bound = binding.bind(copy_mode)?;
    let copy_mode = if bound.zero_copy { CopyMode::Never } else { CopyMode::Always };
    let name = format!("xdp {}/{}", binding.name, binding.queue());
    let pool = binding.pool.clone();
    let bell = Bell::new(&*bound.rings.socket)?;
    let mut device = Device {
        tx: Tx::new(pool.clone(), pool.tally(&format!("{name} tx"))),
        home: pool.local_named(&name, 0),
        rx: Rx::new(binding.packet_frames()).polling(binding.polls_device()),
        binding,
        socket: None,
        lost: None,
        is_lost_read: false,
        is_unbound: false,
        is_closed: false,
        copy_mode,
        checksums,
        missed_before: Missed::default(),
        missed: Missed::default(),
        unread: 0,
        late: Late::default(),
        bad_descs: 0,
        tx_lost: Moved::default(),
        resets: 0,
        rebind_at: None,
        unbound: None,
        refused: None,
        _promiscuous: None,
        check_at: next_check(),
        empty_polls: 0,
    };
    device.start(bound.rings);
    Ok((HostQueue::new(link, bell, device), copy_mode, bound.why))
}

impl Device {
    /// Starts using `rings`: frames are posted immediately, even if nothing is to be received,
    /// because some drivers need them to send.
    fn start(&mut self, rings: Rings) {
        let pool = &self.binding.pool;
        let held = Held::new(self.binding.memory_bytes(), pool.frame_size());
        let socket = self.socket.insert(Socket { rings, held });
        self.rx.refill(socket, &mut self.home, false);
        self.missed_before = Missed::default();
    }

    /// Returns true, once, if the kernel has unbound the socket because its interface was moved to
    /// another network namespace. If the interface is back, nothing else shows this.
    ///
    /// Cost: a syscall, which notifies no driver and polls no device.
    ///
    /// Source: net/xdp/xsk.c `xsk_notifier`.
    fn take_unbound(&self) -> bool {
        let error = self.socket.as_ref().and_then(|socket| socket.rings.socket.take_error());
        error == Some(Errno::NETDOWN)
    }

    /// Waits until the kernel was told of every packet, and has sent them if it copies them: at most
    /// for [`LINGER`], and until `until`.
    fn linger(&mut self, until: Instant) {
        let until = Instant::now().checked_add(LINGER).map_or(until, |at| at.min(until));
        while let Some(socket) = &mut self.socket {
            let more = self.tx.flush(socket, &mut self.home);
            let waits = more || self.socket.as_ref().is_some_and(|socket| self.is_read(socket));
            if !waits || Instant::now() >= until {
                break;
            }
            let _ = poll_readable(&[], Some(RETRY));
        }
        if let Some(socket) = &mut self.socket {
            self.tx.reap(socket, &mut self.home);
        }
    }

    /// Reads the kernel's counters of lost packets.
    fn read_missed(&mut self) {
        let Some(Ok(now)) = self.socket.as_ref().map(|socket| socket.rings.socket.statistics())
        else {
            return;
        };
        let now = Missed { ring_full: now.rx_ring_full.unwrap_or(0), no_frame: now.rx_dropped };
        self.missed.add_between(self.missed_before, now);
        self.missed_before = now;
        self.late.observe(self.rx.packets, self.missed.ring_full, self.binding.rx_len());
    }

    /// Checks the interface and the socket for a caller that never waits, and gives the frames up
    /// if one of them is lost.
    #[cold]
    fn look_awake(&mut self, host: &mut Host) {
        self.look(host);
        if host.link.is_gone() || self.is_unbound {
            self.recover(host);
        }
    }
}

impl HostDevice for Device {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(|socket| socket.rings.socket.as_fd())
    }

    fn rx(&mut self, host: &mut Host, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let Some(socket) = &mut self.socket else {
            self.recover(host);
            return Moved::default();
        };
        // Frames of another pool would be lent as if they were this one's.
        let mem = if *mem.pool() == self.binding.pool { mem } else { &mut self.home };
        self.tx.poll(socket, &mut host.link, mem);
        let before = out.len();
        let moved = self.rx.receive(socket, mem, out, budget);
        if moved.packets == 0 {
            self.empty_polls = (self.empty_polls + 1) % EMPTY_POLLS;
            if self.empty_polls == 0 {
                self.look_awake(host);
            }
        }
        if let Checksums::Partial { mtu_bytes } = self.checksums {
            out.iter_mut().skip(before).for_each(|skb| partial::mark(skb, mtu_bytes));
        }
        moved
    }

    fn xmit(&mut self, host: &mut Host, mem: &mut Local, batch: &mut Batch) -> Moved {
        if !self.binding.can_send {
            batch.discard_first(batch.len(), DropReason::UNSUPPORTED, mem);
        }
        let Some(socket) = &mut self.socket else {
            batch.discard_first(batch.len(), DropReason::DEVICE_DOWN, mem);
            self.recover(host);
            return Moved::default();
        };
        let moved = self.tx.send(socket, &mut host.link, &mut self.home, mem, batch);
        if !batch.is_empty() {
            self.recover(host);
        }
        moved
    }

    fn reap(&mut self, host: &mut Host, mem: &mut Local) -> usize {
        if let Some(socket) = &mut self.socket {
            let mem = if *mem.pool() == self.binding.pool { mem } else { &mut self.home };
            self.tx.poll(socket, &mut host.link, mem);
        }
        // The packets of a device that returns none are dropped after a while, so that they are not
        // waited for any longer.
        self.recover(host);
        self.socket.as_ref().map_or(0, |socket| socket.held.sending)
    }

    fn close(&mut self, until: Instant) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.linger(until);
        self.close_socket();
        self.rebind_at = None;
        // A device that writes the frames itself may do so until the kernel has cleared up. If it
        // is unknown whether the kernel has, the frames stay lent, in the ledger too.
        let (mode, unbound) = (self.copy_mode, &mut self.unbound);
        let copied = mode == CopyMode::Always;
        if copied || (self.lost.is_some() && self.binding.is_vacant(mode, unbound, until)) {
            // SAFETY: in copy mode a closed socket writes no frames; otherwise another socket could
            // be bound to the queue, so the device has given up the frames of this one.
            unsafe { self.reclaim_frames(DropReason::STOPPED) };
        } else if let Some(held) = &self.lost {
            self.leave_in_flight(held.sending);
            self.tx.forget();
        }
    }

    /// Checks the state of the interface, its MTU, and that the socket is still bound to it, once
    /// in [`INTERFACE_INTERVAL`].
    ///
    /// Cost: a clock read; three syscalls if it is time, and two more for the MTU.
    fn look(&mut self, host: &mut Host) {
        let now = Instant::now();
        if self.check_at.is_none_or(|at| at <= now) {
            self.check_at = next_check();
            host.link.look();
            self.checksums.look(host.link.interface());
            if host.link.is_up() && self.take_unbound() {
                self.is_unbound = true;
            }
        }
    }

    fn is_ready(&mut self, host: &mut Host, want: Want) -> bool {
        // Packets that are complete are no sign of a device that is stuck, however late they are
        // reaped.
        if let Some(socket) = &mut self.socket {
            self.tx.poll(socket, &mut host.link, &mut self.home);
        }
        self.recover(host);
        // Without a socket, packets to send are dropped at once.
        let Some(socket) = &mut self.socket else { return want.room() };
        self.tx.publish(&socket.held);
        let frames = want.frames() && self.rx.is_ready(socket);
        frames || (want.room() && self.tx.has_room(socket))
    }

    fn awaits(&mut self, link: &Link, want: Want) -> (Option<Want>, Option<Instant>) {
        // While the interface is down, the timer of the link wakes early enough.
        let is_up = |_: &Instant| link.is_up();
        let times = [
            self.rx.starved.at().filter(|_| want.frames()),
            self.tx.starved_until().filter(|_| want.room()),
            self.socket.as_ref().and_then(|socket| self.tx.check_at(&socket.held)).filter(is_up),
            self.rebind_at.filter(is_up),
            self.check_at.filter(|_| !link.is_gone()),
        ];
        // Completions free ring space and are not notified: the timer polls for them.
        (want.frames().then_some(Want::Frames), times.into_iter().flatten().min())
    }

    fn health(&self, link: &Link) -> Health {
        if self.socket.is_some() || !link.is_up() {
            return link.health().clone();
        }
        let (name, opened) = (link.interface().present_name(), link.interface().name());
        if let Some(refused) = &self.refused {
            return Health::Down(self.binding.error(name.as_str(), refused.clone()));
        }
        let what = format!("cannot use {}", both_names(name.as_str(), opened.as_str()));
        Health::Down(Error::new(Code::Busy, what, "its AF_XDP socket is being bound again"))
    }

    fn health_kind(&self, link: &Link) -> HealthKind {
        if self.socket.is_some() || !link.is_up() { link.health().kind() } else { HealthKind::Down }
    }

    fn counters(&mut self) -> Counters {
        self.read_missed();
        let bad = self.socket.as_ref().map_or(0, |s| s.rings.corrupt() + s.held.bad_descs);
        let driver = DriverCounts {
            copied_bytes: Some(self.tx.copied_bytes),
            missed_ring_full: self.missed.ring_full.saturating_sub(self.late.packets()),
            missed_no_cpu: self.late.packets(),
            missed_no_frame: self.missed.no_frame,
            missed_unread: self.unread,
            bad_descs: self.bad_descs + bad,
            resets: self.resets,
            doorbells: Some(self.tx.doorbells),
            longer_ring: Some("ring=4096"),
            ..DriverCounts::default()
        };
        let rx_missed = self.missed.ring_full + self.missed.no_frame + self.unread;
        let rx_nombuf = self.rx.rx_nombuf;
        Counters { rx_missed, rx_nombuf, tx_lost: self.tx_lost, driver, ..Counters::default() }
    }

    fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        self.binding.hold_control()
    }

    fn caps(&self) -> Caps {
        Caps { rx_ring_len: Some(self.binding.rx_len()), ..Caps::default() }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let now = Instant::now();
        // Each of the two waits has its own limit, of a second.
        self.close(now.checked_add(2 * LINGER).unwrap_or(now));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{config::Config, setup};
    use super::*;
    use linerate_skb::Pool;
    use linerate_sys::xdp::XdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    /// Opens the only queue of an interface; the text may have options.
    pub fn open(interface: &str, pool: &Pool) -> XdpQueue {
        let spec = crate::parse(&format!("xdp:{interface}")).unwrap();
        setup::open_queues(&Config::of(&spec).unwrap(), pool).unwrap().0.remove(0)
    }

    impl XdpQueue {
        /// Puts the first packet of `batch` into the transmit ring as one that the kernel skips and
        /// never completes.
        pub fn lose(&mut self, batch: &mut Batch) {
            let Socket { rings, held } = self.device.socket.as_mut().unwrap();
            let span = batch.iter().next().unwrap().spans().next().unwrap();
            let outside = linerate_sys::xdp::Desc { addr: u64::MAX / 2, len: 60, options: 0 };
            rings.tx.write(0, outside);
            rings.tx.submit(1);
            held.send(std::iter::once(span.offset), batch);
            let _ = rings.socket.wake_tx();
        }

        /// Binds another socket, of `pool`, to the queue of a lost one.
        pub fn occupy(&self, pool: &Pool) -> Rings {
            let other = self.device.binding.with_pool(pool);
            other.bind(CopyMode::Always).unwrap().rings
        }

        /// Returns the socket that waits to be bound.
        pub fn unbound(&self) -> Option<Weak<XdpSocket>> {
            self.device.unbound.as_ref().map(|rings| Arc::downgrade(&rings.socket))
        }

        /// Returns the number of descriptors in the receive ring.
        pub fn arrived(&mut self) -> u32 {
            self.device.socket.as_mut().map_or(0, |socket| socket.rings.rx.available())
        }

        /// Marks the socket as lost, as if its device returned nothing, without binding another.
        pub fn lose_socket(&mut self) {
            self.device.detach(&mut self.host);
        }

        /// Returns the number of system calls that the kernel accepted to poll the device.
        pub fn device_polls(&self) -> u64 {
            self.device.rx.device_polls
        }

        /// Returns the kernel's setting of SO_PREFER_BUSY_POLL for the socket.
        pub fn prefers_busy_poll(&self) -> bool {
            let socket = self.device.descriptor().unwrap().as_raw_fd();
            let (mut value, mut bytes) = (0i32, size_of::<i32>() as libc::socklen_t);
            let (level, option) = (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL);
            let at = (&raw mut value).cast();
            // SAFETY: the kernel writes at most `bytes` to `value`, whose size it is.
            assert_eq!(unsafe { libc::getsockopt(socket, level, option, at, &raw mut bytes) }, 0);
            value == 1
        }
    }
}
