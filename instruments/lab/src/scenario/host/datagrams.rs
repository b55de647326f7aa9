//! Datagrams from the western to the eastern host, each sent at its time, however late earlier ones
//! were: the probes, which measure the latency of small packets beside other traffic, and the load
//! of the workload `load`.
//!
//! A datagram is due at its time, whether or not its sender has the CPU by then, and it is on its
//! way until the receiving program has read it: the time until either program has the CPU is in it.
//! How late the sender was stands beside it, so that the reader sees which share is the sender's.
//! It carries its number, and both ends read the same clock, in one process or in two.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::arrivals::Arrivals;
use super::config::Config;
use super::crew::{Counts, Crew, Load, Part, Player, Round, Told, settle_down};
use super::fault::SLOW_BUFFER_BYTES;
use super::hosts::{self, Hosts};
use super::latencies::Latencies;
use crate::scenario::pause::{look_until, pause, wait_until};
use crate::{Code, Error, Result};

/// Length of a probe in bytes: a small packet.
const PROBE_BYTES: usize = 64;
/// Bytes for the number of the round, and of the datagram.
pub(super) const BYTES_MIN: usize = 16;
/// Largest datagram that fits into one packet, in bytes.
pub(super) const BYTES_MAX: usize = 1472;
/// Most datagrams of a round whose arrivals are recorded: the first ones of each flow.
pub(super) const NOTED: usize = 1 << 18;
/// The longest wait for datagrams that are still in flight after a round.
const STRAGGLE: Duration = Duration::from_millis(200);
/// Requested size of the receivers' socket buffers: datagrams wait there, instead of being lost,
/// while their reader has no CPU.
const BUFFER_BYTES: usize = 4 << 20;

/// Flows of datagrams, each with a sender in west and a receiver in east.
#[derive(Debug)]
pub(super) struct Datagrams {
    crew: Crew,
    flows: Vec<Flow>,
    read_bytes: Arc<AtomicU64>,
}

/// The times and the size of a flow's datagrams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Pace {
    bytes: usize,
    per_second: f64,
    /// Datagrams that are due together.
    burst: u64,
    /// The offset within the interval of bursts, so that flows do not send at the same time.
    phase: f64,
    arrivals: Arrivals,
}

/// The sender of a flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sending {
    from: SocketAddrV4,
    to: SocketAddrV4,
    pace: Pace,
}

#[derive(Debug)]
struct Flow {
    pace: Pace,
    heard: Arc<Mutex<Heard>>,
    receiver: UdpSocket,
    thread: Option<JoinHandle<Option<()>>>,
}

/// The datagrams of a round that have arrived.
#[derive(Debug, Default)]
struct Heard {
    /// The number of the round, from 1: datagrams of another round do not count.
    round: u64,
    /// The end of the round; `None` before the first one.
    until: Option<Instant>,
    arrived: u64,
    /// Number of these that were read before the round's end.
    in_time: u64,
    /// Number of arrivals after an arrival with a higher number.
    reordered: u64,
    /// Number of arrivals of datagrams that had arrived before, which are in no other count. Known
    /// of the first [`NOTED`] datagrams.
    duplicated: u64,
    highest: u64,
    /// When each datagram was read, by the datagram's number.
    read: Vec<Option<Instant>>,
}

impl Datagrams {
    /// Opens the sockets of the probes. Nothing is sent yet.
    pub fn probes(config: &Config, hosts: &Hosts) -> Result<Datagrams> {
        let per_second = f64::from(config.probes);
        let arrivals = Arrivals::Constant;
        let pace = Pace { bytes: PROBE_BYTES, per_second, burst: 1, phase: 0.0, arrivals };
        let mut probes = Datagrams::new();
        probes.add(config, hosts, 0, "probe", pace, false)?;
        Ok(probes)
    }

