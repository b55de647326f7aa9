//! Receiving: posts free frames in the fill ring and takes packets from the receive ring, without a
//! copy.

use std::sync::atomic::{Ordering, fence};

use linerate_skb::{Batch, DropReason, Local, Moved, Skb, Span};
use linerate_sys::xdp::{CONTINUED, Desc};

use super::held::{Filled, Held};
use super::rings::Socket;
use crate::host::Retry;

/// Descriptors that one step handles.
const STRIDE: usize = 64;

/// Receive state, apart from the rings.
pub(super) struct Rx {
    /// Frames that the longest packet needs: with fewer in the rings, it does not arrive.
    packet_frames: usize,
    /// True if a receive without packets makes the kernel poll the device.
    polls_device: bool,
    /// The first frames of a packet whose last frame has not arrived.
    partial: Option<Skb>,
    /// True if the partly received packet has lost a frame, so that the rest of it is dropped.
    spoilt: bool,
    /// True if the spoilt packet is in the ledger. It is not while all its frames so far are bad.
    counted: bool,
    /// Empty batch of one packet, made with the first packet of several frames.
    one: Option<Batch>,
    /// Pending while the pool has no frame and the rings too few for a packet.
    pub starved: Retry,
    /// Receives that the pool ended early.
    pub rx_nombuf: u64,
    /// Packets received.
    pub packets: u64,
    /// System calls that the kernel accepted to poll the device. Only tests read it; it costs an
    /// addition beside a syscall, and a product without it would not be the code that is tested.
    pub device_polls: u64,
}

impl Rx {
    /// Creates the state of a queue whose longest packet needs `packet_frames` frames.
    pub fn new(packet_frames: usize) -> Rx {
        Rx {
            packet_frames,
            polls_device: false,
            partial: None,
            spoilt: false,
            counted: false,
            one: None,
            starved: Retry::default(),
            rx_nombuf: 0,
            packets: 0,
            device_polls: 0,
        }
    }

    /// Returns the state for a socket with SO_PREFER_BUSY_POLL, if `polls_device`.
    pub fn polling(self, polls_device: bool) -> Rx {
        Rx { polls_device, ..self }
    }

    /// Takes up to `budget` packets from the receive ring, and posts as many frames as there is
    /// room for.
    ///
    /// Shape:  receive ring -> out[len..len+n], n <= budget, in the device's order; the frames of a
    ///         packet in several are a chain. Free frames -> fill ring.
    /// Errors: none. A descriptor that names no frame of ours is counted in `Held::bad_descs`.
    /// Cost:   no syscall, but one where the kernel asks to be told of frames, or polls the device
    ///         because no packet has arrived.
    pub fn receive(
        &mut self,
        socket: &mut Socket,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let (before, end) = (out.len(), out.len() + budget.min(out.spare()));
        while out.len() < end {
            let mut descs = [Desc::default(); STRIDE];
            let want = (end - out.len()).min(STRIDE);
            let got = socket.rings.rx.pop_slice(&mut descs[..want]);
            if got == 0 {
                break;
            }
            self.adopt(&descs[..got], &mut socket.held, mem, out);
        }
        let packets = out.len() - before;
        let is_told = self.refill(socket, mem, packets == 0);
        if packets == 0 && self.polls_device && end > before && !is_told {
            self.poll_device(socket);
        }
        self.packets += packets as u64;
        out.count_from(before)
    }

    /// Makes packets of the frames that the device reports as filled; `out` has room for one packet
    /// of each.
    fn adopt(&mut self, descs: &[Desc], held: &mut Held, mem: &mut Local, out: &mut Batch) {
        let whole = self.partial.is_none() && !self.spoilt;
        if !whole || descs.iter().any(|desc| desc.options != 0) {
            return descs.iter().for_each(|desc| self.add(desc, held, mem, out));
        }
        let (mut spans, mut n) = ([Span::default(); STRIDE], 0);
        for desc in descs {
            if let Some(span) = came_back(desc, held, mem) {
                spans[n] = span;
                n += 1;
            }
        }
        // SAFETY: each of these frames was lent to the fill ring by `refill` and came back now,
        // once: `came_back` says so; `out` has room.
        unsafe { mem.receive(&spans[..n], out) };
    }

