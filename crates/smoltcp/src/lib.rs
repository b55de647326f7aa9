//! linerate's queues as devices of [smoltcp], a TCP/IP stack: TCP in user space over AF_XDP,
//! AF_PACKET or any other port.
//!
//! ```no_run
//! use linerate::{Pool, Port};
//! use linerate_smoltcp::Device;
//! use smoltcp::iface::{Config, Interface, SocketSet};
//! use smoltcp::time::Instant;
//! use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
//!
//! # fn main() -> linerate::Result<()> {
//! let queue = Port::open("xdp:eth0,all")?.into_queues().remove(0);
//! let mut device = Device::new(queue)?;
//! let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 1]).into());
//! let mut interface = Interface::new(config, &mut device, Instant::now());
//! interface.update_ip_addrs(|addrs| _ = addrs.push(IpCidr::new(IpAddress::v4(192, 0, 2, 1), 24)));
//! let mut sockets = SocketSet::new(vec![]); // add sockets here
//! loop {
//!     interface.poll(Instant::now(), &mut device, &mut sockets);
//!     let delay = interface.poll_delay(Instant::now(), &sockets);
//!     device.wait(delay.map(Into::into))?; // sends what is left, then sleeps
//! }
//! # }
//! ```
//!
//! smoltcp reads and writes packets in place, in the pool's frames. This device handles the
//! checksums of TCP and UDP: smoltcp neither computes nor verifies them. For sent packets the
//! checksum is left to the port, which leaves it to the device or computes it. Received packets are
//! verified here, unless the port has verified them. The checksum of a datagram that came in
//! fragments is not verified. In a pool with frames of more than a packet ([`Pool::jumbo_room`]),
//! TCP over IPv4 sends superframes.
//!
//! [smoltcp]: https://docs.rs/smoltcp
//! [`Pool::jumbo_room`]: linerate::Pool::jumbo_room
#![forbid(unsafe_code)]

