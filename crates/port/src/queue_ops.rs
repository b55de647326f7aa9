//! The trait that drivers implement for one queue of a device.

use std::os::fd::AsFd;
use std::sync::Weak;
use std::time::Instant;

use linerate_skb::{Batch, Local, Moved};

use crate::caps::Caps;
use crate::health::{Health, HealthKind};
use crate::moderation::HoldControl;
use crate::stats::Counters;
use crate::want::Want;

/// A driver's side of one queue. Its descriptor never changes and signals every event as readable;
/// it is readable until it is armed for the first time.
///
/// A driver that copies needs no `unsafe`. Calls come from one thread at a time.
pub trait QueueOps: AsFd + Send {
    /// Receives up to `budget` packets into `out`, which has room for them; returns how many
    /// arrived.
    ///
    /// Shape:  device -> out[len..len+n], n <= budget, in the device's order; caller owns them.
    /// Units:  packets, and their bytes as [`Skb::len`](linerate_skb::Skb::len) counts them.
    /// Errors: none; what cannot be received is counted in `mem`'s ledger, with its reason.
    /// Cost:   no allocation; syscalls for as many packets as the device gives at a time, none in a
    ///         ring that is mapped.
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved;

    /// Sends packets from the front of `batch`; packets that do not fit stay, in order.
    ///
    /// Shape:  batch[0..n) -> device (freed as sent); batch[n..) stays the caller's. What can never
    ///         be sent (too long, unsupported) is dropped with its reason, and leaves the batch
    ///         too.
    /// Units:  packets; one that the driver multiplies counts as its copies: the batch's length
    ///         says what left.
    /// Cost:   one doorbell for as many packets as the device takes at a time: for one with a ring,
    ///         all that have room.
    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved;

    /// Makes the descriptor readable when the wanted event occurs; returns false if it has occurred
    /// already.
    ///
    /// Shape:  false: poll now; true: it is safe to sleep on the descriptor, no event is missed.
    ///         Packets that came since the last `rx` are reported in either way: by false, or by
    ///         true and a descriptor that is readable at once. Packets that an `rx` left there, and
    ///         room, are reported by false alone: an edge-triggered poller (mio, tokio) sees each
    ///         event once.
    /// Errors: a device in trouble counts as an event: false, and see `health`. So does the end of
    ///         a device that will receive nothing more: false once after it, whatever is wanted, so
    ///         that the caller sees `health`; then true, so that the caller can sleep.
    /// Cost:   a syscall if what is wanted changed since the last time, and one or two where the
    ///         driver must look at its device or drain its doorbell before a sleep.
    #[must_use = "false: poll now; a caller that sleeps all the same may sleep for ever"]
    fn arm(&mut self, want: Want) -> bool;

    /// Makes the descriptor also readable at `at`, after [`arm`](QueueOps::arm) has returned true;
    /// returns false if the driver cannot, so that the caller must not sleep. Used when a segment
    /// waits for a free frame, which no event signals.
    ///
    /// Cost: a syscall.
    fn alarm(&mut self, at: Instant) -> bool {
        let _ = at;
        false
    }

    /// Makes the descriptor readable at `at`, or at most a quarter of the time until then earlier or
    /// a sixteenth later, and stops the device's signals until the queue is armed again, so that no sender pays for
    /// waking the caller. Returns false if the driver cannot do this; the caller then arms instead.
    ///
    /// Cost: a syscall; one more for the first of several in a row.
    fn hold(&mut self, at: Instant) -> bool {
        let _ = at;
        false
    }

    /// Returns the control of the device's own hold, if it has one that can be changed while the
    /// queue is used. It is a weak reference, because the hold ends with the port.
    fn hold_control(&self) -> Option<Weak<dyn HoldControl>> {
        None
    }

    /// Reports to the driver that its device, or the timer of a hold, ended the caller's sleep.
    /// This is an irq: it costs a register access on a NIC, and a wrapper counts it.
    fn irq(&mut self) {}

    /// Takes back the packets that the device has sent; returns how many packets, or parts of
    /// packets, the device still has to send, or 0 if this is unknown. A caller that closes the
    /// queue waits until the number is 0; an engine that does not poll the queue calls this until
    /// then, after 1 ms and at growing intervals of up to a second.
    ///
    /// Shape:  sent packets -> freed as sent.
    /// Cost:   as the look that `xmit` takes.
    fn reap(&mut self, mem: &mut Local) -> usize {
        let _ = mem;
        0
    }

    /// Closes the device as dropping the queue does, so that [`counters`](QueueOps::counters) then
    /// counts the packets that are lost by it, as far as the driver can count them. Afterwards the
    /// caller calls only `counters`, `caps` and `health`, and drops the queue. A worker that never
    /// ran drops its queues without this call.
    ///
    /// Shape:  packets that the device has not sent -> dropped, and counted as
    ///         [`tx_lost`](Counters::tx_lost) (`xdp`, `memif`, `verbs`), or left in flight, if the
    ///         kernel may still read their frames (`xdp`); packets that it has
    ///         received -> counted as [`rx_missed`](Counters::rx_missed) (`xdp`, `memif`). Other
    ///         drivers lose received packets without counting them.
    /// Cost:   may wait until `until` for the device to send packets and to give up frames; a memif
    ///         client waits for its control thread for 50 ms even if `until` has passed.
    fn close(&mut self, until: Instant) {
        let _ = until;
    }

    /// Returns the number of packets that a wrapper withholds: those that it received and has not
    /// delivered, and those that it took and has not sent.
    fn withheld(&self) -> usize {
        0
    }

    /// Returns the state of the device.
    ///
    /// Cost: for a device in trouble, the allocations of a copy of its error.
    fn health(&self) -> Health {
        Health::Up
    }

    /// Returns the state of the device, without the error. A driver whose `health` copies an error
    /// returns it without the copy, because a worker asks each time that it finds nothing to do.
    fn health_kind(&self) -> HealthKind {
        self.health().kind()
    }

    /// Returns the driver's counters since the queue was opened. They are read at one time, so that
    /// losses with a known cause never exceed all losses.
    ///
    /// Cost: a syscall, where the kernel counts.
    fn counters(&mut self) -> Counters {
        Counters::default()
    }

    /// Returns the current capabilities of the queue. Callers read them when they start to use the
    /// queue; a ring's length is also read later.
    fn caps(&self) -> Caps {
        Caps::default()
    }
}
