//! The control thread, one for all ports of the process: it listens, connects, runs the handshakes,
//! maps and unmaps.
//!
//! ```text
//!   ports ──► mailbox: ports to add and to remove; look at your links
//!   sockets, timers of each port ──► epoll ──► Protocol::turn ──► Shared::publish ──► endpoints
//!                                                   └──► Closer: what peers gave us, and is of no use any more
//! ```
//!
//! No call of a queue's or a reader's does any of this, so no peer can hold one up. The first port
//! starts the thread, and it ends with the last. Names of sockets are those of a namespace, so each
//! network and mount namespace that opens a port has a thread of its own.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{Epoll, EventFd, EventFlags, NO_EVENT};

use super::closer::{Closer, Waste};
use super::link::{Event, Shared};
use super::sync::lock;
use super::turn::{Protocol, Turn};

/// Longest time that closing a port waits for its listener to be closed, and closing a queue for
/// its connection to end.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Least time for which either waits, even if its caller has no time left: a thread that has a CPU
/// answers sooner. Frames whose connection has not ended by then return to the pool later. The
/// queues of a port wait so once for each connection, because a worker that closes many queues has
/// a deadline.
pub(super) const CLOSE_MIN: Duration = Duration::from_millis(50);

/// Number of descriptors from peers that are not closed yet, in this process.
static NOT_CLOSED: AtomicUsize = AtomicUsize::new(0);
/// The reason with which a client that closes a queue ends its connection.
pub(super) const QUEUE_CLOSED: &str = "a queue was closed";
/// The epoll tag of the mailbox; a port's tag is its address.
const MAILBOX: u64 = 0;

/// A port's handle on the control thread.
pub(super) struct Control {
    mailbox: Arc<Mailbox>,
    /// The descriptors for which the thread waits.
    set: Arc<Epoll>,
}

struct Mailbox {
    bell: EventFd,
    orders: Mutex<Vec<Order>>,
    /// Number of times that the thread has executed its orders.
    rounds: AtomicU64,
    /// Number of rounds up to which the thread is late, because a caller has waited for this round
    /// in vain.
    late: AtomicU64,
}

enum Order {
    /// Serve a port, whose descriptor is watched already.
    Add(Arc<Shared>, Box<dyn Protocol>),
    /// Remove the port with this tag. The sender is dropped after the port's listener is closed and
    /// its connections are shut down.
    Remove(u64, SyncSender<()>),
    /// End the connection of this generation of the port with this tag, and tell the peer the
    /// reason. The sender is dropped afterwards.
    HangUp(u64, u32, &'static str, SyncSender<()>),
    /// Drop an object, after the orders before this one.
    Dispose(Waste),
    Stop,
}

/// A thread's namespaces: the inodes of its network and mount namespaces.
type Namespaces = [Option<u64>; 2];

impl Control {
    /// Returns the control thread for the caller's namespaces, and starts it if it does not run.
    pub fn of_this_thread() -> Result<Arc<Control>> {
        static ALL: Mutex<Vec<(Namespaces, Weak<Control>)>> = Mutex::new(Vec::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, control)| control.strong_count() > 0);
        let here = namespaces();
        let known = all.iter().find(|(namespaces, _)| *namespaces == here);
        if let Some(control) = known.and_then(|(_, control)| control.upgrade()) {
            return Ok(control);
        }
        let control = Arc::new(Control::start()?);
        all.push((here, Arc::downgrade(&control)));
        Ok(control)
    }

    fn start() -> Result<Control> {
        let what = "cannot start the control thread of memif";
        let (bell, orders) = (EventFd::new()?, Mutex::default());
        let (rounds, late) = (AtomicU64::new(0), AtomicU64::new(0));
        let mailbox = Arc::new(Mailbox { bell, orders, rounds, late });
        let set = Arc::new(Epoll::new()?);
        set.add(&mailbox.bell, MAILBOX, EventFlags::IN)
            .map_err(|e| Error::os(Code::System, what, "epoll_ctl", e))?;
        let thread = Thread {
            mailbox: mailbox.clone(),
            set: set.clone(),
            ports: Vec::new(),
            closer: Closer::new(&NOT_CLOSED),
        };
        let builder = std::thread::Builder::new().name("memif-control".into());
        builder
            .spawn(move || thread.run())
            .map_err(|e| Error::new(Code::System, what, e.to_string()))?;
        Ok(Control { mailbox, set })
    }

