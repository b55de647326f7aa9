//! `linerate lines`: cache-line transfers by function, from a model that observes real code in
//! QEMU's user mode.

use std::fs;
use std::io::{self, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use linerate::units;
use linerate_prof::conditions::Conditions;
use linerate_prof::diff::Diff;
use linerate_prof::lines::{self, Function, Kinds, Transfers};
use linerate_prof::pmu::Quantity;
use linerate_prof::print;
use linerate_prof::profile::Profile;
use linerate_prof::read;
use rustix::process::{Pid, Signal, kill_process};

use crate::errors::{Failure, RUNTIME, SIGNAL, UNSUPPORTED, USAGE};
use crate::profile::file::{Draft, Place};
use crate::screen::Screen;
use crate::signals::Signals;
use crate::temporary::Temporary;

/// The emulator for a single program.
const QEMU: &str = "qemu-x86_64";
/// Interval of checks of the command and of signals.
const LOOK: Duration = Duration::from_millis(20);
/// The plugin's file.
const PLUGIN: &str = "liblinerate_lines.so";

/// The arguments of `linerate lines`.
#[derive(Debug, Parser)]
#[command(after_long_help = EXAMPLES, override_usage = USAGE_LINES)]
pub struct Lines {
    /// The event to rank by: LINES_FROM_OTHER_CORE (transfers), L2_LINES_IN or L2_LINES_OUT
    #[arg(long, value_name = "EVENT", default_value = "LINES_FROM_OTHER_CORE")]
    pub event: String,
    /// Size and ways of each thread's cache, as in 1Mx8; unlimited by default
    #[arg(long, value_name = "BYTESxWAYS", value_parser = size)]
    pub l2: Option<(u64, u64)>,
    /// Packets that the command moves, if known: the output then has figures a packet, too
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub packets: Option<u64>,
    /// Count only between the marks that the command sets (docs/lines.md)
    #[arg(long)]
    pub marked: bool,
    /// A profile saved before: print the changes since then, ranked by the reduction
    #[arg(long, value_name = "FILE[#N]")]
    pub without: Option<Place>,
    /// Save the profile; an existing file is renamed to FILE.old
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,
    /// Functions to print; the others are summed up
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top: usize,
    /// The plugin, if it is not in this program's folder
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    /// Read the plugin's output from FILE, instead of running a command
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "l2", "marked", "plugin"])]
    pub read: Option<PathBuf>,
    /// With --read of a guest: its /proc/kallsyms, which names the kernel's functions
    #[arg(long, value_name = "FILE", requires = "read")]
    pub kallsyms: Option<PathBuf>,
    /// Print the profile and all kinds by function as one JSON document; the command's output goes
    /// to stderr
    #[arg(long)]
    pub json: bool,
    /// Command to run, with its arguments: a program for x86-64
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const USAGE_LINES: &str = "\
linerate lines [OPTIONS] -- <COMMAND>...
       linerate lines [OPTIONS] --read <FILE>";

const EXAMPLES: &str = "\
Examples:
  linerate lines --packets 10k -- target/debug/linerate forward gen:,count=10k sink:
  linerate lines -o before.json -- ./server
  linerate lines --without before.json -- ./server --pinned
  linerate lines --l2 1Mx8 --event L2_LINES_OUT -- ./server

Exit status: that of COMMAND if it ended by itself, 128 + N if signal N ended it. If there is
nothing to print, stderr says why: 1 failed, 2 wrong request, 5 not possible on this machine.";

