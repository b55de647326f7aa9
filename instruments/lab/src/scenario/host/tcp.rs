//! TCP connections from west to east that stay open over all windows: bulk transfer in writes of
//! one size, as netperf's TCP_STREAM; and requests with answers of one size, as TCP_RR or as NFS.
//! Both run as fast as possible or at a rate.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_port::Queue;
use linerate_port::wait::poll_readable;
use linerate_sys::thread;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use super::config::Config;
use super::crew::{Counts, Crew, Load, Part, Player, Round, Told, settle_down};
use super::fault::SLOW_BUFFER_BYTES;
use super::hosts::{self, Hosts};
use super::stack::{self, Stack};
use crate::scenario::pause::{look_until, pause, wait_until};
use crate::{Code, Error, Result};

/// The bytes that a sender writes.
pub(super) const FILL: u8 = 0x5a;
/// Bytes of a receiver's read.
const READ_BYTES: usize = 64 << 10;

/// Connections from west to east, with the programs at their ends.
#[derive(Debug)]
pub(super) struct Tcp {
    crew: Crew,
    /// Bytes of a write if no answer is expected: a round then waits until all writes were read.
    unanswered: Option<u64>,
    written: u64,
    readers: Vec<Reader>,
    /// The eastern ends in user space, if there are any: one for each adapter.
    stacks: Vec<Stack>,
}

/// The western end of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Connected {
    to: SocketAddrV4,
    buffer_bytes: usize,
    nodelay: bool,
    message: usize,
    /// Bytes of the answer to a message, for which the next message waits; 0 if none is answered.
    answer: usize,
    per_second: Option<f64>,
    /// The offset of this connection within a message's interval, so that connections do not send
    /// at the same time.
    phase: f64,
}

/// The eastern end of a connection.
#[derive(Debug)]
struct Reader {
    /// `None` for a connection of a [`Stack`], which has the thread.
    stream: Option<Arc<TcpStream>>,
    /// Id of the reader's thread.
    id: i32,
    /// Bytes read so far; the next field is that number at the start of the round.
    read: Arc<AtomicU64>,
    before: u64,
    thread: Option<JoinHandle<Option<()>>>,
}

impl Tcp {
    /// Opens the connections; the path must carry packets meanwhile. With `queues`, one for each
    /// adapter, the eastern ends are in user space, on these.
    pub fn open(config: &Config, hosts: &Hosts, queues: Vec<Queue>) -> Result<Tcp> {
        let stack = |(adapter, queue)| Stack::read(config, hosts, adapter, queue);
        let mut tcp = Tcp {
            crew: Crew::new(),
            unanswered: (config.answer_bytes() == 0).then_some(config.message as u64),
            written: 0,
            readers: Vec::new(),
            stacks: queues.into_iter().enumerate().map(stack).collect::<Result<_>>()?,
        };
        for number in 0..config.adapters * config.connections {
            let (adapter, connection) = (number / config.connections, number % config.connections);
            let failed = |e: io::Error| {
                Error::new(Code::System, "cannot connect west to east", e.to_string())
            };
            let address = hosts::east(adapter);
            let listener = match tcp.stacks.is_empty() {
                true => Some(hosts.east.run(|| eastern_end(config, address))?.map_err(failed)?),
                false => None,
            };
            let to = match listener.as_ref().map(TcpListener::local_addr) {
                None => SocketAddrV4::new(address, stack::FIRST_PORT + connection as u16),
                Some(Ok(SocketAddr::V4(to))) => to,
                Some(Ok(_)) => return Err(failed(io::Error::other("not an IPv4 socket"))),
                Some(Err(e)) => return Err(failed(e)),
            };
            let part = Part::Tcp(Connected::of(config, number, to));
            let (name, cpu) = (format!("west-{number}"), config.sender_cpu(adapter));
            tcp.crew.employ(config, hosts, &name, cpu, part, config.processes)?;
            let reader = match listener {
                None => Reader::of(&tcp.stacks[adapter], connection),
                Some(listener) => {
                    // This accept does not block: the sender's connect has returned.
                    let stream = accept(config, &listener).map_err(failed)?;
                    let cpus = config.reader_cpus(adapter);
                    Reader::start(config, hosts, number, cpus, stream)?
                }
            };
            tcp.readers.push(reader);
        }
        Ok(tcp)
    }

