//! Opener of the ports under test, with the limits of their device.

use std::rc::Rc;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Pool, Result, Trust};

use crate::driver::{Driver, OpenContext, Opened, Plan};
use crate::registry;
use crate::spec::Spec;

use super::Ran;
use super::bench::{Bench, Way};

/// Number of the pool's frames, in addition to those in device rings.
const FRAMES: usize = 4096;

/// A function that opens a stored capture after its writer is closed.
pub type Later = Box<dyn FnOnce(&Pool) -> Result<Opened>>;
/// A function that opens the ends, called once for each bench.
type Opener = Box<dyn FnMut(&Pool) -> Result<Ends>>;

/// The ends that an opener returns.
#[non_exhaustive]
pub enum Ends {
    /// Two ends: each receives the packets that the other sends.
    Pair(Opened, Opened),
    /// One end, which receives what it sends.
    Loop(Opened),
    /// One end without a peer in the suite: a source, a sink, or both.
    Apart(Opened),
    /// An end that stores packets, and the function that opens the stored packets after it is
    /// closed.
    Stored(Opened, Later),
}

/// Changes to the interface of a port's near end. Each method panics if the change is impossible.
pub trait Interface {
    /// Takes the interface down.
    fn down(&mut self);

    /// Takes the interface up, and returns when it carries packets again.
    fn up(&mut self);

    /// Deletes the interface.
    fn delete(&mut self);

    /// Sets the MTU of the interface and of its other end.
    fn set_mtu(&mut self, mtu_bytes: usize);
}

/// Opener of the ports under test, with the limits of their device; created anew for each case.
pub struct Rig {
    open: Opener,
    interface: Option<Box<dyn Interface>>,
    pool_frames: usize,
    trust: Trust,
    pub(super) limits: Limits,
}

/// Limits of the device that the cases respect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub shortest_bytes: usize,
    pub longest_bytes: Option<usize>,
    pub window_packets: usize,
    pub drops_unread: bool,
    pub blocks_when_full: bool,
    pub works_alone: bool,
    pub patience: Duration,
}

impl Rig {
    /// Creates a rig with the opener `open`; the queues receive into the pool that is passed to
    /// `open`.
    #[must_use]
    pub fn new(open: impl FnMut(&Pool) -> Result<Ends> + 'static) -> Rig {
        let limits = Limits {
            shortest_bytes: super::traffic::LEN_MIN,
            longest_bytes: None,
            window_packets: 64,
            drops_unread: false,
            blocks_when_full: false,
            works_alone: false,
            patience: Duration::from_secs(5),
        };
        let (pool_frames, trust) = (FRAMES, Trust::Private);
        Rig { open: Box::new(open), interface: None, pool_frames, trust, limits }
    }

    /// Creates a rig of two ends that `driver` opens from their texts, which may be the same.
    #[must_use]
    pub fn of(driver: impl Driver + 'static, near: &str, far: &str) -> Rig {
        let driver: Rc<dyn Driver> = Rc::new(driver);
        let (near, far) = (text_of(&driver, near), text_of(&driver, far));
        let rings = near.ring_frames() + far.ring_frames();
        let open = move |pool: &Pool| {
            let mut cx = OpenContext::new(pool);
            Ok(Ends::Pair(near.open(&mut cx)?, far.open(&mut cx)?))
        };
        Rig::new(open).ring_frames(rings)
    }

    /// Creates a rig of one end that `driver` opens from its text and that receives the packets it
    /// sends.
    #[must_use]
    pub fn looped(driver: impl Driver + 'static, text: &str) -> Rig {
        let end = text_of(&(Rc::new(driver) as Rc<dyn Driver>), text);
        let rings = end.ring_frames();
        Rig::new(move |pool| Ok(Ends::Loop(end.open(&mut OpenContext::new(pool))?)))
            .ring_frames(rings)
    }

    /// Creates a rig of one end that `driver` opens from its text: a source, a sink, or both.
    #[must_use]
    pub fn alone(driver: impl Driver + 'static, text: &str) -> Rig {
        let end = text_of(&(Rc::new(driver) as Rc<dyn Driver>), text);
        let rings = end.ring_frames();
        Rig::new(move |pool| Ok(Ends::Apart(end.open(&mut OpenContext::new(pool))?)))
            .ring_frames(rings)
    }

    /// Creates a rig of two ends that drivers of this crate open from their texts.
    #[must_use]
    pub fn ports(near: &str, far: &str) -> Rig {
        let texts = [near.to_owned(), far.to_owned()];
        let rings = |text: &String| Some(crate::plan(text).ok()?.needs().ok()?.ring_frames);
        let rings = texts.iter().filter_map(rings).sum();
        let open = registry::open;
        Rig::new(move |pool| Ok(Ends::Pair(open(&texts[0], pool)?, open(&texts[1], pool)?)))
            .ring_frames(rings)
    }

