//! Drivers that are broken on purpose: the case that tests for a fault detects it.

use std::any::Any;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Local, Moved, Pool, Result};
use linerate_sys::wait::EventFd;

use crate::caps::Caps;
use crate::conformance::{Ends, Ran, Rig, cases};
use crate::driver::Opened;
use crate::queue::{Health, QueueOps, Want};
use crate::ring;

/// A fault of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    LosesAPacket,
    FreesInsteadOfSending,
    Duplicates,
    Reorders,
    Truncates,
    FlipsAByte,
    ForgetsFragments,
    LeaksAFrame,
    SaysThatItReceivedMore,
    SaysThatItSentMore,
    KeepsTheRestInAnotherOrder,
    IgnoresTheBudget,
    ArmsThoughPacketsWait,
    ArmsThoughPacketsAreLeft,
    ForgetsToWake,
    ForgetsToAnnounceRoom,
    SpinsWhenFull,
    IsReadableWithoutCause,
    HoldsForEver,
    TellsOfTheEndForEver,
    ChangesItsDescriptor,
}

/// A queue with a fault, which wraps a queue that works.
struct Broken {
    inner: Box<dyn QueueOps>,
    fault: Fault,
    /// Packets received and sent so far.
    received: usize,
    sent: usize,
    /// The descriptor that a queue returns whose fault is a wrong descriptor.
    other: EventFd,
    armed: bool,
}

impl Broken {
    /// Returns true for one packet in 50, which the fault affects.
    fn unlucky(&self) -> bool {
        self.received % 50 == 49
    }

    fn receive_one(&mut self, mem: &mut Local, out: &mut Batch) -> usize {
        let before = out.len();
        self.inner.rx(mem, out, 1);
        if out.len() == before {
            return 0;
        }
        let unlucky = self.unlucky();
        self.received += 1;
        if !unlucky {
            return 1;
        }
        match self.fault {
            Fault::LosesAPacket => out.truncate(before),
            Fault::LeaksAFrame => {
                let _lost = ManuallyDrop::new(mem.alloc_one());
            }
            Fault::Duplicates => {
                let copy = out.iter().next_back().map(|skb| copy_of(mem, skb)).unwrap();
                if out.spare() > 0 {
                    out.push(copy).unwrap();
                    return 2;
                }
                copy.discard(DropReason::UNSENT);
                self.received -= 1;
            }
            Fault::Truncates => {
                let skb = out.iter_mut().last().unwrap();
                let len = skb.len();
                assert!(skb.trim(len - 1));
            }
            Fault::FlipsAByte => {
                let skb = out.iter_mut().last().unwrap();
                *skb.data_mut().last_mut().unwrap() ^= 1;
            }
            Fault::ForgetsFragments => {
                let skb = out.iter_mut().last().unwrap();
                let first = mem.alloc_copy(skb.data()).unwrap();
                std::mem::replace(skb, first).discard(DropReason::UNSUPPORTED);
            }
            Fault::Reorders if before > 0 => {
                let (last, first) = (out.pop().unwrap(), out.pop().unwrap());
                out.push(last).unwrap();
                out.push(first).unwrap();
            }
            Fault::Reorders => self.received -= 1,
            _ => {}
        }
        out.len() - before
    }
}

fn copy_of(mem: &mut Local, skb: &linerate_skb::Skb) -> linerate_skb::Skb {
    let mut bytes = vec![0; skb.len()];
    skb.copy_to(0, &mut bytes);
    mem.alloc_copy(&bytes).unwrap()
}

impl QueueOps for Broken {
    fn rx(&mut self, mem: &mut Local, out: &mut Batch, budget: usize) -> Moved {
        let before = out.len();
        let budget = if self.fault == Fault::IgnoresTheBudget { out.spare() } else { budget };
        while out.len() - before < budget && self.receive_one(mem, out) > 0 {}
        let moved = out.count_from(before);
        match self.fault {
            Fault::SaysThatItReceivedMore if moved.packets > 0 => {
                Moved { packets: moved.packets + 1, ..moved }
            }
            _ => moved,
        }
    }