    /// Adds a frame to the partly received packet, and delivers the packet with its last frame.
    #[cold]
    fn add(&mut self, desc: &Desc, held: &mut Held, mem: &mut Local, out: &mut Batch) {
        let one = self.one.get_or_insert_with(|| Batch::with_capacity(1));
        let frame = came_back(desc, held, mem).and_then(|span| {
            // SAFETY: as in `adopt`; `one` is empty.
            unsafe { mem.receive(&[span], one) };
            one.pop()
        });
        let unused = match (self.partial.take(), frame) {
            (None, Some(frame)) if self.spoilt && self.counted => Some(frame),
            (None, Some(frame)) if self.spoilt => {
                self.spoil(frame, DropReason::BAD_DESC, mem);
                None
            }
            (None, Some(frame)) => {
                self.partial = Some(frame);
                None
            }
            (Some(mut head), Some(frame)) => match head.append(frame) {
                Ok(()) => {
                    self.partial = Some(head);
                    None
                }
                Err(frame) => {
                    self.spoil(head, DropReason::TOO_LONG, mem);
                    Some(frame)
                }
            },
            (Some(head), None) => {
                self.spoil(head, DropReason::BAD_DESC, mem);
                None
            }
            (None, None) => {
                self.spoilt = true;
                None
            }
        };
        if let (Some(frame), Some(one)) = (unused, &mut self.one) {
            // A further frame of a spoilt packet; `one` is empty.
            let _ = one.push(frame);
            one.truncate_to(0, mem);
        }
        if desc.options & CONTINUED == 0 {
            (self.spoilt, self.counted) = (false, false);
            if let Some(packet) = self.partial.take() {
                // As many packets as descriptors, and there is room for these.
                let _ = out.push(packet);
            }
        }
    }

    /// Drops a partly received packet, which counts as one; its other frames are freed as unused.
    fn spoil(&mut self, head: Skb, reason: DropReason, mem: &mut Local) {
        refuse(head, reason, mem);
        (self.spoilt, self.counted) = (true, true);
    }

    /// Posts free frames until the fill ring is full, the pool is empty, or as many are posted as
    /// the fill and the receive ring hold together.
    ///
    /// A driver that finds the fill ring empty asks to be told of frames, perhaps just after frames
    /// were posted and its request was read. So, if nothing arrived (`is_idle`), it is read for
    /// earlier frames, too. Returns true if the driver was told.
    ///
    /// Shape:  hot list -> fill ring.
    /// Cost:   a syscall where the kernel asks to be told.
    pub fn refill(&mut self, socket: &mut Socket, mem: &mut Local, is_idle: bool) -> bool {
        let Socket { rings, held } = socket;
        self.starved = Retry::default();
        // In zero-copy mode the driver moves frames on into the device's own ring, which may be
        // long.
        let most = (rings.fill.len_descs() + rings.rx.len_descs()) as usize;
        let mut posted = 0;
        loop {
            let room = (rings.fill.reserve(STRIDE as u32) as usize).min(STRIDE);
            let room = room.min(most.saturating_sub(held.posted));
            let mut frames = [0; STRIDE];
            let n = if room == 0 { 0 } else { mem.lend(&mut frames[..room]) };
            frames[..n].iter().for_each(|frame| held.post(*frame));
            rings.fill.push_slice(&frames[..n]);
            posted += n;
            if n < room && held.posted < self.packet_frames {
                // The kernel drops a packet that needs more frames, and a freed frame is not
                // notified.
                self.rx_nombuf += 1;
                self.starved = Retry::later();
            }
            if n < STRIDE {
                break;
            }
        }
        (posted > 0 || is_idle) && tell(socket)
    }

    /// Makes the kernel poll the device within this call. The next receive takes the packets that
    /// it finds.
    ///
    /// Cost: a syscall, with the driver's work in it.
    ///
    /// Source: net/xdp/xsk.c `__xsk_recvmsg`, net/core/dev.c `napi_busy_loop`.
    #[cold]
    fn poll_device(&mut self, socket: &Socket) {
        // The next send or wait finds the reason for an error.
        let polled = socket.rings.socket.wake_rx();
        self.device_polls += u64::from(polled.is_ok());
    }

    /// Returns true if packets have arrived. If not, tells a driver of posted frames that has asked
    /// for it since they were posted: nothing would arrive to end the queue's sleep.
    ///
    /// Cost: a full fence, and a syscall if the driver has asked.
    pub fn is_ready(&self, socket: &mut Socket) -> bool {
        if socket.rings.rx.available() > 0 {
            return true;
        }
        self.announce(socket);
        false
    }

