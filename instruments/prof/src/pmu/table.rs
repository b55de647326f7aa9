//! Which events of which CPU count what we want to know, how sure that is, and what to mind.
//!
//! Cycles and instructions are the kernel's generic events on every CPU: its driver knows the best
//! counter for them (Intel's fixed ones cost none of the general ones). All else is the CPU's own
//! code.
//!
//! Every code that is marked documented was read in the vendor's list; each file names its own.

mod amd;
mod arm;
mod intel;

use serde::Serialize;

use super::Quantity::{self, *};
use super::event::{Event, TYPE_CACHE, TYPE_HARDWARE, TYPE_RAW, raw_code};
use super::family::Family;

/// How we know that an event counts what it is said to count.
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
    /// What it is counted for.
    pub quantity: Quantity,
    /// `type` of `perf_event_attr`.
    pub type_: u32,
    /// `config` of `perf_event_attr`.
    pub config: u64,
    /// What it counts, in a sentence.
    pub meaning: &'static str,
    /// How we know.
    pub standing: Standing,
    /// The vendor's name for it, or what was measured.
    pub source: &'static str,
    /// What it does not see, or sees though one would not think so; empty if nothing is known.
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

/// What counts `quantity` on `family`, or why nothing does.
///
/// # Errors
/// The reason, in a sentence.
pub fn entry(family: Family, quantity: Quantity) -> Result<Entry, &'static str> {
    match quantity {
        Cycles => Ok(CYCLES),
        Instructions => Ok(INSTRUCTIONS),
        _ => match family {
            Family::Amd17hZen1 => amd::family_17h_zen1(quantity),
            Family::Amd17hZen2 => amd::family_17h_zen2(quantity),
            Family::Amd19h => amd::family_19h(quantity),
            Family::Amd1Ah => amd::family_1ah(quantity),
            Family::IntelSkylakeServer => intel::skylake(quantity),
            Family::IntelIceLakeServer => intel::ice_lake(quantity),
            Family::IntelSapphireRapids => intel::sapphire_rapids(quantity),
            Family::NeoverseN1 | Family::NeoverseN2 | Family::NeoverseV1 | Family::NeoverseV2 => {
                arm::neoverse(family, quantity)
            }
            Family::Unknown => unknown(quantity),
        },
    }
}

