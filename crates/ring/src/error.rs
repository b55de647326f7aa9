//! Errors of creating a ring; the data path has no errors.

use std::error::Error;
use std::fmt;

/// The reason why a ring could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RingError {
    /// The length is not a power of two in 1..=2^31.
    Length {
        /// The requested length.
        len_descs: u32,
    },
    /// The system has no memory for this many entries.
    Memory {
        /// The requested length.
        len_descs: u32,
    },
    /// A mapped ring's index or slot address is null or not aligned for its type.
    Address,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { len_descs } => {
                write!(f, "cannot make a ring of {len_descs} entries: ")?;
                f.write_str("the number is not a power of two (fix: use one from 1 to 2147483648)")
            }
            Self::Memory { len_descs } => {
                write!(f, "cannot make a ring of {len_descs} entries: ")?;
                f.write_str("there is no memory for them (fix: make the ring shorter)")
            }
            Self::Address => f.write_str(
                "cannot use a mapped ring: the address of an index or of the slots is null or not \
                 aligned (fix: pass addresses in the mapping that are aligned for their types)",
            ),
        }
    }
}

impl Error for RingError {}

/// Returns the length, or an error for a length that the index arithmetic does not support.
///
/// Above 2^31 a full ring and a corrupt index could not be told apart in 32 bits; `u32` holds no
/// power of two above that.
pub(crate) fn checked_len(len_descs: u32) -> Result<u32, RingError> {
    if len_descs.is_power_of_two() { Ok(len_descs) } else { Err(RingError::Length { len_descs }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_failed_and_why_and_what_to_do() {
        let len_descs = 6;
        for (error, why) in [
            (RingError::Length { len_descs }, "6 entries: the number is not a power of two"),
            (RingError::Memory { len_descs }, "6 entries: there is no memory"),
            (RingError::Address, "null or not aligned"),
        ] {
            let message = error.to_string();
            assert!(message.starts_with("cannot ") && message.contains(why), "{message}");
            assert!(message.contains(" (fix: "), "{message}");
        }
    }
}
