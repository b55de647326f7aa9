//! What a stage says of packets, and what a queue says it did with them.

/// What is to become of a packet: which output it goes to, if any stage has said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict(u8);

impl Verdict {
    /// No stage has spoken yet.
    pub const NONE: Verdict = Verdict(u8::MAX);
    /// Outputs that can be told apart.
    pub const OUTPUTS_MAX: usize = 128;

    /// Takes all of them back.
    #[inline]
    pub(crate) fn forget(verdicts: &mut [Verdict]) {
        // As vectors in line: for a batch, a call of memset costs more than what it does.
        let (groups, rest) = verdicts.as_chunks_mut::<16>();
        groups.iter_mut().for_each(|group| *group = [Verdict::NONE; 16]);
        rest.iter_mut().for_each(|verdict| *verdict = Verdict::NONE);
    }

    /// To output `index`, below 128; others give [`Verdict::NONE`].
    #[must_use]
    pub const fn to(index: usize) -> Verdict {
        if index < Self::OUTPUTS_MAX { Verdict(index as u8) } else { Verdict::NONE }
    }

    /// The output's index, if there is one.
    #[must_use]
    pub const fn output(self) -> Option<usize> {
        if (self.0 as usize) < Self::OUTPUTS_MAX { Some(self.0 as usize) } else { None }
    }
}

/// Packets that went somewhere, and the bytes in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// How many.
    pub packets: usize,
    /// Their bytes, from the destination MAC, without FCS.
    pub bytes: u64,
}

impl std::ops::AddAssign for Moved {
    fn add_assign(&mut self, more: Moved) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}
