//! Transfers of cache lines by function: figures of a model, read from the output of the plugin in
//! `instruments/lines`.
//!
//! ```text
//! file of the plugin ─ Transfers ─ names ─ Function, Function, … ─┬─ Profile of one event
//!                                 (ELF, kallsyms)                 └─ table of all kinds
//! ```
//!
//! The form of the file is at the head of `instruments/lines/src/report.rs`. It comes from a run
//! that its reader may not have made: a line that is not understood is an error with its number.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::BufRead;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};
use linerate_show::grid::Grid;
use linerate_show::number;
use linerate_sys::{Code, Error, Result};
use serde::Serialize;

use crate::pmu::Quantity;
use crate::print::{MODEL, harmless, short};
use crate::profile::{Event, Origin, Profile, Row, Space, Unit};
use crate::sample::kallsyms::Kallsyms;
use crate::stage::stage_of;

/// The first line of the plugin's output.
const FIRST: &str = "linerate-lines 1";
/// First address of the kernel.
const KERNEL: u64 = 1 << 47;
/// Most instructions, and most mappings, that are read.
const MOST: usize = 1 << 21;

/// The content of the plugin's output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transfers {
    /// True for a guest's kernel, false for a program.
    pub system: bool,
    /// Number of threads, or of the guest's CPUs, that accessed memory.
    pub cpus: u64,
    /// Number of threads or CPUs that share the model's entry of another one.
    pub sharing: u64,
    /// Number of memory accesses that the model followed.
    pub accesses: u64,
    /// Number of packets, if the program reported it.
    pub packets: u64,
    /// Lines that a cache lost because a device wrote them.
    pub device: u64,
    /// Sets and ways of each cache, if its size was limited.
    pub l2: Option<(u64, u64)>,
    /// Names of requests that the emulator refused.
    pub refused: Vec<String>,
    maps: Vec<Map>,
    sites: Vec<(u64, Counts)>,
}

/// The counts of an instruction or function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Loads of a line that another CPU wrote last, and that no other CPU has loaded since.
    pub read: u64,
    /// Stores to a line that other CPUs held.
    pub write: u64,
    /// Lines that entered the cache.
    pub lines_in: u64,
    /// Lines that left the cache.
    pub lines_out: u64,
}

/// A function and its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Function {
    /// The function's name.
    pub symbol: String,
    /// The function's file, or `[module]`.
    pub object: Option<String>,
    /// The space of the function: kernel or user.
    #[serde(skip)]
    pub space: Space,
    /// Start address, in its file or in the kernel.
    #[serde(skip)]
    pub address: Option<u64>,
    /// Length of the function's code in bytes.
    #[serde(skip)]
    pub code_bytes: Option<u64>,
    /// The sums over the function's instructions.
    #[serde(flatten)]
    pub counts: Counts,
}

/// A file mapped in the process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Map {
    start: u64,
    end: u64,
    offset: u64,
    file: String,
}

/// The events that the model has a count for.
pub const EVENTS: [Quantity; 3] =
    [Quantity::LinesFromOtherCore, Quantity::L2LinesIn, Quantity::L2LinesOut];

impl Counts {
    /// Returns the count of `event`: transfers of both kinds, lines in, or lines out.
    #[must_use]
    pub const fn of(&self, event: Quantity) -> u64 {
        match event {
            Quantity::LinesFromOtherCore => self.read.saturating_add(self.write),
            Quantity::L2LinesIn => self.lines_in,
            Quantity::L2LinesOut => self.lines_out,
            _ => 0,
        }
    }

    const fn add(&mut self, other: Counts) {
        self.read = self.read.saturating_add(other.read);
        self.write = self.write.saturating_add(other.write);
        self.lines_in = self.lines_in.saturating_add(other.lines_in);
        self.lines_out = self.lines_out.saturating_add(other.lines_out);
    }
}

