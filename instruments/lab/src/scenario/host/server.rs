//! The files of the short responses with their request frequencies, and their server: as many
//! threads as connections, all on one socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::crew::settle_down;
use super::hosts::Hosts;
use crate::Result;
use crate::random::Random;

/// Longest request that is accepted, in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 1024;

/// The server's threads.
#[derive(Debug)]
pub(super) struct Servers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Option<()>>>,
}

#[derive(Debug)]
struct Shared {
    listener: TcpListener,
    /// The responses as sent, by the file's number.
    responses: Vec<Vec<u8>>,
    ended: AtomicBool,
    /// The connection that each thread serves.
    open: Vec<Mutex<Option<Arc<TcpStream>>>>,
}

impl Servers {
    /// Starts `threads` servers on the eastern host, on `cpu`.
    pub fn start(
        hosts: &Hosts,
        listener: TcpListener,
        threads: usize,
        cpu: usize,
    ) -> Result<Servers> {
        let open = (0..threads).map(|_| Mutex::new(None)).collect();
        let (responses, ended) = (responses(), AtomicBool::new(false));
        let shared = Arc::new(Shared { listener, responses, ended, open });
        let mut servers = Servers { shared, threads: Vec::new() };
        for number in 0..threads {
            let shared = servers.shared.clone();
            let body = move || {
                settle_down(&[cpu]);
                shared.serve(number);
            };
            servers.threads.push(hosts.east.spawn(&format!("server-{number}"), body)?);
        }
        Ok(servers)
    }

    /// Ends the servers, even while they wait.
    pub fn end(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // The shutdown wakes threads that wait for a connection: their accept(2) fails.
        let _ = rustix::net::shutdown(&self.shared.listener, rustix::net::Shutdown::Both);
        for open in &self.shared.open {
            let open = open.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = open.as_ref().map(|stream| stream.shutdown(Shutdown::Both));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn serve(&self, number: usize) {
        let Some(place) = self.open.get(number) else { return };
        let keep = |stream| *place.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        while let Ok((stream, _)) = self.listener.accept() {
            let stream = Arc::new(stream);
            keep(Some(stream.clone()));
            // Check after `keep`: either this thread sees `ended`, or `end` sees the connection and
            // shuts it down.
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            // Ignore the error if a client closes the connection or sends no valid request: the
            // client reports its own failure.
            let _ = self.answer(&stream);
            keep(None);
        }
    }

    /// Answers every request of a connection.
    fn answer(&self, mut stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut bytes = [0; REQUEST_BYTES_MAX];
        let mut n = 0;
        loop {
            let read = stream.read(&mut bytes[n..])?;
            n += read;
            if read == 0 {
                return Ok(());
            }
            if !bytes[..n].ends_with(b"\r\n\r\n") {
                continue;
            }
            let Some((file, last)) = parse(&bytes[..n]) else { return Ok(()) };
            let Some(response) = self.responses.get(file.number()) else { return Ok(()) };
            stream.write_all(response)?;
            if last {
                return Ok(());
            }
            n = 0;
        }
    }
}

/// Returns the responses as sent, by the file's number.
pub(super) fn responses() -> Vec<Vec<u8>> {
    File::all().map(response).collect()
}

fn response(file: File) -> Vec<u8> {
    let bytes = file.bytes();
    let head = format!(
        "HTTP/1.0 200 OK\r\nServer: linerate-lab\r\nContent-Type: text/html\r\n\
         Content-Length: {bytes}\r\n\r\n"
    );
    let mut response = head.into_bytes();
    response.resize(response.len() + bytes, b'x');
    response
}

/// Returns the requested file, and true if the request is its connection's last.
pub(super) fn parse(request: &[u8]) -> Option<(File, bool)> {
    let text = std::str::from_utf8(request).ok()?;
    let path = text.strip_prefix("GET /class")?.split(' ').next()?;
    let (class, step) = path.split_once('_')?;
    let file = File { class: class.parse().ok()?, step: step.parse().ok()? };
    let exists = file.class < CLASS_PCT.len() && file.step < STEPS;
    exists.then(|| (file, text.contains("\r\nConnection: close\r\n")))
}

// Files, classes and their shares are those of SPECweb99 as published, but this load is not that
// benchmark: it has no dynamic requests, no load of 400 kbit/s for each connection, and no score.
//
// The lifetime of a connection is drawn as follows, which is not claimed to be the benchmark's
// rule: with 30 % it has one request; with 70 % it has a geometric number of requests, of mean 10,
// at least 1 and at most 1000. The mean over all is 7.3. The length of a request is uniform, 100 to
// 299 bytes.
//
// Source: SPEC, "SPECweb99 Benchmark" (white paper and run rules); Nahum, "Deconstructing
// SPECweb99", 2002.

/// Share of requests for each class of files, in per cent: up to 1 KB, 10 KB, 100 KB, 1 MB.
pub(super) const CLASS_PCT: [usize; 4] = [35, 50, 14, 1];
/// Number of files in a class; their sizes are one tenth to nine tenths of the class's limit.
pub(super) const STEPS: usize = 9;
/// Rank of each file of a class by popularity, which falls as 1/rank (Zipf): the middle file is the
/// most popular.
const RANKS: [f64; STEPS] = [9.0, 6.0, 4.0, 2.0, 1.0, 3.0, 5.0, 7.0, 8.0];
/// Share of connections, in per cent, that stay open for more than one request.
const KEPT_PCT: usize = 70;
/// Mean number of requests over a connection that stays open.
const KEPT_REQUESTS: usize = 10;
/// Bytes of a request.
const REQUEST_BYTES: std::ops::Range<usize> = 100..300;

/// A file that can be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File {
    /// The class of its size, below 4.
    pub class: usize,
    /// The step within its class, below [`STEPS`].
    pub step: usize,
}

/// A request to be sent next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub file: File,
    /// Bytes that the request has.
    pub bytes: usize,
    /// True if the server is to close the connection after the response.
    pub last: bool,
}