    /// Opens the sockets of the load: a flow for each connection of the settings.
    pub fn load(config: &Config, hosts: &Hosts) -> Result<Datagrams> {
        let mut load = Datagrams::new();
        let flows = config.adapters * config.connections;
        let rate = config.rate.unwrap_or_default();
        for number in 0..flows {
            let pace = Pace {
                bytes: config.message,
                per_second: rate / flows as f64,
                burst: config.burst,
                phase: number as f64 / flows as f64,
                arrivals: config.arrivals.drawn(config.seed.wrapping_add(number as u64)),
            };
            let (adapter, name) = (number / config.connections, format!("{number}"));
            load.add(config, hosts, adapter, &name, pace, config.processes)?;
        }
        Ok(load)
    }

    fn new() -> Datagrams {
        Datagrams { crew: Crew::new(), flows: Vec::new(), read_bytes: Arc::default() }
    }

    fn add(
        &mut self,
        config: &Config,
        hosts: &Hosts,
        adapter: usize,
        name: &str,
        pace: Pace,
        process: bool,
    ) -> Result<()> {
        let failed =
            |e: std::io::Error| Error::new(Code::System, "cannot send datagrams", e.to_string());
        let receiver = hosts.east.run(|| UdpSocket::bind((hosts::east(adapter), 0)))?;
        let receiver = receiver.map_err(failed)?;
        // If the kernel refuses the size, it sets its own maximum; datagrams lost for lack of room
        // are counted.
        let slow = config.fault.receiver_sleeps;
        let bytes = slow.map_or(BUFFER_BYTES, |_| SLOW_BUFFER_BYTES);
        let _ = sockopt::set_socket_recv_buffer_size_force(&receiver, bytes);
        let SocketAddr::V4(to) = receiver.local_addr().map_err(failed)? else {
            return Err(failed(std::io::Error::other("not an IPv4 socket")));
        };
        let from = SocketAddrV4::new(hosts::west(adapter), 0);
        let part = Part::Datagrams(Sending { from, to, pace: pace.clone() });
        self.crew.employ(config, hosts, &format!("west-{name}"), config.traffic, part, process)?;
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let theirs = receiver.try_clone().map_err(failed)?;
        let (cpu, noting, bytes) = (config.traffic, heard.clone(), self.read_bytes.clone());
        let body = move || {
            settle_down(&[cpu]);
            receive(&theirs, &noting, &bytes, slow);
        };
        let thread = Some(hosts.east.spawn(&format!("east-{name}"), body)?);
        self.flows.push(Flow { pace, heard, receiver, thread });
        Ok(())
    }

    /// Returns the number of datagrams that have arrived in this round.
    fn arrived(&self) -> u64 {
        self.flows.iter().map(|flow| lock(&flow.heard).arrived).sum()
    }
}

impl Load for Datagrams {
    fn prepare(&mut self, time: Duration) {
        let from = Instant::now();
        let round = Round { number: 0, from, until: from + time };
        for flow in &self.flows {
            let due = flow.pace.due_in(round);
            let mut heard = lock(&flow.heard);
            let mut read = std::mem::take(&mut heard.read);
            read.clear();
            read.resize(due, None);
            // Round 0: no datagram counts until the round begins.
            *heard = Heard { read, ..Heard::default() };
        }
    }

    fn go(&mut self, round: Round) {
        for flow in &self.flows {
            let mut heard = lock(&flow.heard);
            (heard.round, heard.until) = (round.number, Some(round.until));
        }
        self.crew.go(round);
    }

    fn counts(&self) -> Counts {
        let goodput_bytes = self.read_bytes.load(Ordering::Relaxed);
        Counts { goodput_bytes, ..Counts::default() }
    }

    /// Waits for late datagrams; returns the numbers of those that were due, sent, read in time and
    /// lost, and the latency of each from its due time.
    fn settle(&mut self, round: Round) -> Result<Told> {
        let mut told = self.crew.gather(round)?;
        if let Some(why) = told.failure {
            return Err(Error::new(Code::System, "cannot continue the datagrams", why));
        }
        look_until(STRAGGLE, || self.arrived() >= told.sent);
        told.failed = told.sent.saturating_sub(self.arrived());
        for flow in &self.flows {
            let heard = lock(&flow.heard);
            told.reordered += heard.reordered;
            told.duplicated += heard.duplicated;
            told.answered += heard.in_time;
            told.capped |= flow.pace.due_at(round, NOTED as u64) < round.until;
            told.latencies.join(flow.pace.latencies(round, &heard.read));
        }
        Ok(told)
    }

