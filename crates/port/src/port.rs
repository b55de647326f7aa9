//! An open device, for programs that have a loop of their own.

mod wait;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use linerate_skb::knob::HOT_LIST;
use linerate_skb::{Batch, Code, Error, Holders, Ledger, Pool, Result};

use crate::driver::{Driver, OpenContext, Opened, Plan, open_plan};
use crate::moderation::Moderation;
use crate::obtained::Obtained;
use crate::queue::{Health, Queue, QueueOps, Want};
use crate::registry::Registry;
use crate::ring;
use crate::spec::{Spec, shown};
use crate::stats::{DriverCounts, QueueCounts};
use crate::waker::Waker;

pub use wait::wait_any;
use wait::wait_on;

/// Frames of a port's own pool for its program's batches.
const PROGRAM_FRAMES: u64 = 3072;
/// Number of packets of the greatest length for which the program's frames must suffice.
const PROGRAM_BATCH: u64 = 64;

/// A device and its queues.
#[derive(Debug)]
pub struct Port {
    queues: Vec<Queue>,
    /// Index of the queue to receive from first. It changes with each receive, so that a busy queue
    /// cannot starve the others.
    turn: usize,
    obtained: Obtained,
    pool: Pool,
}

impl Port {
    /// Opens a port by its text, `driver:arg[,key=value]`, and creates a pool for it. [`Registry`]
    /// lists the drivers.
    ///
    /// Packets that one port receives and another sends are copied if the two have pools of their
    /// own: for a forwarder, open the second by [`Port::open_with`] and the first one's
    /// [`pool`](Port::pool).
    ///
    /// # Errors
    /// What could not be opened, why, and what to do about it.
    pub fn open(text: &str) -> Result<Port> {
        let (drivers, spec) = parsed(text)?;
        Port::open_sized(drivers.driver(&spec)?, &spec)
    }

    /// Opens a port by its text with a driver from outside this crate, and creates a pool for it.
    ///
    /// # Errors
    /// As [`Port::open`]; `E-PORT-SYNTAX` if the text names another driver.
    pub fn open_driver(driver: &dyn Driver, text: &str) -> Result<Port> {
        Port::open_sized(driver, &parse_for(driver, text)?)
    }

    /// Opens a port with a driver from outside this crate; it receives into `pool`.
    ///
    /// # Errors
    /// As [`Port::open_driver`].
    pub fn open_driver_with(driver: &dyn Driver, text: &str, pool: &Pool) -> Result<Port> {
        let spec = parse_for(driver, text)?;
        Port::open_in(&*alone(driver, &spec)?, &spec, pool)
    }

    /// Opens a port with a pool sized for the device and a program with this one port.
    fn open_sized(driver: &dyn Driver, spec: &Spec) -> Result<Port> {
        let plan = alone(driver, spec)?;
        let needs = plan.needs()?;
        let longest = needs.packet_max_bytes;
        let more = longest.div_ceil(Pool::builder().data_room()).saturating_sub(1) as u64;
        let queues = needs.queues.max(1) as u64;
        // As long as `Port::of` makes each of them.
        let rings = (needs.ring_frames as u64).div_ceil(queues);
        let hot_list_len = HOT_LIST.clamp(HOT_LIST.default.max(rings));
        let holders = Holders::new()
            .with("the program's batches", PROGRAM_FRAMES)
            .with("hot lists", queues.saturating_mul(hot_list_len))
            .with("a batch of the longest packets", PROGRAM_BATCH.saturating_mul(more))
            .with("device rings", needs.ring_frames as u64);
        let pool = Pool::sized_for(&holders).name(&spec.name).trust(needs.trust).build()?;
        Port::open_in(&*plan, spec, &pool)
    }

    /// Opens a port that receives into `pool`.
    ///
    /// Each of its queues keeps up to 1024 free frames, or as many as its rings hold, and at most a
    /// quarter of the pool: the pool needs more frames than all its queues keep.
    ///
    /// # Errors
    /// As [`Port::open`].
    pub fn open_with(text: &str, pool: &Pool) -> Result<Port> {
        let (drivers, spec) = parsed(text)?;
        Port::open_in(&*alone(drivers.driver(&spec)?, &spec)?, &spec, pool)
    }

    fn open_in(plan: &dyn Plan, spec: &Spec, pool: &Pool) -> Result<Port> {
        let needs = plan.needs()?;
        let opened = open_plan(plan, spec, needs.capabilities, &mut OpenContext::new(pool))?;
        let mut port = Port::of(&spec.name, opened, needs.ring_frames, pool);
        if let Some(mode) = spec.moderation.or(plan.moderation()) {
            port.set_moderation(mode);
        }
        Ok(port)
    }

