//! `cargo xtask qemu irqs` and similar commands: a guest whose output is a table. Its init, a
//! script of that name, prints `guest: cell PART|..|COLUMN|FIGURE` for each figure, `guest: n/a
//! WHAT|WHY` for each part that it could not run, and `guest: wrong WHAT|WHY` for each result that
//! is wrong.
//!
//! Where a guest's time is the number of its instructions (`-icount`), nothing that this machine
//! does beside changes a figure, and a guest that waits skips the wait. What is counted is the
//! driver's and the kernel's; how fast it goes is no machine's.

#[cfg(test)]
mod batch;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::cargo;
use crate::qemu::guest::Root;
use crate::qemu::kernel::{self, Kernel, Series};
use crate::qemu::{boot, impossible, programs};
use crate::steps::Done;

/// A kind of guest, with its script and its devices.
pub struct Subject {
    /// The name on the command line.
    pub name: &'static str,
    /// The title of the table.
    title: &'static str,
    /// Settings for the script, by name, with their defaults: numbers, or words.
    settings: &'static [(&'static str, &'static str)],
    init: &'static str,
    kernels: &'static [Series],
    modules: &'static [&'static str],
    /// QEMU's device and hub of each card, in the order of their addresses.
    cards: &'static [(&'static str, u32)],
    /// Additional options for QEMU.
    machine: &'static [&'static str],
    /// Names of programs of this machine that the guest needs, in addition to [`BUILT`].
    programs: &'static [&'static str],
    /// A package whose library's tests the script runs, at the path `/tests/NAME`.
    tests: &'static str,
}

/// QEMU's options for virtual time: each instruction takes 4 ns.
const BY_INSTRUCTIONS: &[&str] = &["-icount", "shift=2,sleep=off"];
const NEWEST: &[Series] = kernel::WITH_CARDS.split_at(1).1;

/// QEMU's options for virtual time: each instruction takes 1 ns.
const BY_FAST_INSTRUCTIONS: &[&str] = &["-icount", "shift=0,sleep=off"];

/// The same with two CPUs, which QEMU runs in turn.
const TWO_BY_FAST_INSTRUCTIONS: &[&str] = &["-icount", "shift=0,sleep=off", "-smp", "2"];

/// Packages of this tree, each with the program of it that every guest has.
const BUILT: [(&str, &str); 4] = [
    ("linerate-lines", "lines-load"),
    ("linerate-cli", "linerate"),
    ("linerate-lab-cli", "linerate-lab"),
    ("linerate-tests", "planted"),
];

