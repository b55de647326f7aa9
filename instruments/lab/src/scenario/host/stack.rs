//! The eastern host's TCP in user space: smoltcp on a queue of ours, with the program that reads, on one thread for each
//! adapter.
//!
//! ```text
//!  sender ─ TCP of the kernel ─ veth ─► worker ─ ring ─► smoltcp ─► checked and copied      one thread: the program
//! ```
//!
//! The program checks each byte that arrives, and copies it, as a program that uses the data would.

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

use super::bench::QUIET;
use super::config::Config;
use super::crew::settle_down;
use super::hosts::{self, Hosts};
use super::tcp::FILL;
use crate::{Code, Error, Result};

/// The TCP port of an adapter's first connection; the others follow.
pub(super) const FIRST_PORT: u16 = 5001;
/// Bytes of a socket's receive buffer if the side leaves them to the kernel.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes of a socket's send buffer: nothing is sent but acknowledgements.
const UNUSED_BYTES: usize = 1024;
/// Bytes of a read.
const READ_BYTES: usize = 64 << 10;
/// The longest delay of an acknowledgement. If one were still to come when the workers stand still between windows, the
/// sender would send its segment again and again, and begin the next window slowly.
const ACK_DELAY: Duration = Duration::from_millis(1);
const _: () = assert!(ACK_DELAY.as_millis() < QUIET.as_millis());
/// The longest sleep.
const SLEEP: Duration = Duration::from_secs(1);

/// The stack of an adapter, with its program.
#[derive(Debug)]
pub(super) struct Stack {
    /// Bytes that each connection has read.
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
    /// Starts the stack of `adapter` on `cpus`; it listens for all connections of the adapter when this returns.
    pub fn start(
        config: &Config,
        hosts: &Hosts,
        adapter: usize,
        mut queue: Queue,
    ) -> Result<Stack> {
        let read: Vec<Arc<AtomicU64>> = (0..config.connections).map(|_| Arc::default()).collect();
        let shared = Arc::<Shared>::default();
        let waker = queue.waker()?;
        let program = Program { adapter, counts: read.clone(), shared: shared.clone() };
        let (cpus, buffer_bytes) = (config.reader_cpus(adapter), buffer_bytes(config.sockbuf));
        let (tell, told) = channel();
        let body = move || {
            settle_down(&cpus);
            match Device::new(queue) {
                Ok(device) => program.serve(device, buffer_bytes, || {
                    let _ = tell.send(Ok(thread::id()));
                }),
                Err(e) => drop(tell.send(Err(e))),
            }
        };
        let thread = Some(hosts.east.spawn(&format!("east-{adapter}"), body)?);
        let ended = || Error::new(Code::System, "cannot start smoltcp", "its thread has ended");
        let id = told.recv().unwrap_or_else(|_| Err(ended()))?;
        Ok(Stack { read, id, shared, waker, thread })
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

/// Returns the bytes of a receive buffer: twice as many as were asked for, as in the kernel.
fn buffer_bytes(asked: usize) -> usize {
    if asked == 0 { BUFFER_BYTES } else { 2 * asked }
}

/// The program of an adapter.
struct Program {
    adapter: usize,
    counts: Vec<Arc<AtomicU64>>,
    shared: Arc<Shared>,
}

impl Program {
    /// Runs the stack until it is stopped; calls `ready` once it listens.
    fn serve(self, mut device: Device, buffer_bytes: usize, ready: impl FnOnce()) {
        let address = EthernetAddress(hosts::mac_bytes(self.adapter, 2));
        let mut interface =
            Interface::new(Settings::new(address.into()), &mut device, Instant::now());
        let address = hosts::east(self.adapter);
        interface.update_ip_addrs(|all| _ = all.push(IpCidr::new(address.into(), 24)));
        let mut sockets = SocketSet::new(Vec::new());
        let listen = |i: usize| {
            let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
            let mut socket = tcp::Socket::new(buffer(buffer_bytes), buffer(UNUSED_BYTES));
            socket.set_ack_delay(Some(ACK_DELAY.into()));
            // A port that is not 0 and a socket that is closed: this is not refused.
            let _ = socket.listen(FIRST_PORT + i as u16);
            sockets.add(socket)
        };
        let handles: Vec<SocketHandle> = (0..self.counts.len()).map(listen).collect();
        let mut bytes = vec![0; READ_BYTES];
        ready();
        while !self.shared.stop.load(Ordering::Acquire) {
            interface.poll(Instant::now(), &mut device, &mut sockets);
            if self.read(&mut sockets, &handles, &mut bytes) > 0 {
                // The window has opened: smoltcp says so at once.
                continue;
            }
            let delay = interface.poll_delay(Instant::now(), &sockets);
            let delay = delay.map_or(SLEEP, Duration::from).min(SLEEP);
            if device.wait(Some(delay)).is_err() {
                self.shared.spoiled.store(true, Ordering::Release);
                break;
            }
        }
    }

    /// Reads what has arrived on all connections, and checks it; returns the number of bytes.
    fn read(&self, sockets: &mut SocketSet<'_>, of: &[SocketHandle], bytes: &mut [u8]) -> usize {
        let (mut all, mut open) = (0, 0);
        for (handle, count) in of.iter().zip(&self.counts) {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            while let Ok(n @ 1..) = socket.recv_slice(bytes) {
                if bytes[..n].iter().any(|byte| *byte != FILL) {
                    self.shared.spoiled.store(true, Ordering::Release);
                }
                count.fetch_add(n as u64, Ordering::Release);
                all += n;
            }
            if socket.state() == tcp::State::CloseWait {
                socket.close();
            }
            open += usize::from(socket.is_active());
        }
        self.shared.open.store(open, Ordering::Release);
        all
    }
}
