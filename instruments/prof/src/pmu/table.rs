//! The families of CPUs, and their events for each [`Quantity`]: code, evidence for the meaning,
//! caveat.
//!
//! Cycles and instructions are the kernel's generic events on every CPU: its driver knows the best
//! counter for them (Intel's fixed ones cost none of the general ones). All else is the CPU's own
//! code, and the table has only codes that were tried against known answers: those of AMD family
//! 1Ah. `perf list` names the events of every other CPU.
//!
//! Source: Processor Programming Reference of family 1Ah, as in Linux
//! tools/perf/pmu-events/arch/x86/amdzen5; what was measured, on a guest with two CPUs, on one core
//! complex and across two. Families: /proc/cpuinfo; Linux arch/x86/kernel/cpu/amd.c, which tells
//! the generations of one family apart.

use std::sync::OnceLock;

use serde::Serialize;

use super::Quantity::{self, *};
use super::event::Event;

named! {
    /// A family of CPUs with events in the table, or any other.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Family {
        /// AMD family 1Ah, models 00h to 2Fh, 40h to 4Fh and 60h to 7Fh: Zen 5. The family's other
        /// models are Zen 6.
        Amd1Ah = "AMD family 1Ah, Zen 5",
        /// Any other CPU, or a machine with different kinds of cores.
        Unknown = "not in the table: the kernel's generic events only",
    }
}

impl Family {
    /// Returns the family of this machine's CPU, determined once.
    #[must_use]
    pub fn here() -> Family {
        static HERE: OnceLock<Family> = OnceLock::new();
        // Without /proc the family is `Unknown`, which is a valid result.
        *HERE.get_or_init(|| {
            std::fs::read_to_string("/proc/cpuinfo")
                .map_or(Family::Unknown, |text| Family::of(&text))
        })
    }

    /// Returns the family that the text of /proc/cpuinfo describes.
    ///
    /// Cores of different parts (big.LITTLE, Intel's hybrids) have no common raw events: unknown.
    fn of(cpuinfo: &str) -> Family {
        let mut cores = cpuinfo.split("\n\n").filter(|core| core.contains("vendor_id")).peekable();
        let is_known = cores.peek().is_some() && cores.all(is_zen_5);
        if is_known { Family::Amd1Ah } else { Family::Unknown }
    }
}

/// Returns true if the block of lines describes a core of Zen 5.
fn is_zen_5(core: &str) -> bool {
    let field = |name: &str| {
        let pairs = core.lines().filter_map(|line| line.split_once(':'));
        pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name)
    };
    let model = field("model").and_then(|(_, model)| model.parse::<u32>().ok());
    field("vendor_id").is_some_and(|(_, vendor)| vendor == "AuthenticAMD")
        && field("cpu family").is_some_and(|(_, family)| family == "26")
        && matches!(model, Some(0x00..=0x2f | 0x40..=0x4f | 0x60..=0x7f))
}

named! {
    /// The evidence for the meaning of an event.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Standing {
        /// The vendor's documentation.
        Documented = "documented",
        /// Inferred from the vendor's documentation of a part or a related event; not tested.
        Inferred = "inferred",
        /// Measured with programs whose counts are known.
        Measured = "measured",
    }
}

/// An event of a family.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Quantity that the event measures.
    pub quantity: Quantity,
    /// `type` and `config` of `perf_event_attr`.
    attr: (u32, u64),
    /// Evidence for the meaning.
    pub standing: Standing,
    /// Meaning of the event, in a sentence.
    pub meaning: &'static str,
    /// The vendor's name of the event, or a description of our measurement.
    pub source: &'static str,
    /// Limits of the event: occurrences that it misses, or counts unexpectedly; empty if none are
    /// known.
    pub caveat: &'static str,
}

impl Entry {
    /// Returns the event, for counting or sampling.
    #[must_use]
    pub fn event(&self) -> Event {
        let (type_, config) = self.attr;
        let quantity = Some(self.quantity);
        Event { quantity, ..Event::new(self.quantity.as_str(), type_, config) }
    }
}

