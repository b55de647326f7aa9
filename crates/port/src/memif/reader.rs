//! Reading a producer's packets in place: memif's server for a program that only receives.
//!
//! ```text
//!   producer (memif's client)                        Reader (memif's server)
//!   frame of its pool ── place in a descriptor ──►   Frame: in the producer's memory     0 bytes copied
//!                                                      │ dropped              │ held, for as long as you like
//!   frame is free     ◄── tail, in order ───────────   ◄──────────────────────┘ or copied out, if it blocks
//! ```
//!
//! **Who waits.** The reader listens at the path, and producers connect: `memif:PATH,role=client`
//! of this library, VPP, DPDK. It takes one at a time, the next one by itself when that has gone,
//! and as many rings as it brings.
//!
//! **What is in a frame** may change under its reader: the producer has its memory mapped, and may
//! write it. So there is no `&[u8]`; bytes come out by copies ([`Frame::copy_to`]) and checked
//! single reads ([`Frame::u16_be`]). What was read once is yours and does not change; what is read
//! twice can differ. Our own producer does not write a frame that a reader has.
//!
//! **What goes back when.** The producer gets slots back in order. They go back once for the frames
//! of one loop over [`Reader::frames`], when it ends; of frames that were put aside, when the
//! oldest is dropped. A frame that is needed for longer is held ([`Frame::hold`]), and released by
//! any thread.
//!
//! **A slow holder** does not starve the ring: when what is held blocks more than half of it, the
//! oldest held frames are copied into memory of this process and their slots given back, counted as
//! [`Counts::copied_out`]. A packet that takes more descriptors than half of the ring can wait for
//! a holder. A producer's pool needs more frames than half of the ring, or it runs dry first.
//!
//! **When the producer goes**, frames that are held stay readable, because their mapping stays, and
//! [`Held::is_gone`] says so: their bytes may be those of other packets by then, as the producer
//! took all of its frames back. The mapping, all of the producer's pool, is kept as long as one of
//! them is.
//!
//! **Everything is checked.** Each index and descriptor is read once. A violation of the protocol
//! (an index that goes backwards or too far, a place outside the regions, a packet without an end)
//! ends the connection and is counted ([`Counts::protocol_errors`]). Memory that holds no rings is
//! mapped to be read only, and sealed against being cut short, unless `trust=yes` is said.
//!
//! Thread: a reader belongs to one at a time and can move; a [`Held`] frame to any.
//!
//! Source: memif protocol 2.0; docs/adr/0012.

mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) mod fuzzing;
mod held;
#[cfg(test)]
mod tests;
mod window;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::poll_readable;

use super::config::Config;
use super::endpoint::Endpoint;
use super::link::Link;
use super::ring::{Checked, ProtocolError};
use super::rings::Rings;
use crate::queue::Health;

pub use frame::{Frame, Frames};
pub use held::Held;
use held::Waker;
use window::Window;

/// The receiving end of a memif, for a program that reads packets in the producer's memory.
///
/// Readable (poll, mio, tokio's `AsyncFd`) means: call me. One that was never armed is readable.
///
/// ```no_run
/// # use linerate_port as linerate;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use linerate::memif::Reader;
///
/// let mut reader = Reader::listen("/run/fabric.sock")?;
/// let (mut dns, mut head) = (0, [0; 64]);
/// loop {
///     reader.wait(None)?;
///     for frame in reader.frames(64) {
///         dns += u64::from(frame.u16_be(36) == Some(53));
///         frame.copy_to(0, &mut head);
///     }
/// }
/// # }
/// ```
pub struct Reader {
    end: Endpoint,
    /// The rings of the connected producer.
    windows: Vec<Window>,
    /// Index of the ring to read first. It changes with each call, so that a busy ring cannot
    /// starve the others.
    turn: usize,
    /// Sums of the counters of rings whose connections have ended.
    past: Counts,
    waker: Arc<Waker>,
}

/// A reader's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counts {
    /// Frames returned to the program.
    pub frames: u64,
    /// The frames' bytes.
    pub bytes: u64,
    /// Frames that were copied because their holder was slow.
    pub copied_out: u64,
    /// Connections that have ended.
    pub ended: u64,
    /// Connections that ended because the producer violated the protocol.
    pub protocol_errors: u64,
}

