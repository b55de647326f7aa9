//! Interfaces to Linux system calls, with the names and layouts of the kernel's headers; their
//! results are owned values.
//!
//! One file per facility; nothing here knows what a frame means or decides a policy. Every
//! descriptor is owned by the type that opened it and closed when that is dropped; every mapping
//! likewise.

mod aio;
pub mod bpf;
pub mod capability;
pub mod cbpf;
pub mod clock;
pub mod error;
pub mod mem;
pub mod netif;
pub mod netns;
pub mod packet;
pub mod peer;
pub mod process;
pub mod rtnl;
pub mod seqpacket;
pub mod text;
pub mod thread;
pub mod tsc;
pub mod tun;
pub mod unix;
pub mod verbs;
pub mod vnet;
pub mod wait;
pub mod xdp;

pub use error::{Code, Error, Kind, Result};
