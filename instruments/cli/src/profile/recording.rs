//! Use of perf(1), which samples other processes: finding it, and running `perf record` with the
//! times at which sampling began and the target ended.
//!
//! A command that is recorded does not outlive its recording: perf sends it SIGTERM, and waits for
//! it. If SIGKILL ends this program, the kernel kills perf, so that nothing is sampled any longer; a
//! command that perf started then goes on without it. A perf with file capabilities is not killed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use linerate_prof::bus;
use linerate_prof::conditions::Traffic;
use linerate_prof::proc::{Head, Started};
use linerate_prof::profile::Profile;
use linerate_prof::read::{self, Form};
use linerate_sys::process::end_with_this_thread;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::args::Record;
use crate::errors::{Failure, RUNTIME, SIGNAL, UNSUPPORTED};
use crate::screen::Screen;
use crate::signals::Signals;
use crate::temporary::Temporary;

/// Interval of checks of perf, its target and signals.
const LOOK: Duration = Duration::from_millis(20);
/// Time that a command may take to end after a request; then a message names the command.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most events that a remark names.
const EVENTS_NAMED: usize = 3;
/// The letters that perf adds to an event's name behind `:` or `/`: modes and precision.
const MODIFIERS: &str = "ukhIGHpPSDWebRX";

/// A running `perf record`.
#[derive(Debug)]
pub struct Recording {
    perf: Child,
    /// The process to sample: the given one, or the command that perf has started.
    target: Option<u32>,
    is_command: bool,
    /// The time at which perf had opened its events.
    began: Option<Instant>,
    /// CPU time of the process when perf had opened its events.
    cpu_before_ns: Option<u64>,
    cpu_now_ns: Option<u64>,
}

/// The way in which a recording ended.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub status: ExitStatus,
    /// True if we ended the recording; `signal` is the signal that we received, if there was one.
    pub asked: bool,
    pub signal: Option<i32>,
    /// Time during which the target was recorded.
    pub wall: Duration,
    /// CPU time of the target during the recording, in nanoseconds, to a hundredth of a second.
    pub cpu_ns: Option<u64>,
    /// CPU time of perf itself.
    pub perf_cpu_ns: u64,
}

impl Recording {
    /// Starts perf; `is_command` if it starts a command. The kernel kills perf if the calling
    /// thread ends before.
    pub fn start(
        mut command: Command,
        pid: Option<u32>,
        is_command: bool,
    ) -> Result<Recording, Failure> {
        let perf = end_with_this_thread(&mut command).spawn().map_err(|e| failed(&e))?;
        Ok(Recording {
            perf,
            target: pid,
            is_command,
            began: None,
            cpu_before_ns: None,
            cpu_now_ns: None,
        })
    }

    /// Waits until the target ends, the time is over, or a signal arrives; then until perf has
    /// ended.
    pub fn wait(
        mut self,
        args: &Record,
        signals: &Signals,
        screen: &Screen,
    ) -> Result<Ended, Failure> {
        let started = Instant::now();
        let (mut asked, mut signal, mut over, mut named) = (None, None, None, false);
        while !self.has_ended()? {
            let came = signals.wait(LOOK);
            // Stop looking after the request: perf takes no samples of the target while perf ends.
            if asked.is_none() {
                self.look();
            }
            let now = Instant::now();
            let since = self.began.unwrap_or(now);
            if over.is_none() && self.began.is_some() && self.target.is_some_and(|pid| !runs(pid)) {
                over = Some(now);
            }
            signal = signal.or(came);
            let is_over = args.time.is_some_and(|time| now - since >= time);
            if asked.is_none() && (signal.is_some() || is_over) {
                asked = Some(now);
                over = over.or(Some(now));
                // This fails only for a process that has just ended, which needs no signal.
                let _ = kill_process(Pid::from_child(&self.perf), Signal::TERM);
            }
            if !named && asked.is_some_and(|asked| now - asked >= PATIENCE) {
                named = true;
                screen.note(&self.stubborn());
            }
        }
        let own = cpu_times(self.perf.id()).unwrap_or_default();
        let cpu_ns = match self.is_command {
            true => Some(own.children_ns),
            false => {
                self.cpu_now_ns.zip(self.cpu_before_ns).map(|(now, old)| now.saturating_sub(old))
            }
        };
        let status = self.perf.wait().map_err(|e| failed(&e))?;
        let began = self.began.unwrap_or(started);
        let wall = over.unwrap_or_else(Instant::now).saturating_duration_since(began);
        Ok(Ended { status, asked: asked.is_some(), signal, wall, cpu_ns, perf_cpu_ns: own.own_ns })
    }