    /// Returns the bytes that the programs of the east have read.
    fn read(&self) -> u64 {
        self.readers.iter().map(|reader| reader.read.load(Ordering::Acquire)).sum()
    }
}

/// Returns a socket that listens at `address` for a connection of a side. To be called in the
/// host's namespace.
fn eastern_end(config: &Config, address: Ipv4Addr) -> io::Result<TcpListener> {
    let slow = config.fault.receiver_sleeps;
    listen(address, slow.map_or(config.sockbuf, |_| SLOW_BUFFER_BYTES))
}

/// Accepts a connection of a side.
fn accept(config: &Config, listener: &TcpListener) -> io::Result<TcpStream> {
    if !poll_readable(&[listener.as_fd()], Some(PATIENCE))? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(config.nodelay)?;
    Ok(stream)
}

fn broken(why: String) -> Error {
    Error::new(Code::System, "cannot continue TCP from west to east", why)
}

impl Load for Tcp {
    fn go(&mut self, round: Round) {
        for reader in &mut self.readers {
            reader.before = reader.read.load(Ordering::Acquire);
        }
        self.crew.go(round);
    }

    fn counts(&self) -> Counts {
        let idle = |reader: &&Reader| reader.read.load(Ordering::Acquire) == reader.before;
        let idle = self.readers.iter().filter(idle).count() as u64;
        Counts { goodput_bytes: self.read(), idle, ..Counts::default() }
    }

    fn settle(&mut self, round: Round) -> Result<Told> {
        let told = self.crew.gather(round)?;
        self.written += told.sent * self.unanswered.unwrap_or_default();
        let arrives = || self.read() >= self.written;
        // A broken connection is an error, because the connections must stay open for the next
        // windows.
        match told.failure {
            _ if self.stacks.iter().any(Stack::is_spoiled) => Err(broken(
                "a byte has arrived that was not sent, or smoltcp's device failed".into(),
            )),
            Some(why) => Err(broken(why)),
            None if !look_until(PATIENCE, arrives) => {
                Err(broken("written data does not arrive".into()))
            }
            None => Ok(told),
        }
    }

    fn end(&mut self) {
        self.crew.end();
        // The senders' ends are closed; wait until the readers receive that, which needs a path
        // that carries packets.
        let ended = || {
            self.readers
                .iter()
                .all(|reader| reader.thread.as_ref().is_none_or(JoinHandle::is_finished))
                && self.stacks.iter().all(Stack::is_closed)
        };
        look_until(Duration::from_secs(1), ended);
        self.stacks.clear();
    }

    fn readers(&self) -> Vec<i32> {
        let mut ids: Vec<i32> = self.readers.iter().map(|reader| reader.id).collect();
        // The connections of an adapter may have one thread.
        ids.dedup();
        ids
    }
}

impl Connected {
    /// Returns the western end of a side's connection of that number.
    fn of(config: &Config, number: usize, to: SocketAddrV4) -> Connected {
        let all = config.adapters * config.connections;
        let answer = config.answer_bytes();
        // The rate is of requests if they are answered, and of bytes otherwise.
        let each = if answer > 0 { 1 } else { config.message };
        Connected {
            to,
            buffer_bytes: config.sockbuf,
            nodelay: config.nodelay,
            message: config.message,
            answer,
            per_second: config.rate.map(|rate| rate / (each * all) as f64),
            phase: number as f64 / all as f64,
        }
    }

