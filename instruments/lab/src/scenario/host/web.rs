//! Short requests from the western host, responses of mixed sizes from the eastern: a client for
//! each connection, and as many servers. The server closes a connection after the request that asks
//! for it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_port::Queue;

use super::config::Config;
use super::crew::{Counts, Load};
use super::crew::{Crew, Player, Round, Told};
use super::hosts::{self, Hosts};
use super::server::{self, Ask, Mix, Servers};
use super::stack::{FIRST_PORT, Stack};
use super::tcp::{connect, listen};
use crate::random::Random;
use crate::scenario::pause::{look_until, pause, wait_until};
use crate::{Code, Error, Result};

/// Bytes of a client's read.
const READ_BYTES: usize = 64 << 10;
/// The wait of a client after a failed connection, before its next attempt.
const RETRY: Duration = Duration::from_millis(1);

/// The clients and servers of the workload.
#[derive(Debug)]
pub(super) struct Web {
    crew: Crew,
    tally: Arc<Tally>,
    servers: Vec<Servers>,
    /// The servers in user space, if there are any: one for each adapter.
    stacks: Vec<Stack>,
}

#[derive(Debug, Default)]
struct Tally {
    bytes: AtomicU64,
    requests: AtomicU64,
    responses: AtomicU64,
}

impl Web {
    /// Starts servers and clients. No connection is opened yet. With `queues`, one for each
    /// adapter, the servers are in user space, on these.
    pub fn open(config: &Config, hosts: &Hosts, queues: Vec<Queue>) -> Result<Web> {
        let responses = Arc::new(server::responses());
        let stack = |of| Stack::answer(config, hosts, of, &responses);
        let mut web = Web {
            crew: Crew::new(),
            tally: Arc::default(),
            servers: Vec::new(),
            stacks: queues.into_iter().enumerate().map(stack).collect::<Result<_>>()?,
        };
        let all = config.adapters * config.connections;
        let mut seeds = Random::new(config.seed);
        for adapter in 0..config.adapters {
            let address = if web.stacks.is_empty() {
                web.serve(config, hosts, adapter)?
            } else {
                SocketAddrV4::new(hosts::east(adapter), FIRST_PORT)
            };
            for connection in 0..config.connections {
                let client = Client {
                    to: address,
                    buffer_bytes: config.sockbuf,
                    mix: Mix::new(seeds.next()),
                    per_second: config.rate.map(|rate| rate / all as f64),
                    tally: web.tally.clone(),
                    open: None,
                    bytes: vec![0; READ_BYTES],
                };
                let name = format!("client-{adapter}-{connection}");
                web.crew.hire(&hosts.west, &name, config.traffic, || Ok(Box::new(client)))?;
            }
        }
        Ok(web)
    }

    /// Starts the servers of an adapter above the kernel's TCP; returns their address.
    fn serve(&mut self, config: &Config, hosts: &Hosts, adapter: usize) -> Result<SocketAddrV4> {
        let failed = |e: io::Error| Error::new(Code::System, "cannot serve", e.to_string());
        let address = hosts::east(adapter);
        let listener = hosts.east.run(|| listen(address, config.sockbuf))?.map_err(failed)?;
        let SocketAddr::V4(address) = listener.local_addr().map_err(failed)? else {
            return Err(failed(io::Error::other("not an IPv4 socket")));
        };
        self.servers.push(Servers::start(hosts, listener, config.connections, config.traffic)?);
        Ok(address)
    }
}

impl Load for Web {
    fn go(&mut self, round: Round) {
        self.crew.go(round);
    }

