//! The far side of a fabric: a process that reads packets in their sender's memory.
//!
//! ```text
//!   a bench, its path                                     this process
//!   packets ──► memif (client) ══ the sender's memory ══► memif::Reader ──► every byte verified, and how
//!        stdin:  b  a window begins  ─────────────────►                     long it was under way
//!        stdin:  e  it has ended     ─────────────────►   reads what is left
//!        stdout: ◄─────────────────── one line of JSON for each of these: what was seen since. The
//!                                      first line says that it is ready, or why it cannot read
//! ```
//!
//! It ends when its standard input does and no packet comes, so that it does not outlive its
//! parent. Between windows it sleeps.

use std::io::{self, Write};
use std::ops::AddAssign;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linerate_port::clock::monotonic_ns;
use linerate_port::memif::Reader;
use linerate_port::sink::Verifier;
use linerate_port::wait::poll_readable;
use linerate_port::{Verified, thread};
use serde::{Deserialize, Serialize};

use crate::meter::Meter;
use crate::percentile::{P50, P99};
use crate::window::ThreadTime;
use crate::{Code, Error, Result};

mod sample;

use sample::Sample;

/// Most packets that are read before their buffers are returned to the sender.
const BATCH: usize = 64;
/// Length of a slice; the slices of a window are compared with each other.
const SLICE: Duration = Duration::from_millis(100);
/// Longest packet that is verified.
const PACKET_MAX_BYTES: usize = 1 << 16;

/// Order that begins a window.
pub(crate) const BEGIN: u8 = b'b';
/// The message that a window has ended: the rest is read and reported.
pub(crate) const END: u8 = b'e';

/// The results since the last report.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The CPU time of the thread; `None` outside a window.
    pub time: Option<ThreadTime>,
    pub packets: u64,
    pub bytes: u64,
    /// Packets of which every byte arrived as it was sent.
    pub verified: u64,
    pub lost: u64,
    pub reordered: u64,
    pub duplicated: u64,
    pub corrupted: u64,
    pub foreign: u64,
    /// Packets that were copied because they were held for too long.
    pub copied_out: u64,
    /// Connections that ended because the sender violated the protocol.
    pub protocol_errors: u64,
    /// Number of packets with a known latency; the next fields are the median and the 99th
    /// percentile, of every packet or of every k-th one.
    pub receipt_count: u64,
    pub receipt_p50_ns: Option<u64>,
    pub receipt_p99_ns: Option<u64>,
    /// True if every byte was checked, false if only the stamp was read.
    pub is_verified: bool,
    /// The packets of the slowest complete slice, as a share of the mean of all slices; `None` with
    /// fewer than two slices.
    pub slowest_pct: Option<f64>,
}

impl Seen {
    /// Returns the reason why the window's results are invalid; `None` if they are valid.
    pub fn fault(&self) -> Option<String> {
        let wrong = self.corrupted + self.foreign + self.duplicated + self.reordered;
        (wrong + self.protocol_errors > 0).then(|| {
            format!(
                "at the far side {} packets were corrupted, {} foreign, {} twice, {} out of order; {} \
                 connections ended because of a protocol error",
                self.corrupted, self.foreign, self.duplicated, self.reordered, self.protocol_errors
            )
        })
    }

    /// Returns the totals of a whole side, by name.
    pub fn totals(&self) -> [(String, f64); 8] {
        let figure = |name: &str, n: u64| (format!("far side: {name}"), n as f64);
        [
            figure("packets", self.packets),
            figure("verified to the last byte", self.verified),
            figure("lost on the way", self.lost),
            figure("out of order", self.reordered),
            figure("twice", self.duplicated),
            figure("corrupted", self.corrupted),
            figure("foreign", self.foreign),
            figure("packets copied out", self.copied_out),
        ]
    }
}

/// A line of the process: the results since the last report, or why it cannot read.
pub(crate) type Answer = std::result::Result<Seen, Refusal>;

/// An error of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusal {
    code: String,
    what: String,
    why: String,
    fix: String,
}

impl Refusal {
    /// Returns the parts of an error.
    pub fn of(e: &Error) -> Refusal {
        let (code, what) = (e.code.as_str().to_owned(), e.what.clone());
        Refusal { code, what, why: e.why.clone(), fix: e.fix.clone() }
    }

