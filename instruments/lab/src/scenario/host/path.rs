//! The engine between the hosts, on threads that own its workers and pause between windows.
//!
//! ```text
//!  joined   w0 ⇄ e0                        one worker a pair of ports
//!  split    w0 ⇄ ring ⇄ e0                 a worker on each side of the ring
//!  smoltcp  w0 ⇄ e0, an end of a ring      a worker a ring; the host's program has its other end
//! ```
//!
//! A worker's thread waits on a channel for its next order. While it does, it takes no CPU, and
//! what comes meanwhile waits in the kernel's ring.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_datapath::{Engine, Stats, Worker};
use linerate_port::Queue;
use linerate_prof::profile::Profile;
use linerate_prof::sample::{Recorder, Recording, Target, What};
use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::thread;

use super::config::{Config, Port};
use super::fault::Prefers;
use super::hosts::Hosts;
use super::sequence::Sequence;
use crate::meter::Meter;
use crate::window::ThreadTime;
use crate::{Code, Error, Result};

/// Longest sleep of a worker, so that it notices the order to rest.
const NOTICE: Duration = Duration::from_millis(5);
/// Interval at which a worker empties the buffers of its recording; the buffers have room for
/// several seconds.
const EMPTY: Duration = Duration::from_millis(200);
/// The longest wait for a worker's answer.
const LATE: Duration = Duration::from_secs(20);
/// The longest time for packets queued in the engine to leave it at its end.
const DRAIN: Duration = Duration::from_secs(2);

/// An order to a worker's thread.
enum Order {
    /// Carry packets until this time, and report the cost.
    Measure { until: Instant },
    /// Prepare for sampling, report that, carry packets for this time, and return the profile.
    Profile { time: Duration, hz: u32 },
    /// Carry packets until ordered to rest.
    Carry,
    /// Send the queued packets, and end.
    Drain,
}

enum Answer {
    Measured(Result<ThreadTime>),
    Ready,
    Profiled(Box<Result<Profile>>),
    Rests(Result<()>),
}

/// An engine whose workers run on request.
#[derive(Debug)]
pub(super) struct Path {
    stats: Stats,
    sequence: Option<Sequence>,
    carrying: Arc<AtomicBool>,
    hands: Vec<Hand>,
    /// The ids of the workers' threads.
    pub threads: Vec<i32>,
    /// The queues of the programs in the east whose TCP is in user space, one for each adapter.
    pub queues: Vec<Queue>,
}

/// A worker's thread, with its channels.
#[derive(Debug)]
struct Hand {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    thread: JoinHandle<Option<()>>,
}

impl Path {
    /// Opens the ports in the namespace between the hosts. No worker runs yet.
    pub fn open(config: &Config, hosts: &Hosts) -> Result<Path> {
        // Open the ports in the middle namespace: a packet socket belongs to the namespace of the
        // thread that opens it.
        let sequence = config.check.then(Sequence::new);
        let mut engine = hosts.middle.run(|| build(config, sequence.as_ref()))??;
        hosts.adopt(config)?;
        let queues = (0..config.adapters).flat_map(|adapter| engine.take(&program(adapter)));
        let queues = queues.collect();
        let stats = engine.stats();
        let carrying = Arc::new(AtomicBool::new(false));
        let (hands, threads) = (Vec::new(), Vec::new());
        let mut path = Path { stats, sequence, carrying, hands, threads, queues };
        let workers = engine.into_workers();
        if workers.len() != config.workers.len() {
            let why = format!("{} workers for {} CPUs", workers.len(), config.workers.len());
            return Err(Error::new(Code::System, "cannot place the workers", why));
        }
        for (i, worker) in workers.into_iter().enumerate() {
            let (cpus, (tell, told)) = (config.worker_cpus(i), channel());
            let (orders, inbox) = channel();
            let (outbox, answers) = channel();
            let carrying = path.carrying.clone();
            let body = move || {
                let _ = tell.send(thread::id());
                let pinned = thread::run_on(&cpus);
                let go = pinned.is_ok();
                let _ = outbox.send(Answer::Rests(pinned));
                if go {
                    // A worker that may run on several CPUs is not pinned, so its meter gets no
                    // CPU.
                    let cpu = if let [cpu] = *cpus { Some(cpu) } else { None };
                    let meter = Meter::of_this_thread(&format!("worker {i}"), cpu, true);
                    serve(worker, meter, &carrying, &inbox, &outbox);
                }
            };
            let thread = hosts.middle.spawn(&format!("host-worker-{i}"), body)?;
            path.hands.push(Hand { orders, answers, thread });
            path.await_rest(i)?;
            path.threads.extend(told.recv());
        }
        Ok(path)
    }