    /// Returns true if perf has ended. The ended process stays in the process table, so that its
    /// CPU time and its children's can still be read.
    fn has_ended(&self) -> Result<bool, Failure> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(Pid::from_child(&self.perf)), options);
        ended.map(|ended| ended.is_some()).map_err(|e| failed(&e.into()))
    }

    /// Updates the state of perf and of its target.
    fn look(&mut self) {
        if self.began.is_none() && has_events(self.perf.id()) {
            self.began = Some(Instant::now());
            self.target = self.target.or_else(|| child_of(self.perf.id()));
        }
        if !self.is_command {
            let cpu = self.target.and_then(cpu_times).map(|times| times.own_ns);
            self.cpu_now_ns = cpu.or(self.cpu_now_ns);
            // perf takes no samples before it has opened its events. Store the CPU time until then,
            // to subtract it later.
            if self.began.is_some() {
                self.cpu_before_ns = self.cpu_before_ns.or(cpu);
            }
        }
    }

    fn stubborn(&self) -> String {
        let pid = self.target.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let waited = PATIENCE.as_secs();
        format!(
            "the command has not ended within {waited} s of SIGTERM, and perf waits for it: \
             kill -9 {pid}\n"
        )
    }
}

impl Drop for Recording {
    /// Ends perf if it has not been waited for, because the recording failed.
    fn drop(&mut self) {
        if let Ok(None) = self.perf.try_wait() {
            // Ignore both errors: the failure of the recording is reported.
            let _ = kill_process(Pid::from_child(&self.perf), Signal::TERM);
            let _ = self.perf.wait();
        }
    }
}

impl Ended {
    /// Returns the exit status, in the form that shells report. A command that we have ended
    /// ourselves has not failed.
    pub fn exit(&self, is_command: bool) -> u8 {
        if self.asked || !is_command {
            return 0;
        }
        let by_signal = || self.status.signal().map(|n| i32::from(SIGNAL) + n);
        // The sum of 128 and the largest signal still fits in a byte.
        self.status.code().or_else(by_signal).and_then(|n| u8::try_from(n).ok()).unwrap_or(u8::MAX)
    }

    /// Returns the remark on the target's end, if one is needed.
    pub fn remark(&self, is_command: bool) -> Option<String> {
        match (is_command, self.asked) {
            (_, true) => None,
            // perf ends with the command's exit status.
            (true, _) if self.status.success() => None,
            (true, _) => Some(format!("the command failed ({})", self.status)),
            (false, _) => Some(format!(
                "the process ended before the recording: the samples are of its last {:.3} s",
                self.wall.as_secs_f64()
            )),
        }
    }
}

/// CPU times of a process, and of its children that it has waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTimes {
    own_ns: u64,
    children_ns: u64,
}

fn cpu_times(pid: u32) -> Option<CpuTimes> {
    let ticks_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let [own, system, children, system_of_children] = ticks(&stat(pid)?)?;
    let ns = |ticks: u64| ticks.saturating_mul(ticks_ns);
    Some(CpuTimes {
        own_ns: ns(own.saturating_add(system)),
        children_ns: ns(children.saturating_add(system_of_children)),
    })
}

