//! The guest's root file system: programs of this machine with their libraries, the kernel's
//! modules, the tests, and a first process that runs them. It lives in memory and ends with it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::qemu::cpio::Cpio;
use crate::qemu::kernel::Kernel;
use crate::qemu::programs::{self, Programs};
use crate::qemu::{TEST_LIMIT_SECONDS, modules};

/// The first process, and the scenarios that it runs behind the tests.
const INIT: &str = include_str!("init.sh");
const SCENARIOS: &str = include_str!("scenarios.sh");

/// Programs that tests and scenarios call. If one is missing here it is missing in the guest, and they say
/// so.
const PROGRAMS: [&str; 7] = ["ip", "tc", "ping", "ethtool", "tcpdump", "strace", "iperf3"];

/// Programs of every guest, with their packages; busybox answers to all other names.
pub const NEEDED: [(&str, &str); 4] =
    [("busybox", "busybox-static"), ("dash", "dash"), ("ip", "iproute2"), ("tc", "iproute2")];

/// Users of the guest. tcpdump becomes its own user after it has opened what only root may.
const USERS: &str = "root:x:0:0::/tmp:/bin/sh\ntcpdump:x:100:100::/tmp:/bin/false\n";

/// The programs to run in a guest.
pub struct Load<'a> {
    /// The test programs and the command line.
    pub programs: &'a Programs,
    /// Filter on the names of the tests and scenarios to run.
    pub only: &'a str,
}

impl Load<'_> {
    /// Returns the number of tests and scenarios.
    pub fn count(&self) -> usize {
        self.programs.tests.iter().map(|tests| tests.count).sum::<usize>()
            + scenarios(self.only).count()
    }

    /// Returns the number of programs that will report their end.
    pub fn ends(&self) -> usize {
        self.programs.tests.len() + usize::from(scenarios(self.only).next().is_some())
    }
}

/// Writes the root file system of a guest with `kernel` to `path`.
pub fn write(path: &Path, kernel: &Kernel, load: &Load<'_>) -> Result<()> {
    let file = File::create(path).with_context(|| format!("{}", path.display()))?;
    let mut root = Root { cpio: Cpio::new(BufWriter::new(file)), written: BTreeSet::new() };
    // Before there is a /dev, the first process can say nothing without it.
    root.folder("dev")?;
    root.cpio.device("dev/console", [5, 1])?;
    for folder in ["bin", "etc", "modules", "proc", "run/netns", "sys", "tests", "tmp", "usr"] {
        root.folder(folder)?;
    }
    for (link, target) in [("sbin", "bin"), ("usr/bin", "../bin"), ("usr/sbin", "../bin")] {
        root.cpio.link(link, target)?;
    }
    let needed = NEEDED.iter().map(|(program, _)| *program);
    for name in needed.chain(PROGRAMS).collect::<BTreeSet<_>>() {
        if let Some(program) = programs::located(name) {
            root.program(&format!("bin/{name}"), &program)?;
        }
    }
    root.cpio.link("bin/sh", "dash")?;
    root.program("bin/linerate", &load.programs.linerate)?;
    for tests in &load.programs.tests {
        root.program(&format!("tests/{}", tests.name), &tests.path)?;
    }
    let mut order = String::new();
    for module in modules::in_order(&kernel.modules())? {
        order += &format!("{}\n", module.name);
        root.cpio.file(&format!("modules/{}", module.name), &module.object)?;
    }
    root.cpio.file("etc/passwd", USERS.as_bytes())?;
    root.cpio.file("etc/modules", order.as_bytes())?;
    root.cpio.file("etc/settings", settings(load).as_bytes())?;
    root.cpio.file("etc/scenarios", SCENARIOS.as_bytes())?;
    root.cpio.file("init", INIT.as_bytes())?;
    root.cpio.finish()?;
    Ok(())
}

/// Returns the settings for the first process, as a shell reads them.
fn settings(load: &Load<'_>) -> String {
    let tests: Vec<&str> = load.programs.tests.iter().map(|tests| tests.name.as_str()).collect();
    let scenarios: Vec<&str> = scenarios(load.only).collect();
    format!(
        "tests='{}'\nfilter='{}'\nscenarios='{}'\nlimit={TEST_LIMIT_SECONDS}\n",
        tests.join(" "),
        programs::filter(load.only).join(" "),
        scenarios.join(" ")
    )
}

/// The scenarios whose names, with `scenarios::` before them, contain one of `only`: a function
/// `scenario_` each.
fn scenarios(only: &str) -> impl Iterator<Item = &'static str> {
    let names = SCENARIOS.lines().filter_map(|line| line.strip_prefix("scenario_"));
    let asked = move |name: &&str| {
        let name = format!("scenarios::{name}");
        only.split(',').any(|part| name.contains(part))
    };
    names.filter_map(|line| line.strip_suffix("() {")).filter(asked)
}

/// A root file system that is being written.
struct Root<W> {
    cpio: Cpio<W>,
    /// Folders and libraries that are there.
    written: BTreeSet<String>,
}

impl<W: Write> Root<W> {
    /// A folder, behind those that it is in.
    fn folder(&mut self, path: &str) -> Result<()> {
        for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
            if self.written.insert(path[..at].to_owned()) {
                self.cpio.folder(&path[..at])?;
            }
        }
        Ok(())
    }

    /// A program of this machine, and the libraries that it loads at the paths that they have here.
    fn program(&mut self, path: &str, program: &Path) -> Result<()> {
        for library in programs::libraries(program)? {
            let path = library.to_string_lossy();
            let path = path.trim_start_matches('/');
            if let Some((folder, _)) = path.rsplit_once('/') {
                self.folder(folder)?;
            }
            if self.written.insert(path.to_owned()) {
                self.cpio.file(path, &read(&library)?)?;
            }
        }
        Ok(self.cpio.file(path, &read(program)?)?)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_picks_scenarios_by_a_part_of_their_names() {
        assert!(scenarios("").count() > 3);
        assert!(scenarios("netem").all(|name| name.contains("netem")));
        assert!(scenarios("netem").count() > 1 && scenarios("nothing of that name").count() == 0);
    }

    #[test]
    fn folders_are_written_once_and_outer_ones_first() {
        let mut root = Root { cpio: Cpio::new(Vec::new()), written: BTreeSet::new() };
        root.folder("run/netns").unwrap();
        root.folder("run").unwrap();
        let text = String::from_utf8(root.cpio.finish().unwrap()).unwrap();
        assert_eq!(text.matches("run\0").count(), 1);
        assert!(text.find("run\0") < text.find("run/netns\0"));
    }
}