    /// Returns the error again, which says that it is the other process's.
    pub fn error(self) -> Error {
        let code = Code::ALL.iter().find(|code| code.as_str() == self.code);
        let why = format!("in the process at the far side of the fabric: {}", self.why);
        Error::new(code.copied().unwrap_or(Code::System), self.what, why).fix(self.fix)
    }
}

/// Adds the results of two intervals of time, except quantiles and shares, which cannot be added.
impl AddAssign<&Seen> for Seen {
    fn add_assign(&mut self, more: &Seen) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.verified += more.verified;
        self.lost += more.lost;
        self.reordered += more.reordered;
        self.duplicated += more.duplicated;
        self.corrupted += more.corrupted;
        self.foreign += more.foreign;
        self.copied_out += more.copied_out;
        self.protocol_errors += more.protocol_errors;
        self.receipt_count += more.receipt_count;
    }
}

/// Reads packets until the standard input ends.
///
/// `args` are a memif's text, the CPU to run on or `-`, and `verify` or `look`: to check every
/// byte, or to read the stamps only. If the memif cannot be opened, or the thread not be pinned, it
/// tells the run that has started it, and ends.
///
/// # Errors
/// `E-EXPERIMENT` for arguments that make no sense; whatever its pipes say.
pub fn serve(args: &[String]) -> Result<()> {
    let [port, cpu, how] = args else {
        return Err(usage("it needs a port, a CPU, and verify or look".into()));
    };
    let cpu = match cpu.as_str() {
        "-" => None,
        number => Some(number.parse().map_err(|e| usage(format!("{number} is no CPU: {e}")))?),
    };
    let verify = match how.as_str() {
        "verify" => true,
        "look" => false,
        other => return Err(usage(format!("{other} is neither verify nor look"))),
    };
    let served = match Far::open(port, cpu, verify) {
        Ok(mut far) => far.serve(),
        Err(e) => answer(&Err(Refusal::of(&e))),
    };
    served.map_err(|e| Error::new(Code::System, "the far side cannot go on", e.to_string()))
}

fn usage(why: String) -> Error {
    Error::new(Code::Experiment, "cannot look at packets", why)
        .fix("only `linerate lab run` starts this process")
}

/// The reader and its results so far.
struct Far {
    reader: Reader,
    meter: Meter,
    verify: bool,
    verifier: Verifier,
    /// The counts of the verifier and of the reader at the last report.
    told: (Verified, u64, u64),
    frame: Vec<u8>,
    took: Sample,
    slices: Vec<u64>,
    begun: Option<Instant>,
    seen: Seen,
}

impl Far {
    /// Opens the memif, and pins this thread.
    fn open(port: &str, cpu: Option<usize>, verify: bool) -> Result<Far> {
        let reader = Reader::open(port)?;
        if let Some(cpu) = cpu {
            thread::pin_to_cpu(cpu)?;
        }
        Ok(Far::new(reader, Meter::of_this_thread("far", cpu, false), verify))
    }