/// Returns the event that counts `quantity` on `family`, or the reason why there is none.
///
/// # Errors
/// The reason, in a sentence.
pub fn entry(family: Family, quantity: Quantity) -> Result<&'static Entry, &'static str> {
    let own = if family == Family::Amd1Ah { &AMD_1AH[..] } else { &[] };
    let found = own.iter().chain(&GENERIC).find(|entry| entry.quantity == quantity);
    found.ok_or("no code of this CPU was tried, and the kernel has no generic event for it")
}

/// Codes of AMD's family 1Ah: `umask` in bits 8 to 15, `event` below; bits 8 to 11 of an event
/// would be at 32 to 35.
static AMD_1AH: [Entry; 5] = [
    Entry {
        quantity: L2LinesIn,
        attr: (Event::RAW, 0x0864),
        standing: Standing::Measured,
        meaning: "requests of the first data cache that missed in L2, each of which brings a line in",
        source: "l2_cache_req_stat.ls_rd_blk_c, PMCx064. Measured: 1.01 for each hand-over of a \
                 bounced line, 0.88 for each line of a walk over 8 MiB",
        caveat: "not in it: lines that the L2's prefetcher fetched, and code; l2_fill_rsp_src.all \
                 (r10000de65, documented, untried) counts fills of every kind",
    },
    Entry {
        quantity: L2LinesOut,
        attr: (Event::RAW, 0xff66),
        standing: Standing::Measured,
        meaning: "lines evicted from the L2 to make room",
        source: "not documented. Measured: 1.07 to 1.11 for each line of a walk over 8 MiB, 0.003 \
                 for each hand-over of a bounced line, 0.002 for a private one",
        caveat: "not in it: lines that another core takes; it is blind to a bounce",
    },
    Entry {
        quantity: LinesFromOtherCore,
        attr: (Event::RAW, 0x1643),
        standing: Standing::Measured,
        meaning: "demand fills of the first data cache from a cache outside the core",
        source: "ls_dmnd_fills_from_sys: 02 this CCX, 04 another CCX, 10 another node, PMCx043. \
                 Measured: about 1 for each hand-over of a bounced line, on one CCX and across two",
        caveat: "also in it: hits in the shared L3 (0.80 for each line of a walk over 8 MiB, by \
                 mask 02); r085d, undocumented, counts 1.000 and 0.003 there",
    },
    Entry {
        quantity: L1dMisses,
        attr: (Event::RAW, 0xff44),
        standing: Standing::Documented,
        meaning: "lines brought into the first data cache, from wherever",
        source: "ls_any_fills_from_sys.all, PMCx044",
        caveat: "also in it: its prefetcher's lines; not in it: accesses that wait for a line \
                 under way",
    },
    Entry {
        quantity: LlcMisses,
        attr: (Event::RAW, 0x4843),
        standing: Standing::Documented,
        meaning: "demand fills of the first data cache from memory or I/O",
        source: "ls_dmnd_fills_from_sys.dram_io_all, PMCx043",
        caveat: "not in it: lines that a prefetcher fetched, and code. The L3's own counters \
                 belong to a whole CCX, not to a thread",
    },
];