/// Reads `1Mx8`: bytes in powers of 1024, and ways.
fn size(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("'{text}' is not a cache: write 1Mx8, a power of two of sets");
    let (bytes, ways) = text.split_once('x').ok_or_else(wrong)?;
    let digits = bytes.trim_end_matches(['k', 'K', 'M']);
    let unit = match &bytes[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return Err(wrong()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    let (bytes, ways) = bytes.zip(ways.parse::<u64>().ok()).ok_or_else(wrong)?;
    let sets =
        (1..=64).contains(&ways).then(|| bytes / 64 / ways).filter(|n| n * 64 * ways == bytes);
    let fits = sets.is_some_and(|sets| sets.is_power_of_two() && sets <= 1 << 20);
    if fits { Ok((bytes, ways)) } else { Err(wrong()) }
}

impl Lines {
    /// Runs the command; returns the exit status.
    pub fn run(&self, screen: &Screen) -> Result<u8, Failure> {
        let event = lines::event(&self.event)?;
        let without = self.without.as_ref().map(|place| place.read(screen)).transpose()?;
        let draft = self.output.as_deref().map(Draft::of).transpose()?;
        let (left, status, conditions) = match &self.read {
            Some(file) => (text(file)?, 0, Conditions::default()),
            None => self.emulate(screen)?,
        };
        let left = Transfers::read(&left)?;
        followed(&left, status)?;
        let kallsyms = self
            .kallsyms
            .as_deref()
            .map(|file| fs::File::open(file).map(BufReader::new).map_err(|e| unreadable(file, &e)));
        let functions = left.functions(kallsyms.transpose()?);
        let mut profile = left.profile(&functions, event);
        profile.remarks.extend(sharing(&left));
        profile.conditions =
            Conditions { packets: self.packets.or(profile.conditions.packets), ..conditions };
        self.say(screen, event, &functions, &profile, without.as_ref())?;
        if let Some(draft) = draft {
            let whole = |f: &mut dyn io::Write| {
                f.write_all(document(&profile, &functions)?.as_bytes())?;
                f.write_all(b"\n")
            };
            draft.save(whole)?;
        }
        Ok(status)
    }

    /// Returns true if the model has the event, and the emulator and its plugin are here.
    pub fn is_possible(&self) -> bool {
        lines::event(&self.event).is_ok() && self.plugin().is_ok() && located(QEMU).is_some()
    }

    fn say(
        &self,
        screen: &Screen,
        event: Quantity,
        functions: &[Function],
        profile: &Profile,
        without: Option<&Profile>,
    ) -> Result<(), Failure> {
        let diff = without.map(|without| Diff::between(without, profile));
        let json = match &diff {
            Some(diff) => print::json::Diff(diff).to_string(),
            None => document(profile, functions).map_err(linerate::Error::from)?,
        };
        let table = || match &diff {
            Some(diff) => print::Ranked::new(diff).top(Some(self.top)).to_string(),
            None => {
                let packets = profile.conditions.packets;
                let kinds = Kinds { functions, event, packets, top: self.top };
                format!("{}MODEL\n{kinds}", print::Table::new(profile).preface())
            }
        };
        screen.result(table, || json)
    }

    /// Runs the command in QEMU, and returns the plugin's output, the command's status and the
    /// conditions of the run.
    fn emulate(&self, screen: &Screen) -> Result<(String, u8, Conditions), Failure> {
        let Some(program) = self.command.first() else {
            let why = "no command is named".to_owned();
            let fix = "linerate lines -- COMMAND";
            return Err(Failure::new(USAGE, "E-USAGE", "there is no command to follow", why, fix));
        };
        let program = located(program).ok_or_else(|| {
            let why = "there is no such file".to_owned();
            let what = format!("cannot start {program}");
            Failure::new(RUNTIME, "E-FILE", &what, why, "check its path")
        })?;
        let plugin = self.plugin()?;
        let folder = Temporary::new("lines", "the plugin's output")?;
        let out = folder.file("counts");
        let mut words = format!("{},out={}", comma(&plugin), comma(&out));
        if let Some((bytes, ways)) = self.l2 {
            words += &format!(",l2={bytes}x{ways}");
        }
        if self.marked {
            words += ",marked=on";
        }
        let mut command = Command::new(QEMU);
        command.args(["-plugin", &words]).arg(program).args(&self.command[1..]);
        if self.json {
            command.stdout(Stdio::from(io::stderr()));
        }
        let signals = Signals::watch().map_err(linerate::Error::from)?;
        let started = Instant::now();
        let child = command.spawn().map_err(|e| not_started(&e))?;
        let status = ended(child, &signals).map_err(linerate::Error::from)?;
        let wall = started.elapsed();
        let Ok(left) = fs::read_to_string(&out) else { return Err(nothing_left(status)) };
        screen.note("\n");
        let conditions = Conditions {
            tool: Some(format!("linerate {} in QEMU's user mode", env!("CARGO_PKG_VERSION"))),
            workload: Some(self.command.join(" ")),
            wall_ns: u64::try_from(wall.as_nanos()).ok(),
            ..Conditions::default()
        };
        let signal = status.signal().and_then(|n| u8::try_from(n).ok());
        let exit = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(RUNTIME);
        Ok((left, signal.map_or(exit, |n| SIGNAL.saturating_add(n)), conditions))
    }

    /// Returns the path of the plugin: the given path, or the newest of the plugin's files in this
    /// program's folder.
    fn plugin(&self) -> Result<PathBuf, Failure> {
        let own = std::env::current_exe().unwrap_or_default();
        let beside = own.parent().unwrap_or(Path::new(""));
        let places = match &self.plugin {
            Some(plugin) => vec![std::path::absolute(plugin).map_err(linerate::Error::from)?],
            None => vec![beside.join(PLUGIN), beside.join("deps").join(PLUGIN)],
        };
        newest(&places).ok_or_else(|| {
            let why = format!("there is no {}", places[0].display());
            let (flag, folder) =
                if cfg!(debug_assertions) { ("", "debug") } else { (" --release", "release") };
            let fix = format!(
                "cargo build{flag} -p linerate-lines, in linerate's repository; then, if this program is not in its \
                 target/{folder}, add --plugin target/{folder}/{PLUGIN}"
            );
            let what = "cannot follow cache lines without the plugin";
            Failure::new(UNSUPPORTED, "E-UNSUPPORTED", what, why, &fix)
        })
    }
}

/// Waits for the command. After a signal to us, waits until the command has ended, so that its
/// counts until then are printed.
fn ended(mut child: Child, signals: &Signals) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        // Pass only SIGTERM on: a terminal sends SIGINT and SIGHUP to both processes.
        if signals.wait(LOOK) == Some(Signal::TERM.as_raw())
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            kill_process(pid, Signal::TERM)?;
        }
    }
}

