//! The events that answer a [`Quantity`] on a CPU: code, standing and caveat of each.
//!
//! Cycles and instructions are the kernel's generic events on every CPU: its driver knows the best
//! counter for them (Intel's fixed ones cost none of the general ones). All else is the CPU's own
//! code, and the table has only codes that were tried against known answers: those of AMD family
//! 1Ah. `perf list` names the events of every other CPU.
//!
//! Source: Processor Programming Reference of family 1Ah, as in Linux
//! tools/perf/pmu-events/arch/x86/amdzen5; what was measured, on a guest with two CPUs, on one core
//! complex and across two.

use serde::Serialize;

use super::Quantity::{self, *};
use super::event::{Event, TYPE_CACHE, TYPE_HARDWARE, TYPE_RAW, raw_code};
use super::family::Family;

/// Evidence that an event counts what its meaning says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its vendor says so.
    Documented,
    /// It follows from what the vendor says, of parts of it or of a neighbour; nobody tried.
    Inferred,
    /// We tried it against known answers.
    Measured,
}

impl Standing {
    /// As printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Standing::Documented => "documented",
            Standing::Inferred => "inferred",
            Standing::Measured => "measured",
        }
    }
}

/// An event of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Quantity that it stands for.
    pub quantity: Quantity,
    /// `type` of `perf_event_attr`.
    pub type_: u32,
    /// `config` of `perf_event_attr`.
    pub config: u64,
    /// Meaning of the event, in a sentence.
    pub meaning: &'static str,
    /// Evidence for the meaning.
    pub standing: Standing,
    /// The vendor's name for it, or what was measured.
    pub source: &'static str,
    /// Limits of the event: what it misses or counts by surprise; empty if none is known.
    pub caveat: &'static str,
}

impl Entry {
    /// The event, to count it or to sample by it.
    #[must_use]
    pub fn event(&self) -> Event {
        Event {
            name: self.quantity.as_str().into(),
            type_: self.type_,
            config: self.config,
            raw: (self.type_ == TYPE_RAW).then(|| raw_code(self.config)),
            quantity: Some(self.quantity),
        }
    }
}

/// Returns the event that counts `quantity` on `family`, or why there is none.
///
/// # Errors
/// The reason, in a sentence.
pub fn entry(family: Family, quantity: Quantity) -> Result<Entry, &'static str> {
    match (quantity, family) {
        (Cycles, _) => Ok(CYCLES),
        (Instructions, _) => Ok(INSTRUCTIONS),
        (_, Family::Amd1Ah) => Ok(amd_1ah(quantity)),
        (_, Family::Unknown) => generic(quantity),
    }
}

const fn raw(
    (quantity, config): (Quantity, u64),
    meaning: &'static str,
    standing: Standing,
    source: &'static str,
    caveat: &'static str,
) -> Entry {
    Entry { quantity, type_: TYPE_RAW, config, meaning, standing, source, caveat }
}

const CYCLES: Entry = Entry {
    quantity: Cycles,
    type_: TYPE_HARDWARE,
    config: 0,
    meaning: "cycles of the core's clock while it was not halted",
    standing: Standing::Documented,
    source: "PERF_COUNT_HW_CPU_CYCLES: CPU_CLK_UNHALTED.THREAD (Intel), ls_not_halted_cyc 76h \
             (AMD), CPU_CYCLES 11h (Arm)",
    caveat: "a cycle's length changes with the core's clock",
};

const INSTRUCTIONS: Entry = Entry {
    quantity: Instructions,
    type_: TYPE_HARDWARE,
    config: 1,
    meaning: "instructions retired",
    standing: Standing::Documented,
    source: "PERF_COUNT_HW_INSTRUCTIONS: INST_RETIRED.ANY (Intel), ex_ret_instr C0h (AMD), \
             INST_RETIRED 08h (Arm)",
    caveat: "not in it: what an instruction waits for; a bounced line costs none",
};

