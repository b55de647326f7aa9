//! A meeting with a peer by TCP, from the call to the end of the peer.
//!
//! ```text
//!   calling ──► greeting: hellos are sent and read ──► making: our end can receive, `!` is sent ──► peer
//!                                └── a byte of refusal, and the end
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::hello::{HELLO_BYTES, Hello, READY, Refusal};
use super::nic::Fabric;
use super::roster::Joined;

/// Longest time for a peer to finish a meeting.
const MEETING: Duration = Duration::from_secs(2);
/// Time without a sign of life of a peer's host after which its kernel is asked for one; five
/// questions without an answer, one a second, end the connection.
const SILENCE: Duration = Duration::from_secs(5);
const QUESTION: Duration = Duration::from_secs(1);
const QUESTIONS: u32 = 5;

/// A TCP connection with a peer.
pub(super) struct Meeting<F: Fabric> {
    pub id: u64,
    pub stream: TcpStream,
    pub stage: Stage<F>,
    /// The address that was called; `None` if the peer has called.
    pub call: Option<SocketAddr>,
    /// The time by which the meeting must be finished.
    pub until: Instant,
    /// GID and number of the UD queue pair of the peer's first queue, once it has said them.
    pub is: Option<([u8; 16], u32)>,
}

/// The stage of a meeting.
pub(super) enum Stage<F: Fabric> {
    /// TCP is connecting.
    Calling,
    /// Some of the peer's hellos have come. Ours have been sent, unless the peer calls and has not
    /// said its first.
    Greeting(Greeting<F>),
    /// This end can receive, and the other has not said that it can: the peer for each queue.
    Making(Vec<Joined<F::Peer>>),
    /// The queues have the peer.
    Peer,
}

/// The hellos of both ends, one for each queue.
pub(super) struct Greeting<F: Fabric> {
    pub halves: Vec<F::Half>,
    pub ours: Vec<Hello>,
    pub theirs: Vec<Hello>,
    /// The first `len` bytes of the next of theirs.
    bytes: [u8; HELLO_BYTES],
    len: usize,
}

/// The result of reading from a peer.
pub(super) enum Said {
    /// Nothing more has come.
    Nothing,
    /// Its hello for the next queue.
    Hello([u8; HELLO_BYTES]),
    /// It can receive.
    Ready,
    /// The meeting has ended, for this reason.
    Ended(String),
}

impl<F: Fabric> Greeting<F> {
    fn new() -> Greeting<F> {
        let (halves, ours, theirs) = (Vec::new(), Vec::new(), Vec::new());
        Greeting { halves, ours, theirs, bytes: [0; HELLO_BYTES], len: 0 }
    }

    /// Begins the ways to the peer, and sends our hello for each queue.
    ///
    /// # Errors
    /// The reason why the peer cannot be met.
    pub fn answer(
        &mut self,
        mut stream: &TcpStream,
        fabrics: &mut [F],
        longest_bytes: usize,
    ) -> Result<(), String> {
        let (longest_bytes, queues) = (longest_bytes as u32, fabrics.len() as u16);
        let mut said = Vec::new();
        for fabric in fabrics {
            let (half, hello) = fabric.begin().map_err(|e| e.to_string())?;
            let hello = Hello { longest_bytes, queues, ..hello };
            said.extend(hello.bytes());
            self.halves.push(half);
            self.ours.push(hello);
        }
        // A new connection has room for many more than the 1024 bytes of 16 hellos.
        stream.write_all(&said).map_err(|e| e.to_string())
    }

    /// Returns the reason why a peer has ended the connection, which it may have said instead of a
    /// hello.
    fn end(&self, why: &str) -> Said {
        let refusal = Refusal::of(self.bytes[0]).filter(|_| self.len == 1);
        Said::Ended(refusal.map_or_else(|| why.to_owned(), refuses))
    }
}

fn refuses(refusal: Refusal) -> String {
    format!("it refuses: {}", refusal.as_str())
}