/// All kinds of guests. The driver of an 82540, QEMU's e1000, sets no interrupt moderation.
pub const SUBJECTS: [Subject; 8] = [
    Subject {
        name: "irqs",
        title: "Packets an interrupt, of datagrams in frames of 1514 bytes, so many a second of the guest's time",
        settings: &[("loads", "2000,5000,10000"), ("count", "1000")],
        init: concat!(include_str!("table.sh"), include_str!("irqs.sh")),
        kernels: &kernel::WITH_CARDS,
        modules: &["virtio_pci", "virtio_net", "e1000", "pktgen"],
        cards: &[
            ("e1000-82545em,mitigation=off", 0),
            ("e1000-82545em,mitigation=on", 0),
            ("virtio-net-pci", 0),
            ("e1000-82545em", 0),
        ],
        machine: BY_INSTRUCTIONS,
        programs: &["ethtool"],
        tests: "",
    },
    Subject {
        name: "batch",
        title: "Post 002's matrix on veth and on e1000, in the guest's time: kB/s, and segments sent again",
        settings: &[("seconds", "1")],
        init: concat!(include_str!("table.sh"), include_str!("batch.sh")),
        kernels: NEWEST,
        modules: &["e1000", "veth"],
        cards: &[("e1000", 0), ("e1000", 0)],
        machine: BY_INSTRUCTIONS,
        programs: &["ethtool", "iperf3"],
        tests: "",
    },
    Subject {
        name: "triage",
        title: "Which part loses: segments sent again by veth and by e1000, with a fault of batches planted",
        settings: &[
            ("seconds", "1"),
            ("tests", "2"),
            ("sizes", "512,4096"),
            ("connections", "8"),
            ("caps", "1,64"),
            ("lost", "100"),
        ],
        init: concat!(include_str!("table.sh"), include_str!("triage.sh")),
        kernels: NEWEST,
        modules: &["e1000", "veth"],
        cards: &[("e1000", 0), ("e1000", 0)],
        machine: BY_INSTRUCTIONS,
        programs: &["ethtool", "iperf3"],
        tests: "",
    },
    Subject {
        name: "shape",
        title: "A ping beside eight TCP streams through 10 Mbit/s, in the guest's time",
        settings: &[("pings", "200"), ("limit", "200")],
        init: concat!(include_str!("table.sh"), include_str!("shape.sh")),
        kernels: NEWEST,
        modules: &["veth", "bridge", "sch_tbf", "sch_fq_codel"],
        cards: &[],
        machine: BY_INSTRUCTIONS,
        programs: &["ethtool", "iperf3", "ping"],
        tests: "",
    },
    Subject {
        name: "fabric",
        title: "Post 000's path on an e1000, into a reader in another process; an instruction takes 1 ns",
        settings: &[("count", "40000"), ("rate", "81274"), ("bursts", "64")],
        init: concat!(include_str!("table.sh"), include_str!("fabric.sh")),
        kernels: NEWEST,
        modules: &["e1000", "af_packet_diag", "xsk_diag"],
        cards: &[("e1000", 0), ("e1000", 0)],
        machine: BY_FAST_INSTRUCTIONS,
        programs: &["ethtool"],
        tests: "",
    },
    Subject {
        name: "lab",
        title: "An experiment of the lab on one CPU that nothing disturbs: its time is the number of its instructions",
        settings: &[("id", "batch-bus"), ("only", "all"), ("window", "100"), ("pairs", "7")],
        init: concat!(include_str!("table.sh"), include_str!("lab.sh")),
        kernels: NEWEST,
        modules: &["veth", "tun", "af_packet_diag", "xsk_diag"],
        cards: &[],
        machine: BY_FAST_INSTRUCTIONS,
        programs: &[],
        tests: "",
    },
    Subject {
        name: "device",
        title: "Post 000's path behind e1000, by the lab; two CPUs that QEMU runs in turn, an instruction takes 1 ns",
        settings: &[
            ("id", "fabric-device"),
            ("only", "list=post"),
            ("window", "300"),
            ("pairs", "11"),
        ],
        init: concat!(include_str!("table.sh"), include_str!("device.sh"), include_str!("lab.sh")),
        kernels: NEWEST,
        modules: &["e1000", "af_packet_diag", "xsk_diag"],
        cards: &[
            ("e1000", 0),
            ("e1000", 0),
            ("e1000", 1),
            ("e1000", 1),
            ("e1000", 2),
            ("e1000", 2),
        ],
        machine: TWO_BY_FAST_INSTRUCTIONS,
        programs: &["ethtool"],
        tests: "",
    },
    Subject {
        name: "zerocopy",
        title: "AF_XDP in zero-copy mode on two igb: QEMU from 8.0 and Linux from 6.14 have them (docs/qemu.md)",
        settings: &[("count", "10000")],
        init: concat!(include_str!("table.sh"), include_str!("zerocopy.sh")),
        kernels: NEWEST,
        modules: &["igb", "e1000", "xsk_diag", "af_packet_diag"],
        cards: &[("igb", 0), ("igb", 0), ("igb", 1), ("igb", 2), ("e1000", 1), ("e1000", 2)],
        machine: BY_INSTRUCTIONS,
        programs: &["ethtool"],
        tests: "linerate-port",
    },
];

/// The figures of a guest.
#[derive(Default)]
struct Told {
    /// Rows in the order of their arrival.
    rows: Vec<Row>,
    columns: Vec<String>,
    lacking: Vec<String>,
    wrong: Vec<String>,
    applied: Vec<String>,
    /// Text that the guest printed, and a document that it gave.
    text: String,
    document: Vec<u8>,
}

/// A row: the parts of its name, and its figures by column.
struct Row {
    name: Vec<String>,
    figures: BTreeMap<String, String>,
}

/// Returns the subject of that name.
pub fn named(name: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().find(|subject| subject.name == name)
}

