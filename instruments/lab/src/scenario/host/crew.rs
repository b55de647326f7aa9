//! The programs on the hosts, with their traffic: threads that send during a round and wait for the
//! next one. A program's thread sends itself, or has a process send ([`super::child`]).

use std::io;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_port::Queue;
use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::netns::Netns;
use linerate_sys::thread;
use serde::{Deserialize, Serialize};

use super::child::Child;
use super::config::{Config, Workload};
use super::datagrams::{Datagrams, Sending};
use super::hosts::Hosts;
use super::latencies::Latencies;
use super::tcp::{Connected, PATIENCE, Tcp};
use super::web::Web;
use crate::{Code, Error, Result};

/// A time interval with traffic.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// The round's number, from 1.
    pub number: u64,
    pub from: Instant,
    pub until: Instant,
}

/// The results of a round.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Told {
    /// Messages, requests or datagrams that were due; without a rate, those that were sent.
    pub due: u64,
    /// Messages, requests or datagrams sent within the round.
    pub sent: u64,
    /// Messages, requests or datagrams answered, or read, within the round.
    pub answered: u64,
    /// Latency of each request, from its due time to its answer.
    pub latencies: Latencies,
    /// Delay of sending each request after its due time, where that is known separately.
    pub lateness: Latencies,
    /// Requests that were sent but not fully answered.
    pub failed: u64,
    /// Datagrams that arrived after a later one of their flow.
    pub reordered: u64,
    /// Arrivals of datagrams that had arrived before.
    pub duplicated: u64,
    /// True if more datagrams were due than those whose latencies are kept.
    pub capped: bool,
    /// The reason for the first failure.
    pub failure: Option<String>,
    /// CPU time of the senders.
    pub cpu_ns: u64,
}

/// A program that sends.
pub(super) trait Player {
    /// Sends until the round is over, then waits for open requests.
    fn play(&mut self, round: Round) -> Told;

    /// Returns true if another process sends. Its CPU time is then in its results, and that of the
    /// calling thread, which only waits, counts with the lab's own.
    fn is_elsewhere(&self) -> bool {
        false
    }
}

/// The part of a sender, to be played by a thread or by another process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Part {
    /// Messages over a TCP connection.
    Tcp(Connected),
    /// Datagrams, each sent at its time.
    Datagrams(Sending),
}

impl Part {
    /// Opens the sender's socket. To be called in the host's namespace.
    pub fn open(self) -> io::Result<Box<dyn Player>> {
        match self {
            Part::Tcp(part) => part.open(),
            Part::Datagrams(part) => part.open(),
        }
    }
}

/// The programs that send.
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

    /// Starts a program on `host`, on `cpu`. The program is created on its own thread, and is ready
    /// when this returns.
    pub fn hire(
        &mut self,
        host: &Netns,
        name: &str,
        cpu: usize,
        make: impl FnOnce() -> io::Result<Box<dyn Player>> + Send + 'static,
    ) -> Result<()> {
        let (rounds, inbox) = channel::<Round>();
        let (ready, made) = sync_channel(1);
        let outbox = self.outbox.clone();
        let body = move || {
            settle_down(&[cpu]);
            let player = make();
            let _ = ready.send(player.as_ref().map(drop).map_err(io::Error::to_string));
            let Ok(mut player) = player else { return };
            for round in inbox {
                let before = thread_cpu_ns();
                let mut told = player.play(round);
                if !player.is_elsewhere() {
                    told.cpu_ns = thread_cpu_ns().saturating_sub(before);
                }
                if outbox.send(told).is_err() {
                    break;
                }
            }
        };
        let thread = host.spawn(name, body)?;
        let failed = |why| Error::new(Code::System, format!("cannot start the sender {name}"), why);
        made.recv().unwrap_or_else(|e| Err(e.to_string())).map_err(failed)?;
        self.hands.push((rounds, thread));
        Ok(())
    }

    /// Starts a program on the western host, on `cpu`, that plays `part`, in a process of its own
    /// if requested.
    pub fn employ(
        &mut self,
        config: &Config,
        hosts: &Hosts,
        name: &str,
        cpu: usize,
        part: Part,
        process: bool,
    ) -> Result<()> {
        let program = config.program.clone().filter(|_| process);
        self.hire(&hosts.west, name, cpu, move || match program {
            Some(program) => Ok(Box::new(Child::start(&program, cpu, &part)?)),
            None => part.open(),
        })
    }

    /// Starts a round in all programs.
    pub fn go(&self, round: Round) {
        for (rounds, _) in &self.hands {
            // Ignore the error if a program has ended: [`Crew::gather`] reports it.
            let _ = rounds.send(round);
        }
    }

    /// Waits for all programs to finish the round; returns the sum of their results.
    pub fn gather(&self, round: Round) -> Result<Told> {
        let mut all = Told::default();
        // Wait longer than a sender waits for its process, so that the sender's error, which has
        // the reason, arrives first.
        let latest = round.until + 2 * PATIENCE + Duration::from_secs(1);
        for _ in &self.hands {
            let left = latest.saturating_duration_since(Instant::now());
            let told = self.told.recv_timeout(left).map_err(|_| {
                let why = "a program on a host does not finish: its peer has stalled";
                Error::new(Code::System, "cannot end the traffic", why)
            })?;
            all.due += told.due;
            all.sent += told.sent;
            all.answered += told.answered;
            all.latencies.join(told.latencies);
            all.lateness.join(told.lateness);
            all.failed += told.failed;
            all.reordered += told.reordered;
            all.duplicated += told.duplicated;
            all.capped |= told.capped;
            all.failure = all.failure.or(told.failure);
            all.cpu_ns += told.cpu_ns;
        }
        Ok(all)
    }

    /// Ends the threads: each finishes its round first.
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

