//! Arm's events: the same codes on each Neoverse, since the architecture gives them out.
//!
//! Source: Linux tools/perf/pmu-events/arch/arm64/arm/neoverse-{n1,v1,n2-v2} for which there are,
//! arch/arm64/common-and-microarch.json and the recommended events of ARMv8 for their codes.

use super::{CYCLES, Entry, INSTRUCTIONS, Standing, raw};
use crate::pmu::Family;
use crate::pmu::Quantity::{self, *};

pub(super) fn neoverse(family: Family, quantity: Quantity) -> Result<Entry, &'static str> {
    Ok(match quantity {
        Cycles => CYCLES,
        Instructions => INSTRUCTIONS,
        L2LinesIn => raw(
            (L2LinesIn, 0x17),
            "lines that filled the L2",
            Standing::Documented,
            "L2D_CACHE_REFILL",
            "",
        ),
        L2LinesOut => raw(
            (L2LinesOut, 0x56),
            "lines evicted from the L2 for another line",
            Standing::Documented,
            "L2D_CACHE_WB_VICTIM",
            "not in it: lines that another core takes",
        ),
        L1dMisses => raw(
            (L1dMisses, 0x03),
            "loads and stores that missed in the first data cache, once for each line",
            Standing::Documented,
            "L1D_CACHE_REFILL",
            "also in it: instructions that did not retire; not in it: lines that a prefetcher \
             fetched",
        ),
        LlcMisses => raw(
            (LlcMisses, 0x37),
            "reads that missed in the last cache",
            // The list of N1 does not have it, the architecture does.
            if matches!(family, Family::NeoverseN1) {
                Standing::Inferred
            } else {
                Standing::Documented
            },
            "LL_CACHE_MISS_RD",
            "not in it: writes; which cache is the last one is the firmware's choice \
             (CPUECTLR.EXTLLC)",
        ),
        LinesFromOtherCore => {
            return Err(
                "its events tell clusters and chips apart as the source of a line, not cores",
            );
        }
    })
}
