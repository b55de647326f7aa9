//! A device in memory: datagrams that are lost without a request to receive, connections that wait
//! for one, groups, and completions in the order of a send queue.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_skb::{Pool, Result};
use linerate_sys::verbs::{Completion, Receive, Send as Message};
use linerate_sys::wait::EventFd;

use super::super::config::Config;
use super::super::hello::Hello;
use super::super::nic::{Fabric, Nic, To};
use super::super::rx::ROUTE_BYTES;

/// Longest datagram.
pub const MTU: usize = 1700;
/// The status of a message that no peer takes.
const RETRIES_EXCEEDED: u32 = 12;

/// All devices of the process.
static WORLD: Mutex<Option<World>> = Mutex::new(None);

#[derive(Default)]
struct World {
    /// By the number of the UD queue pair.
    ports: HashMap<u32, Port>,
    /// By the number of the pair of the connection.
    connections: HashMap<u32, Connection>,
}

struct Connection {
    /// The port that has this end.
    port: u32,
    /// The other end, once it is known.
    other: Option<u32>,
    receives: VecDeque<Receive>,
}

struct Port {
    base: usize,
    key: u32,
    gid: [u8; 16],
    group: Option<std::net::IpAddr>,
    /// True if the port gets the packets of its group.
    is_member: bool,
    receives: VecDeque<Receive>,
    received: VecDeque<Completion>,
    sent: VecDeque<Completion>,
    pending: VecDeque<Pending>,
    is_armed: [bool; 2],
    /// Number of messages that the port still takes; `None` for no limit.
    takes: Option<usize>,
    /// Most completions of received messages that may wait, and of sent ones.
    limits: [usize; 2],
    /// True if the UD queue pair has failed, so that no request of it is executed.
    has_failed: bool,
    /// True if the completion queue of sent messages cannot be read.
    is_sent_lost: bool,
    bell: Arc<EventFd>,
}

struct Pending {
    pair: u32,
    message: Message,
    is_last: bool,
}

fn world<R>(inside: impl FnOnce(&mut World) -> R) -> R {
    let mut world: MutexGuard<'_, Option<World>> =
        WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    inside(world.get_or_insert_default())
}

fn next() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(2);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    /// The port that this thread opened last.
    static LAST: Cell<u32> = const { Cell::new(0) };
    /// True if epoll refuses what this thread takes for the events of a device.
    static IS_UNWATCHABLE: Cell<bool> = const { Cell::new(false) };
}

/// Makes the events of devices such that this thread cannot watch them.
pub fn refuse_watches() {
    IS_UNWATCHABLE.set(true);
}

/// Returns the number of the port that this thread opened last.
pub fn last() -> u32 {
    LAST.get()
}

/// Makes `port` take `n` messages more, and none after them.
pub fn limit(port: u32, n: usize) {
    world(|world| {
        if let Some(port) = world.ports.get_mut(&port) {
            port.takes = Some(n);
        }
    });
}

/// Makes a receive request of each connection of `port` fail, as a message does that is too long.
pub fn spoil(port: u32) {
    world(|world| {
        let ends = world.connections.values_mut().filter(|end| end.port == port);
        let spoilt: Vec<Receive> = ends.filter_map(|end| end.receives.pop_front()).collect();
        if let Some(port) = world.ports.get_mut(&port) {
            for request in spoilt {
                port.receive(Completion { id: request.id, status: 1, ..Completion::default() });
            }
        }
    });
}

/// Completes the next request of the UD queue pair of `port` with a message of `bytes`, its route
/// included.
pub fn fill(port: u32, bytes: u32) {
    world(|world| {
        if let Some(port) = world.ports.get_mut(&port)
            && let Some(request) = port.receives.pop_front()
        {
            port.receive(Completion { id: request.id, bytes, ..Completion::default() });
        }
    });
}

/// Makes the next request of the UD queue pair of `port` fail, as a message does that is too long
/// for it, and leaves the pair as it is.
pub fn overfill(port: u32) {
    world(|world| {
        if let Some(port) = world.ports.get_mut(&port)
            && let Some(request) = port.receives.pop_front()
        {
            port.receive(Completion { id: request.id, status: 1, ..Completion::default() });
        }
    });
}

/// Completes a request of the UD queue pair of `port` that it does not have.
pub fn invent(port: u32) {
    world(|world| {
        if let Some(port) = world.ports.get_mut(&port) {
            port.receive(Completion { id: u32::MAX.into(), bytes: 100, ..Completion::default() });
        }
    });
}