mod checksum;

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use linerate::{Batch, Code, DropReason, Error, Local, Queue, Result, Skb, Trust, Want};
use smoltcp::phy::{self, Checksum, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;

/// Most packets received or sent in one call.
const BATCH: usize = 64;
/// Time until the pool is asked again for a frame.
const RETRY: Duration = Duration::from_millis(1);
const ETH_BYTES: usize = 14;
/// Bytes at a packet's beginning that contain all headers, with their options, that smoltcp writes.
const HEADERS_BYTES: usize = 256;
/// The VLAN's number in a tag; 0 is a packet of no VLAN, with a priority.
const VLAN_ID: u16 = 0xfff;
/// The MTU of Ethernet.
const MTU_BYTES: usize = 1500;
/// The longest packet whose length fits an IPv4 header.
const IP_BYTES_MAX: usize = 65_535;

/// A queue as a device of smoltcp. Dropping it drops received packets that smoltcp has not taken,
/// and unsent packets, as `stopped`.
#[derive(Debug)]
pub struct Device {
    arriving: Batch,
    received: VecDeque<Skb>,
    /// Packets that smoltcp has read: freed together, onto the queue's own list of frames.
    read: Batch,
    leaving: Leaving,
    mtu_bytes: usize,
    /// Buffer in which a packet received in several frames is joined.
    scratch: Vec<u8>,
}

impl Device {
    /// Creates a device from `queue`, with Ethernet's MTU of 1500 bytes. If the port has several
    /// queues, the device only receives packets of this one.
    ///
    /// # Errors
    /// `E-UNSUPPORTED` for a pool whose memory a peer can write, `E-POOL-SIZE` for frames too small
    /// for a packet.
    pub fn new(queue: Queue) -> Result<Device> {
        let (pool, what) = (queue.pool(), "cannot make a device of smoltcp's");
        if pool.trust() == Trust::Exported {
            let why = "a peer can write its packets' memory while they are read";
            return Err(Error::new(Code::Unsupported, what, why).fix("a port with a private pool"));
        }
        let room = pool.data_room();
        if room < ETH_BYTES + MTU_BYTES {
            let why = format!("its frames hold {room} bytes, and a packet has up to 1514");
            return Err(Error::new(Code::PoolSize, what, why).fix("frame_size(2048)"));
        }
        let longest = room.max(pool.jumbo_room()).min(ETH_BYTES + IP_BYTES_MAX);
        let mut leaving = Leaving {
            queue,
            batch: Batch::with_capacity(BATCH),
            short: None,
            long: None,
            longest,
            lost: 0,
        };
        // Before packets are received, which may take all frames of this size. Without one, the
        // device sends no superframes: waiting for one would keep back ordinary packets, too.
        leaving.is_ready();
        if longest > room && leaving.long.is_none() {
            leaving.long = leaving.queue.local().alloc_len(longest);
            leaving.longest = if leaving.long.is_some() { longest } else { room };
        }
        let received = VecDeque::with_capacity(BATCH);
        let [arriving, read] = [BATCH; 2].map(Batch::with_capacity);
        let (mtu_bytes, scratch) = (MTU_BYTES, Vec::new());
        Ok(Device { arriving, received, read, leaving, mtu_bytes, scratch })
    }

    /// Sets the longest IP packet; call it before the interface is created. The packet must fit a
    /// frame of the pool.
    pub fn set_mtu(&mut self, bytes: usize) {
        let most = self.leaving.queue.pool().data_room() - ETH_BYTES;
        self.mtu_bytes = bytes.min(most);
    }

    /// Sends waiting packets, and sleeps until there is work, or for `timeout`: that of
    /// `Interface::poll_delay`. While the next packet cannot be sent, a shorter timeout counts as
    /// 1 ms. Returns false after the timeout, or without one, if the source has ended.
    ///
    /// # Errors
    /// The error of a device that has failed for good.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        self.free_read();
        self.leaving.flush();
        // While smoltcp has data to send its timeout is 0, also if it cannot be sent now.
        let is_blocked = !self.leaving.is_ready();
        let timeout = timeout.map(|timeout| if is_blocked { timeout.max(RETRY) } else { timeout });
        if self.received.is_empty() {
            let want = if self.leaving.left() == 0 { Want::Frames } else { Want::Both };
            return self.leaving.queue.wait_for(want, timeout);
        }
        // smoltcp takes no packet while there is no room or no memory for its answer.
        if self.leaving.can_answer() {
            return Ok(true);
        }
        if self.leaving.batch.spare() == 0 {
            return self.leaving.queue.wait_for(Want::Room, timeout);
        }
        // No descriptor tells that another holder freed a frame.
        thread::park_timeout(timeout.map_or(RETRY, |timeout| timeout.min(RETRY)));
        Ok(true)
    }

    /// Sends waiting packets, for a program that sleeps by itself; returns the number of packets
    /// that still wait for room.
    pub fn flush(&mut self) -> usize {
        self.free_read();
        self.leaving.flush();
        self.leaving.left()
    }

    /// Returns the queue, for its health, counts and descriptor.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.leaving.queue
    }

    /// Returns the queue, to change its moderation or to allocate packets.
    pub fn queue_mut(&mut self) -> &mut Queue {
        &mut self.leaving.queue
    }

    /// Returns the number of packets from smoltcp that were lost because the pool had no free
    /// frame; TCP retransmits them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.leaving.lost
    }

    /// Receives a batch if smoltcp has taken all packets of the last one.
    fn fill(&mut self) {
        if self.received.is_empty() {
            self.free_read();
            self.leaving.queue.rx(&mut self.arriving);
            self.received.extend(self.arriving.drain());
        }
    }

    /// Frees the packets that smoltcp has read; returns true if there were any.
    fn free_read(&mut self) -> bool {
        let any = !self.read.is_empty();
        self.read.consume(self.leaving.queue.local());
        any
    }

    /// Asks for room and memory, and again if packets that smoltcp has read occupied some.
    fn obtains(&mut self, asked: fn(&mut Leaving) -> bool) -> bool {
        asked(&mut self.leaving) || self.free_read() && asked(&mut self.leaving)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.received.drain(..).for_each(|skb| skb.discard(DropReason::STOPPED));
        let Leaving { batch, short, long, .. } = &mut self.leaving;
        batch.discard(DropReason::STOPPED);
        // Nobody has written these.
        [short.take(), long.take()].into_iter().flatten().for_each(|skb| drop(batch.push(skb)));
        batch.truncate(0);
    }
}

impl phy::Device for Device {
    type RxToken<'a> = RxToken<'a>;
    type TxToken<'a> = TxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        self.fill();
        // smoltcp may answer every packet at once: without room for an answer the packet stays in
        // the batch.
        if self.received.is_empty() || !self.obtains(Leaving::can_answer) {
            return None;
        }
        let skb = self.received.pop_front()?;
        let received = RxToken { skb, scratch: &mut self.scratch, read: &mut self.read };
        Some((received, TxToken { leaving: &mut self.leaving, segment: None }))
    }

    fn transmit(&mut self, _: Instant) -> Option<TxToken<'_>> {
        let is_ready = self.obtains(Leaving::is_ready);
        is_ready.then_some(TxToken { leaving: &mut self.leaving, segment: None })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu_bytes + ETH_BYTES;
        capabilities.max_burst_size = Some(BATCH);
        capabilities.checksum.tcp = Checksum::None;
        capabilities.checksum.udp = Checksum::None;
        // A superframe of two segments would cost more than it saves. For IPv6, smoltcp drops its
        // own superframes as too long.
        if self.leaving.longest > 2 * capabilities.max_transmission_unit {
            capabilities.segmentation.tcpv4 = NonZeroUsize::new(self.leaving.longest);
        }
        capabilities
    }
}

