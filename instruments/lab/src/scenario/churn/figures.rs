//! Figures of a side of `churn`: raw counts, and values computed from them.

use std::collections::BTreeMap;

use super::role::Counts;
use super::stopwatch::{Stopwatch, Timed};
use crate::scenario::{Figure, figures};

/// The figures of a window. `_w0` is the first CPU, `_w1` the second.
pub(super) const FIGURES: &[Figure] = figures! {
    "allocs" "packets" "packets allocated";
    "allocs_w0" "packets" "of these, on the first CPU";
    "allocs_w1" "packets" "and on the second";
    "allocs_most" "packets" "of these, on the CPU that allocated most";
    "frees" "packets" "packets freed";
    "frees_w0" "packets" "of these, on the first CPU";
    "frees_w1" "packets" "and on the second";
    "alloc_timed" "packets" "allocations in calls that nothing interrupted";
    "free_timed" "packets" "frees in such calls";
    "alloc_ticks" "ticks" "time to allocate, without what timing took: of those timed, times all by those timed";
    "alloc_ticks_w0" "ticks" "of this, on the first CPU";
    "alloc_ticks_w1" "ticks" "and on the second";
    "free_ticks" "ticks" "time to free, likewise";
    "free_ticks_w0" "ticks" "of this, on the first CPU";
    "free_ticks_w1" "ticks" "and on the second";
    "buffer_ticks" "ticks" "to allocate and to free";
    "produce_ticks" "ticks" "time to set lengths after allocation";
    "consume_ticks" "ticks" "time in which the consumer reads or writes metadata";
    "life_ticks" "ticks" "to allocate, produce, consume and free: what a policy moves from one of them to another is in this sum all the same";
    "skb_ticks_by_call" "ticks/packet" "mean of an allocation and mean of a free, added: every call weighs the same";
    "skb_ticks_by_cpu" "ticks/packet" "as post 004 adds: the same on each CPU, and the mean of the CPUs, each counted once; where one CPU only allocates and the other only frees this is half of skb_ticks_by_call";
    "init_ticks_warm" "ticks/packet" "to initialise a line that this CPU has in its cache: renewed in place, again and again";
    "init_ticks_cold" "ticks/packet" "to initialise a line that the other CPU has just written";
    "warm_ticks" "ticks/packet" "to allocate and to free on one CPU with everything in its cache, init included";
    "allocator_ticks" "ticks/packet" "warm_ticks less init_ticks_warm: lists and counts";
    "miss_ticks" "ticks/packet" "skb_ticks_by_call less warm_ticks: lines that were elsewhere, lists to be refilled; a difference, which noise can make negative where there is nothing of it";
    "timer_ticks" "ticks/call" "what timing a call costs; taken off each";
    "interrupted_calls" "calls" "calls that took more than 100 µs and 1 µs for each packet, because something interrupted them: left out of the times, not of the packets; if they are many, repeat the run on quiet CPUs";
    "starved" "calls" "allocations that found nothing";
    "handed" "packets" "packets put into the queue between the CPUs";
    "taken" "packets" "packets taken from it";
    "wait_ticks_w0" "ticks" "time that the first CPU had no room in the queue or no frame";
    "wait_ticks_w1" "ticks" "time that the second CPU found the queue empty";
    "split_packets" "packets" "packets of which init and warm are the mean";
};

/// The counts of each thread, with its stopwatch.
pub(super) type Each = Vec<(Counts, Stopwatch)>;

