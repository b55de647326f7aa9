//! Receives datagrams for a while in one of several ways, and prints what that cost as a line of
//! JSON: a side of the experiment `receive` (`linerate lab run receive`).
//!
//! ```text
//! receive probe                                                says whether this machine can run it
//! receive window RECEIVER RATE ARRIVALS SECONDS CPU SENDER_CPU
//!
//!   RECEIVER   recvmmsg, forward:MODERATION, or the text of a port on w0, without the filter
//!   ARRIVALS   even: the sender spins until each datagram is due; asleep: it sleeps, and sends what is due then
//! ```
//!
//! One process sends on one CPU, another receives on the other; between them is a veth pair. Each
//! datagram carries the time at which it left. The receiver's costs are those between the first
//! datagram and the last.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use linerate::prelude::*;
use linerate_sys::clock::{cpu_time, monotonic_ns};
use linerate_sys::thread::pin_to_cpu;
use linerate_tests::netns::Netns;
use linerate_tests::process::Process;
use linerate_tests::topology::{EAST, Hosts};
use linerate_tests::wait::{SOON, until_true};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const MIDDLE: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 3);
const PORT: u16 = 7777;
/// The number in the datagrams that end a run.
const LAST: u64 = u64::MAX;
/// Length of a datagram: its number, and the time at which it was sent.
const BYTES: usize = 16;
/// Time before a deadline at which a sender's sleep ends, if it spins until the deadline.
const SPIN: Duration = Duration::from_micros(150);
const QUIET: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["probe"] => {
            Hosts::new()?;
            Ok(())
        }
        ["window", receiver, rate, arrivals, seconds, cpu, sender_cpu] => {
            let to = if receiver.starts_with("forward:") { EAST } else { MIDDLE };
            let sender = ["send", &to.to_string(), rate, arrivals, seconds, sender_cpu];
            window(&["receive", receiver, cpu], &sender)
        }
        ["send", to, rate, arrivals, seconds, cpu] => {
            pin_to_cpu(cpu.parse()?)?;
            send(to.parse()?, rate.parse()?, arrivals == "even", seconds.parse()?)
        }
        ["receive", receiver, cpu] => {
            let cpu = cpu.parse()?;
            match receiver.strip_prefix("forward:") {
                Some(mode) => return forward(mode, cpu),
                None => pin_to_cpu(cpu)?,
            }
            match receiver {
                "recvmmsg" => by_socket(),
                port => by_port(&format!("{port},udp={PORT}")),
            }
        }
        _ => Err(
            "usage: receive probe, or receive window RECEIVER RATE ARRIVALS SECONDS CPU SENDER_CPU"
                .into(),
        ),
    }
}

/// Runs a receiver and a sender in namespaces of their own, and prints the figures of both.
fn window(receiver: &[&str], sender: &[&str]) -> Result<()> {
    let hosts = Hosts::new()?;
    hosts.middle.ip(&format!("addr add {MIDDLE}/24 dev w0"));
    // A datagram that is forwarded finds a socket, so that no refusal is sent back.
    let _open = hosts.east.run(|| UdpSocket::bind((EAST, PORT)))?;
    let receiver = child(&hosts.middle, receiver)?;
    until_true("a receiver", SOON, || {
        receiver.stdout().contains("ready") || !receiver.stderr().is_empty()
    });
    if !receiver.stderr().is_empty() {
        return Err(receiver.stderr().into());
    }
    let softirq_ns = softirq_ns();
    let sent = child(&hosts.west, sender)?.finish(4 * SOON);
    let softirq_ns = self::softirq_ns().saturating_sub(softirq_ns);
    let received = receiver.finish(SOON);
    let figures = |done: &linerate_tests::process::Finished| -> Result<Value> {
        let line = done.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|_| format!("{}{}", done.stdout, done.stderr).into())
    };
    let (mut line, sent) = (figures(&received)?, figures(&sent)?);
    // The sender's time is a little longer or shorter than the receiver's.
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or_default();
    let beside = (number(&sent, "cpu_ns") + softirq_ns as f64) / number(&sent, "ns");
    let all_cpu_ns = number(&line, "cpu_ns") + number(&line, "ns") * beside;
    line["all_cpu_ns"] = json!(all_cpu_ns as u64);
    line["kept_pct"] = sent["kept_pct"].clone();
    // An engine has counted what it lost; a program that reads cannot know how many were sent.
    if line["lost"].is_null() {
        let count = |of: &Value, key: &str| of[key].as_u64().ok_or(format!("no {key} in {of}"));
        let lost = count(&sent, "count")?.saturating_sub(count(&line, "packets")?);
        line["lost"] = json!(lost);
    }
    println!("{line}");
    Ok(())
}

