//! Bulk TCP from west to east, as netperf's TCP_STREAM: writes of one size, as fast as they are taken
//! or so many a second. The connections stay open over all windows.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_sys::netns::Netns;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::config::Config;
use super::crew::{Counts, Crew, Load, Player, Round, Told, settle_down};
use super::hosts::{self, Hosts};
use crate::scenario::pause::{look_until, wait_until};
use crate::{Code, Error, Result};

/// Bytes of a receiver's read.
const READ_BYTES: usize = 64 << 10;

/// Connections from west to east, and the threads at their ends.
#[derive(Debug)]
pub(super) struct Stream {
    crew: Crew,
    written: Arc<AtomicU64>,
    read: Arc<AtomicU64>,
    readers: Vec<Reader>,
}

#[derive(Debug)]
struct Reader {
    stream: Arc<TcpStream>,
    thread: Option<JoinHandle<Option<()>>>,
}

impl Stream {
    /// Opens the connections; the path must carry packets meanwhile.
    pub fn open(config: &Config, hosts: &Hosts) -> Result<Stream> {
        let (written, read) = (Arc::default(), Arc::default());
        let mut stream = Stream { crew: Crew::new(), written, read, readers: Vec::new() };
        let all = config.adapters * config.connections;
        for adapter in 0..config.adapters {
            for connection in 0..config.connections {
                let number = adapter * config.connections + connection;
                let (from, to) = pair(hosts, adapter, config.sockbuf).map_err(|e| {
                    Error::new(Code::System, "cannot connect west to east", e.to_string())
                })?;
                let sender = Sender {
                    stream: from,
                    message: vec![0x5a; config.message],
                    written: stream.written.clone(),
                    per_second: config.rate.map(|rate| rate / (config.message * all) as f64),
                    phase: number as f64 / all as f64,
                };
                stream.crew.hire(&hosts.west, &format!("west-{number}"), config.traffic, sender)?;
                let reader = Reader::start(hosts, number, config.traffic, to, &stream.read)?;
                stream.readers.push(reader);
            }
        }
        Ok(stream)
    }
}

fn broken(why: String) -> Error {
    Error::new(Code::System, "cannot go on with the stream from west to east", why)
}

/// Opens a connection; returns both ends.
fn pair(hosts: &Hosts, adapter: usize, buffer: usize) -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = hosts.east.run(|| listen(hosts::east(adapter), buffer))??;
    let SocketAddr::V4(address) = listener.local_addr()? else {
        return Err(std::io::Error::other("not an IPv4 socket"));
    };
    let from = hosts.west.run(|| connect(address, buffer))??;
    // It is there: the connection is established.
    let (to, _) = listener.accept()?;
    Ok((from, to))
}

impl Load for Stream {
    fn go(&mut self, round: Round) {
        self.crew.go(round);
    }

    fn counts(&self) -> Counts {
        Counts { goodput_bytes: self.read.load(Ordering::Relaxed), ..Counts::default() }
    }

    fn settle(&mut self, round: Round) -> Result<Told> {
        let told = self.crew.gather(round)?;
        let written = self.written.load(Ordering::Acquire);
        let arrives = || self.read.load(Ordering::Acquire) >= written;
        // Its connections stay open over all windows: one that is broken has no next window.
        match told.failure {
            Some(why) => Err(broken(why)),
            None if !look_until(PATIENCE, arrives) => {
                Err(broken("what was written does not arrive".into()))
            }
            None => Ok(told),
        }
    }

    fn end(&mut self) {
        self.crew.end();
        // The senders' ends are closed, and the readers see it if the path carries.
        let ended = || {
            self.readers
                .iter()
                .all(|reader| reader.thread.as_ref().is_none_or(JoinHandle::is_finished))
        };
        look_until(Duration::from_secs(1), ended);
    }
}

/// Writes messages.
struct Sender {
    stream: TcpStream,
    message: Vec<u8>,
    written: Arc<AtomicU64>,
    per_second: Option<f64>,
    /// The offset of this connection within a message's interval, so that connections do not send
    /// at once.
    phase: f64,
}

