//! The kernel's functions by /proc/kallsyms: with the module that each is in and its size, which the
//! list does not give and which is taken to be the distance to the next.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// The kernel's functions by address: the name, a tab, and the module if it is in one.
#[derive(Debug, Default)]
pub(crate) struct Kallsyms(Vec<(u64, Box<str>)>);

/// A function of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KernelSymbol<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: u64,
    /// To the next function; with what pads it.
    pub(crate) bytes: Option<u64>,
    /// As listed, without brackets; `None` if it is built in.
    pub(crate) module: Option<&'a str>,
}

impl Kallsyms {
    /// Returns the running kernel's; empty if it hides them from us.
    pub(crate) fn here() -> Kallsyms {
        File::open("/proc/kallsyms")
            .map_or_else(|_| Kallsyms::default(), |file| Kallsyms::read(BufReader::new(file)))
    }

    /// Reads lines of `address type name [module]`; whatever else is skipped.
    pub(crate) fn read(input: impl BufRead) -> Kallsyms {
        let lines = input.lines().map_while(Result::ok).take(LINES_MAX);
        let mut all: Vec<_> = lines.filter_map(|line| function(&line)).collect();
        // Of several names for one address, the first that is listed stays.
        all.sort_by_key(|(address, _)| *address);
        all.dedup_by_key(|(address, _)| *address);
        Kallsyms(all)
    }

    /// Returns true if no function is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the function that `address` is in.
    pub(crate) fn find(&self, address: u64) -> Option<KernelSymbol<'_>> {
        let next = self.0.partition_point(|(start, _)| *start <= address);
        let (start, text) = self.0.get(next.checked_sub(1)?)?;
        let bytes = self.0.get(next).map(|(next, _)| next - start).filter(|n| *n <= BYTES_MAX);
        let (name, module) = text.split_once('\t')?;
        let module = Some(module).filter(|module| !module.is_empty());
        // Behind the last function of a region there is nothing that has a name.
        (bytes.is_some() || address - start <= BYTES_MAX).then_some(KernelSymbol {
            name,
            address: *start,
            bytes,
            module,
        })
    }
}

fn function(line: &str) -> Option<(u64, Box<str>)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    // Addresses of 0 are how the kernel hides them (kptr_restrict). What is no text (t, w) would
    // end a function too early or give its name to what follows.
    if address == 0 || !matches!(words.next()?, "t" | "T" | "w" | "W") {
        return None;
    }
    let (name, module) = (words.next()?, words.next().unwrap_or_default());
    Some((address, format!("{name}\t{}", module.trim_matches(['[', ']'])).into()))
}

const LINES_MAX: usize = 8 << 20;
/// No function is longer; between the kernel and its modules there is more.
const BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

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
