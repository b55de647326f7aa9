//! The mappings of a umem.

use std::sync::Arc;

use linerate_sys::Result;
use linerate_sys::mem::{Huge, Others, Region};

use crate::block::Block;
use crate::lanes::Cold;
use crate::meta::Meta;
use crate::policy::{Data, Trust};
use crate::shape::Shape;

/// The mappings of a umem: the frames, for devices and peers to share, and the tables that are not
/// shared.
pub(crate) struct Memory {
    pub frames: Option<Arc<Region>>,
    /// Hot lines, cold lines, and the table of packets' blocks.
    pub apart: [Option<Region>; 3],
}

impl Memory {
    pub fn map(shape: &Shape) -> Result<Memory> {
        let places = shape.places() as usize;
        let region = |what: &str, bytes: usize| {
            Region::new(&format!("{}{what}", shape.name), bytes, shape.huge)
        };
        let general = shape.data == Data::General;
        let (others, huge) = given_away(shape.trust, shape.huge);
        let bytes = places * shape.frame_bytes as usize;
        let frames = match general {
            true => None,
            false => Some(Arc::new(Region::for_others(&shape.name, bytes, huge, others)?)),
        };
        let meta = region("-meta", places * size_of::<Meta>())?;
        let cold = region("-lanes", places * size_of::<Cold>())?;
        let blocks = match general {
            true => Some(region("-blocks", places * size_of::<Block>())?),
            false => None,
        };
        Ok(Memory { frames, apart: [Some(meta), Some(cold), blocks] })
    }

    /// Returns the length of the mapping in bytes.
    pub fn bytes(&self) -> usize {
        let frames = self.frames.as_ref().map_or(0, |region| region.len());
        frames + self.apart.iter().flatten().map(Region::len).sum::<usize>()
    }
}

/// Returns the access of other processes to the frames, and the page size that is tried for them.
fn given_away(trust: Trust, huge: Huge) -> (Others, Huge) {
    match (trust, huge) {
        // The program gets private memory as `&[u8]`, so a process that gets its descriptor may not
        // write it.
        (Trust::Private, huge) => (Others::Read, huge),
        // A process that may write huge pages can punch holes into them, and the next access here
        // gets a SIGBUS. An exported pool therefore gets huge pages only if it requires them.
        (Trust::Exported, Huge::Try) => (Others::Write, Huge::Never),
        (Trust::Exported, huge) => (Others::Write, huge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_a_peer_may_write_get_huge_pages_only_if_required() {
        let huge = |trust, huge| given_away(trust, huge).1;
        assert_eq!(huge(Trust::Exported, Huge::Try), Huge::Never);
        assert_eq!(huge(Trust::Exported, Huge::Require), Huge::Require);
        assert_eq!(huge(Trust::Private, Huge::Try), Huge::Try);
    }
}
