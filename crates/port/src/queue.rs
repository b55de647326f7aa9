//! One queue of a device: the trait that drivers implement, and the type that applications use.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, Code, Error, Local, Moved, Pool, Result};
use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::wait::poll_readable;
use rustix::io::Errno;

use crate::caps::Caps;
use crate::driver_queue::DriverQueue;
use crate::moderation::{CostMeter, Moderated, Moderation, Rest};
use crate::stats::{Counters, DriverCounts, QueueCounts, QueueStats};
use crate::waker::{WakeBell, WakeEnd, Waker};

pub use crate::health::{Health, HealthKind};
pub use crate::want::Want;

/// A driver's side of one queue. Its descriptor never changes and signals every event as readable;
/// it is readable until it is armed for the first time.
///
/// A driver that copies needs no `unsafe`. Calls come from one thread at a time.
pub trait QueueOps: AsFd + Send {
    /// Receives up to `budget` packets into `out`, which has room for them; returns how many
    /// arrived.
    ///
    /// Shape:  device -> out[len..len+n], n <= budget, in the device's order; caller owns them.
    /// Units:  packets, and their bytes as [`Skb::len`](linerate_skb::Skb::len) counts them.
    /// Errors: none; what cannot be received is counted in `mem`'s ledger, with its reason.
    /// Cost:   no allocation; at most one syscall a batch.
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved;

    /// Sends packets from the front of `batch`; packets that do not fit stay, in order.
    ///
    /// Shape:  batch[0..n) -> device (freed as sent); batch[n..) stays the caller's. What can never
    ///         be sent (too long, unsupported) is dropped with its reason, and leaves the batch too.
    /// Cost:   one doorbell a call, however many packets.
    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved;

    /// Makes the descriptor readable when the wanted event occurs; returns false if it has occurred
    /// already.
    ///
    /// Shape:  false: poll now; true: it is safe to sleep on the descriptor, no event is missed. Packets
    ///         that came since the last `rx` are reported in either way: by false, or by true and a
    ///         descriptor that is readable at once. Packets that an `rx` left there, and room, are
    ///         reported by false alone: an edge-triggered poller (mio, tokio) sees each event once.
    /// Errors: a device in trouble counts as an event: false, and see `health`. So does the end of a
    ///         device that will receive nothing more: false once after it, whatever is wanted, so
    ///         that the caller sees `health`; then true, so that the caller can sleep.
    /// Cost:   a syscall if what is wanted changed since the last time.
    #[must_use = "false: poll now; a caller that sleeps all the same may sleep for ever"]
    fn arm(&mut self, want: Want) -> bool;

    /// Makes the descriptor also readable at `at`, after [`arm`](QueueOps::arm) has returned true;
    /// returns false if the driver cannot, so that the caller must not sleep. Used when a segment
    /// waits for a free frame, which no event signals.
    ///
    /// Cost: a syscall.
    fn alarm(&mut self, at: Instant) -> bool {
        let _ = at;
        false
    }

    /// Makes the descriptor readable at `at`, and stops the device's signals until the queue is
    /// armed again, so that no sender pays for waking the caller. Returns false if the driver
    /// cannot do this; the caller then arms instead.
    ///
    /// Cost: a syscall; one more for the first of several in a row.
    fn hold(&mut self, at: Instant) -> bool {
        let _ = at;
        false
    }

    /// Reports to the driver that its device, or the timer of a hold, ended the caller's sleep.
    /// This is an irq: it costs a register access on a NIC, and a wrapper counts it.
    fn irq(&mut self) {}

    /// Takes back the packets that the device has sent; returns how many packets, or parts of
    /// packets, the device still has to send, or 0 if this is unknown. A caller that closes the
    /// queue waits until the number is 0.
    ///
    /// Shape:  sent packets -> freed as sent.
    /// Cost:   as the look that `xmit` takes.
    fn reap(&mut self, mem: &mut Local) -> usize {
        let _ = mem;
        0
    }

