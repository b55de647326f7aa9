//! Names of addresses: the function, its size, its object.
//!
//! The code is this process's own, so its files are those that run, and are taken at their word.
//! Nothing here is an error: what has no name is called by its object, and said so.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::sync::Arc;

use blazesym::Pid;
use blazesym::symbolize::source::{Process, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};

use super::kallsyms::Kallsyms;
use super::tally::{Place, Tally};
use crate::profile::Space;

/// Name and description of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) symbol: String,
    pub(super) address: Option<u64>,
    pub(super) code_bytes: Option<u64>,
    pub(super) object: Option<Arc<str>>,
    pub(super) space: Space,
    /// True if the name is a function's.
    pub(super) function: bool,
}

/// The names of all addresses, and the reasons for missing ones.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashMap<Place, Name>,
    /// True if the kernel hides its functions from us.
    pub(super) kernel_hidden: bool,
    /// The reason why our own functions have no names; `None` if at least one has a name.
    pub(super) unread: Option<String>,
}

/// A range of our memory that contains code: `start..end`, and the mapped file.
type Mapping = (u64, u64, Arc<str>);

impl Name {
    /// Returns a name without a size, an address or an object.
    pub(super) fn plain(symbol: &str) -> Name {
        Name { symbol: symbol.to_owned(), ..Name::default() }
    }
}

impl Names {
    /// Returns the names of all places in `tally`.
    pub(super) fn of(tally: &Tally) -> Names {
        let mut names = Names::default();
        let (mut kernel, mut user) = (BTreeSet::new(), BTreeSet::new());
        for place in tally.places.keys().chain(tally.stacks.keys().flatten()) {
            match place {
                Place::Kernel(address) => kernel.insert(*address),
                Place::User(address) => user.insert(*address),
                Place::Other | Place::Unknown | Place::Beyond => false,
            };
        }
        let user: Vec<u64> = user.into_iter().collect();
        names.kernel(&kernel);
        names.user(&user);
        let other = Name { space: Space::User, function: true, ..Name::plain("USER") };
        names.names.insert(Place::Other, other);
        names.names.insert(Place::Unknown, Name::plain("[unknown]"));
        names.names.insert(Place::Beyond, Name::plain("[beyond]"));
        names
    }

    /// Returns the name of `place`; `None` if the tally does not contain it.
    pub(super) fn find(&self, place: Place) -> Option<&Name> {
        self.names.get(&place)
    }

    fn kernel(&mut self, addresses: &BTreeSet<u64>) {
        if addresses.is_empty() {
            return;
        }
        let all = Kallsyms::here();
        self.kernel_hidden = all.is_empty();
        for &address in addresses {
            let found = all.find(address);
            let module = found.and_then(|found| found.module).unwrap_or("kernel");
            let name = Name {
                symbol: found.map_or_else(|| nameless(module), |found| found.name.into()),
                address: found.map(|found| found.address),
                code_bytes: found.and_then(|found| found.bytes),
                object: Some(format!("[{module}]").into()),
                space: Space::Kernel,
                function: found.is_some(),
            };
            self.names.insert(Place::Kernel(address), name);
        }
    }

    fn user(&mut self, addresses: &[u64]) {
        if addresses.is_empty() {
            return;
        }
        let mappings = mappings();
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false);
        let symbolizer = symbolizer.build();
        let mut process = Process::new(Pid::Slf);
        // Do not use /proc/self/map_files, whose links need privilege, nor debug information, which
        // takes long to parse.
        (process.map_files, process.debug_syms, process.perf_map) = (false, false, false);
        let found = symbolizer.symbolize(&Source::Process(process), Input::AbsAddr(addresses));
        let found = found.unwrap_or_else(|e| {
            self.unread = Some(e.to_string());
            Vec::new()
        });
        let mut found = found.into_iter();
        for &address in addresses {
            let object = object(&mappings, address);
            let name = match (found.next(), object) {
                (Some(Symbolized::Sym(symbol)), object) => Name {
                    symbol: symbol.name.into_owned(),
                    address: Some(symbol.addr),
                    code_bytes: symbol.size.and_then(|size| u64::try_from(size).ok()),
                    object,
                    space: Space::User,
                    function: true,
                },
                (_, Some(object)) => {
                    let file = object.rsplit('/').next().unwrap_or(&object);
                    let symbol = if file.starts_with('[') { file.into() } else { nameless(file) };
                    Name { symbol, object: Some(object), space: Space::User, ..Name::plain("") }
                }
                (_, None) => Name::plain("[unknown]"),
            };
            self.names.insert(Place::User(address), name);
        }
    }
}