    fn xmit(&mut self, mem: &mut Local, batch: &mut Batch) -> Moved {
        let mut freed = Moved::default();
        if self.fault == Fault::FreesInsteadOfSending && self.sent > 50 {
            let bytes = batch.pop().map_or(0, |skb| skb.len() as u64);
            freed = Moved { packets: 1, bytes };
        }
        let mut moved = self.inner.xmit(mem, batch);
        moved += freed;
        self.sent += moved.packets;
        match self.fault {
            Fault::SaysThatItSentMore => moved.packets += 1,
            Fault::KeepsTheRestInAnotherOrder if batch.len() > 1 => {
                let (last, first) = (batch.pop().unwrap(), batch.pop().unwrap());
                batch.push(last).unwrap();
                batch.push(first).unwrap();
            }
            _ => {}
        }
        moved
    }

    fn arm(&mut self, want: Want) -> bool {
        let silent = self.inner.arm(want);
        match self.fault {
            Fault::ArmsThoughPacketsWait if want == Want::Frames => true,
            Fault::ArmsThoughPacketsAreLeft if want == Want::Frames && self.received > 0 => true,
            Fault::ForgetsToWake if silent => {
                let _ = self.inner.arm(Want::Room);
                true
            }
            Fault::ForgetsToAnnounceRoom if want == Want::Room && silent => {
                // The fault: arm for another event than the caller wants.
                let _ = self.inner.arm(Want::Frames);
                true
            }
            Fault::SpinsWhenFull if want == Want::Room => false,
            Fault::TellsOfTheEndForEver if self.inner.health().ended() => false,
            Fault::ChangesItsDescriptor | Fault::IsReadableWithoutCause => {
                self.armed = true;
                silent
            }
            _ => silent,
        }
    }

    fn hold(&mut self, _: Instant) -> bool {
        self.fault == Fault::HoldsForEver
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }
}

impl AsFd for Broken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.fault {
            Fault::IsReadableWithoutCause => self.other.as_fd(),
            Fault::ChangesItsDescriptor if self.armed => self.other.as_fd(),
            _ => self.inner.as_fd(),
        }
    }
}

/// Returns ports whose queues have `faults`, one each, and are the ends of rings.
fn rig_of<const N: usize>(faults: [Fault; N]) -> Rig {
    let open = move |pool: &Pool| {
        let rings = faults.iter().map(|_| ring::pair("broken", 128, pool));
        let (near, far) = rings.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Ends::Pair(broken(near, &faults), broken(far, &faults)))
    };
    Rig::new(open).longest(4096).patience(Duration::from_millis(200))
}

/// Returns a port with the queue of each of `ends`, which have `faults`.
fn broken(ends: Vec<Opened>, faults: &[Fault]) -> Opened {
    let mut obtained = ends[0].obtained.clone();
    obtained.queues = faults.len();
    let queue = |(mut end, fault): (Opened, &Fault)| {
        let (inner, other, fault) = (end.queues.remove(0), EventFd::new().unwrap(), *fault);
        other.signal();
        Box::new(Broken { inner, fault, received: 0, sent: 0, other, armed: false }) as _
    };
    Opened { queues: ends.into_iter().zip(faults).map(queue).collect(), obtained }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("")
}

