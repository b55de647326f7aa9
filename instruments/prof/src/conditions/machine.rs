//! Facts about this machine: kernel, CPU, clock, hypervisor.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
#[cfg(target_arch = "x86_64")]
use std::time::Duration;

/// Most bytes that are read of a file in /proc or /sys; /proc/cpuinfo has about 1.5 KiB for each
/// CPU.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Returns a file's contents as text; bytes that are not UTF-8 are replaced.
pub(super) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the text of a file with one line, trimmed; `None` if it is empty.
fn line(path: &str) -> Option<String> {
    let text = read(path).ok()?;
    // Firmware and device trees end their texts with NUL.
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.into())
}

/// Returns the kernel's name and release from uname(2): `Linux 6.18.1`.
pub(super) fn kernel() -> Option<String> {
    let name = line("/proc/sys/kernel/ostype")?;
    Some(format!("{name} {}", line("/proc/sys/kernel/osrelease")?))
}

/// Returns the model name of the first CPU.
pub(super) fn cpu_model(cpuinfo: &str) -> Option<String> {
    // Keys of x86 and most other CPUs, of POWER, and of s390.
    let named =
        ["model name", "cpu", "processor 0"].into_iter().find_map(|key| value(cpuinfo, key));
    if let Some(name) = named {
        return Some(name.into());
    }
    // On Arm, /proc/cpuinfo has no names of maker and model, only their numbers.
    let (maker, part) = (value(cpuinfo, "CPU implementer")?, value(cpuinfo, "CPU part")?);
    Some(format!("Arm implementer {maker}, part {part}"))
}

/// Returns the clock of the first CPU: from cpufreq, else from /proc/cpuinfo, else that of its time
/// stamp counter.
pub(super) fn mhz(cpuinfo: &str) -> Option<f64> {
    let khz = line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq");
    let cpufreq = khz.and_then(|khz| khz.parse().ok()).map(|khz: f64| khz / 1e3);
    cpufreq.or_else(|| cpuinfo_mhz(cpuinfo)).or_else(tsc_mhz).filter(|mhz| mhz.is_finite())
}

fn cpuinfo_mhz(cpuinfo: &str) -> Option<f64> {
    let text = value(cpuinfo, "cpu MHz").or_else(|| value(cpuinfo, "clock"))?;
    text.trim_end_matches("MHz").parse().ok().filter(|&mhz: &f64| mhz > 0.0)
}

fn tsc_mhz() -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    return Some(linerate_sys::tsc::rate_hz(Duration::from_millis(10)) / 1e6);
    // On other CPUs, the rate of the counter that we read is not a clock rate of the CPU.
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Returns the value of the first line `key : value`.
fn value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = pairs.find(|(name, _)| name.trim() == key)?;
    Some(value.trim()).filter(|value| !value.is_empty())
}

/// Returns the numbers of the online CPUs.
pub(crate) fn cpus_on_line() -> Option<Vec<usize>> {
    listed(&line("/sys/devices/system/cpu/online")?)
}