impl Subject {
    /// Runs a guest for each kernel, one after the other, and prints the table.
    pub fn run(&self, root: &Path, args: &[String]) -> Result<Done> {
        let settings = self.settings(args)?;
        if let Some(skipped) = impossible() {
            return Ok(skipped);
        }
        let target = std::path::absolute(cargo::target_dir(root))?;
        let cache = kernel::cache(&target);
        fs::create_dir_all(&cache)?;
        let mut build = cargo::cargo(root);
        build.args(["build", "--locked"]);
        build.args(BUILT.iter().flat_map(|(package, _)| ["--package", package]));
        build.args(BUILT.iter().flat_map(|(_, program)| ["--bin", program]));
        cargo::quiet(&mut build)?;
        let tests = match self.tests {
            "" => None,
            package => Some(programs::library_tests(root, package)?),
        };
        let (mut tolds, mut skipped) = (Vec::new(), Vec::new());
        let only = Kernel::told().map_or(self.kernels.len(), |_| 1);
        for series in &self.kernels[..only] {
            let kernel = Kernel::told().unwrap_or_else(|| Kernel::obtain(&cache, series));
            match kernel {
                Ok(kernel) => {
                    let told = self.one(&kernel, &target, &settings, tests.as_deref())?;
                    tolds.push((kernel.version, told));
                }
                Err(e) => skipped.push(format!("skipped: no Linux {}: {e:#}", series.name)),
            }
        }
        if tolds.is_empty() {
            return Ok(Done::with(String::new(), skipped));
        }
        print!("{}\n{}", self.title, table(&tolds));
        for (version, told) in &tolds {
            told.keep(&target.join("qemu").join(format!("{}.{version}.json.gz", self.name)))?;
        }
        let wrong = wrong(&tolds);
        if !wrong.is_empty() {
            bail!("{} wrong results\n{}", wrong.len(), wrong.join("\n"));
        }
        let rows: usize = tolds.iter().map(|(_, told)| told.rows.len()).sum();
        Ok(Done::with(format!("{rows} rows under {} kernels", tolds.len()), skipped))
    }

    /// Returns the settings and their defaults.
    pub fn usage(&self) -> String {
        let mut text = format!("usage: cargo xtask qemu {} [SETTING=VALUES ..]\n\n", self.name);
        text += &format!("  {}\n\n", self.title);
        for (name, value) in self.settings {
            text += &format!("  {name}={value} unless told\n");
        }
        text
    }

    /// Formats the settings for the kernel's command line, from which the script reads them.
    fn settings(&self, args: &[String]) -> Result<String> {
        let mut settings = self.settings.to_vec();
        for arg in args {
            let told = arg.split_once('=').and_then(|(name, value)| {
                let setting = settings.iter_mut().find(|(known, _)| *known == name)?;
                let is_number = |n: &str| n.parse::<u32>().is_ok_and(|n| n > 0);
                let is_plain = |c: char| c.is_ascii_alphanumeric() || "=,-".contains(c);
                let fits = match setting.1.split(',').all(is_number) {
                    true => value.split(',').all(is_number),
                    false => !value.is_empty() && value.chars().all(is_plain),
                };
                Some((setting, value, fits))
            });
            match told {
                Some((setting, value, true)) => setting.1 = value,
                _ => bail!("{arg}: cannot be asked for\n{}", self.usage()),
            }
        }
        let words: Vec<String> = settings.iter().map(|(name, v)| format!("{name}={v}")).collect();
        Ok(words.join(" "))
    }