    /// Makes the thread serve a port.
    ///
    /// # Errors
    /// `E-SYSTEM` if the port's descriptor cannot be watched.
    pub fn add(&self, shared: Arc<Shared>, protocol: Box<dyn Protocol>) -> Result<()> {
        let fail = |e| {
            let what = format!("cannot serve memif {}", shared.config.path.display());
            Error::os(Code::System, what, "epoll_ctl", e)
                .fix("free memory, or raise the limit: sysctl fs.epoll.max_user_watches")
        };
        // The thread ignores an event that arrives before the order, because it knows no port of
        // that tag. It gets the event again, because the event is level-triggered.
        self.set.add(protocol.watch(), tag(&shared), EventFlags::IN).map_err(fail)?;
        self.order(Order::Add(shared, protocol));
        Ok(())
    }

    /// Makes the thread close a port, and waits for it, for [`CLOSE_TIMEOUT`] at most: the listener
    /// is closed, and connections are shut down, before this returns; their sockets are closed
    /// later.
    pub fn remove(&self, shared: &Arc<Shared>) {
        let (sender, closed) = sync_channel(0);
        let order = Order::Remove(tag(shared), sender);
        self.execute(order, &closed, CLOSE_TIMEOUT, CLOSE_MIN);
    }

    /// Makes the thread end the connection of `generation`, and waits for it until `until`, but
    /// [`CLOSE_TIMEOUT`] at most, and until [`CLOSE_MIN`] after the first call for this connection
    /// at least; returns true if it has ended.
    pub fn hang_up(
        &self,
        shared: &Arc<Shared>,
        generation: u32,
        why: &'static str,
        until: Instant,
    ) -> bool {
        let (sender, ended) = sync_channel(0);
        let order = Order::HangUp(tag(shared), generation, why, sender);
        let now = Instant::now();
        let least = shared.least_until(generation, now).saturating_duration_since(now);
        let left = until.saturating_duration_since(now);
        self.execute(order, &ended, left.clamp(least, CLOSE_TIMEOUT), least)
    }

    /// Makes the thread execute `order`, and waits for `timeout` until the sender of `done` is
    /// dropped; returns false if it was not. If the thread is late already, waits for `least` only,
    /// because a caller that closes several queues or ports waits for each.
    fn execute(
        &self,
        order: Order,
        done: &Receiver<()>,
        timeout: Duration,
        least: Duration,
    ) -> bool {
        let Mailbox { rounds, late, .. } = &*self.mailbox;
        // Read it before the order is given, because the thread may execute the order and end the
        // round at once.
        let before = rounds.load(Ordering::Relaxed);
        self.order(order);
        let is_late = late.load(Ordering::Relaxed) > rounds.load(Ordering::Relaxed);
        let timeout = if is_late { least } else { timeout };
        let is_done = done.recv_timeout(timeout) != Err(RecvTimeoutError::Timeout);
        if !is_done && timeout >= CLOSE_MIN {
            late.fetch_max(before + 1, Ordering::Relaxed);
        }
        is_done
    }

    /// Makes the thread have `waste` dropped, after all orders that it has now.
    pub fn dispose(&self, waste: Waste) {
        self.order(Order::Dispose(waste));
    }

    /// Wakes the thread to examine the links.
    ///
    /// Cost: a syscall.
    pub fn ring(&self) {
        self.mailbox.bell.signal();
    }

    fn order(&self, order: Order) {
        lock(&self.mailbox.orders).push(order);
        self.ring();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.order(Order::Stop);
    }
}

/// The control thread's state of a port.
struct Port {
    shared: Arc<Shared>,
    protocol: Box<dyn Protocol>,
}

struct Thread {
    mailbox: Arc<Mailbox>,
    set: Arc<Epoll>,
    ports: Vec<Port>,
    closer: Closer,
}

