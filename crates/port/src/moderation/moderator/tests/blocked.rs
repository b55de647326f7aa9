//! Queues that are not polled, because there is no room for their packets.

use super::*;

#[test]
fn a_queue_that_there_is_no_room_for_is_not_an_empty_one() {
    let mut m = Moderator::new(Moderation::default(), true);
    let now = Instant::now();
    let rests = looks(&mut m, now, TIME, &[20, 20, 20]);
    assert!(is_held(&rests[2]));
    let mut blocked = |at| {
        m.left_alone();
        m.rest(at)
    };
    assert!(is_held(&blocked(now + 4 * TIME)), "what it has is not known, and still comes densely");
    // A queue that has no room for a long time is slept on.
    assert_eq!(blocked(now + 100 * TIME), Rest::Device);
}

#[test]
fn a_queue_that_was_polled_after_it_had_no_room_is_not_blocked() {
    // Another queue of the worker had more packets meanwhile, so that nothing was decided.
    let mut m = Moderator::new(Moderation::default(), true);
    let now = Instant::now();
    looks(&mut m, now, TIME, &[20, 20, 20]);
    m.left_alone();
    m.received(BUDGET, 0, BUDGET);
    assert_eq!(m.rest(now + 4 * TIME), Rest::Look, "it may have more");
    m.received(0, 0, BUDGET);
    m.left_alone();
    assert_ne!(m.rest(now + 5 * TIME), Rest::Look, "the last poll did not take place");
}

#[test]
fn first_hold_after_a_long_time_without_room_ends_before_the_ring_is_full() {
    let mut m = Moderator::new(Moderation::Fixed { usecs: 10_000, frames: 65_536 }, true);
    m.set_ring_len(Some(128));
    let now = Instant::now();
    looks(&mut m, now, us(100), &[50, 50]);
    m.left_alone();
    assert_eq!(m.rest(now + us(100_000)), Rest::Device);
    m.received(10, 0, BUDGET);
    let at = now + us(100_100);
    let Rest::Hold { until, .. } = m.rest(at) else { panic!("it holds packets") };
    assert!(until - at <= us(130), "{:?}", until - at);
}