    /// Boots a guest, and returns its rows.
    fn one(
        &self,
        kernel: &Kernel,
        target: &Path,
        settings: &str,
        tests: Option<&Path>,
    ) -> Result<Told> {
        let folder = target.join("qemu");
        let of = |end: &str| folder.join(format!("{}.{}.{end}", self.name, kernel.series));
        let (file_system, log) = (of("cpio"), of("log"));
        let guest = Root::new(&file_system)?;
        self.programs.iter().try_for_each(|name| guest.located(name))?;
        for (_, name) in BUILT {
            let program = programs::stripped(&target.join("debug").join(name), &folder);
            guest.program(&program, &format!("bin/{name}"))?;
        }
        if let Some(tests) = tests {
            let to = format!("tests/{}", self.tests.replace('-', "_"));
            guest.program(&programs::stripped(tests, &folder), &to)?;
        }
        guest.modules(kernel, self.modules)?;
        guest.pack(self.init, &file_system)?;
        let mut command = boot::table(&kernel.image(), &file_system, settings);
        command.args(self.machine);
        for (i, (device, hub)) in self.cards.iter().enumerate() {
            // Use a slot for each card, so that no two of the first four share an interrupt line.
            // The functions of an igb use two slots, the second sixteen after the first.
            let (slot, mac) = (4 + 3 * i, format!("02:00:00:00:04:0{i}"));
            let device = format!("{device},netdev=n{i},mac={mac},addr={slot:x},romfile=");
            let netdev = format!("hubport,id=n{i},hubid={hub}");
            command.args(["-netdev", &netdev, "-device", &device]);
        }
        eprintln!("qemu: {}, Linux {} ...", self.name, kernel.version);
        let (mut told, mut done) = (Told::default(), false);
        boot::run(command, &log, |line| {
            if let Some(line) = line.strip_prefix("guest: ") {
                done |= line == "done 0";
                told.line(line);
            }
        })?;
        fs::remove_file(&file_system)?;
        ensure!(done, "the guest did not end; its console is {}", log.display());
        ensure!(!told.is_empty(), "the guest said nothing; its console is {}", log.display());
        Ok(told)
    }
}

impl Told {
    /// Returns true if the guest said no figure, and of none what is wrong or lacking.
    fn is_empty(&self) -> bool {
        let reasons = self.wrong.len() + self.lacking.len();
        self.rows.is_empty() && self.document.is_empty() && reasons == 0
    }

    /// Prints the guest's text, and writes its document, if it gave one.
    fn keep(&self, to: &Path) -> Result<()> {
        print!("{}", self.text);
        if !self.document.is_empty() {
            fs::write(to, &self.document)?;
            println!("the document: {}", to.display());
        }
        Ok(())
    }

    /// Parses a line of the guest.
    fn line(&mut self, line: &str) {
        if let Some(lacking) = line.strip_prefix("n/a ") {
            self.lacking.push(lacking.replace('|', ": "));
        }
        if let Some(wrong) = line.strip_prefix("wrong ") {
            self.wrong.push(wrong.replace('|', ": "));
        }
        if let Some(applied) = line.strip_prefix("set ") {
            self.applied.push(applied.to_owned());
        }
        if let Some(text) = line.strip_prefix("text ") {
            self.text += &format!("{text}\n");
        }
        if let Some(hex) = line.strip_prefix("hex ") {
            let bytes = hex.as_bytes().chunks_exact(2).filter_map(|two| str::from_utf8(two).ok());
            self.document.extend(bytes.filter_map(|two| u8::from_str_radix(two, 16).ok()));
        }
        let Some(cell) = line.strip_prefix("cell ") else { return };
        let mut parts: Vec<String> = cell.split('|').map(str::to_owned).collect();
        let (Some(figure), Some(column)) = (parts.pop(), parts.pop()) else { return };
        let at = self.rows.iter().position(|row| row.name == parts);
        let at = at.unwrap_or_else(|| {
            self.rows.push(Row { name: parts, figures: BTreeMap::new() });
            self.rows.len() - 1
        });
        if !self.columns.contains(&column) {
            self.columns.push(column.clone());
        }
        self.rows[at].figures.insert(column, figure);
    }
}

/// Returns the wrong results of all guests.
fn wrong(tolds: &[(String, Told)]) -> Vec<String> {
    let of = |(version, told): &(String, Told)| {
        let lines = told.wrong.iter().map(|what| format!("Linux {version}: {what}"));
        lines.collect::<Vec<_>>()
    };
    tolds.iter().flat_map(of).collect()
}

