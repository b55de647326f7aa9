//! The socket of a run, and the thread that serves it.
//!
//! Owner: the program that was asked for it; dropping the [`Server`] ends the thread and takes the file away. The
//! thread sleeps until someone connects. It waits for no client: they are read and written as far as they go, and one
//! that is slow, or the oldest when all places are taken, is let go.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_datapath::{Control, Stats};
use linerate_port::wait::{Epoll, EventFd, EventFlags};
use linerate_port::{Code, Error, Result};
use linerate_sys::unix::{Listener, SocketType, peer_user};
use linerate_sys::wait::NO_EVENT;

use super::refusal;
use super::request::{REQUEST_BYTES_MAX, Request};
use super::target::{Pending, Target};
use crate::json;
use crate::report::ErrorReport;

/// Clients at once.
const PLACES: usize = 16;
/// Clients that are accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// Longest time for a client to send its request, and to take its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two looks at orders that workers have not obeyed yet.
const LOOK: Duration = Duration::from_millis(1);
/// Time for which no client is accepted when there was no descriptor for one.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket where clients connect, and wait for [`Listening::serve`].
#[derive(Debug)]
pub struct Listening {
    listener: Listener,
    watch: Epoll,
    bell: Arc<EventFd>,
}

/// The thread that serves a socket, until it is dropped.
#[derive(Debug)]
pub struct Server {
    bell: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at `path`: a file of mode 0600, which goes with the [`Server`]. A socket that a dead process of this
    /// user left behind is replaced; anything else there is refused.
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

    /// Serves the socket on a thread of its own.
    ///
    /// # Errors
    /// `E-SYSTEM` if there can be no thread.
    pub fn serve(self, control: Control, stats: Stats) -> Result<Server> {
        let bell = self.bell.clone();
        let mut service = Service {
            listening: self,
            target: Target::new(control, stats),
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

/// The thread's own.
struct Service {
    listening: Listening,
    target: Target,
    /// In the order in which they came.
    clients: Vec<Client>,
    /// No client is accepted until then.
    paused: Option<Instant>,
}

/// One client, which has one request.
struct Client {
    stream: UnixStream,
    state: State,
    until: Instant,
}

/// The state of a client: what it waits for.
enum State {
    /// The rest of its line.
    Asking(Vec<u8>),
    /// The workers.
    Ordered(Pending),
    /// Room for the rest of its answer.
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
            let left = if orders { Some(LOOK) } else { left };
            // EBADF and the like cannot be: all members are ours, and open.
            if self.listening.watch.wait(&mut events, left).is_err() {
                return;
            }
            if self.listening.bell.drain() {
                return;
            }
            let now = Instant::now();
            self.target.revert(now, LOOK);
            self.accept(now);
            let (target, watch) = (&mut self.target, &self.listening.watch);
            self.clients.retain_mut(|client| client.turn(target, watch, now));
        }
    }

    /// Accepts clients, and hears each at once: one that has sent its request already keeps its place.
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
                    // A listener that is watched would announce the client for ever.
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
                    self.clients.remove(self.clients.iter().position(asks).unwrap_or(0));
                }
                self.clients.push(client);
            }
        }
    }

    /// Has the listener watched, or not.
    fn listen(&self, wanted: bool) {
        let interest = if wanted { EventFlags::IN } else { EventFlags::empty() };
        // It is a member.
        let _ = self.listening.watch.modify(&self.listening.listener, 0, interest);
    }
}

impl Client {
    /// Goes on as far as it can; false if the client is done with, or too slow.
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

    /// Does what the client's line says.
    fn heard(&mut self, target: &mut Target, watch: &Epoll, now: Instant) -> State {
        let State::Asking(line) = &self.state else { return State::Asking(Vec::new()) };
        let answer = match Request::parse(line) {
            Ok(Request::Show { port }) => target.show(port.as_deref()),
            Ok(Request::Keep) => Ok(target.keep()),
            Ok(Request::Set(change)) => match target.begin(&change, now) {
                Ok(pending) => {
                    // What it sends, or that it goes, is no news until the workers have obeyed.
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

/// Reads what there is of a client's line; true once it is whole, too long, or all that comes.
///
/// # Errors
/// A client that is gone, or has nothing to ask.
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

/// Checks that a client belongs to this process's user, or to root.
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
