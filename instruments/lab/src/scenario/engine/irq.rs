//! A MODEL of an adapter's interrupt: raised for the first frame, then held by time and by number
//! of frames.
//!
//! ```text
//!  adapter's end of a ring: Raises          driver's end: Takes, whose descriptor is the interrupt
//!   xmit ─► frames in the ring ─ arrived ─► raised, if armed:  as soon as `frames` of them wait, or
//!                                           `usecs` after the last interrupt was taken, by a timer
//!   arm unmasks ◄──── polls until none is left ◄──── taken, counted by its cause, masked
//! ```
//!
//! The frames themselves are in the ring at once: a driver that polls finds them, as on a real
//! adapter.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use linerate_datapath::EngineBuilder;
use linerate_port::moderation::{DeviceHold, HoldControl};
use linerate_port::wait::{Epoll, EventFd, EventFlags, TimerFd};
use linerate_port::wrap::{Layer, Wrapped};
use linerate_port::{Code, Error, Health, Queue, QueueOps, Result, Want};
use linerate_skb::{Batch, Local, Moved};

/// The reason why an interrupt was raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The time since the last interrupt has passed, or there was none before.
    Time,
    /// So many frames are waiting as are set.
    Frames,
}

/// Interrupts that a driver has taken, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    pub by_time: u64,
    pub by_frames: u64,
}

#[derive(Debug, Default)]
struct State {
    hold: DeviceHold,
    /// Frames that the adapter has written to the ring, and that the driver has received.
    arrived: u64,
    received: u64,
    unmasked: bool,
    /// The time of the last interrupt that was taken.
    last: Option<Instant>,
    raised: Option<Cause>,
    /// The time for which the timer is set.
    alarm: Option<Instant>,
    taken: Taken,
}

impl State {
    /// Returns the frames in the ring. The driver may receive a frame before the adapter's thread
    /// has counted it.
    fn waiting(&self) -> u64 {
        self.arrived.saturating_sub(self.received)
    }
}

/// The interrupt of a simulated adapter, shared by the adapter's and the driver's end of a ring.
#[derive(Debug)]
pub(super) struct Irq {
    state: Mutex<State>,
    line: EventFd,
    timer: TimerFd,
}