/// Formats a path for QEMU's options, where a comma ends an option and two commas mean one.
fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Finds a program in the `PATH`, as a shell does.
fn located(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|file| file.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).map(|folder| folder.join(program));
    files.find(|file| file.is_file())
}

/// Returns the file that was changed last.
fn newest(files: &[PathBuf]) -> Option<PathBuf> {
    let found = files.iter().filter(|file| file.is_file());
    let changed = |file: &&PathBuf| file.metadata().and_then(|found| found.modified()).ok();
    found.max_by_key(changed).cloned()
}

/// Returns an error if the model followed nothing, because its figures would all be 0. The failure
/// of the command, which ended with `status`, takes precedence.
fn followed(left: &Transfers, status: u8) -> Result<(), Failure> {
    if left.accesses > 0 {
        return Ok(());
    }
    let what = "there are no cache lines to print";
    if status != 0 {
        let why = format!("the command ended with status {status} before a mark");
        let fix = "see the command's messages above";
        return Err(Failure::new(status, "E-SYSTEM", what, why, fix));
    }
    let why = "the model followed no memory access: no mark started it".to_owned();
    let fix = "set marks in the command (docs/lines.md), or run it without --marked";
    Err(Failure::new(RUNTIME, "E-SYSTEM", what, why, fix))
}

