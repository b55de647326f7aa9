//! The eastern host's TCP in user space: smoltcp on a queue of ours, with its program, on one
//! thread for each adapter.
//!
//! ```text
//!  sender ─ TCP of the kernel ─ veth ─► worker ─ ring ─► smoltcp ─► checked and copied      stream
//!  client ─ TCP of the kernel ─ veth ◄► worker ◄ ring ◄► smoltcp ◄► requests and files      web
//!                                                        one thread: the program
//! ```
//!
//! The program of a stream checks each byte that arrives, and copies it, as a program that uses the
//! data would. The one of the web answers requests with files.

mod files;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_port::{Queue, Waker};
use linerate_smoltcp::Device;
use linerate_sys::thread;
use smoltcp::iface::{Config as Settings, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr};

use self::files::Files;
use self::stream::Stream;
use super::bench::QUIET;
use super::config::Config;
use super::crew::settle_down;
use super::hosts::{self, Hosts};
use crate::{Code, Error, Result};

/// The TCP port of an adapter's first connection; the others of a stream follow.
pub(super) const FIRST_PORT: u16 = 5001;
/// Bytes of a socket's buffer if the side leaves them to the kernel.
const BUFFER_BYTES: usize = 1 << 20;
/// The longest delay of an acknowledgement. If one were still to come when the workers stand still
/// between windows, the sender would send its segment again and again, and begin the next window
/// slowly.
const ACK_DELAY: Duration = Duration::from_millis(1);
const _: () = assert!(ACK_DELAY.as_millis() < QUIET.as_millis());
/// The longest sleep.
const SLEEP: Duration = Duration::from_secs(1);

/// The stack of an adapter, with its program.
#[derive(Debug)]
pub(super) struct Stack {
    /// Bytes that each connection of a stream has read.
    pub read: Vec<Arc<AtomicU64>>,
    /// Id of the thread.
    pub id: i32,
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<Option<()>>>,
}

/// The state that the thread shares with the lab.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// True once a byte has arrived that nobody sent, or the device has failed.
    spoiled: AtomicBool,
    /// Connections that are open.
    open: AtomicUsize,
}

impl Stack {
    /// Starts the stack of `adapter`, whose program reads streams; it listens for all connections
    /// when this returns.
    pub fn read(config: &Config, hosts: &Hosts, adapter: usize, queue: Queue) -> Result<Stack> {
        let read: Vec<Arc<AtomicU64>> = (0..config.connections).map(|_| Arc::default()).collect();
        let mut stack = Stack::start(config, hosts, adapter, queue, Stream::new(read.clone()))?;
        stack.read = read;
        Ok(stack)
    }

    /// Starts the stack of `adapter`, whose program answers requests with `responses`; it listens
    /// at [`FIRST_PORT`] when this returns.
    pub fn answer(
        config: &Config,
        hosts: &Hosts,
        (adapter, queue): (usize, Queue),
        responses: &Arc<Vec<Vec<u8>>>,
    ) -> Result<Stack> {
        let program = Files::new(config.connections, responses.clone());
        Stack::start(config, hosts, adapter, queue, program)
    }

    fn start(
        config: &Config,
        hosts: &Hosts,
        adapter: usize,
        mut queue: Queue,
        program: impl Program,
    ) -> Result<Stack> {
        let shared = Arc::<Shared>::default();
        let (waker, theirs) = (queue.waker()?, shared.clone());
        let (cpus, of) = (config.reader_cpus(adapter), (adapter, buffer_bytes(config.sockbuf)));
        let (tell, told) = channel();
        let body = move || {
            settle_down(&cpus);
            match Device::new(queue) {
                Ok(device) => serve(program, device, of, &theirs, || {
                    let _ = tell.send(Ok(thread::id()));
                }),
                Err(e) => drop(tell.send(Err(e))),
            }
        };
        let thread = Some(hosts.east.spawn(&format!("east-{adapter}"), body)?);
        let ended = || Error::new(Code::System, "cannot start smoltcp", "its thread has ended");
        let id = told.recv().unwrap_or_else(|_| Err(ended()))?;
        Ok(Stack { read: Vec::new(), id, shared, waker, thread })
    }

    /// Returns true if a byte has arrived that was not sent, or the device has failed.
    pub fn is_spoiled(&self) -> bool {
        self.shared.spoiled.load(Ordering::Acquire)
    }

    /// Returns true if no connection is open.
    pub fn is_closed(&self) -> bool {
        self.shared.open.load(Ordering::Acquire) == 0
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the bytes of a buffer: twice as many as were asked for, as in the kernel.
fn buffer_bytes(asked: usize) -> usize {
    if asked == 0 { BUFFER_BYTES } else { 2 * asked }
}

/// The program of an adapter, above its stack.
trait Program: Send + 'static {
    /// Returns the sockets of its connections, which listen, with receive buffers of that size.
    fn sockets(&self, buffer_bytes: usize) -> Vec<tcp::Socket<'static>>;

    /// Takes what has arrived, and sends what can be sent; returns true if it did either, so that
    /// the stack has something to tell, and `None` if something has arrived that was not sent.
    fn turn(&mut self, sockets: &mut SocketSet<'_>, of: &[SocketHandle]) -> Option<bool>;
}

/// Runs a stack until it is stopped; calls `ready` once it listens.
fn serve(
    mut program: impl Program,
    mut device: Device,
    (adapter, buffer_bytes): (usize, usize),
    shared: &Shared,
    ready: impl FnOnce(),
) {
    let address = EthernetAddress(hosts::mac_bytes(adapter, 2));
    let mut interface = Interface::new(Settings::new(address.into()), &mut device, Instant::now());
    let address = hosts::east(adapter);
    interface.update_ip_addrs(|all| _ = all.push(IpCidr::new(address.into(), 24)));
    let mut sockets = SocketSet::new(Vec::new());
    let all = program.sockets(buffer_bytes).into_iter();
    let handles: Vec<SocketHandle> = all.map(|socket| sockets.add(socket)).collect();
    ready();
    while !shared.stop.load(Ordering::Acquire) {
        interface.poll(Instant::now(), &mut device, &mut sockets);
        let done = program.turn(&mut sockets, &handles);
        let is_open = |handle: &&SocketHandle| sockets.get::<tcp::Socket<'_>>(**handle).is_active();
        shared.open.store(handles.iter().filter(is_open).count(), Ordering::Release);
        if done == Some(true) {
            // The window has opened, or there is data: smoltcp says so at once.
            continue;
        }
        let delay = interface.poll_delay(Instant::now(), &sockets);
        let delay = delay.map_or(SLEEP, Duration::from).min(SLEEP);
        if done.is_none() || device.wait(Some(delay)).is_err() {
            shared.spoiled.store(true, Ordering::Release);
            break;
        }
    }
}

/// Returns a socket that listens at `port`.
fn listening(port: u16, receive_bytes: usize, send_bytes: usize) -> tcp::Socket<'static> {
    let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
    let mut socket = tcp::Socket::new(buffer(receive_bytes), buffer(send_bytes));
    socket.set_ack_delay(Some(ACK_DELAY.into()));
    // A port that is not 0 and a socket that is closed: this is not refused.
    let _ = socket.listen(port);
    socket
}
