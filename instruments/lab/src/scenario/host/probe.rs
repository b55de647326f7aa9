//! Probes: how long a packet takes from a program on one host to a program on the other.
//!
//! A probe is due at its time, whether or not its sender has the CPU by then, and it is on its way
//! until the receiving program has read it: the time until either program has the CPU is in it. How
//! late the sender was stands beside it, so that the reader sees which share is the sender's. It
//! carries its number, and both ends read the same clock: one process, whatever its namespaces.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::config::Config;
use super::crew::{Crew, Player, Round, Told, settle_down};
use super::hosts::{self, Hosts};
use crate::scenario::pause::{look_until, wait_until};
use crate::{Code, Error, Result};

/// Bytes of a probe: as many as a small packet has.
const BYTES: usize = 64;
/// Probes of a round whose answers are noted: the first ones.
const PROBES_KEPT: usize = 1 << 18;
/// The longest wait for probes that are still on their way after a round.
const STRAGGLE: Duration = Duration::from_millis(200);

/// A sender in west and a receiver in east.
#[derive(Debug)]
pub(super) struct Probe {
    crew: Crew,
    per_second: f64,
    heard: Arc<Mutex<Heard>>,
    receiver: UdpSocket,
    thread: Option<JoinHandle<Option<()>>>,
}

/// The probes of a round that have arrived.
#[derive(Debug, Default)]
struct Heard {
    /// The number of the round: a probe of another round does not count.
    round: u64,
    arrived: u64,
    /// When each probe was read, by its number.
    read: Vec<Option<Instant>>,
}

impl Probe {
    /// Opens the sockets. Nothing is sent yet.
    pub fn open(config: &Config, hosts: &Hosts) -> Result<Probe> {
        let failed =
            |e: std::io::Error| Error::new(Code::System, "cannot send probes", e.to_string());
        let (west, east) = (hosts::west(0), hosts::east(0));
        let sender = hosts.west.run(|| UdpSocket::bind((west, 0)))?.map_err(failed)?;
        let receiver = hosts.east.run(|| UdpSocket::bind((east, 0)))?.map_err(failed)?;
        sender.connect(receiver.local_addr().map_err(failed)?).map_err(failed)?;
        receiver.connect(sender.local_addr().map_err(failed)?).map_err(failed)?;
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let theirs = receiver.try_clone().map_err(failed)?;
        let (cpu, noting) = (config.traffic, heard.clone());
        let body = move || {
            settle_down(cpu);
            receive(&theirs, &noting);
        };
        let thread = Some(hosts.east.spawn("probe-east", body)?);
        let per_second = f64::from(config.probes);
        let mut probe = Probe { crew: Crew::new(), per_second, heard, receiver, thread };
        let player = Sender { socket: sender, per_second, heard: probe.heard.clone() };
        probe.crew.hire(&hosts.west, "probe-west", cpu, player)?;
        Ok(probe)
    }

    /// Begins a round.
    pub fn go(&self, round: Round) {
        let mut heard = lock(&self.heard);
        let read = vec![None; due_in(round, self.per_second).min(PROBES_KEPT)];
        *heard = Heard { round: heard.round + 1, arrived: 0, read };
        drop(heard);
        self.crew.go(round);
    }

