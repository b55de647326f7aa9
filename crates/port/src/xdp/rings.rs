//! A socket and its four rings, created and dropped together.

use std::sync::Arc;

use linerate_ring::{Addresses, Consumer, Mapped, Memory, Producer, RingError};
use linerate_skb::{Code, Error, Result};
use linerate_sys::xdp::{Desc, Ring, RingMap, XdpSocket};

use super::held::Held;

/// Our half of a ring whose other half the kernel has.
pub(super) type Half<T> = Mapped<T, Arc<RingMap>>;

/// A socket and its rings.
pub(super) struct Rings {
    pub socket: Arc<XdpSocket>,
    pub fill: Producer<Half<u64>>,
    /// Mapping of the fill ring; its flag is set while the kernel must be notified of new frames.
    pub fill_map: Arc<RingMap>,
    pub rx: Consumer<Half<Desc>>,
    pub tx: Producer<Half<Desc>>,
    /// Mapping of the transmit ring; its flag is set while the kernel must be notified of new
    /// packets.
    pub tx_map: Arc<RingMap>,
    pub completion: Consumer<Half<u64>>,
    /// A packet may have several frames.
    pub several: bool,
    /// Most frames of a packet that is sent.
    pub tx_frames_max: usize,
}

/// A bound socket: its rings, and the frames of the pool in them.
pub(super) struct Socket {
    pub rings: Rings,
    pub held: Held,
}

/// Packets that one call sends in copy mode, if the kernel supports a limit: more would keep the
/// CPU in one call for long.
const TX_BUDGET: u32 = 256;

/// Descriptors of each ring of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lens {
    pub fill: u32,
    pub rx: u32,
    pub tx: u32,
    pub completion: u32,
}

impl Rings {
    /// Creates and maps the rings of `socket`, which is bound next: an older kernel maps no rings
    /// of a bound socket.
    ///
    /// Source: net/xdp/xsk.c, `xsk_mmap`, which says EBUSY there in Linux 6.1.
    pub fn of(socket: XdpSocket, lens: &Lens) -> Result<Rings> {
        socket.make(Ring::Fill, lens.fill)?;
        socket.make(Ring::Completion, lens.completion)?;
        socket.make(Ring::Rx, lens.rx)?;
        socket.make(Ring::Tx, lens.tx)?;
        socket.set_tx_budget(lens.tx.min(TX_BUDGET));
        let map = |ring, len| socket.map(ring, len).map(Arc::new);
        let (fill_map, rx_map) = (map(Ring::Fill, lens.fill)?, map(Ring::Rx, lens.rx)?);
        let (tx_map, completion_map) =
            (map(Ring::Tx, lens.tx)?, map(Ring::Completion, lens.completion)?);
        // SAFETY: the kernel is the other half of each ring, and this process has this half once:
        // only the creator had the socket until now, and only this function maps rings.
        unsafe {
            Ok(Rings {
                fill: Producer::attach(half(&fill_map, lens.fill)?),
                rx: Consumer::attach(half(&rx_map, lens.rx)?),
                tx: Producer::attach(half(&tx_map, lens.tx)?),
                completion: Consumer::attach(half(&completion_map, lens.completion)?),
                fill_map,
                tx_map,
                several: false,
                tx_frames_max: 1,
                socket: Arc::new(socket),
            })
        }
    }

    /// Returns the number of invalid index values read from the kernel.
    pub fn corrupt(&self) -> u64 {
        let rings = self.fill.corrupt() + self.tx.corrupt();
        rings + self.rx.corrupt() + self.completion.corrupt()
    }
}

fn half<T: Copy>(map: &Arc<RingMap>, len: u32) -> Result<Half<T>>
where
    Half<T>: Memory,
{
    let addresses =
        Addresses { producer: map.producer(), consumer: map.consumer(), slots: map.slots() };
    // SAFETY: the offsets are the kernel's own, of a ring that was made and mapped with `len`
    // descriptors of T; the owner keeps the mapping; all access is by the halves, and the flag's is
    // atomic; any bits are integers, and a `Desc` has no padding.
    unsafe { Mapped::new(addresses, len, map.clone()) }.map_err(|e: RingError| {
        Error::new(Code::System, "cannot use an AF_XDP ring", e.to_string())
    })
}
