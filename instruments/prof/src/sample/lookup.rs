//! What functions of a file are called: by its tables of symbols, by its debug information.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use blazesym::symbolize::source::{self, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer};

use super::copy::{Copy, Part};
use super::elf::{Budget, Elf, Refused};
use super::functions::{Functions, Symbol};

/// Functions by the offsets of the file that were asked for.
pub(super) type Found = BTreeMap<u64, Function>;

/// A function as its file tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) symbol: String,
    pub(super) address: u64,
    pub(super) bytes: Option<u64>,
}

/// What is asked of a copy.
#[derive(Debug, Clone, std::marker::Copy, PartialEq, Eq)]
enum Asked {
    /// The names of its symbols, as they were written.
    Demangle,
    /// What its debug information says, names as the linker knows them.
    DebugInformation,
}

/// The functions at `addresses`, each an offset of the file and where it is loaded, by its tables.
///
/// # Errors
/// Why they are not read.
pub(super) fn by_symbols(
    elf: &Elf<'_>,
    addresses: &[(u64, u64)],
    budget: &mut Budget,
) -> Result<Found, Refused> {
    let all = Functions::new(elf.tables(budget)?, elf.sections());
    let places = addresses.iter().filter_map(|&(offset, at)| Some((offset, all.find(at)?)));
    let places: Vec<(u64, (Symbol, &[u8]))> = places.collect();
    // Each name is asked for once, however many places are in its function.
    let raw: BTreeSet<&[u8]> = places.iter().map(|&(_, (_, name))| name).collect();
    let names = demangled(raw);
    let function = |(offset, (symbol, raw)): (u64, (Symbol, &[u8]))| {
        let bytes = (symbol.bytes > 0).then_some(symbol.bytes);
        let symbol_name = names.get(raw)?.clone();
        Some((offset, Function { symbol: symbol_name, address: symbol.address, bytes }))
    };
    Ok(places.into_iter().filter_map(function).collect())
}

/// The same by its debug information.
///
/// # Errors
/// Why it is not read.
pub(super) fn by_debug_information(
    elf: &Elf<'_>,
    addresses: &[(u64, u64)],
    budget: &mut Budget,
) -> Result<Found, Refused> {
    let mut parts = Vec::new();
    for section in elf.sections().iter().filter(|section| DEBUG.contains(&&*section.name)) {
        let (name, bytes) = (section.name.clone(), elf.section(section, budget)?);
        parts.push(Part { name, kind: section.kind, flags: section.flags, bytes });
    }
    if parts.is_empty() || parts.len() > DEBUG.len() {
        return Ok(Found::new());
    }
    let copy = Copy::of(elf.machine(), &parts).map_err(|_| NO_MEMORY)?;
    drop(parts);
    let at: Vec<u64> = addresses.iter().map(|&(_, at)| at).collect();
    let found = symbolize(&copy, &at, Asked::DebugInformation, |found| {
        let bytes = found.size.map(|bytes| bytes as u64).filter(|&bytes| bytes > 0);
        Function { symbol: found.name.into_owned(), address: found.addr, bytes }
    });
    let names = demangled(found.iter().flatten().map(|found| found.symbol.as_bytes()).collect());
    let offsets = addresses.iter().map(|&(offset, _)| offset);
    let named = |(offset, found): (u64, &Option<Function>)| {
        let found = found.as_ref()?;
        let symbol = names.get(found.symbol.as_bytes())?.clone();
        Some((offset, Function { symbol, ..*found }))
    };
    Ok(offsets.zip(&found).filter_map(named).collect())
}

/// The names as they were written, those that a compiler has mangled; the others as they are: by
/// the rules of C++, a function `f` of C would be called `float`.
fn demangled(names: BTreeSet<&[u8]>) -> BTreeMap<&[u8], String> {
    let mangled = |name: &&[u8]| MANGLED.iter().any(|mark| name.starts_with(mark));
    let asked: Vec<(u64, &[u8])> = (1..).zip(names.iter().copied().filter(mangled)).collect();
    let copy = Copy::of(ANY_MACHINE, &Part::symbols(asked.iter().copied())).ok();
    let numbers: Vec<u64> = asked.iter().map(|&(number, _)| number).collect();
    let found = copy
        .map(|copy| symbolize(&copy, &numbers, Asked::Demangle, |found| plain_text(&found.name)));
    let raw = |name: &[u8]| plain_text(&String::from_utf8_lossy(name));
    let mut all: BTreeMap<&[u8], String> =
        names.into_iter().map(|name| (name, raw(name))).collect();
    let found = asked.into_iter().zip(found.unwrap_or_default());
    all.extend(found.filter_map(|((_, raw), name)| Some((raw, name?))));
    all
}