    /// Returns the state of the device.
    ///
    /// Cost: for a device in trouble, the allocations of a copy of its error.
    fn health(&self) -> Health {
        Health::Up
    }

    /// Returns the state of the device, without the error. A driver whose `health` copies an error
    /// returns it without the copy, because a worker asks each time that it finds nothing to do.
    fn health_kind(&self) -> HealthKind {
        self.health().kind()
    }

    /// Returns the driver's counters since the queue was opened. They are read at one time, so that
    /// losses with a known cause never exceed all losses.
    ///
    /// Cost: a syscall, where the kernel counts.
    fn counters(&mut self) -> Counters {
        Counters::default()
    }

    /// Returns the current capabilities of the queue. Callers read them when they start to use the
    /// queue; a ring's length is also read later.
    fn caps(&self) -> Caps {
        Caps::default()
    }
}

/// One queue of a device, with its own hot list, for one thread or task at a time.
///
/// Readable (poll, mio, tokio's `AsyncFd`) means: call me. Between `arm` returning true and that,
/// there is nothing to do. A queue that was never armed is readable.
pub struct Queue {
    ops: DriverQueue,
    mem: Local,
    /// Number of receives that had ended early for lack of a frame, at the last check.
    rx_nombuf: u64,
    /// True if the last receive returned nothing because the pool had no frame.
    starved: bool,
    sleep: Sleep,
    meter: CostMeter,
    /// The receiving end of a waker, if there is one.
    waker: Option<WakeEnd>,
}

/// The kind of sleep for which the queue is armed, until its owner polls again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Sleep {
    /// The queue is not armed.
    #[default]
    Awake,
    /// A sleep that ends when the device signals an event.
    Device,
    /// A sleep that ends at a given time.
    Timer,
}

impl Queue {
    /// Creates a queue of a driver, with its own hot list.
    #[must_use]
    pub fn new(ops: Box<dyn QueueOps>, mem: Local) -> Queue {
        Queue {
            ops: DriverQueue::new(ops),
            mem,
            rx_nombuf: 0,
            starved: false,
            sleep: Sleep::Awake,
            meter: CostMeter::default(),
            waker: None,
        }
    }

    /// Returns the queue with its driver wrapped by `wrap`: see [`crate::wrap`].
    ///
    /// Shape:  hot list and counters stay; the descriptor becomes the wrapper's, so wrap a queue
    ///         before it is polled for.
    ///
    /// # Errors
    /// Those of `wrap`; the queue is closed then.
    pub fn wrap(
        self,
        wrap: impl FnOnce(Box<dyn QueueOps>) -> Result<Box<dyn QueueOps>>,
    ) -> Result<Queue> {
        Ok(Queue { ops: self.ops.wrap(wrap)?, ..self })
    }

    /// Receives as many packets as `batch` has room for; returns how many arrived.
    ///
    /// A full batch receives nothing, and the packets that wait in the device make [`Queue::wait`] return at
    /// once: empty the batch before the next call.
    ///
    /// Shape:  device -> batch[len..len+n]; the caller owns them. Buffers are refilled by itself.
    /// Units:  packets; a packet's length is in bytes from the destination MAC, without FCS.
    /// Errors: none; losses are in the pool's ledger and in [`QueueCounts::rx_missed`], what waits for
    ///         want of a frame in [`QueueCounts::rx_nombuf`] and [`Health::Starved`].
    /// Cost:   as the driver's: at most one syscall.
    pub fn rx(&mut self, batch: &mut Batch) -> usize {
        if self.sleep != Sleep::Awake {
            self.woken(true);
        }
        let (budget, dry) = (batch.spare(), self.mem.starved());
        let n = self.ops.rx(&mut self.mem, batch, budget);
        self.starved = n == 0 && self.mem.starved() != dry && {
            let rx_nombuf = self.ops.counters().rx_nombuf;
            std::mem::replace(&mut self.rx_nombuf, rx_nombuf) != rx_nombuf
        };
        n
    }

