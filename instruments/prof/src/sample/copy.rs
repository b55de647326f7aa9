//! A file of our own that holds what names need of a program's file, and nothing else: no link to
//! another file, no length that we have not checked, and nobody can cut it short.
//!
//! ```text
//! ELF head | list of sections: null, .shstrtab, parts | names of the sections | part | part ...
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::elf::{HEAD_BYTES, SECTION, SYMBOL};

/// A private, sealed copy; it is gone when this is dropped.
#[derive(Debug)]
pub(super) struct Copy {
    file: File,
}

/// A section of the copy.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) bytes: Vec<u8>,
}

impl Copy {
    /// A file of these sections.
    ///
    /// # Errors
    /// As the kernel lends no memory for it.
    pub(super) fn of(machine: u16, parts: &[Part]) -> io::Result<Copy> {
        let fd = memfd_create("symbols", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(fd);
        let mut names = b"\0.shstrtab\0".to_vec();
        let listed = HEAD_BYTES + SECTION * (parts.len() + 2);
        let own = 1 + names.len() + parts.iter().map(|part| part.name.len() + 1).sum::<usize>();
        let own = own.next_multiple_of(ALIGN);
        let mut at = listed + own;
        let mut list = vec![0; SECTION];
        list.extend(entry(1, SHT_STRTAB, 0, listed, own));
        for part in parts {
            list.extend(entry(names.len(), part.kind, part.flags, at, part.bytes.len()));
            names.extend(part.name.bytes().chain([0]));
            at += part.bytes.len().next_multiple_of(ALIGN);
        }
        names.resize(own, 0);
        file.write_all(&head(machine, parts.len() + 2))?;
        file.write_all(&list)?;
        file.write_all(&names)?;
        for part in parts {
            file.write_all(&part.bytes)?;
            let padded = part.bytes.len().next_multiple_of(ALIGN) - part.bytes.len();
            file.write_all(&[0; ALIGN][..padded])?;
        }
        // Its path is open to every process of this user.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok(Copy { file })
    }

    /// Where it can be opened, as long as this lives.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

impl Part {
    /// The table of these symbols, each an address and a name, and their strings.
    pub(super) fn symbols<'a>(symbols: impl Iterator<Item = (u64, &'a [u8])>) -> [Part; 2] {
        let (mut table, mut strings) = (vec![0; SYMBOL], vec![0]);
        for (address, name) in symbols {
            let Ok(at) = u32::try_from(strings.len()) else { break };
            table.extend(at.to_le_bytes());
            // A global function, in a section, of one byte.
            table.extend([0x12, 0, 1, 0]);
            table.extend(address.to_le_bytes());
            table.extend(1u64.to_le_bytes());
            strings.extend(name.iter().chain(&[0]));
        }
        let part = |name: &str, kind, bytes| Part { name: name.to_owned(), kind, flags: 0, bytes };
        [part(".symtab", SHT_SYMTAB, table), part(".strtab", SHT_STRTAB, strings)]
    }
}

/// Of `type machine version entry phoff shoff flags ehsize phentsize phnum shentsize shnum shstrndx`
/// behind the mark of the format.
fn head(machine: u16, sections: usize) -> Vec<u8> {
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    head.extend(ET_DYN.to_le_bytes());
    head.extend(machine.to_le_bytes());
    head.extend(1u32.to_le_bytes());
    head.extend([0; 16]);
    head.extend((HEAD_BYTES as u64).to_le_bytes());
    head.extend([0; 4]);
    for short in [HEAD_BYTES, 56, 0, SECTION, sections, 1] {
        // Some ten sections: far from what 16 bits hold.
        head.extend((short as u16).to_le_bytes());
    }
    head
}

/// Of `name type flags address offset size link info align entry`.
fn entry(name: usize, kind: u32, flags: u64, offset: usize, bytes: usize) -> Vec<u8> {
    let mut entry = (name as u32).to_le_bytes().to_vec();
    entry.extend(kind.to_le_bytes());
    let of_each = if kind == SHT_SYMTAB { SYMBOL as u64 } else { 0 };
    for long in [flags, 0, offset as u64, bytes as u64, 0, ALIGN as u64, of_each] {
        entry.extend(long.to_le_bytes());
    }
    entry
}

const ALIGN: usize = 8;
const ET_DYN: u16 = 3;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::elf::Elf;
    use super::*;

    #[test]
    fn a_copy_has_its_sections_and_nobody_can_cut_it() {
        let symbols = [(0x1000, &b"f"[..]), (0x2000, b"g")];
        let copy = Copy::of(62, &Part::symbols(symbols.into_iter())).unwrap();
        let file = File::options().read(true).write(true).open(copy.path()).unwrap();
        let elf = Elf::read(&file).unwrap();
        let names: Vec<_> = elf.sections().iter().map(|section| section.name.as_str()).collect();
        assert_eq!(names, ["", ".shstrtab", ".symtab", ".strtab"]);
        assert_eq!(elf.sections()[2].bytes, 3 * SYMBOL as u64);
        assert!(file.set_len(0).is_err());
        assert!((&file).write_all(b"x").is_err());
    }
}
