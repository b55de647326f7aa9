//! A test suite for every port, which tests the promises of `Driver` and `QueueOps`.
//!
//! ```text
//!  conformance!(Pipe, "pipe:test")          a #[test] for each case
//!        │
//!       Rig        how to open two ends that are joined, and what the device can do
//!        │
//!       Bench ─┬─ End, End   every call is checked: counts, budgets, the order of what is left
//!              └─ Pool       closed, and the ledger is read: nothing lost, nothing left
//! ```
//!
//! A driver of yours takes part with one line in its tests, and the feature `conformance`:
//!
//! ```text
//! linerate::conformance!(Pipe, "pipe:test");               // the text is opened twice: two ends
//! linerate::conformance!(Pipe, "pipe:left", "pipe:right"); // a text for each end
//! linerate::conformance!(on_veth);                         // fn on_veth(case: Case): a `Rig`
//! ```
//!
//! docs/conformance.md says what each case asks, and what a rig can say of a device.
//!
//! A case panics with a sentence that says what was promised and what came instead. One that does
//! not apply to a port says so on the standard error, and passes. No case measures time; each
//! wait is bounded by [`Rig::patience`], far above what a device takes.
//!
//! Packets are Ethernet frames of EtherType 88b5 between locally administered addresses, each with
//! its flow and number in the source address and a pattern of its own behind the header; whatever
//! else a device hands over is counted and not looked at.

mod bench;
pub mod cases;
mod end;
mod rig;
#[cfg(test)]
mod tests;
mod traffic;

pub use rig::{Ends, Interface, Later, Rig};

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ran {
    /// The case ran, and the port kept every promise.
    Passed,
    /// The port lacks a property that the case needs.
    DoesNotApply(&'static str),
}

/// One case of the suite, as the tests that [`conformance!`](crate::conformance!) makes run it.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    name: &'static str,
    run: fn(&mut Rig) -> Ran,
}

impl Case {
    /// Returns the case `run`, under its name.
    #[must_use]
    pub const fn new(name: &'static str, run: fn(&mut Rig) -> Ran) -> Case {
        Case { name, run }
    }

    /// Returns the case's name, which is also the name of its test.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Runs the case on a port that `rig` opens.
    ///
    /// # Panics
    /// With what was promised and what came instead.
    pub fn on(self, mut rig: Rig) {
        if let Ran::DoesNotApply(why) = (self.run)(&mut rig) {
            eprintln!("{} does not apply: {why}", self.name);
        }
    }
}

/// Declares a `#[test]` for each case of the suite, in a module `conforms`; they run one at a time.
///
/// `conformance!(driver, text)` opens the text twice, for two ends that are joined;
/// `conformance!(driver, near, far)` one text for each end; `conformance!(run)` has `run`, a
/// function of a [`Case`](crate::conformance::Case), make a [`Rig`](crate::conformance::Rig) and
/// whatever has to be around it.
#[macro_export]
macro_rules! conformance {
    ($driver:expr, $text:expr) => {
        $crate::conformance!($driver, $text, $text);
    };
    ($driver:expr, $near:expr, $far:expr) => {
        $crate::conformance!(|case: $crate::conformance::Case| {
            case.on($crate::conformance::Rig::of($driver, $near, $far))
        });
    };
    ($run:expr) => {
        $crate::conformance! { @tests $run;
            every_packet_is_received_or_counted
            packets_of_a_flow_stay_in_order
            every_length_passes_whole
            chains_pass_whole
            strange_lengths_block_nothing
            budgets_are_kept
            a_dry_pool_loses_nothing_and_recovers
            a_full_device_hands_the_rest_back
            room_wakes_a_sender
            arm_tells_what_is_there
            no_wake_up_is_lost
            health_and_descriptor_are_as_said
            closing_under_load_loses_no_frame
            a_source_keeps_to_its_budget_and_ends_once
            a_sink_takes_every_length_and_chain
            an_interface_that_goes_down_is_followed
            a_deleted_interface_fails_for_good
            a_changed_mtu_cuts_no_packet
        }
    };
    (@tests $run:expr; $($case:ident)*) => {
        #[cfg(test)]
        mod conforms {
            #[allow(unused_imports)] // the module around it may have nothing that this one needs
            use super::*;

            /// Lock that prevents two ports with the same text from being open at once.
            static ONE_AT_A_TIME: ::std::sync::Mutex<()> = ::std::sync::Mutex::new(());

            fn one(case: $crate::conformance::Case) {
                let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(::std::sync::PoisonError::into_inner);
                ($run)(case);
            }

            $(
                #[test]
                fn $case() {
                    let run = $crate::conformance::cases::$case;
                    one($crate::conformance::Case::new(stringify!($case), run));
                }
            )*
        }
    };
}