    /// Sets the number of the pool's frames that the device's rings hold, over all ends.
    #[must_use]
    pub fn ring_frames(mut self, frames: usize) -> Rig {
        self.pool_frames = FRAMES + frames;
        self
    }

    /// Sets the trust of the pool: a device that shares frames with a peer needs an exported pool.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Rig {
        self.trust = trust;
        self
    }

    /// Sets the shortest length to test. The device pads shorter packets, so that they arrive
    /// longer than sent.
    #[must_use]
    pub fn shortest(mut self, bytes: usize) -> Rig {
        self.limits.shortest_bytes = bytes;
        self
    }

    /// Sets the longest packet that the device carries, if that is less than the port reports.
    #[must_use]
    pub fn longest(mut self, bytes: usize) -> Rig {
        self.limits.longest_bytes = Some(bytes);
        self
    }

    /// Sets the number of packets of any length that the device can hold, if that is less than 64.
    #[must_use]
    pub fn window(mut self, packets: usize) -> Rig {
        self.limits.window_packets = packets.max(1);
        self
    }

    /// Declares that the device accepts more packets than it can hold, and drops those that are not
    /// received in time.
    #[must_use]
    pub fn drops_unread(mut self) -> Rig {
        self.limits.drops_unread = true;
        self
    }

    /// Declares that a sender blocks in `xmit` until there is room, as a program that writes to a
    /// pipe does, so that the device is never full.
    #[must_use]
    pub fn blocks_when_full(mut self) -> Rig {
        self.limits.blocks_when_full = true;
        self
    }

    /// Declares that the device works on what it has without being called, so that one that is full
    /// may have room a moment later although no packet was received.
    #[must_use]
    pub fn works_alone(mut self) -> Rig {
        self.limits.works_alone = true;
        self
    }

    /// Sets the longest time to wait for an expected event; 5 s by default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Rig {
        self.limits.patience = patience;
        self
    }

    /// Sets the interface of the near end, which cases may take down or change.
    #[must_use]
    pub fn interface(mut self, interface: impl Interface + 'static) -> Rig {
        self.interface = Some(Box::new(interface));
        self
    }

    pub(super) fn take_interface(&mut self) -> Option<Box<dyn Interface>> {
        self.interface.take()
    }

    /// Opens the ends with a new pool.
    pub(super) fn bench(&mut self, way: Way) -> Bench {
        let frames = u32::try_from(self.pool_frames).unwrap_or(u32::MAX);
        let pool = Pool::builder().frames(frames).trust(self.trust).build();
        let pool = pool.unwrap_or_else(|e| panic!("the suite's pool: {e}"));
        Bench::new(self.open_ends(&pool), way, pool, self.limits)
    }

    /// Opens the ends, and retries for a moment: a child process that another thread has just
    /// forked keeps the previous device's descriptors open until it executes.
    fn open_ends(&mut self, pool: &Pool) -> Ends {
        let deadline = Instant::now() + self.limits.patience;
        loop {
            match (self.open)(pool) {
                Ok(ends) => return ends,
                Err(e) if e.code == Code::Busy && Instant::now() < deadline => {
                    std::thread::yield_now();
                }
                Err(e) => panic!("the port cannot be opened: {e}"),
            }
        }
    }

    /// Runs `case` by each queue of the sender in each direction in which packets pass, and checks
    /// each time that all packets are accounted for. A case that applies once has passed.
    pub(super) fn each_way(&mut self, mut case: impl FnMut(&mut Bench) -> Ran) -> Ran {
        let mut ran = Ran::DoesNotApply("nothing that it sends comes back, or to another end");
        for way in [Way::Forth, Way::Back] {
            let (mut queue, mut queues) = (0, 1);
            while queue < queues {
                let mut bench = self.bench(way);
                queues = bench.sender().queues();
                if bench.carries() {
                    bench.sender().send_by(queue);
                    let of_way = case(&mut bench);
                    if ran != Ran::Passed {
                        ran = of_way;
                    }
                }
                bench.close();
                queue += 1;
            }
        }
        ran
    }
}

impl std::fmt::Debug for Rig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// A port text, with the driver that opens it.
struct Text {
    driver: Rc<dyn Driver>,
    text: String,
}

fn text_of(driver: &Rc<dyn Driver>, text: &str) -> Text {
    Text { driver: driver.clone(), text: text.to_owned() }
}

impl Text {
    fn plan(&self) -> Result<Box<dyn Plan>> {
        self.driver.parse(&Spec::parse(&self.text, &[self.driver.name()])?)
    }

    /// Returns the number of frames that the port's rings hold; 0 for an invalid text, which is
    /// reported when it is opened.
    fn ring_frames(&self) -> usize {
        self.plan().and_then(|plan| plan.needs()).map_or(0, |needs| needs.ring_frames)
    }

    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        self.plan()?.open(cx)
    }
}