    /// Opens the connection. To be called in the host's namespace.
    pub fn open(self) -> io::Result<Box<dyn Player>> {
        let stream = self.stream()?;
        let (message, answer) = (vec![FILL; self.message], vec![0; self.answer]);
        Ok(Box::new(Sender { stream, message, answer, part: self }))
    }

    fn stream(&self) -> io::Result<TcpStream> {
        let stream = connect(self.to, self.buffer_bytes)?;
        stream.set_nodelay(self.nodelay)?;
        Ok(stream)
    }

    #[cfg(test)]
    pub fn for_tests() -> Connected {
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9);
        let (buffer_bytes, per_second) = (0, Some(1.5));
        let (nodelay, answer) = (true, 0);
        Connected { to, buffer_bytes, nodelay, message: 64, answer, per_second, phase: 0.0 }
    }
}

/// A sender of messages.
struct Sender {
    stream: TcpStream,
    message: Vec<u8>,
    /// Memory for an answer.
    answer: Vec<u8>,
    part: Connected,
}

impl Player for Sender {
    fn play(&mut self, round: Round) -> Told {
        let mut told = Told::default();
        loop {
            let now = Instant::now();
            let mut due = now;
            if let Some(per_second) = self.part.per_second {
                let at = (told.due as f64 + self.part.phase) / per_second;
                due = round.from + Duration::from_secs_f64(at);
                if due >= round.until {
                    return told;
                }
                told.due += 1;
                wait_until(due);
                if Instant::now() >= round.until {
                    // After the round's end, a message that was due is counted as due and not sent.
                    if self.part.answer > 0 {
                        told.latencies.note(round, due, None);
                    }
                    continue;
                }
            } else if now >= round.until {
                told.due = told.sent;
                return told;
            }
            if let Err(e) = self.stream.write_all(&self.message) {
                return failed(told, &e);
            }
            told.sent += 1;
            if self.part.answer == 0 {
                continue;
            }
            if let Err(e) = self.stream.read_exact(&mut self.answer) {
                return failed(told, &e);
            }
            let now = Instant::now();
            told.answered += u64::from(now <= round.until);
            told.latencies.note(round, due, Some(now));
        }
    }
}

fn failed(mut told: Told, e: &io::Error) -> Told {
    told.failed += 1;
    told.failure = Some(format!("west: {e}"));
    told
}

impl Reader {
    /// Returns the reader of one of a stack's connections, which the stack's thread reads.
    fn of(stack: &Stack, connection: usize) -> Reader {
        let (id, read) = (stack.id, stack.read[connection].clone());
        Reader { stream: None, id, read, before: 0, thread: None }
    }

