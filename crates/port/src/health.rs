//! The state of a queue, with the error of a device in trouble, and without it.

use linerate_skb::{Error, Result};

/// State of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Health {
    /// The device works.
    #[default]
    Up,
    /// A source has delivered everything: end of file, or count reached.
    Finished,
    /// The device is down, but may recover.
    Down(Error),
    /// The device works, but the pool had no frame for waiting packets: the error says how many
    /// packets the program holds.
    Starved(Error),
    /// The device is gone or has failed for good.
    Failed(Error),
}

/// A [`Health`] without its error, ordered from worst to best. The state of a port is the worst of
/// its queues' states: it has ended only if all of them have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum HealthKind {
    /// The device is gone or has failed for good.
    Failed,
    /// The device is down, but may recover.
    Down,
    /// The device works, but the pool had no frame for waiting packets.
    Starved,
    /// The device works.
    Up,
    /// A source has delivered everything.
    Finished,
}

impl HealthKind {
    /// Returns true if no packet will ever be received again.
    #[must_use]
    pub fn ended(self) -> bool {
        matches!(self, HealthKind::Failed | HealthKind::Finished)
    }
}

impl Health {
    /// Returns the state without its error.
    #[must_use]
    pub fn kind(&self) -> HealthKind {
        match self {
            Health::Failed(_) => HealthKind::Failed,
            Health::Down(_) => HealthKind::Down,
            Health::Starved(_) => HealthKind::Starved,
            Health::Up => HealthKind::Up,
            Health::Finished => HealthKind::Finished,
        }
    }

    /// Returns the worst health among several queues; finished only if all of them are.
    pub(crate) fn worst(all: impl Iterator<Item = Health>) -> Health {
        all.min_by_key(Health::kind).unwrap_or_default()
    }

    /// Returns true if no packet will ever be received again.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.kind().ended()
    }

    /// Returns an error, for `?`, if something is wrong with the device.
    ///
    /// # Errors
    /// Returns the error of a device that is down or has failed, or of one that works and had no
    /// frame for waiting packets.
    pub fn check(self) -> Result<()> {
        match self {
            Health::Up | Health::Finished => Ok(()),
            Health::Down(error) | Health::Starved(error) | Health::Failed(error) => Err(error),
        }
    }
}
