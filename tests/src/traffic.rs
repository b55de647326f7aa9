//! TCP between namespaces, sent by threads of this process; superframes of UDP; iperf3 and ping,
//! checked by their reports.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use rustix::process::Signal;
use serde_json::Value;

use crate::installed;
use crate::netns::Netns;
use crate::wait::{SOON, until_true};

/// Longest time for a transfer of some seconds on a busy machine.
const TRANSFER: Duration = Duration::from_secs(60);
/// Longest time for a hundred megabytes whose bytes are compared, on a busy machine.
const COMPARED: Duration = Duration::from_secs(180);

/// Returns true if a host at `to` refuses a connection to a port on which no program listens.
#[must_use]
pub fn reaches(from: &Netns, to: Ipv4Addr) -> bool {
    let nobody = SocketAddr::from((to, 9));
    let tried = from.run(|| TcpStream::connect_timeout(&nobody, Duration::from_millis(500)));
    matches!(tried, Err(e) if e.kind() == ErrorKind::ConnectionRefused)
}

/// Sends `len` bytes without a repeating pattern from one namespace to another over TCP, and
/// compares every byte that arrives.
///
/// # Panics
/// If a byte differs, is missing or is too much; if it takes more than three minutes.
pub fn transfer(from: &Netns, to: &Netns, address: impl Into<IpAddr>, len: usize) {
    let address: IpAddr = address.into();
    let listener = to.run(|| TcpListener::bind((address, 0))).expect("a free port");
    let there = listener.local_addr().expect("it is bound");
    let receiver = to.spawn(move || {
        let (stream, _) = listener.accept().expect("a connection");
        receive(stream, len)
    });
    from.run(|| {
        let stream = TcpStream::connect_timeout(&there, SOON).expect("a connection");
        send(stream, len);
    });
    receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// Makes the kernel cut the bytes of a call into datagrams of `len` bytes, as late as it can: in
/// the device.
///
/// # Panics
/// If the kernel has no superframes of UDP.
pub fn send_in_superframes(socket: &UdpSocket, len: usize) {
    let len = libc::c_int::try_from(len).expect("the length of a datagram");
    let (value, size) = (&raw const len, size_of::<libc::c_int>() as u32);
    let (fd, level, name) = (socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT);
    // SAFETY: `value` points to a number that lives in this function, and `size` is its size.
    let done = unsafe { libc::setsockopt(fd, level, name, value.cast(), size) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn send(mut stream: TcpStream, len: usize) {
    stream.set_write_timeout(Some(TRANSFER)).expect("a timeout above zero");
    let (mut source, mut left) = (Source::new(), len);
    let mut bytes = vec![0; 1 << 16];
    while left > 0 {
        let n = left.min(bytes.len());
        source.fill(&mut bytes[..n]);
        stream.write_all(&bytes[..n]).expect("the receiver reads");
        left -= n;
    }
}

fn receive(mut stream: TcpStream, len: usize) {
    stream.set_read_timeout(Some(TRANSFER)).expect("a timeout above zero");
    let (mut source, mut at, start) = (Source::new(), 0, Instant::now());
    let (mut bytes, mut expected) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let room = bytes.len().min(len - at);
        if room == 0 {
            break;
        }
        let n = stream.read(&mut bytes[..room]).expect("the sender sends");
        assert!(n > 0, "the stream ends after {at} of {len} bytes");
        assert!(start.elapsed() < COMPARED, "{at} of {len} bytes in {COMPARED:?}");
        source.fill(&mut expected[..n]);
        if bytes[..n] != expected[..n] {
            let off = bytes.iter().zip(&expected).position(|(got, want)| got != want);
            panic!("byte {} of {len} differs", at + off.unwrap_or(0));
        }
        at += n;
    }
    assert_eq!(stream.read(&mut bytes).expect("the sender closes"), 0, "more than {len} bytes");
}

/// A TCP session of two kernels, such as a user's login: a port of the same interface must not
/// disturb it.
#[derive(Debug)]
pub struct Session {
    ends: [TcpStream; 2],
}

impl Session {
    /// Opens a session from one namespace to `address`, port 22, in another.
    ///
    /// # Panics
    /// If it cannot be opened.
    #[must_use]
    pub fn open(from: &Netns, to: &Netns, address: Ipv4Addr) -> Session {
        let there = SocketAddr::from((address, 22));
        let listener = to.run(|| TcpListener::bind(there)).expect("a free port");
        let client = from.run(|| TcpStream::connect_timeout(&there, SOON)).expect("a connection");
        let (server, _) = listener.accept().expect("a connection");
        for end in [&client, &server] {
            end.set_read_timeout(Some(SOON)).expect("a timeout above zero");
        }
        Session { ends: [client, server] }
    }

    /// Sends a hundred lines to the other end and back.
    ///
    /// # Panics
    /// If a line is lost or changed.
    pub fn chat(&mut self) {
        let [client, server] = &mut self.ends;
        for round in 0..100u8 {
            let (line, mut got) = ([round; 64], [0; 64]);
            client.write_all(&line).expect("the session lives");
            server.read_exact(&mut got).expect("a line");
            server.write_all(&got).expect("the session lives");
            client.read_exact(&mut got).expect("its echo");
            assert_eq!(got, line);
        }
    }
}

/// A generator of bytes by xorshift64, equal in every run.
struct Source {
    word: u64,
    /// Number of bytes of `word` already used.
    used: usize,
}

impl Source {
    fn new() -> Source {
        Source { word: 0x9e37_79b9_7f4a_7c15, used: 8 }
    }

    fn fill(&mut self, to: &mut [u8]) {
        for byte in to {
            if self.used == 8 {
                self.word ^= self.word << 13;
                self.word ^= self.word >> 7;
                self.word ^= self.word << 17;
                self.used = 0;
            }
            *byte = self.word.to_le_bytes()[self.used];
            self.used += 1;
        }
    }
}

/// A server that accepts connections until this value is dropped.
#[derive(Debug)]
#[must_use = "it stops when this value is dropped"]
pub struct HttpServer(TcpListener);

impl Drop for HttpServer {
    fn drop(&mut self) {
        // This also ends an accept(2) that waits on the other descriptor of the socket.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// Serves HTTP requests at `address`, port 80; each answer is a megabyte of one repeated line with
/// the server's name `name` and the client's address.
///
/// # Panics
/// If the port cannot be bound.
pub fn serve_http(netns: &Netns, address: Ipv4Addr, name: &str) -> HttpServer {
    let listener = netns.run(|| TcpListener::bind((address, 80))).expect("a free port");
    let server = HttpServer(listener.try_clone().expect("there is a descriptor left"));
    let name = name.to_owned();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let line = format!("{name} serves {}\n", stream.peer_addr().expect("it is connected"));
            let body = line.repeat(1_000_000 / line.len());
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(body.as_bytes());
        }
    });
    server
}

/// Requests a page from `to` by `curl` with the source address `source`; returns the line that
/// [`serve_http`] repeats.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If the megabyte is incomplete or changed.
pub fn curl(from: &Netns, source: Ipv4Addr, to: Ipv4Addr) -> Result<String, String> {
    installed("curl")?;
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "15", "--noproxy", "*"]);
    curl.args(["--interface", &source.to_string(), &format!("http://{to}/")]);
    let done = from.start(curl).finish(TRANSFER);
    let line = done.stdout.lines().next().unwrap_or_default().to_owned();
    let whole = done.stdout.len() > 999_000 && done.stdout.lines().all(|other| other == line);
    assert!(done.code() == 0 && whole, "curl: {} {} {line}", done.code(), done.stderr);
    Ok(line)
}

