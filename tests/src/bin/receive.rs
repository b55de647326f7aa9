//! Measures the cost of receiving datagrams, with each moderation and with a loop of recvmmsg(2), and of forwarding:
//! `receive [SECONDS [ROUNDS]]`, as root; `receive cpu [SECONDS]` prints CPU time at rest and at small rates, of
//! `xdp`, `packet` and a kernel socket.
//!
//! One process sends at a steady rate on the last CPU, another receives on the first; between them is a veth
//! pair. Each datagram carries the time at which it left. A row: datagrams, losses, CPU time of the receiver,
//! irqs, p50 and p99 from send to the receiving program. On a machine that others use, run it by `chrt -f 5`.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use linerate::prelude::*;
use linerate_sys::clock::{cpu_time, monotonic_ns};
use linerate_sys::thread::{allowed_cpus, pin_to_cpu};
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::{EAST, Hosts};
use linerate_tests::wait::{SOON, until_true};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RATES: [u64; 3] = [10_000, 50_000, 200_000];
/// Packets a second, beginning with none.
const SMALL_RATES: [u64; 4] = [0, 1_000, 10_000, 50_000];
const FORWARD_RATES: [u64; 3] = [9_500, 50_000, 150_000];
const MODES: [&str; 5] = ["adaptive", "fixed", "dim", "napi", "interrupt"];
const MIDDLE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 3);
const PORT: u16 = 7777;
/// The number in the datagrams that end a run.
const LAST: u64 = u64::MAX;
/// Length of a datagram: its number, and the time at which it was sent.
const BYTES: usize = 16;
/// Time before a deadline at which the sender's sleep ends; the sender spins until the deadline.
const WAKE: Duration = Duration::from_micros(10);
const QUIET: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["send", to, rate, seconds] => send(to.parse()?, rate.parse()?, seconds.parse()?),
        ["recvmmsg"] => by_socket(),
        ["forward", mode] => forward(mode),
        ["packet"] => by_port(&format!("packet:w0,udp={PORT}")),
        ["cpu"] => beside(5),
        ["cpu", seconds] => beside(seconds.parse()?),
        ["xdp", mode] => by_port(&format!("xdp:w0,udp={PORT},moderation={mode}")),
        [] => measure(3, 2),
        [seconds] => measure(seconds.parse()?, 2),
        [seconds, rounds] => measure(seconds.parse()?, rounds.parse()?),
        _ => Err("usage: receive [SECONDS [ROUNDS]], or receive cpu [SECONDS]".into()),
    }
}

/// Runs every case, and alternates the modes, so that a busy machine affects all of them equally.
fn measure(seconds: u64, rounds: usize) -> Result<()> {
    let hosts = Hosts::new()?;
    hosts.middle.ip(&format!("addr add {MIDDLE}/24 dev w0"));
    let (_open, mut run) = (hosts.east.run(|| UdpSocket::bind((EAST, PORT)))?, 0);
    println!("what rate/s: datagrams lost, CPU %, irqs/s, p50 us, p99 us; sender's CPU %");
    while run < rounds {
        run += 1;
        for rate in RATES {
            let mut kernel = None;
            let receivers = [vec!["recvmmsg"]].into_iter();
            for role in receivers.chain(MODES.map(|mode| vec!["xdp", mode])) {
                let cpu = case(&hosts, &role, MIDDLE, rate, seconds)?.cpu;
                let of = *kernel.get_or_insert(cpu);
                println!("    CPU {:.2} x recvmmsg's", cpu / of);
            }
        }
        for rate in FORWARD_RATES {
            for mode in MODES {
                case(&hosts, &["forward", mode], EAST, rate, seconds)?;
            }
        }
    }
    Ok(())
}

/// Prints the CPU time of a receiver at rest and at small rates, next to that of a kernel socket.
fn beside(seconds: u64) -> Result<()> {
    let hosts = Hosts::new()?;
    hosts.middle.ip(&format!("addr add {MIDDLE}/24 dev w0"));
    let mut rows = Vec::new();
    for rate in SMALL_RATES {
        let [socket, xdp, packet] = [&["recvmmsg"][..], &["xdp", MODES[0]], &["packet"]]
            .map(|role| case(&hosts, role, MIDDLE, rate, seconds));
        rows.push((rate, [socket?, xdp?, packet?]));
    }
    println!(
        "\n% of a CPU, of the receiving process, over {seconds} s or more; us of it a datagram"
    );
    println!("{:>9}  {:>18}  {:>18}  {:>18}", "packets/s", "recvmmsg", "xdp", "packet");
    for (rate, seen) in rows {
        let [socket, xdp, packet] = seen.map(|seen| {
            let flaw = if seen.lost > 0 || seen.per_s < 0.95 * rate as f64 { "*" } else { " " };
            let us = 1e4 * seen.cpu / seen.per_s;
            match rate {
                0 => format!("{:.2} %", seen.cpu),
                _ => format!("{:.2} % {us:6.2} us{flaw}", seen.cpu),
            }
        });
        println!("{rate:>9}  {socket:>18}  {xdp:>18}  {packet:>18}");
    }
    println!(
        "* some were lost, or the sender did not keep the rate: us a datagram can be compared, % cannot"
    );
    Ok(())
}

