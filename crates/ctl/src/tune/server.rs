//! The control socket of a run, and the thread that serves it.
//!
//! Owner: the program that opened it on request; dropping the [`Server`] ends the thread and
//! removes the file. The thread sleeps until a client connects. It never waits for a client: it
//! reads and writes as far as possible without blocking, and disconnects a slow client. When all
//! places are taken, it disconnects the oldest client that has not sent its whole request, or the
//! oldest of all.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_datapath::{Control, DeviceHold, Stats};
use linerate_port::wait::{Epoll, EventFd, EventFlags};
use linerate_port::{Code, Error, Result};
use linerate_sys::unix::{Listener, SocketType, peer_user};
use linerate_sys::wait::NO_EVENT;

use super::refusal;
use super::request::{REQUEST_BYTES_MAX, Request};
use super::target::{Pending, Target};
use crate::json;
use crate::report::ErrorReport;

/// Most clients served at the same time.
const PLACES: usize = 16;
/// Most clients accepted in one turn of the thread.
const ACCEPTS_MAX: usize = 64;
/// Longest time in which a client must send its request, and longest time in which it must read its
/// answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks for orders that workers have not executed yet.
const ORDERS_INTERVAL: Duration = Duration::from_millis(1);
/// Time without accepting clients after an accept failed for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// An open socket to which clients can connect; they are served from [`Listening::serve`] on.
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    watch: Epoll,
    bell: Arc<EventFd>,
}

/// The thread that serves a control socket; dropping it ends the thread.
#[derive(Debug)]
#[must_use = "dropping it ends the service"]
pub struct Server {
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Opens a socket at `path`: a file with mode 0600, which the [`Server`] removes at its end. A
    /// socket that a dead process of this user left behind is replaced; any other file at the path
    /// is refused.
    ///
    /// # Errors
    /// `E-BUSY` if something else is at the path, `E-SYSTEM` for a path that cannot be used.
    pub fn at(path: &Path) -> Result<Listening> {
        if path.as_os_str().as_encoded_bytes().starts_with(b"@") {
            let what = format!("cannot listen at {}", path.display());
            let why = "a name that begins with @ is not a file, and has no owner";
            return Err(Error::new(Code::System, what, why).fix("name a file"));
        }
        let listener = Listener::bind(path, 0o600, SocketType::STREAM)?;
        let (watch, bell) = (Epoll::new()?, Arc::new(EventFd::new()?));
        let what = || format!("cannot listen at {}", path.display());
        let fail = |e| Error::os(Code::System, what(), "epoll_ctl", e);
        watch.add(&listener, 0, EventFlags::IN).map_err(fail)?;
        watch.add(&*bell, 0, EventFlags::IN).map_err(fail)?;
        Ok(Listening { listener, watch, bell })
    }

    /// Starts a thread that serves the socket.
    ///
    /// With the handle of one worker ([`Worker::control`](linerate_datapath::Worker::control)) only
    /// the queues of that worker are changed: a change of a whole port changes its queues on that
    /// worker, and the answer names them. The other queues are shown, and a change of one is
    /// refused.
    ///
    /// # Errors
    /// `E-SYSTEM` if the thread cannot be started.
    pub fn serve(self, control: Control, stats: Stats) -> Result<Server> {
        self.serve_recording(control, stats, |_, _| ())
    }

