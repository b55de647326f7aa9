//! net_dim's profiles and rules, as its documentation describes them: steps up and down among five
//! fixed times.
//!
//! A sample is 64 interrupts. It is better than the one before if bytes, or else packets, grew by
//! more than a tenth, or else interrupts became fewer by that. A step that was better is followed
//! by one in the same direction, one that was not by one back. A walk that comes back to its best
//! parks there until something changes; one that steps too often without gain parks tired, for a
//! while.
//!
//! Source: Documentation/networking/net_dim.rst of Linux; the times are those of its profiles for
//! receive queues whose timer starts with an interrupt (EQE).

use std::time::{Duration, Instant};

/// The profiles: microseconds, and the number of packets that ends them early.
pub const PROFILES: [(u32, u32); 5] = [(1, 256), (8, 256), (64, 256), (128, 256), (256, 256)];
/// The first profile of a walk.
const START: usize = 1;
/// Number of interrupts in a sample.
const IRQS: u32 = 64;
/// Number of steps after which a walk is tired, and of samples that it then rests.
const TIRED: u32 = 2 * PROFILES.len() as u32;

/// Counts of a sample.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    bytes: u64,
    packets: u64,
    irqs: u32,
}

/// Rates of a sample, per millisecond.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Rates {
    bytes: f64,
    packets: f64,
    irqs: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Better,
    Same,
    Worse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Walk {
    Up,
    Down,
    OnTop,
    Tired,
}

/// A walk among the [`PROFILES`].
#[derive(Debug)]
pub(super) struct Dim {
    profile: usize,
    walk: Walk,
    steps_up: u32,
    steps_down: u32,
    tired: u32,
    since: Option<Instant>,
    counts: Counts,
    before: Rates,
}

impl Default for Dim {
    fn default() -> Dim {
        Dim {
            profile: START,
            walk: Walk::Up,
            steps_up: 0,
            steps_down: 0,
            tired: 0,
            since: None,
            counts: Counts::default(),
            before: Rates::default(),
        }
    }
}

impl Dim {
    /// Returns the time and the packets of the present profile.
    pub fn profile(&self) -> (u32, u32) {
        PROFILES[self.profile]
    }

    /// Counts one interrupt and its packets; decides after [`IRQS`] interrupts.
    pub fn irq(&mut self, now: Instant, packets: u64, bytes: u64) {
        let since = *self.since.get_or_insert(now);
        self.counts.packets += packets;
        self.counts.bytes += bytes;
        self.counts.irqs += 1;
        let passed = now.saturating_duration_since(since);
        if self.counts.irqs >= IRQS && !passed.is_zero() {
            let rates = rates(self.counts, passed);
            (self.since, self.counts) = (Some(now), Counts::default());
            self.decide(rates);
        }
    }

    /// Takes the next step, by the effect of the last one.
    fn decide(&mut self, now: Rates) {
        let (verdict, was) = (compare(now, self.before), self.walk);
        match was {
            Walk::OnTop if verdict == Verdict::Same => {}
            Walk::OnTop => self.leave(),
            Walk::Tired => {
                self.tired = self.tired.saturating_sub(1);
                if self.tired == 0 {
                    self.leave();
                }
            }
            Walk::Up | Walk::Down => {
                if verdict != Verdict::Better {
                    self.turn();
                }
                if self.is_back_on_top() {
                    self.tired = 0;
                    self.park(Walk::OnTop);
                } else {
                    self.step();
                }
            }
        }
        // While a walk stays parked on top, keep comparing with the rates at which it parked.
        if was != Walk::OnTop || self.walk != Walk::OnTop {
            self.before = now;
        }
    }

    /// Returns true after two or more steps in one direction and one step back.
    fn is_back_on_top(&self) -> bool {
        match self.walk {
            Walk::Up => self.steps_down > 1 && self.steps_up == 1,
            Walk::Down => self.steps_up > 1 && self.steps_down == 1,
            Walk::OnTop | Walk::Tired => true,
        }
    }

    fn turn(&mut self) {
        match self.walk {
            Walk::Up => (self.walk, self.steps_down) = (Walk::Down, 0),
            Walk::Down => (self.walk, self.steps_up) = (Walk::Up, 0),
            Walk::OnTop | Walk::Tired => {}
        }
    }

    /// Moves one profile further; parks at the last profile, and when tired.
    fn step(&mut self) {
        if self.tired >= TIRED {
            return self.park(Walk::Tired);
        }
        match self.walk {
            Walk::Up if self.profile + 1 < PROFILES.len() => {
                self.profile += 1;
                self.steps_up += 1;
            }
            Walk::Down if self.profile > 0 => {
                self.profile -= 1;
                self.steps_down += 1;
            }
            _ => {
                self.tired = 0;
                return self.park(Walk::OnTop);
            }
        }
        self.tired += 1;
    }

    fn park(&mut self, walk: Walk) {
        (self.walk, self.steps_up, self.steps_down) = (walk, 0, 0);
    }

    /// Leaves the parked state, towards shorter times if possible.
    fn leave(&mut self) {
        self.walk = if self.profile > 0 { Walk::Down } else { Walk::Up };
        self.step();
    }
}

