//! Binding of a socket to a queue of an interface, also after a loss; and a registration of a
//! pool's memory that all its sockets share, so that forwarding between them copies nothing.
//!
//! The kernel identifies a umem by a socket that has it, and lets other sockets join one that is
//! *bound*. If this pool has no bound socket, the memory is registered anew: pages that are
//! registered twice work as well, but count twice against the limit of locked memory.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::netif::Interface;
use linerate_sys::packet::PacketSocket;
use linerate_sys::rtnl::XdpFeatures;
use linerate_sys::xdp::{Binding, HEADROOM_BYTES, XdpSocket};
use rustix::io::Errno;

use super::attach::Attached;
use super::config::Config;
use super::rings::{Lens, Rings};
use super::tx::FRAMES_MAX;
use crate::host::{both_names, retry_for};
use crate::moderation::HoldControl;

/// Longest wait for a queue that another socket still holds: the kernel releases a closed socket's
/// queue with a delay, and does not notify.
///
/// Source: net/xdp/xsk_buff_pool.c, `xp_put_pool`, which leaves it to a worker.
const BUSY: Duration = Duration::from_secs(1);
/// Longest time and most packets of one busy-polling call.
const BUSY_POLL_US: u32 = 20;
const BUSY_POLL_BUDGET: u32 = 64;

/// Permission for the kernel to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyMode {
    /// Never: the device accesses the frames itself, or there is no socket.
    Never,
    /// Zero-copy is tried first.
    Fallback,
    /// Always: zero-copy is not tried.
    Always,
}

/// A queue of an interface, with the options of its socket.
#[derive(Debug)]
pub(super) struct QueueBinding {
    pub name: String,
    /// The text of the port, up to the filter.
    text: String,
    pub pool: Pool,
    /// Frames that the longest packet needs.
    packet_frames: usize,
    /// Most frames of a packet that the device reads itself.
    zero_copy_frames_max: usize,
    interface: u32,
    queue: u32,
    /// False if the interface has no transmit queue of this number: the kernel sends nothing then,
    /// and reports success.
    ///
    /// Source: net/xdp/xsk.c, `__xsk_generic_xmit`.
    pub can_send: bool,
    lens: Lens,
    busy_poll: bool,
    attached: Arc<Attached>,
    sockets: Arc<Sockets>,
}

/// A socket that was bound.
pub(super) struct Bound {
    pub rings: Rings,
    pub zero_copy: bool,
    /// The reason why it is not bound, although that was tried.
    pub why: Option<String>,
}

/// The reason why a socket was not bound.
#[derive(Debug, Clone)]
pub(super) enum Refused {
    /// bind(2) refused, with this errno.
    Bind(Errno),
    /// Another step failed, before or after bind(2).
    Other(Error),
}

impl Refused {
    /// Returns true if another socket has the queue.
    fn is_busy(&self) -> bool {
        matches!(self, Refused::Bind(Errno::BUSY))
    }
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::Other(e)
    }
}

impl QueueBinding {
    /// Describes the binding of `queue` without making it.
    pub fn new(
        config: &Config,
        pool: &Pool,
        attached: &Arc<Attached>,
        interface: &Interface,
        queue: u32,
        packet_frames: usize,
        can_send: bool,
    ) -> Result<QueueBinding> {
        let features = XdpFeatures::of(interface).ok().flatten().unwrap_or_default();
        Ok(QueueBinding {
            name: config.interface.clone(),
            text: config.text(),
            pool: pool.clone(),
            packet_frames,
            zero_copy_frames_max: features.zero_copy_frames_max.map_or(1, |most| most as usize),
            interface: interface.index(),
            queue,
            can_send,
            lens: config.lens(),
            busy_poll: config.busy_poll,
            attached: attached.clone(),
            sockets: Sockets::of(pool)?,
        })
    }

    /// Returns the length of the receive ring in packets.
    pub fn rx_len(&self) -> u32 {
        self.lens.rx
    }

    /// Returns true if the kernel polls the device in the socket's calls, as the option `busy`
    /// asks.
    pub fn polls_device(&self) -> bool {
        self.busy_poll
    }

    /// Returns the number of frames that the longest packet needs.
    pub fn packet_frames(&self) -> usize {
        self.packet_frames
    }