/// Returns the text after the name in /proc/PID/stat: proc_pid_stat(5) from field 3 on. The name is
/// in parentheses and may have any characters.
fn stat(pid: u32) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.rsplit_once(") ").map(|(_, rest)| rest.to_owned())
}

/// Reads utime, stime, cutime and cstime: fields 14 to 17.
fn ticks(stat: &str) -> Option<[u64; 4]> {
    let mut fields = stat.split_ascii_whitespace().skip(11).map(|field| field.parse().ok());
    Some([fields.next()??, fields.next()??, fields.next()??, fields.next()??])
}

/// Returns true if the process exists and has not ended.
fn runs(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !stat.starts_with(['Z', 'X']))
}

fn has_events(pid: u32) -> bool {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_event = |link: fs::DirEntry| {
        fs::read_link(link.path()).is_ok_and(|to| to.to_string_lossy().contains("perf_event"))
    };
    links.into_iter().any(is_event)
}

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

fn failed(e: &std::io::Error) -> Failure {
    Failure::new(RUNTIME, "E-SYSTEM", "cannot run perf record", e.to_string(), "")
}

/// Observations of the machine around the target. A profile without them is still valid, so a part
/// that cannot be observed becomes a remark.
pub struct Around {
    head: linerate_prof::Result<Started>,
    traffic: linerate_prof::Result<Traffic>,
    bus: Option<bus::Counting>,
}

impl Around {
    /// Takes the first observation. The network devices are those that the process sees; the memory
    /// bus belongs to the whole machine, so it is counted only if all CPUs are recorded.
    pub fn start(pid: Option<u32>, all_cpus: bool) -> Around {
        let bus = all_cpus.then(bus::Counting::start);
        Around { head: Head::start(), traffic: Traffic::start(pid), bus }
    }

    /// Takes the second observation; returns a function that stores both in a profile.
    pub fn stop(self) -> impl FnOnce(&mut Profile) {
        let head = self.head.and_then(|started| started.stop());
        let passed = self.traffic.and_then(|traffic| traffic.stop());
        let bus = self.bus.map(bus::Counting::stop);
        move |profile| {
            profile.conditions.bus = bus;
            match head {
                Ok(head) => profile.head = Some(head),
                Err(e) => profile.remarks.push(format!("no head of top: {}", e.why)),
            }
            match passed {
                Ok(passed) => {
                    profile.remarks.extend(passed.reset.iter().map(|name| {
                        format!("the traffic of {name} is unknown: its counters were reset")
                    }));
                    profile.conditions.netdevs = passed.netdevs;
                }
                Err(e) => profile.remarks.push(format!("traffic is not known: {}", e.why)),
            }
        }
    }
}

/// A perf that works on this machine.
#[derive(Debug)]
pub struct Perf {
    program: PathBuf,
    /// The version as perf prints it: `6.1.192`.
    pub version: String,
}

/// A private folder for perf's recording, removed when dropped.
#[derive(Debug)]
pub struct Folder(Temporary);

impl Perf {
    /// Finds the first perf that runs: in the `PATH`, then where distributions install one for each
    /// kernel. A `perf` in the `PATH` may be a wrapper that runs only if there is one for the
    /// running kernel.
    pub fn find() -> Result<Perf, Failure> {
        let mut tried = Vec::new();
        let beside = versioned(Path::new("/usr/bin"), "perf_", "");
        let ubuntu = versioned(Path::new("/usr/lib/linux-tools"), "", "perf");
        for program in [PathBuf::from("perf")].into_iter().chain(beside).chain(ubuntu) {
            match Command::new(&program).arg("--version").stdin(Stdio::null()).output() {
                Ok(said) if said.status.success() => {
                    let text = String::from_utf8_lossy(&said.stdout);
                    let version = text.trim().trim_start_matches("perf version ").to_owned();
                    return Ok(Perf { program, version });
                }
                Ok(said) => tried.push(format!("{} {}", program.display(), said.status)),
                Err(e) => tried.push(format!("{}: {e}", program.display())),
            }
        }
        let why = format!(
            "sampling other processes needs perf, which does not run here ({})",
            tried.join("; ")
        );
        let fix = "apt-get install linux-perf (Debian), linux-tools-generic (Ubuntu), or perf";
        Err(Failure::new(UNSUPPORTED, "E-UNSUPPORTED", "cannot record", why, fix))
    }