/// What counts the lines that leave the L2 on `family` and go somewhere, where lines that are
/// dropped in place are counted in [`L2LinesOut`] too; `None` where that itself is the answer.
#[must_use]
pub(crate) fn moved_out(family: Family) -> Option<Entry> {
    intel::moved_out(family)
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

fn unknown(quantity: Quantity) -> Result<Entry, &'static str> {
    const L1D_READ_MISS: u64 = 0x1_0000;
    const CACHE_MISSES: u64 = 3;
    let generic = |type_, config, meaning, source| Entry {
        quantity,
        type_,
        config,
        meaning,
        standing: Standing::Inferred,
        source,
        caveat: "what exactly counts is the kernel driver's choice for this CPU",
    };
    match quantity {
        L1dMisses => Ok(generic(
            TYPE_CACHE,
            L1D_READ_MISS,
            "reads that missed in the first data cache",
            "PERF_COUNT_HW_CACHE_L1D, read, miss",
        )),
        LlcMisses => Ok(generic(
            TYPE_HARDWARE,
            CACHE_MISSES,
            "accesses that missed in the last cache",
            "PERF_COUNT_HW_CACHE_MISSES",
        )),
        _ => Err(
            "this family of CPU is not in the table, and the kernel has no generic event for it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILIES: [Family; 12] = [
        Family::Amd17hZen1,
        Family::Amd17hZen2,
        Family::Amd19h,
        Family::Amd1Ah,
        Family::IntelSkylakeServer,
        Family::IntelIceLakeServer,
        Family::IntelSapphireRapids,
        Family::NeoverseN1,
        Family::NeoverseN2,
        Family::NeoverseV1,
        Family::NeoverseV2,
        Family::Unknown,
    ];

    fn code(family: Family, quantity: Quantity) -> Option<String> {
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
    fn only_the_family_that_we_measured_has_measured_events() {
        for family in FAMILIES {
            let measured = Quantity::ALL
                .into_iter()
                .filter_map(|quantity| entry(family, quantity).ok())
                .any(|entry| entry.standing == Standing::Measured);
            assert_eq!(measured, family == Family::Amd1Ah, "{family}");
        }
    }

    #[test]
    fn the_codes_are_those_of_the_vendors_lists() {
        let is = |family, quantity, raw: &str| {
            assert_eq!(code(family, quantity).as_deref(), Some(raw), "{family} {quantity}");
        };
        is(Family::Amd1Ah, LinesFromOtherCore, "r1643");
        is(Family::Amd1Ah, L2LinesOut, "rff66");
        is(Family::Amd1Ah, L2LinesIn, "r0864");
        is(Family::Amd19h, L1dMisses, "rff44");
        is(Family::Amd19h, LlcMisses, "r4843");
        is(Family::Amd17hZen2, LinesFromOtherCore, "r1243");
        is(Family::Amd17hZen1, L2LinesIn, "r0964");
        is(Family::IntelSkylakeServer, L2LinesIn, "r1ff1");
        is(Family::IntelIceLakeServer, L2LinesOut, "r03f2");
        is(Family::IntelSapphireRapids, L2LinesIn, "r1f25");
        is(Family::IntelSapphireRapids, L2LinesOut, "r0326");
        is(Family::IntelSapphireRapids, LinesFromOtherCore, "r04d2");
        is(Family::IntelSapphireRapids, LlcMisses, "r412e");
        is(Family::NeoverseV2, L2LinesIn, "r0017");
        is(Family::NeoverseN1, L2LinesOut, "r0056");
        is(Family::Amd17hZen2, L1dMisses, "rc860");
        let moved = |family| moved_out(family).and_then(|entry| entry.event().raw);
        assert_eq!(moved(Family::IntelSkylakeServer).as_deref(), Some("r02f2"));
        assert_eq!(moved(Family::IntelIceLakeServer).as_deref(), Some("r02f2"));
        assert_eq!(moved(Family::IntelSapphireRapids).as_deref(), Some("r0226"));
        assert_eq!(moved(Family::Amd1Ah), None);
    }

    #[test]
    fn lines_that_came_clean_are_in_a_count_of_forwards_and_not_in_one_of_modified_ones() {
        let entry = |family| entry(family, LinesFromOtherCore).unwrap();
        assert!(entry(Family::IntelSkylakeServer).meaning.contains("modified"));
        let forwards = entry(Family::IntelSapphireRapids);
        assert!(!forwards.meaning.contains("modified") && forwards.caveat.contains("clean ones"));
    }

    #[test]
    fn what_only_follows_from_a_vendors_list_is_not_called_documented() {
        let standing = |family, quantity| entry(family, quantity).unwrap().standing;
        assert_eq!(standing(Family::Amd1Ah, LlcMisses), Standing::Documented);
        assert_eq!(standing(Family::Amd19h, LlcMisses), Standing::Inferred);
        assert_eq!(standing(Family::IntelSapphireRapids, L2LinesOut), Standing::Inferred);
        assert_eq!(standing(Family::NeoverseN1, LlcMisses), Standing::Inferred);
        assert_eq!(standing(Family::NeoverseV1, LlcMisses), Standing::Documented);
    }

    #[test]
    fn what_a_family_cannot_count_is_left_out_and_not_guessed() {
        assert_eq!(code(Family::Amd19h, L2LinesOut), None);
        assert_eq!(code(Family::Amd17hZen1, LinesFromOtherCore), None);
        assert_eq!(code(Family::NeoverseN2, LinesFromOtherCore), None);
        assert_eq!(code(Family::Unknown, L2LinesIn), None);
    }
}
