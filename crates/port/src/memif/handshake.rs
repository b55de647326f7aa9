//! The handshake that sets up shared memory: the messages allowed in each state, and their checks.
//!
//! Two state machines without a socket: messages in, messages out. Everything that a peer sends is
//! checked here; whatever does not fit ends the connection with a reason.

mod client;
mod server;
#[cfg(test)]
mod tests;

use super::config::Secret;
use super::message::SECRET_BYTES;

pub use client::{Client, Limits, Step};
pub(super) use server::Reply;
pub use server::Server;

/// The reason why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The peer violates the protocol, or requests something that it is not allowed to have; the
    /// text is sent to it.
    Refused(&'static str),
    /// An object of the peer is unusable; the text is sent to it, cut at 95 bytes.
    Unfit(String),
    /// The peer has ended the connection, for this reason.
    ByPeer(String),
}

fn padded(secret: &Secret) -> [u8; SECRET_BYTES] {
    let (mut bytes, secret) = ([0; SECRET_BYTES], secret.0.as_bytes());
    let n = secret.len().min(SECRET_BYTES - 1);
    bytes[..n].copy_from_slice(&secret[..n]);
    bytes
}
