//! A queue's place on its interface: how its socket is bound, and bound again.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Pool, Result};
use linerate_sys::capability::Capabilities;
use linerate_sys::wait::poll_readable;
use linerate_sys::xdp::{Binding, HEADROOM_BYTES, XdpSocket};
use rustix::io::Errno;

use super::config::Config;
use super::rings::{Lens, Rings};
use super::setup::Attached;
use super::shared::Sockets;

/// Longest wait for a queue that another socket still holds: the kernel cleans up after a closed one later.
///
/// Source: net/xdp/xsk_buff_pool.c, `xp_put_pool`, which leaves it to a worker.
const BUSY: Duration = Duration::from_secs(1);
/// Interval of the attempts during that wait.
const BUSY_STEP: Duration = Duration::from_millis(2);
/// Longest time and most packets of one busy-polling call.
const BUSY_POLL_US: u32 = 20;
const BUSY_POLL_BUDGET: u32 = 64;

/// Permission for the kernel to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copying {
    /// The device reads and writes the frames itself, or there is no socket.
    Never,
    /// Zero-copy is tried first.
    IfItMust,
    /// Zero-copy is not tried.
    Always,
}

/// One queue of one interface, and what its socket is to be.
#[derive(Debug)]
pub(super) struct Seat {
    pub name: String,
    /// The text of its port, up to the filter.
    text: String,
    pub pool: Pool,
    /// A packet may be longer than a frame.
    several: bool,
    interface: u32,
    queue: u32,
    lens: Lens,
    busy_poll: bool,
    attached: Arc<Attached>,
    sockets: Arc<Sockets>,
}

/// Result of binding a queue's socket.
pub(super) struct Taken {
    pub rings: Rings,
    pub zero_copy: bool,
    /// Why it is not, although it was tried.
    pub why: Option<String>,
}

/// Why a seat was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    /// By bind(2).
    Bind(Errno),
    /// Before that, or behind it.
    Other(Error),
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::Other(e)
    }
}

impl Seat {
    /// Makes the seat of `queue`, not bound yet.
    pub fn new(
        config: &Config,
        pool: &Pool,
        attached: &Arc<Attached>,
        interface: u32,
        queue: u32,
        several: bool,
    ) -> Result<Seat> {
        Ok(Seat {
            name: config.interface.clone(),
            text: config.text(),
            pool: pool.clone(),
            several,
            interface,
            queue,
            lens: config.lens(),
            busy_poll: config.busy_poll,
            attached: attached.clone(),
            sockets: Sockets::of(pool)?,
        })
    }

    /// Packets that its receive ring holds.
    pub fn rx_len(&self) -> u32 {
        self.lens.rx
    }

    /// Returns the number of its queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Takes it, waiting a second for who has just left.
    pub fn take(&self, copying: Copying) -> Result<Taken> {
        let until = Instant::now() + BUSY;
        loop {
            match self.try_take(copying) {
                Err(Refused::Bind(Errno::BUSY)) if Instant::now() < until => {
                    // Nobody tells when the kernel has cleared up.
                    let _ = poll_readable(&[], Some(BUSY_STEP));
                }
                Err(refused) => return Err(self.error(refused)),
                Ok(taken) => return Ok(taken),
            }
        }
    }

    /// Binds a socket to the queue, unless another socket has it.
    pub fn try_take(&self, copying: Copying) -> std::result::Result<Taken, Refused> {
        let mut why = None;
        if copying != Copying::Always {
            match self.bind(true) {
                Ok(rings) => return self.occupied(rings, None),
                Err(Refused::Bind(e)) if copying == Copying::IfItMust && e != Errno::BUSY => {
                    why = Some(match e {
                        Errno::OPNOTSUPP => "the driver has none".to_owned(),
                        e => e.to_string(),
                    });
                }
                Err(refused) => return Err(refused),
            }
        }
        self.occupied(self.bind(false)?, why)
    }