/// Pings `to`, `count` times with `size` bytes of payload each, and checks that every answer came.
///
/// ping waits for the last answers no longer than two round trips, which a busy machine can take:
/// it is started up to three times, and only answers missing each time count as lost.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If an answer is missing.
pub fn ping(from: &Netns, to: impl Into<IpAddr>, size: usize, count: usize) -> Result<(), String> {
    installed("ping")?;
    let to = to.into();
    let (size, sent) = (size.to_string(), count.to_string());
    let all = format!("{count} packets transmitted, {count} received, 0% packet loss");
    let mut last = None;
    for _ in 0..3 {
        let mut ping = Command::new("ping");
        ping.args(["-q", "-n", "-i", "0.01", "-W", "5", "-c", &sent, "-s", &size, &to.to_string()]);
        let done = from.start(ping).finish(Duration::from_secs(20));
        if done.code() == 0 && done.stdout.contains(&all) {
            return Ok(());
        }
        last = Some(done);
    }
    panic!("size {size}: {last:?}")
}

/// Runs `iperf3` from `client` to `server`, which listens on `address`; returns the client's
/// report.
///
/// # Errors
/// The reason to skip.
///
/// # Panics
/// If either end fails: iperf3 exits with 0 then, and says so in its report.
pub fn iperf3(
    client: &Netns,
    server: &Netns,
    address: Ipv4Addr,
    args: &[&str],
) -> Result<Value, String> {
    installed("iperf3")?;
    let address = address.to_string();
    let mut listen = Command::new("iperf3");
    listen.args(["--server", "--one-off", "--forceflush", "--bind", &address]);
    let mut listening = server.start(listen);
    until_true("iperf3 to listen", SOON, || {
        assert!(listening.runs(), "iperf3 --server ended: {}", listening.stderr());
        listening.stdout().contains("listening")
    });
    let mut connect = Command::new("iperf3");
    connect.args(["--client", &address, "--json", "--connect-timeout", "5000"]).args(args);
    let done = client.start(connect).finish(TRANSFER);
    listening.signal(Signal::TERM);
    let _ = listening.finish(SOON);
    let report: Value =
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    assert!(report["error"].is_null(), "iperf3 {args:?}: {}", report["error"]);
    assert!(report["end"].is_object(), "iperf3 {args:?} has no end: {report}");
    Ok(report)
}

/// Returns a figure of an iperf3 report, given its path below `end`.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn figure(report: &Value, path: &str) -> f64 {
    let found = report["end"].pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no {path} in {}", report["end"]))
}