/// Returns a remark if the program has more threads, or the guest more CPUs, than the model.
fn sharing(left: &Transfers) -> Option<String> {
    let of = if left.system { "CPUs" } else { "threads" };
    (left.sharing > 0).then(|| {
        format!(
            "{} {of} share the cache of another in the model, which has too few: transfers between \
             these are not counted",
            left.sharing
        )
    })
}

/// Formats the profile as `linerate profile list` reads it, with all kinds of transfers by
/// function.
fn document(profile: &Profile, functions: &[Function]) -> io::Result<String> {
    let mut text = Vec::new();
    read::json::write(profile, &mut text).map_err(|e| io::Error::other(e.why))?;
    let mut value: serde_json::Value = serde_json::from_slice(&text)?;
    value["kinds"] = serde_json::to_value(functions)?;
    Ok(value.to_string())
}

fn text(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|e| unreadable(file, &e))
}

fn unreadable(file: &Path, e: &io::Error) -> Failure {
    let what = format!("cannot read {}", file.display());
    Failure::new(RUNTIME, "E-FILE", &what, e.to_string(), "check its path")
}

fn not_started(e: &io::Error) -> Failure {
    let why = format!("{QEMU}: {e}");
    let fix = "apt-get install qemu-user";
    Failure::new(UNSUPPORTED, "E-UNSUPPORTED", "cannot start the emulator", why, fix)
}

/// Returns the failure of a run without output; QEMU has printed its own message on stderr.
fn nothing_left(status: ExitStatus) -> Failure {
    let why = format!("QEMU ended with {status}, and the plugin wrote no output");
    let fix = "see QEMU's messages above; the command must be a program for x86-64 that ends by itself, and QEMU \
               must support plugins (Debian 12's 7.2 does)";
    Failure::new(RUNTIME, "E-SYSTEM", "cannot follow cache lines", why, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_bytes_and_ways() {
        assert_eq!(size("1Mx8"), Ok((1 << 20, 8)));
        assert_eq!((size("512kx4"), size("4096x1")), (Ok((512 << 10, 4)), Ok((4096, 1))));
        for wrong in ["1M", "x8", "1Gx8", "3Mx8", "1Mx0", "0x8", "1Mx65", "18446744073709551615Mx1"]
        {
            assert!(size(wrong).is_err_and(|why| why.contains("1Mx8")), "{wrong}");
        }
    }

    #[test]
    fn the_plugin_that_was_built_last_is_used() {
        let at = std::env::temp_dir().join(format!("linerate-newest-{}", std::process::id()));
        fs::create_dir(&at).unwrap();
        let files = [at.join("a"), at.join("b"), at.join("none")];
        let touch = |file: &Path, seconds| {
            let file = fs::File::create(file).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        let mut found = Vec::new();
        for (a, b) in [(1000, 2000), (4000, 3000)] {
            touch(&files[0], a);
            touch(&files[1], b);
            found.push(newest(&files));
        }
        fs::remove_dir_all(&at).unwrap();
        assert_eq!(found, [Some(files[1].clone()), Some(files[0].clone())]);
        assert_eq!(newest(&files), None);
    }

    #[test]
    fn a_run_without_a_mark_is_an_error_and_shared_caches_are_a_remark() {
        let mut left = Transfers::default();
        let refused = |status| followed(&Transfers::default(), status).unwrap_err();
        assert!(refused(0).exit == RUNTIME && refused(0).error.fix.contains("--marked"));
        assert_eq!(refused(3).exit, 3);
        assert_eq!(refused(3).error.why, "the command ended with status 3 before a mark");
        left.accesses = 1;
        assert!(followed(&left, 3).is_ok() && sharing(&left).is_none());
        left.sharing = 3;
        assert!(sharing(&left).is_some_and(|note| note.starts_with("3 threads share")));
    }

    #[test]
    fn a_comma_in_a_path_ends_no_option() {
        assert_eq!(comma(Path::new("/a,b")), "/a,,b");
    }
}