/// Returns the event of that name, in any case and with dashes or underscores.
///
/// # Errors
/// `E-UNSUPPORTED` for any other, with those that the model has.
pub fn event(name: &str) -> Result<Quantity> {
    let wanted = name.trim().replace('-', "_");
    let found = EVENTS.into_iter().find(|event| event.as_str().eq_ignore_ascii_case(&wanted));
    found.ok_or_else(|| {
        let why = "the model follows cache lines, and has no time and no instructions";
        let known = EVENTS.map(Quantity::as_str).join(", ");
        Error::new(Code::Unsupported, format!("cannot count {name:?} in the model"), why)
            .fix(format!("one of {known}; `linerate profile record` samples the others"))
    })
}

impl Transfers {
    /// Parses the plugin's output.
    ///
    /// # Errors
    /// `E-FILE` with the number of the first line that is not understood, or if the output is not
    /// whole.
    pub fn read(text: &str) -> Result<Transfers> {
        let failed = |why: String| {
            Error::new(Code::File, "cannot read what the plugin left", why)
                .fix("linerate lines -- COMMAND makes another")
        };
        let refused = |n: usize| failed(format!("line {} is not understood", n + 1));
        let mut lines = text.lines().enumerate();
        if lines.next().is_none_or(|(_, first)| first != FIRST) {
            return Err(refused(0));
        }
        let mut found = Transfers::default();
        let mut end = None;
        for (n, line) in lines {
            if end.is_some() {
                return Err(refused(n));
            }
            if let Some(sites) = line.strip_prefix("end ") {
                end = Some(sites.parse::<usize>().map_err(|_| refused(n))?);
                continue;
            }
            let full = found.sites.len() >= MOST || found.maps.len() >= MOST;
            found.line(line).filter(|()| !full).ok_or_else(|| refused(n))?;
        }
        if end != Some(found.sites.len()) {
            let n = found.sites.len();
            let why = format!("it is not whole: no line \"end {n}\" follows its {n} instructions");
            return Err(failed(why));
        }
        Ok(found)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (word, rest) = line.split_once(' ')?;
        match word {
            "mode" => self.system = rest == "system",
            "cpus" => self.cpus = rest.parse().ok()?,
            "sharing" => self.sharing = rest.parse().ok()?,
            "accesses" => self.accesses = rest.parse().ok()?,
            "packets" => self.packets = rest.parse().ok()?,
            "device" => self.device = rest.parse().ok()?,
            "l2" => {
                let (sets, ways) = rest.split_once(' ')?;
                self.l2 = Some((sets.parse().ok()?, ways.parse().ok()?));
            }
            "refused" => self.refused.push(rest.to_owned()),
            "map" => {
                let mut words = rest.splitn(4, ' ');
                let mut number = || hex(words.next()?);
                let (start, end, offset) = (number()?, number()?, number()?);
                self.maps.push(Map { start, end, offset, file: words.next()?.to_owned() });
            }
            "pc" => {
                let mut words = rest.split(' ');
                let pc = hex(words.next()?)?;
                let counts = words.map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>()?;
                let [read, write, lines_in, lines_out] = counts[..] else { return None };
                self.sites.push((pc, Counts { read, write, lines_in, lines_out }));
            }
            _ => return None,
        }
        Some(())
    }

    /// Names the functions and sums up their instructions: by the files of a program, or by the
    /// text of a guest's /proc/kallsyms, where all programs are one row, `USER`, as in the post.
    #[must_use]
    pub fn functions(&self, kallsyms: Option<impl BufRead>) -> Vec<Function> {
        let named = match kallsyms {
            Some(list) => self.in_kernel(&Kallsyms::read(list)),
            None => self.in_files(),
        };
        let mut all = BTreeMap::<(String, Option<String>), Function>::new();
        for (mut function, counts) in named {
            function.symbol = harmless(&function.symbol).into_owned();
            let key = (function.symbol.clone(), function.object.clone());
            all.entry(key).or_insert(function).counts.add(counts);
        }
        all.into_values().collect()
    }