/// Makes the UD queue pair of `port` fail: its requests, and all that follow, are not executed.
pub fn fail_datagrams(port: u32) {
    world(|world| {
        if let Some(port) = world.ports.get_mut(&port) {
            port.has_failed = true;
            port.flush();
        }
    });
}

/// Makes each reading of the completions of the messages that `port` has sent fail.
pub fn lose_sent(port: u32) {
    world(|world| {
        if let Some(port) = world.ports.get_mut(&port) {
            port.is_sent_lost = true;
        }
    });
}

impl Port {
    /// Fills the next request; returns false without one.
    fn fill(
        &mut self,
        from: usize,
        message: &Message,
        done: Completion,
        route: Option<[u8; 16]>,
    ) -> bool {
        let request = self.receives.pop_front();
        request.map(|request| self.fill_one(request, from, message, done, route)).is_some()
    }

    fn fill_one(
        &mut self,
        request: Receive,
        from: usize,
        message: &Message,
        done: Completion,
        route: Option<[u8; 16]>,
    ) {
        let parts = &message.parts[..message.len];
        let bytes: u32 = parts.iter().map(|(_, len)| *len).sum();
        let front = if route.is_some() { ROUTE_BYTES } else { 0 };
        assert!(front + bytes as usize <= request.len as usize, "the test's message is too long");
        let mut to = (self.base + request.offset as usize) as *mut u8;
        // SAFETY: the request lends this memory to the device, and the message's is lent as well;
        // both are in regions that their ports keep mapped, and in different frames.
        unsafe {
            if let Some(gid) = route {
                to.write_bytes(0, front);
                to.write(0x60);
                std::ptr::copy_nonoverlapping(gid.as_ptr(), to.add(8), 16);
                to = to.add(front);
            }
            for (offset, len) in parts {
                let part = (from + *offset as usize) as *const u8;
                std::ptr::copy_nonoverlapping(part, to, *len as usize);
                to = to.add(*len as usize);
            }
        }
        let bytes = front as u32 + bytes;
        let flags = if front > 0 { Completion::HAS_ROUTE } else { 0 };
        self.receive(Completion { id: request.id, bytes, flags, ..done });
    }

    /// Completes the receive requests of a UD queue pair that has failed.
    fn flush(&mut self) {
        let status = Completion::FLUSHED;
        for request in std::mem::take(&mut self.receives) {
            self.receive(Completion { id: request.id, status, ..Completion::default() });
        }
    }

    /// Adds the completion of a receive request.
    fn receive(&mut self, done: Completion) {
        assert!(self.received.len() < self.limits[0], "a completion queue overflows");
        self.received.push_back(done);
        self.notice(0);
    }

    /// Adds the completion of a sent message.
    fn complete(&mut self, id: u64, status: u32) {
        assert!(self.sent.len() < self.limits[1], "a completion queue overflows");
        self.sent.push_back(Completion { id, status, ..Completion::default() });
        self.notice(1);
    }

    fn notice(&mut self, which: usize) {
        if std::mem::take(&mut self.is_armed[which]) {
            self.bell.signal();
        }
    }
}

impl World {
    /// Delivers what waits on the connections of the port, as far as the peers have requests.
    fn pump(&mut self, from: u32) {
        let Some(mut port) = self.ports.remove(&from) else { return };
        let mut blocked = Vec::new();
        let mut left = VecDeque::new();
        for pending in std::mem::take(&mut port.pending) {
            if blocked.contains(&pending.pair) {
                left.push_back(pending);
                continue;
            }
            let other = self.connections.get(&pending.pair).and_then(|own| own.other);
            let Some(other) = other.and_then(|other| self.connections.get_mut(&other)) else {
                port.complete(pending.message.id, RETRIES_EXCEEDED);
                continue;
            };
            let request = other.receives.pop_front();
            let to = self.ports.get_mut(&other.port);
            let delivered = match request.zip(to) {
                Some((request, to)) => {
                    to.fill_one(request, port.base, &pending.message, Completion::default(), None);
                    true
                }
                None => false,
            };
            if !delivered {
                blocked.push(pending.pair);
                left.push_back(pending);
            } else if pending.is_last {
                port.complete(pending.message.id, 0);
            }
        }
        port.pending = left;
        self.ports.insert(from, port);
    }