const fn amd_1ah(quantity: Quantity) -> Entry {
    match quantity {
        Cycles => CYCLES,
        Instructions => INSTRUCTIONS,
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
        L1dMisses => raw(
            (L1dMisses, code(0x44, 0xff)),
            "lines brought into the first data cache, from wherever",
            Standing::Documented,
            "ls_any_fills_from_sys.all, PMCx044",
            "also in it: its prefetcher's lines; not in it: accesses that wait for a line under way",
        ),
        LlcMisses => raw(
            (LlcMisses, code(0x43, 0x48)),
            "demand fills of the first data cache from memory or I/O",
            Standing::Documented,
            "ls_dmnd_fills_from_sys.dram_io_all, PMCx043",
            "not in it: lines that a prefetcher fetched, and code. The L3's own counters belong to \
             a whole CCX, not to a thread",
        ),
    }
}

/// Returns AMD's code of an event: its bits 8 to 11 are at 32 to 35 of `config`.
const fn code(event: u16, umask: u8) -> u64 {
    ((event as u64 & 0xf00) << 24) | ((umask as u64) << 8) | (event as u64 & 0xff)
}

fn generic(quantity: Quantity) -> Result<Entry, &'static str> {
    const L1D_READ_MISS: u64 = 0x1_0000;
    const CACHE_MISSES: u64 = 3;
    let inferred = |type_, config, meaning, source| Entry {
        quantity,
        type_,
        config,
        meaning,
        standing: Standing::Inferred,
        source,
        caveat: "what exactly counts is the kernel driver's choice for this CPU",
    };
    match quantity {
        L1dMisses => Ok(inferred(
            TYPE_CACHE,
            L1D_READ_MISS,
            "reads that missed in the first data cache",
            "PERF_COUNT_HW_CACHE_L1D, read, miss",
        )),
        LlcMisses => Ok(inferred(
            TYPE_HARDWARE,
            CACHE_MISSES,
            "accesses that missed in the last cache",
            "PERF_COUNT_HW_CACHE_MISSES",
        )),
        _ => Err("no code of this CPU was tried, and the kernel has no generic event for it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 2] = [Family::Amd1Ah, Family::Unknown];

    fn code_of(family: Family, quantity: Quantity) -> Option<String> {
        entry(family, quantity).ok().and_then(|entry| entry.event().raw)
    }

    #[test]
    fn an_entry_counts_what_it_was_asked_for_and_says_how_we_know() {
        for family in FAMILIES {
            for quantity in Quantity::ALL {
                match entry(family, quantity) {
                    Ok(entry) => {
                        assert_eq!(entry.quantity, quantity, "{family}");
                        assert!(!entry.meaning.is_empty() && !entry.source.is_empty(), "{entry:?}");
                        let measured = entry.source.contains("Measured:");
                        assert_eq!(entry.standing == Standing::Measured, measured, "{entry:?}");
                    }
                    Err(why) => assert!(why.len() > 20, "{family} {quantity}: {why}"),
                }
            }
        }
    }

    #[test]
    fn the_codes_are_those_of_the_vendors_lists() {
        let codes = Quantity::ALL.map(|quantity| code_of(Family::Amd1Ah, quantity));
        let expected = [None, None, Some("r0864"), Some("rff66"), Some("r1643"), Some("rff44")];
        assert_eq!(codes[..6].iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
        assert_eq!(codes[6].as_deref(), Some("r4843"));
    }

    #[test]
    fn an_unknown_cpu_has_generic_events_only() {
        for quantity in [L2LinesIn, L2LinesOut, LinesFromOtherCore] {
            assert!(entry(Family::Unknown, quantity).is_err(), "{quantity}");
        }
        assert!(Quantity::ALL.iter().all(|quantity| code_of(Family::Unknown, *quantity).is_none()));
    }

    #[test]
    fn the_high_bits_of_an_amd_event_are_where_the_kernel_wants_them() {
        assert_eq!(code(0x165, 0xde), 0x1_0000_de65);
        assert_eq!(code(0x43, 0x16), 0x1643);
    }
}
