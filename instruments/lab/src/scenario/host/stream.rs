//! Bulk TCP from west to east, as netperf's TCP_STREAM: writes of one size, as fast as they are taken
//! or so many a second. The connections stay open over all windows.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::config::Config;
use super::crew::{Crew, Player, Round, Told, settle_down};
use super::hosts::{self, Hosts};
use super::load::{Counts, Load};
use super::pause::{look_until, wait_until};
use super::tcp::{self, PATIENCE};
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
    ///
    /// # Errors
    /// `E-SYSTEM` if a connection cannot be had.
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
    let listener = hosts.east.run(|| tcp::listen(hosts::east(adapter), buffer))??;
    let SocketAddr::V4(address) = listener.local_addr()? else {
        return Err(std::io::Error::other("not an IPv4 socket"));
    };
    let from = hosts.west.run(|| tcp::connect(address, buffer))??;
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