impl<F: Fabric> Meeting<F> {
    /// Begins a meeting on a TCP connection that is being made.
    pub fn calling(id: u64, stream: TcpStream, call: SocketAddr) -> Meeting<F> {
        let until = Instant::now() + MEETING;
        Meeting { id, stream, stage: Stage::Calling, call: Some(call), until, is: None }
    }

    /// Begins a meeting with a caller, from which a hello is expected first: a caller that sends
    /// nothing gets no queue pair.
    ///
    /// # Errors
    /// The reason why the peer cannot be met.
    pub fn called(id: u64, stream: TcpStream) -> Result<Meeting<F>, String> {
        prepare(&stream).map_err(|e| e.to_string())?;
        let (stage, until) = (Stage::Greeting(Greeting::new()), Instant::now() + MEETING);
        Ok(Meeting { id, stream, stage, call: None, until, is: None })
    }

    /// Sends our hello for each queue to a peer that was called, and expects theirs; `fabrics` are
    /// those of the queues.
    ///
    /// # Errors
    /// The reason why the peer cannot be met.
    pub fn greet(
        id: u64,
        stream: TcpStream,
        call: SocketAddr,
        fabrics: &mut [F],
        longest_bytes: usize,
    ) -> Result<Meeting<F>, String> {
        prepare(&stream).map_err(|e| e.to_string())?;
        let mut greeting = Greeting::new();
        greeting.answer(&stream, fabrics, longest_bytes)?;
        let (stage, until) = (Stage::Greeting(greeting), Instant::now() + MEETING);
        Ok(Meeting { id, stream, stage, call: Some(call), until, is: None })
    }

    /// Returns true if the peer has a place among the port's peers.
    pub fn has_place(&self) -> bool {
        matches!(self.stage, Stage::Making(_) | Stage::Peer)
    }

    /// Returns true if the meeting is not finished.
    pub fn is_open(&self) -> bool {
        !matches!(self.stage, Stage::Peer)
    }

    /// Reads what the peer has sent; never waits.
    pub fn read(&mut self) -> Said {
        loop {
            if let Stage::Greeting(greeting) = &mut self.stage {
                match self.stream.read(&mut greeting.bytes[greeting.len..]) {
                    Ok(0) => return greeting.end("it hung up before it said hello"),
                    Ok(n) => greeting.len += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Said::Nothing,
                    Err(e) => return greeting.end(&e.to_string()),
                }
                if greeting.len == HELLO_BYTES {
                    greeting.len = 0;
                    return Said::Hello(greeting.bytes);
                }
                continue;
            }
            let mut byte = [0];
            return match self.stream.read(&mut byte) {
                Ok(0) => Said::Ended("it has gone".to_owned()),
                Ok(_) if byte == [READY] => Said::Ready,
                Ok(_) => Said::Ended(match Refusal::of(byte[0]) {
                    Some(refusal) => refuses(refusal),
                    None => "it sent something that no port sends".to_owned(),
                }),
                Err(e) if e.kind() == ErrorKind::WouldBlock => Said::Nothing,
                Err(e) => Said::Ended(e.to_string()),
            };
        }
    }

    /// Sends one byte, for which a connection that carries nothing else has room.
    ///
    /// # Errors
    /// Those of TCP.
    pub fn say(&self, byte: u8) -> Result<(), String> {
        (&self.stream).write_all(&[byte]).map_err(|e| e.to_string())
    }
}

impl<F: Fabric> AsFd for Meeting<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Prepares a new TCP connection: it never blocks, and ends if the other host is silent for ten
/// seconds.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    if let Some(e) = stream.take_error()? {
        return Err(e);
    }
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, QUESTION)?;
    sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
    sockopt::set_socket_keepalive(stream, true)?;
    // The kernel asks nothing while a byte of ours is not acknowledged, and repeats it for minutes.
    sockopt::set_tcp_user_timeout(stream, (SILENCE + QUESTION * QUESTIONS).as_millis() as u32)?;
    Ok(())
}
