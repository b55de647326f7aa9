//! What there is instead of an event that cannot be counted here.

use std::fmt;

use serde::Serialize;

use super::Quantity;

/// Another instrument for the same question. Its figure is printed under its own name, never under
/// the counter's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// For cycles: CPU time, in ticks of the time stamp counter. It takes no part in the core's
    /// changes of clock.
    CpuTimeInTscTicks,
    /// For instructions: those that callgrind counts. User space only, and exact.
    CallgrindInstructions,
    /// For lines taken from another core: the pool's matrix of frees, core × core. It sees the
    /// frames' hand-overs, not every line.
    PoolMatrix,
    /// For lines into and out of an L2: the cache model. A model's figure, and called that.
    CacheModel,
    /// Nothing; the figure is `n/a`.
    Nothing,
}

impl Fallback {
    /// What there is instead of a counter of `quantity`.
    #[must_use]
    pub const fn of(quantity: Quantity) -> Fallback {
        match quantity {
            Quantity::Cycles => Fallback::CpuTimeInTscTicks,
            Quantity::Instructions => Fallback::CallgrindInstructions,
            Quantity::LinesFromOtherCore => Fallback::PoolMatrix,
            Quantity::L2LinesIn | Quantity::L2LinesOut => Fallback::CacheModel,
            Quantity::L1dMisses | Quantity::LlcMisses => Fallback::Nothing,
        }
    }

    /// As printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Fallback::CpuTimeInTscTicks => "CPU time in ticks of the TSC",
            Fallback::CallgrindInstructions => "callgrind's count of instructions, user space only",
            Fallback::PoolMatrix => "the pool's core x core matrix of frees",
            Fallback::CacheModel => "the cache model, which is not a measurement",
            Fallback::Nothing => "none",
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