    /// Returns the engine's statistics.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the number of packets so far that left the engine after one that had been received
    /// later; `None` if order is not checked.
    pub fn late(&self) -> Option<u64> {
        self.sequence.as_ref().map(Sequence::late)
    }

    /// Has the workers carry packets, unmeasured, until [`Path::rest`].
    pub fn carry(&self) {
        self.carrying.store(true, Ordering::Release);
        self.all(|| Order::Carry);
    }

    /// Waits until every worker has stopped.
    pub fn rest(&self) -> Result<()> {
        self.carrying.store(false, Ordering::Release);
        all_of((0..self.hands.len()).map(|i| self.await_rest(i))).map(drop)
    }

    /// Has the workers carry packets until the given time.
    pub fn begin(&self, until: Instant) {
        self.all(|| Order::Measure { until });
    }

    /// Returns the cost of each worker since [`Path::begin`]; all workers pause.
    pub fn measured(&self, until: Instant) -> Result<Vec<ThreadTime>> {
        let take = |i| match self.answer(i, until)? {
            Answer::Measured(time) => time,
            _ => Err(out_of_step()),
        };
        all_of((0..self.hands.len()).map(take))
    }

    /// Makes the workers carry packets for `time`, sampled at `hz`. Sampling has started when this
    /// returns, because starting takes longer than some windows.
    pub fn begin_profile(&self, time: Duration, hz: u32) -> Result<()> {
        self.all(|| Order::Profile { time, hz });
        let ready = |i| match self.answer(i, Instant::now())? {
            Answer::Ready => Ok(()),
            Answer::Profiled(profile) => Err(profile.err().unwrap_or_else(out_of_step)),
            _ => Err(out_of_step()),
        };
        let ready: Vec<Result<()>> = (0..self.hands.len()).map(ready).collect();
        if ready.iter().any(Result::is_err) {
            // Read the answers of the workers that started: each runs for `time` and then answers,
            // and its answer would be taken for the answer to the next order.
            for (i, _) in ready.iter().enumerate().filter(|(_, ready)| ready.is_ok()) {
                // An error here would hide the cause, which is in `ready`.
                let _ = self.answer(i, Instant::now() + time);
            }
        }
        ready.into_iter().collect()
    }

    /// Returns the profile of each worker since [`Path::begin_profile`].
    pub fn profiled(&self, until: Instant) -> Result<Vec<Profile>> {
        let take = |i| match self.answer(i, until)? {
            Answer::Profiled(profile) => *profile,
            _ => Err(out_of_step()),
        };
        all_of((0..self.hands.len()).map(take))
    }

    /// Sends the queued packets and ends the workers: packets that remain are dropped as `stopped`.
    pub fn end(mut self) -> Result<Stats> {
        self.all(|| Order::Drain);
        let ended = all_of((0..self.hands.len()).map(|i| self.await_rest(i)));
        self.join();
        ended.map(|_| self.stats.clone())
    }

    fn all(&self, order: impl Fn() -> Order) {
        for hand in &self.hands {
            // Ignore the error if a worker has ended: waiting for its answer reports it.
            let _ = hand.orders.send(order());
        }
    }

    fn await_rest(&self, hand: usize) -> Result<()> {
        match self.answer(hand, Instant::now() + DRAIN)? {
            Answer::Rests(rests) => rests,
            _ => Err(out_of_step()),
        }
    }

