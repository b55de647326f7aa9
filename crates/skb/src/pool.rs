//! A pool of frames: the first object that a program makes, and the memory that ports allocate
//! from.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linerate_sys::Result;
use linerate_sys::mem::{Huge, Pages, Region};

use crate::chain::CHAIN_FRAMES_MAX;
use crate::knob::{FRAME_SIZE, HOT_LIST};
use crate::ledger::Ledger;
use crate::local::Local;
use crate::policy::{Data, Init, Return, Trust};
use crate::shape::Shape;
use crate::sizing::Holders;
use crate::stats::PoolStats;
use crate::tally::Tally;
use crate::umem::Umem;

/// Headroom of a new packet: enough for tunnel headers, and the size that AF_XDP requires.
const HEADROOM_BYTES: u32 = 256;
const FRAMES: u32 = 4096;

/// Frames of one size, in one memory region. Cloning it makes another handle on the same pool.
///
/// The memory stays mapped until the last `Pool`, [`Local`] and [`Skb`](crate::Skb) are gone, and
/// no thread has a free frame of it. A thread that dropped packets while a `Pool` or `Local`
/// existed may keep some of their frames until it exits, meets another pool, or builds one. It
/// meets a pool when it drops, shares or copies the first packet of that pool.
#[derive(Debug)]
pub struct Pool {
    umem: &'static Umem,
    /// The memory of the frames; `None` if the packets' data comes from the allocator.
    memory: Option<Arc<Region>>,
}

