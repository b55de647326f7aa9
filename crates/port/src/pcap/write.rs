//! Writing: makes the records of a file from skbs.
//!
//! A packet counts as sent when the kernel has taken all of its block, which costs one write(2) a
//! batch. When a write fails, the packets whose blocks are not whole are dropped, and the queue has
//! failed for good. A regular file that the port names is cut after the last whole block; a pipe
//! and the standard output are not cut.
//!
//! A file that has a capture keeps it until the port is used or a run ends: an engine whose other
//! port cannot be opened, or that never runs, leaves the file as it is.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use linerate_skb::{Batch, DropReason, Error, Local, Moved, Result, Skb};
use linerate_sys::wait::EventFd;

use super::config::{Config, Place};
use super::format::{LinkType, PACKET_LEN_MAX, Writer};
use super::locked::Locked;
use super::target::{check_standard, check_text, lock, locked, opened, refused};
use crate::caps::{Caps, Copies};
use crate::queue::{Health, HealthKind, QueueOps, Want};

/// Name of the interface in the capture.
pub(super) const INTERFACE: &str = "linerate";

/// Most link types of one capture, each of which is an interface in it. Packets of further types
/// are dropped, so that finding the interface of a packet stays cheap whatever a captured file
/// says.
const LINKS_MAX: usize = 32;

/// Truncates a file to a length; does nothing with a file that cannot be truncated.
type Cut<W> = fn(&W, u64) -> io::Result<()>;

/// Opens a capture for writing, and writes its header, unless the file already has a capture.
/// Returns the queue and the length of that capture, which the first use of the port replaces; 0
/// if there is none.
pub(super) fn open(config: &Config) -> Result<(WriteQueue<Locked>, u64)> {
    let (name, any) = (config.place.to_string(), config.any_link);
    match &config.place {
        Place::Standard => {
            if io::stdout().is_terminal() {
                let error = refused(&name, "the standard output is a terminal");
                return Err(error.fix("pipe it: … | tcpdump -r - -nn"));
            }
            let owned = io::stdout().as_fd().try_clone_to_owned();
            let file = owned.map_err(|e| refused(&name, &format!("dup: {e}")))?;
            let mut file = Locked::new(file.into());
            check_standard(&file, &name)?;
            if file.metadata().is_ok_and(|there| there.is_file()) {
                lock(&mut file, &name)?;
            }
            Ok((WriteQueue::new(file, name, any, |_, _| Ok(()))?, 0))
        }
        Place::File(path) => {
            let mut file = Locked::new(opened(path, &name)?);
            check_text(&file, &name)?;
            match locked(&mut file, path, &name)? {
                None => Ok((WriteQueue::new(file, name, any, |_, _| Ok(()))?, 0)),
                Some(0) => Ok((WriteQueue::new(file, name, any, cut)?, 0)),
                Some(len) => Ok((WriteQueue::not_begun(file, name, any, cut)?, len)),
            }
        }
    }
}

/// Cuts a file to `len` bytes.
fn cut(file: &Locked, len: u64) -> io::Result<()> {
    file.set_len(len)
}

pub(super) struct WriteQueue<W: Write> {
    writer: Writer<W>,
    /// The link type of each interface that was declared.
    links: Vec<LinkType>,
    name: String,
    /// True if packets of every link type pass, false for Ethernet frames only.
    any_link: bool,
    /// True once the file is truncated and its header is written.
    begun: bool,
    cut: Cut<W>,
    /// Event that is signalled once, for callers that wait before they arm: a sink delivers no
    /// packets and always has room.
    bell: EventFd,
    /// Buffer in which a packet in several frames is joined.
    joined: Vec<u8>,
    health: Health,
    /// True if `arm` has reported a failure.
    told_end: bool,
}

impl<W: Write> WriteQueue<W> {
    /// Begins a file for Ethernet packets, or, if `any_link` type is allowed, for the link type of
    /// the first packet.
    pub fn new(file: W, name: String, any_link: bool, cut: Cut<W>) -> Result<WriteQueue<W>> {
        let mut queue = WriteQueue::not_begun(file, name, any_link, cut)?;
        if let Err(e) = queue.begin() {
            queue.fail(&e);
            let _ = (queue.cut)(queue.writer.sink(), 0);
            return Err(write_error(&queue.name, &e));
        }
        Ok(queue)
    }

    /// Creates the queue of a file that keeps its content until the queue is used.
    fn not_begun(file: W, name: String, any_link: bool, cut: Cut<W>) -> Result<WriteQueue<W>> {
        let bell = EventFd::new()?;
        bell.signal();
        let (writer, links, joined, health) =
            (Writer::new(file), Vec::new(), Vec::new(), Health::Up);
        let (begun, told_end) = (false, false);
        Ok(WriteQueue { writer, links, name, any_link, begun, cut, bell, joined, health, told_end })
    }

    /// Truncates the file, and writes its header.
    #[cold]
    fn begin(&mut self) -> io::Result<()> {
        self.begun = true;
        (self.cut)(self.writer.sink(), 0)?;
        // Declare the interface now: a file without packets must be a capture, too, and a full disk
        // is found early.
        if !self.any_link {
            self.interface(LinkType::ETHERNET)?;
        }
        self.writer.flush()
    }

    /// Begins the file, unless it has begun; returns false if that fails: then the queue has
    /// failed.
    fn begins(&mut self) -> bool {
        if self.begun {
            return true;
        }
        let begun = self.begin();
        begun.map_err(|e| self.fail(&e)).is_ok()
    }