    /// Creates the port, with a hot list for each queue; the device's rings hold `rings` frames.
    fn of(name: &str, opened: Opened, rings: usize, pool: &Pool) -> Port {
        let hot_list_len = pool.hot_list_len_for(rings.div_ceil(opened.queues.len().max(1)));
        let queue =
            |(i, ops)| Queue::new(ops, pool.local_named(&format!("{name}/{i}"), hot_list_len));
        let queues = opened.queues.into_iter().enumerate().map(queue).collect();
        Port { queues, turn: 0, obtained: opened.obtained, pool: pool.clone() }
    }

    /// Opens the first of several texts that can be opened.
    ///
    /// # Errors
    /// If none can: every attempt, each with its reason and remedy, and the code of the last one.
    pub fn first_of<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Port> {
        let (mut whys, mut fixes, mut code) = (Vec::new(), Vec::new(), Code::PortSyntax);
        for text in texts {
            let text = text.as_ref();
            match Port::open(text) {
                Ok(mut port) => {
                    port.obtained.refused.extend(whys);
                    return Ok(port);
                }
                Err(e) => {
                    code = e.code;
                    let text = shown(text);
                    whys.push(format!("{text}: {}", e.why));
                    if !e.fix.is_empty() {
                        fixes.push(format!("{text}: {}", e.fix));
                    }
                }
            }
        }
        if whys.is_empty() {
            whys.push("no port was named".into());
        }
        Err(Error::new(code, "cannot open any of the ports", whys.join("; "))
            .fix(fixes.join("; or ")))
    }

    /// Opens two ports connected by rings of `len` packets in each direction, in this process: each
    /// receives what the other sends, without a copy.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` unless `len` is a power of two.
    pub fn pair(len: u32, pool: &Pool) -> Result<(Port, Port)> {
        let (a, b) = ring::pair("pair", len, pool)?;
        let port = |name, opened| Port::of(name, opened, ring::frames(len), pool);
        Ok((port("pair-a", a), port("pair-b", b)))
    }

    /// Returns the port with each of its queues wrapped by `wrap`, which is called with the queue
    /// and its number: see [`crate::wrap`].
    ///
    /// # Errors
    /// Those of `wrap`; the port is closed then.
    pub fn wrap(
        self,
        mut wrap: impl FnMut(Box<dyn QueueOps>, usize) -> Result<Box<dyn QueueOps>>,
    ) -> Result<Port> {
        let wrap = |(i, queue): (usize, Queue)| queue.wrap(|ops| wrap(ops, i));
        let queues = self.queues.into_iter().enumerate().map(wrap).collect::<Result<_>>()?;
        Ok(Port { queues, ..self })
    }

