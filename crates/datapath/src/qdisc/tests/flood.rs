//! Tests fair queueing against a sender with very many flows.

use super::*;

/// Fair queueing to 65536 queues, of which each packet's hash names one.
struct Flood(Bench<FqCodel>);

impl Flood {
    fn new(limit: usize) -> Flood {
        let limit = Limit::packets(limit);
        let config = FqCodelConfig { limit, flows: 1 << 16, ..FqCodelConfig::default() };
        Flood(Bench::new(FqCodel::new(config)))
    }

    /// Enqueues a packet in queue number `queue`; returns the number of packets dropped for it.
    fn put(&mut self, queue: u16) -> usize {
        let Flood(Bench { qdisc, mem, start, .. }) = self;
        let (mut batch, before) = (Batch::with_capacity(1), qdisc.counts().dropped.packets);
        let mut skb = udp(mem, 1, 2, queue, 100);
        assert!(skb.set_hash(u32::from(queue) << 16) && batch.push(skb).is_ok());
        qdisc.enqueue(&mut batch, 1, *start, mem);
        let dropped = qdisc.counts().dropped.packets - before;
        self.0.check();
        dropped
    }
}

#[test]
fn all_queues_are_searched_once_for_many_packets_of_many_flows() {
    let mut flood = Flood::new(640);
    let drops: Vec<usize> = (0..900).map(|queue| flood.put(queue)).collect();
    // A packet above the limit costs a search of all queues, which makes room for nine more.
    let searches = drops.iter().filter(|dropped| **dropped > 0).count();
    assert_eq!((searches, drops.iter().sum::<usize>()), (26, 260));
}

#[test]
fn flow_with_many_packets_loses_all_that_a_search_drops() {
    let mut flood = Flood::new(959);
    // A 64th of all packets is more than half of the longest queue.
    let sum: usize = [0; 20].into_iter().chain(1..=940).map(|queue| flood.put(queue)).sum();
    assert_eq!(sum, 15);
    let Flood(Bench { qdisc, mem, start, .. }) = &mut flood;
    let mut out = Batch::with_capacity(1024);
    qdisc.dequeue(&mut out, ALL, *start, mem);
    let of_many = out.iter().filter(|skb| skb.hash() == Some(0)).count();
    assert_eq!((of_many, out.len()), (5, 945));
    out.consume(mem);
}
