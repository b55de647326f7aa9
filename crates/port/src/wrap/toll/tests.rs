//! Tests that each access costs its price, and that prices rise with the load.

use linerate_skb::Pool;

use super::*;
use crate::{Port, ring};

fn toll(text: &str) -> Toll {
    text.parse().unwrap()
}

/// Returns the two ends of a ring, the first with a toll.
fn ends(pool: &Pool) -> (Tolled, Box<dyn QueueOps>) {
    let (mut a, mut b) = ring::pair("tolled", 64, pool).unwrap();
    (Tolled::new(a.queues.remove(0), toll("10ns/20ns")), b.queues.remove(0))
}

#[test]
fn text_is_read_and_displayed_and_a_bad_one_is_refused_with_how_it_is_written() {
    for text in ["100ns/1µs", "0ns/1.5µs/4Gbps"] {
        assert_eq!(toll(text).to_string(), text);
    }
    for (text, why) in [
        ("", "does not start with a number"),
        ("100ns", "no price of a read"),
        ("1s/1us", "a write takes at most 100µs, not 1s"),
        ("1us/2ms", "a read takes at most"),
        ("1us/2us/3Mpps", "bits a second"),
        ("1us/2us/3Gbps/4", "nothing behind the bus"),
        ("1us/2", "needs a unit"),
    ] {
        let e = text.parse::<Toll>().unwrap_err().to_string();
        assert!(e.contains(why) && e.contains("100ns/1us/4Gbps"), "{text}: {e}");
    }
}

#[test]
fn accesses_are_counted_apart_by_what_they_are_for() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut tolled, mut other) = ends(&pool);
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    let taken = |tolled: &mut Tolled| {
        let now = tolled.counters().driver.registers.unwrap();
        (now.writes, now.reads)
    };
    tolled.rx(&mut mem, &mut batch, 8);
    assert_eq!(taken(&mut tolled), (0, 0), "nothing was found");
    mem.alloc(&mut batch, 3);
    tolled.xmit(&mut mem, &mut batch);
    assert_eq!(taken(&mut tolled), (1, 0), "a doorbell for three packets");
    other.rx(&mut mem, &mut batch, 8);
    other.xmit(&mut mem, &mut batch);
    tolled.rx(&mut mem, &mut batch, 8);
    assert_eq!((batch.len(), taken(&mut tolled)), (3, (2, 0)));
    tolled.irq();
    assert_eq!(taken(&mut tolled), (4, 2), "mask and cause, unmask and its flush");
    other.xmit(&mut mem, &mut batch);
    assert!(!tolled.arm(Want::Frames));
    assert_eq!(taken(&mut tolled), (5, 3), "armed, and something was there");
    let now = tolled.counters().driver.registers.unwrap();
    assert_eq!((now.write_ns, now.read_ns), (50, 60));
}

#[test]
fn a_read_takes_longer_the_busier_the_bus_is() {
    let now = Instant::now();
    let read = |bytes: u64| {
        let mut bus = Bus { toll: toll("0ns/1us/1Gbps"), bytes, since: now, load: 0.0 };
        (bus.read(now), bus.read(now + SPAN))
    };
    let us = Duration::from_micros;
    // In a millisecond that bus carries 125,000 bytes.
    assert_eq!(read(0), (us(1), us(1)));
    assert_eq!(read(62_500), (us(1), us(2)));
    assert_eq!(read(93_750), (us(1), us(4)));
    assert_eq!(read(1 << 30), (us(1), us(16)), "no read takes for ever");
    let mut idle = Bus { toll: toll("0ns/1us"), bytes: 1 << 30, since: now, load: 0.0 };
    assert_eq!(idle.read(now + SPAN), us(1), "no bus, no load");
}

#[test]
fn packets_of_both_directions_load_the_bus() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (mut a, mut b) = ring::pair("loaded", 64, &pool).unwrap();
    let (mut near, mut far) = (a.queues.remove(0), b.queues.remove(0));
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
    // The period has not begun, so a delay of this test does not end it.
    let since = Instant::now() + Duration::from_secs(3600);
    let bus = Bus { toll: toll("0ns/100ns/1bps"), bytes: 0, since, load: 0.0 };
    let mut booth = Booth { bus, taken: Registers::default() };
    mem.alloc(&mut batch, 3);
    batch.iter_mut().for_each(|skb| assert!(skb.put(60).is_some()));
    booth.xmit(near.as_mut(), &mut mem, &mut batch);
    assert_eq!(booth.bus.bytes, 3 * 60);
    far.rx(&mut mem, &mut batch, 8);
    far.xmit(&mut mem, &mut batch);
    booth.rx(near.as_mut(), &mut mem, &mut batch, 8);
    assert_eq!((batch.len(), booth.bus.bytes), (3, 2 * 3 * 60));
    booth.irq(near.as_mut());
    assert_eq!(booth.taken.read_ns, 2 * 100, "two reads at the load before");
    booth.bus.since = Instant::now().checked_sub(2 * SPAN).unwrap();
    booth.irq(near.as_mut());
    assert_eq!(booth.taken.read_ns, 2 * 100 + 2 * 1600, "two reads at the highest load");
}

#[test]
fn port_text_puts_a_toll_around_every_queue_and_a_bad_one_is_an_error() {
    let taken = |text: &str| {
        let mut queue = Port::open(text).unwrap().into_queues().remove(0);
        queue.rx(&mut Batch::with_capacity(8));
        queue.driver_counts().registers
    };
    assert_eq!(
        taken("null:,toll=10ns/20ns").map(|taken| (taken.writes, taken.reads)),
        Some((1, 0))
    );
    assert_eq!(taken("null:"), None);
    let e = Port::open("null:,toll=10ns").unwrap_err();
    assert!(e.why.contains("toll=10ns: there is no price of a read"), "{e}");
}
