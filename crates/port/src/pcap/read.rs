//! Reading: makes skbs from the records of a file.
//!
//! A record for which there is no frame stays in the reader until there is one, so a pool that has
//! run dry delays a capture and never thins it. Of a stream only whole records are taken, as far as
//! they have come: `rx` never blocks. A record that is not due yet stays in the reader as well.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Result};

use super::config::Config;
use super::format::{CaptureError, Reader, Step};
use super::replay::Replay;
use super::source::Source;
use crate::caps::{Caps, Copies};
use crate::host::Retry;
use crate::queue::{Health, HealthKind, QueueOps, Want};
use crate::stats::Counters;

/// Opens a capture and checks its first record, if that is available without waiting.
pub(super) fn open(config: &Config, pool: &Pool) -> Result<ReadQueue> {
    let source = Source::open(&config.place)?;
    let mut queue = ReadQueue {
        stream: source.is_stream(),
        reader: Reader::unread(source),
        name: config.place.to_string(),
        any_link: config.any_link,
        packet_max_bytes: pool.packet_max_bytes(),
        in_hand: false,
        blocked: false,
        replay: config.pace.map(Replay::new),
        alarm: None,
        rx_missed: 0,
        rx_nombuf: 0,
        health: Health::Up,
        told_end: false,
    };
    if !queue.stream {
        queue.look();
    }
    match queue.health {
        Health::Failed(error) => Err(error),
        _ => Ok(queue),
    }
}

pub(super) struct ReadQueue {
    reader: Reader<Source>,
    name: String,
    stream: bool,
    any_link: bool,
    packet_max_bytes: usize,
    /// True if the reader's current record has not been delivered yet.
    in_hand: bool,
    /// True if the stream had no complete record at the last check.
    blocked: bool,
    /// Schedule of the records; `None` if each record is delivered as soon as it is received.
    replay: Option<Replay>,
    /// Time of the next attempt, if the next record is not due or the pool had no frame.
    alarm: Option<Instant>,
    /// Packets longer than any chain of frames, since the port was opened.
    rx_missed: u64,
    /// Receives that ended early for lack of a frame, since the port was opened.
    rx_nombuf: u64,
    health: Health,
    /// True if `arm` has reported the end.
    told_end: bool,
}

impl ReadQueue {
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Takes one step through the file, unless a record waits for delivery; returns false if the
    /// same call must not take another step: there is nothing more for now, or the step has skipped
    /// many blocks, which takes as long as a call may.
    fn look(&mut self) -> bool {
        if self.in_hand || self.health.ended() {
            return self.in_hand;
        }
        let step = self.reader.step();
        self.blocked = matches!(step, Ok(Step::Blocked));
        match step {
            Ok(Step::Packet) => self.judge(),
            Ok(Step::Blocked | Step::Busy) => return false,
            Ok(Step::End) => self.end(Health::Finished),
            Err(e) => self.fail(&e),
        }
        !self.health.ended()
    }

    /// Checks the packet that was just found: keeps it for delivery, counts it as missed if it is
    /// too long, or fails.
    fn judge(&mut self) {
        let Some(record) = self.reader.current() else { return };
        let bytes = if self.any_link { Ok(record.data) } else { record.ethernet() };
        match bytes.map(<[u8]>::len) {
            Ok(len) if len > self.packet_max_bytes => self.rx_missed += 1,
            Ok(_) => self.in_hand = true,
            Err(e) => self.fail(&e),
        }
    }

    fn fail(&mut self, e: &CaptureError) {
        self.end(Health::Failed(e.in_file(&self.name)));
    }

    fn end(&mut self, health: Health) {
        self.health = health;
        self.reader.file_mut().unwatch();
    }
}

impl QueueOps for ReadQueue {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let mut moved = Moved::default();
        if budget.min(out.spare()) == 0 {
            // A record may have come, which `arm` must know of. The alarm for the current one
            // stays.
            self.look();
            return moved;
        }
        self.alarm = None;
        let now = self.replay.as_ref().map(|_| Instant::now());
        // A step without a packet is work, too, so it counts against the budget.
        for _ in 0..budget.min(out.spare()) {
            let may_go_on = self.look();
            if !self.in_hand {
                if may_go_on {
                    continue;
                }
                break;
            }
            let Some(record) = self.reader.current() else { break };
            let paced = self.replay.as_mut().zip(now);
            let paced = paced.map(|(replay, now)| (replay.due(record.time_ns, now), now));
            if let Some((due, _)) = paced.filter(|(due, now)| due > now) {
                self.alarm = Some(due);
                break;
            }
            let Some(mut skb) = mem.alloc_copy(record.data) else {
                // The record stays for the next call.
                self.rx_nombuf += 1;
                self.alarm = Retry::later().at();
                break;
            };
            skb.set_stamp_ns(record.time_ns.unwrap_or(0));
            skb.set_link_type(record.link_type.0);
            skb.set_snapped_bytes(record.orig_len - record.data.len() as u32); // not below it
            self.in_hand = false;
            if let Some((replay, (due, now))) = self.replay.as_mut().zip(paced) {
                replay.left(due, now);
            }
            let bytes = skb.len() as u64;
            // `push` cannot fail: at most `spare` packets are delivered.
            if out.push(skb).is_ok() {
                moved += Moved { packets: 1, bytes };
            }
        }
        moved
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        batch.discard_first(batch.len(), DropReason::UNSUPPORTED, mem);
        Moved::default()
    }

    fn arm(&mut self, want: Want) -> bool {
        // There is always room, also after the end: `xmit` drops all packets.
        if want.room() {
            return false;
        }
        if self.health.ended() {
            return std::mem::replace(&mut self.told_end, true);
        }
        let alarm = self.alarm.filter(|&at| Instant::now() < at);
        if !self.blocked && alarm.is_none() {
            return false;
        }
        self.reader.file_mut().watch(alarm.is_none(), alarm);
        true
    }

    fn health(&self) -> Health {
        self.health.clone()
    }

    fn health_kind(&self) -> HealthKind {
        self.health.kind()
    }

    fn counters(&mut self) -> Counters {
        let pace = self.replay.as_ref().map(Replay::report);
        let (rx_missed, rx_nombuf) = (self.rx_missed, self.rx_nombuf);
        Counters { rx_missed, rx_nombuf, pace, ..Counters::default() }
    }

    fn caps(&self) -> Caps {
        Caps { copies: Copies::Always, ..Caps::IN_PROCESS }
    }
}

impl AsFd for ReadQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.file().as_fd()
    }
}