    /// Returns true if a packet may be longer than a frame.
    fn several(&self) -> bool {
        self.packet_frames > 1
    }

    /// Returns the control of the interface's hold, if the port can change it.
    pub fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        let hold = self.attached.hold.as_ref()?;
        Some(Arc::downgrade(hold) as Weak<dyn HoldControl>)
    }

    /// Returns the number of the device's queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Binds a socket, and waits up to a second for another one that was just closed.
    pub fn bind(&self, copy_mode: CopyMode) -> Result<Bound> {
        let mut unbound = None;
        retry_for(BUSY, Refused::is_busy, || self.try_bind(copy_mode, &mut unbound))
            .map_err(|refused| self.error(&self.name, refused))
    }

    /// Binds a socket to the queue, unless another socket has it: the one in `unbound` if there is
    /// one. A socket that could not be bound stays there for the next attempt.
    pub fn try_bind(
        &self,
        copy_mode: CopyMode,
        unbound: &mut Option<Rings>,
    ) -> std::result::Result<Bound, Refused> {
        let mut why = None;
        if copy_mode != CopyMode::Always {
            match self.bind_as(true, unbound) {
                Ok(rings) => return self.enter(rings, true, None),
                // Another socket has the queue, or the kernel must not copy.
                Err(e @ Refused::Bind(Errno::BUSY)) => return Err(e),
                Err(e) if copy_mode == CopyMode::Never => return Err(e),
                Err(Refused::Bind(Errno::OPNOTSUPP)) => why = Some("the driver has none".into()),
                Err(Refused::Bind(e)) => why = Some(e.to_string()),
                // Its memory may count too much if it cannot share another socket's.
                Err(Refused::Other(e)) => why = Some(e.why),
            }
        }
        self.enter(self.bind_as(false, unbound)?, false, why)
    }

    /// Returns true once no socket is bound to the queue, so that the device no longer has frames
    /// of a closed socket; waits for that a second at most, and until `until` at most. Uses the
    /// socket in `unbound` as [`QueueBinding::try_bind`] does.
    pub fn is_vacant(
        &self,
        copy_mode: CopyMode,
        unbound: &mut Option<Rings>,
        until: Instant,
    ) -> bool {
        let attempt = || self.bind_as(copy_mode != CopyMode::Always, unbound);
        let longest = BUSY.min(until.saturating_duration_since(Instant::now()));
        match retry_for(longest, Refused::is_busy, attempt) {
            // With these errors, the interface is gone, and its driver with it.
            Ok(_) | Err(Refused::Bind(Errno::NODEV | Errno::NXIO)) => true,
            Err(_) => false,
        }
    }

    /// Returns false if `interface` is not the one of the port any more.
    ///
    /// Cost: three syscalls.
    pub fn is_of(&self, interface: &Interface) -> bool {
        self.attached.is_on(interface)
    }

    /// Makes the interface promiscuous again, if the port asks for that: the kernel ends a
    /// membership when the interface leaves the network namespace, and counts those that it has.
    ///
    /// Source: net/packet/af_packet.c, `packet_notifier` (`NETDEV_UNREGISTER`).
    pub fn join_promiscuous(&self, interface: &Interface) -> Result<Option<PacketSocket>> {
        let is_wanted = self.attached.promiscuous.is_some();
        is_wanted.then(|| PacketSocket::promiscuous(interface)).transpose()
    }

    /// Closes a socket of this queue; no socket has the queue any more when this returns.
    pub fn close(&self, rings: Rings) {
        self.sockets.close(rings);
    }

    /// Returns the length of the memory from whose start the rings' addresses count.
    pub fn memory_bytes(&self) -> usize {
        // SAFETY: only its length is looked at.
        unsafe { self.pool.region() }.map_or(0, |region| region.len())
    }

    /// Enters the socket into the map that the program reads. `asked` is true if it was bound for
    /// zero-copy.
    fn enter(
        &self,
        mut rings: Rings,
        asked: bool,
        why: Option<String>,
    ) -> std::result::Result<Bound, Refused> {
        // If the kernel does not say, the device may write the frames of a socket that asked.
        let zero_copy = rings.socket.is_zero_copy().unwrap_or(asked);
        // The kernel drops the first frames of a longer packet without completing them, and sends
        // the rest as a packet: net/xdp/xsk_queue.h, `xskq_cons_read_desc_batch`.
        rings.tx_frames_max = match (rings.several, zero_copy) {
            (false, _) => 1,
            (true, true) => self.zero_copy_frames_max.clamp(1, FRAMES_MAX),
            (true, false) => FRAMES_MAX,
        };
        if let Some(map) = &self.attached.map {
            map.insert(self.queue, rings.socket.as_fd())?;
        }
        Ok(Bound { rings, zero_copy, why })
    }

    /// Binds a socket, for packets in several frames if that is necessary or free of cost: a device
    /// that accesses the frames itself may not support them.
    fn bind_as(
        &self,
        zero_copy: bool,
        unbound: &mut Option<Rings>,
    ) -> std::result::Result<Rings, Refused> {
        if self.several() || !zero_copy {
            match self.bind_on(zero_copy, true, unbound) {
                // Before Linux 6.6.
                Err(Refused::Bind(Errno::INVAL | Errno::OPNOTSUPP)) if !self.several() => {}
                // There, only sockets without several frames can share what is registered already.
                Err(Refused::Other(e)) if e.code == Code::Memory && !self.several() => {}
                done => return done,
            }
        }
        self.bind_on(zero_copy, false, unbound)
    }

    /// Binds a socket to the pool's memory: shares the registration of the others if there is one,
    /// or registers the memory again if they cannot share.
    fn bind_on(
        &self,
        zero_copy: bool,
        several: bool,
        unbound: &mut Option<Rings>,
    ) -> std::result::Result<Rings, Refused> {
        self.sockets.join((zero_copy, several), |first| {
            if let Some(first) = first {
                let mut rings = Rings::of(self.socket()?, &self.lens)?;
                match self.bind_to(&mut rings, Some(first), zero_copy, several) {
                    Ok(()) => return Ok(rings),
                    // Memory that is registered again would be refused for the same reason.
                    Err(e @ (Errno::BUSY | Errno::NETDOWN | Errno::NODEV | Errno::NXIO)) => {
                        return Err(Refused::Bind(e));
                    }
                    Err(_) => {}
                }
            }
            // Memory for which packets may have several frames serves no other socket.
            let kept = unbound.take().filter(|rings| several || !rings.several);
            let mut rings = kept.map_or_else(|| self.registered(), Ok)?;
            let is_noted = rings.several;
            match self.bind_to(&mut rings, None, zero_copy, several) {
                Ok(()) => Ok(rings),
                Err(e) => {
                    // With other errors, the kernel may have noted that packets of this memory may
                    // have several frames.
                    rings.several = is_noted || several && !matches!(e, Errno::INVAL | Errno::BUSY);
                    *unbound = Some(rings);
                    Err(Refused::Bind(e))
                }
            }
        })
    }

    fn bind_to(
        &self,
        rings: &mut Rings,
        first: Option<&XdpSocket>,
        zero_copy: bool,
        several: bool,
    ) -> std::result::Result<(), Errno> {
        let (interface, queue) = (self.interface, self.queue);
        rings.several = several;
        rings.socket.bind(&Binding { interface, queue, zero_copy, several }, first)
    }

    fn socket(&self) -> Result<XdpSocket> {
        let socket = XdpSocket::new()?;
        if self.busy_poll {
            socket.prefer_busy_poll(BUSY_POLL_US, BUSY_POLL_BUDGET)?;
        }
        Ok(socket)
    }

    /// Returns the rings of a new socket with which the pool's memory is registered. It serves
    /// several attempts to bind: the kernel counts the memory of a closed socket as locked for a
    /// moment longer.
    fn registered(&self) -> Result<Rings> {
        let socket = self.socket()?;
        self.register(&socket)?;
        Rings::of(socket, &self.lens)
    }

    fn register(&self, socket: &XdpSocket) -> Result<()> {
        let headroom = (self.pool.headroom() as u32).saturating_sub(HEADROOM_BYTES);
        // SAFETY: only `Held` and its callers write addresses into the rings. Each address is that
        // of a frame that `Local::lend` gave, or of a packet that `Held` keeps until the device
        // returns it.
        let region = unsafe { self.pool.region() };
        let Some(region) = region else {
            let why = "the pool's data is in the allocator's memory";
            return Err(Error::new(Code::Unsupported, self.cannot(&self.name), why));
        };
        // SAFETY: as above: no other code has a lent frame, and packets that are being sent are
        // kept, unwritten, in `Held` until the device is done with them.
        unsafe { socket.register(region, self.pool.frame_size() as u32, headroom) }
    }

    /// Returns the failed operation on the queue of an interface whose present name is `name`.
    fn cannot(&self, name: &str) -> String {
        format!("cannot open xdp:{}, queue {}", both_names(name, &self.name), self.queue)
    }

    /// Returns the error of a queue that was not bound, with the remedy for an interface whose
    /// present name is `name`.
    pub fn error(&self, name: &str, refused: Refused) -> Error {
        let errno = match refused {
            Refused::Other(mut e) => {
                e.what = self.cannot(name);
                return e;
            }
            Refused::Bind(errno) => errno,
        };
        let (what, call) = (self.cannot(name), "bind(AF_XDP)");
        match errno {
            Errno::BUSY => {
                Error::new(Code::Busy, what, "another AF_XDP socket has this queue, bind: EBUSY")
                    .fix("end the program that has it, see: ss -a --xdp -p")
            }
            Errno::INVAL if self.several() => {
                let why = "packets longer than a frame need Linux 6.6, bind: EINVAL";
                Error::new(Code::Unsupported, what, why).fix(format!("ip link set {name} mtu 1500"))
            }
            Errno::OPNOTSUPP => Error::os(Code::Unsupported, what, call, errno)
                .fix(format!("{},mode=native", self.text)),
            Errno::NODEV | Errno::NXIO => Error::os(Code::NoDevice, what, call, errno)
                .fix(linerate_sys::netif::FIND_INTERFACE),
            Errno::NETDOWN => {
                Error::os(Code::DeviceDown, what, call, errno).fix(format!("ip link set {name} up"))
            }
            Errno::PERM | Errno::ACCESS => {
                Error::os(Code::Permission, what, call, errno).fix(Capabilities::XDP.remedy())
            }
            errno => Error::os(Code::System, what, call, errno),
        }
    }
}

