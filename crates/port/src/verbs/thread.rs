//! The control thread: it meets peers by TCP, and makes the ways to them.
//!
//! ```text
//!   TCP ──► Meeting: hellos, hellos, ready ──► Fabric::complete ──► Roster ──► queue      for each queue
//!   TCP closed, or a queue says that the connection failed ──► Change::Left ──► queues ──► ways, dropped here
//! ```
//!
//! Making a way may wait for a neighbour's answer, so no queue does it. A TCP connection stays open
//! for as long as its peer exists: its end is the peer's end.

mod ways;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::{EventFd, EventFlags, NO_EVENT, WaitSet};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::config::{Config, Role};
use super::control::Rosters;
use super::meeting::{Meeting, Said, Stage};
use super::nic::Fabric;
use super::roster::Change;
use crate::host::open_when_closed;

/// Time between attempts to connect.
const AGAIN: Duration = Duration::from_millis(500);
/// Most meetings that are not finished: the oldest ends for another caller.
const MEETINGS_MAX: usize = 16;
/// Most callers that are accepted before other events have their turn.
const CALLERS: usize = 16;
/// Time without accepting after the process had no descriptor for a caller.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const ALARM: u64 = 0;
const BELL: u64 = 1;
const LISTENER: u64 = 2;
const FIRST: u64 = 16;

/// Objects that the thread shares with the queues.
pub(super) struct Shared<P, G> {
    pub rosters: Rosters<P, G>,
    pub bell: Arc<EventFd>,
    pub is_closing: Arc<AtomicBool>,
}

/// An address to connect to.
struct Call {
    at: SocketAddr,
    /// The time of the next attempt; `None` while there is a meeting or a peer.
    next: Option<Instant>,
}

/// The thread: the ways, the meetings, and those that are to be called.
pub(super) struct Thread<F: Fabric, G> {
    /// Those of the queues, in the order of the rosters.
    fabrics: Vec<F>,
    shared: Shared<F::Peer, G>,
    set: WaitSet,
    listener: Option<TcpListener>,
    /// The time until which the listener is not watched.
    paused_until: Option<Instant>,
    peers_max: usize,
    calls: Vec<Call>,
    meetings: Vec<Meeting<F>>,
    /// Longest packet that this port receives.
    longest_bytes: usize,
    /// The number of the next meeting.
    next: u64,
}

impl<F: Fabric, G> Thread<F, G> {
    /// Makes a thread that has not started: it has a listener, or calls to make.
    ///
    /// # Errors
    /// Those of [`Control::start`](super::control::Control::start).
    pub fn new(
        config: &Config,
        fabrics: Vec<F>,
        longest_bytes: usize,
        shared: Shared<F::Peer, G>,
    ) -> Result<Thread<F, G>> {
        let (listener, calls, why) = match &config.role {
            Role::Listen(at, _) => (Some(listen(*at)?), Vec::new(), "no peer has connected yet"),
            Role::Connect(all) => (None, all.clone(), "no peer has answered yet"),
        };
        let mut set = WaitSet::new(ALARM)?;
        let fail = |e| Error::os(Code::System, "cannot wait for a peer", "epoll_ctl", e);
        set.add(&*shared.bell, BELL, EventFlags::IN).map_err(fail)?;
        if let Some(listener) = &listener {
            set.add(listener, LISTENER, EventFlags::IN).map_err(fail)?;
        }
        let now = Instant::now();
        set.alarm(Some(now)).map_err(fail)?;
        let thread = Thread {
            fabrics,
            shared,
            set,
            listener,
            paused_until: None,
            peers_max: config.peers(),
            calls: calls.into_iter().map(|at| Call { at, next: Some(now) }).collect(),
            meetings: Vec::new(),
            longest_bytes,
            next: FIRST,
        };
        thread.say(why);
        Ok(thread)
    }

    /// Works until the queues are gone.
    pub fn run(mut self) {
        let mut events = [NO_EVENT; 16];
        while !self.is_closing() {
            let n = self.set.wait(&mut events, None).unwrap_or(0);
            for event in &events[..n] {
                if self.is_closing() {
                    return;
                }
                // Copy the field, because the kernel's structure is packed.
                match { event.data }.u64() {
                    ALARM => {}
                    BELL => self.read_reports(),
                    LISTENER => self.accept(),
                    meeting => self.turn(meeting),
                }
            }
            self.pass_time();
        }
    }

    fn is_closing(&self) -> bool {
        self.shared.is_closing.load(Ordering::Acquire)
    }

    /// Drops the rest of peers that have gone, and hangs up on those whose connection has failed.
    fn read_reports(&mut self) {
        // First: what a queue reports afterwards rings again.
        self.shared.bell.drain();
        let reports: Vec<_> = self.shared.rosters.iter().map(|roster| roster.reports()).collect();
        for (id, why) in reports.into_iter().flat_map(|reports| reports.failed) {
            self.end(id, &format!("the connection failed: {why}"));
        }
    }

    /// Returns true if a queue of the port is gone, so that no peer can come any more.
    fn has_closed(&self) -> bool {
        self.shared.rosters.iter().any(|roster| roster.is_closed())
    }

    /// Tells the queues why there is no peer.
    fn say(&self, why: &str) {
        self.shared.rosters.iter().for_each(|roster| roster.say(why));
    }