    /// Returns the command `perf record` of `event` into the folder, to which the caller adds the
    /// target.
    pub fn record(&self, event: &str, period: u64, chains: bool, folder: &Folder) -> Command {
        let mut command = Command::new(&self.program);
        // Prevent perf from copying every sampled program to ~/.debug.
        command.args(["record", "--quiet", "--no-buildid-cache", "--event", event]);
        command.args(["--count", &period.to_string()]);
        if chains {
            command.args(["--call-graph", "fp"]);
        }
        command.arg("--output").arg(folder.data());
        command
    }

    /// Returns the recorded profile of `event`; `None` if it has no sample. If all samples were
    /// lost, it has their number and no row. If there are samples of several events, a remark names
    /// the others.
    pub fn script(&self, folder: &Folder, event: &str) -> Result<Option<Profile>, Failure> {
        let failed = |why: String| {
            Failure::new(RUNTIME, "E-SYSTEM", "cannot read what perf has recorded", why, "")
        };
        let io = |e: io::Error| failed(e.to_string());
        let complaints = folder.0.file("complaints");
        let mut command = Command::new(&self.program);
        command.args(["script", "--no-inline", "--show-lost-events"]);
        // Leave out the programs' names: a name may look like the beginning of a sample.
        command.args(["--fields", "tid,time,period,event,ip,sym,symoff,dso"]);
        command.arg("--input").arg(folder.data());
        // Ignore the user's settings of the output, and do not download symbols.
        command.env("PERF_CONFIG", "/dev/null").env_remove("DEBUGINFOD_URLS");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&complaints).map_err(io)?);
        let mut child = command.spawn().map_err(io)?;
        let text = child.stdout.take().map(|text| BufReader::with_capacity(1 << 16, text));
        let read = text.and_then(|mut text| {
            // A recording without samples has an empty text, which the reader refuses.
            let is_empty = text.fill_buf().is_ok_and(<[u8]>::is_empty);
            (!is_empty).then(|| read::parse(text, Some(Form::PerfScript)))
        });
        let status = child.wait().map_err(io)?;
        if !status.success() {
            let said = fs::read_to_string(&complaints).unwrap_or_default();
            let last = said.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
            return Err(failed(format!("perf script: {status}: {last}")));
        }
        Ok(read.transpose().map_err(|e| failed(e.why))?.and_then(|read| of_event(read, event)))
    }
}

impl Folder {
    /// Creates a folder in the system's temporary directory that no other user can read.
    pub fn new() -> Result<Folder, Failure> {
        Temporary::new("profile", "what perf records").map(Folder)
    }

    /// Returns the path of perf's data file.
    pub fn data(&self) -> PathBuf {
        self.0.file("perf.data")
    }
}

/// Returns the profile of the event that was `requested`, or of the event with most samples if perf
/// gives it another name; with a remark on the samples of other events. The reader has already put
/// a remark on lines that it left out.
fn of_event(mut read: read::Read, requested: &str) -> Option<Profile> {
    // The reader adds the lost samples of all events to the first profile.
    let lost = read.profiles.first()?.lost;
    let rank = |one: &Profile| (bare(&one.event.name) == bare(requested), one.counted());
    // The last one of equal rank is chosen, which is the first of the text.
    let (at, _) = read.profiles.iter().enumerate().rev().max_by_key(|(_, one)| rank(one))?;
    let mut profile = read.profiles.remove(at);
    profile.lost = lost;
    let others = read.profiles.iter();
    let others: Vec<String> =
        others.map(|one| format!("{} of {}", one.counted(), one.event.name)).collect();
    if !others.is_empty() {
        let named = others.get(..EVENTS_NAMED).unwrap_or(&others).join(", ");
        let more = if others.len() > EVENTS_NAMED { ", and more" } else { "" };
        profile.remarks.push(format!(
            "the samples are of {} alone; left out: {named}{more} (record one event at a time)",
            profile.event.name
        ));
    }
    Some(profile)
}