#[cfg(test)]
impl QueueBinding {
    /// Returns the binding of the same queue with the memory of another pool.
    pub fn with_pool(&self, pool: &Pool) -> QueueBinding {
        QueueBinding {
            name: self.name.clone(),
            text: self.text.clone(),
            pool: pool.clone(),
            attached: self.attached.clone(),
            sockets: Sockets::of(pool).unwrap(),
            ..*self
        }
    }
}

/// The bound sockets of a pool: each of them stands for the umem.
#[derive(Debug, Default)]
struct Sockets {
    members: Mutex<Vec<Member>>,
}

/// The mode of a umem: true if devices access its frames themselves, and true if packets may have
/// several frames. The kernel gives both to each socket that joins, without asking.
///
/// Source: net/xdp/xsk_buff_pool.c, `xp_assign_dev_shared`.
type Mode = (bool, bool);

/// A bound socket, and the mode of its umem.
#[derive(Debug)]
struct Member {
    socket: Weak<XdpSocket>,
    mode: Mode,
}

impl Sockets {
    /// Returns the sockets of `pool`, or an empty set for the first.
    fn of(pool: &Pool) -> Result<Arc<Sockets>> {
        pool.attached(|mut known: Vec<Arc<Sockets>>| Ok(known.pop().unwrap_or_default()))
    }

    /// Calls `bind` with a bound socket whose umem has `mode`, if there is one; the socket that it
    /// binds is added.
    fn join<E>(
        &self,
        mode: Mode,
        bind: impl FnOnce(Option<&XdpSocket>) -> std::result::Result<Rings, E>,
    ) -> std::result::Result<Rings, E> {
        // The lock is held during the call: otherwise two first users would register the memory
        // twice.
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|one| one.socket.strong_count() > 0);
        let like = members.iter().filter(|one| one.mode == mode);
        let first = like.filter_map(|one| one.socket.upgrade()).next();
        let rings = bind(first.as_deref())?;
        members.push(Member { socket: Arc::downgrade(&rings.socket), mode });
        Ok(rings)
    }

    /// Drops a socket and its rings. Not while another thread is joining it, so that it is closed
    /// when this returns.
    fn close(&self, rings: Rings) {
        let _members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        drop(rings);
    }
}