fn child(netns: &Netns, args: &[&str]) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(netns.start(command))
}

/// Returns the CPU time of the kernel's threads for soft interrupts, on all CPUs.
fn softirq_ns() -> u64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_softirq = |path: &std::path::Path| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    let ran = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    processes.map(|entry| entry.path()).filter(|path| is_softirq(path)).filter_map(ran).sum()
}

/// Sends at a steady rate, then sends the last datagram a few times. Every datagram of the count
/// that it prints was sent: a call that fails ends it without figures.
fn send(to: Ipv4Addr, rate: u64, spins: bool, seconds: f64) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((to, PORT))?;
    let (count, gap) = ((rate as f64 * seconds) as u64, Duration::from_nanos(1_000_000_000 / rate));
    let (start, cpu) = (Instant::now(), cpu_time());
    for number in 0..count {
        while let left = (gap * number as u32).saturating_sub(start.elapsed())
            && !left.is_zero()
        {
            match spins {
                true if left <= SPIN => std::hint::spin_loop(),
                true => std::thread::sleep(left - SPIN),
                false => std::thread::sleep(left),
            }
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
    let kept_pct = 100.0 * count as f64 / (wall.as_secs_f64() * rate as f64);
    let (cpu_ns, ns) = (cpu.as_nanos() as u64, wall.as_nanos() as u64);
    let line = json!({ "cpu_ns": cpu_ns, "ns": ns, "kept_pct": kept_pct, "count": count });
    println!("{line}");
    Ok(())
}

/// Observations of a receiver.
struct Seen {
    packets: u64,
    delays: Vec<u64>,
    start: Option<(Instant, Duration)>,
    over: bool,
}

impl Seen {
    fn new() -> Seen {
        let delays = Vec::with_capacity(4_000_000);
        Seen { packets: 0, delays, start: None, over: false }
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
        self.delays.push(now_ns.saturating_sub(sent_ns));
    }

    /// Prints the figures; the time does not include the quiet time at the end.
    fn print(mut self, seconds: f64, irqs: u64) -> Result<()> {
        let (_, cpu) = self.start.ok_or("nothing came")?;
        let cpu_ns = (cpu_time() - cpu).as_nanos() as u64;
        self.delays.sort_unstable();
        let us = |percent: usize| self.delays[(self.delays.len() - 1) * percent / 100] as f64 / 1e3;
        println!(
            "{}",
            json!({
                "ns": (1e9 * seconds) as u64, "cpu_ns": cpu_ns, "packets": self.packets, "irqs": irqs,
                "p50_us": us(50), "p99_us": us(99),
            })
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
    let (mut seen, socket) = (Seen::new(), UdpSocket::bind((MIDDLE, PORT))?);
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
    let (mut seen, mut port) = (Seen::new(), Port::open(text)?);
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
    seen.print(seconds, port.counts().irqs())
}

/// Forwards between two interfaces and measures this process alone: no program reads the datagrams.
fn forward(mode: &str, cpu: usize) -> Result<()> {
    let engine = Engine::builder().moderation(mode.parse()?);
    let engine = engine.port("w", "xdp:w0,all").port("e", "xdp:e0,all").wire("w", "e");
    let running = engine.cpus(&[cpu]).build()?.start()?;
    println!("ready");
    let received = || running.stats().ports()[0].counts.rx_packets;
    let missed = || running.stats().ports()[0].counts.rx_missed;
    while received() < 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (start, cpu, before) = (Instant::now(), cpu_time(), received());
    let missed_before = missed();
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
    let lost = missed().saturating_sub(missed_before);
    let irqs: u64 = running.stats().workers().iter().map(|worker| worker.sleeps).sum();
    println!(
        "{}",
        json!({
            "ns": (last.0 - start).as_nanos() as u64, "cpu_ns": (last.1 - cpu).as_nanos() as u64,
            "packets": last.2 - before, "irqs": irqs, "lost": lost,
            "p50_us": null, "p99_us": null,
        })
    );
    Ok(())
}