/// Formats a row for each of the guests' rows, with a group of columns for each kernel; "-" stands
/// for a missing figure.
fn table(tolds: &[(String, Told)]) -> String {
    let (mut rows, mut columns) = (Vec::<&[String]>::new(), Vec::<&str>::new());
    for (_, told) in tolds {
        let names = told.rows.iter().map(|row| &row.name[..]);
        names.for_each(|name| {
            if !rows.contains(&name) {
                rows.push(name)
            }
        });
        let names = told.columns.iter().map(String::as_str);
        names.for_each(|name| {
            if !columns.contains(&name) {
                columns.push(name)
            }
        });
    }
    let width = columns.iter().map(|name| name.len()).max().unwrap_or(0).max(12);
    let parts = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let wide = |part: usize| {
        rows.iter().filter_map(|row| row.get(part)).map(|name| name.len()).max().unwrap_or(0)
    };
    let head: usize = (0..parts).map(|part| wide(part) + 2).sum();
    let mut text = format!("{:head$}", "");
    for (version, _) in tolds {
        let group = columns.len() * (width + 1);
        text += &format!("{:>group$}", format!("Linux {version}"));
    }
    text += &format!("\n{:head$}", "");
    for _ in tolds {
        columns.iter().for_each(|column| text += &format!(" {column:>width$}"));
    }
    text += "\n";
    for row in &rows {
        for part in 0..parts {
            let (name, wide) = (row.get(part).map_or("", String::as_str), wide(part) + 2);
            text += &format!("{name:wide$}");
        }
        for (_, told) in tolds {
            let figures = told.rows.iter().find(|known| known.name == *row);
            for column in &columns {
                let figure = figures.and_then(|row| row.figures.get(*column));
                let figure = figure.map_or("-", String::as_str);
                text += &format!(" {figure:>width$}");
            }
        }
        text += "\n";
    }
    for (version, told) in tolds {
        let lacking = told.lacking.iter().map(|why| format!("n/a under {version}: {why}\n"));
        text.extend(lacking);
        text.extend(told.applied.iter().map(|what| format!("set under {version}: {what}\n")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_subject_and_numbers() {
        let settings = |words: &str| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            named("irqs").unwrap().settings(&words)
        };
        assert_eq!(settings("").unwrap(), "loads=2000,5000,10000 count=1000");
        assert_eq!(settings("loads=1,2").unwrap(), "loads=1,2 count=1000");
        for wrong in ["loads", "loads=", "loads=1,0", "count=x", "init=/bin/sh", "--loads=1"] {
            assert!(settings(wrong).is_err(), "{wrong}");
        }
        let lab = |word: &str| named("lab").unwrap().settings(&[word.to_owned()]);
        assert!(lab("only=port=xdp,mode=fixed").is_ok() && lab("id=batch").is_ok());
        assert!(lab("id=").is_err() && lab("id=/bin/sh").is_err() && lab("window=x").is_err());
        assert!(
            SUBJECTS.iter().all(|one| ["guest: cell", "guest: hex"]
                .iter()
                .any(|form| one.init.contains(form)))
        );
    }

    #[test]
    fn figures_of_kernels_stand_side_by_side_and_what_was_not_told_is_a_dash() {
        let told = |lines: &str| {
            let mut told = Told::default();
            lines.lines().for_each(|line| told.line(line));
            told
        };
        let tolds = [
            (
                "6.1".into(),
                told(
                    "cell e1000|held|2000/s|4.0\nn/a virtio-net|not supported\nset queue 512\nhex 1f8b\n\
                     text receiver: 0",
                ),
            ),
            (
                "6.12".into(),
                told("cell e1000|held|2000/s|5.0\nwrong cause|none\ncell e1000|held|5000/s|9.0"),
            ),
        ];
        assert_eq!(wrong(&tolds), ["Linux 6.12: cause: none"]);
        assert_eq!(tolds[0].1.document, [0x1f, 0x8b]);
        assert_eq!(tolds[0].1.text, "receiver: 0\n");
        assert!(!tolds[1].1.is_empty() && told("text a card\nset queue 512").is_empty());
        assert!(!told("n/a e1000|no driver").is_empty() && !told("hex 1f8b").is_empty());
        let text = table(&tolds);
        let words: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["Linux", "6.1", "Linux", "6.12"]);
        assert_eq!(words[1], ["2000/s", "5000/s", "2000/s", "5000/s"]);
        assert_eq!(words[2], ["e1000", "held", "4.0", "-", "5.0", "9.0"]);
        assert_eq!(words[3].join(" "), "n/a under 6.1: virtio-net: not supported");
        assert_eq!(words[4].join(" "), "set under 6.1: queue 512");
    }
}