impl std::fmt::Debug for Umem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Umem")
            .field("id", &self.id())
            .field("frames", &self.frames())
            .field("frame_bytes", &self.frame_bytes())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Describes a pool; the default is 4096 frames of 2048 bytes.
    #[must_use]
    pub fn builder() -> PoolBuilder {
        PoolBuilder {
            shape: Shape {
                name: "linerate".into(),
                frames: FRAMES,
                frame_bytes: FRAME_SIZE.default as u32,
                headroom_bytes: HEADROOM_BYTES,
                jumbo_frames: 0,
                jumbo_bytes: 0,
                data: Data::Frames,
                init: Init::AtAlloc,
                return_to: Return::Local,
                trust: Trust::Private,
                huge: Huge::Try,
            },
        }
    }

    pub(crate) fn umem(&self) -> &'static Umem {
        self.umem
    }

    /// Describes a pool with as many frames as `holders` can hold at once.
    #[must_use]
    pub fn sized_for(holders: &Holders) -> PoolBuilder {
        Pool::builder().frames(u32::try_from(holders.sum()).unwrap_or(u32::MAX))
    }

    /// Returns a [`Local`] for one queue, worker or task, with a hot list of 1024 frames, or of a
    /// quarter of the pool if that is less.
    ///
    /// All locals that this function returned keep at most half of the pool on their hot lists: a
    /// list is shorter, or off, if the lists of earlier locals leave less. [`Local::hot_list_len`]
    /// says how long it is.
    #[must_use]
    pub fn local(&self) -> Local {
        Local::with_default_list(self.clone(), "local", self.hot_list_len_for(0))
    }

    /// Returns a [`Local`] with a hot list of the given length; 0 turns the list off.
    ///
    /// No owner gives back the frames on its hot list for another owner. A pool therefore needs the
    /// sum of all lists of a given length and of all other holders ([`Holders`]). With fewer
    /// frames, all of them can come to rest on the lists of idle owners. The length includes the
    /// frames that the owner gathers for other cores ([`Return::Home`]).
    #[must_use]
    pub fn local_with(&self, hot_list_len: usize) -> Local {
        self.local_named("local", hot_list_len)
    }

    /// Returns a [`Local`] with a name that [`Pool::stats`] shows.
    #[must_use]
    pub fn local_named(&self, name: &str, hot_list_len: usize) -> Local {
        Local::new(self.clone(), name, hot_list_len)
    }

    /// Returns the default length of a hot list that serves rings of `rings` frames: the larger of
    /// the usual length and `rings`, and at most a quarter of the pool.
    #[must_use]
    pub fn hot_list_len_for(&self, rings: usize) -> usize {
        let len = HOT_LIST.clamp(HOT_LIST.default.max(rings as u64)) as usize;
        len.min(self.umem.frames() as usize / 4)
    }

    /// Opens a tally, on which a holder counts its packets, so that a ledger can name the holder.
    #[must_use]
    pub fn tally(&self, name: &str) -> Tally {
        Tally::new(self.clone(), name)
    }

    /// Times every n-th call that allocates or frees, and records the lifetime of one packet of
    /// each such call of [`Local::alloc`]; 0, the default, turns this off.
    ///
    /// A jumbo frame that is allocated and frames that a device fills ([`Local::receive`]) are
    /// neither timed nor recorded.
    ///
    /// Each `Local` notices within 1024 calls, or as many as it was set to before.
    ///
    /// Cost: two readings of the clock in every n-th call, and one packet that is freed the slow
    ///       way: 0.15 ticks a buffer in bulk at n = 64 (docs/adr/0006).
    pub fn set_sampling(&self, every: u32) {
        self.umem.sampling.store(every, Ordering::Relaxed);
    }

    /// Returns the pool's cost so far, core by core.
    ///
    /// Cost: the books' and the depot's locks; for reports, not for the packet path.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        PoolStats::of(self.umem)
    }

    /// Returns the fate of every packet so far, and the location of every frame.
    ///
    /// Cost: the books' and the depot's locks, twice or more; for reports, not for the packet path.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::of(self.umem)
    }

    /// Returns the number of ordinary frames in the pool.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.umem.frames() as usize
    }

    /// Returns the size of a frame in bytes, headroom included.
    #[must_use]
    pub fn frame_size(&self) -> usize {
        self.umem.frame_bytes() as usize
    }

    /// Returns the headroom of a new packet, in bytes.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.umem.headroom() as usize
    }

    /// Returns the data bytes that a new packet of one frame can hold.
    #[must_use]
    pub fn data_room(&self) -> usize {
        self.frame_size() - self.headroom()
    }

    /// Returns the number of jumbo frames in the pool.
    #[must_use]
    pub fn jumbo_frames(&self) -> usize {
        self.umem.jumbo().0 as usize
    }

    /// Returns the data bytes that a new packet of one jumbo frame can hold; 0 if there are no
    /// jumbo frames.
    #[must_use]
    pub fn jumbo_room(&self) -> usize {
        (self.umem.jumbo().1 as usize).saturating_sub(self.headroom())
    }

    /// Returns the length in bytes of the longest packet that the pool can hold, in a jumbo frame
    /// or a chain of ordinary ones.
    #[must_use]
    pub fn packet_max_bytes(&self) -> usize {
        (CHAIN_FRAMES_MAX.min(self.frames()) * self.data_room()).max(self.jumbo_room())
    }

    /// Returns the source of packets' bytes.
    #[must_use]
    pub fn data_from(&self) -> Data {
        self.umem.data_from()
    }

    /// Returns the time at which the meta line is initialised.
    #[must_use]
    pub fn init(&self) -> Init {
        self.umem.init()
    }

    /// Returns the destination of a frame that is freed on another core.
    #[must_use]
    pub fn return_to(&self) -> Return {
        self.umem.return_to()
    }

    /// Returns the kind of memory pages that the pool got for its frames. The memory of the frames'
    /// metadata can have another kind.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.memory.as_ref().map_or(Pages::Base, |memory| memory.pages())
    }

    /// Returns the processes that can write the frames.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.umem.trust()
    }

    /// Returns the memory, for a device driver to register; `None` if the data comes from the
    /// allocator.
    ///
    /// # Safety
    /// Nobody writes a frame by it, nor lets a device write one, but frames that a
    /// [`Local`] has [lent](Local::lend) and that have not come back.
    #[must_use]
    pub unsafe fn region(&self) -> Option<&Arc<Region>> {
        self.memory.as_ref()
    }

    /// Returns a value that a driver attaches to the pool for as long as the driver's queues exist:
    /// `find` chooses one of the existing values, or creates one.
    ///
    /// # Errors
    /// Of `find`.
    pub fn attached<T: Send + Sync + 'static>(
        &self,
        find: impl FnOnce(Vec<Arc<T>>) -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        self.umem().attached(find)
    }

    /// Returns the memory, for a peer to map: the peer can write an exported pool, and can only
    /// read a private one. Returns `None` if the packets' data comes from the allocator.
    ///
    /// Private memory is lent out as `&[u8]`, and so its file is sealed against writing.
    #[must_use]
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref().map(|memory| memory.as_fd())
    }
}