    fn new(reader: Reader, meter: Meter, verify: bool) -> Far {
        Far {
            reader,
            meter,
            verify,
            verifier: Verifier::default(),
            told: Default::default(),
            frame: vec![0; PACKET_MAX_BYTES],
            took: Sample::new(),
            slices: Vec::new(),
            begun: None,
            seen: Seen::default(),
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        answer(&Ok(Seen::default()))?;
        let stdin = io::stdin();
        loop {
            if self.look() > 0 {
                continue;
            }
            if self.reader.arm() {
                poll_readable(&[self.reader.as_fd(), stdin.as_fd()], None)?;
            }
            // The sender writes no orders to stdin while it sends packets, so stdin is polled only
            // here, when no packets are left.
            if !poll_readable(&[stdin.as_fd()], Some(Duration::ZERO))? {
                continue;
            }
            let mut word = [0];
            // Read the file descriptor directly: the standard library would buffer bytes, and
            // poll(2) does not report buffered bytes.
            if rustix::io::read(stdin.as_fd(), &mut word)? == 0 {
                return Ok(());
            }
            match word[0] {
                BEGIN => self.begin()?,
                END => self.end()?,
                _ => {}
            }
        }
    }

    /// Reads the waiting packets; returns their number.
    fn look(&mut self) -> usize {
        let mut n = 0;
        for frame in self.reader.frames(BATCH) {
            // Read the clock for each packet: with one reading for the batch, the last packet's
            // latency would not include the time in which the others are checked.
            let now_ns = monotonic_ns();
            n += 1;
            self.seen.bytes += frame.len() as u64;
            let sent_ns = match self.verify {
                true => {
                    // Verify a private copy, because the sender may change shared memory during the
                    // check.
                    let len = frame.copy_to(0, &mut self.frame);
                    let stamp = self.frame.get(..len).and_then(|b| self.verifier.check_frame(b));
                    stamp.map(|stamp| stamp.time_ns)
                }
                false => frame.u64_be(TIME_AT),
            };
            if let Some(ns) = sent_ns {
                self.took.note(now_ns.saturating_sub(ns));
            }
        }
        if n > 0 {
            self.seen.packets += n as u64;
            self.slice(n as u64);
        }
        n
    }

    /// Counts packets in the present slice of the window.
    fn slice(&mut self, n: u64) {
        let Some(begun) = self.begun else { return };
        let i = (begun.elapsed().as_nanos() / SLICE.as_nanos()) as usize;
        if i >= self.slices.len() {
            self.slices.resize(i + 1, 0);
        }
        self.slices[i] += n;
    }

    fn begin(&mut self) -> io::Result<()> {
        // Report packets that arrived between windows separately, so that they count in no window.
        let between = self.take();
        self.begun = Some(Instant::now());
        self.meter.start().map_err(told)?;
        answer(&Ok(between))
    }

    fn end(&mut self) -> io::Result<()> {
        let time = self.begun.map_or(Duration::ZERO, |begun| begun.elapsed());
        // The sender published all packets before it sent this order, so this loop reads all of
        // them.
        while self.look() > 0 {}
        // Drop the incomplete last slice, and add empty slices in which no packet arrived.
        self.slices.resize((time.as_nanos() / SLICE.as_nanos()) as usize, 0);
        let time = match self.begun {
            Some(_) => Some(self.meter.stop().map_err(told)?),
            None => None,
        };
        let seen = Seen { time, slowest_pct: slowest_pct(&self.slices), ..self.take() };
        self.begun = None;
        answer(&Ok(seen))
    }

    /// Returns the results since the last call.
    fn take(&mut self) -> Seen {
        let (found, counts) = (self.verifier.found(), self.reader.counts());
        let (then, copied_out, protocol_errors) =
            std::mem::replace(&mut self.told, (found, counts.copied_out, counts.protocol_errors));
        let mut seen = std::mem::take(&mut self.seen);
        seen.is_verified = self.verify;
        seen.verified = found.packets.saturating_sub(then.packets);
        // A packet that was counted as lost and arrives later is subtracted, so the count may
        // decrease.
        seen.lost = found.lost.saturating_sub(then.lost);
        seen.reordered = (found.reordered + found.late).saturating_sub(then.reordered + then.late);
        seen.duplicated = found.duplicated.saturating_sub(then.duplicated);
        seen.corrupted = found.corrupted.saturating_sub(then.corrupted);
        seen.foreign = found.foreign.saturating_sub(then.foreign);
        seen.copied_out = counts.copied_out.saturating_sub(copied_out);
        seen.protocol_errors = counts.protocol_errors.saturating_sub(protocol_errors);
        seen.receipt_count = self.took.count();
        seen.receipt_p50_ns = P50.of(&mut self.took.kept_ns);
        seen.receipt_p99_ns = P99.of(&mut self.took.kept_ns);
        self.took.clear();
        self.slices.clear();
        seen
    }
}

/// Tells the run that has started this process an error, and returns it.
fn told(e: Error) -> io::Error {
    // The run may have ended.
    let _ = answer(&Err(Refusal::of(&e)));
    io::Error::other(e)
}

/// Prints a line for the run that has started this process.
fn answer(answer: &Answer) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let line = serde_json::to_string(answer).map_err(io::Error::other)?;
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Offset of the time in a stamp, in bytes.
const TIME_AT: usize = 30;

/// Returns the slowest of the parts, as a share of their mean; 0 if nothing arrived in any of them.
fn slowest_pct(slices: &[u64]) -> Option<f64> {
    let sum: u64 = slices.iter().sum();
    let slowest = slices.iter().min()?;
    let share = || 100.0 * *slowest as f64 * slices.len() as f64 / sum.max(1) as f64;
    (slices.len() >= 2).then(share)
}

#[cfg(test)]
mod tests {
    use linerate_port::{Health, Port};
    use linerate_skb::{Batch, Pool};
    use linerate_wire::stamp;

