//! A pool of frames: what a program makes first, and what ports allocate from.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use linerate_sys::mem::{Huge, Pages, Region};
use linerate_sys::{Code, Error, Result};

use crate::chain::FRAMES_MAX;
use crate::ledger::Ledger;
use crate::local::Local;
use crate::umem::{Shape, Trust, Umem};

/// Room before the data of a new packet: enough for tunnel headers, and what AF_XDP asks for.
const HEADROOM_BYTES: u32 = 256;
const FRAME_BYTES: u32 = 2048;
const FRAMES: u32 = 4096;
/// Post 000: "increasing the sysctl_hot_list_len from 128 to 1024 by default".
const HOT_LIST_LEN: usize = 1024;

/// Frames of one size, in one memory region. Cloning it makes another handle on the same pool.
///
/// The memory stays mapped until the last `Pool`, [`Local`] and [`Skb`](crate::Skb) are gone.
#[derive(Debug)]
pub struct Pool {
    umem: &'static Umem,
    memory: Arc<Region>,
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
    /// Describes a pool: 4096 frames of 2048 bytes unless told otherwise.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            shape: Shape {
                name: "linerate".into(),
                frames: FRAMES,
                frame_bytes: FRAME_BYTES,
                headroom_bytes: HEADROOM_BYTES,
                trust: Trust::Private,
                huge: Huge::Try,
            },
        }
    }

    pub(crate) fn umem(&self) -> &'static Umem {
        self.umem
    }

    /// Access for one queue, worker or task, with a hot list of 1024 frames, or of a quarter of the
    /// pool if that is less.
    #[must_use]
    pub fn local(&self) -> Local {
        self.local_with(HOT_LIST_LEN.min(self.umem.frames() as usize / 4))
    }

    /// Access with a hot list of the given length; 0 = none.
    #[must_use]
    pub fn local_with(&self, hot_list_len: usize) -> Local {
        Local::new(self.clone(), hot_list_len)
    }

    /// What happened to every packet so far, and where every frame is.
    ///
    /// Cost: the books' and the depot's locks, twice or more; for reports, not for the packet path.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.umem.books.ledger(self.umem)
    }

    /// Frames in the pool.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.umem.frames() as usize
    }

    /// Bytes of a frame, headroom included.
    #[must_use]
    pub fn frame_size(&self) -> usize {
        self.umem.frame_bytes() as usize
    }

    /// Headroom of a new packet, in bytes.
    #[must_use]
    pub fn headroom(&self) -> usize {
        self.umem.headroom() as usize
    }

    /// Data bytes that a new packet of one frame can hold.
    #[must_use]
    pub fn data_room(&self) -> usize {
        self.frame_size() - self.headroom()
    }

    /// Bytes of the longest packet that a chain of its frames can hold.
    #[must_use]
    pub fn packet_max_bytes(&self) -> usize {
        (FRAMES_MAX * self.data_room()).min(self.frames() * self.data_room())
    }

    /// The pages obtained.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.memory.pages()
    }

    /// Who else can write the frames.
    #[must_use]
    pub fn trust(&self) -> Trust {
        self.umem.trust()
    }

    /// The memory, for a peer to map; `None` unless the pool is exported.
    ///
    /// Private memory is lent out as `&[u8]`, and a descriptor of it would let safe code write it.
    #[must_use]
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        (self.trust() == Trust::Exported).then(|| self.memory.as_fd())
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

impl Drop for Pool {
    fn drop(&mut self) {
        self.umem.leave();
    }
}

/// Describes a [`Pool`].
#[derive(Debug, Clone)]
pub struct Builder {
    shape: Shape,
}

impl Builder {
    /// Frames, 1 to 2²⁶.
    #[must_use]
    pub fn frames(mut self, frames: u32) -> Self {
        self.shape.frames = frames;
        self
    }

    /// Bytes of a frame: a power of two from 256 to 65536.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.shape.frame_bytes = bytes;
        self
    }

    /// Bytes left free before the data of a new packet.
    #[must_use]
    pub fn headroom(mut self, bytes: u32) -> Self {
        self.shape.headroom_bytes = bytes;
        self
    }

    /// Who else will be able to write the frames.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.shape.trust = trust;
        self
    }

    /// Whether 2 MiB pages are wanted; the default tries.
    #[must_use]
    pub fn huge_pages(mut self, huge: Huge) -> Self {
        self.shape.huge = huge;
        self
    }

    /// The name that /proc/PID/maps shows.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.shape.name = name.into();
        self
    }

    /// Data bytes that a new packet of one frame will be able to hold.
    #[must_use]
    pub fn data_room(&self) -> usize {
        self.shape.frame_bytes.saturating_sub(self.shape.headroom_bytes).max(1) as usize
    }

    /// Maps the memory.
    ///
    /// # Errors
    /// `E-POOL-SIZE` for a shape that cannot be, `E-MEMORY` if the memory cannot be had,
    /// `E-UMEM-IDS` if 31 pools are alive in this process.
    pub fn build(self) -> Result<Pool> {
        let umem = Umem::create(&self.shape)?;
        // The umem is ours alone and in use, so it has its memory.
        let memory = umem
            .region()
            .ok_or_else(|| Error::new(Code::Memory, "cannot make a pool", "its memory is gone"))?;
        Ok(Pool { umem, memory })
    }
}
