//! Names for places: the function, its size, its object.
//!
//! Nothing here is an error. What has no name is called by its object, and said so.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use super::elf::{Budget, Elf, Refused};
use super::kallsyms::Kallsyms;
use super::lookup::{self, Found, Function};
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
            self.unread.push((object.name.clone(), GONE));
            return Found::new();
        };
        if by_age {
            self.by_age.push(object.name.clone());
        }
        let (found, why) = match Elf::read(&file) {
            Ok(elf) => self.look_up(&elf, offsets),
            Err(why) => (Found::new(), Some(why)),
        };
        self.unread.extend(why.map(|why| (object.name.clone(), why)));
        found
    }

    /// By the file's own table of symbols, which is exact and quickly read; where that is silent
    /// about many, by what is installed beside it, and by debug information.
    fn look_up(&mut self, elf: &Elf<'_>, offsets: &[u64]) -> (Found, Option<Refused>) {
        let addresses: Vec<(u64, u64)> =
            offsets.iter().filter_map(|&offset| Some((offset, elf.address(offset)?))).collect();
        let (mut found, mut why) = (Found::new(), None);
        let mut add = |more: Result<Found, Refused>| {
            match more {
                Ok(more) => found.extend(more),
                Err(refused) => why = Some(refused),
            }
            silent(&found, &addresses)
        };
        let mut silent = add(lookup::by_symbols(elf, &addresses, &mut self.symbols));
        let few = |silent: &[_]| silent.len() * 10 < addresses.len().max(1);
        if !few(&silent) {
            let debug_file = elf.build_id().and_then(objects::debug_file);
            let installed = debug_file.as_ref().and_then(|file| Elf::read(file).ok());
            if let Some(installed) = &installed {
                silent = add(lookup::by_symbols(installed, &silent, &mut self.symbols));
            }
            if !few(&silent) {
                let elf = installed.as_ref().unwrap_or(elf);
                add(lookup::by_debug_information(elf, &silent, &mut self.debug));
            }
        }
        (found, why)
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

fn silent(found: &Found, addresses: &[(u64, u64)]) -> Vec<(u64, u64)> {
    addresses.iter().filter(|(offset, _)| !found.contains_key(offset)).copied().collect()
}

/// Tables of symbols and their strings of all files together; 20 million symbols.
const SYMBOLS_BYTES_MAX: u64 = 512 << 20;
/// Debug information of all files together.
const DEBUG_BYTES_MAX: u64 = 512 << 20;
const GONE: Refused = "is gone or has changed since, or its process saw other files than we do";
