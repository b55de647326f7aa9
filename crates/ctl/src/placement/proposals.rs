//! The places that a search tries: those that follow from the topology, the neighbours of others,
//! and all of them.

use super::Places;
use super::search::Search;

impl Search<'_> {
    /// Returns places that follow from the topology alone: near each other, apart, in pairs of
    /// siblings, all on one CPU, and things of one lane on adjacent CPUs.
    pub(super) fn proposals(&self) -> Vec<Places> {
        let at = |cpus: &[usize], i: usize| cpus.get(i % cpus.len().max(1)).copied();
        let deal = |cpus: &[usize]| -> Places { self.lanes.iter().map(|i| at(cpus, *i)).collect() };
        let (near, apart) = (self.topology.order(false), self.topology.order(true));
        let mut siblings: Vec<_> = self.topology.cpus().to_vec();
        siblings.sort_by_key(|cpu| {
            (u32::MAX - cpu.capacity, cpu.socket, cpu.cache, cpu.core, cpu.number)
        });
        let siblings: Vec<usize> = siblings.into_iter().map(|cpu| cpu.number).collect();
        let halves = self.lanes.iter().map(|i| at(&near, i / 2)).collect();
        let mut all = vec![
            deal(&near),
            deal(&apart),
            deal(&siblings),
            halves,
            deal(near.get(..1).unwrap_or_default()),
        ];
        // Sort the things by lane and give them consecutive CPUs, so that things of one lane are on
        // adjacent CPUs.
        let before = |i: usize| {
            let rank = |i: usize| (self.lanes[i], i);
            (0..self.things).filter(|other| rank(*other) < rank(i)).count()
        };
        all.insert(1, (0..self.things).map(|i| at(&near, before(i))).collect());
        all
    }

    /// Returns the neighbours of `places`: one thing on another CPU, two things exchanged, or two
    /// things moved together. With many things and CPUs the search tries only the first of them.
    pub(super) fn neighbours(&self, places: &Places) -> impl Iterator<Item = Places> + use<> {
        let (cpus, things, places) = (self.topology.order(false), self.things, places.clone());
        let moved = move |places: &Places, to: &[(usize, usize)]| {
            let mut moved = places.clone();
            to.iter().for_each(|(thing, cpu)| moved[*thing] = Some(*cpu));
            moved
        };
        let (start, of_pairs, all) = (places.clone(), places, cpus.clone());
        let near = (0..things).flat_map(move |i| {
            let (one, two) = (start.clone(), start.clone());
            let alone = cpus.clone().into_iter().map(move |cpu| moved(&one, &[(i, cpu)]));
            let swapped = (i + 1..things).map(move |j| {
                let mut swapped = two.clone();
                swapped.swap(i, j);
                swapped
            });
            alone.chain(swapped)
        });
        // Both things on one CPU, or on two adjacent CPUs: such a pair may be better although
        // neither move alone is.
        let pairs = (0..things).flat_map(move |i| (i + 1..things).map(move |j| (i, j)));
        let together = pairs.flat_map(move |(i, j)| {
            let (places, cpus) = (of_pairs.clone(), all.clone());
            (0..2 * cpus.len()).map(move |n| {
                let (cpu, other) = (cpus[n / 2], cpus[(n / 2 + n % 2) % cpus.len()]);
                moved(&places, &[(i, cpu), (j, other)])
            })
        });
        near.chain(together)
    }

    /// Returns all places if the search may try as many, else none.
    pub(super) fn all(&self) -> impl Iterator<Item = Places> + use<> {
        let (cpus, things) = (self.topology.order(false), self.things);
        let number = u32::try_from(things).ok().and_then(|things| cpus.len().checked_pow(things));
        let number = number.filter(|number| *number <= self.tries_max).unwrap_or(0);
        // The digits of a number, with as many digits as there are CPUs.
        (0..number).map(move |mut n| {
            let digit = |_| {
                let cpu = cpus[n % cpus.len()];
                n /= cpus.len();
                Some(cpu)
            };
            (0..things).map(digit).collect()
        })
    }
}