    fn end(&mut self) {
        self.crew.end();
        for flow in &mut self.flows {
            // Shutting the socket down wakes the receiver, whose next read returns nothing, so that
            // the receiver ends.
            let _ = rustix::net::shutdown(&flow.receiver, rustix::net::Shutdown::Both);
            if let Some(thread) = flow.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.end();
    }
}

impl Pace {
    /// Returns the time at which a datagram is due.
    fn due_at(&self, round: Round, number: u64) -> Instant {
        // Arrivals are bursts: convert the rate and the number of arrivals from datagrams to
        // bursts.
        let per_second = self.per_second / self.burst as f64;
        let time = round.until.saturating_duration_since(round.from).as_secs_f64();
        let place = self.arrivals.place(number / self.burst, per_second, time * per_second);
        round.from + Duration::from_secs_f64((place + self.phase) / per_second)
    }

    /// Returns the number of datagrams due in a round, limited to those that are recorded.
    fn due_in(&self, round: Round) -> usize {
        let (mut due, mut beyond) = (0, NOTED as u64);
        while due < beyond {
            let middle = u64::midpoint(due, beyond);
            if self.due_at(round, middle) < round.until {
                due = middle + 1;
            } else {
                beyond = middle;
            }
        }
        due as usize
    }

    /// Computes the latency of each datagram, from its due time to when it was `read`.
    fn latencies(&self, round: Round, read: &[Option<Instant>]) -> Latencies {
        let mut latencies = Latencies::default();
        for (number, read) in (0..).zip(read) {
            latencies.note(round, self.due_at(round, number), *read);
        }
        latencies
    }
}

impl Sending {
    /// Opens the sender's socket. To be called in the host's namespace.
    pub fn open(self) -> std::io::Result<Box<dyn Player>> {
        let socket = UdpSocket::bind(self.from)?;
        socket.connect(self.to)?;
        Ok(Box::new(Sender { socket, pace: self.pace }))
    }
}

/// A sender of datagrams at a given rate.
struct Sender {
    socket: UdpSocket,
    pace: Pace,
}

impl Player for Sender {
    fn play(&mut self, round: Round) -> Told {
        let mut told = Told::default();
        let mut bytes = vec![0; self.pace.bytes];
        bytes[..8].copy_from_slice(&round.number.to_ne_bytes());
        loop {
            let number = told.due;
            let at = self.pace.due_at(round, number);
            if at >= round.until {
                return told;
            }
            told.due += 1;
            wait_until(at);
            let now = Instant::now();
            told.lateness.note(round, at, Some(now));
            if now >= round.until {
                // After the round's end, a datagram that was due is counted as due and not sent.
                continue;
            }
            bytes[8..16].copy_from_slice(&number.to_ne_bytes());
            // A datagram that finds no room in the socket is not counted as sent, and never
            // arrives.
            told.sent += u64::from(self.socket.send(&bytes).is_ok());
        }
    }
}

/// Notes when each datagram was read, until the socket is shut down.
fn receive(
    socket: &UdpSocket,
    heard: &Mutex<Heard>,
    read_bytes: &AtomicU64,
    slow: Option<Duration>,
) {
    let mut bytes = [0; BYTES_MAX];
    // A read from a socket that was shut down returns 0 bytes, which ends the loop.
    while let Ok(n @ 1..) = socket.recv(&mut bytes) {
        let now = Instant::now();
        read_bytes.fetch_add(n as u64, Ordering::Relaxed);
        if let Some((round, number)) = parse(&bytes[..n]) {
            lock(heard).note(round, number, now);
        }
        slow.into_iter().for_each(pause);
    }
}

/// Returns a datagram's round, and its number in it.
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
        let place = usize::try_from(number).ok().and_then(|number| self.read.get_mut(number));
        match place {
            Some(Some(_)) => {
                self.duplicated += 1;
                return;
            }
            Some(place) => *place = Some(now),
            None => {}
        }
        self.arrived += 1;
        self.in_time += u64::from(self.until.is_some_and(|until| now <= until));
        self.reordered += u64::from(number < self.highest);
        self.highest = self.highest.max(number);
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(per_second: f64, burst: u64) -> Pace {
        let arrivals = Arrivals::Constant;
        Pace { bytes: 64, per_second, burst, phase: 0.0, arrivals }
    }

