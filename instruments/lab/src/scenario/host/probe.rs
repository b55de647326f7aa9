//! Probes: how long a packet takes from a program on one host to a program on the other.
//!
//! A probe is due at its time, whether or not its sender has the CPU by then, and it is on its way
//! until the receiving program has read it: the time until either program has the CPU is in it. How
//! late the sender was is told beside it, so that the reader sees which share is the sender's. It
//! carries its number, and both ends read the same clock: one process, whatever its namespaces.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::config::Config;
use super::crew::{Crew, Player, Round, Told, settle_down};
use super::hosts::{self, Hosts};
use super::latency::Latencies;
use super::pause::{look_until, wait_until};
use crate::{Code, Error, Result};

/// Bytes of a probe: as many as a small packet has.
const BYTES: usize = 64;
/// Probes of a round whose answers are noted: the first ones.
const KEPT: usize = 1 << 18;
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
    ///
    /// # Errors
    /// `E-SYSTEM` if a socket or thread cannot be had.
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
        let read = vec![None; due_in(round, self.per_second).min(KEPT)];
        *heard = Heard { round: heard.round + 1, arrived: 0, read };
        drop(heard);
        self.crew.go(round);
    }

    /// Waits for late probes, and returns the numbers due, sent and lost and the time of each from
    /// when it was due; the path must carry packets meanwhile.
    ///
    /// # Errors
    /// `E-SYSTEM` if the sender does not finish.
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
}