impl Clone for Pool {
    fn clone(&self) -> Self {
        self.umem.enter();
        Pool { umem: self.umem, memory: self.memory.clone() }
    }
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.umem, other.umem)
    }
}

impl Eq for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        self.umem.leave();
    }
}

/// A description of a [`Pool`], from which it is built.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    shape: Shape,
}

impl PoolBuilder {
    /// Sets the number of ordinary frames, 1 to 2²⁰.
    #[must_use]
    pub fn frames(mut self, frames: u32) -> Self {
        self.shape.frames = frames;
        self
    }

    /// Sets the size of a frame in bytes: a power of two, 512 to 65536, or 256 if the headroom is
    /// smaller than that.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.shape.frame_bytes = bytes;
        self
    }

    /// Sets the bytes left free before the data of a new packet.
    #[must_use]
    pub fn headroom(mut self, bytes: u32) -> Self {
        self.shape.headroom_bytes = bytes;
        self
    }

    /// Adds frames of a second class, for packets that are too long for an ordinary frame: `bytes`
    /// is a power of two, as 16384 for frames of 9000 bytes. The default is none, as with 0
    /// `frames`.
    #[must_use]
    pub fn jumbo(mut self, frames: u32, bytes: u32) -> Self {
        let bytes = if frames == 0 { 0 } else { bytes };
        (self.shape.jumbo_frames, self.shape.jumbo_bytes) = (frames, bytes);
        self
    }

    /// Sets the source of packets' bytes.
    #[must_use]
    pub fn data(mut self, data: Data) -> Self {
        self.shape.data = data;
        self
    }

    /// Sets the time at which the meta line is initialised.
    #[must_use]
    pub fn init(mut self, init: Init) -> Self {
        self.shape.init = init;
        self
    }

    /// Sets the destination of a frame that is freed on another core.
    #[must_use]
    pub fn return_to(mut self, return_to: Return) -> Self {
        self.shape.return_to = return_to;
        self
    }

    /// Sets the processes that will be able to write the frames.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.shape.trust = trust;
        self
    }

    /// Sets whether the pool uses 2 MiB pages; the default tries to get them. They are allocated
    /// with the pool, on the NUMA node of the calling thread.
    ///
    /// Of [`Trust::Exported`] memory the frames get them only if they are required: a peer that may
    /// write huge pages may also punch holes into them, which kills this process by SIGBUS.
    #[must_use]
    pub fn huge_pages(mut self, huge: Huge) -> Self {
        self.shape.huge = huge;
        self
    }

    /// Sets the name that /proc/PID/maps shows.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.shape.name = name.into();
        self
    }

    /// Returns the data bytes that a new packet of one frame will be able to hold.
    #[must_use]
    pub fn data_room(&self) -> usize {
        self.shape.frame_bytes.saturating_sub(self.shape.headroom_bytes).max(1) as usize
    }

    /// Builds the pool, and maps its memory.
    ///
    /// # Errors
    /// `E-POOL-SIZE` for a shape that cannot be, `E-MEMORY` if the memory cannot be mapped,
    /// `E-UMEM-IDS` if this process has 31 pools; one counts until its memory is unmapped (see
    /// [`Pool`]).
    pub fn build(self) -> Result<Pool> {
        let umem = Umem::create(&self.shape)?;
        Ok(Pool { umem, memory: umem.region() })
    }
}