    /// Starts a thread that reads, and answers each message, if messages are answered.
    fn start(
        config: &Config,
        hosts: &Hosts,
        number: usize,
        cpus: Vec<usize>,
        stream: TcpStream,
    ) -> Result<Reader> {
        let (stream, read) = (Arc::new(stream), Arc::<AtomicU64>::default());
        let (theirs, count) = (stream.clone(), read.clone());
        let slow = config.fault.receiver_sleeps;
        let (message, answer) = (config.message, config.answer_bytes());
        let (tell, told) = channel();
        let body = move || {
            settle_down(&cpus);
            let _ = tell.send(thread::id());
            let mut bytes = vec![0; READ_BYTES.max(answer)];
            let mut unanswered = 0;
            // The loop ends when either end closes the connection.
            while let Ok(n @ 1..) = (&*theirs).read(&mut bytes) {
                count.fetch_add(n as u64, Ordering::Release);
                slow.into_iter().for_each(pause);
                unanswered += n;
                while answer > 0 && message <= unanswered {
                    unanswered -= message;
                    if (&*theirs).write_all(&bytes[..answer]).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = hosts.east.spawn(&format!("east-{number}"), body)?;
        // A thread that did not start sends no id; its id is then 0.
        let id = told.recv().unwrap_or_default();
        Ok(Reader { stream: Some(stream), id, read, before: 0, thread: Some(thread) })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.stream.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest time that a socket waits for its peer; a longer wait means that the path is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Returns a socket that listens at `address`, with buffers of `buffer_bytes` for its connections.
/// To be called in the host's namespace.
pub(super) fn listen(address: Ipv4Addr, buffer_bytes: usize) -> io::Result<TcpListener> {
    let socket = socket(buffer_bytes)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(address, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns a connection to a listening socket. To be called in the host's namespace.
///
/// The buffers are set before: the window that is offered is settled by the first packets.
pub(super) fn connect(to: SocketAddrV4, buffer_bytes: usize) -> io::Result<TcpStream> {
    let socket = socket(buffer_bytes)?;
    // The send timeout also limits the wait of connect(2).
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

fn socket(buffer_bytes: usize) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // With 0, the kernel chooses the sizes and lets the buffers grow.
    if buffer_bytes > 0 {
        sockopt::set_socket_send_buffer_size(&socket, buffer_bytes)?;
        sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Place;
    use crate::settings::Settings;

    /// Returns a side, with the western end of its connection and the socket to which that
    /// connects.
    fn side(settings: &Settings) -> (Config, Connected, TcpListener) {
        let place = Place { cpus: vec![0, 1], seed: 1, program: None, stop: Arc::default() };
        let config = Config::of(settings, &place).unwrap();
        let listener = eastern_end(&config, Ipv4Addr::LOCALHOST).unwrap();
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { panic!("{listener:?}") };
        let west = Connected::of(&config, 0, to);
        (config, west, listener)
    }

    /// Tests S2.27, with the part of a thread that sends, and with that part as a process reads it.
    #[test]
    fn nagle_waits_at_both_ends_unless_it_is_turned_off() {
        for nodelay in [false, true] {
            let (config, of_thread, listener) = side(&Settings::new().with("nodelay", nodelay));
            let line = serde_json::to_string(&Part::Tcp(of_thread.clone())).unwrap();
            let part = serde_json::from_str::<Part>(&line).unwrap();
            let Part::Tcp(of_process) = part else { panic!("{line}") };
            for part in [of_thread, of_process] {
                let west = part.stream().unwrap();
                let east = accept(&config, &listener).unwrap();
                assert_eq!([west, east].map(|end| end.nodelay().unwrap()), [nodelay; 2]);
            }
        }
    }

    /// Tests S4.17. Sizes other than the default are tested too, because the kernel's own receive
    /// buffer may have the default's size.
    #[test]
    fn a_connection_has_the_socket_buffers_and_the_message_of_its_side() {
        let small = Settings::new().with("sockbuf", 16_384).with("message", 512);
        for (settings, buffer_bytes, message) in
            [(Settings::new(), 65_536, 4096_i64), (small, 16_384, 512)]
        {
            // The rate makes one message due at once, and the next one after a second.
            let (config, part, listener) = side(&settings.with("rate", message));
            let west = part.stream().unwrap();
            let east = accept(&config, &listener).unwrap();
            for end in [&west, &east] {
                let sent = sockopt::socket_send_buffer_size(end).unwrap();
                let received = sockopt::socket_recv_buffer_size(end).unwrap();
                // The kernel doubles what was asked for.
                assert_eq!((sent, received), (2 * buffer_bytes, 2 * buffer_bytes));
            }
            let mut sender = part.open().unwrap();
            let mut east = accept(&config, &listener).unwrap();
            let from = Instant::now();
            let until = from + Duration::from_millis(900);
            let told = sender.play(Round { number: 1, from, until });
            drop(sender);
            let mut bytes = Vec::new();
            east.read_to_end(&mut bytes).unwrap();
            assert_eq!((told.sent, bytes), (1, vec![FILL; message as usize]));
        }
    }
}