    fn round() -> Round {
        let from = Instant::now();
        Round { number: 3, from, until: from + Duration::from_secs(1) }
    }

    #[test]
    fn a_sender_that_stalls_hides_nothing() {
        let round = round();
        let at = |ms| round.from + Duration::from_millis(ms);
        // The sender has no CPU from 100 to 600 ms, then sends all due datagrams at once. The path
        // itself takes no time.
        let sent = |number: u64| if (100..600).contains(&number) { at(600) } else { at(number) };
        let read: Vec<_> = (0..1000).map(|number| Some(sent(number))).collect();
        assert_eq!(pace(1000.0, 1).due_in(round), read.len());
        let latencies = pace(1000.0, 1).latencies(round, &read);
        let mut figures = std::collections::BTreeMap::new();
        latencies.tell("x", &mut figures);
        assert_eq!((latencies.count(), latencies.pending()), (900, 0));
        // 400 datagrams took no time, so the 450th of 900 is the 50th of the 500 that waited 1 to
        // 500 ms.
        assert_eq!(figures["x_p50_ns"], 50e6);
    }

    #[test]
    fn a_probe_that_is_lost_took_at_least_until_the_end() {
        let round = round();
        let told = pace(20.0, 1).latencies(round, &[Some(round.from), None]);
        assert_eq!((told.count(), told.pending()), (2, 1));
    }

    #[test]
    fn a_burst_is_due_at_once_and_the_mean_rate_stays() {
        let (round, pace) = (round(), pace(1000.0, 10));
        let at = |number| pace.due_at(round, number) - round.from;
        assert_eq!((at(0), at(9)), (Duration::ZERO, Duration::ZERO));
        assert_eq!((at(10), at(19)), (Duration::from_millis(10), Duration::from_millis(10)));
        assert_eq!(pace.due_in(round), 1000);
    }

    #[test]
    fn bursts_of_two_flows_are_due_at_different_times() {
        let round = round();
        let first = pace(1000.0, 10);
        let second = Pace { phase: 0.5, ..first.clone() };
        let at = |pace: &Pace, number| pace.due_at(round, number) - round.from;
        assert_eq!((at(&first, 9), at(&first, 10)), (Duration::ZERO, Duration::from_millis(10)));
        assert_eq!((at(&second, 0), at(&second, 9)), (Duration::from_millis(5), at(&second, 0)));
    }

    #[test]
    fn a_datagram_that_comes_again_hides_no_loss_and_one_without_a_place_is_in_time_or_late() {
        let (round, mut heard) = (round(), Heard::default());
        (heard.round, heard.until) = (round.number, Some(round.until));
        heard.read = vec![None; 3];
        let late = round.until + Duration::from_millis(1);
        // 1 is lost, 0 comes twice; 7 has no place, as beyond the latencies that are kept, nor has
        // 8.
        for (number, now) in
            [(0, round.from), (2, round.from), (0, round.from), (7, round.until), (8, late)]
        {
            heard.note(round.number, number, now);
        }
        assert_eq!((heard.arrived, heard.duplicated, heard.reordered), (4, 1, 0));
        assert_eq!(heard.in_time, 3, "one came after the end");
    }

    #[test]
    fn a_datagram_of_another_round_or_without_a_place_is_not_noted() {
        let now = Instant::now();
        let mut heard = Heard { round: 3, read: vec![None; 2], ..Heard::default() };
        for (round, number) in [(2, 0), (4, 1), (3, 2), (3, u64::MAX), (3, 1)] {
            heard.note(round, number, now);
        }
        assert_eq!((heard.read.as_slice(), heard.arrived), (&[None, Some(now)][..], 3));
        assert_eq!(heard.reordered, 1, "1 came after the highest");
        assert_eq!(parse(&[0; 15]), None);
    }
}
