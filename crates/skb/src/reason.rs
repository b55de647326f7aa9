//! Reasons for dropping packets. Every dropped packet has exactly one.

use std::fmt;

use linerate_wire::Malformed;

/// The reason of a drop: one of the library's, or one that a program names.
///
/// A program that merely drops an [`Skb`](crate::Skb) has *consumed* it; a reason is for packets
/// that its sender wanted delivered.
///
/// Two reasons are equal if their numbers and their names are; a `match` can name one, as in
/// `DropReason::TX_FULL => …`. A [`Ledger`](crate::Ledger) counts by the number alone, under the
/// first name: declare one constant for each number of the program's own, and look a count up by
/// [`Ledger::dropped`](crate::Ledger::dropped).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DropReason {
    code: u8,
    name: &'static str,
}

/// Number of reasons that a program can name.
const APP_MAX: u8 = 64;
/// Number of all reasons: the library's first, then the program's.
pub(crate) const REASONS: usize = 2 * APP_MAX as usize;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal;)*) => {
        impl DropReason {
            $($(#[$doc])* pub const $name: DropReason = DropReason { code: $code, name: $text };)*
        }
        const OURS: &[DropReason] = &[$(DropReason::$name),*];
    };
}

reasons! {
    /// The transmit ring and the queue before it were full.
    TX_FULL = 0 "tx_full";
    /// No frame was free to receive or copy the packet into.
    NO_FRAME = 1 "no_frame";
    /// The descriptor was outside the umem, or its length beyond its frame.
    BAD_DESC = 2 "bad_desc";
    /// The packet was longer than the device, or a chain of the pool's frames, can carry.
    TOO_LONG = 3 "too_long";
    /// The headers contradicted each other or the frame's length.
    MALFORMED = 4 "malformed";
    /// No stage gave the packet a destination.
    NO_ROUTE = 5 "no_route";
    /// The packet was created, but not sent in time.
    UNSENT = 6 "unsent";
    /// The device was down or no longer existed.
    DEVICE_DOWN = 7 "device_down";
    /// The kernel or a file refused the write.
    WRITE_FAILED = 8 "write_failed";
    /// The packet was still queued when the path stopped.
    STOPPED = 9 "stopped";
    /// The device cannot do what the packet needs (segmentation, checksum).
    UNSUPPORTED = 10 "unsupported";
    /// The peer of a ring had disconnected.
    PEER_GONE = 11 "peer_gone";
    /// The packet was of a kind that this path does not accept.
    UNWANTED = 12 "unwanted";
    /// An injected fault dropped the packet on purpose.
    INJECTED = 13 "injected";
    /// The queueing discipline had reached its limit of packets.
    QUEUE_LIMIT = 14 "queue_limit";
    /// The flow had reached its limit of waiting packets.
    FLOW_LIMIT = 15 "flow_limit";
    /// The queueing discipline found that the packets' queueing delay had been too long for too
    /// long; or a tunnel header had the congestion mark, and the inner packet cannot carry it (RFC
    /// 6040).
    CONGESTED = 16 "congested";
}

impl DropReason {
    /// Returns reason `n`, below 64, of the program's own, under the name that ledgers and metrics
    /// print.
    ///
    /// # Panics
    /// If `n` is 64 or more. In a constant such a number does not compile.
    #[must_use]
    pub const fn app(n: u8, name: &'static str) -> DropReason {
        assert!(n < APP_MAX, "a program can name 64 drop reasons, 0 to 63");
        DropReason { code: APP_MAX + n, name }
    }

    /// Returns the name as it is printed: `tx_full`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns a reason of the program's own whose name is not known yet.
    pub(crate) const fn unnamed(index: usize) -> DropReason {
        DropReason { code: index as u8, name: "app" }
    }

    pub(crate) const fn index(self) -> usize {
        self.code as usize
    }

    /// Returns the index among the program's own reasons, if the reason is one of them.
    pub(crate) const fn app_index(self) -> Option<usize> {
        if self.code >= APP_MAX { Some((self.code - APP_MAX) as usize) } else { None }
    }

    /// Returns the library's reason at `index`, if there is one.
    pub(crate) fn ours(index: usize) -> Option<DropReason> {
        OURS.iter().copied().find(|r| r.index() == index)
    }
}

/// Returns `UNWANTED` for a well-formed packet of another kind, `CONGESTED` for one that was marked
/// on its way and has no field for the mark, and `MALFORMED` for all others, so that a closure of
/// [`Batch::retain`](crate::Batch::retain) can apply `?` to a view's error.
impl From<Malformed> for DropReason {
    fn from(malformed: Malformed) -> DropReason {
        match malformed {
            Malformed::Congestion => DropReason::CONGESTED,
            _ if malformed.is_other_kind() => DropReason::UNWANTED,
            _ => DropReason::MALFORMED,
        }
    }
}

impl fmt::Debug for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DropReason({})", self.name)
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_keys_of_a_map() {
        let reasons = [DropReason::TX_FULL, DropReason::app(0, "blocked"), DropReason::TX_FULL];
        let different: std::collections::HashSet<DropReason> = reasons.into();
        assert_eq!(different.len(), 2);
    }

    #[test]
    fn every_reason_has_its_own_code_and_name() {
        for (i, a) in OURS.iter().enumerate() {
            assert!(a.app_index().is_none());
            assert!(OURS[i + 1..].iter().all(|b| a != b && a.name() != b.name()));
            assert_eq!(DropReason::ours(a.index()), Some(*a));
        }
    }

    #[test]
    fn packets_of_another_kind_or_with_a_congestion_mark_are_not_malformed() {
        assert_eq!(DropReason::from(Malformed::NotUdp), DropReason::UNWANTED);
        assert_eq!(DropReason::from(Malformed::Congestion), DropReason::CONGESTED);
        assert_eq!(DropReason::from(Malformed::BadLength), DropReason::MALFORMED);
    }

    #[test]
    fn reasons_are_equal_by_number_and_name_and_counted_by_number() {
        const BLOCKED: DropReason = DropReason::app(0, "blocked");
        const OTHER: DropReason = DropReason::app(0, "other");
        assert_ne!(BLOCKED, OTHER);
        let named = |reason| match reason {
            DropReason::TX_FULL => "full",
            BLOCKED => "mine",
            _ => "other",
        };
        assert_eq!([DropReason::TX_FULL, BLOCKED, OTHER].map(named), ["full", "mine", "other"]);
        let pool = crate::Pool::builder().frames(4).build().unwrap();
        for reason in [BLOCKED, OTHER] {
            pool.local().alloc_one().unwrap().discard(reason);
        }
        let ledger = pool.ledger();
        assert_eq!(ledger.dropped, [(BLOCKED, 2)]);
        assert_eq!((ledger.dropped(BLOCKED), ledger.dropped(OTHER)), (2, 2));
    }

    #[test]
    fn a_program_names_its_own() {
        const BLOCKED: DropReason = DropReason::app(63, "blocked");
        assert_eq!((BLOCKED.name(), BLOCKED.app_index()), ("blocked", Some(63)));
        assert_eq!(BLOCKED.index(), REASONS - 1);
    }
}