impl Thread {
    fn run(mut self) {
        let mut events = [NO_EVENT; 16];
        loop {
            let n = self.set.wait(&mut events, None).unwrap_or(0);
            for event in &events[..n] {
                // Copy the field, because the kernel's structure is packed.
                match { event.data }.u64() {
                    MAILBOX if !self.read_mailbox() => return,
                    MAILBOX => {}
                    port => self.turn(|known| known == port),
                }
            }
        }
    }

    /// Executes the orders in the mailbox, and then processes the events of all ports; returns
    /// false if the thread is to end.
    fn read_mailbox(&mut self) -> bool {
        self.mailbox.bell.drain();
        let orders = std::mem::take(&mut *lock(&self.mailbox.orders));
        for order in orders {
            match order {
                Order::Add(shared, protocol) => self.ports.push(Port { shared, protocol }),
                Order::Remove(port, done) => self.remove(port, done),
                Order::HangUp(port, generation, why, done) => {
                    self.hang_up(port, generation, why);
                    drop(done);
                }
                Order::Dispose(waste) => self.closer.dispose(waste),
                Order::Stop => return false,
            }
        }
        self.mailbox.rounds.fetch_add(1, Ordering::Relaxed);
        self.turn(|_| true);
        true
    }

    fn remove(&mut self, port: u64, done: SyncSender<()>) {
        let Some(i) = self.ports.iter().position(|known| tag(&known.shared) == port) else {
            return;
        };
        let Port { shared, mut protocol } = self.ports.swap_remove(i);
        let _ = self.set.delete(protocol.watch());
        let (mut waste, closer) = (Vec::new(), &self.closer);
        protocol.close(&mut Turn { config: &shared.config, waste: &mut waste, closer });
        shared.publish(None, &mut waste);
        waste.into_iter().for_each(|waste| self.closer.dispose(waste));
        // The tuple drops its fields in this order. The listener is closed, and connections are
        // shut down, before the caller is woken; their sockets are closed later.
        self.closer.dispose(Waste::own((protocol, done, shared)));
    }

    fn hang_up(&mut self, port: u64, generation: u32, why: &'static str) {
        let known = self.ports.iter_mut().find(|known| tag(&known.shared) == port);
        let Some(Port { shared, protocol }) = known else { return };
        if shared.generation() != generation {
            // The connection has already ended.
            return;
        }
        let (mut waste, closer) = (Vec::new(), &self.closer);
        protocol.hang_up(why, &mut Turn { config: &shared.config, waste: &mut waste, closer });
        shared.publish(Some(Event::Left(why.to_owned())), &mut waste);
        waste.into_iter().for_each(|waste| self.closer.dispose(waste));
    }

    fn turn(&mut self, wanted: impl Fn(u64) -> bool) {
        let mut waste = Vec::new();
        for Port { shared, protocol } in &mut self.ports {
            if !wanted(tag(shared)) {
                continue;
            }
            let closer = &self.closer;
            let mut turn = Turn { config: &shared.config, waste: &mut waste, closer };
            let (violation, is_over) = (shared.take_violation(), shared.is_over());
            if is_over {
                // No queue would use another connection. The timer of the next attempt would wake
                // the thread again and again.
                let _ = self.set.delete(protocol.watch());
            }
            let event = match violation {
                None if is_over => {
                    protocol.hang_up(QUEUE_CLOSED, &mut turn);
                    Some(Event::Left(QUEUE_CLOSED.to_owned()))
                }
                Some(error) => {
                    protocol.hang_up(error.as_str(), &mut turn);
                    let why = format!("the peer was disconnected: {}", error.as_str());
                    Some(Event::Ended(why))
                }
                None => protocol.turn(&mut turn),
            };
            shared.publish(event, &mut waste);
            waste.drain(..).for_each(|waste| self.closer.dispose(waste));
        }
    }
}

/// Returns the tag of a port, which is never the mailbox's tag.
fn tag(shared: &Arc<Shared>) -> u64 {
    Arc::as_ptr(shared).addr() as u64
}

/// Returns the calling thread's namespaces, if they can be determined.
fn namespaces() -> Namespaces {
    use std::os::unix::fs::MetadataExt;
    ["net", "mnt"].map(|kind| {
        let place = format!("/proc/thread-self/ns/{kind}");
        std::fs::metadata(place).ok().map(|at| at.ino())
    })
}
