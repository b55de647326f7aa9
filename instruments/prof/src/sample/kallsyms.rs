//! The kernel's functions from /proc/kallsyms, each with its module and its size. The file has no
//! sizes, so a function's size is the distance to the next function.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::profile::{Load, Profile, Space, Total};

/// The kernel's functions, by address.
#[derive(Debug, Default)]
pub(crate) struct Kallsyms {
    /// Functions by address: the name, followed by a tab and the module if the function is in one.
    functions: Vec<(u64, Box<str>)>,
    /// Length of the kernel's own text in bytes, without modules.
    text_bytes: Option<u64>,
}

/// A function of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelSymbol<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: u64,
    /// Distance to the next function in bytes, including padding.
    pub(crate) bytes: Option<u64>,
    /// The module, without brackets; `None` for a built-in function.
    pub(crate) module: Option<&'a str>,
}

impl Kallsyms {
    /// Returns the running kernel's functions; empty if the kernel hides them.
    pub(crate) fn here() -> Kallsyms {
        File::open("/proc/kallsyms")
            .map_or_else(|_| Kallsyms::default(), |file| Kallsyms::read(BufReader::new(file)))
    }

    /// Reads lines of `address type name [module]`; skips all others.
    pub(crate) fn read(input: impl BufRead) -> Kallsyms {
        let lines = input.lines().map_while(Result::ok).take(LINES_MAX);
        let mut all: Vec<_> = lines.filter_map(|line| function(&line)).collect();
        let at = |name: &str| Some(all.iter().find(|(_, text)| &**text == name)?.0);
        let text_bytes = at("_etext\t").zip(at("_stext\t"));
        let text_bytes = text_bytes.and_then(|(end, start)| end.checked_sub(start));
        // Of several names for one address, keep the first in the list.
        all.sort_by_key(|(address, _)| *address);
        all.dedup_by_key(|(address, _)| *address);
        Kallsyms { functions: all, text_bytes }
    }

    /// Returns true if there are no functions.
    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the function that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let next = self.functions.partition_point(|(start, _)| *start <= address);
        let (start, text) = self.functions.get(next.checked_sub(1)?)?;
        let bytes =
            self.functions.get(next).map(|(next, _)| next - start).filter(|n| *n <= BYTES_MAX);
        let (name, module) = text.split_once('\t')?;
        let module = Some(module).filter(|module| !module.is_empty());
        // An address too far behind the last function of a region is in no function.
        (bytes.is_some() || address - start <= BYTES_MAX).then_some(KernelSymbol {
            name,
            address: *start,
            bytes,
            module,
        })
    }
}

/// Sets the code length of functions of this machine's kernel, and the total's load: samples of the
/// built-in kernel for each byte of its text, as in readprofile. Does nothing if the kernel hides
/// its functions.
///
/// Sizes are the distance to the next function. A total that the profile's maker gave stays.
pub fn size_kernel(profile: &mut Profile) {
    size_by(profile, &Kallsyms::here());
}

fn size_by(profile: &mut Profile, all: &Kallsyms) {
    let mut samples = 0_u64;
    for row in profile.rows.iter_mut().filter(|row| row.space == Space::Kernel) {
        // The text of modules is not in the kernel's own.
        if matches!(row.object.as_deref(), None | Some("[kernel]")) {
            samples = samples.saturating_add(row.count);
        }
        let found = row.address.filter(|_| row.code_bytes.is_none());
        let found =
            found.and_then(|address| all.find(address).filter(|one| one.address == address));
        row.code_bytes = found.and_then(|one| one.bytes).or(row.code_bytes);
    }
    let bytes = all.text_bytes.filter(|bytes| *bytes > 0 && profile.total.is_none());
    if let Some(bytes) = bytes {
        // The text of current kernels is so large that four digits, as for functions, would often
        // all be 0.
        let load = Load { value: samples as f64 / bytes as f64, digits: 7 };
        profile.total = Some(Total { count: profile.counted(), load: Some(load) });
        profile.remarks.push(format!(
            "load of the total: {samples} samples of the built-in kernel by the {bytes} bytes of \
             its text"
        ));
    }
}

fn function(line: &str) -> Option<(u64, Box<str>)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    // A kernel that hides addresses prints 0 for them (kptr_restrict). Symbols other than text (t,
    // w) would end a function too early, or give their names to the code after them.
    if address == 0 || !matches!(words.next()?, "t" | "T" | "w" | "W") {
        return None;
    }
    let (name, module) = (words.next()?, words.next().unwrap_or_default());
    Some((address, format!("{name}\t{}", module.trim_matches(['[', ']'])).into()))
}

const LINES_MAX: usize = 8 << 20;
/// Upper bound of a function's length: larger distances are gaps between the kernel and its
/// modules.
const BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::Readprofile;
    use crate::profile::{Event, Origin, Row, Unit};

    const LIST: &str = "\
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000040 t do_one
ffffffff81000100 T do_two
ffffffff81000180 D some_data
ffffffff81000200 T _etext
garbage
ffffffffc0201000 t helper\t[veth]
";

    #[test]
    fn functions_get_their_bytes_and_the_total_those_of_the_whole_text() {
        let event =
            Event { name: "cpu-clock".into(), unit: Unit::Samples, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        let row = |symbol: &str, address, space| Row { address, space, ..Row::new(symbol, 128) };
        let of = |object: &str, row| Row { object: Some(object.into()), ..row };
        profile.rows = vec![
            of("[kernel]", row("do_one", Some(0xffff_ffff_8100_0040), Space::Kernel)),
            row("main", Some(0x1000), Space::User),
            row("unknown", None, Space::Kernel),
            of("[veth]", row("helper", None, Space::Kernel)),
        ];
        size_by(&mut profile, &Kallsyms::read(LIST.as_bytes()));
        let bytes: Vec<_> = profile.rows.iter().map(|row| row.code_bytes).collect();
        assert_eq!(bytes, [Some(0xc0), None, None, None]);
        // 256 samples by 512 bytes: those of the module veth are not in them.
        let text = Readprofile(&profile).to_string();
        assert!(text.starts_with("512 total 0.5000000\n128 do_one 0.6667\n"), "{text}");
        assert!(profile.remarks[0].contains("256 samples of the built-in kernel"));
        size_by(&mut profile, &Kallsyms::default());
        assert_eq!(profile.remarks.len(), 1, "once");
    }

    #[test]
    fn a_function_reaches_to_the_next_in_its_region_and_data_does_not_end_it() {
        let all = Kallsyms::read(LIST.as_bytes());
        let found = all.find(0xffff_ffff_8100_0050).unwrap();
        assert_eq!((found.name, found.bytes, found.module), ("do_one", Some(0xc0), None));
        let found = all.find(0xffff_ffff_8100_01c0).unwrap();
        assert_eq!((found.name, found.bytes), ("do_two", Some(0x100)));
        assert_eq!(all.find(0xffff_ffff_8100_0000).unwrap().name, "_stext");
        let found = all.find(0xffff_ffff_c020_1004).unwrap();
        assert_eq!((found.name, found.bytes, found.module), ("helper", None, Some("veth")));
        for nowhere in [0xffff_ffff_9000_0000, 0x1000, u64::MAX] {
            assert_eq!(all.find(nowhere), None, "{nowhere:#x}");
        }
        let hidden = Kallsyms::read("0000000000000000 T _text\n0000000000000000 T f\n".as_bytes());
        assert!(hidden.is_empty() && hidden.find(5).is_none());
    }
}