    use super::*;

    /// Returns the median latency of packets that say that they arrived `age_ns` before they were
    /// made, and the time from then until all had been read.
    fn median_ns(age_ns: u64, verify: bool) -> (u64, u64) {
        let name = format!("@linerate-far-{}-{age_ns}-{verify}", std::process::id());
        let reader = Reader::listen(&name).unwrap();
        let mut far = Far::new(reader, Meter::of_this_thread("far", None, false), verify);
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut sender = Port::open_with(&format!("memif:{name},zerocopy=no"), &pool).unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(1));
        let (made_ns, mut sent, mut packet) = (monotonic_ns(), 0, [0; 60]);
        while far.took.kept_ns.len() < P50.least {
            assert!(monotonic_ns() - made_ns < 20_000_000_000, "{} came", far.took.kept_ns.len());
            sender.rx(&mut batch);
            let _ = far.reader.arm();
            if sender.health() == Health::Up && sent < P50.least {
                stamp::write(&mut packet, 0, sent as u64, made_ns - age_ns).unwrap();
                batch.push(mem.alloc_copy(&packet).unwrap()).unwrap();
                sent += sender.xmit(&mut batch);
                batch.clear();
            }
            far.look();
        }
        (far.take().receipt_p50_ns.unwrap(), monotonic_ns() - made_ns)
    }

    #[test]
    fn latencies_of_any_length_are_told_without_rounding() {
        let longest = monotonic_ns() / 2;
        for verify in [true, false] {
            for age_ns in [0, longest, longest + longest / 33] {
                let (median_ns, lasted_ns) = median_ns(age_ns, verify);
                let within = age_ns..=age_ns + lasted_ns;
                assert!(within.contains(&median_ns), "{median_ns} of {within:?}");
            }
        }
    }

    #[test]
    fn the_slowest_part_is_a_share_of_their_mean() {
        assert_eq!((slowest_pct(&[]), slowest_pct(&[10])), (None, None));
        assert_eq!(slowest_pct(&[10, 30]), Some(50.0));
        assert_eq!(slowest_pct(&[10, 10, 0]), Some(0.0));
        assert_eq!(slowest_pct(&[0, 0]), Some(0.0), "nothing arrived: the worst there is");
    }

    #[test]
    fn bad_arguments_are_refused_with_a_reason() {
        let said = |args: &[&str]| {
            serve(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>()).unwrap_err().why
        };
        assert_eq!(said(&[]), "it needs a port, a CPU, and verify or look");
        assert_eq!(
            said(&["memif:@x", "one", "verify"]),
            "one is no CPU: invalid digit found in string"
        );
        assert_eq!(said(&["memif:@x", "-", "hard"]), "hard is neither verify nor look");
        let Err(e) = Far::open("ring:x", None, false) else { panic!("it is no memif") };
        assert!(e.why.contains("memif"), "{e}");
    }

