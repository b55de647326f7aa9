//! What the hosts do to each other, whichever workload it is.

use super::config::{Config, Workload};
use super::crew::{Round, Told};
use super::hosts::Hosts;
use super::stream::Stream;
use super::web::Web;
use crate::Result;

/// What has arrived so far.
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

    /// What has arrived so far.
    fn counts(&self) -> Counts;

    /// Waits until everything has arrived that was sent in it; the path is to carry meanwhile.
    ///
    /// # Errors
    /// `E-SYSTEM` if that takes too long.
    fn settle(&mut self, round: Round) -> Result<Told>;

    /// Closes the connections; the path is to carry meanwhile.
    fn end(&mut self);
}

/// The workload that a side is told.
///
/// # Errors
/// `E-SYSTEM` if its connections cannot be had.
pub(super) fn open(config: &Config, hosts: &Hosts) -> Result<Box<dyn Load>> {
    Ok(match config.workload {
        Workload::Stream => Box::new(Stream::open(config, hosts)?),
        Workload::Web => Box::new(Web::open(config, hosts)?),
    })
}