/// The transmit side: a queue, the packets to send, and frames for the next packet.
#[derive(Debug)]
struct Leaving {
    queue: Queue,
    batch: Batch,
    /// A frame for the next ordinary packet; the next field is a frame for a superframe.
    short: Option<Skb>,
    long: Option<Skb>,
    longest: usize,
    lost: u64,
}

impl Leaving {
    fn flush(&mut self) {
        if self.left() > 0 {
            self.queue.xmit(&mut self.batch);
        }
    }

    /// Returns the packets that wait for room, with those of a superframe that was sent in part.
    fn left(&self) -> usize {
        self.batch.len() + self.queue.waiting()
    }

    /// Returns true if there is room and memory for the next packet, whatever its length.
    fn is_ready(&mut self) -> bool {
        self.has(true)
    }

    /// Returns true if there is room and memory for an answer to a packet, which is no superframe.
    /// The frames of superframes may be those of received packets, which are free once smoltcp has
    /// taken them.
    fn can_answer(&mut self) -> bool {
        self.has(false)
    }

    /// Returns true if there is room and memory for a packet, also for a superframe if `with_long`.
    fn has(&mut self, with_long: bool) -> bool {
        if self.batch.spare() == 0 {
            self.flush();
        }
        if !self.has_memory(with_long) {
            // Sending returns the frames of packets that were sent before.
            self.flush();
            self.queue.reap();
        }
        self.batch.spare() > 0 && self.has_memory(with_long)
    }

    fn has_memory(&mut self, with_long: bool) -> bool {
        let (room, longest) = (self.queue.pool().data_room(), self.longest);
        let keep = |kept: &mut Option<Skb>, mem: &mut Local, bytes| {
            if kept.is_none() {
                *kept = mem.alloc_len(bytes);
            }
            kept.is_some()
        };
        keep(&mut self.short, self.queue.local(), room)
            && (!with_long || longest <= room || keep(&mut self.long, self.queue.local(), longest))
    }
}

/// A received packet.
#[derive(Debug)]
pub struct RxToken<'a> {
    skb: Skb,
    scratch: &'a mut Vec<u8>,
    read: &'a mut Batch,
}

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let RxToken { skb, scratch, read } = self;
        // The bytes of a frame that a peer can write have no slice.
        let whole = if skb.is_linear() && skb.data().len() == skb.len() {
            skb.data()
        } else {
            scratch.resize(skb.len(), 0);
            let copied = skb.copy_to(0, scratch);
            &scratch[..copied]
        };
        // The tag of a VLAN may stand beside the bytes, which are then no packet of this interface.
        let of_a_vlan = skb.vlan().is_some_and(|tag| tag.tci & VLAN_ID != 0);
        if !of_a_vlan && checksum::is_right(whole, skb.offload()) {
            let result = f(whole);
            // The batch has room for all packets between two calls that free them.
            drop(read.push(skb));
            return result;
        }
        skb.discard(if of_a_vlan { DropReason::UNWANTED } else { DropReason::MALFORMED });
        // An empty packet is too short for any protocol: smoltcp drops it.
        f(&[])
    }
}

/// A packet that smoltcp is about to send.
#[derive(Debug)]
pub struct TxToken<'a> {
    leaving: &'a mut Leaving,
    segment: Option<u16>,
}

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let TxToken { leaving, segment } = self;
        let room = leaving.queue.pool().data_room();
        let kept = if len <= room { leaving.short.take() } else { leaving.long.take() };
        if let Some(mut skb) = kept
            && let Some(bytes) = skb.put(len)
        {
            // smoltcp leaves out what a header reserves, and expects zeros there. The frame's last
            // packet may have been another connection's.
            let headers = len.min(HEADERS_BYTES);
            bytes[..headers].fill(0);
            let written = f(bytes);
            checksum::leave(&mut skb, segment);
            // The push does not fail: there was room when the token was created.
            leaving.lost += u64::from(leaving.batch.push(skb).is_err());
            return written;
        }
        leaving.lost += 1;
        f(&mut vec![0; len])
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.segment = meta.segmentation_offload_size.map(Into::into);
    }
}