    /// Returns the properties of the opened device, and the refused features.
    #[must_use]
    pub fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    /// Returns the pool that the port receives into.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the ledger of the port's pool, which accounts for every packet.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.pool.ledger()
    }

    /// Receives from all queues as many packets as `batch` has room for; returns how many arrived.
    ///
    /// Into a full batch nothing is received, and what waits in the device makes [`Port::wait`]
    /// return at once: empty the batch before the next call.
    pub fn rx(&mut self, batch: &mut Batch) -> usize {
        let (n, before) = (self.queues.len(), batch.len());
        for i in 0..n {
            self.queues[(self.turn + i) % n].rx(batch);
            if batch.spare() == 0 {
                break;
            }
        }
        self.turn = (self.turn + 1) % n.max(1);
        batch.len() - before
    }

    /// Sends packets from the front of `batch`; returns how many left. The rest stays, in order.
    /// A port of several queues sends by its first one only, so that packets stay in order:
    /// [`Port::split`] gives ports that send by each.
    ///
    /// A packet of another pool than the port's is copied where the device reads packets in its
    /// pool only (xdp, memif): [`Port::driver_counts`] has the bytes, and [`Port::open_with`] makes
    /// two ports share a pool.
    pub fn xmit(&mut self, batch: &mut Batch) -> usize {
        // Only one queue sends, so that packets stay in order.
        self.queues.first_mut().map_or(0, |q| q.xmit(batch))
    }

    /// Appends up to `want` empty packets to `batch`; fewer if `batch` has no room or the pool has
    /// no frame.
    pub fn alloc(&mut self, batch: &mut Batch, want: usize) -> usize {
        self.queues.first_mut().map_or(0, |q| q.alloc(batch, want))
    }

    /// Returns the packets that left a batch and wait in the port for room, as
    /// [`Queue::waiting`] does.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues.first().map_or(0, Queue::waiting)
    }

    /// Takes back the packets that the devices of all queues have sent; returns how many packets
    /// they still hold, as [`Queue::reap`] does.
    ///
    /// Call it before the port is dropped to wait until everything has left. Sleep between the
    /// calls, and limit the time: a slow device may hold packets for long.
    pub fn reap(&mut self) -> usize {
        self.queues.iter_mut().map(Queue::reap).sum()
    }

    /// Makes the queues' descriptors readable when `want` occurs; returns false if it has already
    /// occurred on one of them. Calls [`Queue::arm`] for each queue, up to the first that returns
    /// false. Room is that of the first queue, the only one that [`Port::xmit`] uses: for
    /// [`Want::Room`] the others are not armed, and their descriptors may stay readable.
    #[must_use = "false: poll now; a caller that sleeps all the same may sleep for ever"]
    pub fn arm(&mut self, want: Want) -> bool {
        let mut queues = self.queues.iter_mut();
        let first = queues.next().is_none_or(|q| q.arm(want));
        let armed = first && (!want.frames() || queues.all(|q| q.arm(Want::Frames)));
        if !armed {
            // The caller does not sleep: no queue that was armed can end a sleep.
            self.queues.iter_mut().for_each(Queue::stay_awake);
        }
        armed
    }

    /// Returns true if `want` has occurred on one of the queues that [`Port::arm`] arms for it.
    fn has(&mut self, want: Want) -> bool {
        let mut queues = self.queues.iter_mut();
        let first = queues.next().is_some_and(|q| q.has(want));
        first || (want.frames() && queues.any(|q| q.has(Want::Frames)))
    }

    /// Sleeps until there are packets to receive, or for `timeout`; returns false after the timeout
    /// or if a [waker](Port::waker) was used.
    ///
    /// Without a timeout and without a waker, false means that the source has ended and every packet
    /// was received: `while port.wait(None)? { … }` ends then. A signal does not end the wait: use a
    /// waker in its handler.
    ///
    /// # Errors
    /// Those of a device that has failed for good, each time, and those of poll(2). A device that
    /// goes down may come back: true, so that the program looks at [`Port::health`]. While it is
    /// down, each of the port's checks whether it is up again, about ten a second, may end this
    /// call with true, too, though there are no packets.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool> {
        self.wait_for(Want::Frames, timeout)
    }

    /// Sleeps until `want` occurs, or for `timeout`; returns false after the timeout or if a waker
    /// was used. Works as [`Port::wait`], except that a wait for room does not return when the
    /// device has finished.
    ///
    /// # Errors
    /// As [`Port::wait`]. A device that has failed drops all that it is given, so room in it means
    /// nothing: a wait for [`Want::Room`] returns its error at once, one for [`Want::Both`] once
    /// everything was received.
    pub fn wait_for(&mut self, want: Want, timeout: Option<Duration>) -> Result<bool> {
        wait_on(&mut [self], want, timeout)
    }

    /// Returns a handle with which any thread, or a signal handler, ends the current or next wait
    /// of this port: [`Port::wait`] and [`wait_any`] then return `Ok(false)`. The handle wakes each
    /// part of a port that is [split](Port::split). It does not make the port's
    /// [descriptors](Port::descriptors) readable: a poller of the program's own has its own wakers.
    ///
    /// ```
    /// # mod linerate { pub use linerate_port::*; pub use linerate_skb::Batch; }
    /// use linerate::{Batch, Port};
    ///
    /// # fn main() -> linerate::Result<()> {
    /// let mut port = Port::open("gen:,rate=1pps")?; // or packet:eth0
    /// let waker = port.waker()?;
    /// std::thread::spawn(move || waker.wake()); // when the program is to end
    /// let mut batch = Batch::with_capacity(64);
    /// while port.wait(None)? {
    ///     port.rx(&mut batch);
    ///     batch.clear();
    /// }
    /// println!("{}", port.ledger());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Cost:   none until it is used, but one descriptor more for each poll(2) and a call after it.
    ///
    /// # Errors
    /// `E-SYSTEM` if the process is out of descriptors.
    pub fn waker(&mut self) -> Result<Waker> {
        let bells = self.queues.iter_mut().map(Queue::wake_bell).collect::<Result<Vec<_>>>()?;
        Ok(Waker::of(bells.into_iter()))
    }

    /// Sets the moderation mode of the port's queues, which decides when they are polled again: see
    /// [`Queue::set_moderation`]. The option `moderation=napi` of a port text does the same.
    pub fn set_moderation(&mut self, mode: Moderation) {
        self.queues.iter_mut().for_each(|queue| queue.set_moderation(mode));
    }

    /// Returns the health of the port: the worst health of its queues, and finished only if all of
    /// them are finished.
    ///
    /// A port of an interface that goes down works again once the interface is up; one of an
    /// interface that is deleted has failed, and the program opens it again:
    ///
    /// ```no_run
    /// # mod linerate { pub use linerate_port::*; pub use linerate_skb::Batch; }
    /// use linerate::{Batch, Code, Health, Port};
    /// use std::time::Duration;
    ///
    /// fn receive(text: &str) -> linerate::Result<()> {
    ///     let mut batch = Batch::with_capacity(64);
    ///     'open: loop {
    ///         let mut port = match Port::open(text) {
    ///             Ok(port) => port,
    ///             Err(error) if matches!(error.code, Code::NoDevice | Code::DeviceDown) => {
    ///                 std::thread::sleep(Duration::from_secs(1));
    ///                 continue;
    ///             }
    ///             Err(error) => return Err(error),
    ///         };
    ///         let mut is_down = false;
    ///         loop {
    ///             match port.wait(None) {
    ///                 Ok(true) => {}
    ///                 Ok(false) => return Ok(()), // a waker was used, or a source has ended
    ///                 Err(error) if matches!(error.code, Code::NoDevice) => continue 'open,
    ///                 Err(error) => return Err(error),
    ///             }
    ///             let was_down = is_down;
    ///             is_down = false;
    ///             if let Health::Down(error) = port.health() {
    ///                 is_down = true;
    ///                 if !was_down {
    ///                     eprintln!("{error}");
    ///                 }
    ///             }
    ///             port.rx(&mut batch);
    ///             batch.clear();
    ///         }
    ///     }
    /// }
    /// # receive("packet:eth0").unwrap();
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        Health::worst(self.queues.iter().map(Queue::health))
    }

    /// Returns the counts since the port was opened, summed over all queues.
    pub fn counts(&mut self) -> QueueCounts {
        let mut sum = QueueCounts::default();
        for counts in self.queues.iter_mut().map(Queue::counts) {
            sum += counts;
        }
        sum
    }

    /// Returns the drivers' counts since the port was opened, summed over all queues: bytes copied,
    /// causes of losses.
    pub fn driver_counts(&mut self) -> DriverCounts {
        let mut sum = DriverCounts::default();
        for counts in self.queues.iter_mut().map(Queue::driver_counts) {
            sum += counts;
        }
        sum
    }

    /// Splits the port into one port for each queue, each for a thread or task of its own.
    #[must_use]
    pub fn split(self) -> Vec<Port> {
        let Port { queues, obtained, pool, .. } = self;
        let port = |queue| Port {
            queues: vec![queue],
            obtained: obtained.clone(),
            pool: pool.clone(),
            turn: 0,
        };
        queues.into_iter().map(port).collect()
    }

    /// Returns the descriptor of each queue, for the program's own poller: readable after
    /// [`Port::arm`] has returned true and an event has occurred. After an `arm` for [`Want::Room`]
    /// poll the first one only: packets that wait in the other queues would end each sleep at once.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(|queue| queue.as_fd())
    }

    /// Returns the queues, for separate threads or tasks.
    #[must_use]
    pub fn into_queues(self) -> Vec<Queue> {
        self.queues
    }
}

/// Parses a port text against the drivers of this crate.
fn parsed(text: &str) -> Result<(Registry, Spec)> {
    let drivers = Registry::default();
    let spec = drivers.parse(text)?;
    Ok((drivers, spec))
}

/// Parses a port text for a driver that may be from outside this crate.
fn parse_for(driver: &dyn Driver, text: &str) -> Result<Spec> {
    let spec = Spec::split(text, &[driver.name()])?;
    let spec = if driver.flags().nameless { spec.without_arg()? } else { spec };
    spec.of_every_port()
}

/// Parses the options of a port that is opened alone.
fn alone(driver: &dyn Driver, spec: &Spec) -> Result<Box<dyn Plan>> {
    if driver.flags().paired {
        let name = &spec.driver;
        return Err(spec
            .error(format!("both ends of a {name} are opened together"))
            .fix(format!("Port::pair() in a program; in an engine name both ends {name}:NAME")));
    }
    driver.parse(spec)
}

#[cfg(test)]
mod tests;