/// What is found at each of `addresses` in the copy. Its content is the target's, and may be too
/// much for those who read it: then nothing is found.
fn symbolize<T>(
    copy: &Copy,
    addresses: &[u64],
    asked: Asked,
    take: impl Fn(Sym<'_>) -> T,
) -> Vec<Option<T>> {
    let look_up = || {
        let symbolizer = Symbolizer::builder()
            .enable_code_info(false)
            .enable_inlined_fns(false)
            .enable_demangling(asked == Asked::Demangle)
            .set_debug_dirs(Some([""; 0]))
            .build();
        let mut elf = source::Elf::new(copy.path());
        elf.debug_syms = asked == Asked::DebugInformation;
        let source = Source::Elf(elf);
        let mut all = Vec::with_capacity(addresses.len());
        for part in addresses.chunks(AT_ONCE) {
            let found = symbolizer.symbolize(&source, Input::VirtOffset(part)).unwrap_or_default();
            let before = all.len();
            all.extend(found.into_iter().map(|found| found.into_sym().map(&take)));
            all.resize_with(before + part.len(), || None);
        }
        all
    };
    let nothing = |_| addresses.iter().map(|_| None).collect();
    catch_unwind(AssertUnwindSafe(look_up)).unwrap_or_else(nothing)
}

/// Of a length that can be printed.
fn plain_text(name: &str) -> String {
    match name.char_indices().nth(SYMBOL_CHARS_MAX) {
        Some((end, _)) => format!("{}...", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

/// Of C++ and Rust; with one more underscore where C adds one.
const MANGLED: [&[u8]; 3] = [b"_Z", b"__Z", b"_R"];
/// No code is in the copy of the names.
const ANY_MACHINE: u16 = 0;
const SYMBOL_CHARS_MAX: usize = 2048;
/// Each answer has a name of its own.
const AT_ONCE: usize = 4096;
const NO_MEMORY: Refused = "was not read: the kernel lends no memory for it";
/// What names functions and lines. No section that leads to another file is among them.
const DEBUG: [&str; 11] = [
    ".debug_abbrev",
    ".debug_addr",
    ".debug_aranges",
    ".debug_info",
    ".debug_line",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_str",
    ".debug_str_offsets",
    ".debug_types",
];

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn mangled_names_are_as_they_were_written_and_others_as_they_are() {
        let long = [b'x'; 3000];
        let names: [&[u8]; 7] = [
            b"f",
            b"_ZN4core3fmt5write17h0123456789abcdefE",
            b"_ZNSt6vectorIiSaIiEE9push_backEOi",
            b"_RNvC6_123foo3bar",
            b"_Zwhatever",
            b"\xff",
            &long,
        ];
        let found = demangled(names.into_iter().collect());
        let [c, rust, cxx, rust_v0, wrong, bytes, cut] = names.map(|name| found[name].as_str());
        assert_eq!((c, wrong, bytes), ("f", "_Zwhatever", "\u{fffd}"));
        assert!(rust.starts_with("core::fmt::write"), "{rust}");
        assert!(cxx.contains("vector<int") && cxx.contains("push_back"), "{cxx}");
        assert!(rust_v0.contains("foo::bar") || rust_v0.contains("bar"), "{rust_v0}");
        assert_eq!(cut.len(), SYMBOL_CHARS_MAX + 3);
    }

    #[test]
    fn debug_information_names_what_symbols_do() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        let here = debug_information_names_what_symbols_do as *const () as u64;
        let own = super::super::maps::of_process(std::process::id()).unwrap();
        let map = own.iter().find(|map| (map.start..map.end).contains(&here)).unwrap();
        let offset = here - map.start + map.offset;
        let places = [(offset, elf.address(offset).unwrap())];
        let symbols = by_symbols(&elf, &places, &mut Budget::new(1 << 30)).unwrap();
        assert!(symbols[&offset].symbol.contains("names_what"), "{symbols:?}");
        let debug = by_debug_information(&elf, &places, &mut Budget::new(1 << 30)).unwrap();
        let Some(debug) = debug.get(&offset) else {
            return println!("skipped: built without debug information");
        };
        assert!(debug.symbol.contains("names_what"), "{debug:?}");
        assert_eq!(debug.address, symbols[&offset].address);
        assert!(by_debug_information(&elf, &places, &mut Budget::new(1000)).is_err());
    }
}
