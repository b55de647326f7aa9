//! The events that a caller of a queue can sleep for.

/// Events that wake a sleeping caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Packets to receive.
    Frames,
    /// Room to send.
    Room,
    /// Packets to receive, or room to send.
    Both,
}

impl Want {
    /// Returns true if packets to receive are wanted.
    #[must_use]
    pub fn frames(self) -> bool {
        self != Want::Room
    }

    /// Returns true if room to send is wanted.
    #[must_use]
    pub fn room(self) -> bool {
        self != Want::Frames
    }
}
