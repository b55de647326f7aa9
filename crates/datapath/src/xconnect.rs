//! The stage that every wire ends with: what came in by one port leaves by the other.

use linerate_skb::{Batch, Verdict};

use crate::stage::{Stage, Turn};

/// Sends packets without a verdict to the other end of their wire.
#[derive(Debug, Default)]
pub struct Xconnect;

impl Stage for Xconnect {
    fn run(&mut self, batch: &mut Batch, turn: &mut Turn<'_>) {
        let Some(peer) = turn.peer() else { return };
        match batch.run() {
            // The rule: nobody before us had an opinion.
            Some((Verdict::NONE, n)) if n == batch.len() => batch.set_verdicts(peer.verdict()),
            _ => {
                for i in 0..batch.len() {
                    if batch.verdict(i) == Verdict::NONE {
                        batch.set_verdict(i, peer.verdict());
                    }
                }
            }
        }
    }
}