    fn answer(&self, hand: usize, until: Instant) -> Result<Answer> {
        let timeout = until.saturating_duration_since(Instant::now()) + LATE;
        let answers = self.hands.get(hand).map(|hand| &hand.answers);
        let answer = answers.and_then(|answers| answers.recv_timeout(timeout).ok());
        answer.ok_or_else(|| {
            let why = format!("worker {hand} does not answer");
            Error::new(Code::System, "cannot continue the path between the hosts", why)
        })
    }

    fn join(&mut self) {
        self.carrying.store(false, Ordering::Release);
        for hand in self.hands.drain(..) {
            drop(hand.orders);
            let _ = hand.thread.join();
        }
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.join();
    }
}

/// Returns the results of all answers, or the first error, but only after all answers were read: a
/// late answer would be taken for the answer to the next order.
fn all_of<T>(answers: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
    let answers: Vec<Result<T>> = answers.collect();
    answers.into_iter().collect()
}

/// Returns the name of the port that the program of an adapter has.
fn program(adapter: usize) -> String {
    format!("program{adapter}")
}

/// Builds the engine of a side.
fn build(config: &Config, sequence: Option<&Sequence>) -> Result<Engine> {
    let mut engine = Engine::builder()
        .data(config.data)
        .init(config.init)
        .return_to(config.return_to)
        .hot_list_len(config.hot_list)
        .budget(config.budget)
        .moderation(config.moderation)
        .tx_batch(config.tx_batch)
        .sampling(config.sample_every);
    if let Some(frames) = config.pool_frames {
        engine = engine.pool_frames(frames);
    }
    // Without offload, packets have their checksum and are no longer than the MTU. Port option
    // `vnet=off` then saves the pool the room for superframes.
    let vnet = if config.offload { "on" } else { "off" };
    let toll = config.toll.map_or(String::new(), |toll| format!(",toll={toll}"));
    let hold = config.hold.map_or(String::new(), |usecs| format!(",hold={usecs}us"));
    let port = |interface: &str| match config.port {
        Port::Packet => {
            format!("packet:{interface},vnet={vnet},ring={}KiB{toll}", config.ring_bytes >> 10)
        }
        Port::Xdp => format!("xdp:{interface},ring={}{hold}{toll}", config.ring),
        Port::Tap => format!("tap:{interface}{toll}"),
    };
    if let Some(faulty) = config.fault.stage(config.tx_batch) {
        engine = engine.stage(move |_| faulty());
    }
    if let Some(one_in) = config.fault.core_prefers {
        engine = engine.stage(move |_| Prefers(one_in));
    }
    if config.workers.len() == 1 {
        engine = engine.workers(1);
    }
    for adapter in 0..config.adapters {
        let (west, east) = (format!("w{adapter}"), format!("e{adapter}"));
        if config.user_space {
            let (program, ring) =
                (program(adapter), format!("ring:r{adapter},len={}", config.ring_len));
            engine = engine.port(&west, &port(&west)).port(&east, &ring).port(&program, &ring);
            engine = engine.wire(&west, &east).keep(&program);
            continue;
        }
        let behind = config.qdisc.as_deref().map_or(String::new(), |text| format!(",{text}"));
        engine = engine.port(&west, &port(&west)).port(&east, &(port(&east) + &behind));
        for end in [&west, &east] {
            if let Some(overrun) = config.fault.overrun() {
                engine = engine.wrap(end, move |ops, _| Ok(overrun(ops)));
            }
            if let Some(faulty) = config.fault.queue(config.port) {
                engine = engine.wrap(end, move |ops, _| Ok(faulty(ops)));
            }
            // Wrap the check around the fault, so that the check sees the packets as the engine
            // gives them to its driver.
            if let Some(sequence) = sequence.cloned() {
                engine = engine.wrap(end, move |ops, _| Ok(sequence.around(ops)));
            }
        }
        if !config.split {
            engine = engine.wire(&west, &east);
            continue;
        }
        let (near, far) = (format!("r{adapter}w"), format!("r{adapter}e"));
        let ring = format!("ring:r{adapter},len={}", config.ring_len);
        engine = engine.port(&near, &ring).port(&far, &ring);
        engine = engine.wire(&west, &near).wire(&far, &east);
    }
    engine.build()
}

