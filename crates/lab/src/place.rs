//! How far two CPUs are from each other, which a host may change at any moment.

use crate::Result;
use crate::record::PlacementRecord;

/// Ticks of a cache line's round trip between two CPUs, the median of many.
///
/// # Errors
/// `E-CPU` if one of them cannot be had.
pub fn round_trip_ticks(_one: usize, _other: usize) -> Result<f64> {
    Ok(0.0)
}

/// What two readings mean; `None` if the CPUs moved between them.
#[must_use]
pub fn placement(_before_ticks: f64, _after_ticks: f64) -> Option<PlacementRecord> {
    None
}
