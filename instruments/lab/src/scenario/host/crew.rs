//! The programs on the hosts: threads that send while a round lasts, and wait for the next one; and the
//! traffic that they make.

use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use linerate_sys::netns::Netns;
use linerate_sys::thread;

use super::config::{Config, Workload};
use super::hosts::Hosts;
use super::probe::Latencies;
use super::stream::PATIENCE;
use super::stream::Stream;
use super::web::Web;
use crate::{Code, Error, Result};

/// A stretch of time in which there is traffic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    pub from: Instant,
    pub until: Instant,
}

/// The results of a round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Told {
    /// Messages, requests or probes whose time had come; without a rate, those that were sent.
    pub due: u64,
    /// Requests that were sent within the round.
    pub sent: u64,
    /// The time from when each request was due to its answer.
    pub latencies: Latencies,
    /// The delay of each request after it was due, where that is known separately.
    pub lateness: Latencies,
    /// Requests that were sent but not fully answered.
    pub failed: u64,
    /// Why the first of them was not.
    pub failure: Option<String>,
}

/// A program that sends.
pub(super) trait Player: Send {
    /// Sends until the round is over, then finishes the open requests.
    fn play(&mut self, round: Round) -> Told;
}

/// Programs that send.
#[derive(Debug)]
pub(super) struct Crew {
    hands: Vec<(Sender<Round>, JoinHandle<Option<()>>)>,
    outbox: Sender<Told>,
    told: Receiver<Told>,
}

impl Crew {
    /// Creates a crew without programs.
    pub fn new() -> Crew {
        let (outbox, told) = channel();
        Crew { hands: Vec::new(), outbox, told }
    }

    /// Starts one on `host`, on `cpu`.
    pub fn hire(
        &mut self,
        host: &Netns,
        name: &str,
        cpu: usize,
        mut player: impl Player + 'static,
    ) -> Result<()> {
        let (rounds, inbox) = channel::<Round>();
        let outbox = self.outbox.clone();
        let body = move || {
            settle_down(cpu);
            for round in inbox {
                if outbox.send(player.play(round)).is_err() {
                    break;
                }
            }
        };
        let thread = host.spawn(name, body)?;
        self.hands.push((rounds, thread));
        Ok(())
    }

    /// Has all of them play.
    pub fn go(&self, round: Round) {
        for (rounds, _) in &self.hands {
            // One that is gone is missed in `gather`.
            let _ = rounds.send(round);
        }
    }

    /// Waits for all programs to finish the round; returns the sum of their results.
    pub fn gather(&self, round: Round) -> Result<Told> {
        let mut all = Told::default();
        let latest = round.until + 2 * PATIENCE;
        for _ in &self.hands {
            let left = latest.saturating_duration_since(Instant::now());
            let told = self.told.recv_timeout(left).map_err(|_| {
                let why = "a program on a host does not finish: its peer has stalled";
                Error::new(Code::System, "cannot end the traffic", why)
            })?;
            all.due += told.due;
            all.sent += told.sent;
            all.latencies.join(told.latencies);
            all.lateness.join(told.lateness);
            all.failed += told.failed;
            all.failure = all.failure.or(told.failure);
        }
        Ok(all)
    }

    /// Ends them: each when it has finished its round.
    pub fn end(&mut self) {
        let (rounds, threads): (Vec<_>, Vec<_>) = self.hands.drain(..).unzip();
        drop(rounds);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the calling thread a host's program: on its CPU, and punctual.
pub(super) fn settle_down(cpu: usize) {
    // Where that is refused the traffic is less punctual, which its own figures show.
    let _ = thread::pin_to_cpu(cpu);
    let _ = thread::set_timer_slack_ns(NonZeroU64::MIN);
}

/// The arrivals so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Bytes that programs have read.
    pub goodput_bytes: u64,
    /// Requests sent; 0 of a stream.
    pub requests: u64,
    /// Responses that have arrived in whole.
    pub responses: u64,
}

/// Traffic between two hosts, in rounds.
pub(super) trait Load {
    /// Begins one.
    fn go(&mut self, round: Round);

    /// Returns the arrivals so far.
    fn counts(&self) -> Counts;

    /// Waits until all traffic of the round has arrived; the path must carry packets meanwhile.
    fn settle(&mut self, round: Round) -> Result<Told>;

    /// Closes the connections; the path must carry packets meanwhile.
    fn end(&mut self);
}

/// Opens the workload of a side.
pub(super) fn open_load(config: &Config, hosts: &Hosts) -> Result<Box<dyn Load>> {
    Ok(match config.workload {
        Workload::Stream => Box::new(Stream::open(config, hosts)?),
        Workload::Web => Box::new(Web::open(config, hosts)?),
    })
}
