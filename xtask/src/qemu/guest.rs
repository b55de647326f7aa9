//! The guest's root file system: programs of this machine with their libraries, the kernel's
//! modules, the tests, and an init that runs them. The file system is in the guest's memory.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;
use crate::qemu::kernel::Kernel;
use crate::qemu::programs::{self, Programs};
use crate::qemu::{TEST_LIMIT_SECONDS, modules};

/// The init, with the scenarios that it runs after the tests.
const INIT: &str = include_str!("init.sh");
const SCENARIOS: &str = include_str!("scenarios.sh");

/// Programs that tests and scenarios call. A program that is not installed here is missing in the
/// guest, and its tests report that.
const PROGRAMS: [&str; 8] = ["ip", "tc", "ping", "ethtool", "tcpdump", "strace", "iperf3", "rdma"];

/// The library of RDMA devices, and the part of it for Soft-RoCE, as a loader finds them.
const VERBS: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
    "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
];
const VERBS_SETTING: &str = "etc/libibverbs.d/rxe.driver";

/// Programs of every guest, with their packages; busybox provides all others.
pub const NEEDED: [(&str, &str); 4] =
    [("busybox", "busybox-static"), ("dash", "dash"), ("ip", "iproute2"), ("tc", "iproute2")];

/// Users of the guest: tcpdump changes to its own user after opening files as root.
const USERS: &str = "root:x:0:0::/tmp:/bin/sh\ntcpdump:x:100:100::/tmp:/bin/false\n";

/// The programs to run in a guest.
pub struct Load<'a> {
    /// The test programs, and the program `linerate`.
    pub programs: &'a Programs,
    /// Filter on the names of the tests and scenarios to run.
    pub only: &'a str,
    /// `FILE=TEXT` to write before the tests, or nothing.
    pub write: &'a str,
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
    let root = Root::new(path)?;
    for name in PROGRAMS {
        root.located(name)?;
    }
    root.program(&load.programs.linerate, "bin/linerate")?;
    if VERBS.iter().all(|library| Path::new(library).exists()) {
        for library in VERBS {
            root.program(Path::new(library), &library[1..])?;
        }
        fs::create_dir_all(root.0.join("etc/libibverbs.d"))?;
        root.text(VERBS_SETTING, "driver rxe\n")?;
    }
    for tests in &load.programs.tests {
        root.program(&tests.path, &format!("tests/{}", tests.name))?;
    }
    for (name, path) in &load.programs.of_scenarios {
        root.program(path, &format!("tests/{name}"))?;
    }
    root.modules(kernel, &modules::WANTED)?;
    root.text("etc/settings", &settings(load))?;
    root.text("etc/scenarios", SCENARIOS)?;
    root.pack(INIT, path)
}

/// A root file system during its construction.
pub struct Root(PathBuf);

impl Root {
    /// Creates a root file system with the programs of every guest, in the folder of the later
    /// image file.
    pub fn new(path: &Path) -> Result<Root> {
        let root = Root(path.with_extension("root"));
        if root.0.exists() {
            // An interrupted run may have left the folder.
            fs::remove_dir_all(&root.0)?;
        }
        for folder in
            ["bin", "dev", "etc", "modules", "proc", "run/netns", "sys", "tests", "tmp", "usr"]
        {
            fs::create_dir_all(root.0.join(folder))?;
        }
        let links =
            [("bin/sh", "dash"), ("sbin", "bin"), ("usr/bin", "../bin"), ("usr/sbin", "../bin")];
        for (link, target) in links {
            symlink(target, root.0.join(link))?;
        }
        for (name, _) in NEEDED {
            root.located(name)?;
        }
        root.text("etc/passwd", USERS)?;
        Ok(root)
    }

    /// Adds a program of this machine, if it is installed.
    pub fn located(&self, name: &str) -> Result<()> {
        let program = cargo::located(name);
        program.map_or(Ok(()), |program| self.program(&program, &format!("bin/{name}")))
    }

    /// Adds a program at the path `to`, with its libraries at the paths that they have on this
    /// machine.
    pub fn program(&self, program: &Path, to: &str) -> Result<()> {
        let copy = |from: &Path, to: PathBuf| {
            fs::create_dir_all(to.parent().unwrap_or(&self.0))?;
            fs::copy(from, to).with_context(|| from.display().to_string())
        };
        for library in programs::libraries(program)? {
            copy(&library, self.0.join(library.strip_prefix("/")?))?;
        }
        copy(program, self.0.join(to))?;
        Ok(())
    }

    /// Adds modules with their dependencies, in loading order.
    pub fn modules(&self, kernel: &Kernel, wanted: &[&str]) -> Result<()> {
        let mut order = String::new();
        for module in modules::in_order(&kernel.modules(), wanted)? {
            order += &format!("{}\n", module.name);
            fs::write(self.0.join("modules").join(&module.name), &module.object)?;
        }
        self.text("etc/modules", &order)
    }

    /// Adds a file.
    pub fn text(&self, path: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.0.join(path), text)?)
    }

    /// Packs the file system into `path`, with `init` as its first process.
    pub fn pack(self, init: &str, path: &Path) -> Result<()> {
        self.text("init", init)?;
        fs::set_permissions(self.0.join("init"), Permissions::from_mode(0o755))?;
        // All files belong to root in the guest, whichever user builds the file system.
        let pack = "cd \"$0\" && busybox find . | busybox cpio -o -H newc -R 0:0 >\"$1\"";
        cargo::quiet(Command::new("sh").args(["-c", pack]).args([&self.0, path]))?;
        Ok(fs::remove_dir_all(&self.0)?)
    }
}

/// Formats the settings for init, as shell variables.
fn settings(load: &Load<'_>) -> String {
    let tests: Vec<&str> = load.programs.tests.iter().map(|tests| tests.name.as_str()).collect();
    let scenarios: Vec<&str> = scenarios(load.only).collect();
    format!(
        "tests='{}'\nfilter='{}'\nscenarios='{}'\nwrite='{}'\nlimit={TEST_LIMIT_SECONDS}\n",
        tests.join(" "),
        programs::filter(load.only).join(" "),
        scenarios.join(" "),
        load.write
    )
}

/// Returns the scenarios whose names, with the prefix `scenarios::`, contain one of the parts in
/// `only`; each scenario is a function `scenario_…`.
pub fn scenarios(only: &str) -> impl Iterator<Item = &'static str> {
    let names = SCENARIOS.lines().filter_map(|line| line.strip_prefix("scenario_"));
    let asked = move |name: &&str| {
        let name = format!("scenarios::{name}");
        only.split(',').any(|part| name.contains(part))
    };
    names.filter_map(|line| line.strip_suffix("() {")).filter(asked)
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
}
