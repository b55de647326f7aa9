//! Traffic between the hosts, for any workload.

use super::config::{Config, Workload};
use super::crew::{Round, Told};
use super::hosts::Hosts;
use super::stream::Stream;
use super::web::Web;
use crate::Result;

/// The arrivals so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    /// Bytes that programs have read.
    pub goodput_bytes: u64,
    /// Requests sent; 0 of a stream.
    pub requests: u64,
    /// Responses that have arrived in whole.
    pub responses: u64,
}

/// Traffic between two hosts, in rounds.
pub(super) trait Load {
    /// Begins one.
    fn go(&mut self, round: Round);

    /// Returns the arrivals so far.
    fn counts(&self) -> Counts;

    /// Waits until all traffic of the round has arrived; the path must carry packets meanwhile.
    ///
    /// # Errors
    /// `E-SYSTEM` if that takes too long.
    fn settle(&mut self, round: Round) -> Result<Told>;

    /// Closes the connections; the path must carry packets meanwhile.
    fn end(&mut self);
}

/// Opens the workload of a side.
///
/// # Errors
/// `E-SYSTEM` if its connections cannot be had.
pub(super) fn open(config: &Config, hosts: &Hosts) -> Result<Box<dyn Load>> {
    Ok(match config.workload {
        Workload::Stream => Box::new(Stream::open(config, hosts)?),
        Workload::Web => Box::new(Web::open(config, hosts)?),
    })
}
