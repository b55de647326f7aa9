//! Rounds of several polls, and rounds whose hold ended early.

use super::*;

#[test]
fn dim_counts_all_polls_of_a_round() {
    for (gap, each) in [(us(4), 50.0), (us(2), 90.0), (us(1), 180.0)] {
        let mut m = Moderator::new(Moderation::Dim, true);
        m.set_ring_len(Some(4096));
        let seen = simulate(&mut m, every(gap, SECOND), SECOND, us(5));
        assert!(seen.each() > each, "{gap:?}: {} {}", seen.each(), seen.line);
    }
}

#[test]
fn round_of_one_full_poll_is_held() {
    let mut m = Moderator::new(Moderation::Fixed { usecs: 100, frames: 4096 }, true);
    let rests = looks(&mut m, Instant::now(), us(50), &[20, 20, BUDGET, 0]);
    assert!(rests[2] == Rest::Look && is_held(&rests[3]), "{rests:?}");
}

#[test]
fn hold_that_another_queue_ended_is_no_evidence_whoever_notes_its_end() {
    let start = Instant::now();
    let [worker, own] = [false, true].map(|is_noted| {
        let mut m = Moderator::new(Moderation::default(), true);
        for i in 0..200 {
            m.received(5, 300, BUDGET);
            let now = start + i * us(100);
            m.rest(now);
            if is_noted {
                m.hold_ended(now + us(100));
            }
        }
        format!("{:?}", m.adaptive)
    });
    assert_eq!(worker, own);
}

#[test]
fn hold_that_was_not_slept_is_none_for_the_comparison_of_holds() {
    let mut m = Moderator::new(Moderation::default(), true);
    let rests = looks(&mut m, Instant::now(), TIME, &[20, 20, 20]);
    assert!(is_held(&rests[2]) && m.holds_for_goal());
    m.forget_hold();
    assert!(!m.holds_for_goal());
}

#[test]
fn reason_of_a_trial_that_failed_gives_way_to_that_of_thin_traffic() {
    let (mut m, start) = (Moderator::new(Moderation::default(), true), Instant::now());
    simulate_from(start, &mut m, Load::Answers(1, us(40)), SECOND);
    let thin = every(us(100_000), 3 * SECOND);
    let seen = simulate_from(start + SECOND, &mut m, thin, 3 * SECOND);
    assert!(seen.line.contains("too rarely"), "{}", seen.line);
}
