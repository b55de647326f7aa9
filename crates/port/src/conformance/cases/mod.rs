//! The cases: functions of a [`Rig`], each of which panics with the broken promise and the observed
//! behaviour.
//!
//! ```text
//! delivery.rs  what is sent arrives: once, whole, in order, whatever its length and shape
//! scarce.rs    budgets, a pool without frames, a device without room
//! wake.rs      arm() and the descriptor
//! life.rs      health, and closing under load
//! alone.rs     sources and sinks
//! link.rs      an interface that goes down, comes back, changes, or is deleted
//! ```

mod alone;
mod delivery;
mod life;
mod link;
mod scarce;
mod wake;

pub use alone::{a_sink_takes_every_length_and_chain, a_source_keeps_to_its_budget_and_ends_once};
pub use delivery::{
    chains_pass_whole, every_length_passes_whole, every_packet_is_received_or_counted,
    packets_of_a_flow_stay_in_order, strange_lengths_block_nothing,
};
pub use life::{closing_under_load_loses_no_frame, health_and_descriptor_are_as_said};
pub use link::{
    a_changed_mtu_cuts_no_packet, a_deleted_interface_fails_for_good,
    an_interface_that_goes_down_is_followed,
};
pub use scarce::{
    a_dry_pool_loses_nothing_and_recovers, a_full_device_hands_the_rest_back, budgets_are_kept,
    room_wakes_a_sender,
};
pub use wake::{arm_tells_what_is_there, no_wake_up_is_lost};

use super::Ran;
#[allow(unused_imports)] // for the documentation
use super::Rig;

/// The outcome of a case that needs a device which is read while it is written.
const STORED: Ran = Ran::DoesNotApply("what it stores is read when its writer is closed");
