//! Counters of the packets that passed a queue, and further results: the pace of a source, and the
//! errors that a verifying sink found. A queue's owner is the only writer of its counters; any
//! thread can read them, at no cost to the owner.

use std::fmt;
use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

use linerate_skb::Moved;
#[cfg(feature = "json")]
use serde::Serialize;

/// Declares [`QueueStats`] and [`QueueCounts`]: each counter in one place, with the words after its
/// number. `live` are those that the queue counts, `of_driver` those that its driver does.
macro_rules! queue_counts {
    (
        live { $($(#[$doc:meta])* $live:ident = $live_words:literal,)* }
        of_driver { $($(#[$driver_doc:meta])* $name:ident = $words:literal,)* }
    ) => {
        /// Live counters of one queue.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct QueueStats {
            $($live: AtomicU64,)*
        }

        impl QueueStats {
            /// Returns the counts so far. Those of the driver, `rx_missed` and `rx_nombuf`, are 0:
            /// [`Queue::counts`](crate::Queue::counts) has them.
            #[must_use]
            pub fn counts(&self) -> QueueCounts {
                QueueCounts {
                    $($live: self.$live.load(Ordering::Relaxed),)*
                    $($name: 0,)*
                }
            }
        }

        /// A reading of [`QueueStats`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct QueueCounts {
            $($(#[$doc])* pub $live: u64,)*
            $($(#[$driver_doc])* pub $name: u64,)*
        }

        impl QueueCounts {
            /// Returns all counters, each with its name, which is that of the field, its words and
            /// its count: for an exporter, which so has each new counter.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![
                    $((stringify!($live), $live_words, self.$live),)*
                    $((stringify!($name), $words, self.$name),)*
                ]
            }
        }

        impl std::ops::AddAssign for QueueCounts {
            fn add_assign(&mut self, more: QueueCounts) {
                $(self.$live += more.$live;)*
                $(self.$name += more.$name;)*
            }
        }
    };
}

queue_counts! {
    live {
        /// Packets received.
        rx_packets = "packets received",
        /// Bytes of received packets, from the destination MAC, without FCS.
        rx_bytes = "bytes received",
        /// Packets sent, without those that the queue accepted and then dropped because its device
        /// was lost or closed ([`Counters::tx_lost`]).
        tx_packets = "packets sent",
        /// Bytes of sent packets.
        tx_bytes = "bytes sent",
        /// Times that the queue was polled.
        polls = "polls",
        /// Polls that found nothing.
        polls_empty = "polls that found nothing",
        /// Ends of a sleep by the device, which woke the queue's owner; for a program that sleeps
        /// by itself, behind [`Queue::arm`](crate::Queue::arm), those that brought packets.
        wakeups = "sleeps ended by the device",
        /// Ends of a sleep by the timer of a hold.
        hold_ends = "sleeps ended by the timer of a hold",
        /// Times that the owner was about to sleep and found an event.
        rechecks = "sleeps cancelled by an event",
    }
    of_driver {
        /// Packets that the kernel or peer counts as lost before they reached the queue, or that
        /// the queue had not read when its ring was closed.
        rx_missed = "packets missed",
        /// Polls that ended early because the pool had no frame.
        rx_nombuf = "polls ended because the pool had no frame",
    }
}

/// Declares [`DriverCounts`]: each counter in one place, with its key in reports and the words
/// after its number.
macro_rules! driver_counts {
    ($($(#[$doc:meta])* $name:ident $key:literal $words:literal,)*) => {
        /// Counters of a driver other than packets, since it was opened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct DriverCounts {
            /// Bytes of packets that the driver copied in this process; `None` if it does not count
            /// them.
            pub copied_bytes: Option<u64>,
            /// Doorbells of the transmit rings: system calls that sent, or index updates that a
            /// peer can see; `None` for a device without doorbells.
            pub doorbells: Option<u64>,
            /// Register accesses at their modelled price, for a port with the option `toll=`.
            pub registers: Option<Registers>,
            /// Setting of a longer receive ring, as in `ring=4096`; `None` for a device whose ring
            /// has no setting.
            pub longer_ring: Option<&'static str>,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl DriverCounts {
            /// Returns the counters that every driver has, each with its key, words and count. A
            /// key that begins with `missed_` belongs to a cause of lost packets.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$(($key, $words, self.$name),)*]
            }
        }

        /// Sums the counters of a port's queues: bytes copied, doorbells and registers stay unknown
        /// if no queue counts them.
        impl std::ops::AddAssign for DriverCounts {
            fn add_assign(&mut self, more: DriverCounts) {
                self.copied_bytes = sum(self.copied_bytes, more.copied_bytes);
                self.doorbells = sum(self.doorbells, more.doorbells);
                self.registers = sum(self.registers, more.registers);
                self.longer_ring = self.longer_ring.or(more.longer_ring);
                $(self.$name += more.$name;)*
            }
        }
    };
}

impl DriverCounts {
    /// Returns the known causes of missed packets, each with its remedy: `: 500 ring full (a longer
    /// ring: ring=4096)`.
    #[must_use]
    pub fn missed_why(&self) -> String {
        let causes =
            self.named().into_iter().filter(|(key, _, n)| key.starts_with("missed_") && *n > 0);
        let causes: Vec<_> = causes.map(|(_, words, n)| format!("{n} {words}")).collect();
        let fix = self.missed_fix().map_or(String::new(), |fix| format!(" ({fix})"));
        if causes.is_empty() { String::new() } else { format!(": {}{fix}", causes.join(", ")) }
    }

    /// Returns these counts without those of missed packets: for a port that nobody reads, and that
    /// so misses all.
    #[must_use]
    pub fn without_missed(self) -> DriverCounts {
        DriverCounts {
            missed_ring_full: 0,
            missed_no_cpu: 0,
            missed_no_frame: 0,
            missed_unread: 0,
            ..self
        }
    }

    /// Returns the remedy for the most frequent cause of missed packets that has one, if there were
    /// some. There is none for [`missed_unread`](DriverCounts::missed_unread).
    #[must_use]
    pub fn missed_fix(&self) -> Option<String> {
        if self.missed_no_frame > self.missed_ring_full.max(self.missed_no_cpu) {
            return Some("a larger pool, or packets given back sooner".into());
        }
        let setting = self.longer_ring.map_or(String::new(), |setting| format!(": {setting}"));
        if self.missed_no_cpu > self.missed_ring_full {
            let cpu = "a CPU that other programs do not use";
            return Some(format!("{cpu}, or a longer ring{setting}"));
        }
        (self.missed_ring_full > 0).then(|| format!("a longer ring{setting}"))
    }
}

driver_counts! {
    /// Missed packets for which the receive ring had no room.
    missed_ring_full "missed_ring_full_packets" "ring full",
    /// Missed packets for which the receive ring had no room while the queue's thread waited for
    /// a CPU; an estimate.
    missed_no_cpu "missed_no_cpu_packets" "no CPU in time",
    /// Missed packets for which no frame was posted, or none of enough length; of `packet` and
    /// `tap`, those lost since the last reading if the pool had no frame meanwhile.
    missed_no_frame "missed_no_frame_packets" "no frame",
    /// Missed packets that had arrived in the receive ring and were not read before the ring was
    /// closed.
    missed_unread "missed_unread_packets" "unread when the ring was closed",
    /// Times that the socket was reopened because the device kept packets and returned none.
    resets "resets" "resets",
    /// Invalid descriptors of the device, each refused.
    bad_descs "bad_descs" "bad descriptors",
}

/// Modelled register accesses of a queue, and the CPU time that they took: see
/// [`toll`](crate::wrap::toll).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
pub struct Registers {
    /// Posted register writes.
    pub writes: u64,
    /// Flushing reads, for which the CPU spins.
    pub reads: u64,
    /// Time that the writes took.
    pub write_ns: u64,
    /// Time that the reads took.
    pub read_ns: u64,
}

/// Counters of one queue that its driver keeps, since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets that the kernel or the peer counts as lost before they reached the queue, or that
    /// the queue had not read when its ring was closed.
    pub rx_missed: u64,
    /// Receives that ended early because the pool had no frame. The remaining packets wait in the
    /// device's ring or in the file, or are made later.
    pub rx_nombuf: u64,
    /// Packets that `xmit` returned as accepted, and that were dropped because the device was lost
    /// or closed before it sent them.
    pub tx_lost: Moved,
    /// Causes of losses, bytes copied.
    pub driver: DriverCounts,
    /// Result of a verifying sink.
    pub verified: Option<Verified>,
    /// Pace of a paced source.
    pub pace: Option<Pace>,
}

/// Result of a paced run. Packets become due when the source is asked for packets: while the output
/// has no room at all, nothing becomes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pace {
    /// Packets that were due at the last request.
    pub asked: u64,
    /// Packets that left the source.
    pub sent: u64,
    /// Packets that were due at the last request and were not sent.
    pub unsent: u64,
    /// Median lateness against the intended time; `None` if too few packets were sent.
    pub late_p50_ns: Option<u64>,
    /// 99th percentile of the lateness; `None` if too few packets were sent.
    pub late_p99_ns: Option<u64>,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: Option<u64>| match ns {
            Some(ns) => format!("{:.1} us", ns as f64 / 1e3),
            None => "-".into(),
        };
        write!(
            f,
            "asked {}  sent {}  unsent {}  late p50 {}  p99 {}",
            self.asked,
            self.sent,
            self.unsent,
            us(self.late_p50_ns),
            us(self.late_p99_ns)
        )
    }
}

/// Result of a verifying sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "json", derive(Serialize))]
#[non_exhaustive]
pub struct Verified {
    /// Stamped packets received.
    pub packets: u64,
    /// Sequence numbers that never arrived, below the highest received.
    pub lost: u64,
    /// Packets that arrived after a later one of their flow.
    pub reordered: u64,
    /// Packets that arrived more than once.
    pub duplicated: u64,
    /// Packets more than 64 numbers late, so that it is unknown whether they are duplicates. If
    /// they are not, their numbers are still counted as `lost`.
    pub late: u64,
    /// Stamped packets with a changed byte.
    pub corrupted: u64,
    /// Packets without a stamp.
    pub foreign: u64,
}

impl QueueCounts {
    /// Returns the number of irqs: sleeps that the device or a timer has ended.
    #[must_use]
    pub fn irqs(&self) -> u64 {
        self.wakeups + self.hold_ends
    }
}

/// Adds two values, of which either may be unknown.
fn sum<T: Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(some), Some(more)) => Some(some + more),
        (one, other) => one.or(other),
    }
}

