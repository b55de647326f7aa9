//! The writer of copies to pcapng, on a thread that the program chooses.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use linerate_ring::Events;
use linerate_skb::{Code, Error, Result};
use linerate_sys::wait::poll_readable;

use super::copies::{Copied, Inbox, Way};
use super::{Reading, Shared};
use crate::pcap::format::Writer;

/// Most bytes that a packet's block has in addition to the packet.
const BLOCK_BYTES: u64 = 48;
/// Most bytes of an interface's block, and of the file header.
const INTERFACE_BYTES: u64 = 512;

/// Values of the direction bits in a packet block's flags.
///
/// Source: draft-ietf-opsawg-pcapng, section 4.3.1.
const INBOUND: u32 = 0b01;
const OUTBOUND: u32 = 0b10;

/// The writing side of a capture. It does nothing by itself: call [`TeeWriter::write_pending`],
/// with [`TeeWriter::wait`] between the calls, on a thread that may wait for a disk.
///
/// Dropping it ends the capture; [`TeeWriter::finish`] tells of a failure too.
#[must_use = "dropping it ends the capture"]
pub struct TeeWriter<W: Write> {
    shared: Arc<Shared>,
    number: u32,
    file: Writer<W>,
    /// Upper bound of the file's length so far; the next field is its limit.
    file_bytes: u64,
    /// True if a packet did not fit into the file.
    full: bool,
    /// Packets passed to the file; the next field has those that the sink has accepted completely.
    given: u64,
    whole: u64,
    scratch: Vec<u8>,
}

impl<W: Write> TeeWriter<W> {
    pub(super) fn new(shared: Arc<Shared>, number: u32, sink: W) -> TeeWriter<W> {
        let mut writer = TeeWriter {
            shared,
            number,
            file: Writer::new(sink),
            file_bytes: INTERFACE_BYTES,
            full: false,
            given: 0,
            whole: 0,
            scratch: Vec::new(),
        };
        // Remove the copies of an earlier capture, which must not be in this one.
        writer.forget();
        writer
    }

    /// Writes the waiting copies of all queues, and flushes the file; returns the number of copies
    /// written.
    ///
    /// Packets of one queue are in order; those of several are not put into order among them.
    ///
    /// # Errors
    /// `E-FILE` if the file fails: the capture has ended, and the packet path has noticed nothing.
    ///
    /// Cost: one copy, and a write(2) for 64 KiB; it returns even if copies come faster.
    pub fn write_pending(&mut self) -> Result<u64> {
        let outcome = self.write_all();
        let outcome = outcome.and_then(|()| self.file.flush());
        let written = self.file.packets_whole() - self.whole;
        self.whole += written;
        self.shared.written.fetch_add(written, Ordering::Relaxed);
        outcome.map_err(|e| {
            self.shared.end(self.number);
            self.shared.unwritten.fetch_add(self.given - self.whole, Ordering::Relaxed);
            self.given = self.whole;
            self.file.give_up();
            Error::new(Code::File, "cannot write a capture", e.to_string())
                .fix("see that the disk has room and that the pipe has a reader")
        })?;
        Ok(written)
    }

    /// Sleeps until there are copies to write, the capture has ended, or `timeout` has passed;
    /// returns false after the timeout.
    ///
    /// # Errors
    /// Whatever poll(2) says.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.shared.bell.drain();
        let ended = || self.shared.capture.load(Ordering::Acquire) != self.number;
        {
            let Reading { inboxes, waiter } = &mut *self.shared.reading();
            waiter.prepare(Events::FRAMES);
            if ended() || inboxes.iter_mut().any(|inbox| inbox.waiting_bytes() > 0) {
                waiter.cancel();
                return Ok(true);
            }
        }
        let readable = poll_readable(&[self.shared.bell.as_fd()], timeout);
        self.shared.reading().waiter.cancel();
        readable
    }

    /// Returns true once the capture has ended: it was stopped, has failed, or the file has reached
    /// its limit. Earlier copies may still be written.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.shared.capture.load(Ordering::Acquire) != self.number
    }

    /// Returns true if the file has reached its limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Ends the capture, and writes the waiting copies; returns the number of packets in the file.
    ///
    /// # Errors
    /// As [`TeeWriter::write_pending`].
    pub fn finish(mut self) -> Result<u64> {
        self.shared.end(self.number);
        self.write_pending()?;
        Ok(self.whole)
    }

    /// Writes without the lock, which [`Tee::wrap`](super::Tee::wrap) takes, because the sink may
    /// block.
    fn write_all(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let mut taken = Taken::from(&shared);
        let outcome = taken.inboxes.iter_mut().try_for_each(|inbox| self.write_from(inbox));
        taken.inboxes.retain_mut(|inbox| !inbox.is_over());
        outcome
    }

    /// Writes the copies that wait in `inbox` at the start of the call.
    fn write_from(&mut self, inbox: &mut Inbox) -> io::Result<()> {
        let mut left = inbox.waiting_bytes();
        while left > 0
            && let Some((copy, bytes)) = inbox.next(&mut self.scratch)
        {
            left = left.saturating_sub(bytes);
            if copy.capture != self.number || self.full {
                self.shared.unwritten.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let written = self.write(&copy, inbox);
            if !matches!(written, Ok(true)) {
                self.shared.unwritten.fetch_add(1, Ordering::Relaxed);
            }
            written?;
        }
        Ok(())
    }

    /// Writes the packet in the scratch buffer; returns false if the file would become too long.
    fn write(&mut self, copy: &Copied, inbox: &mut Inbox) -> io::Result<bool> {
        let bytes = BLOCK_BYTES + self.scratch.len() as u64;
        if self.file_bytes + INTERFACE_BYTES + bytes > self.shared.limits.file_bytes {
            self.full = true;
            self.shared.end(self.number);
            return Ok(false);
        }
        let interface = match inbox.interface {
            Some((capture, interface)) if capture == self.number => interface,
            _ => {
                let interface = self.file.add_interface(&inbox.name)?;
                inbox.interface = Some((self.number, interface));
                self.file_bytes += INTERFACE_BYTES;
                interface
            }
        };
        let flags = if copy.way == Way::Rx { INBOUND } else { OUTBOUND };
        let data = &self.scratch;
        self.file.write_flagged(interface, copy.time_ns, copy.orig_len, data, flags)?;
        self.file_bytes += bytes;
        self.given += 1;
        Ok(true)
    }

    /// Removes the waiting copies without writing them.
    fn forget(&mut self) {
        for inbox in &mut self.shared.reading().inboxes {
            let copies = inbox.discard(&mut self.scratch);
            self.shared.unwritten.fetch_add(copies, Ordering::Relaxed);
        }
    }
}

/// The inboxes while they are written; they go back before those that were added meanwhile, also
/// after a panic of the sink.
struct Taken<'a> {
    shared: &'a Shared,
    inboxes: Vec<Inbox>,
}

impl<'a> Taken<'a> {
    fn from(shared: &'a Shared) -> Taken<'a> {
        Taken { shared, inboxes: std::mem::take(&mut shared.reading().inboxes) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut reading = self.shared.reading();
        self.inboxes.append(&mut reading.inboxes);
        reading.inboxes = std::mem::take(&mut self.inboxes);
    }
}

impl<W: Write> Drop for TeeWriter<W> {
    fn drop(&mut self) {
        self.shared.end(self.number);
        self.shared.busy.store(false, Ordering::Release);
    }
}

impl<W: Write> std::fmt::Debug for TeeWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TeeWriter")
            .field("written", &self.whole)
            .field("full", &self.full)
            .finish_non_exhaustive()
    }
}
