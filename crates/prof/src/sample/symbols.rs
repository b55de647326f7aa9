//! Names for places: the function, its size, its object.
//!
//! Nothing here is an error. What has no name is called by its object, and said so.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::SystemTime;

use blazesym::symbolize::source::{self, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer};

use super::copy::{Copy, Part};
use super::elf::{Budget, Elf, Refused};
use super::functions::Functions;
use super::kallsyms::Kallsyms;
use super::objects::{self, Opened};
use super::spaces::{BEYOND, KERNEL, Mapper, Object, Place, Spaces, UNKNOWN};
use super::tally::Tally;
use crate::profile::Space;

/// What is at a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) symbol: String,
    pub(super) address: Option<u64>,
    pub(super) code_bytes: Option<u64>,
    pub(super) object: Option<Arc<str>>,
    pub(super) space: Space,
    /// Whether it is a function's.
    pub(super) function: bool,
}

/// The names of places, and what stood in their way.
#[derive(Debug)]
pub(super) struct Names {
    names: Vec<Name>,
    /// Each an index of `names`: many places have the same.
    places: HashMap<Place, u32>,
    /// Files without names, and why.
    pub(super) unread: Vec<(String, Refused)>,
    /// Files of which only path and age say that they are what ran.
    pub(super) by_age: Vec<String>,
    /// Whether the kernel hides its functions from us.
    pub(super) kernel_hidden: bool,
    symbols: Budget,
    debug: Budget,
}

/// A function as its file tells, at an offset of the file.
type Found = BTreeMap<u64, Function>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Function {
    symbol: String,
    address: u64,
    bytes: Option<u64>,
}

impl Names {
    /// Names the places of `tally`. Files that have changed after `started` are not what ran.
    pub(super) fn of(tally: &Tally, spaces: &Spaces, started: SystemTime) -> Names {
        let mut names = Names {
            names: Vec::new(),
            places: HashMap::new(),
            unread: Vec::new(),
            by_age: Vec::new(),
            kernel_hidden: false,
            symbols: Budget::new(SYMBOLS_BYTES_MAX),
            debug: Budget::new(DEBUG_BYTES_MAX),
        };
        for (index, offsets) in by_object(tally) {
            match spaces.object(index) {
                _ if index == KERNEL => names.kernel(&offsets),
                Some(object) if object.is_file() => {
                    let mapper = spaces.mapped_by(index).unwrap_or_default();
                    names.file(index, object, mapper, started, &offsets);
                }
                object => names.plain(index, object),
            }
        }
        names
    }

    pub(super) fn find(&self, place: Place) -> Option<&Name> {
        self.names.get(*self.places.get(&place)? as usize)
    }

    fn kernel(&mut self, addresses: &[u64]) {
        let all = Kallsyms::here();
        self.kernel_hidden = all.is_empty();
        let mut before = None;
        for &address in addresses {
            let found = all.find(address);
            let key = found.map(|found| found.address);
            // Rising addresses: the same function follows itself.
            if before != Some(key) {
                let module = found.and_then(|found| found.module).unwrap_or("kernel");
                self.names.push(Name {
                    symbol: found.map_or_else(|| nameless(module), |found| found.name.into()),
                    address: key,
                    code_bytes: found.and_then(|found| found.bytes),
                    object: Some(format!("[{module}]").into()),
                    space: Space::Kernel,
                    function: found.is_some(),
                });
            }
            before = Some(key);
            self.place(KERNEL, address);
        }
    }

    /// The place has the name that came last.
    fn place(&mut self, object: u32, offset: u64) {
        if let Some(last) = self.names.len().checked_sub(1).and_then(|at| u32::try_from(at).ok()) {
            self.places.insert(Place { object, offset }, last);
        }
    }

    fn file(
        &mut self,
        index: u32,
        object: &Object,
        mapper: Mapper,
        started: SystemTime,
        offsets: &[u64],
    ) {
        let found = self.functions(object, mapper, started, offsets);
        let path: Arc<str> = object.name.as_str().into();
        let base = object.name.rsplit('/').next().unwrap_or(&object.name);
        let unnamed = Name {
            symbol: nameless(base),
            address: None,
            code_bytes: None,
            object: Some(path),
            space: Space::User,
            function: false,
        };
        let mut before: Option<Option<&Function>> = None;
        for offset in offsets {
            let function = found.get(offset);
            if before != Some(function) {
                self.names.push(match function {
                    None => unnamed.clone(),
                    Some(function) => Name {
                        symbol: function.symbol.clone(),
                        address: Some(function.address),
                        code_bytes: function.bytes,
                        function: true,
                        ..unnamed.clone()
                    },
                });
            }
            before = Some(function);
            self.place(index, *offset);
        }
    }

    fn functions(
        &mut self,
        object: &Object,
        mapper: Mapper,
        started: SystemTime,
        offsets: &[u64],
    ) -> Found {
        let Some(Opened { file, by_age }) = objects::open(object, mapper, started) else {
            self.unread.push((object.name.clone(), "is gone or has changed since"));
            return Found::new();
        };
        if by_age {
            self.by_age.push(object.name.clone());
        }
        let read = Elf::read(&file).and_then(|elf| self.look_up(&elf, offsets));
        read.unwrap_or_else(|why| {
            self.unread.push((object.name.clone(), why));
            Found::new()
        })
    }

