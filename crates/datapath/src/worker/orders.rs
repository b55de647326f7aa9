//! The orders that a worker executes between two turns: settings of its queues, and the CPUs of its
//! thread.
//!
//! Owner: the thread that turns the worker. It answers each order that it takes, and waits for no
//!        other thread.

use std::time::Instant;

use linerate_port::{Code, Error, Result, thread};
use linerate_skb::Local;

use super::Worker;
use crate::control::{Applied, Order, Pinned, Setting, Unexecuted};
use crate::mailbox::Word;
use crate::napi::Napi;

impl Worker {
    /// Executes all orders given before `word` was read, at the turn's time. If another thread is
    /// adding an order, all orders wait for the next turn.
    #[cold]
    pub(super) fn execute(&mut self, word: Word, now: Instant) {
        let Some(orders) = self.slot.take_orders() else { return };
        self.executed = word;
        // After a panic the rest is refused.
        let mut orders = Unexecuted(orders.into_iter());
        for order in orders.0.by_ref() {
            match order {
                Order::Set { answer, .. } if !answer.claim() => {}
                Order::Cpus { answer, .. } if !answer.claim() => {}
                Order::Set { queues, setting, answer } => {
                    let napis = self.napis.get_mut(queues).unwrap_or_default();
                    let set = set(napis, setting, now);
                    let packets: u64 = napis.iter().map(|napi| napi.counts().rx_packets).sum();
                    let packets = packets.saturating_sub(answer.packets);
                    let took = answer.asked_at.elapsed();
                    answer.give(set.map(|(applied, note)| Applied {
                        asked: setting,
                        applied,
                        note,
                        packets,
                        took,
                    }));
                }
                Order::Cpus { cpus, answer } => {
                    let moved = self.run_on(&cpus);
                    let took = answer.asked_at.elapsed();
                    answer.give(moved.map(|(before, cpus)| Pinned { cpus, before, took }));
                }
            }
        }
    }

    /// Restricts the calling thread, which turns the worker, to these CPUs; returns the CPUs on
    /// which it could run before, and those on which it can run now.
    ///
    /// # Errors
    /// `E-CPU` if it may use none of them.
    pub(crate) fn run_on(&mut self, cpus: &[usize]) -> Result<(Vec<usize>, Vec<usize>)> {
        let before = thread::allowed_cpus()?;
        thread::run_on(cpus)?;
        self.slot.waits().pinned(cpus);
        self.slot.waits().runs();
        self.mems.iter().for_each(Local::see_cpu);
        // The thread has moved: the caller needs `before` to undo it, even if the CPUs cannot be
        // read.
        Ok((before, thread::allowed_cpus().unwrap_or_else(|_| cpus.to_vec())))
    }

    /// Pins the calling thread, which will turn the worker, to a CPU that could be used when the
    /// engine was built. If the CPU was lost since then, the thread stays where it may run, as if
    /// the CPU were lost later: [`WorkerStats::strayed`](crate::WorkerStats::strayed) says so.
    ///
    /// # Errors
    /// `E-CPU` if the thread may use the CPU and cannot be pinned to it.
    pub(crate) fn start_on(&mut self, cpu: usize) -> Result<()> {
        match self.run_on(&[cpu]) {
            Err(e) if e.code == Code::Cpu && !thread::allowed_cpus()?.contains(&cpu) => {
                self.slot.waits().pinned(&[cpu]);
                self.slot.waits().runs();
                self.mems.iter().for_each(Local::see_cpu);
                Ok(())
            }
            pinned => pinned.map(drop),
        }
    }
}

/// Changes a setting of queues at `now`; returns the setting that they have now, and the reason if
/// it has no effect, or less than requested.
///
/// # Errors
/// `E-UNSUPPORTED` if a queue does not have the setting; then none was changed.
fn set(napis: &mut [Napi], setting: Setting, now: Instant) -> Result<(Setting, Option<String>)> {
    let (mut applied, mut note) = (setting, None);
    match setting {
        Setting::Moderation(mode) => {
            for napi in napis {
                note = note.or(napi.set_moderation(mode));
            }
            applied = Setting::Moderation(mode.clamped());
        }
        Setting::TxBatch(cap) => {
            for napi in napis {
                napi.set_tx_batch(cap);
                applied = Setting::TxBatch(napi.tx_batch());
            }
        }
        Setting::Shape(rate) => {
            if napis.iter().any(|napi| napi.shape().is_none()) {
                let what = format!("cannot set the rate to {rate}");
                return Err(Error::new(Code::Unsupported, what, "the port has no rate")
                    .fix("open the port with shape="));
            }
            napis.iter_mut().for_each(|napi| napi.set_shape(rate, now));
        }
    }
    Ok((applied, note))
}