/// A stream of requests, repeated from its seed.
#[derive(Debug)]
pub(super) struct Mix {
    random: Random,
    /// Requests left on the open connection.
    left: usize,
}

impl File {
    /// Returns the file's size: tenths of a kilobyte in the first class, ten times as much in the
    /// next.
    pub fn bytes(self) -> usize {
        // The smallest file has 0.1 KB, which is 102.4 bytes, so multiply before dividing by 10.
        (self.step + 1) * 1024 * 10usize.pow(self.class as u32) / 10
    }

    /// Returns all files.
    pub fn all() -> impl Iterator<Item = File> {
        (0..CLASS_PCT.len()).flat_map(|class| (0..STEPS).map(move |step| File { class, step }))
    }

    /// Returns the file's number in [`File::all`].
    pub fn number(self) -> usize {
        self.class * STEPS + self.step
    }
}

impl Mix {
    pub fn new(seed: u64) -> Mix {
        Mix { random: Random::new(seed), left: 0 }
    }

    /// Returns the next request; after one marked as the last, a new connection is needed.
    pub fn next(&mut self) -> Ask {
        if self.left == 0 {
            self.left = self.requests();
        }
        self.left -= 1;
        let bytes = REQUEST_BYTES.start + self.random.below(REQUEST_BYTES.len());
        Ask { file: self.file(), bytes, last: self.left == 0 }
    }

    /// Forgets a lost connection: its remaining requests are not sent.
    pub fn reconnect(&mut self) {
        self.left = 0;
    }

