//! A driver of your own, without `unsafe`: a pipe of datagrams, with both ends in this process.
//!
//! It copies: a datagram is received into a frame of the pool, and sent from one. Its last line has
//! it tried by the suite that linerate's own ports pass: `cargo test --example copying_driver`.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use linerate::prelude::*;
use linerate::wait::{Epoll, EventFlags, TimerFd, poll_readable};
use linerate::{Driver, Moved, Obtained, Opened, QueueOps, Result, Spec};

/// An Ethernet frame of the usual MTU.
const PACKET_MAX_BYTES: usize = 1514;
/// Interval at which the pool is asked again for a frame.
const RETRY: Duration = Duration::from_millis(1);

/// The driver of `pipe:NAME`: the first to open a name gets one end, the next gets the other.
#[derive(Debug)]
struct Pipe;

/// Ends that have not been opened yet, by name.
static HALVES: Mutex<BTreeMap<String, UnixDatagram>> = Mutex::new(BTreeMap::new());

impl Driver for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn packet_max_bytes(&self, _: &Spec) -> Result<usize> {
        Ok(PACKET_MAX_BYTES)
    }

    fn open(&self, spec: &Spec, pool: &Pool) -> Result<Opened> {
        spec.finish()?; // it has no options
        if pool.data_room() < PACKET_MAX_BYTES {
            let why = format!("a frame of the pool holds {} bytes", pool.data_room());
            return Err(spec.error(why).fix("frames of 2048 bytes"));
        }
        let queue = PipeQueue::new(end(&spec.arg).map_err(|e| spec.error(e))?)?;
        let obtained = Obtained::new(&spec.arg, "datagrams, copy", PACKET_MAX_BYTES);
        Ok(Opened::single(queue, obtained))
    }
}

/// Returns one end of the pipe of that name.
fn end(name: &str) -> io::Result<UnixDatagram> {
    let mut halves = HALVES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(second) = halves.remove(name) {
        return Ok(second);
    }
    let (first, second) = UnixDatagram::pair()?;
    first.set_nonblocking(true)?;
    second.set_nonblocking(true)?;
    halves.insert(name.to_owned(), second);
    Ok(first)
}

struct PipeQueue {
    socket: UnixDatagram,
    /// The one descriptor: readable when the socket is ready for the wanted operation, or the timer expires.
    ready: Epoll,
    timer: TimerFd,
    /// True if the pool had no frame; the pool sends no notice when it has one again.
    starved: bool,
    no_frame: u64,
    /// Packets in several frames are put together here.
    joined: Vec<u8>,
}

impl PipeQueue {
    fn new(socket: UnixDatagram) -> Result<PipeQueue> {
        let (ready, timer) = (Epoll::new()?, TimerFd::new()?);
        let fail = |e| linerate::Error::new(linerate::Code::System, "epoll_ctl", format!("{e}"));
        // Readable until it is armed, because an empty pipe has room.
        ready.add(&socket, 0, EventFlags::IN | EventFlags::OUT).map_err(fail)?;
        ready.add(&timer, 1, EventFlags::IN).map_err(fail)?;
        let joined = Vec::with_capacity(PACKET_MAX_BYTES);
        Ok(PipeQueue { socket, ready, timer, starved: false, no_frame: 0, joined })
    }

    fn send(&mut self, skb: &Skb) -> io::Result<()> {
        if skb.len() > PACKET_MAX_BYTES {
            return Err(ErrorKind::InvalidInput.into());
        }
        if skb.data().len() == skb.len() {
            return self.socket.send(skb.data()).map(drop);
        }
        self.joined.resize(skb.len(), 0);
        skb.copy_to(0, &mut self.joined);
        self.socket.send(&self.joined).map(drop)
    }
}

impl QueueOps for PipeQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let (start, mut came) = (out.len(), 0);
        let frames = mem.alloc(out, budget);
        for skb in out.iter_mut().skip(start) {
            match self.socket.recv(skb.spare_mut()) {
                Ok(len) => skb.commit(len),
                Err(_) => break, // there is no more
            }
            came += 1;
        }
        out.truncate_to(start + came, mem); // unused frames go home
        self.starved = came == frames && frames < budget;
        self.no_frame += u64::from(self.starved);
        Moved { packets: came, bytes: out.bytes_behind(start) }
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let mut moved = Moved::default();
        while !batch.is_empty() {
            let mut refusal = ErrorKind::WouldBlock;
            // A prefix: what is refused stays, and what is behind it.
            moved += batch.send_prefix(mem, |skb| {
                self.send(skb).map_err(|error| refusal = error.kind()).is_ok()
            });
            let reason = match refusal {
                ErrorKind::WouldBlock => break, // full, or everything was sent
                ErrorKind::InvalidInput => DropReason::TOO_LONG,
                _ => DropReason::PEER_GONE,
            };
            batch.discard_first(1, reason, mem);
        }
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        let (frames, starved) = (want.frames(), want.frames() && self.starved);
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, frames && !starved);
        interest.set(EventFlags::OUT, want.room());
        let alarm = starved.then(|| Instant::now() + RETRY);
        let set =
            self.ready.modify(&self.socket, 0, interest).and_then(|()| self.timer.set_at(alarm));
        // False if it is there already. In doubt it is better to be called too often than never.
        let there = poll_readable(&[self.ready.as_fd()], Some(Duration::ZERO));
        set.is_ok() && !there.unwrap_or(true)
    }

    fn no_frame(&mut self) -> u64 {
        std::mem::take(&mut self.no_frame)
    }
}

impl AsFd for PipeQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::builder().frames(256).build()?;
    let mut near = Port::open_driver_with(&Pipe, "pipe:hello", &pool)?;
    let mut far = Port::open_driver_with(&Pipe, "pipe:hello", &pool)?;
    println!("{}", near.obtained());
    let mut batch = Batch::with_capacity(8);
    near.alloc(&mut batch, 3);
    batch.iter_mut().for_each(|skb| assert!(skb.put_slice(b"hello")));
    near.xmit(&mut batch);
    far.wait(None)?;
    far.rx(&mut batch);
    batch.iter().for_each(|skb| println!("{}", String::from_utf8_lossy(skb.data())));
    drop((batch, near, far));
    println!("{}", pool.ledger());
    Ok(())
}

linerate::conformance!(Pipe, "pipe:test");
