//! The kernel's functions by /proc/kallsyms: with the module that each is in and its size, which the
//! list does not give and which is taken to be the distance to the next.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// The kernel's functions, by address.
#[derive(Debug, Default)]
pub(super) struct Kallsyms {
    functions: Vec<Function>,
    names: String,
}

#[derive(Debug, Clone, Copy)]
struct Function {
    address: u64,
    /// Offset in `names` of its name, with its module's name behind it.
    name: u32,
    name_bytes: u16,
    module_bytes: u16,
}

/// A function of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) address: u64,
    /// To the next function; with what pads it.
    pub(super) bytes: Option<u64>,
    /// As listed, without brackets; `None` if it is built in.
    pub(super) module: Option<&'a str>,
}

impl Kallsyms {
    /// The running kernel's; empty if it hides them from us.
    pub(super) fn here() -> Kallsyms {
        File::open("/proc/kallsyms")
            .map_or_else(|_| Kallsyms::default(), |file| Kallsyms::read(BufReader::new(file)))
    }

    /// Lines of `address type name [module]`; whatever else is skipped.
    pub(super) fn read(mut input: impl BufRead) -> Kallsyms {
        let mut all = Kallsyms::default();
        let mut line = String::new();
        while matches!(input.read_line(&mut line), Ok(1..)) && all.functions.len() < FUNCTIONS_MAX {
            all.add(&line);
            line.clear();
        }
        // Of several names for one address, the first that is listed stays.
        all.functions.sort_by_key(|function| function.address);
        all.functions.dedup_by_key(|function| function.address);
        all
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        // Addresses of 0 are how the kernel hides them (kptr_restrict). What is no text (t, w) would
        // end a function too early or give its name to what follows.
        if address == 0 || !matches!(words.next()?, "t" | "T" | "w" | "W") {
            return None;
        }
        let name = words.next()?;
        let module = words.next().map_or("", |word| word.trim_matches(['[', ']']));
        let function = Function {
            address,
            name: u32::try_from(self.names.len()).ok()?,
            name_bytes: u16::try_from(name.len()).ok()?,
            module_bytes: u16::try_from(module.len()).ok()?,
        };
        self.names.push_str(name);
        self.names.push_str(module);
        self.functions.push(function);
        Some(())
    }

    /// Returns true if no function is known.
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function that `address` is in.
    pub(super) fn find(&self, address: u64) -> Option<Found<'_>> {
        let next = self.functions.partition_point(|function| function.address <= address);
        let found = self.function(next.checked_sub(1)?)?;
        // Behind the last function of a region there is nothing that has a name.
        if found.bytes.is_none() && address - found.address > BYTES_MAX {
            return None;
        }
        Some(found)
    }

    fn function(&self, at: usize) -> Option<Found<'_>> {
        let function = self.functions.get(at)?;
        let end = self.functions.get(at + 1).map(|next| next.address);
        let bytes = end.map(|end| end - function.address).filter(|&bytes| bytes <= BYTES_MAX);
        let name = function.name as usize;
        let module = name + usize::from(function.name_bytes);
        let end = module + usize::from(function.module_bytes);
        Some(Found {
            name: self.names.get(name..module)?,
            address: function.address,
            bytes,
            module: self.names.get(module..end).filter(|module| !module.is_empty()),
        })
    }
}

const FUNCTIONS_MAX: usize = 4 << 20;
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
    fn a_function_reaches_to_the_next_and_data_does_not_end_it() {
        let all = Kallsyms::read(LIST.as_bytes());
        let found = all.find(0xffff_ffff_8100_0050).unwrap();
        assert_eq!((found.name, found.bytes, found.module), ("do_one", Some(0xc0), None));
        let found = all.find(0xffff_ffff_8100_01c0).unwrap();
        assert_eq!((found.name, found.bytes), ("do_two", Some(0x100)));
        assert_eq!(all.find(0xffff_ffff_8100_0000).unwrap().name, "_stext");
    }

    #[test]
    fn a_module_is_named_and_what_lies_between_regions_is_not() {
        let all = Kallsyms::read(LIST.as_bytes());
        let found = all.find(0xffff_ffff_c020_1004).unwrap();
        assert_eq!((found.name, found.bytes, found.module), ("helper", None, Some("veth")));
        assert_eq!(all.find(0xffff_ffff_9000_0000), None);
        assert_eq!(all.find(0x1000), None);
        assert_eq!(all.find(u64::MAX), None);
    }

    #[test]
    fn hidden_addresses_name_nothing() {
        let all = Kallsyms::read("0000000000000000 T _text\n0000000000000000 T f\n".as_bytes());
        assert!(all.is_empty());
        assert_eq!(all.find(5), None);
    }
}
