//! Profiles of the whole machine while packets pass, of a side whose adapters are placed.

use std::time::{Duration, Instant};

use linerate_prof::pmu::{Event, Quantity};
use linerate_prof::profile::Profile;
use linerate_prof::sample::{Recorder, Recording, Target, What};

use super::HostBench;
use crate::Result;
use crate::scenario::host::placed::Placed;
use crate::scenario::{checked, pool_figures};

/// Samples a second for a profile of the whole machine, whose idle time is also sampled.
const MACHINE_HZ: u32 = 1000;
/// Events for each sample of lines that leave a cache; a prime number.
const LINES_PERIOD: u64 = 10_007;

impl HostBench {
    /// Returns the profiles of the whole machine: its time, and lines that leave a cache.
    pub(super) fn machine(&mut self, time: Duration) -> Result<Vec<Profile>> {
        let mut profiles = vec![self.sampled(time, What::Time { hz: MACHINE_HZ })?];
        // If this CPU cannot count these lines, skip this profile: a remark of the run reports it.
        if let Ok(event) = Event::of(Quantity::L2LinesOut) {
            let lines = What::Event { event, period: LINES_PERIOD };
            profiles.extend(self.sampled(time, lines).ok());
        }
        Ok(profiles)
    }

    /// Samples the whole machine with call chains: interrupts, workers, programs, idle task.
    fn sampled(&mut self, time: Duration, what: What) -> Result<Profile> {
        let is_time = matches!(what, What::Time { .. });
        let before = self.path.stats().ports();
        let recorder = Recorder { call_chains: true, ..Recorder::new(what) };
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
        // Even if sampling failed, read the workers' answers and wait for the end of the traffic.
        let measured = self.path.measured(round.until);
        let profile = polled.and_then(|()| recording.finish());
        let after = self.path.stats().ports();
        self.settle(round)?;
        measured?;
        let mut profile = profile?;
        let packets = pool_figures::sent(&after).packets - pool_figures::sent(&before).packets;
        profile.conditions.packets = Some(packets);
        profile.conditions.workload =
            Some("bulk TCP, a stream on each adapter: the whole machine".into());
        let of = "NAPI's threads, the workers and the programs that read";
        let path = path.filter(|_| is_time);
        profile.checked = path.map(|(samples, ns)| checked(of, (samples, MACHINE_HZ), ns, packets));
        Ok(profile)
    }
}

/// Returns the samples in the threads of the path, and their CPU time since it was `began_ns`.
fn path(placed: &Placed, began_ns: u64, recording: &Recording) -> (u64, u64) {
    let ns = placed.taken().path_ns().saturating_sub(began_ns);
    (recording.samples_of(&placed.threads()), ns)
}
