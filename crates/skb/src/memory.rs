//! The mappings of a umem.

use std::sync::Arc;

use linerate_sys::Result;
use linerate_sys::mem::{Others, Region};

use crate::block::Block;
use crate::lanes::Cold;
use crate::meta::Meta;
use crate::policy::{Data, Trust};
use crate::shape::Shape;

/// The mappings of a umem: the frames, for devices and peers to share, and what is kept apart.
pub(crate) struct Memory {
    pub frames: Option<Arc<Region>>,
    /// Hot lines, cold lines, and where each packet's block is.
    pub apart: [Option<Region>; 3],
}

impl Memory {
    pub fn map(shape: &Shape) -> Result<Memory> {
        let places = shape.places() as usize;
        let region = |what: &str, bytes: usize| {
            Region::new(&format!("{}{what}", shape.name), bytes, shape.huge)
        };
        let general = shape.data == Data::General;
        // Private memory is lent out as `&[u8]`: nobody who gets its descriptor may write it.
        let others = match shape.trust {
            Trust::Exported => Others::Write,
            Trust::Private => Others::Read,
        };
        let bytes = places * shape.frame_bytes as usize;
        let frames = match general {
            true => None,
            false => Some(Arc::new(Region::for_others(&shape.name, bytes, shape.huge, others)?)),
        };
        let meta = region("-meta", places * size_of::<Meta>())?;
        let cold = region("-lanes", places * size_of::<Cold>())?;
        let blocks = match general {
            true => Some(region("-blocks", places * size_of::<Block>())?),
            false => None,
        };
        Ok(Memory { frames, apart: [Some(meta), Some(cold), blocks] })
    }

    /// Bytes mapped.
    pub fn bytes(&self) -> usize {
        let frames = self.frames.as_ref().map_or(0, |region| region.len());
        frames + self.apart.iter().flatten().map(Region::len).sum::<usize>()
    }
}
