//! Tests of the adaptive mode with many peers, each of which waits for its answer: a hold slows all
//! of them down by less than half.

use super::*;

const SECONDS: Duration = Duration::from_secs(3);

/// Lets `mode` serve `peers` that send a packet `trip` after their last one was received.
fn serve(mode: &str, peers: u32, trip: Duration) -> Seen {
    let mut m = Moderator::new(mode.parse().unwrap(), true);
    m.set_ring_len(Some(1024));
    let due = (0..peers).map(|peer| us(100) + trip * peer / peers).collect();
    simulate(&mut m, Load::Peers(due, trip), SECONDS, us(5))
}

#[test]
fn many_peers_that_wait_keep_most_of_their_rate() {
    for (peers, trip) in [(8, 300), (16, 300), (16, 600), (32, 600), (32, 1000), (64, 1000)] {
        let free = serve("napi", peers, us(trip));
        let held = serve("adaptive", peers, us(trip));
        let fixed = serve("fixed:usecs=200,frames=64", peers, us(trip));
        let [share, of_fixed] =
            [&held, &fixed].map(|seen| seen.packets as f64 / free.packets as f64);
        let most = held.holds.iter().map(|(_, hold)| *hold).max();
        println!(
            "{peers} peers, {trip} us: {share:.2}, fixed {of_fixed:.2}: {} {most:?}",
            held.line
        );
        // A difference of less than a ninth, or that may be chance, is accepted.
        assert!(share > 0.87, "{peers} peers, {trip} us: {share:.2}: {}", held.line);
    }
}

#[test]
fn peers_that_pause_are_not_slowed_down_for_good() {
    // For half of the time the peers send; holds of 250 us slow them down by a third.
    let served = |mode: &str, ms: u32| {
        let mut m = Moderator::new(mode.parse().unwrap(), true);
        m.set_ring_len(Some(1024));
        let due = (0..16).map(|peer| us(100 + 20 * peer)).collect();
        let load = Load::Pausing(due, us(300), ms);
        simulate(&mut m, load, SECONDS, us(5)).packets as f64
    };
    for ms in [100, 60, 30, 10] {
        let share = served("adaptive", ms) / served("napi", ms);
        assert!(share > 0.85, "{ms} ms: {share:.2}");
    }
}

#[test]
fn peers_whose_trip_is_long_are_held() {
    // A hold of 250 us slows each peer by a fortieth at most.
    let held = serve("adaptive", 400, us(10_000));
    assert!(held.each() > 5.0, "{} an irq: {}", held.each(), held.line);
}

#[test]
fn a_stream_after_peers_that_wait_is_held_for_the_whole_goal_again() {
    let mut m = Moderator::new(Moderation::default(), true);
    m.set_ring_len(Some(1024));
    let due = (0..16).map(|peer| us(100 + 20 * peer)).collect();
    let start = Instant::now();
    let peers = simulate_from(start, &mut m, Load::Peers(due, us(300)), SECOND);
    assert!(!peers.line.contains("holding 2"), "{}", peers.line);
    let wait = 8 * SECOND;
    let seen = simulate_from(start + SECOND, &mut m, every(us(20), wait), wait);
    assert!(seen.line.contains("holding 2"), "{}", seen.line);
}