/// Returns the name of an event without modifiers: perf prints `cycles:u` for `cycles` if it may
/// not sample the kernel.
fn bare(event: &str) -> &str {
    let start = event.trim_end_matches(|c: char| MODIFIERS.contains(c));
    match start.ends_with([':', '/']) {
        true => start.trim_end_matches([':', '/']),
        // The letters belong to the name itself, as the last one of `cpu-clock`.
        false => event,
    }
}

/// Returns the entries of `folder` whose names start with `begin`, newest kernel first, each joined
/// with `inside`.
fn versioned(folder: &Path, begin: &str, inside: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
    names.retain(|name| name.to_string_lossy().starts_with(begin));
    names.sort();
    let path = |name: OsString| match inside {
        "" => folder.join(name),
        inside => folder.join(name).join(inside),
    };
    names.into_iter().rev().map(path).collect()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use linerate_prof::print::Table;
    use linerate_prof::profile::{Event, Origin, Unit};

    use super::*;

    fn ended(raw: i32, asked: bool) -> Ended {
        let status = ExitStatus::from_raw(raw);
        let wall = Duration::from_secs(2);
        Ended { status, asked, signal: None, wall, cpu_ns: None, perf_cpu_ns: 0 }
    }

    #[test]
    fn a_command_s_status_is_ours_unless_we_ended_it() {
        let by_itself = |raw| ended(raw, false).exit(true);
        assert_eq!([by_itself(0), by_itself(3 << 8), by_itself(9)], [0, 3, 137]);
        assert_eq!(ended(15, true).exit(true), 0, "we ended it");
        assert_eq!(ended(15, false).exit(false), 0, "a process ended, no command of ours");
        assert_eq!(ended(0, false).remark(true), None);
        let failed = ended(3 << 8, false).remark(true).unwrap();
        assert_eq!(failed, "the command failed (exit status: 3)");
        assert!(ended(9, false).remark(true).unwrap().contains("SIGKILL"));
        assert!(ended(0, false).remark(false).unwrap().ends_with("of its last 2.000 s"));
        assert_eq!(ended(15, true).remark(false), None);
    }

    /// S3.17.
    #[test]
    fn traffic_during_a_recording_is_in_its_profile_and_above_its_table() {
        let around = Around::start(None, false);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
        }
        let (name, unit) = ("cpu-clock".to_owned(), Unit::Samples);
        let event = Event { name, unit, period: None, raw: None };
        let mut profile = Profile::new(event, Origin::Clock);
        around.stop()(&mut profile);
        let mut netdevs = profile.conditions.netdevs.iter();
        let lo = netdevs.find(|dev| dev.name == "lo").unwrap_or_else(|| panic!("{profile:?}"));
        assert!(lo.tx_packets >= 10 && lo.tx_bytes >= 1000, "{lo:?}");
        let head = Table::new(&profile).preface();
        assert!(head.lines().any(|line| line.starts_with("devices: ")), "{head}");
    }

    #[test]
    fn cpu_times_are_read_and_what_is_cut_short_is_none() {
        let stat = "R 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0";
        assert_eq!(ticks(stat), Some([100, 20, 3, 4]));
        for broken in ["", "R 1", "R 1 2 3 4 5 6 7 8 9 10 100 20 3"] {
            assert_eq!(ticks(broken), None);
        }
        assert!(cpu_times(std::process::id()).is_some() && runs(std::process::id()));
    }

    #[test]
    fn samples_that_cannot_be_read_are_an_error_and_no_samples_are_none() {
        let folder = Folder::new().unwrap();
        let script = |program: &str| {
            Perf { program: program.into(), version: String::new() }.script(&folder, "cpu-clock")
        };
        assert!(script("true").unwrap().is_none());
        // echo prints its arguments, which are no samples.
        let e = script("echo").unwrap_err().error;
        assert_eq!(e.what, "cannot read what perf has recorded");
        assert!(e.why.starts_with("no row of perf script in "), "{}", e.why);
    }

    #[test]
    fn samples_of_further_events_are_left_out_with_a_remark() {
        let sample = |event: &str| format!("spin 8304 22986.2: 1 {event}: 55bd burn (/spin)\n");
        let of = |events: &[&str]| {
            let text: String = events.iter().map(|event| sample(event)).collect();
            of_event(read::parse(text.as_bytes(), Some(Form::PerfScript)).unwrap(), "x:a").unwrap()
        };
        let one = of(&["x:a", "x:a"]);
        assert_eq!((one.counted(), one.remarks.len()), (2, 0), "{:?}", one.remarks);
        let five = of(&["x:a", "x:b", "x:b", "x:c", "x:d", "x:e"]);
        let said = "the samples are of x:a alone; left out: 2 of x:b, 1 of x:c, 1 of x:d, and more \
                    (record one event at a time)";
        assert_eq!((five.counted(), &*five.remarks), (1, &[said.to_owned()][..]));
        let most = of(&["x:b", "x:c", "x:c", "x:d", "x:d"]);
        assert_eq!((most.counted(), most.event.name.as_str()), (2, "x:c"), "x:a has no sample");
    }

    #[test]
    fn program_s_name_that_looks_like_a_sample_does_not_replace_the_profile() {
        let sample =
            |name: &str| format!("{name} 8304 22986.2: 1 cpu-clock:u: 55bd burn (/spin)\n");
        let lost = "spin 8304 22986.2: PERF_RECORD_LOST lost 7\n";
        let text = format!("{}{lost}{}", sample("a 1 1.0: x:"), sample("spin").repeat(99));
        for requested in ["cpu-clock", "cpu-clock:u", "cpu-clock:pp", "task-clock"] {
            let read = read::parse(text.as_bytes(), Some(Form::PerfScript)).unwrap();
            let profile = of_event(read, requested).unwrap();
            let name = profile.event.name.as_str();
            assert_eq!((profile.counted(), profile.lost, name), (99, 7, "cpu-clock:u"));
            assert!(profile.remarks[0].contains("left out: 1 of x ("), "{:?}", profile.remarks);
        }
    }

    #[test]
    fn event_is_known_by_its_name_with_and_without_modifiers() {
        for (event, name) in [
            ("cycles:u", "cycles"),
            ("cycles:Pu", "cycles"),
            ("cpu-clock", "cpu-clock"),
            ("page-faults", "page-faults"),
            ("r1643:u", "r1643"),
            ("cpu/event=0x3c/u", "cpu/event=0x3c"),
            ("cpu/event=0x3c/:u", "cpu/event=0x3c"),
            ("net:netif_rx", "net:netif_rx"),
            ("net:netif_rx:u", "net:netif_rx"),
        ] {
            assert_eq!(bare(event), name);
        }
    }

    #[test]
    fn recording_that_is_not_waited_for_ends_perf() {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        let recording = Recording::start(sleep, None, false).unwrap();
        let pid = recording.perf.id();
        assert!(runs(pid));
        drop(recording);
        assert!(!runs(pid));
    }

    #[test]
    fn recording_of_which_all_samples_were_lost_is_no_error_and_has_their_number() {
        let text = "spin 8304 22986.2: PERF_RECORD_LOST lost 7\n";
        let read = read::parse(text.as_bytes(), Some(Form::PerfScript)).unwrap();
        let profile = of_event(read, "cpu-clock").unwrap();
        assert_eq!((profile.lost, profile.counted()), (7, 0));
    }
}
