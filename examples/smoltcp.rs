//! A web server with smoltcp's TCP in this process, until its input ends: `smoltcp
//! packet:eth0,retire=0 192.0.2.9/24`. `GET /N` returns N bytes, any other request a line.
//! A client that reads none of its reply keeps one of eight sockets.

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
/// Longest first line of a request; with a longer one a client is given up.
const REQUEST_BYTES: usize = 4096;
const LINE: &[u8] = b"smoltcp over linerate\n";
/// Interval of checks for the end of the input.
const LOOK: Duration = Duration::from_secs(1);
/// Time after which a connection is aborted whose client has sent no complete request line, or
/// later sends nothing, not even an acknowledgement, for this long.
const PATIENCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(10);
/// Error for a port with several queues: the stack would miss the packets of all but one.
const ONE_QUEUE: &str = "the port has several queues, and a stack serves one: \
    add queues=0,rss=even to an xdp port, on a veth only queues=0";
static INPUT_ENDED: AtomicBool = AtomicBool::new(false);

struct Connection {
    handle: SocketHandle,
    /// Time at which the client connected.
    since: Instant,
    reply: Option<Reply>,
}

/// A reply: its head, the length of its body, and how much of both was sent.
struct Reply {
    head: Vec<u8>,
    body_bytes: usize,
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
    let mut queues = port.into_queues();
    let queue = queues.pop().filter(|_| queues.is_empty());
    let mut device = Device::new(queue.ok_or(ONE_QUEUE)?)?;
    let mut interface = Interface::new(Config::new(MAC.into()), &mut device, Instant::now());
    interface.update_ip_addrs(|addresses| _ = addresses.push(address));
    let mut sockets = SocketSet::new(vec![]);
    let connection = |_| {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_timeout(Some(PATIENCE));
        socket.set_keep_alive(Some(PATIENCE / 2));
        Connection { handle: sockets.add(socket), since: Instant::now(), reply: None }
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
        connection.reply = None;
        socket.listen(80)?;
    }
    if !socket.is_active() {
        connection.since = Instant::now(); // nobody has connected yet
    }
    if connection.reply.is_none() && socket.can_recv() {
        // Until the first line is complete, it stays in the socket.
        let request = String::from_utf8_lossy(socket.peek(REQUEST_BYTES)?);
        connection.reply = request.split_once('\n').map(|(line, _)| Reply::to(line));
    }
    let Some(reply) = &mut connection.reply else {
        // A client that has left without a request.
        if socket.state() == tcp::State::CloseWait {
            socket.close();
        }
        if Instant::now() - connection.since > PATIENCE {
            socket.abort();
        }
        return Ok(());
    };
    if socket.can_recv() {
        socket.recv(|bytes| (bytes.len(), ()))?; // the rest of the request does not matter
    }
    while reply.left() > 0 && socket.can_send() {
        reply.sent += socket.send(|room| {
            let n = reply.fill(room);
            (n, n)
        })?;
    }
    if reply.left() == 0 {
        socket.close();
    }
    Ok(())
}

impl Reply {
    fn to(line: &str) -> Reply {
        let path = line.split_whitespace().nth(1).unwrap_or_default();
        let body_bytes = path.trim_start_matches('/').parse().unwrap_or(LINE.len()).min(1 << 30);
        let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {body_bytes}\r\n\r\n");
        Reply { head: head.into_bytes(), body_bytes, sent: 0 }
    }

    fn left(&self) -> usize {
        self.head.len() + self.body_bytes - self.sent
    }

    /// Writes the next bytes; returns their number.
    fn fill(&self, room: &mut [u8]) -> usize {
        let head = self.head.iter().skip(self.sent);
        let body = LINE.iter().cycle().skip(self.sent.saturating_sub(self.head.len()) % LINE.len());
        let bytes = head.chain(body).take(self.left());
        room.iter_mut().zip(bytes).map(|(to, byte)| *to = *byte).count()
    }
}