    /// Returns the number of the capture's interface for this link type; `None` if it is one type
    /// too many.
    fn interface(&mut self, link: LinkType) -> io::Result<Option<u32>> {
        if let Some(at) = self.links.iter().position(|known| *known == link) {
            return Ok(Some(at as u32));
        }
        if self.links.len() >= LINKS_MAX {
            return Ok(None);
        }
        let interface = self.writer.add_interface_of(INTERFACE, link)?;
        self.links.push(link);
        Ok(Some(interface))
    }

    /// Returns the number of the capture's interface for a packet, or the reason for which no
    /// capture can have the packet.
    fn place(&mut self, skb: &Skb) -> io::Result<std::result::Result<u32, DropReason>> {
        if skb.len() > PACKET_LEN_MAX {
            return Ok(Err(DropReason::TOO_LONG));
        }
        let link = LinkType(skb.link_type());
        if !self.any_link && link != LinkType::ETHERNET {
            return Ok(Err(DropReason::UNSUPPORTED));
        }
        Ok(self.interface(link)?.ok_or(DropReason::UNSUPPORTED))
    }

    /// Drops the packets that no capture can have.
    #[cold]
    fn sift(&mut self, batch: &mut Batch) -> io::Result<()> {
        let mut failed = None;
        batch.retain(|skb| match self.place(skb) {
            Ok(place) => place.map(drop),
            Err(e) => {
                failed.get_or_insert(e);
                Ok(())
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Writes the packets from the front of `batch`, up to the first that no capture can have;
    /// returns true if these are all.
    fn write(&mut self, now_ns: &mut Option<u64>, batch: &Batch) -> io::Result<bool> {
        let mut is_all = true;
        for skb in batch.iter() {
            let Ok(interface) = self.place(skb)? else {
                is_all = false;
                break;
            };
            let now_ns = || *now_ns.get_or_insert_with(epoch_ns);
            let time_ns = skb.stamp_ns().unwrap_or_else(now_ns);
            let bytes = whole(skb, &mut self.joined);
            let orig_len = (bytes.len() as u32).saturating_add(skb.snapped_bytes());
            self.writer.write(interface, time_ns, orig_len, bytes)?; // at most PACKET_LEN_MAX
        }
        self.writer.flush()?;
        Ok(is_all)
    }

    fn fail(&mut self, e: &io::Error) {
        // The packets that are not in the file are dropped, so they must not be written later.
        self.writer.give_up();
        // A failure of this is not reported: readers find the incomplete block.
        let _ = (self.cut)(self.writer.sink(), self.writer.whole_len());
        self.health = Health::Failed(write_error(&self.name, e));
    }
}

impl<W: Write> Drop for WriteQueue<W> {
    fn drop(&mut self) {
        if !self.begun {
            // The writer must not write its header over the file's content.
            return self.writer.give_up();
        }
        // Readers expect an interface even in a file without packets. A failure is ignored, because
        // no caller is left to report it to.
        if self.links.is_empty() && self.health == Health::Up {
            let _ = self.interface(LinkType::ETHERNET).and_then(|_| self.writer.flush());
        }
    }
}

fn write_error(name: &str, e: &io::Error) -> Error {
    let error = refused(name, &format!("write: {e}"));
    match e.kind() {
        io::ErrorKind::StorageFull => error.fix("free some space, or write to another disk"),
        io::ErrorKind::BrokenPipe => error.fix("the reader of the pipe has ended: see its errors"),
        io::ErrorKind::FileTooLarge => {
            error.fix("raise the limit of file sizes: ulimit -f, or that of the file system")
        }
        _ => error,
    }
}

/// Returns all bytes of a packet, borrowed if they are in one frame, otherwise copied to `joined`.
fn whole<'a>(skb: &'a Skb, joined: &'a mut Vec<u8>) -> &'a [u8] {
    if skb.data().len() == skb.len() {
        return skb.data();
    }
    joined.resize(skb.len(), 0);
    let n = skb.copy_to(0, joined);
    &joined[..n]
}

/// Returns the time in nanoseconds since 1970, as captures need it.
pub(crate) fn epoch_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl<W: Write + Send> QueueOps for WriteQueue<W> {
    fn rx(&mut self, _: &mut Local, _: &mut Batch, _: usize) -> Moved {
        Moved::default()
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let (mut moved, mut now_ns) = (Moved::default(), None);
        self.begins();
        while !batch.is_empty() && self.health == Health::Up {
            let before = self.writer.packets_whole();
            let written = self.write(&mut now_ns, batch);
            moved += batch.sent((self.writer.packets_whole() - before) as usize, mem);
            // All packets that no capture can have are dropped together, so that they take one
            // write(2).
            let sifted = written.and_then(|is_all| if is_all { Ok(()) } else { self.sift(batch) });
            if let Err(e) = sifted {
                self.fail(&e);
            }
        }
        batch.discard_first(batch.len(), DropReason::WRITE_FAILED, mem);
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        self.bell.drain();
        // A port that fails here is an event, and so is one that has failed, once.
        let begins = self.begins();
        if want.room() {
            return false;
        }
        if self.health.ended() {
            return std::mem::replace(&mut self.told_end, true);
        }
        begins
    }

    fn close(&mut self, _: Instant) {
        // A run without packets replaces the file's content, too. A worker that
        // never ran drops the port without this call.
        self.begins();
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    fn health_kind(&self) -> HealthKind {
        self.health.kind()
    }

    fn caps(&self) -> Caps {
        Caps { copies: Copies::Always, keeps_vlan: false, ..Caps::IN_PROCESS }
    }
}

impl<W: Write> AsFd for WriteQueue<W> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
