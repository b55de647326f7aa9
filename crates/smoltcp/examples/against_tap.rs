//! Compares a port with smoltcp's own TAP device: `against_tap PORT|tap:NAME ADDRESS down|up [BUFFER_BYTES]`.
//!
//! The kernel's TCP at the other end sends up, or receives down, for three seconds; docs/smoltcp.md has the
//! set-up. With `tap:NAME` the device is smoltcp's own; all layers above it are equal.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant as Clock};

use linerate::{Pool, Port};
use linerate_smoltcp::Device;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{self, Medium, TunTapInterface};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

const RUN: Duration = Duration::from_secs(3);
const WAIT_MAX: Duration = Duration::from_millis(100);
const USAGE: &str = "usage: against_tap PORT|tap:NAME ADDRESS down|up [BUFFER_BYTES]";

/// The parameters: the stack's address, the direction of the stream, and the size of a socket's
/// buffer.
#[derive(Clone, Copy)]
struct Task {
    address: Ipv4Addr,
    down: bool,
    buffer_bytes: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = std::env::args_os().skip(1).map(|argument| argument.into_string());
    let args: Result<Vec<String>, _> = args.collect();
    let args = args.map_err(|argument| format!("{} is not UTF-8: {USAGE}", argument.display()))?;
    let [port, address, way, buffer @ ..] = &args[..] else { return Err(USAGE.into()) };
    let buffer_bytes = buffer.first().map_or(Ok(65_535), |bytes| bytes.parse())?;
    let task = Task { address: address.parse()?, down: way == "down", buffer_bytes };
    let gbps = if let Some(name) = port.strip_prefix("tap:") {
        let device = TunTapInterface::new(name, Medium::Ethernet)?;
        let fd = device.as_raw_fd();
        run(device, task, |_, delay| Ok(phy::wait(fd, Some(delay.into()))?))?
    } else {
        let pool = Pool::builder().frames(8192).jumbo(128, 65_536).build()?;
        let port = Port::open_with(port, &pool)?;
        let device = Device::new(port.into_queues().remove(0))?;
        run(device, task, |device, delay| Ok(device.wait(Some(delay)).map(drop)?))?
    };
    println!("{port} {way} {gbps:.2} Gbit/s");
    Ok(())
}

/// Runs the stack until the kernel's end has finished; returns the rate.
fn run<D: phy::Device>(
    mut device: D,
    task: Task,
    mut wait: impl FnMut(&mut D, Duration) -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, 9]).into());
    let mut interface = Interface::new(config, &mut device, Instant::now());
    interface.update_ip_addrs(|all| _ = all.push(IpCidr::new(task.address.into(), 24)));
    let buffer = || tcp::SocketBuffer::new(vec![0; task.buffer_bytes]);
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
    sockets.get_mut::<tcp::Socket<'_>>(handle).listen(80)?;
    let kernel = std::thread::spawn(move || stream(task));
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
    Ok(kernel.join().map_err(|_| "the kernel's end panicked")??)
}

/// Sends or receives a stream with the kernel's TCP; returns Gbit/s.
fn stream(task: Task) -> std::io::Result<f64> {
    let mut stream = TcpStream::connect((task.address, 80))?;
    let (start, mut bytes, mut buffer) = (Clock::now(), 0, vec![0; 1 << 20]);
    while start.elapsed() < RUN {
        bytes += if task.down { stream.read(&mut buffer)? } else { stream.write(&buffer)? };
    }
    Ok(bytes as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9)
}
