//! A program's file, read as one reads what an enemy wrote: where its code is loaded, its build ID,
//! its functions.
//!
//! Nothing of it is mapped: who has mapped a file dies when its owner cuts it short. What is read is
//! bounded, whatever the file says of its own lengths, and its size alone costs nothing.
//! Source: System V ABI, "Object Files", and /usr/include/elf.h. Little-endian, 64 bits.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::identity::BuildId;

/// A program's file.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    file: &'a File,
    machine: u16,
    segments: Vec<Segment>,
    sections: Vec<Section>,
}

/// A section.
#[derive(Debug, Clone)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) link: u32,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// What may still be read of all files together.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
}

/// Why a file is not read.
pub(super) type Refused = &'static str;

impl Budget {
    pub(super) fn new(bytes: u64) -> Budget {
        Budget { bytes }
    }

    fn take(&mut self, bytes: u64) -> Result<(), Refused> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(TOO_MUCH)?;
        Ok(())
    }
}

impl<'a> Elf<'a> {
    /// Reads the file's head and the lists of its segments and sections.
    pub(super) fn read(file: &'a File) -> Result<Elf<'a>, Refused> {
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0).map_err(|_| NO_ELF)?;
        if !head.starts_with(b"\x7fELF\x02\x01\x01") {
            return Err(NO_ELF);
        }
        let mut elf = Elf { file, machine: u16_at(&head, 18), segments: vec![], sections: vec![] };
        let list = |at: usize, entry: usize, count: usize, bytes: usize| {
            let count = usize::from(u16_at(&head, count));
            if usize::from(u16_at(&head, entry)) != bytes {
                return Ok(Vec::new());
            }
            elf.bytes(u64_at(&head, at), (count * bytes) as u64)
        };
        let (segments, sections) = (list(32, 54, 56, SEGMENT)?, list(40, 58, 60, SECTION)?);
        elf.segments = segments.chunks_exact(SEGMENT).map(segment).collect();
        elf.sections = sections.chunks_exact(SECTION).map(section).collect();
        elf.name_sections(&sections, usize::from(u16_at(&head, 62)))?;
        Ok(elf)
    }

    fn name_sections(&mut self, list: &[u8], names: usize) -> Result<(), Refused> {
        let Some(names) = self.sections.get(names) else { return Ok(()) };
        if names.bytes > NAMES_BYTES_MAX {
            return Err(TOO_LONG);
        }
        let names = self.bytes(names.offset, names.bytes)?;
        for (section, entry) in self.sections.iter_mut().zip(list.chunks_exact(SECTION)) {
            let name = string(&names, u32_at(entry, 0)).unwrap_or_default();
            section.name = String::from_utf8_lossy(name).into_owned();
        }
        Ok(())
    }

    /// Its build ID, by the same notes in which the kernel looks for it, or by those that a file with
    /// nothing but debug information still has.
    pub(super) fn build_id(&self) -> Option<BuildId> {
        let segments = self.segments.iter().filter(|segment| segment.kind == PT_NOTE);
        let segments = segments.map(|segment| (segment.offset, segment.bytes));
        let sections = self.sections.iter().filter(|section| section.kind == SHT_NOTE);
        let sections = sections.map(|section| (section.offset, section.bytes));
        let notes = segments.chain(sections).take(NOTES_MAX);
        notes
            .filter(|&(_, bytes)| bytes <= NOTE_BYTES_MAX)
            .find_map(|(offset, bytes)| build_id(&self.bytes(offset, bytes).ok()?))
    }