/// Makes the calling thread a host's program: sets its CPUs and its timer slack.
pub(super) fn settle_down(cpus: &[usize]) {
    // Ignore an error: it makes the traffic less punctual, and the figures on lateness show that.
    let _ = thread::run_on(cpus);
    let _ = thread::set_timer_slack_ns(NonZeroU64::MIN);
}

/// The arrivals so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Bytes that programs have read.
    pub goodput_bytes: u64,
    /// TCP connections over which nothing has arrived in this round.
    pub idle: u64,
    /// HTTP requests sent.
    pub requests: u64,
    /// HTTP responses that have arrived completely.
    pub responses: u64,
}

/// Traffic between two hosts, in rounds.
pub(super) trait Load {
    /// Allocates what the next round needs, which lasts `time`. Call it before each round, outside
    /// the measured time.
    fn prepare(&mut self, _time: Duration) {}

    /// Begins a round.
    fn go(&mut self, round: Round);

    /// Returns the arrivals so far.
    fn counts(&self) -> Counts;

    /// Waits until all traffic of the round has arrived, while the path carries packets.
    fn settle(&mut self, round: Round) -> Result<Told>;

    /// Closes the connections; the path must carry packets meanwhile.
    fn end(&mut self);

    /// Returns the ids of the threads that read on the eastern host, if they are known.
    fn readers(&self) -> Vec<i32> {
        Vec::new()
    }
}

/// Opens the workload of a side; `queues` are those of the programs in the east whose TCP is in
/// user space.
pub(super) fn open_load(
    config: &Config,
    hosts: &Hosts,
    queues: Vec<Queue>,
) -> Result<Box<dyn Load>> {
    Ok(match config.workload {
        Workload::Stream | Workload::Rpc => Box::new(Tcp::open(config, hosts, queues)?),
        Workload::Web => Box::new(Web::open(config, hosts, queues)?),
        Workload::Load => Box::new(Datagrams::load(config, hosts)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_sys::netns::is_refused;
    use linerate_testing::unless;

    /// A sender whose process took 5 ns.
    struct Elsewhere;

    impl Player for Elsewhere {
        fn play(&mut self, _round: Round) -> Told {
            Told { cpu_ns: 5, ..Told::default() }
        }

        fn is_elsewhere(&self) -> bool {
            true
        }
    }

    #[test]
    fn cpu_time_of_a_process_that_sends_has_none_of_the_thread_that_waits_for_it() {
        let Some(host) = unless(Netns::new(), is_refused) else { return };
        let mut crew = Crew::new();
        crew.hire(&host, "west-0", 0, || Ok(Box::new(Elsewhere))).unwrap();
        let from = Instant::now();
        let round = Round { number: 1, from, until: from };
        crew.go(round);
        assert_eq!(crew.gather(round).unwrap().cpu_ns, 5);
    }
}