    /// Waits for late probes, and returns the numbers due, sent and lost and the time of each from
    /// when it was due; the path must carry packets meanwhile.
    pub fn settle(&self, round: Round) -> Result<Told> {
        let mut told = self.crew.gather(round)?;
        look_until(STRAGGLE, || lock(&self.heard).arrived >= told.sent);
        let heard = std::mem::take(&mut lock(&self.heard).read);
        let arrived = lock(&self.heard).arrived;
        told.failed = told.sent.saturating_sub(arrived);
        told.latencies = latencies(round, self.per_second, &heard);
        Ok(told)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.crew.end();
        // It wakes the receiver, whose socket then has no more to give.
        let _ = rustix::net::shutdown(&self.receiver, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// When a probe is due.
fn due_at(round: Round, per_second: f64, number: u64) -> Instant {
    round.from + Duration::from_secs_f64(number as f64 / per_second)
}

/// Returns the upper bound of the number of probes due in a round.
fn due_in(round: Round, per_second: f64) -> usize {
    let time = round.until.saturating_duration_since(round.from);
    (time.as_secs_f64() * per_second).ceil() as usize
}

/// Computes the time of each probe from when it was due to when it was `read`.
fn latencies(round: Round, per_second: f64, read: &[Option<Instant>]) -> Latencies {
    let mut latencies = Latencies::default();
    for (number, read) in (0..).zip(read) {
        latencies.note(round, due_at(round, per_second, number), *read);
    }
    latencies
}

/// Sends so many probes a second, at their times.
struct Sender {
    socket: UdpSocket,
    per_second: f64,
    heard: Arc<Mutex<Heard>>,
}

impl Player for Sender {
    fn play(&mut self, round: Round) -> Told {
        let mut told = Told::default();
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&lock(&self.heard).round.to_ne_bytes());
        loop {
            let number = told.due;
            let at = due_at(round, self.per_second, number);
            if at >= round.until {
                return told;
            }
            told.due += 1;
            wait_until(at);
            let now = Instant::now();
            told.lateness.note(round, at, Some(now));
            if now >= round.until {
                // Late: what is due is counted and not sent.
                continue;
            }
            bytes[8..16].copy_from_slice(&number.to_ne_bytes());
            // One that finds no room is not sent, and has no answer.
            told.sent += u64::from(self.socket.send(&bytes).is_ok());
        }
    }
}

/// Notes when each probe was read, until the socket is shut down.
fn receive(socket: &UdpSocket, heard: &Mutex<Heard>) {
    let mut bytes = [0; BYTES];
    // Nothing is what a socket gives that has been shut down.
    while let Ok(n @ 1..) = socket.recv(&mut bytes) {
        let now = Instant::now();
        if let Some((round, number)) = parse(&bytes[..n]) {
            lock(heard).note(round, number, now);
        }
    }
}

/// A probe's round, and its number in it.
fn parse(bytes: &[u8]) -> Option<(u64, u64)> {
    let (round, rest) = bytes.split_first_chunk::<8>()?;
    let number = rest.first_chunk::<8>()?;
    Some((u64::from_ne_bytes(*round), u64::from_ne_bytes(*number)))
}

impl Heard {
    fn note(&mut self, round: u64, number: u64, now: Instant) {
        if round != self.round {
            return;
        }
        self.arrived += 1;
        let place = usize::try_from(number).ok().and_then(|number| self.read.get_mut(number));
        if let Some(place @ None) = place {
            *place = Some(now);
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

// An answer is waited for from the moment at which its request was *due*, whether or not the sender
// was there by then. A request that has no answer when its round ends is not left out, for that
// would leave out the slow ones: it counts as the time from when it was due to the end, which is
// the least that it took. It is not waited for beyond that: after a round the path stands still for
// a while, and then carries unmeasured, so that a later answer tells nothing of the path.
//
// What is due right before the end has no answer yet however fast the path is, and would count as
// next to nothing. So those of the last tenth of a round are left out, all of them: by when they
// were due and not by what became of them. Hence
//
// - a quantile below a tenth of the round is exact: all that are unanswered took longer;
// - one above may be of the unanswered, and then it is the least that it can be.
//
// Without a rate a request is due when it is sent, which the answer before it decides: such
// latencies are those of a closed loop, and say nothing of requests that were held back.

/// The divisor for the last part of a round: requests in its last tenth do not count.
const EDGE: u32 = 10;
/// Latencies that are kept of a sender's round: the first ones, whatever they are.
const KEPT: usize = 1 << 18;

/// Latencies of requests that were due in a round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Latencies {
    took_ns: Vec<u64>,
    /// Answers still missing at the end: their latency is a lower bound.
    pending: u64,
}

impl Latencies {
    /// Notes a request that was due at `due`, and when it was `answered`, if ever.
    pub fn note(&mut self, round: Round, due: Instant, answered: Option<Instant>) {
        let edge = round.until.saturating_duration_since(round.from) / EDGE;
        let counts = due + edge < round.until;
        if !counts || self.took_ns.len() >= KEPT {
            return;
        }
        let in_time = answered.filter(|at| *at <= round.until);
        self.pending += u64::from(in_time.is_none());
        let took = in_time.unwrap_or(round.until).saturating_duration_since(due);
        self.took_ns.push(took.as_nanos().try_into().unwrap_or(u64::MAX));
    }

    /// Adds another sender's of the same round.
    pub fn join(&mut self, other: Latencies) {
        self.took_ns.extend(other.took_ns);
        self.pending += other.pending;
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.took_ns.len() as u64
    }

    /// Returns the number of requests that were unanswered at the end.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Adds the number of latencies, the number of unanswered requests, and the quantiles to
    /// `figures`.
    pub fn tell(&self, name: &str, figures: &mut BTreeMap<String, f64>) {
        figures.insert(format!("{name}_count"), self.count() as f64);
        figures.insert(format!("{name}_pending"), self.pending as f64);
        self.quantiles(name, figures);
    }

    /// The median and the 99th percentile, of as many as it takes to know them: n ≥ 10/(1 − q).
    pub fn quantiles(&self, name: &str, figures: &mut BTreeMap<String, f64>) {
        let mut sorted = self.took_ns.clone();
        sorted.sort_unstable();
        for (quantile, least, percent) in [("p50", 20, 50), ("p99", 1000, 99)] {
            // The nearest rank: the smallest that so many per cent do not exceed.
            let rank = (sorted.len() * percent).div_ceil(100);
            let value = rank.checked_sub(1).and_then(|at| sorted.get(at));
            if let Some(value) = value.filter(|_| sorted.len() >= least) {
                figures.insert(format!("{name}_{quantile}_ns"), *value as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_stalls_hides_nothing() {
        let from = Instant::now();
        let round = Round { from, until: from + Duration::from_secs(1) };
        let at = |ms| from + Duration::from_millis(ms);
        // It has no CPU from 100 to 600 ms, then sends at once what was due meanwhile: each probe's
        // own way takes no time.
        let sent = |number: u64| if (100..600).contains(&number) { at(600) } else { at(number) };
        let read: Vec<_> = (0..1000).map(|number| Some(sent(number))).collect();
        assert_eq!(due_in(round, 1000.0), read.len());
        let latencies = latencies(round, 1000.0, &read);
        let mut figures = std::collections::BTreeMap::new();
        latencies.tell("x", &mut figures);
        assert_eq!((latencies.count(), latencies.pending()), (900, 0));
        // 400 took nothing; the 450th of 900 is the 50th of the 500 that waited 1 to 500 ms.
        assert_eq!(figures["x_p50_ns"], 50e6);
    }

    #[test]
    fn a_probe_that_is_lost_took_at_least_until_the_end() {
        let from = Instant::now();
        let round = Round { from, until: from + Duration::from_secs(1) };
        let told = latencies(round, 20.0, &[Some(from), None]);
        assert_eq!((told.count(), told.pending()), (2, 1));
    }

    #[test]
    fn a_probe_of_another_round_or_without_a_place_is_not_noted() {
        let now = Instant::now();
        let mut heard = Heard { round: 3, arrived: 0, read: vec![None; 2] };
        for (round, number) in [(2, 0), (4, 1), (3, 2), (3, u64::MAX), (3, 1)] {
            heard.note(round, number, now);
        }
        assert_eq!((heard.read.as_slice(), heard.arrived), (&[None, Some(now)][..], 3));
        assert_eq!(parse(&[0; 15]), None);
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn round() -> Round {
        let from = Instant::now();
        Round { from, until: from + SECOND }
    }

    fn told(latencies: &Latencies, name: &str) -> Option<f64> {
        let mut figures = BTreeMap::new();
        latencies.tell("x", &mut figures);
        figures.get(name).copied()
    }

    #[test]
    fn a_quantile_of_too_few_is_no_figure() {
        let of = |n: u64| {
            let latencies = Latencies { took_ns: (1..=n).rev().collect(), pending: 0 };
            let told = |name| told(&latencies, name);
            (told("x_count"), told("x_p50_ns"), told("x_p99_ns"))
        };
        assert_eq!(of(0), (Some(0.0), None, None));
        assert_eq!(of(19), (Some(19.0), None, None));
        assert_eq!(of(20), (Some(20.0), Some(10.0), None));
        assert_eq!(of(999), (Some(999.0), Some(500.0), None));
        assert_eq!(of(1000), (Some(1000.0), Some(500.0), Some(990.0)));
    }

    /// 1000 requests a second, each answered within 1 ms unless the path stalls from `stall_ms` on:
    /// then none of them is.
    fn stalled_from(stall_ms: u64) -> Latencies {
        let (round, mut latencies) = (round(), Latencies::default());
        for ms in 0..1000 {
            let due = round.from + Duration::from_millis(ms);
            let answer = due + Duration::from_millis(1);
            latencies.note(round, due, (ms < stall_ms).then_some(answer));
        }
        latencies
    }

    #[test]
    fn a_path_that_stalls_until_the_end_is_not_as_fast_as_before_it() {
        let quick = stalled_from(1000);
        assert_eq!((quick.count(), quick.pending()), (900, 0));
        assert_eq!(told(&quick, "x_p50_ns"), Some(1e6));
        // The last 600 ms: 500 of 900 that count were never answered, and took 100 ms at least. Of
        // the 400 answers alone the median would still be 1 ms.
        let stalled = stalled_from(400);
        assert_eq!((stalled.count(), stalled.pending()), (900, 500));
        assert_eq!(told(&stalled, "x_pending"), Some(500.0));
        // The 450th of 900: the 50th of those that were unanswered, from the shortest.
        assert_eq!(told(&stalled, "x_p50_ns"), Some(150e6));
    }

    #[test]
    fn requests_due_at_the_edge_of_a_round_do_not_count() {
        let (round, mut latencies) = (round(), Latencies::default());
        let late = round.from + Duration::from_millis(901);
        latencies.note(round, late, Some(late));
        latencies.note(round, late, None);
        assert_eq!(latencies, Latencies::default());
        // So a probe without an answer took more than the edge.
        let early = round.from + Duration::from_millis(899);
        latencies.note(round, early, None);
        assert_eq!((latencies.took_ns.as_slice(), latencies.pending), (&[101_000_000][..], 1));
    }

    #[test]
    fn an_answer_after_the_end_is_none_of_the_round() {
        let (round, mut latencies) = (round(), Latencies::default());
        latencies.note(round, round.from, Some(round.until + SECOND));
        latencies.note(round, round.from, Some(round.until));
        assert_eq!(
            (latencies.took_ns.as_slice(), latencies.pending),
            (&[SECOND.as_nanos() as u64; 2][..], 1)
        );
    }
}
