//! Names for places: the function, its size, its object.
//!
//! Nothing here is an error. What has no name is called by its object, and said so.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};

use super::identity::Identity;
use super::kallsyms::Kallsyms;
use super::spaces::{BEYOND, KERNEL, Object, Place, Spaces, UNKNOWN};
use crate::profile::Space;

/// What is at a place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) symbol: String,
    pub(super) address: Option<u64>,
    pub(super) code_bytes: Option<u64>,
    pub(super) object: Option<String>,
    pub(super) space: Space,
    /// Whether it is a function's.
    pub(super) function: bool,
}

/// The names of places, and what stood in their way.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashMap<Place, Name>,
    /// Files that are gone or have changed since.
    pub(super) changed: Vec<String>,
    /// Whether the kernel hides its functions from us.
    pub(super) kernel_hidden: bool,
}

impl Names {
    /// Names `places`. Files that have changed after `started`, in seconds of the epoch, are not
    /// what ran.
    pub(super) fn of(places: impl Iterator<Item = Place>, spaces: &Spaces, started: i64) -> Names {
        let mut by_object: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for place in places {
            by_object.entry(place.object).or_default().push(place.offset);
        }
        let mut names = Names::default();
        for (index, mut offsets) in by_object {
            offsets.sort_unstable();
            offsets.dedup();
            match spaces.object(index) {
                _ if index == KERNEL => names.kernel(&offsets),
                Some(object) if object.is_file() => {
                    let pid = spaces.mapped_by(index).map_or(0, |mapper| mapper.pid);
                    let path = file(object, pid, started);
                    names.file(index, object, path.as_deref(), &offsets);
                }
                object => names.plain(index, object),
            }
        }
        names
    }

    pub(super) fn find(&self, place: Place) -> Option<&Name> {
        self.names.get(&place)
    }

    fn kernel(&mut self, addresses: &[u64]) {
        let all = Kallsyms::here();
        self.kernel_hidden = all.is_empty();
        for &address in addresses {
            let found = all.find(address);
            let module = found.and_then(|found| found.module).unwrap_or("kernel");
            let name = Name {
                symbol: found.map_or_else(|| nameless(module), |found| found.name.into()),
                address: found.map(|found| found.address),
                code_bytes: found.and_then(|found| found.bytes),
                object: Some(format!("[{module}]")),
                space: Space::Kernel,
                function: found.is_some(),
            };
            self.names.insert(Place { object: KERNEL, offset: address }, name);
        }
    }

    fn file(&mut self, index: u32, object: &Object, path: Option<&Path>, offsets: &[u64]) {
        let found = path.map_or_else(
            || {
                self.changed.push(object.name.clone());
                vec![None; offsets.len()]
            },
            |path| functions(path, offsets),
        );
        let base = object.name.rsplit('/').next().unwrap_or(&object.name);
        for (&offset, found) in offsets.iter().zip(found) {
            let name = found.unwrap_or_else(|| Name {
                symbol: nameless(base),
                address: None,
                code_bytes: None,
                object: None,
                space: Space::User,
                function: false,
            });
            let name = Name { object: Some(object.name.clone()), ..name };
            self.names.insert(Place { object: index, offset }, name);
        }
    }

    /// What is no file: the vdso, anonymous memory, what no map covers.
    fn plain(&mut self, index: u32, object: Option<&Object>) {
        let symbol = object.map_or("[unknown]", |object| &object.name);
        let known = index != UNKNOWN && index != BEYOND;
        let name = Name {
            symbol: symbol.to_owned(),
            address: None,
            code_bytes: None,
            object: known.then(|| symbol.to_owned()),
            space: if known { Space::User } else { Space::Unknown },
            function: false,
        };
        self.names.insert(Place { object: index, offset: 0 }, name);
    }
}

/// One name for all of an object: a row for each address would be many, and tell nothing.
fn nameless(object: &str) -> String {
    format!("[{object}: no symbol]")
}

/// The functions at `offsets` of the file: by its own table of symbols, which is exact and quickly
/// read; where that is silent about many, by debug information, wherever it is installed.
fn functions(path: &Path, offsets: &[u64]) -> Vec<Option<Name>> {
    let symbolizer = Symbolizer::builder()
        .enable_code_info(false)
        .enable_inlined_fns(false)
        .enable_demangling(true)
        .build();
    let mut names = look_up(&symbolizer, path, offsets, false);
    let silent = |name: &&Option<Name>| name.is_none();
    if names.iter().filter(silent).count() * 10 >= offsets.len() {
        let more = look_up(&symbolizer, path, offsets, true);
        for (name, more) in names.iter_mut().zip(more) {
            *name = name.take().or(more);
        }
    }
    names
}

fn look_up(
    symbolizer: &Symbolizer,
    path: &Path,
    offsets: &[u64],
    debug_syms: bool,
) -> Vec<Option<Name>> {
    let mut elf = Elf::new(path);
    elf.debug_syms = debug_syms;
    let found = symbolizer.symbolize(&Source::Elf(elf), Input::FileOffset(offsets));
    let mut names: Vec<_> = found.unwrap_or_default().into_iter().map(function).collect();
    names.resize(offsets.len(), None);
    names
}

fn function(found: Symbolized<'_>) -> Option<Name> {
    let found = found.into_sym()?;
    // A symbol without a size is given all that follows it; behind these two is the linkage table.
    let reaches_too_far = found.size.is_none_or(|bytes| bytes == 0) && found.offset >= CRT_BYTES;
    if reaches_too_far && matches!(&*found.name, "_init" | "_fini") {
        return None;
    }
    Some(Name {
        symbol: found.name.into_owned(),
        address: Some(found.addr),
        code_bytes: found.size.map(|bytes| bytes as u64).filter(|&bytes| bytes > 0),
        object: None,
        space: Space::User,
        function: true,
    })
}

/// Where the file can be read that was mapped: at its path, at its path as its process sees it, or
/// as the program of that process, even deleted. `None` if it is gone or has changed.
fn file(object: &Object, pid: u32, started: i64) -> Option<PathBuf> {
    let path = PathBuf::from(&object.name);
    let inside = PathBuf::from(format!("/proc/{pid}/root{}", object.name));
    let program = PathBuf::from(format!("/proc/{pid}/exe"));
    let same = |path: &PathBuf| {
        let Identity::Inode { inode: was, .. } = object.identity else { return false };
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.ino() == was)
    };
    // A layered file system may give another number for the same file, but not a later change.
    let old = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.ctime() < started)
    };
    let candidates = [path, inside, program];
    let found = candidates.iter().find(|path| same(path));
    found.or_else(|| candidates.iter().take(2).find(|path| old(path))).cloned()
}

/// The start-up code's `_init` and `_fini` are no longer than this.
const CRT_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_program_gives_no_names_and_no_error() {
        let path = std::env::temp_dir().join(format!("linerate-no-elf-{}", std::process::id()));
        for content in
            [&b""[..], b"\x7fELF", b"\x7fELF\x02\x01\x01aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
        {
            fs::write(&path, content).unwrap();
            assert_eq!(functions(&path, &[0, 1, u64::MAX]), vec![None; 3]);
        }
        fs::remove_file(&path).unwrap();
    }
}
