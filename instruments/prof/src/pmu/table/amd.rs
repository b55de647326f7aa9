//! AMD's events, from family 17h on.
//!
//! Each is a bit of a unit mask or several; bits of one event add up, as they do in the sums that
//! the lists themselves give (of 43h, 14h is 04h and 10h).
//!
//! Source: Processor Programming References of the families, as in Linux
//! tools/perf/pmu-events/arch/x86/amdzen1 to amdzen5; what was measured, on a guest with two CPUs
//! of family 1Ah, on one core complex and across two.

use super::{CYCLES, Entry, INSTRUCTIONS, Standing, raw};
use crate::pmu::Quantity::{self, *};

const NO_EVICTIONS: &str = "AMD documents no event for evictions from an L2, and the one that \
     counts them on family 1Ah was not tried on this one";

pub(super) fn family_17h_zen1(quantity: Quantity) -> Result<Entry, &'static str> {
    match quantity {
        L2LinesIn => Ok(L2_MISSES),
        L1dMisses => Ok(L1D_REQUESTS),
        L2LinesOut => Err(NO_EVICTIONS),
        _ => Err("event 43h, fills by source, is documented from model 30h on"),
    }
}

pub(super) fn family_17h_zen2(quantity: Quantity) -> Result<Entry, &'static str> {
    match quantity {
        L2LinesIn => Ok(L2_MISSES),
        L1dMisses => Ok(L1D_REQUESTS),
        LinesFromOtherCore => Ok(raw(
            (LinesFromOtherCore, code(0x43, 0x12)),
            "demand fills of the first data cache from a cache outside the core",
            Standing::Inferred,
            "ls_refills_from_sys.ls_mabresp_lcl_cache 02 and .ls_mabresp_rmt_cache 10, PMCx043, \
             each documented, counted as one",
            "also in it: hits in the shared L3; not in it: lines that a prefetcher fetched",
        )),
        LlcMisses => Ok(raw(
            (LlcMisses, code(0x43, 0x48)),
            "demand fills of the first data cache from memory or I/O",
            Standing::Inferred,
            "ls_refills_from_sys.ls_mabresp_lcl_dram 08 and .ls_mabresp_rmt_dram 40, PMCx043, each \
             documented, counted as one",
            "not in it: lines that a prefetcher fetched, and code",
        )),
        _ => Err(NO_EVICTIONS),
    }
}

pub(super) fn family_19h(quantity: Quantity) -> Result<Entry, &'static str> {
    match quantity {
        L2LinesIn => Ok(L2_MISSES),
        L1dMisses => Ok(L1D_FILLS),
        LinesFromOtherCore => Ok(raw(
            (LinesFromOtherCore, code(0x43, 0x16)),
            "demand fills of the first data cache from a cache outside the core",
            Standing::Inferred,
            "ls_dmnd_fills_from_sys: 02 this CCX, 04 another CCX, 10 another node, PMCx043, each \
             documented, counted as one",
            "also in it: hits in the shared L3; not in it: lines that a prefetcher fetched",
        )),
        LlcMisses => Ok(Entry {
            standing: Standing::Inferred,
            source: "ls_dmnd_fills_from_sys: 08 this node, 40 another node, PMCx043, each \
                     documented, counted as one",
            ..FILLS_FROM_MEMORY
        }),
        _ => Err(NO_EVICTIONS),
    }
}

pub(super) fn family_1ah(quantity: Quantity) -> Result<Entry, &'static str> {
    Ok(match quantity {
        L2LinesIn => raw(
            (L2LinesIn, code(0x64, 0x08)),
            "requests of the first data cache that missed in L2, each of which brings a line in",
            Standing::Measured,
            "l2_cache_req_stat.ls_rd_blk_c, PMCx064. Measured: 1.01 for each hand-over of a \
             bounced line, 0.88 for each line of a walk over 8 MiB",
            "not in it: lines that the L2's prefetcher fetched, and code; l2_fill_rsp_src.all \
             (r10000de65, documented, untried) counts fills of every kind",
        ),
        L2LinesOut => raw(
            (L2LinesOut, code(0x66, 0xff)),
            "lines evicted from the L2 to make room",
            Standing::Measured,
            "not documented. Measured: 1.07 to 1.11 for each line of a walk over 8 MiB, 0.003 for \
             each hand-over of a bounced line, 0.002 for a private one",
            "not in it: lines that another core takes; it is blind to a bounce",
        ),
        LinesFromOtherCore => raw(
            (LinesFromOtherCore, code(0x43, 0x16)),
            "demand fills of the first data cache from a cache outside the core",
            Standing::Measured,
            "ls_dmnd_fills_from_sys: 02 this CCX, 04 another CCX, 10 another node, PMCx043. \
             Measured: about 1 for each hand-over of a bounced line, on one CCX and across two",
            "also in it: hits in the shared L3 (0.80 for each line of a walk over 8 MiB, by mask \
             02); r085d, undocumented, counts 1.000 and 0.003 there",
        ),
        L1dMisses => L1D_FILLS,
        LlcMisses => FILLS_FROM_MEMORY,
        Cycles => CYCLES,
        Instructions => INSTRUCTIONS,
    })
}

const L2_MISSES: Entry = raw(
    (L2LinesIn, code(0x64, 0x09)),
    "requests of the first caches that missed in L2, each of which brings a line in",
    Standing::Inferred,
    "l2_cache_req_stat.ic_dc_miss_in_l2, PMCx064, documented as misses",
    "not in it: lines that the L2's prefetcher fetched",
);

const L1D_REQUESTS: Entry = raw(
    (L1dMisses, code(0x60, 0xc8)),
    "requests of the first data cache to the L2",
    Standing::Documented,
    "l2_cache_accesses_from_dc_misses, PMCx060, of the lists of Zen and Zen 2: 80 reads, 40 \
     stores, 08 changes to writable",
    "also in it: its prefetcher's requests; not in it: shared reads (mask 20)",
);

const L1D_FILLS: Entry = raw(
    (L1dMisses, code(0x44, 0xff)),
    "lines brought into the first data cache, from wherever",
    Standing::Documented,
    "ls_any_fills_from_sys.all, PMCx044",
    "also in it: its prefetcher's lines; not in it: accesses that wait for a line under way",
);

const FILLS_FROM_MEMORY: Entry = raw(
    (LlcMisses, code(0x43, 0x48)),
    "demand fills of the first data cache from memory or I/O",
    Standing::Documented,
    "ls_dmnd_fills_from_sys.dram_io_all, PMCx043",
    "not in it: lines that a prefetcher fetched, and code. The L3's own counters belong to a \
     whole CCX, not to a thread",
);

/// A code of AMD's: bits 8 to 11 of the event are at 32 to 35 of `config`.
const fn code(event: u16, umask: u8) -> u64 {
    ((event as u64 & 0xf00) << 24) | ((umask as u64) << 8) | (event as u64 & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_high_bits_of_an_amd_event_are_where_the_kernel_wants_them() {
        assert_eq!(code(0x165, 0xde), 0x1_0000_de65);
        assert_eq!(code(0x43, 0x16), 0x1643);
    }
}