    /// Sends packets from the front of `batch`; returns how many left. The rest stays, in order.
    ///
    /// What the device does not do is done first: a missing checksum is computed, a superframe is cut. It
    /// counts as its segments, when they leave; those for which there is no room yet go with the next call.
    pub fn xmit(&mut self, batch: &mut Batch) -> usize {
        self.ops.xmit(&mut self.mem, batch)
    }

    /// Returns the packets that left a batch and wait in the queue for room or for a frame: the
    /// segments of a superframe that did not all fit. The next [`Queue::xmit`] sends them first, also
    /// with an empty batch.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ops.waiting()
    }

    /// Takes back the packets that the device has sent; returns how many packets the device still holds. It
    /// holds none if the kernel copies packets when they are sent, as for `packet` and `tap`.
    ///
    /// Sending does this too. Call it to wait until everything has left, or to get the frames back. Sleep
    /// between the calls, and limit the time: a slow device may hold packets for long.
    pub fn reap(&mut self) -> usize {
        self.ops.reap(&mut self.mem)
    }

    /// Appends up to `want` empty packets to `batch`; fewer if `batch` has no room or the pool has
    /// no frame.
    pub fn alloc(&mut self, batch: &mut Batch, want: usize) -> usize {
        self.mem.alloc(batch, want)
    }

    /// Makes the descriptor readable when `want` occurs; returns false if it has occurred already,
    /// so that the caller polls now.
    ///
    /// After true it is safe to sleep on the descriptor, with any poller: packets that came in the meantime
    /// make it readable at once, or at the end of the time for which its [moderation](Queue::set_moderation)
    /// lets them gather.
    #[must_use = "false: poll now; a caller that sleeps all the same may sleep for ever"]
    pub fn arm(&mut self, want: Want) -> bool {
        if let Some(until) = self.hold(want) {
            if until <= Instant::now() {
                return false;
            }
            if self.ops.hold(until) {
                self.sleep = Sleep::Timer;
                return true;
            }
        }
        self.arm_device(want)
    }

    /// Arms the device, and records the kind of sleep.
    fn arm_device(&mut self, want: Want) -> bool {
        // A caller that polls without sleeping sleeps only when nothing can come any more.
        let sleeps = !self.is_busy() || self.ops.health().ended();
        let armed = sleeps && self.ops.arm(want);
        if !armed {
            self.ops.stats().count_recheck();
        }
        self.sleep = if armed { Sleep::Device } else { Sleep::Awake };
        armed
    }

    /// Returns the time at which the hold of received packets ends; `None` if there is no hold, or
    /// if the caller waits for another event as well.
    fn hold(&mut self, want: Want) -> Option<Instant> {
        if want != Want::Frames || self.ops.waiting() > 0 {
            return None;
        }
        let now = Instant::now();
        self.meter.falls_asleep(now, thread_cpu_ns);
        match self.ops.moderator().rest(now) {
            Rest::Hold { until, .. } => Some(until),
            Rest::Look | Rest::Device => None,
        }
    }

    /// Measures the cost of a wake-up and of a packet, and passes it to the moderator.
    ///
    /// Cost: a syscall, 50 times a second.
    #[cold]
    fn learn(&mut self) {
        let counts = self.ops.stats().counts();
        let now = Instant::now();
        let cost = self.meter.woke(now, thread_cpu_ns(), counts.irqs(), counts.rx_packets);
        self.ops.learned(cost, now);
    }

    /// Sets the moderation mode, which decides when [`Queue::wait`] and [`Queue::arm`] poll the
    /// queue again. The default is `adaptive`.
    pub fn set_moderation(&mut self, mode: Moderation) {
        self.ops.moderator().set_mode(mode);
    }

    /// Returns the state of the queue's moderation, with the reason for it.
    pub fn moderated(&mut self) -> Moderated {
        self.ops.moderator().moderated()
    }

    /// Returns a handle with which any thread ends the queue's waits: see
    /// [`Port::waker`](crate::Port::waker).
    ///
    /// # Errors
    /// `E-SYSTEM` if the process is out of descriptors.
    pub fn waker(&mut self) -> Result<Waker> {
        Ok(Waker::of(std::iter::once(self.wake_bell()?)))
    }

    pub(crate) fn wake_bell(&mut self) -> Result<Arc<WakeBell>> {
        let end = match self.waker.take() {
            Some(end) => end,
            None => WakeEnd::new()?,
        };
        Ok(self.waker.insert(end).bell())
    }

    /// Returns true if a waker was used since the last call that returned true.
    pub(crate) fn is_told(&mut self) -> bool {
        self.waker.as_mut().is_some_and(WakeEnd::take)
    }

    /// Returns true if a waker was used; called after poll(2) found a descriptor readable.
    pub(crate) fn is_told_polled(&mut self) -> bool {
        self.waker.as_mut().is_some_and(WakeEnd::take_polled)
    }

    /// Returns the descriptor that a waker makes readable, if there is one.
    pub(crate) fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(WakeEnd::as_fd)
    }

    /// Sleeps until there are packets to receive, or for `timeout`; returns false after the timeout
    /// or if a [waker](Queue::waker) was used.
    ///
    /// Without a time, false says that the source has ended and everything was received, if nobody has a waker:
    /// `while queue.wait(None)? { … }` ends with it.
    ///
    /// # Errors
    /// Those of a device that has failed for good, each time, and those of poll(2). A device that is down
    /// may come back: this call sleeps, and [`Queue::health`] reports the state.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        self.wait_for(Want::Frames, timeout)
    }

    /// Sleeps until `want` occurs, or for `timeout`; returns false after the timeout. Works as
    /// [`Queue::wait`], except that a wait for room does not return when the device has finished.
    ///
    /// # Errors
    /// As [`Queue::wait`].
    pub fn wait_for(&mut self, want: Want, timeout: Option<Duration>) -> Result<bool> {
        if self.is_told() {
            return Ok(false);
        }
        let start = Instant::now();
        let mut left = timeout;
        if let Some(until) = self.hold(want) {
            let time = until.saturating_duration_since(start);
            let time = timeout.map_or(time, |timeout| time.min(timeout));
            if !time.is_zero() {
                self.sleep = Sleep::Timer;
                poll_readable(&[], Some(time)).map_err(cannot_wait)?;
                self.woken(true);
                left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            }
        }
        if self.is_busy() {
            return self.spin(want, timeout);
        }
        // Read the health before `arm`, so that `arm` reports a packet that arrived before the end.
        let health = self.ops.health();
        if !self.arm_device(want) {
            return Ok(true);
        }
        let is_over = over(health, want, timeout);
        if is_over != Ok(false) {
            self.stay_awake();
            return is_over.map(|_| false);
        }
        let device = self.ops.as_fd();
        let readable = match self.wake_fd() {
            Some(waker) => poll_readable(&[device, waker], left),
            None => poll_readable(&[device], left),
        };
        let readable = readable.map_err(cannot_wait)? && !self.is_told_polled();
        self.woken(readable);
        Ok(readable)
    }

    /// Returns true if the queue is polled without sleeping.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.ops.moderator().mode() == Moderation::Busy
    }

    /// Returns true if `want` has occurred.
    pub(crate) fn has(&mut self, want: Want) -> bool {
        !self.ops.arm(want)
    }

    /// Records that the owner does not sleep although the queue is armed, so that no end of a sleep is counted.
    pub(crate) fn stay_awake(&mut self) {
        self.sleep = Sleep::Awake;
    }

    /// Polls for `want` without sleeping, for up to `timeout`.
    fn spin(&mut self, want: Want, timeout: Option<Duration>) -> Result<bool> {
        let start = Instant::now();
        loop {
            let health = self.ops.health();
            if self.has(want) {
                return Ok(true);
            }
            let is_late = timeout.is_some_and(|timeout| start.elapsed() >= timeout);
            if over(health, want, timeout)? || is_late || self.is_told() {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Counts the end of a sleep, if `by` is true: this queue ended it.
    pub(crate) fn woken(&mut self, by: bool) {
        match std::mem::take(&mut self.sleep) {
            Sleep::Device if by => self.ops.irq(false),
            Sleep::Timer if by => self.ops.irq(true),
            _ => {}
        }
        if self.meter.is_sample() {
            self.learn();
        }
    }

    /// Returns the state of the device, or [`Health::Starved`] if the pool had no frame at the last receive.
    ///
    /// Cost: what the driver's answer costs; a look at the pool's books if it starves.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.ops.health() {
            Health::Up if self.starved => Health::Starved(starved(self.mem.pool())),
            health => health,
        }
    }

    /// Returns the state of the device, as the driver reports it.
    pub(crate) fn device_health(&self) -> Health {
        self.ops.health()
    }

    /// Returns the pool that the queue receives into.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.mem.pool()
    }

    /// Returns the hot list that the queue allocates from.
    pub fn local(&mut self) -> &mut Local {
        &mut self.mem
    }

    /// Returns the queue's live counters.
    #[must_use]
    pub fn stats(&self) -> Arc<QueueStats> {
        self.ops.stats().clone()
    }

    /// Returns the driver's counters other than packets: causes of losses, bytes copied.
    pub fn driver_counts(&mut self) -> DriverCounts {
        self.ops.counters().driver
    }

    /// Returns the counts since the queue was opened.
    pub fn counts(&mut self) -> QueueCounts {
        let Counters { rx_missed, rx_nombuf, .. } = self.ops.counters();
        QueueCounts { rx_missed, rx_nombuf, ..self.ops.stats().counts() }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ops.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("stats", self.ops.stats()).finish_non_exhaustive()
    }
}

