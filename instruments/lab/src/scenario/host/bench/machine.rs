//! Profiles of the whole machine while packets pass.

use std::time::{Duration, Instant};

use linerate_prof::pmu::{Event, Quantity};
use linerate_prof::profile::Profile;
use linerate_prof::sample::{Recorder, Recording, Target, What};

use super::{HostBench, workload};
use crate::Result;
use crate::scenario::host::placed::Placed;
use crate::scenario::{checked, pool_figures};

/// Samples a second for a profile of the whole machine, whose idle time is also sampled: a prime
/// number, because with 1000 each sample came at the same place of a hold of 250 us or of a timer
/// of 1 ms.
const MACHINE_HZ: u32 = 997;
/// Events for each sample of lines that leave a cache; a prime number.
const LINES_PERIOD: u64 = 10_007;

impl HostBench {
    /// Returns the profiles of the whole machine: its time and, of a side whose adapters are
    /// placed, lines that leave a cache.
    pub(super) fn machine(&mut self, time: Duration) -> Result<Vec<Profile>> {
        let mut profiles = vec![self.sampled(time, What::Time { hz: MACHINE_HZ })?];
        if self.placed.is_none() {
            return Ok(profiles);
        }
        // If this CPU cannot count these lines, skip this profile: a remark of the run reports it.
        if let Ok(event) = Event::of(Quantity::L2LinesOut) {
            let lines = What::Event { event, period: LINES_PERIOD };
            profiles.extend(self.sampled(time, lines).ok());
        }
        Ok(profiles)
    }

    /// Samples the whole machine: interrupts, workers, programs, idle task; with call chains if
    /// adapters are placed, because a run has hundreds of other cells.
    fn sampled(&mut self, time: Duration, what: What) -> Result<Profile> {
        self.prepare(time);
        let is_time = matches!(what, What::Time { .. });
        let before = self.path.stats().ports();
        let recorder = Recorder { call_chains: self.placed.is_some(), ..Recorder::new(what) };
        let mut recording = recorder.start(Target::Machine)?;
        let began_ns = self.placed.as_ref().map(|placed| placed.taken().path_ns());
        self.path.begin(Instant::now() + time);
        let round = self.go(time);
        let mut polled = Ok(());
        while polled.is_ok() && Instant::now() < round.until {
            polled = recording.poll(round.until.saturating_duration_since(Instant::now()));
        }
        // Read both instruments at the same moment.
        let polled = polled.and_then(|()| recording.poll(Duration::ZERO));
        let path =
            self.placed.as_ref().zip(began_ns).map(|(placed, ns)| path(placed, ns, &recording));
        let of_workers = recording.samples_of(&self.path.threads);
        // Even if sampling failed, read the workers' answers and wait for the end of the traffic.
        let measured = self.path.measured(round.until);
        let profile = polled.and_then(|()| recording.finish());
        let after = self.path.stats().ports();
        let settled = self.settle(round);
        // A worker that failed is the cause of traffic that does not arrive, so its error is first.
        let measured = measured?;
        settled?;
        let mut profile = profile?;
        let packets = pool_figures::sent(&after).packets - pool_figures::sent(&before).packets;
        profile.conditions.packets = Some(packets);
        profile.conditions.workload = Some(workload(&self.config, "the whole machine"));
        let (of, (samples, ns)) = match path {
            Some(path) => ("NAPI's threads, the workers and the programs that read", path),
            None => {
                ("the workers", (of_workers, measured.iter().map(|worker| worker.cpu_ns).sum()))
            }
        };
        if is_time {
            profile.checked = Some(checked(of, (samples, MACHINE_HZ), ns, packets));
        }
        Ok(profile)
    }
}

/// Returns the samples in the threads of the path, and their CPU time since it was `began_ns`.
fn path(placed: &Placed, began_ns: u64, recording: &Recording) -> (u64, u64) {
    let ns = placed.taken().path_ns().saturating_sub(began_ns);
    (recording.samples_of(&placed.threads()), ns)
}