/// Observations of one case.
struct Case {
    /// CPU time of the receiver, in per cent.
    cpu: f64,
    lost: u64,
    /// Datagrams received a second.
    per_s: f64,
}

/// Runs one case, and returns its observations.
fn case(hosts: &Hosts, role: &[&str], to: Ipv4Addr, rate: u64, seconds: u64) -> Result<Case> {
    let receiver = child(&hosts.middle, role)?;
    until_true("a receiver", SOON, || {
        receiver.stdout().contains("ready") || !receiver.stderr().is_empty()
    });
    if !receiver.stderr().is_empty() {
        return Err(format!("{role:?}: {}", receiver.stderr()).into());
    }
    let [to, per_s, time] = [to.to_string(), rate.to_string(), seconds.to_string()];
    let sender = child(&hosts.west, &["send", &to, &per_s, &time])?.finish(4 * SOON);
    let done = receiver.finish(SOON);
    let Some(line) = done.stdout.lines().find(|line| line.starts_with("got")) else {
        return Err(format!("{role:?}: {}{}", done.stdout, done.stderr).into());
    };
    println!("{:20} {rate:7}: {}; {}", role.join(" "), &line[4..], sender.stdout.trim());
    for line in done.stdout.lines().filter(|line| line.starts_with("  ")) {
        println!("  {line}");
    }
    let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
    let sent = sender.stdout.trim().rsplit(' ').next().and_then(|kept| kept.strip_suffix("/s"));
    let ["got", got, "lost", lost, cpu, "%", ..] = words[..] else {
        return Err(format!("no CPU time in {line}").into());
    };
    let (got, lost, kept): (f64, u64, f64) =
        (got.parse()?, lost.parse()?, sent.unwrap_or("0").parse()?);
    Ok(Case { cpu: cpu.parse()?, lost, per_s: kept * got / (got + lost as f64) })
}

fn child(netns: &Netns, role: &[&str]) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(role);
    Ok(netns.start(command))
}

/// Sends at a steady rate, then sends the last datagram a few times.
fn send(to: Ipv4Addr, rate: u64, seconds: u64) -> Result<()> {
    pin_to_cpu(*allowed_cpus()?.last().ok_or("no CPU")?)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((to, PORT))?;
    // At rest there is one datagram at the start and one at the end.
    let (count, gap) = match rate {
        0 => (2, Duration::from_secs(seconds)),
        rate => (rate * seconds, Duration::from_nanos(1_000_000_000 / rate)),
    };
    let (start, cpu) = (Instant::now(), cpu_time());
    for number in 0..count {
        while let left = (gap * number as u32).saturating_sub(start.elapsed())
            && !left.is_zero()
        {
            // Sleep: without it, the sender would keep the CPU at a real-time priority, which a busy machine needs.
            std::thread::sleep(left.saturating_sub(WAKE));
        }
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        bytes[8..].copy_from_slice(&monotonic_ns().to_be_bytes());
        socket.send(&bytes)?;
    }
    let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(20));
        // An error is ignored: the socket is refused once the receiver has ended.
        let _ = socket.send(&[LAST.to_be_bytes(), [0; 8]].concat());
    }
    let kept = count as f64 / wall.as_secs_f64();
    println!("{:.0} at {kept:.0}/s", 100.0 * cpu.as_secs_f64() / wall.as_secs_f64());
    Ok(())
}

/// Observations of a receiver.
struct Seen {
    packets: u64,
    highest: u64,
    delays: Vec<u64>,
    start: Option<(Instant, Duration)>,
    over: bool,
}

impl Seen {
    fn new() -> Result<Seen> {
        pin_to_cpu(*allowed_cpus()?.first().ok_or("no CPU")?)?;
        let delays = Vec::with_capacity(4_000_000);
        Ok(Seen { packets: 0, highest: 0, delays, start: None, over: false })
    }

    fn add(&mut self, now_ns: u64, bytes: &[u8]) {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
        let (Some(number), Some(sent)) = (word(0), word(8)) else { return };
        let (number, sent_ns) = (u64::from_be_bytes(number), u64::from_be_bytes(sent));
        if number == LAST {
            self.over = true;
            return;
        }
        self.start.get_or_insert_with(|| (Instant::now(), cpu_time()));
        self.packets += 1;
        self.highest = self.highest.max(number);
        self.delays.push(now_ns.saturating_sub(sent_ns));
    }