/// Returns true if sleeping for `want` is pointless: it can never occur, and there is no timeout.
///
/// # Errors
/// That of a device that has failed for good.
pub(crate) fn over(health: Health, want: Want, timeout: Option<Duration>) -> Result<bool> {
    match health {
        Health::Failed(error) => Err(error),
        // With a timeout, sleep even if the device has finished; otherwise a loop around this call
        // would spin.
        health => Ok(health == Health::Finished && want == Want::Frames && timeout.is_none()),
    }
}

/// Returns the error of a failed poll(2).
pub(crate) fn cannot_wait(errno: Errno) -> Error {
    Error::os(Code::System, "cannot wait for packets", "poll", errno)
}

/// Returns the error of a queue without frames, which names their holders.
#[cold]
fn starved(pool: &Pool) -> Error {
    let ledger = pool.ledger();
    let program = ledger.held().last().map_or(0, |(_, n)| *n);
    let why = format!(
        "starved: the program holds {program} packets, and no frame of {} is free",
        ledger.frames
    );
    Error::new(Code::Memory, "cannot receive", why)
        .fix("send or drop received packets, or open the port in a larger pool")
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_sys::wait::EventFd;

    /// A driver that returns one packet and reports three.
    struct Liar(EventFd);

    impl QueueOps for Liar {
        fn rx(&mut self, mem: &mut Local, out: &mut Batch, _: usize) -> Moved {
            assert_eq!(mem.alloc(out, 1), 1);
            Moved { packets: 3, bytes: 0 }
        }

        fn xmit(&mut self, _: &mut Local, _: &mut Batch) -> Moved {
            Moved::default()
        }

        fn arm(&mut self, _: Want) -> bool {
            true
        }
    }

    impl AsFd for Liar {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    #[test]
    fn rx_counts_the_packets_in_the_batch_whatever_the_driver_reports() {
        let pool = Pool::builder().frames(8).build().unwrap();
        let mut queue = Queue::new(Box::new(Liar(EventFd::new().unwrap())), pool.local());
        let mut batch = Batch::with_capacity(4);
        assert_eq!((queue.rx(&mut batch), queue.counts().rx_packets), (1, 1));
        assert_eq!(pool.ledger().received, 1);
    }
}