/// Returns the figures of a window, without those that were not timed.
pub(super) fn of(each: &Each) -> BTreeMap<String, f64> {
    let mut figures = BTreeMap::new();
    let mut add = |name: &str, value: Option<f64>| {
        figures.extend(value.map(|value| (name.to_owned(), value)));
    };
    let all = |of: Of| each.iter().map(|(counts, _)| of(counts).all()).sum::<u64>();
    add("allocs", Some(all(|counts| &counts.alloc) as f64));
    let most = each.iter().map(|(counts, _)| counts.alloc.all()).max();
    add("allocs_most", Some(most.unwrap_or(0) as f64));
    add("frees", Some(all(|counts| &counts.free) as f64));
    let timed = |of: Of| each.iter().map(|(counts, _)| of(counts).packets).sum::<u64>() as f64;
    add("alloc_timed", Some(timed(|counts| &counts.alloc)));
    add("free_timed", Some(timed(|counts| &counts.free)));
    let (alloc, free) = (ticks(each, |counts| &counts.alloc), ticks(each, |counts| &counts.free));
    // Metadata that is never accessed takes no time: without such calls, 0 is the measured value.
    let touched = |of: Of| ticks(each, of).or_else(|| (all(of) == 0).then_some(0.0));
    let produce = touched(|counts| &counts.produce);
    let consume = touched(|counts| &counts.consume);
    add("alloc_ticks", alloc);
    add("free_ticks", free);
    let buffer = alloc.zip(free).map(|(alloc, free)| alloc + free);
    add("buffer_ticks", buffer);
    add("produce_ticks", produce);
    add("consume_ticks", consume);
    let access = produce.zip(consume).map(|(produce, consume)| produce + consume);
    add("life_ticks", buffer.zip(access).map(|(buffer, access)| buffer + access));
    add("skb_ticks_by_call", by_call(each));
    add("skb_ticks_by_cpu", by_cpu(each));
    for (i, (counts, watch)) in each.iter().enumerate() {
        add(&format!("allocs_w{i}"), Some(counts.alloc.all() as f64));
        add(&format!("frees_w{i}"), Some(counts.free.all() as f64));
        add(&format!("alloc_ticks_w{i}"), watch.of_all(&counts.alloc));
        add(&format!("free_ticks_w{i}"), watch.of_all(&counts.free));
        add(&format!("wait_ticks_w{i}"), Some(counts.wait_ticks as f64));
    }
    split(each, &mut add);
    counts(each, &mut add);
    figures
}

type Of = fn(&Counts) -> &Timed;

fn split(each: &Each, add: &mut impl FnMut(&str, Option<f64>)) {
    // The first CPU's split has warm and init, the second CPU's has the cold part.
    let Some((first, watch)) = each.first() else { return };
    let init = watch.per_packet(&first.split.init);
    let alloc = watch.per_packet(&first.split.warm_alloc);
    let warm = alloc.zip(watch.per_packet(&first.split.warm_free)).map(|(a, f)| a + f);
    add("init_ticks_warm", init);
    add("warm_ticks", warm);
    add("allocator_ticks", warm.zip(init).map(|(warm, init)| warm - init));
    add("miss_ticks", by_call(each).zip(warm).map(|(all, warm)| all - warm));
    add("split_packets", Some(first.split.init.packets as f64));
    if let Some((second, watch)) = each.get(1) {
        add("init_ticks_cold", watch.per_packet(&second.split.init_cold));
    }
}

fn counts(each: &Each, add: &mut impl FnMut(&str, Option<f64>)) {
    let sum = |of: fn(&Counts) -> u64| {
        Some(each.iter().map(|(counts, _)| of(counts)).sum::<u64>() as f64)
    };
    let calls = |counts: &Counts| {
        let all = [counts.alloc, counts.produce, counts.consume, counts.free];
        all.iter().map(|timed| timed.interrupted_calls).sum()
    };
    add("interrupted_calls", sum(calls));
    add("starved", sum(|counts| counts.starved));
    add("handed", sum(|counts| counts.handed));
    add("taken", sum(|counts| counts.taken));
    let timer = each.iter().map(|(_, watch)| watch.cost_ticks).sum::<u64>() as f64;
    add("timer_ticks", (!each.is_empty()).then(|| timer / each.len() as f64));
}

/// Returns the ticks of all calls of a kind, on all CPUs; `None` if a CPU made calls and none was
/// timed.
fn ticks(each: &Each, of: Of) -> Option<f64> {
    let did = each.iter().filter(|(counts, _)| of(counts).all() > 0);
    let ticks: Option<Vec<f64>> = did.map(|(counts, watch)| watch.of_all(of(counts))).collect();
    ticks.filter(|ticks| !ticks.is_empty()).map(|ticks| ticks.iter().sum())
}

/// Returns the mean cost with equal weight for every call.
pub(super) fn by_call(each: &Each) -> Option<f64> {
    let mean = |of: Of| {
        let all: u64 = each.iter().map(|(counts, _)| of(counts).all()).sum();
        ticks(each, of).map(|ticks| ticks / all as f64)
    };
    mean(|counts| &counts.alloc).zip(mean(|counts| &counts.free)).map(|(alloc, free)| alloc + free)
}