    fn in_kernel(&self, names: &Kallsyms) -> Vec<(Function, Counts)> {
        let name = |&(pc, counts): &(u64, Counts)| {
            let found = names.find(pc);
            let function = match found {
                _ if pc < KERNEL => Function::plain("USER", None, Space::User),
                Some(found) => Function {
                    address: Some(found.address),
                    code_bytes: found.bytes,
                    ..Function::plain(
                        found.name,
                        Some(format!("[{}]", found.module.unwrap_or("kernel"))),
                        Space::Kernel,
                    )
                },
                None => {
                    Function::plain("[kernel: no symbol]", Some("[kernel]".into()), Space::Kernel)
                }
            };
            (function, counts)
        };
        self.sites.iter().map(name).collect()
    }

    fn in_files(&self) -> Vec<(Function, Counts)> {
        let mut by_file = HashMap::<&str, Vec<(u64, Counts)>>::new();
        let mut named = Vec::new();
        let mut maps: Vec<_> = self.maps.iter().collect();
        maps.sort_by_key(|map| map.start);
        for &(pc, counts) in &self.sites {
            let before = maps.partition_point(|map| map.start <= pc).checked_sub(1);
            match before.map(|at| maps[at]).filter(|map| pc < map.end) {
                Some(map) => {
                    let offset = (pc - map.start).saturating_add(map.offset);
                    by_file.entry(&map.file).or_default().push((offset, counts));
                }
                None => named.push((Function::plain("[unknown]", None, Space::User), counts)),
            }
        }
        let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false);
        let symbolizer = symbolizer.build();
        for (file, sites) in by_file {
            // The names are those of the profile's maker: a pipe or a device would not end.
            let is_file = std::fs::metadata(file).is_ok_and(|found| found.is_file());
            let mut elf = Elf::new(if is_file { file } else { "/nonexistent" });
            elf.debug_syms = false;
            let offsets: Vec<u64> = sites.iter().map(|(offset, _)| *offset).collect();
            let source = Source::Elf(elf);
            let found = symbolizer.symbolize(&source, Input::FileOffset(&offsets));
            // The functions of a file that cannot be read have no names; they become a row with the
            // file's name.
            let mut found = found.unwrap_or_default().into_iter();
            for (_, counts) in sites {
                let object = Some(file.to_owned());
                let function = match found.next() {
                    Some(Symbolized::Sym(symbol)) => Function {
                        address: Some(symbol.addr),
                        code_bytes: symbol.size.and_then(|size| u64::try_from(size).ok()),
                        ..Function::plain(&symbol.name, object, Space::User)
                    },
                    _ => {
                        let short = file.rsplit('/').next().unwrap_or(file);
                        Function::plain(&format!("[{short}: no symbol]"), object, Space::User)
                    }
                };
                named.push((function, counts));
            }
        }
        named
    }

    /// Makes a profile of `event` from the functions, marked as a model's, with remarks.
    #[must_use]
    pub fn profile(&self, functions: &[Function], event: Quantity) -> Profile {
        let name = event.as_str().to_owned();
        let event_of = Event { name, unit: Unit::Events, period: None, raw: None };
        let mut profile = Profile::new(event_of, Origin::Model);
        let counted = functions.iter().filter(|function| function.counts.of(event) > 0);
        profile.rows = counted
            .map(|function| Row {
                symbol: function.symbol.clone(),
                address: function.address,
                count: function.counts.of(event),
                code_bytes: function.code_bytes,
                object: function.object.clone(),
                space: function.space,
                ..Row::default()
            })
            .collect();
        if event == Quantity::L2LinesOut && self.device > 0 {
            let row = Row { object: Some("[device]".into()), ..Row::new("[device]", self.device) };
            profile.rows.push(row);
        }
        profile.sort();
        profile.conditions.packets = (self.packets > 0).then_some(self.packets);
        profile.remarks = self.remarks();
        profile
    }

    fn remarks(&self) -> Vec<String> {
        let of = if self.system { "CPUs" } else { "threads" };
        let mut remarks = vec![format!(
            "a model of coherent caches followed {} accesses of {} {of}: no CPU was asked, and nothing here has a \
             duration",
            number::count(self.accesses),
            self.cpus
        )];
        remarks.push(match self.l2 {
            Some((sets, ways)) => {
                let bytes = sets.saturating_mul(ways).saturating_mul(64);
                format!("each cache: {} KiB, {ways} ways", bytes / 1024)
            }
            None => "each cache: unlimited, so that only other CPUs' stores push lines out".into(),
        });
        if !self.refused.is_empty() {
            remarks.push(refusal(&self.refused));
        }
        remarks
    }
}