    /// Starts a thread that serves the socket, and calls `before_hold` with the index of a network
    /// interface and the new hold before it changes the hold of that interface, which is a port's
    /// device. That hold outlives a process that is killed, so the program can record there what
    /// has to be restored. The index stays when the interface is renamed.
    ///
    /// # Errors
    /// As [`Listening::serve`].
    pub fn serve_recording(
        self,
        control: Control,
        stats: Stats,
        before_hold: impl Fn(u32, DeviceHold) + Send + 'static,
    ) -> Result<Server> {
        let bell = self.bell.clone();
        let mut service = Service {
            listening: self,
            target: Target::new(control, stats, Box::new(before_hold)),
            clients: Vec::new(),
            paused: None,
        };
        let thread = std::thread::Builder::new().name("control".into());
        let thread = thread.spawn(move || service.run()).map_err(|e| {
            Error::new(Code::System, "cannot serve the control socket", e.to_string())
        })?;
        Ok(Server { bell, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.bell.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of the serving thread.
struct Service {
    listening: Listening,
    target: Target,
    /// The connected clients, in the order in which they connected.
    clients: Vec<Client>,
    /// Time until which no client is accepted, after an accept failed.
    paused: Option<Instant>,
}

/// One connected client, which may send one request.
struct Client {
    stream: UnixStream,
    state: State,
    until: Instant,
}

/// The state of a client, by what it waits for.
enum State {
    /// Waits for the rest of the client's line.
    Asking(Vec<u8>),
    /// Waits for the workers to execute the orders.
    Ordered(Pending),
    /// Waits for room to send the rest of the answer.
    Answered(Vec<u8>, usize),
}

impl Service {
    fn run(&mut self) {
        let mut events = [NO_EVENT; 4];
        loop {
            let orders = self.clients.iter().any(|c| matches!(c.state, State::Ordered(_)));
            let clients = self.clients.iter().map(|client| client.until);
            let due = clients.chain(self.paused).chain(self.target.revert_at()).min();
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            // No worker tells this thread that it has answered.
            let left = match self.target.is_reverting() {
                true => Some(left.map_or(PAUSE, |left| left.min(PAUSE))),
                false => left,
            };
            let left = if orders { Some(ORDERS_INTERVAL) } else { left };
            // The wait cannot fail with EBADF and the like: all members are open descriptors of
            // this thread.
            if self.listening.watch.wait(&mut events, left).is_err() {
                return;
            }
            if self.listening.bell.drain() {
                return;
            }
            let now = Instant::now();
            self.accept(now);
            self.target.settle(now);
            let (target, watch) = (&mut self.target, &self.listening.watch);
            self.clients.retain_mut(|client| client.turn(target, watch, now));
            // After the answers to changes: one that is to stay cancels the revert.
            self.target.revert(now, PAUSE);
        }
    }

    /// Accepts clients, and reads from each immediately: a client that has sent its request already
    /// keeps its place.
    fn accept(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| now < until) {
            return;
        }
        if self.paused.take().is_some() {
            self.listen(true);
        }
        for _ in 0..ACCEPTS_MAX {
            let stream = match self.listening.listener.accept() {
                Ok(Some(fd)) => UnixStream::from(fd),
                Ok(None) => return,
                Err(_) => {
                    // Stop watching the listener, because the client that was not accepted would
                    // wake this thread again and again.
                    self.listen(false);
                    self.paused = Some(now + PAUSE);
                    return;
                }
            };
            let state = match check(&stream) {
                Ok(()) => State::Asking(Vec::new()),
                Err(e) => State::answer(Err(e)),
            };
            let mut client = Client { stream, state, until: now + CLIENT_TIMEOUT };
            let watch = &self.listening.watch;
            if watch.add(&client.stream, 0, EventFlags::IN).is_err() {
                continue;
            }
            if client.turn(&mut self.target, watch, now) {
                if self.clients.len() >= PLACES {
                    let asks = |client: &Client| matches!(client.state, State::Asking(_));
                    let i = self.clients.iter().position(asks).unwrap_or(0);
                    // The client is to ask again, so its order must not be executed later.
                    if let State::Ordered(pending) = self.clients.remove(i).state {
                        self.target.withdraw(&pending, now);
                    }
                }
                self.clients.push(client);
            }
        }
    }

    /// Starts or stops watching the listener.
    fn listen(&self, wanted: bool) {
        let interest = if wanted { EventFlags::IN } else { EventFlags::empty() };
        // Cannot fail: the listener is a member of the set.
        let _ = self.listening.watch.modify(&self.listening.listener, 0, interest);
    }
}

impl Client {
    /// Serves the client as far as possible without waiting; returns false if the client is
    /// finished or too slow.
    fn turn(&mut self, target: &mut Target, watch: &Epoll, now: Instant) -> bool {
        loop {
            let next = match &mut self.state {
                State::Asking(line) => match read_line(&mut self.stream, line) {
                    Ok(true) => self.heard(target, watch, now),
                    Ok(false) => return now < self.until,
                    Err(_) => return false,
                },
                State::Ordered(pending) => match target.finish(pending, now) {
                    Some(answer) => {
                        self.until = now + CLIENT_TIMEOUT;
                        let _ = watch.add(&self.stream, 0, EventFlags::OUT);
                        State::answer(answer)
                    }
                    None => return true,
                },
                State::Answered(answer, sent) => match self.stream.write(&answer[*sent..]) {
                    Ok(n) => {
                        *sent += n;
                        if *sent >= answer.len() || n == 0 {
                            return false;
                        }
                        continue;
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) => return e.kind() == ErrorKind::WouldBlock && now < self.until,
                },
            };
            self.state = next;
        }
    }

    /// Executes the request in the client's line.
    fn heard(&mut self, target: &mut Target, watch: &Epoll, now: Instant) -> State {
        let State::Asking(line) = &self.state else { return State::Asking(Vec::new()) };
        let answer = match Request::parse(line) {
            Ok(Request::Show { port }) => target.show(port.as_deref()),
            Ok(Request::Keep) => Ok(target.keep()),
            Ok(Request::Set(change)) => match target.begin(&change, now) {
                Ok(pending) => {
                    // Do not watch the client until the workers have executed it: further bytes or
                    // a closed connection would only wake this thread.
                    let _ = watch.delete(&self.stream);
                    return State::Ordered(pending);
                }
                Err(e) => Err(e),
            },
            Err(e) => Err(e),
        };
        self.until = now + CLIENT_TIMEOUT;
        let _ = watch.modify(&self.stream, 0, EventFlags::OUT);
        State::answer(answer)
    }
}

impl State {
    fn answer(answer: std::result::Result<String, ErrorReport>) -> State {
        let text = answer.unwrap_or_else(|e| json::error(&e) + "\n");
        State::Answered(text.into_bytes(), 0)
    }
}

/// Reads the available bytes of a client's line; returns true once the line is complete, too long,
/// or ended by the client.
///
/// # Errors
/// If the client has closed the connection, or sent no request.
fn read_line(stream: &mut UnixStream, line: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; REQUEST_BYTES_MAX];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) if line.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Ok(true),
            Ok(n) => {
                let end = bytes[..n].iter().position(|byte| *byte == b'\n');
                line.extend_from_slice(&bytes[..end.unwrap_or(n)]);
                if end.is_some() || line.len() > REQUEST_BYTES_MAX {
                    return Ok(true);
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
    }
}

/// Checks that a client runs as this process's user, or as root.
fn check(stream: &UnixStream) -> std::result::Result<(), ErrorReport> {
    let own = linerate_sys::unix::own_user();
    let refuse = |why: String| {
        let fix = format!("run the command as user {own}, or as root");
        refusal(Code::Permission.as_str(), "the run does not accept this client", why, fix)
    };
    match peer_user(stream) {
        Ok(user) if user == own || user == 0 => Ok(()),
        Ok(user) => {
            Err(refuse(format!("the client belongs to user {user}, the run to user {own}")))
        }
        Err(e) => Err(refuse(format!("the client's user is not known: {e}"))),
    }
}
