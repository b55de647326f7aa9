//! Moderation: when the owner of a queue polls its device again.
//!
//! ```text
//!  packets      | | |  | | | |  | |  | |              |
//!  napi         t t t  t t t t  t t  t t  a  sleep    t a      t  a turn, with what is there
//!  held         t─────►t──────►t──────►t  a  sleep    t a      a  armed, woken by the next packet
//! ```
//!
//! A [`Moderator`] is state in, decision out: no clock, no system call. Its caller says what a
//! queue gave and when, and answers by a [`Rest`]: look again, leave the device alone until a time,
//! or sleep on its descriptor. The same one serves `Queue::wait`, `Queue::arm` (tokio, mio) and a
//! worker.
//!
//! One end of a sleep is an *irq*, by the device or by a timer: either costs the same CPU time.
//! Under load there is one a round, by the timer; the descriptor is waited for when it is quiet.
//!
//! Source: post 001, interrupt coalescing; ethtool's rx-usecs; the kernel's `gro_flush_timeout`
//! with `napi_defer_hard_irqs`; docs/adr/0014.

mod adaptive;
mod arrivals;
mod cost;
mod device;
mod dim;
mod gain;
mod gathering;
pub mod knob;
mod mode;
mod moderated;
mod moderator;
mod saving;
mod slowdown;
pub mod word;

pub use cost::{Cost, CostMeter};
pub use device::{DeviceHold, HOLD_FORMS, HoldControl};
pub use mode::{FORMS, Goal, Moderation};
pub use moderated::{Moderated, poor_use};
pub use moderator::{Moderator, Rest, SLEEP_MIN};
pub use saving::{CpuReading, Holding, Saving};
