//! Which CPU this is: raw event codes mean different things on different families.
//!
//! Source: CPUID family and model as /proc/cpuinfo prints them; Linux
//! tools/perf/pmu-events/arch/{x86,arm64}/mapfile.csv for what belongs together, and for AMD's models
//! arch/x86/kernel/cpu/amd.c, which tells the generations of one family apart.

use std::fmt;
use std::sync::OnceLock;

use serde::Serialize;

/// CPUs whose events [`super::table`] knows, and all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// AMD 17h, models 00h to 2Fh and 50h to 5Fh: Zen, Zen+.
    Amd17hZen1,
    /// AMD 17h, models 30h to 4Fh, 60h to 7Fh, 90h, 91h and A0h to AFh: Zen 2.
    Amd17hZen2,
    /// AMD 19h: Zen 3, Zen 4.
    Amd19h,
    /// AMD 1Ah, models 00h to 2Fh, 40h to 4Fh and 60h to 7Fh: Zen 5. The others are Zen 6.
    Amd1Ah,
    /// Intel Xeon Scalable, first and second generation: Skylake-SP, Cascade Lake, Cooper Lake.
    IntelSkylakeServer,
    /// Intel Xeon Scalable, third generation: Ice Lake-SP, Ice Lake-D.
    IntelIceLakeServer,
    /// Intel Xeon Scalable, fourth and fifth generation, and Xeon 6 with P-cores: Sapphire,
    /// Emerald and Granite Rapids, whose events have the same codes.
    IntelSapphireRapids,
    /// Arm Neoverse N1.
    NeoverseN1,
    /// Arm Neoverse N2.
    NeoverseN2,
    /// Arm Neoverse V1.
    NeoverseV1,
    /// Arm Neoverse V2.
    NeoverseV2,
    /// Any other, and CPUs whose cores differ from each other.
    Unknown,
}

/// The family of this machine's CPU; asked once.
#[must_use]
pub fn here() -> Family {
    static HERE: OnceLock<Family> = OnceLock::new();
    // A machine without /proc has an unknown CPU, which is an answer.
    *HERE.get_or_init(|| {
        std::fs::read_to_string("/proc/cpuinfo").map_or(Family::Unknown, |text| of(&text))
    })
}

/// The family that the text of /proc/cpuinfo describes.
///
/// Cores of different parts (big.LITTLE, Intel's hybrids) have no common raw events: unknown.
#[must_use]
pub fn of(cpuinfo: &str) -> Family {
    let mut cpus = cpuinfo.split("\n\n").filter_map(core);
    let Some(first) = cpus.next() else { return Family::Unknown };
    if cpus.any(|other| other != first) { Family::Unknown } else { first }
}