/// The kernel's generic events, for CPUs without an entry above.
static GENERIC: [Entry; 4] = [
    Entry {
        quantity: Cycles,
        attr: (Event::HARDWARE, 0),
        standing: Standing::Documented,
        meaning: "cycles of the core's clock while it was not halted",
        source: "PERF_COUNT_HW_CPU_CYCLES: CPU_CLK_UNHALTED.THREAD (Intel), ls_not_halted_cyc 76h \
                 (AMD), CPU_CYCLES 11h (Arm)",
        caveat: "a cycle's length changes with the core's clock",
    },
    Entry {
        quantity: Instructions,
        attr: (Event::HARDWARE, 1),
        standing: Standing::Documented,
        meaning: "instructions retired",
        source: "PERF_COUNT_HW_INSTRUCTIONS: INST_RETIRED.ANY (Intel), ex_ret_instr C0h (AMD), \
                 INST_RETIRED 08h (Arm)",
        caveat: "not in it: what an instruction waits for; a bounced line costs none",
    },
    Entry {
        quantity: L1dMisses,
        attr: (Event::CACHE, 0x1_0000),
        standing: Standing::Inferred,
        meaning: "reads that missed in the first data cache",
        source: "PERF_COUNT_HW_CACHE_L1D, read, miss",
        caveat: DRIVERS_CHOICE,
    },
    Entry {
        quantity: LlcMisses,
        attr: (Event::HARDWARE, 3),
        standing: Standing::Inferred,
        meaning: "accesses that missed in the last cache",
        source: "PERF_COUNT_HW_CACHE_MISSES",
        caveat: DRIVERS_CHOICE,
    },
];

const DRIVERS_CHOICE: &str = "what exactly counts is the kernel driver's choice for this CPU";

#[cfg(test)]
mod tests {
    use super::*;

    fn x86_text(vendor: &str, family: u32, model: u32) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: CPU\nflags\t\t: fpu vme de pse tsc msr\n\n"
        )
    }

    #[test]
    fn only_equal_cores_of_zen_5_are_known_and_no_neighbour_is() {
        let amd = |family, model| Family::of(&x86_text("AuthenticAMD", family, model));
        for zen5 in [0x00, 0x02, 0x11, 0x2f, 0x44, 0x60, 0x70, 0x7f] {
            assert_eq!(amd(0x1a, zen5), Family::Amd1Ah, "{zen5:#x}");
        }
        // Zen 6, and numbers that are not assigned.
        for other in [0x30, 0x50, 0x5f, 0x80, 0x90, 0xaf, 0xc0, 0xcf, 0xef, 0xff] {
            assert_eq!(amd(0x1a, other), Family::Unknown, "{other:#x}");
        }
        let zen5 = x86_text("AuthenticAMD", 0x1a, 2);
        assert_eq!(Family::of(&(zen5.clone() + &zen5)), Family::Amd1Ah);
        for text in [
            "",
            "processor : 0\n\nhello : world\n",
            "vendor_id : AuthenticAMD\ncpu family : many\n",
            "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
            &x86_text("GenuineIntel", 0x1a, 0),
            &x86_text("AuthenticAMD", 25, 17),
            &(zen5 + &x86_text("AuthenticAMD", 0x1a, 0x50)),
        ] {
            assert_eq!(Family::of(text), Family::Unknown, "{text}");
        }
    }

    #[test]
    fn codes_are_those_that_were_documented_or_measured() {
        let code = |family, quantity: &Quantity| {
            let entry = entry(family, *quantity).ok()?;
            Some((entry.event().raw?, entry.standing))
        };
        let codes: Vec<_> = Quantity::ALL.iter().filter_map(|q| code(Family::Amd1Ah, q)).collect();
        let expected = [
            ("r0864", Standing::Measured),
            ("rff66", Standing::Measured),
            ("r1643", Standing::Measured),
            ("rff44", Standing::Documented),
            ("r4843", Standing::Documented),
        ];
        assert_eq!(codes, expected.map(|(raw, standing)| (raw.to_owned(), standing)));
        assert!(Quantity::ALL.iter().all(|q| code(Family::Unknown, q).is_none()));
        for quantity in [L2LinesIn, L2LinesOut, LinesFromOtherCore] {
            assert!(entry(Family::Unknown, quantity).is_err(), "{quantity}");
        }
    }

    #[test]
    fn an_entry_says_how_we_know_what_it_counts() {
        for entry in AMD_1AH.iter().chain(&GENERIC) {
            assert!(!entry.meaning.is_empty() && !entry.source.is_empty(), "{entry:?}");
            let measured = entry.source.contains("Measured:");
            assert_eq!(entry.standing == Standing::Measured, measured, "{entry:?}");
        }
    }
}
