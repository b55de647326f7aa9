//! The family of this machine's CPU: raw event codes mean different things on different families.
//!
//! Source: CPUID family and model as /proc/cpuinfo prints them; Linux
//! arch/x86/kernel/cpu/amd.c, which tells the generations of one family apart.

use std::fmt;
use std::sync::OnceLock;

use serde::Serialize;

/// A family of CPUs whose events [`super::table`] knows, or any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// AMD 1Ah, models 00h to 2Fh, 40h to 4Fh and 60h to 7Fh: Zen 5. The others are Zen 6.
    Amd1Ah,
    /// Any other, and CPUs whose cores differ from each other.
    Unknown,
}

/// Returns the family of this machine's CPU; asked once.
#[must_use]
pub fn here() -> Family {
    static HERE: OnceLock<Family> = OnceLock::new();
    // A machine without /proc has an unknown CPU, which is an answer.
    *HERE.get_or_init(|| {
        std::fs::read_to_string("/proc/cpuinfo").map_or(Family::Unknown, |text| of(&text))
    })
}

/// Returns the family that the text of /proc/cpuinfo describes.
///
/// Cores of different parts (big.LITTLE, Intel's hybrids) have no common raw events: unknown.
#[must_use]
pub fn of(cpuinfo: &str) -> Family {
    let mut cpus = cpuinfo.split("\n\n").filter_map(core);
    let Some(first) = cpus.next() else { return Family::Unknown };
    if cpus.any(|other| other != first) { Family::Unknown } else { first }
}

impl Family {
    /// Returns the name that is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Family::Amd1Ah => "AMD family 1Ah, Zen 5",
            Family::Unknown => "not in the table: the kernel's generic events only",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the family of one core's block of lines; `None` for a block that describes no core.
fn core(block: &str) -> Option<Family> {
    let field = |name: &str| {
        block.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    let number = |name| field(name).and_then(|text| text.parse::<u32>().ok());
    // Arm has an implementer where x86 has a vendor.
    let vendor = field("vendor_id").or_else(|| field("CPU implementer"))?;
    Some(match (vendor, number("cpu family"), number("model")) {
        // A family has more than one generation, and a figure of one does not hold for the next.
        ("AuthenticAMD", Some(0x1a), Some(0x00..=0x2f | 0x40..=0x4f | 0x60..=0x7f)) => {
            Family::Amd1Ah
        }
        _ => Family::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn x86_text(vendor: &str, family: u32, model: u32) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n\
             model name\t: CPU\nstepping\t: 2\nmicrocode\t: 0x1\ncpu MHz\t\t: 2299.998\n\
             flags\t\t: fpu vme de pse tsc msr\naddress sizes\t: 48 bits physical\n\n"
        )
    }

    #[test]
    fn a_generation_is_told_from_the_next_one_of_its_family() {
        let amd = |family, model| of(&x86_text("AuthenticAMD", family, model));
        for zen5 in [0x00, 0x02, 0x11, 0x2f, 0x44, 0x60, 0x70, 0x7f] {
            assert_eq!(amd(0x1a, zen5), Family::Amd1Ah, "{zen5:#x}");
        }
        // Zen 6, and numbers that nobody has given out.
        for other in [0x30, 0x50, 0x5f, 0x80, 0x90, 0xaf, 0xc0, 0xcf, 0xef, 0xff] {
            assert_eq!(amd(0x1a, other), Family::Unknown, "{other:#x}");
        }
    }

    #[test]
    fn a_cpu_that_the_table_does_not_know_is_unknown_and_no_neighbour() {
        assert_eq!(of(""), Family::Unknown);
        assert_eq!(of("processor : 0\n\nhello : world\n"), Family::Unknown);
        assert_eq!(of(&x86_text("GenuineIntel", 0x1a, 0)), Family::Unknown);
        assert_eq!(of(&x86_text("AuthenticAMD", 25, 17)), Family::Unknown);
        assert_eq!(of("vendor_id : AuthenticAMD\ncpu family : many\n"), Family::Unknown);
        assert_eq!(of("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), Family::Unknown);
    }

    #[test]
    fn equal_cores_are_one_family_and_different_ones_none() {
        let zen5 = x86_text("AuthenticAMD", 0x1a, 2);
        assert_eq!(of(&(zen5.clone() + &zen5)), Family::Amd1Ah);
        assert_eq!(of(&(zen5 + &x86_text("AuthenticAMD", 0x1a, 0x50))), Family::Unknown);
    }

    #[test]
    fn this_machine_is_what_its_cpuinfo_says() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else {
            return println!("skipped: no /proc/cpuinfo");
        };
        assert_eq!(here(), of(&text));
    }
}