impl Irq {
    /// Creates an interrupt that is held for `usecs` or until `frames` frames are waiting.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn new(usecs: u32, frames: u32) -> Result<Arc<Irq>> {
        let hold = DeviceHold { time: Duration::from_micros(usecs.into()), frames: Some(frames) };
        let state = Mutex::new(State { hold, ..State::default() });
        Ok(Arc::new(Irq { state, line: EventFd::new()?, timer: TimerFd::new()? }))
    }

    /// Returns the interrupts that were taken.
    pub fn taken(&self) -> Taken {
        self.state().taken
    }

    /// Wraps both ends of a ring: the adapter's, and the driver's whose descriptor is this
    /// interrupt.
    ///
    /// # Errors
    /// `E-SYSTEM` without descriptors.
    pub fn between(self: &Arc<Irq>, adapter: Queue, driver: Queue) -> Result<(Queue, Queue)> {
        Ok((
            adapter.wrap(|ops| Ok(self.adapter_end(ops)))?,
            driver.wrap(|ops| self.driver_end(ops))?,
        ))
    }

    /// Wraps both ends of a ring that are ports of an engine.
    pub fn between_ports(
        self: &Arc<Irq>,
        ports: EngineBuilder,
        adapter: &str,
        driver: &str,
    ) -> EngineBuilder {
        let (near, far) = (self.clone(), self.clone());
        let ports = ports.wrap(adapter, move |ops, _| Ok(near.adapter_end(ops)));
        ports.wrap(driver, move |ops, _| far.driver_end(ops))
    }

    fn adapter_end(self: &Arc<Irq>, ops: Box<dyn QueueOps>) -> Box<dyn QueueOps> {
        Box::new(Wrapped::around(ops, Raises(self.clone())))
    }

    fn driver_end(self: &Arc<Irq>, mut ops: Box<dyn QueueOps>) -> Result<Box<dyn QueueOps>> {
        // A ring's descriptor is readable until it is armed for the first time. Room is there, so
        // that this leaves it unreadable until the other end is gone.
        let _ = ops.arm(Want::Room);
        let any = Epoll::new()?;
        for fd in [self.line.as_fd(), self.timer.as_fd(), ops.as_fd()] {
            let failed =
                |errno| Error::os(Code::System, "cannot wait for an interrupt", "epoll_ctl", errno);
            any.add(fd, 0, EventFlags::IN).map_err(failed)?;
        }
        Ok(Box::new(Wrapped::around(ops, Takes { irq: self.clone(), any, is_full: false })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the interrupt if it is due, or sets the timer for the time at which it will be.
    fn decide(&self, state: &mut State) {
        if !state.unmasked || state.raised.is_some() {
            return;
        }
        let waiting = state.waiting();
        let DeviceHold { time, frames } = state.hold;
        let due = state.last.and_then(|last| last.checked_add(time));
        let cause = if waiting == 0 {
            None
        } else if due.is_none_or(|at| at <= Instant::now()) {
            Some(Cause::Time)
        } else {
            frames.is_some_and(|frames| waiting >= frames.into()).then_some(Cause::Frames)
        };
        self.wake_at(state, due.filter(|_| waiting > 0 && cause.is_none()));
        if cause.is_some() {
            state.raised = cause;
            self.line.signal();
        }
    }

    /// Sets the timer, if it is not set so already.
    fn wake_at(&self, state: &mut State, at: Option<Instant>) {
        if state.alarm != at {
            state.alarm = at;
            // A valid timer can be set to any time.
            let _ = self.timer.set_at(at);
        }
    }

    fn arrived(&self, frames: usize) {
        let mut state = self.state();
        state.arrived += frames as u64;
        self.decide(&mut state);
    }

    fn received(&self, frames: usize) {
        self.state().received += frames as u64;
    }

    /// Unmasks the interrupt; returns false if the last poll `may_leave` frames and has left some.
    /// What was raised and not taken is forgotten: the driver has polled since.
    fn unmask(&self, may_leave: bool) -> bool {
        let mut state = self.state();
        if may_leave && state.waiting() > 0 {
            return false;
        }
        if state.raised.take().is_some() {
            self.line.drain();
        }
        state.unmasked = true;
        self.decide(&mut state);
        true
    }

    /// Counts the interrupt that ended the driver's sleep, and masks it.
    fn take(&self) {
        let mut state = self.state();
        let by_timer = state.alarm.filter(|at| *at <= Instant::now()).map(|_| Cause::Time);
        let Some(cause) = state.raised.take().or(by_timer) else { return };
        match cause {
            Cause::Time => state.taken.by_time += 1,
            Cause::Frames => state.taken.by_frames += 1,
        }
        state.unmasked = false;
        state.last = Some(Instant::now());
        self.line.drain();
        self.wake_at(&mut state, None);
    }
}

impl HoldControl for Irq {
    fn hold(&self) -> Option<DeviceHold> {
        Some(self.state().hold)
    }

    fn set_hold(&self, hold: DeviceHold) -> Result<()> {
        let mut state = self.state();
        state.hold = hold;
        self.decide(&mut state);
        Ok(())
    }
}

/// The adapter's end.
struct Raises(Arc<Irq>);

impl Layer for Raises {
    fn xmit(&mut self, below: &mut dyn QueueOps, mem: &mut Local, batch: &mut Batch) -> Moved {
        let moved = below.xmit(mem, batch);
        if moved.packets > 0 {
            self.0.arrived(moved.packets);
        }
        moved
    }
}

/// The driver's end.
struct Takes {
    irq: Arc<Irq>,
    /// The line, the timer, and the descriptor of the ring's end, which signals room and the end of
    /// the adapter.
    any: Epoll,
    /// True if the last poll returned its whole budget, so that it may have left frames.
    is_full: bool,
}

impl Layer for Takes {
    fn rx(
        &mut self,
        below: &mut dyn QueueOps,
        mem: &mut Local,
        out: &mut Batch,
        budget: usize,
    ) -> Moved {
        let moved = below.rx(mem, out, budget);
        self.is_full = moved.packets == budget;
        if moved.packets > 0 {
            self.irq.received(moved.packets);
        }
        moved
    }

    fn arm(&mut self, below: &mut dyn QueueOps, want: Want) -> bool {
        if below.health() != Health::Up {
            return below.arm(want);
        }
        // The ring's end is armed for room only: armed for frames, it would be woken without a
        // hold.
        let has_room = want.room() && !below.arm(Want::Room);
        !has_room && (!want.frames() || self.irq.unmask(self.is_full))
    }

    fn as_fd<'a>(&'a self, _: &'a dyn QueueOps) -> BorrowedFd<'a> {
        self.any.as_fd()
    }

    fn hold_control(&self, _: &dyn QueueOps) -> Option<Weak<dyn HoldControl>> {
        Some(Arc::downgrade(&self.irq) as Weak<dyn HoldControl>)
    }

    fn irq(&mut self, below: &mut dyn QueueOps) {
        self.irq.take();
        below.irq();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use linerate_datapath::{Engine, Stats, Turned, Worker};

    use super::*;

    /// A hold that no test waits for, in microseconds.
    const HOUR: u32 = 3_600_000_000;
    /// A number of frames that no test reaches.
    const MANY: u32 = 1000;
    /// The longest time for an interrupt that must come.
    const SOON: Duration = Duration::from_secs(60);

    /// An adapter, and a worker that sleeps on its interrupt.
    struct Path {
        irq: Arc<Irq>,
        adapter: Worker,
        driver: Worker,
        stats: Stats,
    }

    impl Path {
        /// Begins with one frame and its interrupt, which nothing holds.
        fn new(usecs: u32, frames: u32) -> Path {
            let irq = Irq::new(usecs, frames).unwrap();
            let ports = Engine::builder().budget(1).port("gen", "gen:,size=60");
            let ports = ports.port("a", "ring:r,len=256").port("d", "ring:r,len=256");
            let ports = ports.port("sink", "sink:,blind").wire("gen", "a").wire("d", "sink");
            let engine = irq.between_ports(ports, "a", "d").build().unwrap();
            let stats = engine.stats();
            let mut workers = engine.into_workers();
            let (driver, adapter) = (workers.remove(1), workers.remove(0));
            let mut path = Path { irq, adapter, driver, stats };
            path.poll();
            assert_eq!(path.sleep(Duration::ZERO), 0, "no frame, no interrupt");
            path.arrive(1);
            assert_eq!((path.sleep(Duration::ZERO), path.taken()), (1, [1, 0]));
            path
        }

        /// Lets so many frames arrive, one by one.
        fn arrive(&mut self, frames: usize) {
            for _ in 0..frames {
                self.adapter.turn(Instant::now());
            }
        }

        /// Changes the hold as a program does, from another thread.
        fn set(&self, usecs: u32, frames: u32) {
            let hold =
                DeviceHold { time: Duration::from_micros(usecs.into()), frames: Some(frames) };
            let control = self.driver.control();
            thread::scope(|scope| scope.spawn(|| control.set_hold("d", hold)).join())
                .unwrap()
                .unwrap();
            assert_eq!(control.hold("d"), Some(hold));
        }

        fn received(&self) -> u64 {
            self.stats.ports()[2].counts.rx_packets
        }

        /// Polls until nothing is left.
        fn poll(&mut self) {
            while self.driver.turn(Instant::now()) == Turned::Again {}
        }

        /// Sleeps for up to `time`; returns the frames that the worker found after an interrupt.
        fn sleep(&mut self, time: Duration) -> u64 {
            let (wakeups, received) = (self.wakeups(), self.received());
            // Else it would wake once for its figures.
            self.driver.publish();
            self.driver.park(Turned::Idle, Some(time)).unwrap();
            if self.wakeups() > wakeups {
                self.poll();
            }
            self.received() - received
        }

        fn wakeups(&self) -> u64 {
            self.stats.ports()[2].counts.wakeups
        }

        /// Returns the interrupts by time and by frames, which are all wake-ups of the worker.
        fn taken(&self) -> [u64; 2] {
            let Taken { by_time, by_frames } = self.irq.taken();
            assert_eq!(by_time + by_frames, self.wakeups());
            [by_time, by_frames]
        }
    }

    /// S1.2.
    #[test]
    fn irq_arrives_with_exactly_the_nth_frame() {
        let mut path = Path::new(HOUR, 8);
        for burst in 1..=5 {
            for frame in 1..8 {
                path.arrive(1);
                assert_eq!(path.sleep(Duration::ZERO), 0, "frame {frame}");
            }
            path.arrive(1);
            assert_eq!((path.sleep(Duration::ZERO), path.taken()), (8, [1, burst]));
        }
        // Frames that come together have one interrupt.
        path.arrive(20);
        assert_eq!((path.sleep(Duration::ZERO), path.taken()), (20, [1, 6]));
        assert_eq!(path.sleep(Duration::ZERO), 0);
    }

    /// S1.2.
    #[test]
    fn irq_of_few_frames_arrives_after_the_time_since_the_last() {
        let before = Instant::now();
        let mut path = Path::new(50_000, MANY);
        for irqs in 2..5 {
            path.arrive(3);
            assert_eq!((path.sleep(SOON), path.taken()), (3, [irqs, 0]));
            assert!(before.elapsed() >= (irqs - 1) as u32 * Duration::from_millis(50), "{irqs}");
        }
    }

    /// S1.2.
    #[test]
    fn time_and_number_of_a_hold_are_set_while_frames_wait() {
        let mut path = Path::new(HOUR, MANY);
        path.arrive(5);
        assert_eq!(path.sleep(Duration::ZERO), 0);
        path.set(HOUR, 5);
        assert_eq!(path.irq.state().raised, Some(Cause::Frames), "also for a worker that sleeps");
        assert_eq!((path.sleep(Duration::ZERO), path.taken()), (5, [1, 1]));
        path.arrive(4);
        assert_eq!(path.sleep(Duration::ZERO), 0);
        path.set(1000, MANY);
        assert_eq!((path.sleep(SOON), path.taken()), (4, [2, 1]));
        path.set(HOUR, 5);
        path.arrive(4);
        assert_eq!(path.sleep(Duration::ZERO), 0);
        path.arrive(1);
        assert_eq!((path.sleep(Duration::ZERO), path.taken()), (5, [2, 2]));
    }

    /// S1.2. The workers have threads of their own, and the order wakes none of them.
    #[test]
    fn hold_of_a_running_engine_is_changed_by_an_order() {
        let by_time = DeviceHold { time: Duration::from_millis(1), frames: None };
        let by_frames = DeviceHold { time: SOON * 60, frames: Some(1) };
        for (hold, taken) in [(by_time, [2, 0]), (by_frames, [1, 1])] {
            let since = Instant::now();
            // The first interrupt brings all packets if the driver's thread is late.
            while !runs(hold, taken) {
                assert!(since.elapsed() < SOON, "{hold}");
            }
        }
    }

    /// Changes the hold of an engine that runs, while packets wait; returns false if none waited.
    fn runs(hold: DeviceHold, taken: [u64; 2]) -> bool {
        const PACKETS: u64 = 40;
        let irq = Irq::new(HOUR, MANY).unwrap();
        let ports = Engine::builder().port("gen", &format!("gen:,rate=10kpps,count={PACKETS}"));
        let ports = ports.port("a", "ring:r,len=256").port("d", "ring:r,len=256");
        let ports = ports.port("sink", "sink:,blind").wire("gen", "a").wire("d", "sink");
        let running = irq.between_ports(ports, "a", "d").build().unwrap().start().unwrap();
        let received = || running.stats().ports()[2].counts.rx_packets;
        let until = |done: &dyn Fn() -> bool| {
            let since = Instant::now();
            while !done() {
                assert!(since.elapsed() < SOON, "{hold}: {irq:?}");
                thread::sleep(Duration::from_millis(1));
            }
        };
        until(&|| {
            let State { arrived, unmasked, taken, .. } = *irq.state();
            let sleeps = unmasked && taken.by_time == 1;
            arrived == PACKETS && (sleeps || received() == PACKETS)
        });
        let waits = received() < PACKETS;
        if waits {
            running.control().set_hold("d", hold).unwrap();
            until(&|| received() == PACKETS);
            let Taken { by_time, by_frames } = irq.taken();
            assert_eq!([by_time, by_frames], taken, "{hold}");
        }
        assert!(running.stop(SOON).ledger.balanced());
        waits
    }

    #[test]
    fn frames_that_polls_find_raise_no_irq() {
        let mut path = Path::new(HOUR, 2);
        path.arrive(2);
        path.driver.park(Turned::Idle, Some(Duration::ZERO)).unwrap();
        assert_eq!((path.received(), path.taken()), (1, [1, 1]), "taken, and masked from here");
        path.arrive(10);
        assert_eq!(path.irq.state().raised, None);
        path.poll();
        assert_eq!((path.received(), path.sleep(Duration::ZERO), path.taken()), (13, 0, [1, 1]));
    }

    #[test]
    fn driver_sees_the_end_of_an_adapter_that_holds_its_irq() {
        let Path { irq, adapter, mut driver, .. } = Path::new(HOUR, MANY);
        let since = Instant::now();
        drop(adapter);
        loop {
            let turned = driver.turn(Instant::now());
            if turned == Turned::Ended {
                break;
            }
            driver.park(turned, Some(SOON)).unwrap();
        }
        assert!(since.elapsed() < SOON);
        assert_eq!(irq.taken(), Taken { by_time: 1, by_frames: 0 });
    }
}