    /// Delivers what waits on the connections with `port`, which has requests again, or is gone.
    fn pump_peers(&mut self, port: u32) {
        let of = |end: &Connection| (end.port == port).then_some(end.other).flatten();
        let others: Vec<u32> = self.connections.values().filter_map(of).collect();
        for other in others {
            if let Some(peer) = self.connections.get(&other) {
                self.pump(peer.port);
            }
        }
    }
}

/// The part that makes ways.
pub struct SoftFabric {
    hello: Hello,
    is_connected: bool,
}

/// The part that moves packets.
pub struct SoftNic {
    pair: u32,
    gid: [u8; 16],
    bell: Arc<EventFd>,
    /// Descriptor that epoll refuses, because it has nothing to poll.
    unwatchable: File,
    _pool: Pool,
}

/// A way to a peer.
#[derive(Debug)]
pub struct SoftWay {
    pair: u32,
    key: u32,
    connection: Option<Half>,
}

/// Our end of a connection.
#[derive(Debug)]
pub struct Half(u32);

impl Drop for Half {
    fn drop(&mut self) {
        world(|world| {
            let of = world.connections.remove(&self.0).map(|end| end.port);
            if let Some(port) = of.and_then(|of| world.ports.get_mut(&of)) {
                port.pending.retain(|pending| pending.pair != self.0);
            }
            // The other ends learn of it when they send.
            let ports: Vec<u32> = world.ports.keys().copied().collect();
            ports.into_iter().for_each(|port| world.pump(port));
        });
    }
}

impl SoftFabric {
    /// Opens the queues of a port of a new device.
    pub fn open(config: &Config, pool: &Pool) -> Vec<(SoftFabric, SoftNic)> {
        let mut gid = [0xfe; 16];
        gid[12..].copy_from_slice(&next().to_be_bytes());
        let queues = 0..config.queues;
        queues.map(|i| SoftFabric::queue(config, pool, gid, i == 0)).collect()
    }

    fn queue(
        config: &Config,
        pool: &Pool,
        gid: [u8; 16],
        is_member: bool,
    ) -> (SoftFabric, SoftNic) {
        // SAFETY: only frames that are lent are written, and packets are read.
        let region = unsafe { pool.region() }.unwrap();
        let (pair, bell) = (next(), Arc::new(EventFd::new().unwrap()));
        let key = if config.group.is_some() { 1 } else { pair + 1000 };
        let port = Port {
            base: region.base().as_ptr().addr(),
            key,
            gid,
            group: config.group,
            is_member,
            receives: VecDeque::new(),
            received: VecDeque::new(),
            sent: VecDeque::new(),
            pending: VecDeque::new(),
            is_armed: [false; 2],
            takes: None,
            limits: [config.rx_len, config.tx_len].map(|len| len as usize * config.pairs()),
            has_failed: false,
            is_sent_lost: false,
            bell: bell.clone(),
        };
        world(|world| world.ports.insert(pair, port));
        LAST.set(pair);
        let hello = Hello { pair, key, mtu_bytes: 4096, gid, ..Hello::default() };
        (
            SoftFabric { hello, is_connected: config.is_connected },
            SoftNic {
                pair,
                gid,
                bell,
                unwatchable: File::open("/dev/null").unwrap(),
                _pool: pool.clone(),
            },
        )
    }
}

impl SoftNic {
    pub fn gid(&self) -> [u8; 16] {
        self.gid
    }

    /// Returns the number of the UD queue pair.
    pub fn pair(&self) -> u32 {
        self.pair
    }
}

impl Fabric for SoftFabric {
    type Peer = SoftWay;
    type Half = Option<Half>;

    fn begin(&mut self) -> Result<(Option<Half>, Hello)> {
        if !self.is_connected {
            return Ok((None, self.hello));
        }
        let pair = next();
        let end = Connection { port: self.hello.pair, other: None, receives: VecDeque::new() };
        world(|world| world.connections.insert(pair, end));
        Ok((Some(Half(pair)), Hello { connection: Some(pair), ..self.hello }))
    }

    fn complete(&mut self, half: Option<Half>, _: &Hello, theirs: &Hello) -> Result<SoftWay> {
        if let Some(half) = &half {
            world(|world| {
                if let Some(end) = world.connections.get_mut(&half.0) {
                    end.other = theirs.connection;
                }
            });
        }
        Ok(SoftWay { pair: theirs.pair, key: theirs.key, connection: half })
    }
}

impl Nic for SoftNic {
    type Peer = SoftWay;