    /// Tells a driver of posted frames if it asks for that; returns true if it does.
    pub fn announce(&self, socket: &Socket) -> bool {
        // Publish the frames before the driver's request is read: one that finds the ring empty
        // sets it and looks again.
        fence(Ordering::SeqCst);
        tell(socket)
    }

    /// Takes what is left in the receive ring of a socket that is about to be closed; returns the
    /// number of packets. The frames stay posted in the table. The rest of a packet that is partly
    /// received does not count, because [`Rx::reset`] counts that packet.
    pub fn take_unread(&self, socket: &mut Socket) -> u64 {
        let (mut descs, mut packets) = ([Desc::default(); STRIDE], 0);
        // The device has filled at most the posted frames.
        let mut left = socket.held.posted;
        while left > 0 {
            let want = left.min(STRIDE);
            let got = socket.rings.rx.pop_slice(&mut descs[..want]);
            if got == 0 {
                break;
            }
            packets += descs[..got].iter().filter(|desc| desc.options & CONTINUED == 0).count();
            left -= got;
        }
        let is_begun = self.partial.is_some() || self.counted;
        packets.saturating_sub(usize::from(is_begun)) as u64
    }

    /// Drops the partly received packet, whose ring is gone.
    pub fn reset(&mut self, reason: DropReason, mem: &mut Local) {
        if let Some(head) = self.partial.take() {
            refuse(head, reason, mem);
        }
        (self.spoilt, self.counted) = (false, false);
    }
}

/// Tells the driver of posted frames, if it asks for that; returns true if it does.
fn tell(socket: &Socket) -> bool {
    let tells = socket.held.posted > 0 && socket.rings.fill_map.wants_wakeup();
    if tells {
        // The next send or wait finds the reason for its error.
        let _ = socket.rings.socket.wake_rx();
    }
    tells
}

/// Counts a packet as received, and drops it for `reason`.
fn refuse(skb: Skb, reason: DropReason, mem: &mut Local) {
    mem.count_received(1);
    skb.discard(reason);
}

/// Takes a descriptor's frame back; returns the packet's position, if the device had that frame.
fn came_back(desc: &Desc, held: &mut Held, mem: &mut Local) -> Option<Span> {
    match held.filled(desc.addr, desc.len) {
        Filled::Packet => Some(Span { offset: desc.addr, len: desc.len }),
        Filled::Outside(frame) => {
            // SAFETY: it was lent by `refill` and came back now, once: `filled` says so.
            unsafe { mem.reclaim(&[frame]) };
            None
        }
        Filled::Bad => None,
    }
}

#[cfg(test)]
mod tests {
    use linerate_skb::Pool;

    use super::*;

    #[test]
    fn a_packet_of_several_frames_with_a_bad_one_counts_as_one() {
        let pool = Pool::builder().frames(16).build().unwrap();
        let (mut mem, mut rx, mut out) = (pool.local(), Rx::new(4), Batch::with_capacity(8));
        let mut held = Held::new(16 * pool.frame_size(), pool.frame_size());
        let mut frames = [0; 9];
        assert_eq!(mem.lend(&mut frames), 9);
        frames.iter().for_each(|frame| held.post(*frame));
        let desc = |i: usize, options| Desc { addr: frames[i] + 256, len: 100, options };
        let bad = |i| Desc { len: 4096, ..desc(i, CONTINUED) };
        let descs = [desc(0, CONTINUED), bad(1), desc(2, CONTINUED), desc(3, 0), desc(4, 0)];
        rx.adopt(&descs, &mut held, &mut mem, &mut out);
        assert_eq!((out.len(), held.bad_descs), (1, 1));
        let dropped = || pool.ledger().dropped(DropReason::BAD_DESC);
        assert_eq!(dropped(), 1);
        // The first one is bad.
        let descs = [bad(5), desc(6, CONTINUED), desc(7, 0), desc(8, 0)];
        rx.adopt(&descs, &mut held, &mut mem, &mut out);
        assert_eq!((out.len(), held.bad_descs, dropped()), (2, 2, 2));
        drop(out);
        let ledger = pool.ledger();
        assert_eq!((ledger.received, ledger.dropped(DropReason::BAD_DESC)), (2, 2), "{ledger}");
        assert_eq!(ledger.in_flight, 0, "{ledger}");
    }
}