fn rates(counts: Counts, passed: Duration) -> Rates {
    let ms = passed.as_secs_f64() * 1e3;
    let per_ms = |n: f64| n / ms;
    Rates {
        bytes: per_ms(counts.bytes as f64),
        packets: per_ms(counts.packets as f64),
        irqs: per_ms(counts.irqs.into()),
    }
}

/// Compares bytes, then packets, then interrupts (fewer are better); only a change of a tenth or
/// more counts.
fn compare(now: Rates, before: Rates) -> Verdict {
    let differs = |now: f64, before: f64| (now - before).abs() > before / 10.0;
    if before == Rates::default() {
        return if now.bytes > 0.0 { Verdict::Better } else { Verdict::Same };
    }
    let more = |is_more| if is_more { Verdict::Better } else { Verdict::Worse };
    if differs(now.bytes, before.bytes) {
        more(now.bytes > before.bytes)
    } else if differs(now.packets, before.packets) {
        more(now.packets > before.packets)
    } else if differs(now.irqs, before.irqs) {
        more(now.irqs < before.irqs)
    } else {
        Verdict::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds samples of `(packets, irqs)` per ms, with 100 bytes a packet; returns the profile
    /// after each.
    fn walk(dim: &mut Dim, samples: &[(f64, f64)]) -> Vec<usize> {
        let sample = |&(packets, irqs): &(f64, f64)| {
            dim.decide(Rates { bytes: packets * 100.0, packets, irqs });
            dim.profile
        };
        samples.iter().map(sample).collect()
    }

    #[test]
    fn steps_that_help_go_on_to_the_longest_time_and_park_there() {
        let mut dim = Dim::default();
        let samples = [(100.0, 50.0), (120.0, 40.0), (140.0, 30.0), (160.0, 20.0), (160.0, 20.0)];
        assert_eq!(walk(&mut dim, &samples), [2, 3, 4, 4, 4]);
        assert_eq!((dim.walk, dim.profile()), (Walk::OnTop, (256, 256)));
    }

    #[test]
    fn a_step_too_far_is_taken_back_and_the_walk_parks_on_its_top() {
        let mut dim = Dim::default();
        let samples = [(100.0, 50.0), (120.0, 40.0), (140.0, 30.0), (100.0, 30.0), (140.0, 30.0)];
        assert_eq!(walk(&mut dim, &samples), [2, 3, 4, 3, 3]);
        assert_eq!(dim.walk, Walk::OnTop);
    }

    #[test]
    fn fewer_interrupts_are_better_only_where_the_rate_is_the_same() {
        let was = Rates { bytes: 1000.0, packets: 10.0, irqs: 10.0 };
        let with = |bytes, packets, irqs| compare(Rates { bytes, packets, irqs }, was);
        assert_eq!(with(1000.0, 10.0, 8.0), Verdict::Better);
        assert_eq!(with(1000.0, 10.0, 12.0), Verdict::Worse);
        assert_eq!(with(1050.0, 10.5, 10.5), Verdict::Same);
        assert_eq!(with(800.0, 10.0, 5.0), Verdict::Worse);
        assert_eq!(with(1000.0, 20.0, 30.0), Verdict::Better);
    }

    #[test]
    fn a_parked_walk_leaves_when_the_load_changes_and_not_before() {
        let mut dim = Dim::default();
        walk(&mut dim, &[(100.0, 50.0), (120.0, 40.0), (140.0, 30.0), (160.0, 20.0)]);
        assert_eq!(walk(&mut dim, &[(165.0, 20.0), (155.0, 20.0)]), [4, 4]);
        assert_eq!(walk(&mut dim, &[(50.0, 20.0)]), [3]);
    }

    #[test]
    fn a_walk_without_gain_goes_to_and_fro_until_it_is_tired_and_rests() {
        let mut dim = Dim::default();
        let first = walk(&mut dim, &[(100.0, 50.0); 11]);
        assert_eq!(first, [2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 1]);
        assert_eq!(dim.walk, Walk::Tired);
        assert_eq!(walk(&mut dim, &[(100.0, 50.0); 9]), [1; 9]);
        assert_eq!(walk(&mut dim, &[(100.0, 50.0)]), [0], "rested");
    }

    #[test]
    fn dim_decides_after_64_interrupts() {
        let (mut dim, mut now) = (Dim::default(), Instant::now());
        for i in 1..=2 * IRQS {
            now += Duration::from_micros(10);
            dim.irq(now, 4, 400);
            let expected = if i < IRQS { START } else { START + 1 };
            assert!(i > 64 || dim.profile == expected, "{i}: {dim:?}");
        }
    }

    #[test]
    fn a_load_that_drifts_away_is_noticed_as_well() {
        let mut dim = Dim::default();
        walk(&mut dim, &[(100.0, 50.0), (120.0, 40.0), (140.0, 30.0), (160.0, 20.0)]);
        assert_eq!(walk(&mut dim, &[(150.0, 20.0), (140.0, 20.0)]), [4, 3]);
    }

    #[test]
    fn a_walk_that_leaves_its_top_counts_its_steps_anew() {
        let mut dim = Dim::default();
        walk(&mut dim, &[(100.0, 50.0), (120.0, 40.0), (140.0, 30.0), (160.0, 20.0)]);
        assert_eq!(walk(&mut dim, &[(50.0, 20.0), (60.0, 20.0), (70.0, 20.0)]), [3, 2, 1]);
    }
}
