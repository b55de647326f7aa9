//! The guest's root file system: programs of this machine with their libraries, the kernel's
//! modules, the tests, and a first process that runs them. It lives in memory and ends with it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;
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
    let root = path.with_extension("root");
    if root.exists() {
        // An interrupted run left it.
        fs::remove_dir_all(&root)?;
    }
    for folder in
        ["bin", "dev", "etc", "modules", "proc", "run/netns", "sys", "tests", "tmp", "usr"]
    {
        fs::create_dir_all(root.join(folder))?;
    }
    let links =
        [("bin/sh", "dash"), ("sbin", "bin"), ("usr/bin", "../bin"), ("usr/sbin", "../bin")];
    for (link, target) in links {
        symlink(target, root.join(link))?;
    }
    let needed = NEEDED.iter().map(|(program, _)| *program);
    for name in needed.chain(PROGRAMS).collect::<BTreeSet<_>>() {
        if let Some(program) = programs::located(name) {
            copy(&program, &root, &format!("bin/{name}"))?;
        }
    }
    copy(&load.programs.linerate, &root, "bin/linerate")?;
    for tests in &load.programs.tests {
        copy(&tests.path, &root, &format!("tests/{}", tests.name))?;
    }
    let mut order = String::new();
    for module in modules::in_order(&kernel.modules())? {
        order += &format!("{}\n", module.name);
        fs::write(root.join("modules").join(&module.name), &module.object)?;
    }
    fs::write(root.join("etc/passwd"), USERS)?;
    fs::write(root.join("etc/modules"), order)?;
    fs::write(root.join("etc/settings"), settings(load))?;
    fs::write(root.join("etc/scenarios"), SCENARIOS)?;
    fs::write(root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), Permissions::from_mode(0o755))?;
    // Everything belongs to root in there, whatever user builds it.
    let pack = "cd \"$0\" && busybox find . | busybox cpio -o -H newc -R 0:0 >\"$1\"";
    cargo::quiet(Command::new("sh").args(["-c", pack]).args([&root, path]))?;
    Ok(fs::remove_dir_all(&root)?)
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

/// Copies a program of this machine to a path below `root`, and the libraries that it loads to the paths that
/// they have here.
fn copy(program: &Path, root: &Path, to: &str) -> Result<()> {
    let copy = |from: &Path, to: PathBuf| {
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(from, to).with_context(|| from.display().to_string())
    };
    for library in programs::libraries(program)? {
        copy(&library, root.join(library.strip_prefix("/")?))?;
    }
    copy(program, root.join(to))?;
    Ok(())
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