impl Reader {
    /// Listens at `path`, where producers connect one after the other without further calls.
    ///
    /// `@NAME` is a name without a file. A file that a dead process has left there is replaced.
    ///
    /// # Errors
    /// `E-BUSY` if another process listens there, `E-SYSTEM` for a path that cannot be used.
    pub fn listen(path: impl AsRef<Path>) -> Result<Reader> {
        let path = path.as_ref();
        if path.as_os_str().is_empty() {
            let why = "the path is empty";
            return Err(Error::new(Code::System, "cannot listen for a memif's producer", why)
                .fix("name a path, as in /run/NAME.sock, or @NAME"));
        }
        Reader::of(Config::reader_at(path)?)
    }

    /// Listens with the options of a port text:
    /// `memif:PATH[,id=0][,secret=TEXT][,rings=64][,peer=UID|any][,memory=MIB][,trust=no]`
    /// `[,secret-file=FILE]`.
    ///
    /// `role=server` may be said; `size` and `buffer` are the producer's to choose.
    ///
    /// # Errors
    /// `E-PORT-SYNTAX` for the text, and those of [`Reader::listen`].
    pub fn open(text: &str) -> Result<Reader> {
        let spec = crate::parse(text)?;
        if spec.driver != "memif" {
            return Err(spec
                .error("only the memory of a memif is read where it lies")
                .fix("memif:PATH, or open it as a port"));
        }
        Reader::of(Config::of_reader(&spec)?)
    }

    fn of(config: Config) -> Result<Reader> {
        let what = format!("cannot wait for a producer at {}", config.path.display());
        let queues = 0..usize::from(config.rings);
        let mut end = Endpoint::new(Link::listen(config)?, queues)?;
        let waker = Arc::new(Waker::new()?);
        end.watch(&waker.bell).map_err(|e| Error::os(Code::System, what, "epoll_ctl", e))?;
        let (windows, past) = (Vec::new(), Counts::default());
        let mut reader = Reader { end, windows, turn: 0, past, waker };
        while reader.end.is_stale() {
            reader.change();
        }
        reader.end.take_changed();
        Ok(reader)
    }