    fn events(&self) -> BorrowedFd<'_> {
        if IS_UNWATCHABLE.get() { self.unwatchable.as_fd() } else { self.bell.as_fd() }
    }

    fn drain(&mut self) {
        self.bell.drain();
    }

    fn received(&mut self, out: &mut [Completion]) -> io::Result<usize> {
        self.take(out, |port| &mut port.received)
    }

    fn sent(&mut self, out: &mut [Completion]) -> io::Result<usize> {
        if world(|world| world.ports.get(&self.pair).is_some_and(|port| port.is_sent_lost)) {
            return Err(io::Error::other("it overflowed"));
        }
        self.take(out, |port| &mut port.sent)
    }

    fn arm_received(&mut self) -> io::Result<()> {
        self.arm(0)
    }

    fn arm_sent(&mut self) -> io::Result<()> {
        self.arm(1)
    }

    unsafe fn post_receives(&mut self, requests: &[Receive], of: Option<&SoftWay>) -> usize {
        world(|world| {
            let queue = match of.and_then(|way| way.connection.as_ref()) {
                Some(half) => world.connections.get_mut(&half.0).map(|end| &mut end.receives),
                None => world.ports.get_mut(&self.pair).map(|port| &mut port.receives),
            };
            if let Some(queue) = queue {
                queue.extend(requests);
            }
            let own = world.ports.get_mut(&self.pair);
            if let Some(own) = own.filter(|own| own.has_failed) {
                own.flush();
            }
            world.pump_peers(self.pair);
        });
        requests.len()
    }

    unsafe fn post(&mut self, messages: &[Message], to: To<'_, SoftWay>) -> usize {
        world(|world| {
            let Some(own) = world.ports.get_mut(&self.pair) else { return 0 };
            if own.has_failed && !matches!(to, To::Connection(_)) {
                messages.iter().for_each(|message| own.complete(message.id, Completion::FLUSHED));
                return messages.len();
            }
            let (base, gid, group) = (own.base, own.gid, own.group);
            let n = own.takes.map_or(messages.len(), |takes| takes.min(messages.len()));
            own.takes = own.takes.map(|takes| takes - n);
            for (i, message) in messages[..n].iter().enumerate() {
                let is_last = i + 1 == messages.len();
                let done = Completion { sender: self.pair, ..Completion::default() };
                let bytes: u32 = message.parts[..message.len].iter().map(|(_, len)| *len).sum();
                let is_datagram = !matches!(to, To::Connection(_));
                assert!(!is_datagram || bytes as usize <= MTU, "a datagram of {bytes} bytes");
                match &to {
                    To::Connection(way) => {
                        let Some(Half(pair)) = way.connection else { return 0 };
                        let pending = Pending { pair, message: *message, is_last };
                        if let Some(own) = world.ports.get_mut(&self.pair) {
                            own.pending.push_back(pending);
                        }
                        continue;
                    }
                    To::Datagram(way) => {
                        let port = world.ports.get_mut(&way.pair);
                        if let Some(port) = port.filter(|port| port.key == way.key) {
                            port.fill(
                                base,
                                message,
                                Completion { pair: way.pair, ..done },
                                Some(gid),
                            );
                        }
                    }
                    To::Group => {
                        let is_member = |port: &&mut Port| port.is_member && port.group == group;
                        // Its own messages come back to a member, as with real ones.
                        for port in world.ports.values_mut().filter(is_member) {
                            port.fill(base, message, done, Some(gid));
                        }
                    }
                }
                if is_last && let Some(own) = world.ports.get_mut(&self.pair) {
                    own.complete(message.id, 0);
                }
            }
            world.pump(self.pair);
            n
        })
    }

    fn text(&self, completion: &Completion) -> String {
        format!("status {}", completion.status)
    }
}

impl SoftNic {
    fn take(
        &mut self,
        out: &mut [Completion],
        which: impl Fn(&mut Port) -> &mut VecDeque<Completion>,
    ) -> io::Result<usize> {
        world(|world| {
            world.pump(self.pair);
            let Some(port) = world.ports.get_mut(&self.pair) else { return Ok(0) };
            let queue = which(port);
            let n = queue.len().min(out.len());
            out.iter_mut().zip(queue.drain(..n)).for_each(|(out, done)| *out = done);
            Ok(n)
        })
    }

    fn arm(&mut self, which: usize) -> io::Result<()> {
        world(|world| {
            if let Some(port) = world.ports.get_mut(&self.pair) {
                port.is_armed[which] = true;
            }
        });
        Ok(())
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        world(|world| {
            world.ports.remove(&self.pair);
            world.pump_peers(self.pair);
        });
    }
}
