//! Verdicts of stages on packets, and counts of packets that a queue moved.

/// The output that a packet is to be sent to, if a stage has set one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict(u8);

impl Verdict {
    /// The verdict of a packet for which no stage has set one.
    pub const NONE: Verdict = Verdict(u8::MAX);
    /// Greatest number of outputs of a path.
    pub const OUTPUTS_MAX: usize = 128;

    /// Removes all verdicts.
    #[inline]
    pub(crate) fn forget(verdicts: &mut [Verdict]) {
        // Use inline vector stores: for one batch, a call of memset costs more than the stores.
        let (groups, rest) = verdicts.as_chunks_mut::<16>();
        groups.iter_mut().for_each(|group| *group = [Verdict::NONE; 16]);
        rest.iter_mut().for_each(|verdict| *verdict = Verdict::NONE);
    }

    /// Returns the verdict for output `index`, below 128; for larger indices, [`Verdict::NONE`].
    #[must_use]
    pub const fn to(index: usize) -> Verdict {
        if index < Self::OUTPUTS_MAX { Verdict(index as u8) } else { Verdict::NONE }
    }

    /// Returns the output's index, if there is one.
    #[must_use]
    pub const fn output(self) -> Option<usize> {
        if (self.0 as usize) < Self::OUTPUTS_MAX { Some(self.0 as usize) } else { None }
    }
}

/// A number of packets, and the bytes in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// The number of packets.
    pub packets: usize,
    /// The packets' bytes, from the destination MAC, without FCS.
    pub bytes: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, more: Moved) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}