    /// Where what is at `offset` of the file is loaded, as its symbols tell addresses.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let code = |segment: &&Segment| segment.kind == PT_LOAD && segment.flags & PF_X != 0;
        self.segments.iter().filter(code).find_map(|segment| {
            let into = offset.checked_sub(segment.offset)?;
            // The kernel maps whole pages, and what pads the last one may be code of a linker.
            (into < segment.bytes).then(|| segment.address.wrapping_add(into))
        })
    }

    pub(super) fn machine(&self) -> u16 {
        self.machine
    }

    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// The tables of symbols, each with its strings: those of the linker, then of the loader.
    pub(super) fn tables(&self, budget: &mut Budget) -> Result<Vec<Table>, Refused> {
        let mut tables = Vec::new();
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            let Some(symbols) = self.sections.iter().find(|section| section.kind == kind) else {
                continue;
            };
            let strings = self.sections.get(symbols.link as usize).ok_or(NO_ELF)?;
            if symbols.bytes > SYMBOLS_BYTES_MAX || strings.bytes > STRINGS_BYTES_MAX {
                return Err(TOO_LONG);
            }
            budget.take(symbols.bytes + strings.bytes)?;
            tables.push(Table {
                of_the_loader: kind == SHT_DYNSYM,
                symbols: self.bytes(symbols.offset, symbols.bytes)?,
                strings: self.bytes(strings.offset, strings.bytes)?,
            });
        }
        Ok(tables)
    }

    /// The bytes of a section, which count against `budget`.
    pub(super) fn section(
        &self,
        section: &Section,
        budget: &mut Budget,
    ) -> Result<Vec<u8>, Refused> {
        budget.take(section.bytes)?;
        self.bytes(section.offset, section.bytes)
    }

    /// The caller has bounded `bytes`; what the file has not is not even asked for.
    fn bytes(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, Refused> {
        let end = offset.checked_add(bytes).ok_or(CUT_SHORT)?;
        let whole = self.file.metadata().map_err(|_| CUT_SHORT)?.len();
        if end > whole {
            return Err(CUT_SHORT);
        }
        let mut read = vec![0; usize::try_from(bytes).map_err(|_| TOO_LONG)?];
        self.file.read_exact_at(&mut read, offset).map_err(|_| CUT_SHORT)?;
        Ok(read)
    }
}

/// A table of symbols as it is in the file.
#[derive(Debug)]
pub(super) struct Table {
    /// Of those that other objects may use only: it may have few, far apart.
    pub(super) of_the_loader: bool,
    pub(super) symbols: Vec<u8>,
    pub(super) strings: Vec<u8>,
}

fn segment(entry: &[u8]) -> Segment {
    Segment {
        kind: u32_at(entry, 0),
        flags: u32_at(entry, 4),
        offset: u64_at(entry, 8),
        address: u64_at(entry, 16),
        bytes: u64_at(entry, 32),
    }
}

fn section(entry: &[u8]) -> Section {
    Section {
        name: String::new(),
        kind: u32_at(entry, 4),
        flags: u64_at(entry, 8),
        address: u64_at(entry, 16),
        offset: u64_at(entry, 24),
        bytes: u64_at(entry, 32),
        link: u32_at(entry, 40),
    }
}

