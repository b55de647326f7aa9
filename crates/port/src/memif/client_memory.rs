//! The memory that a client shares on one connection, with the rings in it.
//!
//! ```text
//!   region 0   ring │ ring │ … │ ring │ ring │ … │ buffers of each ring that is copied into or out of
//!              from the client   to the client
//!   region 1   the pool, where packets go as they lie
//! ```
//!
//! Region 0 is a connection's own: a peer that is gone and still has it mapped writes where nothing
//! is read any more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use linerate_skb::{Error, Pool};
use linerate_sys::mem::{Huge, Region};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;

use super::client::{POOL, Slots};
use super::client_rx::Rx;
use super::client_tx::Tx;
use super::config::{Config, Sharing};
use super::handshake::Limits;
use super::message::{Message, RingPlace};
use super::ring::{self, ClientRing, Shared};
use super::rings::{Rings, RxRing, TxRing};

/// Alignment of buffers: a cache line.
const LINE: usize = 64;

/// The offsets of rings and buffers in region 0.
pub(super) struct Layout {
    rings: Limits,
    /// Offsets of the buffers of the rings from and to the client, in the order of the rings;
    /// `None` without buffers.
    buffers: [Option<usize>; 2],
    buffer_bytes: usize,
    pub bytes: usize,
}

impl Layout {
    pub fn new(rings: Limits, config: &Config) -> Layout {
        let buffer_bytes = config.buffer_bytes as usize;
        let both = usize::from(rings.from_client + rings.to_client);
        let mut bytes = (both * Layout::ring_bytes(rings)).next_multiple_of(LINE);
        let copied = match config.sharing {
            Sharing::Write => [false, false],
            Sharing::Read => [false, true],
            Sharing::Nothing => [true, true],
        };
        let mut buffers = [None; 2];
        let counts = [rings.from_client, rings.to_client];
        for ((place, n), copied) in buffers.iter_mut().zip(counts).zip(copied) {
            if copied {
                *place = Some(bytes);
                bytes = bytes.saturating_add((usize::from(n) << rings.power) * buffer_bytes);
            }
        }
        Layout { rings, buffers, buffer_bytes, bytes }
    }

    fn ring_bytes(rings: Limits) -> usize {
        ring::bytes(rings.power).next_multiple_of(LINE)
    }

    /// Returns the position of ring `index` among the rings of both directions.
    fn ring(&self, index: u16, from_client: bool) -> usize {
        let first = if from_client { 0 } else { self.rings.from_client };
        usize::from(first + index) * Layout::ring_bytes(self.rings)
    }

    fn slots(&self, memory: &Arc<PeerMemory>, index: u16, from_client: bool) -> Option<Slots> {
        let first = self.buffers[usize::from(!from_client)]?;
        let each = self.buffer_bytes << self.rings.power;
        Some(Slots {
            memory: memory.clone(),
            offset: first + usize::from(index) * each,
            buffer_bytes: self.buffer_bytes as u32,
        })
    }
}

/// The memory and rings of a connection that is being set up.
pub(super) struct ClientMemory {
    layout: Layout,
    pub memory: Arc<PeerMemory>,
    /// The rings, each with its doorbell.
    from_client: Vec<(ClientRing, EventFd)>,
    to_client: Vec<(ClientRing, EventFd)>,
}

/// Messages, each with the descriptor that is sent with it.
pub(super) type Messages = Vec<(Message, OwnedFd)>;

impl ClientMemory {
    pub fn new(
        limits: Limits,
        config: &Config,
        pool: &Pool,
    ) -> Result<(ClientMemory, Messages), String> {
        let layout = Layout::new(limits, config);
        let zero_copy = config.sharing != Sharing::Nothing;
        if zero_copy && limits.regions < 2 {
            return Err("the server maps one region only: use zerocopy=no".into());
        }
        let text = |e: Error| e.to_string();
        let name = format!("memif-{}", config.id);
        let region = Arc::new(Region::new(&name, layout.bytes, Huge::Never).map_err(text)?);
        let mut messages: Messages = Vec::new();
        let mut add = |message, fd: BorrowedFd<'_>| match fd.try_clone_to_owned() {
            Ok(fd) => {
                messages.push((message, fd));
                Ok(())
            }
            Err(e) => Err(e.to_string()),
        };
        add(Message::AddRegion { index: 0, bytes: region.len() as u64 }, region.as_fd())?;
        if zero_copy && let Some(file) = pool.memory() {
            // SAFETY: only the region's length is read.
            let bytes = unsafe { pool.region() }.map_or(0, |region| region.len() as u64);
            add(Message::AddRegion { index: POOL, bytes }, file)?;
        }
        // SAFETY: the region was made here. Only rings and buffers use it, and they access it as
        // shared memory requires.
        let memory = Arc::new(unsafe { PeerMemory::shared(region) });
        let mut made =
            ClientMemory { layout, memory, from_client: Vec::new(), to_client: Vec::new() };
        for (n, from_client) in [(limits.from_client, true), (limits.to_client, false)] {
            for index in 0..n {
                let offset = made.layout.ring(index, from_client);
                let shared = Shared::new(&made.memory, offset, limits.power)
                    .ok_or("the layout of the rings is wrong")?;
                shared.initialise();
                let bell = EventFd::new().map_err(text)?;
                let place = RingPlace {
                    from_client,
                    index,
                    region: 0,
                    offset: offset as u32,
                    power: limits.power,
                    private_bytes: 0,
                };
                add(Message::AddRing(place), bell.as_fd())?;
                let rings = if from_client { &mut made.from_client } else { &mut made.to_client };
                rings.push((ClientRing::new(shared), bell));
            }
        }
        Ok((made, messages))
    }

    /// Returns the number of descriptors: the memory's, and the doorbells.
    pub fn descriptors(&self) -> usize {
        1 + self.from_client.len() + self.to_client.len()
    }

    /// Returns the rings of each queue.
    pub fn rings(self, config: &Config, pool: &Pool) -> Vec<Option<Rings>> {
        let ClientMemory { layout, memory, from_client, to_client } = self;
        let slots = |index: usize, from| layout.slots(&memory, index as u16, from);
        let tx = from_client.into_iter().enumerate().map(|(i, (ring, bell))| {
            let tally = pool.tally(&format!("memif {}/{i} tx", config.path.display()));
            let tx = Tx::new(ring, bell, slots(i, true), pool, config.buffer_bytes, tally);
            Box::new(tx) as Box<dyn TxRing>
        });
        let rx = to_client.into_iter().enumerate().map(|(i, (ring, bell))| {
            Box::new(Rx::new(ring, bell, slots(i, false), pool)) as Box<dyn RxRing>
        });
        Rings::distribute(config.rings, tx, rx)
    }
}