    /// Prints the row; its time does not include the quiet time at the end.
    fn print(mut self, seconds: f64, irqs: u64) -> Result<()> {
        let (_, cpu) = self.start.ok_or("nothing came")?;
        let cpu = 100.0 * (cpu_time() - cpu).as_secs_f64() / seconds;
        self.delays.sort_unstable();
        let at = |percent: usize| self.delays[(self.delays.len() - 1) * percent / 100] / 1000;
        let (lost, irqs) = (self.highest + 1 - self.packets, irqs as f64 / seconds);
        println!(
            "got {} lost {lost}, {cpu:.2} %, {irqs:.0} irqs/s, {}, {} us",
            self.packets,
            at(50),
            at(99)
        );
        Ok(())
    }
}

/// Returns the seconds since the first datagram.
fn since(seen: &Seen) -> f64 {
    seen.start.map_or(0.0, |(start, _)| start.elapsed().as_secs_f64())
}

/// Receives by a socket: at most 64 datagrams a call, blocked until there is one.
fn by_socket() -> Result<()> {
    let (mut seen, socket) = (Seen::new()?, UdpSocket::bind((MIDDLE, PORT))?);
    socket.set_read_timeout(Some(QUIET))?;
    let mut buffers = [[0_u8; 64]; 64];
    let mut vectors = buffers
        .each_mut()
        .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
    let mut headers = vectors.each_mut().map(|vector| {
        // SAFETY: all zeroes is a valid mmsghdr: no name, no control data and no buffers.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (vector, 1);
        header
    });
    println!("ready");
    let (mut calls, mut seconds) = (0, 0.0);
    while !seen.over {
        let (fd, flags) = (socket.as_raw_fd(), libc::MSG_WAITFORONE);
        let (at, none) = (headers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the headers point to vectors and buffers that outlive this loop, with each
        // buffer's true length.
        let n = unsafe { libc::recvmmsg(fd, at, 64, flags, none) };
        let n = usize::try_from(n).map_err(|_| std::io::Error::last_os_error())?;
        let now_ns = monotonic_ns();
        calls += 1;
        for (header, vector) in headers[..n].iter().zip(&vectors) {
            // SAFETY: the kernel wrote `msg_len` bytes there, at most the 64 bytes of the buffer.
            let bytes = unsafe {
                std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), header.msg_len as usize)
            };
            seen.add(now_ns, bytes);
        }
        if !seen.over {
            seconds = since(&seen);
        }
    }
    seen.print(seconds, calls)
}

/// Receives by a port, in the loop of the README.
fn by_port(text: &str) -> Result<()> {
    let (mut seen, mut port) = (Seen::new()?, Port::open(text)?);
    let mut batch = Batch::with_capacity(64);
    println!("ready");
    let mut seconds = 0.0;
    while !seen.over && port.wait(Some(QUIET))? {
        port.rx(&mut batch);
        let now_ns = monotonic_ns();
        for skb in batch.iter() {
            if let Ok(udp) = skb.udp() {
                seen.add(now_ns, udp.payload());
            }
        }
        batch.clear();
        if !seen.over {
            seconds = since(&seen);
        }
    }
    let (counts, mut queues) = (port.counts(), port.into_queues());
    let irqs = counts.irqs();
    println!("  {}", queues[0].moderated().over(counts.rx_packets, irqs));
    seen.print(seconds, irqs)
}

/// Forwards between two interfaces and measures this process alone: no program reads the datagrams.
fn forward(mode: &str) -> Result<()> {
    let engine = Engine::builder().moderation(mode.parse()?);
    let engine = engine.port("w", "xdp:w0,all").port("e", "xdp:e0,all").wire("w", "e");
    let running = engine.cpus(&allowed_cpus()?[..1]).build()?.start()?;
    println!("ready");
    let received = || running.stats().ports()[0].counts.rx_packets;
    while received() < 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (start, cpu, before) = (Instant::now(), cpu_time(), received());
    let mut last = (start, cpu, before);
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let now = (Instant::now(), cpu_time(), received());
        // Leave out the last fifth of a second, which is incomplete.
        if now.2 < last.2 + 100 {
            break;
        }
        last = now;
    }
    let (seconds, cpu) = ((last.0 - start).as_secs_f64(), (last.1 - cpu).as_secs_f64());
    let (stats, port) = (running.stats().workers(), &running.stats().ports()[0]);
    let queue = &port.queues[0];
    println!("  {}", queue.moderation.over(queue.counts.rx_packets, queue.counts.irqs()));
    println!(
        "got {} lost {}, {:.1} %, {:.0} irqs/s, -, - us",
        last.2 - before,
        port.counts.rx_missed,
        100.0 * cpu / seconds,
        stats[0].sleeps as f64 / seconds
    );
    Ok(())
}