/// Among notes, each of `namesz descsz type name desc`, the parts padded to 4 bytes.
fn build_id(mut notes: &[u8]) -> Option<BuildId> {
    loop {
        let head = notes.get(..12)?;
        let (name, desc) = (u32_at(head, 0) as usize, u32_at(head, 4) as usize);
        let desc_at = 12 + name.checked_next_multiple_of(4)?;
        let end = desc_at.checked_add(desc)?;
        if u32_at(head, 8) == NT_GNU_BUILD_ID && notes.get(12..12 + name)? == b"GNU\0" {
            return BuildId::new(notes.get(desc_at..end)?);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

/// The string that starts at `at`; `None` if it does not end within what a name may have.
pub(super) fn string(strings: &[u8], at: u32) -> Option<&[u8]> {
    let rest = strings.get(at as usize..)?;
    let name = rest.get(..rest.len().min(NAME_BYTES_MAX))?;
    name.iter().position(|&byte| byte == 0).and_then(|end| name.get(..end))
}

// Beyond the end there are zeros: no entry is cut short, as `chunks_exact` and the arrays see to.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, at))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, at))
}

pub(super) const HEAD_BYTES: usize = 64;
pub(super) const SECTION: usize = 64;
pub(super) const SYMBOL: usize = 24;
const SEGMENT: usize = 56;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHT_DYNSYM: u32 = 11;
const NT_GNU_BUILD_ID: u32 = 3;

/// Four million symbols, as many as we take of the kernel; a browser's library has one.
const SYMBOLS_BYTES_MAX: u64 = (SYMBOL as u64) << 22;
const STRINGS_BYTES_MAX: u64 = 256 << 20;
/// Of sections; 64 Ki sections of a usual name.
const NAMES_BYTES_MAX: u64 = 4 << 20;
/// C++ makes names of thousands of bytes.
const NAME_BYTES_MAX: usize = 16 << 10;
const NOTE_BYTES_MAX: u64 = 64 << 10;
const NOTES_MAX: usize = 64;

const NO_ELF: Refused = "is no ELF file of 64 bits";
const CUT_SHORT: Refused = "is shorter than it says";
const TOO_LONG: Refused = "has tables of symbols or names too long to be true";
const TOO_MUCH: Refused = "was not read: this and the other files have more symbols, or more debug \
                           information, than is read in all";

#[cfg(test)]
mod tests {
    use super::*;

    /// A note as a linker writes it.
    fn note(kind: u32, name: &[u8], desc: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            note.extend(word.to_le_bytes());
        }
        for part in [name, desc] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes_and_cut_notes_have_none() {
        let id = [0xab; 20];
        let notes = [note(1, b"GNU\0", &[0; 16]), note(5, b"x\0", &[1]), note(3, b"GNU\0", &id)];
        let notes = notes.concat();
        assert_eq!(build_id(&notes).unwrap().as_bytes(), id);
        for len in 0..notes.len() {
            assert_eq!(build_id(&notes[..len]), None, "{len} bytes");
        }
        assert_eq!(build_id(&note(3, b"XYZ\0", &id)), None);
        assert_eq!(build_id(&[0xff; 64]), None);
    }

    #[test]
    fn this_program_has_a_build_id_as_its_linker_prints_it_and_its_code_has_addresses() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::read(&file).unwrap();
        assert!(elf.sections().iter().any(|section| section.name == ".symtab"));
        let tables = elf.tables(&mut Budget::new(1 << 30)).unwrap();
        assert!(tables.iter().any(|table| table.symbols.len() > 1000 * SYMBOL));
        let text = elf.sections().iter().find(|section| section.name == ".text").unwrap();
        assert_eq!(elf.address(text.offset + 5), Some(text.address + 5));
        assert_eq!(elf.address(u64::MAX), None);
        let noted = elf.sections().iter().any(|section| section.name == ".note.gnu.build-id");
        assert_eq!(elf.build_id().is_some(), noted);
        // Nothing is read beyond what is allowed.
        assert_eq!(elf.tables(&mut Budget::new(1000)).unwrap_err(), TOO_MUCH);
    }

    #[test]
    fn a_file_cut_or_overwritten_anywhere_is_refused_or_read_and_no_panic() {
        let path = std::env::temp_dir().join(format!("linerate-elf-{}", std::process::id()));
        let whole = std::fs::read("/bin/true").unwrap();
        let head = whole.len().min(400);
        for at in (0..head).chain([whole.len() / 2, whole.len() - 1]) {
            for fill in [0, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = fill);
                std::fs::write(&path, &bytes).unwrap();
                let file = File::open(&path).unwrap();
                if let Ok(elf) = Elf::read(&file) {
                    let _ = (elf.build_id(), elf.tables(&mut Budget::new(1 << 20)));
                    let _ = elf.address(at as u64);
                }
            }
            std::fs::write(&path, &whole[..at]).unwrap();
            let file = File::open(&path).unwrap();
            assert!(Elf::read(&file).is_err(), "{at} bytes");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