/// Runs a worker's thread.
fn serve(
    mut worker: Worker,
    mut meter: Meter,
    carrying: &AtomicBool,
    orders: &Receiver<Order>,
    answers: &Sender<Answer>,
) {
    for order in orders {
        let answer = match order {
            Order::Measure { until } => Answer::Measured(measure(&mut worker, &mut meter, until)),
            Order::Profile { time, hz } => {
                let ready = || drop(answers.send(Answer::Ready));
                Answer::Profiled(Box::new(profile(&mut worker, time, hz, ready)))
            }
            Order::Carry => Answer::Rests(carry(&mut worker, carrying)),
            Order::Drain => {
                let drained = worker.drain(DRAIN).map(drop).map_err(|e| failed(&e));
                let _ = answers.send(Answer::Rests(drained));
                break;
            }
        };
        if answers.send(answer).is_err() {
            break;
        }
    }
}

fn measure(worker: &mut Worker, meter: &mut Meter, until: Instant) -> Result<ThreadTime> {
    meter.start()?;
    let turned = turn(worker, until, |_| Ok(()));
    let time = meter.stop()?;
    // Publish now, so that the devices' counts include the end of this window.
    worker.publish();
    turned.map(|()| time)
}

fn profile(worker: &mut Worker, time: Duration, hz: u32, ready: impl FnOnce()) -> Result<Profile> {
    let mut recording = Recorder::new(What::Time { hz }).start(Target::ThisThread)?;
    ready();
    let (mut emptied, from_ns) = (Instant::now(), thread_cpu_ns());
    turn(worker, emptied + time, |now| empty(&mut recording, &mut emptied, now))?;
    let cpu_ns = thread_cpu_ns().saturating_sub(from_ns);
    let mut profile = recording.finish()?;
    profile.conditions.cpu_ns = Some(cpu_ns);
    Ok(profile)
}

/// Empties the buffers of samples if [`EMPTY`] has passed since the last time.
fn empty(recording: &mut Recording, emptied: &mut Instant, now: Instant) -> Result<()> {
    if now.saturating_duration_since(*emptied) >= EMPTY {
        *emptied = now;
        recording.poll(Duration::ZERO)?;
    }
    Ok(())
}

/// Turns and parks a worker until `until`, and calls `beside` after each turn.
fn turn(
    worker: &mut Worker,
    until: Instant,
    mut beside: impl FnMut(Instant) -> Result<()>,
) -> Result<()> {
    loop {
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        if left.is_zero() {
            return Ok(());
        }
        let turned = worker.turn(now);
        beside(now)?;
        worker.park(turned, Some(left)).map_err(|e| failed(&e))?;
    }
}

fn carry(worker: &mut Worker, carrying: &AtomicBool) -> Result<()> {
    while carrying.load(Ordering::Acquire) {
        let turned = worker.turn(Instant::now());
        worker.park(turned, Some(NOTICE)).map_err(|e| failed(&e))?;
    }
    // Publish now, so that what the devices counted here is not of the next window.
    worker.publish();
    Ok(())
}

fn failed(e: &io::Error) -> Error {
    Error::new(Code::System, "a worker failed", e.to_string())
}

fn out_of_step() -> Error {
    Error::new(Code::System, "a worker failed", "it answers what was not asked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_read_before_the_first_error_is_told() {
        let mut read = Vec::new();
        let answers = [Ok(1), Err(out_of_step()), Ok(3)].into_iter().inspect(|one| {
            read.push(one.as_ref().ok().copied());
        });
        assert!(all_of(answers).is_err());
        assert_eq!(read, [Some(1), None, Some(3)]);
    }
}