/// Returns the mean cost of an allocation plus a free, with equal weight for every CPU.
pub(super) fn by_cpu(each: &Each) -> Option<f64> {
    let of_one = |(counts, watch): &(Counts, Stopwatch)| {
        let (alloc, free) = (watch.per_packet(&counts.alloc), watch.per_packet(&counts.free));
        alloc.or(free).map(|_| alloc.unwrap_or(0.0) + free.unwrap_or(0.0))
    };
    let cpus: Option<Vec<f64>> = each.iter().map(of_one).collect();
    cpus.filter(|cpus| !cpus.is_empty()).map(|cpus| cpus.iter().sum::<f64>() / cpus.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(packets: u64, raw_ticks: u64) -> Timed {
        Timed { packets, calls: 1, raw_ticks, ..Timed::default() }
    }

    fn free_of_charge() -> Stopwatch {
        let mut watch = Stopwatch::calibrated(false, 1, 1e9);
        watch.cost_ticks = 0;
        watch
    }

    /// Checks the means against the post's table, with calls in hundreds: each of its means and
    /// both of its sums.
    #[test]
    fn the_means_of_the_posts_table_are_those_that_it_gives_and_the_weighted_one() {
        let cpu = |allocs: u64, alloc: f64, frees: u64, free: f64| {
            let ticks = |calls: u64, mean: f64| timed(calls, (calls as f64 * mean).round() as u64);
            let counts = Counts {
                alloc: ticks(allocs, alloc),
                free: ticks(frees, free),
                ..Counts::default()
            };
            (counts, free_of_charge())
        };
        let old =
            vec![cpu(235_478, 64.05, 2_063_276, 127.54), cpu(2_060_422, 203.39, 232_359, 228.95)];
        assert!((by_cpu(&old).unwrap() - (191.59 + 432.34) / 2.0).abs() < 0.001);
        let old = by_call(&old).unwrap();
        assert!((old - 326.90).abs() < 0.01, "{old}");
        // For the new kernel the post has only the allocation, which includes the initialisation.
        let new = vec![cpu(1_226_594, 237.21, 1, 0.0), cpu(1_213_327, 230.91, 1, 0.0)];
        let change_pct = 100.0 * (by_call(&new).unwrap() / old - 1.0);
        assert!((change_pct + 28.4).abs() < 0.05, "{change_pct}");
    }

    #[test]
    fn a_figure_that_a_window_has_is_one_that_the_scenario_names() {
        let split = super::super::stopwatch::Split {
            warm_alloc: timed(32, 320),
            warm_free: timed(32, 160),
            init: timed(32, 64),
            init_cold: timed(32, 640),
        };
        let near =
            Counts { alloc: timed(64, 6400), produce: timed(64, 64), split, ..Counts::default() };
        let far =
            Counts { free: timed(32, 320), consume: timed(32, 32), split, ..Counts::default() };
        let figures = of(&vec![(near, free_of_charge()), (far, free_of_charge())]);
        assert!(figures.keys().all(|name| FIGURES.iter().any(|figure| figure.name == name)));
        let is = |name: &str, value: f64| assert_eq!(figures.get(name), Some(&value), "{name}");
        is("buffer_ticks", 6720.0);
        is("life_ticks", 6816.0);
        is("skb_ticks_by_call", 110.0);
        is("skb_ticks_by_cpu", 55.0);
        is("init_ticks_warm", 2.0);
        is("warm_ticks", 15.0);
        is("allocator_ticks", 13.0);
        is("miss_ticks", 95.0);
        is("init_ticks_cold", 20.0);
        let parts = ["init_ticks_warm", "allocator_ticks", "miss_ticks"].map(|name| figures[name]);
        assert_eq!(parts.iter().sum::<f64>(), figures["skb_ticks_by_call"]);
    }

    #[test]
    fn calls_that_were_not_timed_have_no_tick_figure() {
        let interrupted =
            Timed { interrupted_packets: 32, interrupted_calls: 1, ..Timed::default() };
        let counts = Counts { alloc: timed(32, 64), free: interrupted, ..Counts::default() };
        let figures = of(&vec![(counts, free_of_charge())]);
        assert_eq!(figures["frees"], 32.0);
        assert!(!figures.contains_key("free_ticks") && !figures.contains_key("buffer_ticks"));
        assert!(!figures.contains_key("miss_ticks"));
        assert_eq!((figures["produce_ticks"], figures["consume_ticks"]), (0.0, 0.0), "no calls");
        let counts = Counts {
            alloc: timed(32, 64),
            free: timed(32, 64),
            consume: interrupted,
            ..Counts::default()
        };
        let figures = of(&vec![(counts, free_of_charge())]);
        assert_eq!((figures["buffer_ticks"], figures["produce_ticks"]), (128.0, 0.0));
        assert!(!figures.contains_key("consume_ticks") && !figures.contains_key("life_ticks"));
    }
}