thread_local! {
    /// True while a test waits for a panic of this thread.
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act` and returns its panic, if any. The panic is not printed to stderr, where it would
/// look like a failure.
fn panic_of(act: impl FnOnce() -> Ran) -> Option<Box<dyn Any + Send>> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let says = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_EXPECTED.get() {
                says(info);
            }
        }));
    });
    IS_EXPECTED.set(true);
    let panic = catch_unwind(AssertUnwindSafe(act)).err();
    IS_EXPECTED.set(false);
    panic
}

/// Asserts that `case` panics for `fault`, with a message that contains `words`.
fn caught(fault: Fault, case: fn(&mut Rig) -> Ran, words: &str) {
    caught_in(fault, rig_of([fault]), case, words);
}

/// Asserts that `case` panics for `fault`, which a queue of `rig` has.
fn caught_in(fault: Fault, mut rig: Rig, case: fn(&mut Rig) -> Ran, words: &str) {
    let Some(panic) = panic_of(|| case(&mut rig)) else { panic!("{fault:?} was not caught") };
    let said = text(panic.as_ref());
    assert!(said.contains(words), "{fault:?} was caught as: {said}");
}

#[test]
fn the_same_driver_without_a_fault_passes() {
    for case in [
        cases::every_packet_is_received_or_counted,
        cases::packets_of_a_flow_stay_in_order,
        cases::every_length_passes_whole,
        cases::budgets_are_kept,
        cases::a_full_device_hands_the_rest_back,
        cases::room_wakes_a_sender,
        cases::arm_tells_what_is_there,
        cases::no_wake_up_is_lost,
        cases::health_and_descriptor_are_as_said,
        cases::closing_under_load_loses_no_frame,
    ] {
        assert_eq!(case(&mut rig_of([Fault::Nothing])), Ran::Passed);
        assert_eq!(case(&mut rig_of([Fault::Nothing; 2])), Ran::Passed);
    }
}

#[test]
fn a_driver_that_loses_a_packet_is_caught() {
    let case = cases::every_packet_is_received_or_counted;
    caught(Fault::LosesAPacket, case, "never came");
    caught(Fault::FreesInsteadOfSending, case, "never came");
}

#[test]
fn a_driver_whose_second_queue_alone_has_a_fault_is_caught() {
    let full: fn(&mut Rig) -> Ran = cases::a_full_device_hands_the_rest_back;
    for (case, fault, words) in [
        (full, Fault::KeepsTheRestInAnotherOrder, "in order"),
        (full, Fault::SpinsWhenFull, "a worker spins"),
        (cases::room_wakes_a_sender, Fault::ForgetsToAnnounceRoom, "the sender sleeps on"),
        (cases::every_packet_is_received_or_counted, Fault::FreesInsteadOfSending, "never came"),
    ] {
        caught_in(fault, rig_of([Fault::Nothing, fault]), case, words);
    }
}

#[test]
fn a_driver_that_duplicates_a_packet_is_caught() {
    caught(Fault::Duplicates, cases::every_packet_is_received_or_counted, "came twice");
}

#[test]
fn a_driver_that_reorders_packets_is_caught() {
    caught(Fault::Reorders, cases::packets_of_a_flow_stay_in_order, "came after packet");
}

#[test]
fn a_driver_that_truncates_a_packet_is_caught() {
    caught(Fault::Truncates, cases::every_packet_is_received_or_counted, "bytes that packet");
}

#[test]
fn a_driver_that_forgets_fragments_is_caught() {
    // The packet is cut so short that its number is lost.
    caught(Fault::ForgetsFragments, cases::chains_pass_whole, "never came");
}

#[test]
fn a_driver_that_changes_a_byte_is_caught() {
    let case = cases::every_packet_is_received_or_counted;
    caught(Fault::FlipsAByte, case, "differs from there on");
}

#[test]
fn a_driver_that_leaks_a_frame_is_caught() {
    let case = cases::every_packet_is_received_or_counted;
    caught(Fault::LeaksAFrame, case, "still held when the port is closed");
}

#[test]
fn a_driver_that_lies_about_what_it_moved_is_caught() {
    let case = cases::every_packet_is_received_or_counted;
    caught(Fault::SaysThatItReceivedMore, case, "what rx() says, and what it appended");
    caught(Fault::SaysThatItSentMore, case, "xmit() says that it moved");
}

#[test]
fn a_driver_that_keeps_the_rest_in_another_order_is_caught() {
    let case = cases::a_full_device_hands_the_rest_back;
    caught(Fault::KeepsTheRestInAnotherOrder, case, "left other packets in the batch");
}

#[test]
fn a_driver_that_ignores_its_budget_is_caught() {
    caught(Fault::IgnoresTheBudget, cases::budgets_are_kept, "given a budget of");
}

#[test]
fn a_driver_that_sleeps_on_a_packet_is_caught() {
    let case = cases::arm_tells_what_is_there;
    caught(Fault::ArmsThoughPacketsWait, case, "they are slept on");
    caught(Fault::ArmsThoughPacketsAreLeft, case, "packets that rx(1) left");
}

#[test]
fn a_driver_that_forgets_a_wake_up_is_caught() {
    caught(Fault::ForgetsToWake, cases::no_wake_up_is_lost, "does not wake it");
    caught(Fault::ForgetsToAnnounceRoom, cases::room_wakes_a_sender, "the sender sleeps on");
    caught(Fault::HoldsForEver, cases::arm_tells_what_is_there, "a hold that does not end");
}

#[test]
fn a_driver_that_never_lets_its_owner_sleep_is_caught() {
    caught(Fault::SpinsWhenFull, cases::a_full_device_hands_the_rest_back, "a worker spins");
    caught(Fault::IsReadableWithoutCause, cases::arm_tells_what_is_there, "again and again");
    caught(Fault::TellsOfTheEndForEver, cases::health_and_descriptor_are_as_said, "for ever");
}

#[test]
fn a_driver_whose_descriptor_changes_is_caught() {
    caught(Fault::ChangesItsDescriptor, cases::arm_tells_what_is_there, "the queue's descriptor");
}