/// Returns a remark on the requests that an emulator refused, with the ports that work under it.
fn refusal(refused: &[String]) -> String {
    let names: Vec<String> = refused.iter().map(|name| harmless(name).into_owned()).collect();
    format!(
        "QEMU's user mode refused {}, which Linux has: ports xdp: and packet: do not run there; ring:, memif:, pcap:, \
         gen:, null: and plain sockets do",
        names.join(", ")
    )
}

impl Function {
    fn plain(symbol: &str, object: Option<String>, space: Space) -> Function {
        let (address, code_bytes, counts) = (None, None, Counts::default());
        Function { symbol: symbol.to_owned(), object, space, address, code_bytes, counts }
    }
}

/// All kinds of transfers by function, sorted by `event`.
#[derive(Debug)]
pub struct Kinds<'a> {
    /// The functions to print.
    pub functions: &'a [Function],
    /// The event by which the functions are ranked.
    pub event: Quantity,
    /// Number of packets, for the column of transfers for each packet.
    pub packets: Option<u64>,
    /// Number of functions to print; the others are summed up.
    pub top: usize,
}

impl Kinds<'_> {
    fn cells(&self, name: String, stage: &str, counts: &Counts) -> [String; 7] {
        let each = match self.packets.filter(|n| *n > 0) {
            Some(n) => number::real(counts.of(self.event) as f64 / n as f64, 2),
            None => String::new(),
        };
        let Counts { read, write, lines_in, lines_out } = *counts;
        let [read, write, lines_in, lines_out] =
            [read, write, lines_in, lines_out].map(number::count);
        [name, stage.to_owned(), read, write, lines_in, lines_out, each]
    }
}