    /// Returns true once no socket is bound to the queue: then the device has no frames of a closed socket
    /// any more.
    pub fn is_vacant(&self, copying: Copying) -> bool {
        let until = Instant::now() + BUSY;
        loop {
            match self.bind(copying != Copying::Always) {
                Ok(_) => return true,
                Err(Refused::Bind(Errno::BUSY)) if Instant::now() < until => {
                    let _ = poll_readable(&[], Some(BUSY_STEP));
                }
                // The interface is gone, and its driver with it.
                Err(Refused::Bind(Errno::NODEV | Errno::NXIO)) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Closes a socket of this seat; nobody has it any more when this returns.
    pub fn close(&self, rings: Rings) {
        self.sockets.part(rings);
    }

    /// Bytes of the memory that the rings' addresses count from.
    pub fn memory_bytes(&self) -> usize {
        // SAFETY: only its length is looked at.
        unsafe { self.pool.region() }.map_or(0, |region| region.len())
    }

    fn occupied(&self, rings: Rings, why: Option<String>) -> std::result::Result<Taken, Refused> {
        let zero_copy = rings.socket.is_zero_copy().unwrap_or(false);
        self.attached.map.insert(self.queue, rings.socket.as_fd())?;
        Ok(Taken { rings, zero_copy, why })
    }

    /// A bound socket that takes packets in several frames if it must, or if that costs nothing: a
    /// device that reads the frames itself may not have it.
    fn bind(&self, zero_copy: bool) -> std::result::Result<Rings, Refused> {
        if self.several || !zero_copy {
            match self.bind_on(zero_copy, true) {
                // Before Linux 6.6.
                Err(Refused::Bind(Errno::INVAL | Errno::OPNOTSUPP)) if !self.several => {}
                done => return done,
            }
        }
        self.bind_on(zero_copy, false)
    }

    /// A bound socket on the pool's memory: with the others if they have registered it, and if that
    /// does not go together, by a registration of its own.
    fn bind_on(&self, zero_copy: bool, several: bool) -> std::result::Result<Rings, Refused> {
        self.sockets.join(several, |first| match self.bind_beside(first, zero_copy, several) {
            Err(Refused::Bind(e)) if first.is_some() && e != Errno::BUSY => {
                self.bind_beside(None, zero_copy, several)
            }
            done => done,
        })
    }

    fn bind_beside(
        &self,
        first: Option<&XdpSocket>,
        zero_copy: bool,
        several: bool,
    ) -> std::result::Result<Rings, Refused> {
        let socket = XdpSocket::new()?;
        if self.busy_poll {
            socket.prefer_busy_poll(BUSY_POLL_US, BUSY_POLL_BUDGET)?;
        }
        if first.is_none() {
            self.register(&socket)?;
        }
        let rings = Rings::of(socket, &self.lens, several)?;
        let (interface, queue) = (self.interface, self.queue);
        let binding = Binding { interface, queue, zero_copy, several };
        rings.socket.bind(&binding, first).map_err(Refused::Bind)?;
        Ok(rings)
    }

    fn register(&self, socket: &XdpSocket) -> Result<()> {
        let headroom = (self.pool.headroom() as u32).saturating_sub(HEADROOM_BYTES);
        // SAFETY: only `Held` and the functions around it put addresses into the rings, of frames that
        // `Local::lend` gave and of packets that are kept meanwhile.
        let region = unsafe { self.pool.region() };
        let Some(region) = region else {
            let why = "the pool's memory is the allocator's";
            return Err(Error::new(Code::Unsupported, self.cannot(), why));
        };
        // SAFETY: as above: nobody else has a frame that is lent, and packets that are being sent are
        // kept, unwritten, in `Held` until the device is done with them.
        unsafe { socket.register(region, self.pool.frame_size() as u32, headroom) }
    }

    fn cannot(&self) -> String {
        format!("cannot open xdp:{}, queue {}", self.name, self.queue)
    }

    /// Returns why the queue was not bound, and the remedy.
    pub fn error(&self, refused: Refused) -> Error {
        let errno = match refused {
            Refused::Other(mut e) => {
                e.what = self.cannot();
                return e;
            }
            Refused::Bind(errno) => errno,
        };
        let (what, call) = (self.cannot(), "bind(AF_XDP)");
        match errno {
            Errno::BUSY => {
                Error::new(Code::Busy, what, "another AF_XDP socket has this queue, bind: EBUSY")
                    .fix("end the program that has it, see: ss -a --xdp -p")
            }
            Errno::INVAL if self.several => {
                let why = "packets longer than a frame take Linux 6.6, bind: EINVAL";
                Error::new(Code::Unsupported, what, why)
                    .fix(format!("ip link set {} mtu 1500", self.name))
            }
            Errno::OPNOTSUPP => Error::os(Code::Unsupported, what, call, errno)
                .fix(format!("{},mode=native", self.text)),
            Errno::NODEV | Errno::NXIO => {
                Error::os(Code::NoDevice, what, call, errno).fix("ip -br link")
            }
            Errno::NETDOWN => Error::os(Code::DeviceDown, what, call, errno)
                .fix(format!("ip link set {} up", self.name)),
            Errno::PERM | Errno::ACCESS => {
                Error::os(Code::Permission, what, call, errno).fix(Capabilities::XDP.remedy())
            }
            errno => Error::os(Code::System, what, call, errno),
        }
    }
}
