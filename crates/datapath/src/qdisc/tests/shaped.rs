//! Tests a discipline in front of a port of the program's own.

use linerate_port::Port;

use super::*;

#[test]
fn shaped_port_sends_what_is_due_and_says_when_to_come_back() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, mut b) = Port::pair(8, &pool).unwrap();
    let mut port = Shaped::new(a, Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(20))));
    let (mut mem, mut now) = (pool.local(), Instant::now());
    assert_eq!(port.timeout(now), None);
    let (mut batch, mut got) = (Batch::with_capacity(32), Batch::with_capacity(32));
    for _ in 0..12 {
        assert!(batch.push(udp(&mut mem, 1, 2, 3, 1000)).is_ok());
    }
    // Two packets are the burst; then one a millisecond.
    assert_eq!(port.xmit(&mut batch, now), 2);
    assert!(batch.is_empty());
    for _ in 0..3 {
        assert_eq!(port.timeout(now), Some(Duration::from_millis(1)));
        assert_eq!(port.xmit(&mut batch, now), 0);
        now += Duration::from_millis(1);
        assert_eq!(port.xmit(&mut batch, now), 1);
    }
    // The ring has room for eight: packets that are due and find no room are sent first later.
    now += Duration::from_secs(1);
    assert_eq!(port.xmit(&mut batch, now), 2);
    now += Duration::from_secs(1);
    assert_eq!(port.xmit(&mut batch, now), 1);
    assert_eq!((b.rx(&mut got), port.xmit(&mut batch, now)), (8, 1));
    assert!(port.timeout(now).is_some_and(|time| time <= Duration::from_millis(1)));
    drop(port.into_port());
    assert_eq!(pool.ledger().dropped(DropReason::STOPPED), 3);
    assert_eq!(b.rx(&mut got), 1);
    got.clear();
    assert_eq!(pool.ledger().in_flight, 0);
}

#[test]
fn packets_that_wait_in_a_shaped_port_that_is_dropped_are_counted_as_stopped() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, _b) = Port::pair(8, &pool).unwrap();
    let mut port = Shaped::new(a, Tbf::new(8_000_000, 2000, Fifo::new(Limit::packets(20))));
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(5));
    while batch.spare() > 0 {
        assert!(batch.push(udp(&mut mem, 1, 2, 3, 1000)).is_ok());
    }
    assert_eq!(port.xmit(&mut batch, Instant::now()), 2);
    drop(port);
    assert_eq!(pool.ledger().dropped(DropReason::STOPPED), 3);
}