    fn counts(&self) -> Counts {
        Counts {
            goodput_bytes: self.tally.bytes.load(Ordering::Relaxed),
            requests: self.tally.requests.load(Ordering::Relaxed),
            responses: self.tally.responses.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }

    fn settle(&mut self, round: Round) -> Result<Told> {
        let told = self.crew.gather(round)?;
        if self.stacks.iter().any(Stack::is_spoiled) {
            let why = "the device of TCP in user space failed";
            return Err(Error::new(Code::System, "cannot continue to serve", why));
        }
        Ok(told)
    }

    fn end(&mut self) {
        self.crew.end();
        self.servers.iter_mut().for_each(Servers::end);
        // The clients' ends are closed; wait until the stacks receive that, which needs a path that
        // carries packets.
        look_until(Duration::from_secs(1), || self.stacks.iter().all(Stack::is_closed));
        self.stacks.clear();
    }

    fn readers(&self) -> Vec<i32> {
        self.stacks.iter().map(|stack| stack.id).collect()
    }
}

/// A client that requests files, one after the other.
struct Client {
    to: SocketAddrV4,
    buffer_bytes: usize,
    mix: Mix,
    /// Requests a second; `None` means the next request follows immediately after a response.
    per_second: Option<f64>,
    tally: Arc<Tally>,
    open: Option<TcpStream>,
    bytes: Vec<u8>,
}

impl Player for Client {
    fn play(&mut self, round: Round) -> Told {
        let mut told = Told::default();
        let mut due = round.from;
        loop {
            let now = Instant::now();
            match self.per_second {
                Some(per_second) => {
                    due += Duration::from_nanos(self.mix.gap_ns(per_second));
                    if due >= round.until {
                        return told;
                    }
                    wait_until(due);
                }
                None if now >= round.until => {
                    told.due = told.sent;
                    return told;
                }
                None => due = now,
            }
            told.due += 1;
            if Instant::now() >= round.until {
                // After the round's end, a request that was due is counted as due and not sent.
                told.latencies.note(round, due, None);
                continue;
            }
            let ask = self.mix.next();
            told.sent += 1;
            self.tally.requests.fetch_add(1, Ordering::Relaxed);
            match self.exchange(ask) {
                Ok(()) => {
                    self.tally.responses.fetch_add(1, Ordering::Relaxed);
                    let now = Instant::now();
                    told.answered += u64::from(now <= round.until);
                    told.latencies.note(round, due, Some(now));
                }
                Err(e) => {
                    told.latencies.note(round, due, None);
                    told.failed += 1;
                    told.failure.get_or_insert_with(|| e.to_string());
                    self.open = None;
                    self.mix.reconnect();
                    pause(RETRY);
                }
            }
        }
    }
}

impl Client {
    /// Sends a request and reads its whole response.
    fn exchange(&mut self, ask: Ask) -> io::Result<()> {
        let mut stream = match self.open.take() {
            Some(stream) => stream,
            None => {
                let stream = connect(self.to, self.buffer_bytes)?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        stream.write_all(&request(ask))?;
        let mut head = Vec::new();
        let mut left = loop {
            let n = self.read(&mut stream)?;
            head.extend_from_slice(&self.bytes[..n]);
            if let Some((length, body)) = response(&head)? {
                break length.checked_sub(body).ok_or_else(|| wrong("more than it said"))?;
            }
        };
        while left > 0 {
            let n = self.read(&mut stream)?;
            left = left.checked_sub(n).ok_or_else(|| wrong("more than it said"))?;
        }
        if ask.last {
            // Wait until the server closes the connection, so that its end is the one that stays in
            // TIME_WAIT.
            return match stream.read(&mut self.bytes)? {
                0 => Ok(()),
                _ => Err(wrong("more than it said")),
            };
        }
        self.open = Some(stream);
        Ok(())
    }

    fn read(&mut self, stream: &mut TcpStream) -> io::Result<usize> {
        let n = stream.read(&mut self.bytes)?;
        self.tally.bytes.fetch_add(n as u64, Ordering::Relaxed);
        if n == 0 { Err(wrong("less than it said")) } else { Ok(n) }
    }
}

/// Returns a request, padded to the length that was drawn for it.
fn request(ask: Ask) -> Vec<u8> {
    let (class, step) = (ask.file.class, ask.file.step);
    let connection = if ask.last { "close" } else { "keep-alive" };
    let mut text = format!(
        "GET /class{class}_{step} HTTP/1.0\r\nHost: east\r\nConnection: {connection}\r\nX: "
    );
    let pad = ask.bytes.saturating_sub(text.len() + 4);
    text.extend(std::iter::repeat_n('x', pad));
    text += "\r\n\r\n";
    text.into_bytes()
}

/// Returns the length of a response's body, and how much of it is in `bytes`; `None` before the
/// head is complete.
fn response(bytes: &[u8]) -> io::Result<Option<(usize, usize)>> {
    const HEAD_BYTES_MAX: usize = 1024;
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > HEAD_BYTES_MAX { Err(wrong("no head")) } else { Ok(None) };
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong("no text"))?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length = length.and_then(|length| length.parse().ok());
    let length = length.ok_or_else(|| wrong("no length"))?;
    Ok(Some((length, bytes.len() - end - 4)))
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a response with {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::host::server::File;

    #[test]
    fn a_request_has_the_bytes_that_were_drawn() {
        for bytes in [100, 299] {
            let ask = Ask { file: File { class: 3, step: 8 }, bytes, last: true };
            let request = request(ask);
            assert_eq!(request.len(), bytes);
            assert!(request.starts_with(b"GET /class3_8 HTTP/1.0\r\n"));
            assert!(request.ends_with(b"\r\n\r\n"));
        }
    }

    #[test]
    fn a_response_that_makes_no_sense_is_refused() {
        assert_eq!(response(b"HTTP/1.0 200 OK\r\nContent-Le").unwrap(), None);
        let whole = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabc";
        assert_eq!(response(whole).unwrap(), Some((5, 3)));
        assert!(response(b"HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n").is_err());
        assert!(response(&[b'x'; 2000]).is_err());
    }
}