impl Family {
    /// As printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Family::Amd17hZen1 => "AMD family 17h, Zen and Zen+",
            Family::Amd17hZen2 => "AMD family 17h, Zen 2",
            Family::Amd19h => "AMD family 19h",
            Family::Amd1Ah => "AMD family 1Ah, Zen 5",
            Family::IntelSkylakeServer => "Intel Skylake-SP, Cascade Lake",
            Family::IntelIceLakeServer => "Intel Ice Lake-SP",
            Family::IntelSapphireRapids => "Intel Sapphire, Emerald or Granite Rapids",
            Family::NeoverseN1 => "Arm Neoverse N1",
            Family::NeoverseN2 => "Arm Neoverse N2",
            Family::NeoverseV1 => "Arm Neoverse V1",
            Family::NeoverseV2 => "Arm Neoverse V2",
            Family::Unknown => "not in the table: the kernel's generic events only",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The family of one core's block of lines; `None` for a block that describes no core.
fn core(block: &str) -> Option<Family> {
    let field = |name: &str| {
        block.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    if let Some(vendor) = field("vendor_id") {
        let number = |name| field(name).and_then(|text| text.parse().ok());
        return Some(x86(vendor, number("cpu family"), number("model")));
    }
    Some(arm(field("CPU implementer")?, field("CPU part")?))
}

fn x86(vendor: &str, family: Option<u32>, model: Option<u32>) -> Family {
    match (vendor, family, model) {
        ("AuthenticAMD", Some(family), Some(model)) => amd(family, model),
        ("GenuineIntel", Some(6), Some(0x55)) => Family::IntelSkylakeServer,
        ("GenuineIntel", Some(6), Some(0x6a | 0x6c)) => Family::IntelIceLakeServer,
        ("GenuineIntel", Some(6), Some(0x8f | 0xcf | 0xad | 0xae)) => Family::IntelSapphireRapids,
        _ => Family::Unknown,
    }
}

/// A family has more than one generation, and what is measured on one does not hold for the next.
fn amd(family: u32, model: u32) -> Family {
    match (family, model) {
        (0x17, 0x00..=0x2f | 0x50..=0x5f) => Family::Amd17hZen1,
        (0x17, 0x30..=0x4f | 0x60..=0x7f | 0x90..=0x91 | 0xa0..=0xaf) => Family::Amd17hZen2,
        (0x19, 0x00..=0xaf) => Family::Amd19h,
        (0x1a, 0x00..=0x2f | 0x40..=0x4f | 0x60..=0x7f) => Family::Amd1Ah,
        _ => Family::Unknown,
    }
}

fn arm(implementer: &str, part: &str) -> Family {
    const ARM: &str = "0x41";
    match (implementer, part) {
        (ARM, "0xd0c") => Family::NeoverseN1,
        (ARM, "0xd49") => Family::NeoverseN2,
        (ARM, "0xd40") => Family::NeoverseV1,
        (ARM, "0xd4f") => Family::NeoverseV2,
        _ => Family::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x86_text(vendor: &str, family: u32, model: u32, name: &str) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: {name}\nstepping\t: 2\nmicrocode\t: 0x1\ncpu MHz\t\t: 2299.998\n\
             flags\t\t: fpu vme de pse tsc msr\naddress sizes\t: 48 bits physical\n\n"
        )
    }

    fn arm_text(part: &str) -> String {
        format!(
            "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd evtstrm aes\n\
             CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n\
             CPU part\t: {part}\nCPU revision\t: 1\n\n"
        )
    }

    #[test]
    fn every_family_of_the_table_is_known_by_its_cpuinfo() {
        let amd = |family, model| of(&x86_text("AuthenticAMD", family, model, "AMD EPYC"));
        assert_eq!(amd(23, 1), Family::Amd17hZen1); // EPYC 7001
        assert_eq!(amd(23, 49), Family::Amd17hZen2); // EPYC 7002
        assert_eq!(amd(25, 1), Family::Amd19h); // EPYC 7003
        assert_eq!(amd(25, 17), Family::Amd19h); // EPYC 9004
        assert_eq!(amd(26, 2), Family::Amd1Ah); // EPYC 9005
        let intel = |model| of(&x86_text("GenuineIntel", 6, model, "Intel(R) Xeon(R)"));
        assert_eq!(intel(85), Family::IntelSkylakeServer);
        assert_eq!(intel(106), Family::IntelIceLakeServer);
        assert_eq!(intel(143), Family::IntelSapphireRapids);
        assert_eq!(intel(207), Family::IntelSapphireRapids);
        assert_eq!(intel(173), Family::IntelSapphireRapids);
        assert_eq!(of(&arm_text("0xd0c")), Family::NeoverseN1);
        assert_eq!(of(&arm_text("0xd49")), Family::NeoverseN2);
        assert_eq!(of(&arm_text("0xd40")), Family::NeoverseV1);
        assert_eq!(of(&arm_text("0xd4f")), Family::NeoverseV2);
    }

    #[test]
    fn what_the_table_does_not_know_is_unknown_and_no_neighbour() {
        assert_eq!(of(""), Family::Unknown);
        assert_eq!(of("processor : 0\n\nhello : world\n"), Family::Unknown);
        assert_eq!(of(&x86_text("GenuineIntel", 6, 151, "Alder Lake")), Family::Unknown);
        assert_eq!(of(&x86_text("GenuineIntel", 6, 182, "Grand Ridge")), Family::Unknown);
        assert_eq!(of(&x86_text("AuthenticAMD", 21, 2, "Piledriver")), Family::Unknown);
        assert_eq!(of(&x86_text("HygonGenuine", 24, 1, "Hygon")), Family::Unknown);
        assert_eq!(of(&arm_text("0xd07")), Family::Unknown);
        assert_eq!(of("vendor_id : AuthenticAMD\ncpu family : many\n"), Family::Unknown);
    }

    #[test]
    fn equal_cores_are_one_family_and_different_ones_none() {
        let twice = arm_text("0xd0c") + &arm_text("0xd0c");
        assert_eq!(of(&twice), Family::NeoverseN1);
        assert_eq!(of(&(arm_text("0xd0c") + &arm_text("0xd40"))), Family::Unknown);
    }

    #[test]
    fn a_generation_is_told_from_the_next_one_of_its_family() {
        let amd = |family, model| of(&x86_text("AuthenticAMD", family, model, "AMD"));
        for zen5 in [0x00, 0x11, 0x2f, 0x44, 0x60, 0x70, 0x7f] {
            assert_eq!(amd(0x1a, zen5), Family::Amd1Ah, "{zen5:#x}");
        }
        // Zen 6, and numbers that nobody has given out.
        for other in [0x30, 0x50, 0x5f, 0x80, 0x90, 0xaf, 0xc0, 0xcf, 0xef, 0xff] {
            assert_eq!(amd(0x1a, other), Family::Unknown, "{other:#x}");
        }
        assert_eq!((amd(0x17, 0x50), amd(0x17, 0x60)), (Family::Amd17hZen1, Family::Amd17hZen2));
        assert_eq!((amd(0x17, 0x80), amd(0x19, 0xb0)), (Family::Unknown, Family::Unknown));
    }

    #[test]
    fn this_machine_is_what_its_cpuinfo_says() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
            return println!("skipped: no /proc/cpuinfo");
        };
        assert_eq!(here(), of(&text));
    }
}
