//! Small datagrams whose way from west to east is timed: what post 000 calls receipt latency.
//!
//! A probe carries the moment at which it is sent, and the clock is the machine's: CLOCK_MONOTONIC is
//! the same in every network namespace. It is on its way until the receiving program has read it, so
//! that the time until that program has the CPU is in it.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::config::Config;
use super::crew::{Crew, Player, Round, Told, settle_down};
use super::hosts::{self, Hosts};
use super::pause::wait_until;
use crate::{Code, Error, Result};

/// Bytes of a probe: as many as a small packet has.
const BYTES: usize = 64;
/// Latencies that are kept of a round.
const KEPT: usize = 1 << 18;

/// A sender in west and a receiver in east.
#[derive(Debug)]
pub(super) struct Probe {
    crew: Crew,
    heard: Arc<Mutex<Heard>>,
    receiver: UdpSocket,
    thread: Option<JoinHandle<Option<()>>>,
}

/// What has arrived of a round.
#[derive(Debug, Default)]
struct Heard {
    /// The round's beginning and end: a probe of another one does not count.
    from_ns: u64,
    until_ns: u64,
    took_ns: Vec<u64>,
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
        let mut probe = Probe { crew: Crew::new(), heard, receiver, thread };
        let player = Sender { socket: sender, per_second: f64::from(config.probes) };
        probe.crew.hire(&hosts.west, "probe-west", cpu, player)?;
        Ok(probe)
    }

    /// Begins a round.
    pub fn go(&self, round: Round) {
        let now = (Instant::now(), monotonic_ns());
        let ns = |at: Instant| now.1 + nanos(at.saturating_duration_since(now.0));
        let mut heard = lock(&self.heard);
        // Those on their way between the two readings are no probes of this round.
        *heard = Heard { from_ns: now.1, until_ns: ns(round.until), took_ns: Vec::new() };
        drop(heard);
        self.crew.go(round);
    }

    /// How many were sent, and how long each took that arrived within the round.
    ///
    /// # Errors
    /// `E-SYSTEM` if the sender does not finish.
    pub fn settle(&self, round: Round) -> Result<Told> {
        let told = self.crew.gather(round)?;
        Ok(Told { latencies_ns: std::mem::take(&mut lock(&self.heard).took_ns), ..told })
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

/// Sends so many probes a second, at their times.
struct Sender {
    socket: UdpSocket,
    per_second: f64,
}

impl Player for Sender {
    fn play(&mut self, round: Round) -> Told {
        let mut told = Told::default();
        let mut bytes = [0; BYTES];
        loop {
            let at = round.from + Duration::from_secs_f64(told.due as f64 / self.per_second);
            if at >= round.until {
                return told;
            }
            told.due += 1;
            wait_until(at);
            if Instant::now() >= round.until {
                continue;
            }
            bytes[..8].copy_from_slice(&monotonic_ns().to_ne_bytes());
            // One that finds no room is lost, and missed where they are counted.
            told.sent += u64::from(self.socket.send(&bytes).is_ok());
        }
    }
}

/// Notes how long each probe took, until the socket is shut down.
fn receive(socket: &UdpSocket, heard: &Mutex<Heard>) {
    let mut bytes = [0; BYTES];
    // Nothing is what a socket gives that has been shut down.
    while let Ok(n @ 1..) = socket.recv(&mut bytes) {
        let now_ns = monotonic_ns();
        let Some(sent) = bytes[..n].first_chunk::<8>() else { continue };
        let sent_ns = u64::from_ne_bytes(*sent);
        let mut heard = lock(heard);
        let in_time = sent_ns >= heard.from_ns && now_ns <= heard.until_ns;
        if in_time && heard.took_ns.len() < KEPT {
            heard.took_ns.push(now_ns.saturating_sub(sent_ns));
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
