//! A custom driver without `unsafe`: a pipe of datagrams whose two ends are in this process. It
//! copies packets. `cargo test --example copying_driver` tests it with the test suite of linerate's
//! own ports.

use linerate::{prelude::*, wait::poll_readable, *};
use std::io::ErrorKind::WouldBlock;
use std::os::{fd::AsFd, fd::BorrowedFd, unix::net::UnixDatagram};
use std::time::{Duration, Instant};

const LONGEST: usize = 1514; // an Ethernet frame of the usual MTU
struct Pipe;
impl Driver for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }
    fn flags(&self) -> DriverFlags {
        DriverFlags { paired: true, ..DriverFlags::default() } // pipe:NAME has two ends
    }
    fn parse(&self, spec: &Spec) -> Result<Box<dyn Plan>> {
        spec.finish().map(|()| Box::new(End(spec.clone())) as Box<dyn Plan>) // no options
    }
}
struct End(Spec);
impl Plan for End {
    fn needs(&self) -> Result<Needs> {
        Ok(Needs { packet_max_bytes: LONGEST, ..Needs::default() })
    }
    fn open(&self, cx: &mut OpenContext<'_>) -> Result<Opened> {
        let open = |socket: UnixDatagram| -> Result<Opened> {
            socket.set_nonblocking(true).map_err(|e| self.0.error(e))?;
            let queue = PipeQueue { bell: Bell::new(&socket)?, socket, starved: false, nombuf: 0 };
            Ok(Opened::single(queue, Obtained::new(&self.0.arg, "datagrams, copy", LONGEST)))
        };
        cx.meet("pipe", &self.0.arg, |_| {
            let (one, other) = UnixDatagram::pair().map_err(|e| self.0.error(e))?;
            Ok((open(one)?, open(other)?))
        })
    }
}
struct PipeQueue {
    socket: UnixDatagram,
    bell: Bell,    // the queue's one descriptor
    starved: bool, // the pool had no frame, and no event signals one
    nombuf: u64,
}
impl QueueOps for PipeQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let (start, frames) = (out.len(), mem.alloc(out, budget));
        let recv = |skb: &mut Skb| self.socket.recv(skb.spare_mut()).map(|n| skb.commit(n)).ok();
        let came = out.iter_mut().skip(start).map_while(recv).count();
        out.truncate_to(start + came, mem); // gives unused frames back
        self.starved = came == frames && frames < budget;
        self.nombuf += u64::from(self.starved);
        out.count_from(start)
    }
    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let (mut moved, mut bytes) = (Moved::default(), [0; LONGEST]);
        batch.retain(|skb| (skb.len() <= LONGEST).then_some(()).ok_or(DropReason::TOO_LONG));
        loop {
            let mut why = WouldBlock; // full, or everything was sent
            moved += batch.send_prefix(mem, |skb| {
                let n = skb.copy_to(0, &mut bytes);
                self.socket.send(&bytes[..n]).map_err(|e| why = e.kind()).is_ok()
            });
            if why == WouldBlock {
                return moved; // what was refused stays, in order
            }
            batch.discard_first(1, DropReason::PEER_GONE, mem);
        }
    }
    fn arm(&mut self, want: Want) -> bool {
        let watch = if self.starved { want.room().then_some(Want::Room) } else { Some(want) };
        let alarm =
            (self.starved && want.frames()).then(|| Instant::now() + Duration::from_millis(1));
        self.bell.watch(&self.socket, watch, alarm);
        // Returns false if the socket is readable already, or if poll fails.
        !poll_readable(&[self.as_fd()], Some(Duration::ZERO)).unwrap_or(true)
    }
    fn alarm(&mut self, at: Instant) -> bool {
        self.bell.no_later(at) // a superframe that was cut above waits for a free frame
    }
    fn counters(&mut self) -> Counters {
        Counters { rx_nombuf: self.nombuf, ..Counters::default() }
    }
    fn caps(&self) -> Caps {
        Caps { copies: Copies::Always, ..Caps::default() }
    }
}
impl AsFd for PipeQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
linerate::conformance!(Pipe, "pipe:test");
fn main() -> Result<()> {
    let ports = Engine::builder().driver(&Pipe).port("a", "pipe:p").port("b", "pipe:p");
    let ports = ports.port("gen", "gen:count=1000").port("sink", "sink:").wire("gen", "a");
    let running = ports.wire("b", "sink").build()?.start()?;
    running.wait(Duration::from_millis(500))?;
    running.stop(Duration::from_secs(1)).check()
}