/// Returns the mappings of code in this process, by rising address.
fn mappings() -> Vec<Mapping> {
    let text = fs::read("/proc/self/maps").unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(executable).collect()
}

/// Parses a line of /proc/self/maps if it maps code: `start-end perms offset dev inode path`.
fn executable(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    if !words.next()?.contains('x') {
        return None;
    }
    let path = words.nth(3).unwrap_or("").trim_start();
    let path = if path.is_empty() { "[anon]" } else { path };
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, path.into()))
}

fn object(mappings: &[Mapping], address: u64) -> Option<Arc<str>> {
    let behind = mappings.partition_point(|(start, ..)| *start <= address);
    let (_, end, path) = mappings.get(behind.checked_sub(1)?)?;
    (address < *end).then(|| Arc::clone(path))
}

/// Returns one name for all addresses of an object without symbols, because a row for each would be
/// of no use.
fn nameless(object: &str) -> String {
    format!("[{object}: no symbol]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_read_with_their_oddities() {
        let path = |line| executable(line).map(|(.., path)| path.to_string());
        let line = "7f00-7f80 r-xp 00001000 08:01 42                         /a dir/lib (deleted)";
        assert_eq!(path(line).as_deref(), Some("/a dir/lib (deleted)"));
        assert_eq!(path("7f00-7f80 rw-p 00001000 08:01 42   /lib"), None);
        assert_eq!(path("7f00-7f80 rwxp 00000000 00:00 0 ").as_deref(), Some("[anon]"));
        assert_eq!(path("7f00-7f80 rwxp 00000000 00:00 0").as_deref(), Some("[anon]"));
        assert_eq!(path("7f00-7f80 r-xp 0 00:00 0    [vdso]").as_deref(), Some("[vdso]"));
        for broken in ["", "x", "7f00", "7f00-zz r-xp 0 0 0 /x", "1-2"] {
            assert_eq!(path(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_function_of_this_program_has_name_size_and_object() {
        let here = a_function_of_this_program_has_name_size_and_object as *const () as u64;
        let mut tally = Tally::default();
        tally.places.extend([(Place::User(here), 1), (Place::User(1), 1)]);
        let names = Names::of(&tally);
        let name = names.find(Place::User(here)).unwrap();
        assert!(name.function && name.symbol.contains("a_function_of_this_program"), "{name:?}");
        assert!(name.code_bytes > Some(0), "{name:?}");
        assert_eq!(name.object.as_deref(), std::env::current_exe().unwrap().to_str());
        assert_eq!(names.unread, None);
        assert_eq!(names.find(Place::User(1)), Some(&Name::plain("[unknown]")));
    }

    #[test]
    fn an_address_is_of_the_mapping_that_holds_it() {
        let mappings: [Mapping; 2] = [(0x1000, 0x2000, "/a".into()), (0x3000, 0x4000, "/b".into())];
        let of = |address| object(&mappings, address).map(|path| path.to_string());
        let found = [0xfff, 0x1000, 0x1fff, 0x2000, 0x3000, 0x3fff, 0x4000].map(of);
        let (a, b) = (Some("/a".to_owned()), Some("/b".to_owned()));
        assert_eq!(found, [None, a.clone(), a, None, b.clone(), b, None]);
    }
}