    fn accept(&mut self) {
        for _ in 0..CALLERS {
            let Some(listener) = &self.listener else { return };
            let (stream, from) = match listener.accept() {
                Ok(caller) => caller,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // The caller has hung up already.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => {
                    let _ = self.set.delete(listener);
                    self.paused_until = Instant::now().checked_add(ACCEPT_PAUSE);
                    return self.say(&format!("a caller cannot be accepted: {e}"));
                }
            };
            let open = || self.meetings.iter().filter(|meeting| meeting.is_open());
            let oldest = open().map(|meeting| meeting.id).min();
            if let Some(oldest) = oldest.filter(|_| open().count() >= MEETINGS_MAX) {
                self.end(oldest, "others called before it was ready");
            }
            let id = self.id();
            let met = Meeting::called(id, stream);
            if let Err(why) = met.and_then(|met| self.add(met, EventFlags::IN)) {
                self.say(&format!("{from}: {why}"));
            }
        }
    }

    /// Begins to connect to a peer; the descriptor is writable when that is done.
    fn call(&mut self, at: SocketAddr) -> std::result::Result<(), String> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None);
        let socket = socket.map_err(|e| e.to_string())?;
        match connect(&socket, &at) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.to_string()),
        }
        let id = self.id();
        self.add(Meeting::calling(id, TcpStream::from(socket), at), EventFlags::OUT)
    }

    /// Goes on with a peer whose TCP connection has come about, or has failed.
    fn called(&mut self, at: usize) {
        let Meeting { id, stream, call, .. } = self.meetings.swap_remove(at);
        let _ = self.set.delete(&stream);
        let Some(at) = call else { return };
        let met = Meeting::greet(id, stream, at, &mut self.fabrics, self.longest_bytes);
        if let Err(why) = met.and_then(|met| self.add(met, EventFlags::IN)) {
            self.again(at);
            self.say(&format!("{at}: {why}"));
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add(&mut self, meeting: Meeting<F>, events: EventFlags) -> std::result::Result<(), String> {
        self.set.add(&meeting, meeting.id, events).map_err(|e| e.to_string())?;
        self.meetings.push(meeting);
        Ok(())
    }

    /// Connects to `at` again after a while.
    fn again(&mut self, at: SocketAddr) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.at == at) {
            call.next = Instant::now().checked_add(AGAIN);
        }
    }

    /// Reads what a peer has sent, and goes on with its meeting.
    fn turn(&mut self, id: u64) {
        let Some(at) = self.meetings.iter().position(|meeting| meeting.id == id) else { return };
        if matches!(self.meetings[at].stage, Stage::Calling) {
            return self.called(at);
        }
        loop {
            let done = match self.meetings[at].read() {
                Said::Nothing => return,
                Said::Hello(bytes) => self.meet(at, &bytes),
                Said::Ready => self.join(at),
                Said::Ended(why) => Err((None, why)),
            };
            if let Err((refusal, why)) = done {
                if let Some(refusal) = refusal {
                    // If this write fails, the peer still sees the connection close.
                    let _ = self.meetings[at].say(refusal as u8);
                }
                return self.end(id, &why);
            }
        }
    }

    /// Ends a meeting, and the peer if there is one.
    fn end(&mut self, id: u64, why: &str) {
        let Some(at) = self.meetings.iter().position(|meeting| meeting.id == id) else { return };
        let meeting = self.meetings.swap_remove(at);
        let from = meeting.call.or_else(|| meeting.stream.peer_addr().ok());
        let from = from.map_or_else(|| "a peer".to_owned(), |from| from.to_string());
        let _ = self.set.delete(&meeting);
        if let Some(call) = meeting.call {
            self.again(call);
        }
        self.say(&format!("{from}: {why}"));
        if !meeting.is_open() {
            self.shared.rosters.iter().for_each(|roster| roster.publish(Change::Left(id)));
            self.shared.rosters[0].ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Connects where it is time, ends meetings that take too long, and sets the alarm.
    fn pass_time(&mut self) {
        let now = Instant::now();
        if self.paused_until.take_if(|until| *until <= now).is_some()
            && let Some(listener) = &self.listener
        {
            let watched = self.set.add(listener, LISTENER, EventFlags::IN);
            self.paused_until = watched.is_err().then(|| now + ACCEPT_PAUSE);
        }
        for i in 0..self.calls.len() {
            let Call { at, next } = &mut self.calls[i];
            if next.is_none_or(|next| next > now) {
                continue;
            }
            let at = *at;
            *next = None;
            if self.has_closed() {
                self.say("a queue of this port is closed");
                continue;
            }
            if let Err(why) = self.call(at) {
                self.again(at);
                self.say(&format!("{at}: {why}"));
            }
        }
        let late = |meeting: &&Meeting<F>| meeting.is_open() && meeting.until <= now;
        while let Some(id) = self.meetings.iter().find(late).map(|meeting| meeting.id) {
            self.end(id, "it does not answer");
        }
        let open = self.meetings.iter().filter(|meeting| meeting.is_open());
        let times = open.map(|meeting| meeting.until);
        let times = times.chain(self.calls.iter().filter_map(|call| call.next));
        // Setting the alarm cannot fail, because its descriptor is a timer.
        let _ = self.set.alarm(times.chain(self.paused_until).min());
    }
}

fn listen(at: SocketAddr) -> Result<TcpListener> {
    let is_in_use = |e: &std::io::Error| e.kind() == ErrorKind::AddrInUse;
    let listener = open_when_closed(is_in_use, || TcpListener::bind(at)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|e| {
        let code = if is_in_use(&e) { Code::Busy } else { Code::System };
        let fix = match e.kind() {
            ErrorKind::AddrInUse => format!("see who: ss -tlnp 'sport = :{}'", at.port()),
            ErrorKind::AddrNotAvailable => {
                "take an address of this host: ip -br address".to_owned()
            }
            _ => String::new(),
        };
        Error::new(code, format!("cannot listen at {at}"), e.to_string()).fix(fix)
    })
}