impl Player for Sender {
    fn play(&mut self, round: Round) -> Told {
        let mut told = Told::default();
        loop {
            if let Some(per_second) = self.per_second {
                let at = Duration::from_secs_f64((told.due as f64 + self.phase) / per_second);
                let at = round.from + at;
                if at >= round.until {
                    return told;
                }
                told.due += 1;
                wait_until(at);
                if Instant::now() >= round.until {
                    // Late: what is due is counted and not sent.
                    continue;
                }
            } else if Instant::now() >= round.until {
                told.due = told.sent;
                return told;
            }
            if let Err(e) = self.stream.write_all(&self.message) {
                told.failed += 1;
                told.failure = Some(format!("west: {e}"));
                return told;
            }
            self.written.fetch_add(self.message.len() as u64, Ordering::Release);
            told.sent += 1;
        }
    }
}

impl Reader {
    fn start(
        hosts: &Hosts,
        number: usize,
        cpu: usize,
        stream: TcpStream,
        read: &Arc<AtomicU64>,
    ) -> Result<Reader> {
        let (stream, read) = (Arc::new(stream), read.clone());
        let theirs = stream.clone();
        let body = move || {
            settle_down(cpu);
            let mut bytes = vec![0; READ_BYTES];
            // It ends with the connection, whichever end closes it.
            while let Ok(n @ 1..) = (&*theirs).read(&mut bytes) {
                read.fetch_add(n as u64, Ordering::Release);
            }
        };
        let thread = hosts.east.spawn(&format!("east-{number}"), body)?;
        Ok(Reader { stream, thread: Some(thread) })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest time that a socket of the traffic waits for its peer; a longer wait means that the
/// path is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// A socket that listens at `address`, and whose connections have buffers of so many bytes. To be
/// called in the host's namespace.
pub(super) fn listen(address: Ipv4Addr, buffer_bytes: usize) -> io::Result<TcpListener> {
    let socket = socket(buffer_bytes)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(address, 0))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// A connection to a socket that listens. To be called in the host's namespace.
///
/// The buffers are set before: the window that is offered is settled by the first packets.
pub(super) fn connect(to: SocketAddrV4, buffer_bytes: usize) -> io::Result<TcpStream> {
    let socket = socket(buffer_bytes)?;
    // connect(2) waits no longer than a send would.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

fn socket(buffer_bytes: usize) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_send_buffer_size(&socket, buffer_bytes)?;
    sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes)?;
    Ok(socket)
}

/// The segments that hosts have sent again.
#[derive(Debug)]
pub(super) struct Retransmits(Vec<File>);

impl Retransmits {
    /// Opens the counters of these hosts.
    pub fn of(hosts: &[&Netns]) -> Result<Retransmits> {
        let path = "/proc/thread-self/net/snmp";
        let open = |host: &&Netns| {
            // What it tells is of the namespace of the thread that opens it.
            host.run(|| File::open(path))?.map_err(|e| unreadable(&e))
        };
        hosts.iter().map(open).collect::<Result<_>>().map(Retransmits)
    }

    /// Returns the number of retransmissions so far.
    pub fn count(&mut self) -> Result<u64> {
        let mut sum = 0;
        for file in &mut self.0 {
            let mut text = String::new();
            file.rewind().map_err(|e| unreadable(&e))?;
            file.read_to_string(&mut text).map_err(|e| unreadable(&e))?;
            let found = field(&text, "Tcp:", "RetransSegs");
            sum += found.ok_or_else(|| unreadable(&io::Error::other("no RetransSegs in it")))?;
        }
        Ok(sum)
    }
}

/// A number of /proc/net/snmp, whose lines come in pairs: names, then values.
fn field(snmp: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|known| known == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

fn unreadable(e: &io::Error) -> Error {
    Error::new(Code::File, "cannot read what TCP sent again", format!("net/snmp: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let text = "Ip: Forwarding X\nIp: 1 2\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 17 0\n";
        assert_eq!(field(text, "Tcp:", "RetransSegs"), Some(17));
        assert_eq!(field(text, "Tcp:", "OutRsts"), None);
        assert_eq!(field("Tcp: RetransSegs\n", "Tcp:", "RetransSegs"), None);
        assert_eq!(field("Tcp: RetransSegs\nTcp: x\n", "Tcp:", "RetransSegs"), None);
    }
}