    /// By the file's own table of symbols, which is exact and quickly read; where that is silent
    /// about many, by what is installed beside it, and by debug information.
    fn look_up(&mut self, elf: &Elf<'_>, offsets: &[u64]) -> Result<Found, Refused> {
        let addresses: Vec<(u64, u64)> =
            offsets.iter().filter_map(|&offset| Some((offset, elf.address(offset)?))).collect();
        let mut found = by_symbols(elf, &addresses, &mut self.symbols)?;
        if enough(&found, &addresses) {
            return Ok(found);
        }
        let debug_file = elf.build_id().and_then(objects::debug_file);
        let installed = debug_file.as_ref().and_then(|file| Elf::read(file).ok());
        if let Some(installed) = &installed {
            let silent = silent(&found, &addresses);
            found.extend(by_symbols(installed, &silent, &mut self.symbols).unwrap_or_default());
        }
        if !enough(&found, &addresses) {
            let silent = silent(&found, &addresses);
            let elf = installed.as_ref().unwrap_or(elf);
            found.extend(by_debug_information(elf, &silent, &mut self.debug)?);
        }
        Ok(found)
    }

    /// What is no file: the vdso, anonymous memory, what no map covers.
    fn plain(&mut self, index: u32, object: Option<&Object>) {
        let symbol = object.map_or("[unknown]", |object| &object.name);
        let known = index != UNKNOWN && index != BEYOND;
        self.names.push(Name {
            symbol: symbol.to_owned(),
            address: None,
            code_bytes: None,
            object: known.then(|| symbol.into()),
            space: if known { Space::User } else { Space::Unknown },
            function: false,
        });
        self.place(index, 0);
    }
}

/// The offsets of each object, rising; what has most samples first, as not all may be read.
fn by_object(tally: &Tally) -> Vec<(u32, Vec<u64>)> {
    let mut by_object: BTreeMap<u32, (u64, Vec<u64>)> = BTreeMap::new();
    let sampled = tally.places.iter().map(|(&place, &count)| (place, count));
    let callers = tally.callers.iter().map(|&place| (place, 0));
    for (place, count) in sampled.chain(callers) {
        let (samples, offsets) = by_object.entry(place.object).or_default();
        *samples += count;
        offsets.push(place.offset);
    }
    let mut objects: Vec<_> = by_object.into_iter().collect();
    objects.sort_by_key(|&(_, (samples, _))| std::cmp::Reverse(samples));
    let rising = |(index, (_, mut offsets)): (u32, (u64, Vec<u64>))| {
        offsets.sort_unstable();
        offsets.dedup();
        (index, offsets)
    };
    objects.into_iter().map(rising).collect()
}

/// One name for all of an object: a row for each address would be many, and tell nothing.
fn nameless(object: &str) -> String {
    format!("[{object}: no symbol]")
}

fn enough(found: &Found, addresses: &[(u64, u64)]) -> bool {
    (addresses.len() - found.len().min(addresses.len())) * 10 < addresses.len().max(1)
}

fn silent(found: &Found, addresses: &[(u64, u64)]) -> Vec<(u64, u64)> {
    addresses.iter().filter(|(offset, _)| !found.contains_key(offset)).copied().collect()
}

/// The functions at `addresses`, each an offset of the file and where it is loaded.
fn by_symbols(
    elf: &Elf<'_>,
    addresses: &[(u64, u64)],
    budget: &mut Budget,
) -> Result<Found, Refused> {
    let all = Functions::new(elf.tables(budget)?, elf.sections());
    let places = addresses.iter().filter_map(|&(offset, at)| Some((offset, all.find(at)?)));
    let places: Vec<_> = places.collect();
    // Each function is asked for once, however many places are in it.
    let wanted: BTreeMap<u64, &[u8]> =
        places.iter().map(|(_, (symbol, name))| (symbol.address, *name)).collect();
    let copy =
        Copy::of(elf.machine(), &Part::symbols(wanted.iter().map(|(&at, &name)| (at, name))))
            .map_err(|_| NO_MEMORY)?;
    let starts: Vec<u64> = wanted.keys().copied().collect();
    let names = symbolize(&copy, &starts, false, |found| plain_text(&found.name));
    let names: BTreeMap<u64, String> =
        starts.into_iter().zip(names).filter_map(|(at, name)| Some((at, name?))).collect();
    let function = |(offset, (symbol, _)): (u64, (super::functions::Symbol, &[u8]))| {
        let bytes = (symbol.bytes > 0).then_some(symbol.bytes);
        let name = names.get(&symbol.address)?.clone();
        Some((offset, Function { symbol: name, address: symbol.address, bytes }))
    };
    Ok(places.into_iter().filter_map(function).collect())
}

fn by_debug_information(
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
    let found = symbolize(&copy, &at, true, |found| Function {
        symbol: plain_text(&found.name),
        address: found.addr,
        bytes: found.size.map(|bytes| bytes as u64).filter(|&bytes| bytes > 0),
    });
    let offsets = addresses.iter().map(|&(offset, _)| offset);
    Ok(offsets.zip(found).filter_map(|(offset, found)| Some((offset, found?))).collect())
}

/// What is found at each of `addresses` in the copy. Its content is the target's, and may be too
/// much for those who read it: then nothing is found.
fn symbolize<T>(
    copy: &Copy,
    addresses: &[u64],
    debug_syms: bool,
    take: impl Fn(Sym<'_>) -> T,
) -> Vec<Option<T>> {
    let look_up = || {
        let symbolizer = Symbolizer::builder()
            .enable_code_info(false)
            .enable_inlined_fns(false)
            .enable_demangling(true)
            .set_debug_dirs(Some([""; 0]))
            .build();
        let mut elf = source::Elf::new(copy.path());
        elf.debug_syms = debug_syms;
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

/// Tables of symbols and their strings of all files together; 20 million symbols.
const SYMBOLS_BYTES_MAX: u64 = 512 << 20;
/// Debug information of all files together.
const DEBUG_BYTES_MAX: u64 = 512 << 20;
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
