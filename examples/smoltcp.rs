//! A web server with smoltcp's TCP in this process, until its input ends: `smoltcp
//! packet:eth0,retire=0 192.0.2.9/24`. `GET /N` returns N bytes, any other request a line.

mod args;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use linerate::prelude::*;
use linerate_smoltcp::Device;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

const CONNECTIONS: usize = 8;
const BUFFER_BYTES: usize = 1 << 20;
const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 9]);
/// Interval of checks for the end of the input.
const LOOK: Duration = Duration::from_secs(1);
static INPUT_ENDED: AtomicBool = AtomicBool::new(false);

/// A connection, and the part of the reply that is still to be sent.
struct Connection {
    handle: SocketHandle,
    reply: Vec<u8>,
    sent: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = args::texts()?;
    let [text, address] = &args[..] else {
        return Err("usage: smoltcp PORT ADDRESS/BITS".into());
    };
    let address: IpCidr = address.parse().map_err(|()| format!("no ADDRESS/BITS: {address}"))?;
    // With frames of 64 KiB the pool can also hold superframes in one frame, for ports that cut or
    // send them.
    let pool = Pool::builder().frames(8192).jumbo(128, 65_536).build()?;
    let port = Port::open_with(text, &pool)?;
    eprintln!("{}", port.obtained());
    let mut device = Device::new(port.into_queues().remove(0))?;
    let mut interface = Interface::new(Config::new(MAC.into()), &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| _ = addresses.push(address));
    let mut sockets = SocketSet::new(vec![]);
    let connection = |_| {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Connection { handle, reply: Vec::new(), sent: 0 }
    };
    let mut connections: Vec<Connection> = (0..CONNECTIONS).map(connection).collect();
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        INPUT_ENDED.store(true, Relaxed);
    });
    while !INPUT_ENDED.load(Relaxed) {
        for connection in &mut connections {
            serve(sockets.get_mut(connection.handle), connection)?;
        }
        interface.poll(Instant::now(), &mut device, &mut sockets);
        let delay = interface.poll_delay(Instant::now(), &sockets).map(Duration::from);
        device.wait(Some(delay.unwrap_or(LOOK).min(LOOK)))?;
    }
    drop(device);
    println!("{}", pool.ledger());
    Ok(())
}

/// Reads a request, sends its reply as far as possible, and listens again after it.
fn serve(socket: &mut tcp::Socket<'_>, connection: &mut Connection) -> Result<(), Box<dyn Error>> {
    if !socket.is_open() {
        connection.reply.clear();
        socket.listen(80)?;
    }
    if socket.can_recv() {
        let request = socket.recv(|bytes| (bytes.len(), String::from_utf8_lossy(bytes).into()))?;
        if connection.reply.is_empty() {
            (connection.reply, connection.sent) = (reply(request), 0);
        }
    }
    connection.sent += match connection.reply.get(connection.sent..) {
        Some(rest) if socket.can_send() && !rest.is_empty() => socket.send_slice(rest)?,
        _ => 0,
    };
    let has_left = socket.state() == tcp::State::CloseWait;
    if connection.sent == connection.reply.len() && (connection.sent > 0 || has_left) {
        socket.close();
    }
    Ok(())
}

fn reply(request: String) -> Vec<u8> {
    let line = b"smoltcp over linerate\n";
    let path = request.split(' ').nth(1).unwrap_or_default();
    let bytes = path.trim_start_matches('/').parse().unwrap_or(line.len()).min(1 << 30);
    let mut reply = format!("HTTP/1.0 200 OK\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
    reply.extend(line.iter().cycle().take(bytes));
    reply
}