    /// Returns what a far side that verifies has seen of each round of packets; of a flow's
    /// numbers, of which `None` is a packet without a stamp.
    fn seen_of(rounds: &[&[Option<u64>]]) -> Vec<Seen> {
        let name = format!("@linerate-far-{}-{}", std::process::id(), rounds.len());
        let reader = Reader::listen(&name).unwrap();
        let mut far = Far::new(reader, Meter::of_this_thread("far", None, false), true);
        let pool = Pool::builder().frames(1024).build().unwrap();
        let mut sender = Port::open_with(&format!("memif:{name},zerocopy=no"), &pool).unwrap();
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(1));
        let begun_ns = monotonic_ns();
        let mut round = |numbers: &&[Option<u64>]| {
            let mut left = numbers.iter();
            while far.seen.packets < numbers.len() as u64 {
                assert!(monotonic_ns() - begun_ns < 20_000_000_000, "{:?}", far.seen);
                sender.rx(&mut batch);
                let _ = far.reader.arm();
                if sender.health() == Health::Up && batch.is_empty() {
                    for number in left.by_ref().take(1) {
                        let mut packet = [0; 60];
                        if let Some(number) = number {
                            stamp::write(&mut packet, 0, *number, begun_ns).unwrap();
                        }
                        batch.push(mem.alloc_copy(&packet).unwrap()).unwrap();
                    }
                }
                sender.xmit(&mut batch);
                far.look();
            }
            far.slices.push(7);
            let seen = far.take();
            assert!(far.slices.is_empty() && far.took.kept_ns.is_empty());
            seen
        };
        rounds.iter().map(&mut round).collect()
    }

    #[test]
    fn each_report_is_of_what_came_since_the_one_before() {
        let numbers: Vec<Option<u64>> = (4..24).map(Some).collect();
        let first = [&[Some(0), Some(1), Some(1), Some(3), None][..], &numbers[..]].concat();
        let seen = seen_of(&[&first, &[Some(200), Some(2), Some(201)], &[Some(202)]]);
        let told = |seen: &Seen| {
            let Seen { packets, bytes, lost, reordered, duplicated, foreign, .. } = *seen;
            (packets, bytes, lost, reordered, duplicated, foreign)
        };
        assert_eq!(told(&seen[0]), (25, 25 * 60, 1, 0, 1, 1), "2 is missing, and 1 came twice");
        assert_eq!(told(&seen[1]), (3, 180, 200 - 24, 1, 0, 0), "2 came too late to be known");
        assert_eq!(told(&seen[2]), (1, 60, 0, 0, 0, 0));
        let counts: Vec<u64> = seen.iter().map(|seen| seen.receipt_count).collect();
        assert_eq!(counts, [24, 3, 1], "one packet has no time");
        let medians: Vec<bool> = seen.iter().map(|seen| seen.receipt_p50_ns.is_some()).collect();
        assert_eq!(medians, [true, false, false]);
        assert!(
            seen.iter().all(|seen| seen.is_verified
                && seen.fault().is_some() == (told(seen).3 + told(seen).4 > 0))
        );
    }

    #[test]
    fn any_packet_that_did_not_come_as_it_was_sent_is_a_fault_and_a_lost_one_is_none() {
        let with = |fault: fn(&mut Seen)| {
            let mut seen = Seen { packets: 9, lost: 3, copied_out: 2, ..Seen::default() };
            fault(&mut seen);
            seen.fault()
        };
        assert_eq!(with(|_| {}), None);
        let faults: [fn(&mut Seen); 5] = [
            |seen| seen.corrupted = 1,
            |seen| seen.foreign = 1,
            |seen| seen.duplicated = 1,
            |seen| seen.reordered = 1,
            |seen| seen.protocol_errors = 1,
        ];
        assert!(faults.iter().all(|fault| with(*fault).is_some()));
        let said = with(|seen| (seen.reordered, seen.protocol_errors) = (4, 5)).unwrap();
        assert!(said.ends_with("4 out of order; 5 connections ended because of a protocol error"));
    }

    #[test]
    fn every_count_of_two_reports_is_added_and_no_quantile() {
        let one = |n: u64| Seen {
            packets: n,
            bytes: 2 * n,
            verified: 3 * n,
            lost: 4 * n,
            reordered: 5 * n,
            duplicated: 6 * n,
            corrupted: 7 * n,
            foreign: 8 * n,
            copied_out: 9 * n,
            protocol_errors: 10 * n,
            receipt_count: 11 * n,
            ..Seen::default()
        };
        let mut sum = one(1);
        sum += &Seen { receipt_p50_ns: Some(5), slowest_pct: Some(90.0), ..one(100) };
        assert_eq!(sum, one(101));
    }
}
