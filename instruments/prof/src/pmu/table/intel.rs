//! Intel's events, of its server cores.
//!
//! Source: github.com/intel/perfmon: SKX 1.37, CLX 1.25, ICX 1.30, SPR 1.39, EMR 1.24, GNR 1.20.

use super::{CYCLES, Entry, INSTRUCTIONS, Standing, raw};
use crate::pmu::Family;
use crate::pmu::Quantity::{self, *};

pub(super) fn skylake(quantity: Quantity) -> Result<Entry, &'static str> {
    Ok(match quantity {
        L2LinesIn => Entry { config: code(0xf1, 0x1f), ..L2_IN },
        L2LinesOut => Entry { config: code(0xf2, 0x03), ..L2_OUT },
        LinesFromOtherCore => Entry {
            meaning: "retired loads whose line came modified out of another core's cache",
            source: "MEM_LOAD_L3_HIT_RETIRED.XSNP_HITM",
            caveat: "not in it: lines that the other core had not written to, stores that took a \
                     line without a load before them, lines that a prefetcher fetched, lines of \
                     another socket",
            ..FROM_OTHER_CORE
        },
        other => any(other),
    })
}

pub(super) fn ice_lake(quantity: Quantity) -> Result<Entry, &'static str> {
    Ok(match quantity {
        L2LinesIn => Entry { config: code(0xf1, 0x1f), ..L2_IN },
        L2LinesOut => Entry { config: code(0xf2, 0x03), ..L2_OUT },
        other => any(other),
    })
}

pub(super) fn sapphire_rapids(quantity: Quantity) -> Result<Entry, &'static str> {
    Ok(any(quantity))
}

const fn any(quantity: Quantity) -> Entry {
    match quantity {
        Cycles => CYCLES,
        Instructions => INSTRUCTIONS,
        L2LinesIn => L2_IN,
        L2LinesOut => L2_OUT,
        LinesFromOtherCore => FROM_OTHER_CORE,
        L1dMisses => raw(
            (L1dMisses, code(0x51, 0x01)),
            "lines replaced in the first data cache",
            Standing::Documented,
            "L1D.REPLACEMENT",
            "also in it: lines that its prefetchers fetched; not in it: misses that found a free \
             place",
        ),
        LlcMisses => raw(
            (LlcMisses, code(0x2e, 0x41)),
            "requests of the core that missed in L3",
            Standing::Documented,
            "LONGEST_LAT_CACHE.MISS",
            "also in it: prefetches into L1 and L2; not in it: those into L3",
        ),
    }
}

const L2_IN: Entry = raw(
    (L2LinesIn, code(0x25, 0x1f)),
    "lines that filled the L2",
    Standing::Documented,
    "L2_LINES_IN.ALL",
    "also in it: prefetched lines",
);

/// Of the lines that leave the L2, those that go somewhere; for each family its own code.
pub(super) const fn moved_out(family: Family) -> Option<Entry> {
    match family {
        Family::IntelSkylakeServer | Family::IntelIceLakeServer => {
            Some(Entry { config: code(0xf2, 0x02), ..L2_OUT_MOVED })
        }
        Family::IntelSapphireRapids => Some(L2_OUT_MOVED),
        _ => None,
    }
}

const L2_OUT: Entry = raw(
    (L2LinesOut, code(0x26, 0x03)),
    "lines dropped from the L2 or handed on by it",
    Standing::Inferred,
    "L2_LINES_OUT.SILENT 01 and .NON_SILENT 02, each documented, counted as one",
    "also in it: silent drops, which put nothing on a bus, for both threads of the core; not in \
     it: lines that another core takes",
);

const L2_OUT_MOVED: Entry = raw(
    (L2LinesOut, code(0x26, 0x02)),
    "lines that the L2 handed on to what lies behind it",
    Standing::Documented,
    "L2_LINES_OUT.NON_SILENT",
    "also in it: clean lines, which the L3 may take or not",
);

const FROM_OTHER_CORE: Entry = raw(
    (LinesFromOtherCore, code(0xd2, 0x04)),
    "retired loads whose line came out of another core's cache",
    Standing::Documented,
    "MEM_LOAD_L3_HIT_RETIRED.XSNP_FWD",
    "in it: modified lines, and clean ones that the L3 did not have; not in it: stores that took a line without a load before them, lines that a prefetcher \
     fetched, lines of another socket",
);

/// A code of Intel's.
const fn code(event: u8, umask: u8) -> u64 {
    ((umask as u64) << 8) | event as u64
}