    /// Sleeps until frames arrive, or for `timeout`; returns false after the timeout.
    ///
    /// It returns, too, when a producer has come or gone: see [`Reader::health`].
    ///
    /// # Errors
    /// Whatever poll(2) says.
    ///
    /// Cost: three syscalls if it sleeps; one if there is something.
    pub fn wait(&mut self, timeout: Option<Duration>) -> std::io::Result<bool> {
        // A time beyond the clock's range is later than any uptime, so that no limit is needed.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if !self.arm() {
                return Ok(true);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !poll_readable(&[self.as_fd()], left)? {
                return Ok(false);
            }
        }
    }

    /// Makes the descriptor readable when frames arrive, or when a producer connects or
    /// disconnects; returns false if one of these has happened already: receive before you sleep.
    ///
    /// Shape:  frames that were dropped go back to the producer.
    /// Errors: a violation of the protocol by the producer ends the connection: false.
    /// Cost:   a syscall, and another one if it is to look a second time; a full fence a ring.
    #[must_use = "false: receive now; a caller that sleeps all the same may sleep for ever"]
    pub fn arm(&mut self) -> bool {
        self.look();
        // A change that could not be followed has rung its bell already, and does not ring again.
        if self.end.is_stale() || self.end.take_changed() {
            return false;
        }
        match self.fall_asleep() {
            Ok(true) => {
                self.end.sleep(self.end.second_look);
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.end_connection(error);
                self.end.take_changed();
                false
            }
        }
    }

    /// Returns frames that the producer has sent, at most `max`; each stays in the producer's
    /// memory until it is dropped.
    ///
    /// Shape:  ring [tail+out..) -> frames, in the order of each ring; they are the producer's
    ///         again when dropped. A frame of which the end is not there yet waits.
    /// Errors: none; a violation of the protocol ends the connection and is counted. What came
    ///         before it is given out.
    /// Cost:   an Acquire load and a Release store a ring; a syscall in the first call after `arm`.
    pub fn frames(&mut self, max: usize) -> Frames<'_> {
        if self.end.armed {
            self.look();
        }
        self.follow();
        match self.gather() {
            Ok(true) => self.want_bells(false, None),
            Ok(false) => {}
            Err(error) => self.end_connection(error),
        }
        self.turn = (self.turn + 1) % self.windows.len().max(1);
        Frames::new(self, max)
    }

    /// Returns `Up` while a producer is connected, otherwise the reason why none is connected.
    #[must_use]
    pub fn health(&self) -> Health {
        self.end.health.clone()
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let link = &self.end.link;
        let passed = self.windows.iter().map(Window::counts).fold(self.past, Counts::plus);
        Counts {
            ended: link.ended.load(Ordering::Relaxed),
            protocol_errors: link.errors.load(Ordering::Relaxed),
            ..passed
        }
    }

    /// Returns the rings in the order in which they are read next, as two slices.
    fn windows(&self) -> (&[Window], &[Window]) {
        let (later, first) = self.windows.split_at(self.turn.min(self.windows.len()));
        (first, later)
    }

    /// Ends the connection with a producer that violates the protocol.
    #[cold]
    fn end_connection(&mut self, error: ProtocolError) {
        self.end.disconnect(error);
        self.change();
    }

    /// Takes the rings of a new producer, or detaches those of a producer that has disconnected.
    #[inline]
    fn follow(&mut self) {
        if self.end.is_stale() {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        self.detach();
        let why = "the client has no ring to send by";
        let fix = "give the client a queue to send by, which is a ring from it";
        let rings = self.end.attach(|rings| rings.rx.is_some(), why, fix);
        for Rings { tx, rx } in rings {
            // A reader does not send. The close of the client's doorbell, and of its memory with the
            // last of its rings, can take long.
            if let Some(tx) = tx {
                self.end.retire(tx);
            }
            let Some(ring) = rx.and_then(|rx| rx.into_mapped()) else { continue };
            let window = Window::new(ring, self.waker.clone());
            window.want_bell(false);
            // If watching fails, the endpoint wakes a sleeper at intervals.
            let _ = self.end.watch(&window.bell);
            self.windows.push(window);
        }
    }

    /// Releases the rings; held frames stay readable.
    fn detach(&mut self) {
        for window in self.windows.drain(..) {
            self.end.forget(&window.bell);
            let (counts, memory) = window.end();
            self.past = self.past.plus(counts);
            self.end.retire(memory);
        }
        self.turn = 0;
    }

    /// Reads and clears the events of the descriptor.
    ///
    /// Cost: a syscall.
    fn look(&mut self) {
        self.waker.wake();
        self.end.look();
        self.follow();
    }

    /// Gives dropped frames back to the producer and checks the rings; returns true if there are
    /// frames to read.
    fn gather(&mut self) -> Checked<bool> {
        let mut found = false;
        for window in &mut self.windows {
            window.settle(true);
            found |= window.look()?;
        }
        Ok(found)
    }

    /// Requests the doorbell for the next send or release; returns false if there are frames
    /// already.
    fn fall_asleep(&mut self) -> Checked<bool> {
        self.waker.sleep();
        let now = Instant::now();
        self.want_bells(!self.windows.is_empty(), Some(now));
        self.end.second_look = self.end.second_look.filter(|at| *at > now);
        let found = self.gather()?;
        if found {
            self.waker.wake();
            self.want_bells(false, None);
        }
        Ok(!found)
    }

    /// Sets whether the producer should ring from `now` on; the caller checks the rings afterwards.
    fn want_bells(&mut self, wanted: bool, now: Option<Instant>) {
        if self.end.set_belled(wanted, now) {
            self.windows.iter().for_each(|window| window.want_bell(wanted));
        }
    }
}

impl Counts {
    fn plus(self, other: Counts) -> Counts {
        Counts {
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            copied_out: self.copied_out + other.copied_out,
            ended: self.ended + other.ended,
            protocol_errors: self.protocol_errors + other.protocol_errors,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.detach();
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl AsRawFd for Reader {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.end.link.config.path;
        f.debug_struct("Reader").field("path", path).field("counts", &self.counts()).finish()
    }
}
