//! Exchanges a TCP stream between smoltcp and the kernel for a while, and prints what that cost as
//! a line of JSON: a side of the experiment `smoltcp` (`linerate lab run smoltcp`).
//!
//! ```text
//! stream probe                                                 says whether this machine can run it
//! stream window DEVICE WAY BUFFER_BYTES SECONDS CPU KERNEL_CPU
//!
//!   DEVICE   tap: smoltcp's own TAP device; or the text of a port on s0, one end of a veth pair
//!   WAY      down: smoltcp sends, the kernel receives; up: the other way
//! ```
//!
//! smoltcp runs on one CPU, the program that uses the kernel's TCP on the other. All layers above
//! the device are equal. The rate is what that program sent or received, from its connection on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

use linerate::{Pool, Port};
use linerate_smoltcp::Device;
use linerate_sys::clock::thread_cpu_ns;
use linerate_sys::thread::pin_to_cpu;
use linerate_tests::netns::Netns;
use serde_json::json;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{self, Medium, TunTapInterface};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

/// An error of any thread.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The addresses of smoltcp and of the kernel.
const STACK: Ipv4Addr = Ipv4Addr::new(192, 168, 69, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(192, 168, 69, 100);
const PORT: u16 = 80;
/// Longest time for which a device is waited for.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Payload of a packet, to state the stream in packets.
const SEGMENT_BYTES: u64 = 1448;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["probe"] => Ok(Netns::new().map(drop)?),
        ["window", device, way @ ("down" | "up"), buffer, seconds, cpu, kernel_cpu] => {
            let task = Task {
                down: way == "down",
                buffer_bytes: buffer.parse()?,
                run: Duration::from_secs_f64(seconds.parse()?),
                cpu: cpu.parse()?,
                kernel_cpu: kernel_cpu.parse()?,
            };
            let netns = Netns::new()?;
            netns.run(|| window(device, task, &netns))
        }
        _ => Err("usage: stream probe, or stream window DEVICE down|up BUFFER_BYTES SECONDS CPU \
                  KERNEL_CPU"
            .into()),
    }
}

/// The parameters of a window.
#[derive(Clone, Copy)]
struct Task {
    /// True if smoltcp sends.
    down: bool,
    /// Size of each of smoltcp's two buffers.
    buffer_bytes: usize,
    run: Duration,
    cpu: usize,
    kernel_cpu: usize,
}

/// Connects smoltcp with the kernel in this thread's namespace, and prints the figures of a stream.
fn window(device: &str, task: Task, netns: &Netns) -> Result<()> {
    match device {
        "tap" => _ = netns.ip("tuntap add mode tap name k0"),
        _ => {
            netns.ip("link add k0 type veth peer name s0");
            netns.ip("link set s0 up");
        }
    }
    // BBR, a default of some systems, sends at the rate that it has measured, and not as fast as it
    // can.
    std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")?;
    netns.ip(&format!("addr add {KERNEL}/24 dev k0"));
    netns.ip("link set k0 up");
    pin_to_cpu(task.cpu)?;
    let (bytes, took, cpu_ns) = if device == "tap" {
        let device = TunTapInterface::new("k0", Medium::Ethernet)?;
        let fd = device.as_raw_fd();
        run(device, task, |_, delay| Ok(phy::wait(fd, Some(delay.into()))?))?
    } else {
        let pool = Pool::builder().frames(8192).jumbo(128, 65_536).build()?;
        let device = Device::new(Port::open_with(device, &pool)?.into_queues().remove(0))?;
        run(device, task, |device, delay| Ok(device.wait(Some(delay)).map(drop)?))?
    };
    let (ns, packets) = (took.as_nanos() as u64, bytes / SEGMENT_BYTES);
    let line = json!({ "ns": ns, "bytes": bytes, "packets": packets, "cpu_ns": cpu_ns });
    println!("{line}");
    Ok(())
}

/// Runs the stack until the kernel's end has finished; returns the bytes of the stream, its time,
/// and the CPU time of this thread.
fn run<D: phy::Device>(
    mut device: D,
    task: Task,
    mut wait: impl FnMut(&mut D, Duration) -> Result<()>,
) -> Result<(u64, Duration, u64)> {
    let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 9]).into());
    let mut interface = Interface::new(config, &mut device, Instant::now());
    interface.update_ip_addrs(|all| _ = all.push(IpCidr::new(STACK.into(), 24)));
    let buffer = || tcp::SocketBuffer::new(vec![0; task.buffer_bytes]);
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
    sockets.get_mut::<tcp::Socket<'_>>(handle).listen(PORT)?;
    let kernel = std::thread::spawn(move || stream(task));
    let cpu_ns = thread_cpu_ns();
    while !kernel.is_finished() {
        interface.poll(Instant::now(), &mut device, &mut sockets);
        let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
        while task.down && socket.can_send() && socket.send(|room| (room.len(), room.len()))? > 0 {}
        while socket.can_recv() && socket.recv(|bytes| (bytes.len(), bytes.len()))? > 0 {}
        let delay = interface.poll_delay(Instant::now(), &sockets);
        let delay = delay.map_or(WAIT_MAX, Duration::from).min(WAIT_MAX);
        if !delay.is_zero() {
            wait(&mut device, delay)?;
        }
    }
    let cpu_ns = thread_cpu_ns() - cpu_ns;
    let (bytes, took) = kernel.join().map_err(|_| "the kernel's end panicked")??;
    Ok((bytes, took, cpu_ns))
}

/// Sends or receives a stream by the kernel's TCP; returns its bytes and its time.
fn stream(task: Task) -> Result<(u64, Duration)> {
    pin_to_cpu(task.kernel_cpu)?;
    let mut stream = TcpStream::connect((STACK, PORT))?;
    let (start, mut bytes, mut buffer) = (Clock::now(), 0, vec![0; 1 << 20]);
    while start.elapsed() < task.run {
        let moved = if task.down { stream.read(&mut buffer)? } else { stream.write(&buffer)? };
        if moved == 0 {
            return Err("smoltcp has closed the connection".into());
        }
        bytes += moved as u64;
    }
    Ok((bytes, start.elapsed()))
}
