//! Tests of the suite: our own ports, and drivers that are broken on purpose.

mod broken;
mod ports;

use std::path::Path;

use linerate_skb::Pool;

use super::{Ends, Ran, Rig, cases};
use crate::host::testing::Scratch;
use crate::{registry, ring};

fn rings() -> Rig {
    Rig::new(|pool| ring::pair("applies", 64, pool).map(|(a, b)| Ends::Pair(a, b)))
}

/// Returns a rig of a capture in `folder` that is written and never read.
fn stored(folder: &Path) -> Rig {
    let text = format!("pcap:{},write", folder.join("stored.pcapng").display());
    let open = move |pool: &Pool| {
        let near = registry::open(&text, pool)?;
        Ok(Ends::Stored(near, Box::new(|_: &Pool| panic!("no case reads what it wrote"))))
    };
    Rig::new(open)
}

#[test]
fn a_case_that_tests_nothing_in_either_direction_does_not_apply() {
    for case in [cases::a_full_device_hands_the_rest_back, cases::room_wakes_a_sender] {
        let ran = case(&mut rings().blocks_when_full());
        assert_eq!(ran, Ran::DoesNotApply("its device is never full"));
    }
    let scratch = Scratch::new();
    for case in [
        cases::budgets_are_kept,
        cases::a_dry_pool_loses_nothing_and_recovers,
        cases::a_full_device_hands_the_rest_back,
        cases::room_wakes_a_sender,
        cases::arm_tells_what_is_there,
        cases::no_wake_up_is_lost,
    ] {
        let ran = case(&mut stored(&scratch.0));
        assert_eq!(ran, Ran::DoesNotApply("what it stores is read when its writer is closed"));
    }
}

#[test]
fn a_case_that_applies_in_one_direction_only_has_passed() {
    const NOT: Ran = Ran::DoesNotApply("why");
    for (ran, of_ways) in [
        (Ran::Passed, [Ran::Passed, NOT]),
        (Ran::Passed, [NOT, Ran::Passed]),
        (Ran::Passed, [Ran::Passed, Ran::Passed]),
        (NOT, [NOT, NOT]),
    ] {
        let mut of_ways = of_ways.into_iter();
        assert_eq!(rings().each_way(|_| of_ways.next().unwrap()), ran);
        assert_eq!(of_ways.next(), None, "a direction was left out");
    }
}

#[test]
fn every_case_is_one_of_the_macros_tests() {
    let cases = include_str!("../cases/mod.rs").split("pub use ").skip(1);
    let names = cases.flat_map(|text| {
        let list = text.split([';', '{', '}']).nth(1).unwrap_or_default();
        list.split(',').map(str::trim).filter(|name| !name.is_empty())
    });
    let tests: Vec<_> = include_str!("../mod.rs").lines().map(str::trim).collect();
    let mut n = 0;
    for name in names {
        assert!(tests.contains(&name), "{name} is no test of conformance!");
        n += 1;
    }
    assert_eq!(n, 18);
}