    /// Draws the time between two random arrivals, in nanoseconds, for a rate of `per_second`.
    pub fn gap_ns(&mut self, per_second: f64) -> u64 {
        // The share is above 0 and at most 1, so that its logarithm is finite.
        let share = ((self.random.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-share.ln() / per_second * 1e9) as u64
    }

    /// Draws the number of requests over a new connection: one, or a geometric number.
    fn requests(&mut self) -> usize {
        let mut n = 1;
        if self.random.below(100) < KEPT_PCT {
            while n < 1000 && self.random.below(KEPT_REQUESTS) != 0 {
                n += 1;
            }
        }
        n
    }

    fn file(&mut self) -> File {
        let mut pct = self.random.below(100);
        let mut class = 0;
        while class + 1 < CLASS_PCT.len() && pct >= CLASS_PCT[class] {
            pct -= CLASS_PCT[class];
            class += 1;
        }
        let all: f64 = RANKS.iter().map(|rank| 1.0 / rank).sum();
        let mut at = (self.random.next() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let mut step = 0;
        while step + 1 < STEPS && at >= 1.0 / RANKS[step] {
            at -= 1.0 / RANKS[step];
            step += 1;
        }
        File { class, step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_no_file_is_no_request() {
        let last = b"GET /class2_8 HTTP/1.0\r\nConnection: close\r\n\r\n";
        assert_eq!(parse(last), Some((File { class: 2, step: 8 }, true)));
        assert_eq!(parse(b"GET /class0_0 HTTP/1.0\r\n\r\n").map(|(_, last)| last), Some(false));
        for bad in ["GET /class4_0 ", "GET /class0_9 ", "GET /class-1_0 ", "PUT /class0_0 ", ""] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse(&[0xff; 9]), None);
    }

    #[test]
    fn the_files_are_those_that_were_published() {
        let sizes: Vec<usize> = File::all().map(File::bytes).collect();
        assert_eq!(sizes.len(), 36);
        assert_eq!(&sizes[..3], [102, 204, 307]);
        assert_eq!((sizes[8], sizes[9], sizes[17]), (921, 1024, 9216));
        assert_eq!((sizes[18], sizes[27], sizes[35]), (10_240, 102_400, 921_600));
        assert!(File::all().enumerate().all(|(n, file)| file.number() == n));
    }

    #[test]
    fn classes_and_steps_are_as_frequent_as_published() {
        let (mut mix, n) = (Mix::new(5), 100_000);
        let (mut classes, mut steps) = ([0; 4], [0; STEPS]);
        for _ in 0..n {
            let ask = mix.next();
            classes[ask.file.class] += 1;
            steps[ask.file.step] += 1;
            assert!((100..300).contains(&ask.bytes));
        }
        let near =
            |count: i32, pct: f64| (f64::from(count) * 100.0 / f64::from(n) - pct).abs() < 0.6;
        assert!(classes.iter().zip([35.0, 50.0, 14.0, 1.0]).all(|(n, pct)| near(*n, pct)));
        let published = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
        assert!(steps.iter().zip(published).all(|(n, pct)| near(*n, pct)), "{steps:?}");
    }

    #[test]
    fn a_connection_carries_as_many_requests_as_said() {
        let mut mix = Mix::new(9);
        let (mut single, mut requests, connections) = (0, 0, 20_000);
        for _ in 0..connections {
            let mut n = 1;
            while !mix.next().last {
                n += 1;
            }
            single += usize::from(n == 1);
            requests += n;
        }
        // 30 % of the connections have one request, and a tenth of the others by chance: 0.3 + 0.7
        // × 0.1.
        assert!((7_100..7_700).contains(&single), "{single}");
        let mean = f64::from(requests) / f64::from(connections);
        assert!((7.1..7.5).contains(&mean), "0.3 × 1 + 0.7 × 10 = 7.3, not {mean}");
    }

    #[test]
    fn requests_arrive_as_often_as_asked_and_are_repeated_from_the_seed() {
        let (mut one, mut same) = (Mix::new(3), Mix::new(3));
        let mut ns = 0;
        for _ in 0..50_000 {
            let gap = one.gap_ns(1000.0);
            assert_eq!(gap, same.gap_ns(1000.0));
            ns += gap;
        }
        assert!((980_000..1_020_000).contains(&(ns / 50_000)), "{ns}");
    }
}