impl Add for Registers {
    type Output = Registers;

    fn add(self, more: Registers) -> Registers {
        Registers {
            writes: self.writes + more.writes,
            reads: self.reads + more.reads,
            write_ns: self.write_ns + more.write_ns,
            read_ns: self.read_ns + more.read_ns,
        }
    }
}

/// Adds to a counter that has a single writer.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl QueueStats {
    /// Counts one poll that found `packets`. Only the queue's owner calls it.
    pub fn count_rx(&self, packets: u64, bytes: u64) {
        add(&self.polls, 1);
        if packets == 0 {
            return add(&self.polls_empty, 1);
        }
        add(&self.rx_packets, packets);
        add(&self.rx_bytes, bytes);
    }

    /// Counts packets sent. Only the queue's owner calls it.
    pub fn count_tx(&self, packets: u64, bytes: u64) {
        add(&self.tx_packets, packets);
        add(&self.tx_bytes, bytes);
    }

    /// Takes packets back that were counted as sent. Only the queue's owner calls it.
    pub(crate) fn take_back_tx(&self, packets: u64, bytes: u64) {
        for (counter, n) in [(&self.tx_packets, packets), (&self.tx_bytes, bytes)] {
            counter.store(counter.load(Ordering::Relaxed).saturating_sub(n), Ordering::Relaxed);
        }
    }

    /// Counts a wake-up. Only the queue's owner calls it.
    pub fn count_wakeup(&self) {
        add(&self.wakeups, 1);
    }

    /// Counts the end of a hold. Only the queue's owner calls it.
    pub fn count_hold_end(&self) {
        add(&self.hold_ends, 1);
    }

    /// Counts a sleep that was cancelled because an event had occurred. Only the queue's owner
    /// calls it.
    pub fn count_recheck(&self) {
        add(&self.rechecks, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_packets_have_the_remedy_of_their_most_frequent_cause() {
        let fix = |missed_ring_full, missed_no_cpu, missed_no_frame| {
            let missed = DriverCounts {
                missed_ring_full,
                missed_no_cpu,
                missed_no_frame,
                longer_ring: Some("ring=4096"),
                ..DriverCounts::default()
            };
            missed.missed_fix().unwrap_or_default()
        };
        assert!(fix(2, 1, 1).contains("ring=4096") && fix(1, 2, 1).contains("CPU"));
        let unset = DriverCounts { missed_ring_full: 1, ..DriverCounts::default() };
        assert_eq!(unset.missed_fix().as_deref(), Some("a longer ring"));
        assert!(fix(1, 1, 2).contains("larger pool") && fix(0, 0, 1).contains("larger pool"));
        assert_eq!(fix(0, 0, 0), "");
    }

    #[test]
    fn each_counter_of_a_queue_is_named_once_with_its_own_count() {
        let stats = QueueStats::default();
        stats.count_rx(3, 180);
        stats.count_tx(2, 120);
        let counts = QueueCounts { rx_missed: 7, rx_nombuf: 8, ..stats.counts() };
        let mut all = counts;
        all += counts;
        let named = all.named();
        // All fields are words of 8 bytes, so a field without a name would make the struct longer.
        assert_eq!(named.len() * 8, size_of::<QueueCounts>());
        let of = |name| named.iter().find(|(key, _, _)| *key == name).map(|(_, _, n)| *n);
        let names =
            ["rx_packets", "rx_bytes", "tx_packets", "polls", "wakeups", "rx_missed", "rx_nombuf"];
        assert_eq!(names.map(of), [6, 360, 4, 2, 0, 14, 16].map(Some));
        assert!(named.iter().enumerate().all(|(i, a)| named[..i].iter().all(|b| a.0 != b.0)));
    }
}
