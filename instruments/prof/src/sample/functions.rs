//! The functions of a program's file, by address: one for each, whatever its tables hold.

use super::elf::{SYMBOL, Section, Table, string, u16_at, u32_at, u64_at};

/// The functions of a file.
#[derive(Debug, Default)]
pub(super) struct Functions {
    by_address: Vec<Symbol>,
    strings: Vec<Vec<u8>>,
}

/// A symbol that names code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) address: u64,
    /// As its table says; 0 if that does not.
    pub(super) bytes: u64,
    /// Where it ends at the latest.
    end: u64,
    name: u32,
    table: u8,
    local: bool,
}

impl Functions {
    /// Of several symbols at one address the longest stays; of equal ones that with fewer
    /// underscores before its name, then one that is not local, then the first.
    pub(super) fn new(tables: Vec<Table>, sections: &[Section]) -> Functions {
        let mut functions = Functions::default();
        for (number, table) in (0..).zip(tables) {
            let of_the_loader = table.of_the_loader;
            let symbols = table.symbols.chunks_exact(SYMBOL);
            let symbols = symbols.filter_map(|entry| symbol(entry, number, sections));
            // The loader's table is sparse: what has no size there would reach over foreign code.
            functions.by_address.extend(symbols.filter(|found| !of_the_loader || found.bytes > 0));
            functions.strings.push(table.strings);
        }
        let mut all = std::mem::take(&mut functions.by_address);
        let underscores = |symbol: &Symbol| {
            let strings = functions.strings.get(usize::from(symbol.table));
            let name = strings.and_then(|strings| strings.get(symbol.name as usize..));
            let name = name.unwrap_or_default().iter().take(UNDERSCORES_TOLD);
            name.take_while(|&&byte| byte == b'_').count()
        };
        all.sort_by(|a, b| {
            let longer_first = a.address.cmp(&b.address).then_with(|| b.bytes.cmp(&a.bytes));
            longer_first
                .then_with(|| underscores(a).cmp(&underscores(b)))
                .then_with(|| a.local.cmp(&b.local))
        });
        all.dedup_by_key(|symbol| symbol.address);
        all.shrink_to_fit();
        functions.by_address = all;
        functions
    }

    /// The function that `address` is in, with the name that its linker knows it by.
    pub(super) fn find(&self, address: u64) -> Option<(Symbol, &[u8])> {
        let next = self.by_address.partition_point(|symbol| symbol.address <= address);
        let found = self.by_address.get(next.checked_sub(1)?)?;
        let name = (address < found.end).then(|| self.name(found))??;
        Some((*found, name))
    }

    fn name(&self, symbol: &Symbol) -> Option<&[u8]> {
        let name = string(self.strings.get(usize::from(symbol.table))?, symbol.name)?;
        (!name.is_empty()).then_some(name)
    }
}

/// An entry of `name info other section value size`, if it is a function's.
fn symbol(entry: &[u8], table: u8, sections: &[Section]) -> Option<Symbol> {
    let info = *entry.get(4)?;
    let section = u16_at(entry, 6);
    let local = info >> 4 == STB_LOCAL;
    let code = || {
        let section = sections.get(usize::from(section));
        section.is_some_and(|section| section.flags & SHF_EXECINSTR != 0)
    };
    match info & 15 {
        _ if section == SHN_UNDEF => return None,
        STT_FUNC | STT_GNU_IFUNC => {}
        // Assembler that does not say what its symbols are of.
        STT_NOTYPE if !local && code() => {}
        _ => return None,
    }
    let (address, bytes) = (u64_at(entry, 8), u64_at(entry, 16));
    let end = if bytes > 0 {
        address.checked_add(bytes)?
    } else {
        // It reaches to the next, but not out of its section: behind that of `_init` there is the
        // linkage table, which is none of it.
        let section = sections.get(usize::from(section))?;
        section.address.checked_add(section.bytes)?
    };
    Some(Symbol { address, bytes, end, name: u32_at(entry, 0), table, local })
}

const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;
const SHN_UNDEF: u16 = 0;
const SHF_EXECINSTR: u64 = 4;
/// A name of nothing else would take long to compare, again and again.
const UNDERSCORES_TOLD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: &[u8] = b"\0__f\0f\0g\0_init\0";

    fn entry(name: u32, info: u8, section: u16, address: u64, bytes: u64) -> Vec<u8> {
        let mut entry = name.to_le_bytes().to_vec();
        entry.extend([info, 0]);
        entry.extend(section.to_le_bytes());
        entry.extend(address.to_le_bytes());
        entry.extend(bytes.to_le_bytes());
        entry
    }

    fn functions(entries: &[Vec<u8>], of_the_loader: bool) -> Functions {
        let sections = [(0, 0), (0x1000, 0x20)].map(|(address, bytes)| Section {
            name: String::new(),
            kind: 1,
            flags: 0,
            address,
            offset: 0,
            bytes,
            link: 0,
        });
        let table = Table { of_the_loader, symbols: entries.concat(), strings: STRINGS.into() };
        Functions::new(vec![table], &sections)
    }

    fn name(functions: &Functions, address: u64) -> Option<&str> {
        functions.find(address).map(|(_, name)| std::str::from_utf8(name).unwrap())
    }

    #[test]
    fn a_function_has_its_bytes_and_one_name_of_several() {
        const GLOBAL: u8 = 1 << 4 | STT_FUNC;
        let all = functions(
            &[
                entry(1, GLOBAL, 1, 0x1000, 8),
                entry(5, STT_FUNC, 1, 0x1000, 8),
                entry(7, GLOBAL, 1, 0x1000, 4),
                entry(7, 1, 1, 0x1002, 1),
                entry(7, STT_FUNC, SHN_UNDEF, 0x1003, 1),
            ],
            false,
        );
        assert_eq!(name(&all, 0x0fff), None);
        assert_eq!(name(&all, 0x1007), Some("f"));
        assert_eq!(all.find(0x1004).unwrap().0.bytes, 8);
        assert_eq!(name(&all, 0x1008), None);
    }

    #[test]
    fn a_symbol_without_a_size_ends_with_its_section_and_the_loaders_names_nothing() {
        let entries = [entry(9, STT_FUNC, 1, 0x1010, 0)];
        let all = functions(&entries, false);
        assert_eq!(name(&all, 0x101f), Some("_init"));
        assert_eq!(name(&all, 0x1020), None);
        assert_eq!(name(&functions(&entries, true), 0x1010), None);
    }

    #[test]
    fn symbols_that_cannot_be_name_nothing() {
        let all = functions(
            &[
                entry(5, STT_FUNC, 1, u64::MAX - 3, 8),
                entry(5, STT_FUNC, 77, 0x3000, 0),
                entry(900, STT_FUNC, 1, 0x2000, 8),
                entry(0, STT_FUNC, 1, 0x4000, 8),
            ],
            false,
        );
        for address in [0x2000, 0x3000, 0x4000, u64::MAX - 2, u64::MAX] {
            assert_eq!(name(&all, address), None, "{address:#x}");
        }
    }

    /// Each lookup took as long as there are symbols at its address.
    #[test]
    fn a_million_symbols_at_one_address_are_one() {
        let entries = entry(5, STT_FUNC, 1, 0x1000, 8).repeat(1_000_000);
        let all = functions(&[entries], false);
        assert_eq!(all.by_address.len(), 1);
    }
}