/// Parses a list of CPUs in the kernel's format: `0-3,8`.
pub(crate) fn listed(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // The kernel can be built for 8,192 CPUs at most (CONFIG_NR_CPUS).
        if first > last || last >= 8192 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns the name of the hypervisor if the machine is virtual: from the CPU, else from the
/// kernel, with the product name of the firmware. `None` if no source reports a virtual machine.
pub(super) fn hypervisor(cpuinfo: &str) -> Option<String> {
    let signed = signature().map(|signature| signer(&signature));
    let told =
        || line("/sys/hypervisor/type").or_else(|| line("/proc/device-tree/hypervisor/compatible"));
    let flagged = || has_flag(cpuinfo, "hypervisor").then(|| "of unknown make".into());
    let who = signed.or_else(told).or_else(flagged)?;
    let product = [line("/sys/class/dmi/id/sys_vendor"), line("/sys/class/dmi/id/product_name")];
    let product: Vec<String> = product.into_iter().flatten().collect();
    if product.is_empty() {
        return Some(who);
    }
    Some(format!("{who} ({})", product.join(" ")))
}

fn has_flag(cpuinfo: &str, flag: &str) -> bool {
    value(cpuinfo, "flags").is_some_and(|flags| flags.split_ascii_whitespace().any(|f| f == flag))
}

/// Returns the twelve letters of the hypervisor's CPUID signature.
///
/// Source: leaf 0x4000_0000, if bit 31 of ECX of leaf 1 is set; both are reserved for hypervisors
/// by Intel and AMD.
fn signature() -> Option<[u8; 12]> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::__cpuid;
        if __cpuid(1).ecx & 1 << 31 == 0 {
            return None;
        }
        let leaf = __cpuid(0x4000_0000);
        let mut letters = [0; 12];
        for (to, word) in letters.chunks_exact_mut(4).zip([leaf.ebx, leaf.ecx, leaf.edx]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Some(letters)
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    None
}

/// Returns the hypervisor's name for a signature, else the signature.
fn signer(signature: &[u8; 12]) -> String {
    let letters = signature.iter().filter(|b| b.is_ascii_graphic());
    let letters: String = letters.map(|&b| b as char).collect();
    let known = SIGNERS.iter().find(|(signs, _)| *signs == letters);
    match known {
        _ if letters.is_empty() => "of unknown make".into(),
        Some((_, name)) => (*name).into(),
        None => format!("signed {letters:?}"),
    }
}

const SIGNERS: [(&str, &str); 8] = [
    ("KVMKVMKVM", "KVM"),
    ("MicrosoftHv", "Hyper-V"),
    ("VMwareVMware", "VMware"),
    ("XenVMMXenVMM", "Xen"),
    ("TCGTCGTCGTCG", "QEMU without KVM"),
    ("bhyvebhyve", "bhyve"),
    ("VBoxVBoxVBox", "VirtualBox"),
    ("ACRNACRNACRN", "ACRN"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_named_as_its_architecture_names_it() {
        let x86 = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\ncpu MHz\t\t: 2449.998\nflags\t: fpu hypervisor\n";
        assert_eq!(cpu_model(x86).unwrap(), "AMD EPYC 7B13");
        assert_eq!(cpuinfo_mhz(x86), Some(2449.998));
        assert!(has_flag(x86, "hypervisor") && !has_flag(x86, "hyper"));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(cpu_model(arm).unwrap(), "Arm implementer 0x41, part 0xd0c");
        assert_eq!(cpuinfo_mhz(arm), None);
        let power = "cpu\t\t: POWER9, altivec supported\nclock\t\t: 3800.000000MHz\n";
        assert_eq!(cpu_model(power).unwrap(), "POWER9, altivec supported");
        assert_eq!(cpuinfo_mhz(power), Some(3800.0));
        assert_eq!(cpu_model("\0: :\n::"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(\\PC|(cpu|flags|clock)\t:|[0-9.,\n-]){0,60}") {
            let _ = (cpu_model(&text), cpuinfo_mhz(&text), listed(&text), has_flag(&text, "a"));
        }
    }

    #[test]
    fn a_list_of_cpus_is_read_and_an_absurd_one_is_not() {
        assert_eq!(listed("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        for absurd in ["", "3-0", "a", "0-", "0-99999999999", "0-4294967294,1"] {
            assert_eq!(listed(absurd), None, "{absurd}");
        }
    }

    #[test]
    fn a_hypervisor_signs_in_twelve_letters_known_or_not() {
        assert_eq!(signer(b"KVMKVMKVM\0\0\0"), "KVM");
        assert_eq!(signer(b"SomeoneElse\0"), "signed \"SomeoneElse\"");
        assert_eq!(signer(&[0; 12]), "of unknown make");
    }
}
