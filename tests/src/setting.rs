//! Settings of a machine that hold for one process and its children, so that a test can have them
//! and the machine keeps its own.
//!
//! `tests/machines.rs` runs commands under each setting. The program `under` runs any program under
//! one, which is how `cargo xtask machines` runs the README's commands.

mod cgroup;
mod filter;

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub use cgroup::Cgroup;
use rustix::thread::{CpuSet, sched_getaffinity};

/// A setting. To add one, add a line to [`SETTINGS`] and a test to `tests/machines.rs`.
#[derive(Debug)]
pub struct Setting {
    /// Name of the setting.
    pub name: &'static str,
    enter: fn() -> Result<Entered, String>,
}

/// All settings.
pub const SETTINGS: [Setting; 15] = [
    // The machine as it is: the row that others are compared with.
    Setting { name: "none", enter: || words(&["env"]) },
    Setting {
        name: "memlock-64k",
        enter: || {
            let wrap = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"];
            words(&[&wrap[..], &["prlimit", "--memlock=65536"]].concat())
        },
    },
    Setting { name: "one-cpu", enter: || words(&["taskset", "--cpu-list", &first_cpu()]) },
    Setting {
        name: "cpuset-of-one",
        enter: || {
            let cpu = first_cpu();
            let settings = [("cpuset.cpus", "cpuset.cpus", cpu.as_str()), ("cpuset.mems", "", "0")];
            inside(Cgroup::new("cpuset", &settings)?)
        },
    },
    Setting { name: "memory-64m", enter: || inside(Cgroup::of_memory("64M")?) },
    // What the tests may take.
    Setting { name: "memory-512m", enter: || inside(Cgroup::of_memory("512M")?) },
    Setting { name: "no-root", enter: || words(&NOBODY) },
    Setting {
        name: "net-raw-alone",
        enter: || {
            let sets = ["--inh-caps=", "--ambient-caps=", "--bounding-set="];
            let sets = sets.map(|set| format!("{set}-all,+net_raw"));
            let all: Vec<&str> =
                NOBODY.into_iter().chain(sets.iter().map(String::as_str)).collect();
            words(&all)
        },
    },
    Setting { name: "proc-hidden", enter: || mounted("mount -t tmpfs none /proc") },
    Setting {
        name: "tmp-read-only",
        enter: || mounted("mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp"),
    },
    Setting { name: "container", enter: || filtered(filter::refuse_as_containers_do) },
    Setting { name: "no-affinity", enter: || filtered(filter::refuse_affinity) },
    Setting {
        name: "ipv6-off",
        enter: || {
            let off = "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
            let run = format!("ip link set lo up; sysctl -qw {off}; exec \"$0\" \"$@\"");
            Ok(Entered { changes_netns: true, ..words(&["sh", "-c", &run])? })
        },
    },
    Setting { name: "no-ipv6", enter: || filtered(filter::refuse_ipv6) },
    Setting { name: "linux-5.11", enter: || filtered(filter::refuse_what_came_after_5_11) },
];

/// Returns the setting of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

impl Setting {
    /// Prepares the setting, for programs that the result starts.
    ///
    /// # Errors
    /// The reason to skip, if the setting cannot be had here.
    pub fn enter(&self) -> Result<Entered, String> {
        let entered = (self.enter)()?;
        crate::installed(&entered.words[0])?;
        Ok(entered)
    }
}

/// A setting that programs can be started under.
#[derive(Debug)]
pub struct Entered {
    words: Vec<String>,
    before: Before,
    /// The setting is one of the network namespace in which programs are started.
    changes_netns: bool,
    _group: Option<Cgroup>,
}

/// A function that runs in a new process before its program starts.
type Before = fn() -> std::io::Result<()>;

impl Entered {
    /// Changes no network namespace of the caller: programs get their own, if the setting is one of
    /// a namespace.
    #[must_use]
    pub fn keeping_netns(mut self) -> Entered {
        if self.changes_netns {
            self.words.splice(..0, ["unshare".to_owned(), "--net".to_owned()]);
        }
        self
    }

    /// Returns the command that starts `program` under the setting.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(program);
        // SAFETY: the functions in `SETTINGS` make system calls and allocate no memory.
        unsafe { command.pre_exec(self.before) };
        command
    }
}

const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Returns a setting that the program `words[0]` makes before it executes its arguments.
fn words(words: &[&str]) -> Result<Entered, String> {
    let words = words.iter().map(|&word| word.to_owned()).collect();
    Ok(Entered { words, before: || Ok(()), changes_netns: false, _group: None })
}

/// Returns a setting of a mount namespace of its own, after the shell's `commands`.
fn mounted(commands: &str) -> Result<Entered, String> {
    words(&["unshare", "--mount", "sh", "-c", &format!("{commands} && exec \"$0\" \"$@\"")])
}

/// Returns a setting that a filter of system calls makes.
fn filtered(before: Before) -> Result<Entered, String> {
    Ok(Entered { before, ..words(&["env"])? })
}

/// Returns the setting of being in `group`.
///
/// # Errors
/// None; the signature is that of the other settings.
pub fn inside(group: Cgroup) -> Result<Entered, String> {
    let wrap = group.wrap();
    Ok(Entered { _group: Some(group), ..words(&["sh", "-c", &wrap])? })
}

/// Returns the first CPU that this process may use.
///
/// # Panics
/// If the kernel names none.
#[must_use]
pub fn first_cpu() -> String {
    let allowed = sched_getaffinity(None).expect("it has some");
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    cpus.next().expect("it runs on one").to_string()
}