impl fmt::Display for Kinds<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranked: Vec<&Function> = self.functions.iter().collect();
        ranked.sort_by_key(|function| std::cmp::Reverse(function.counts.of(self.event)));
        let some = ranked.partition_point(|function| function.counts.of(self.event) > 0);
        let (top, rest) = ranked.split_at(self.top.min(some));
        let sum = |functions: &[&Function]| {
            let mut sum = Counts::default();
            functions.iter().for_each(|function| sum.add(function.counts));
            sum
        };
        let each = if self.packets.is_some() { self.event.as_str() } else { "" };
        let unit = if self.packets.is_some() { "a packet" } else { "" };
        let mut grid = Grid::new("llrrrrr");
        grid.cells(["function", "stage", "read", "write", "lines in", "lines out", each]);
        grid.cells(["", "", "transfers", "transfers", "events", "events", unit]);
        for function in top {
            let stage = stage_of(&function.symbol, function.object.as_deref(), function.space);
            grid.cells(self.cells(short(&function.symbol, 44), stage.as_str(), &function.counts));
        }
        if !rest.is_empty() {
            let name = format!("({} more)", number::count(rest.len() as u64));
            grid.cells(self.cells(name, "", &sum(rest)));
        }
        grid.cells(self.cells("total".to_owned(), "", &sum(&ranked)));
        MODEL.each_line(f, &grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: &str = "\
linerate-lines 1
mode system
cpus 4
accesses 1000
packets 10
device 7
l2 2048 8
refused AF_XDP
map 1000 2000 0 /nonexistent/a b
pc ffffffff81000050 3 4 9 1
pc ffffffff81000060 1 0 1 0
pc 401000 5 0 5 0
end 3
";

    const LIST: &str = "ffffffff81000040 t tcp_v4_rcv\nffffffff81000100 T do_two\n";

    #[test]
    fn a_kernel_s_functions_are_named_and_programs_are_one_row() {
        let left = Transfers::read(LEFT).unwrap();
        let functions = left.functions(Some(LIST.as_bytes()));
        let of = |event| {
            let profile = left.profile(&functions, event);
            assert_eq!((profile.origin, profile.conditions.packets), (Origin::Model, Some(10)));
            profile.rows.iter().map(|row| (row.symbol.clone(), row.count)).collect::<Vec<_>>()
        };
        let rows = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
            rows.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
        };
        assert_eq!(of(Quantity::LinesFromOtherCore), rows(&[("tcp_v4_rcv", 8), ("USER", 5)]));
        assert_eq!(of(Quantity::L2LinesOut), rows(&[("[device]", 7), ("tcp_v4_rcv", 1)]));
        let remarks = left.profile(&functions, Quantity::L2LinesIn).remarks.join("\n");
        assert!(remarks.contains("1024 KiB, 8 ways") && remarks.contains("refused AF_XDP"));
    }

    #[test]
    fn size_of_a_cache_that_exceeds_a_number_is_the_largest_one() {
        let huge = format!("l2 {} 1", u64::MAX / 2);
        let left = Transfers::read(&LEFT.replace("l2 2048 8", &huge)).unwrap();
        let remarks = left.profile(&[], Quantity::L2LinesIn).remarks.join("\n");
        assert!(remarks.contains("each cache: 18014398509481983 KiB, 1 ways"), "{remarks}");
    }

    #[test]
    fn a_file_that_is_gone_names_its_functions_by_itself() {
        let text = "linerate-lines 1\nmap 1000 2000 0 /nonexistent/a b\n\
                    pc 1800 1 2 3 4\npc 9 1 0 0 0\nend 2\n";
        let left = Transfers::read(text).unwrap();
        let functions = left.functions(None::<&[u8]>);
        let names: Vec<&str> = functions.iter().map(|f| f.symbol.as_str()).collect();
        assert_eq!(names, ["[a b: no symbol]", "[unknown]"]);
    }

    #[test]
    fn a_line_that_is_not_understood_is_named_by_its_number() {
        for (text, line) in [
            ("", 1),
            ("linerate-lines 2\n", 1),
            ("linerate-lines 1\nmode user\npc 40 1 2 3\n", 3),
            ("linerate-lines 1\npc xyz 1 2 3 4\n", 2),
            ("linerate-lines 1\nmap 1 2 3\n", 2),
            ("linerate-lines 1\nsomething\n", 2),
            ("linerate-lines 1\ncpus -1\n", 2),
            ("linerate-lines 1\nend x\n", 2),
            ("linerate-lines 1\nend 0\npc 1800 1 2 3 4\n", 3),
        ] {
            let e = Transfers::read(text).unwrap_err();
            assert_eq!(e.why, format!("line {line} is not understood"), "{text:?}");
        }
    }

    #[test]
    fn output_that_is_not_whole_is_refused() {
        let (start, _) = LEFT.split_once("pc 401000").unwrap();
        for text in [start.to_owned(), format!("{start}end 3\n"), LEFT.replace("end 3\n", "")] {
            let e = Transfers::read(&text).unwrap_err();
            assert!(e.why.starts_with("it is not whole"), "{text:?}: {e}");
        }
    }

    #[test]
    fn every_line_of_the_table_says_that_it_is_a_model_s() {
        let left = Transfers::read(LEFT).unwrap();
        let functions = left.functions(Some(LIST.as_bytes()));
        let event = Quantity::LinesFromOtherCore;
        let table = Kinds { functions: &functions, event, packets: Some(10), top: 1 }.to_string();
        assert!(table.lines().all(|line| line.starts_with("MODEL")), "{table}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let last = table.lines().last().map(words).unwrap();
        assert_eq!(last, ["MODEL", "total", "9", "4", "15", "1", "1.30"]);
        assert!(table.contains("(1 more)"), "{table}");
    }

    #[test]
    fn events_are_called_as_everywhere_and_others_refused_with_the_known_ones() {
        assert_eq!(event("l2-lines-out").unwrap(), Quantity::L2LinesOut);
        let e = event("cycles").unwrap_err();
        assert!(e.code == Code::Unsupported && e.fix.contains("LINES_FROM_OTHER_CORE"), "{e}");
    }
}
