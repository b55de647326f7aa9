//! Traces of calls whose results are known.

use linerate_skb::Pool;

use super::*;
use crate::{Port, Queue};

fn traced(len: u32, records: u32) -> (Queue, Queue, Trace) {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, b) = Port::pair(len, &pool).unwrap();
    let mut trace = None;
    let a = a.into_queues().remove(0).wrap(|ops| {
        let (traced, reader) = Traced::new(ops, records)?;
        trace = Some(reader);
        Ok(Box::new(traced))
    });
    (a.unwrap(), b.into_queues().remove(0), trace.unwrap())
}

/// Sends packets of 100 bytes that begin with their number; returns how many were sent.
fn push(queue: &mut Queue, numbers: std::ops::Range<u8>) -> usize {
    let mut batch = Batch::with_capacity(numbers.len());
    assert_eq!(queue.alloc(&mut batch, numbers.len()), numbers.len());
    for (number, skb) in numbers.zip(batch.iter_mut()) {
        skb.put(100).unwrap().fill(number);
    }
    queue.xmit(&mut batch)
}

fn all(trace: &mut Trace) -> Vec<(Way, What, u32, Option<u8>)> {
    let line = |r: Record| (r.way, r.what, r.batch, r.head().first().copied());
    std::iter::from_fn(|| trace.next()).map(line).collect()
}

const PACKET: What = What::Packet { len_bytes: 100 };

#[test]
fn a_trace_has_what_passed_and_what_did_not() {
    let (mut a, mut b, mut trace) = traced(4, 64);
    trace.set_on(true);
    assert_eq!((push(&mut a, 0..6), push(&mut b, 9..10)), (4, 1));
    a.rx(&mut Batch::with_capacity(8));
    let tx = |n| (Way::Tx, PACKET, 6, Some(n));
    let refused = (Way::Tx, What::Refused { packets: 2 }, 6, None);
    let rx = (Way::Rx, PACKET, 1, Some(9));
    assert_eq!(all(&mut trace), [tx(0), tx(1), tx(2), tx(3), refused, rx]);
    drop(b);
    push(&mut a, 0..3);
    let dropped = (Way::Tx, What::Dropped { packets: 3 }, 3, None);
    assert_eq!(all(&mut trace)[3..], [dropped]);
    assert_eq!(trace.lost(), 0);
}

#[test]
fn a_record_has_the_first_bytes_and_reads_as_a_line() {
    let (mut a, _b, mut trace) = traced(4, 8);
    trace.set_on(true);
    push(&mut a, 3..4);
    let record = trace.next().unwrap();
    assert_eq!((record.head(), record.call), (&[3; HEAD_BYTES][..], 1));
    let line = record.to_string();
    assert!(line.contains(" call 1 tx of 1: 100 bytes 03 03"), "{line}");
}

#[test]
fn a_trace_that_is_off_records_nothing_and_a_full_one_counts_what_it_loses() {
    let (mut a, mut b, mut trace) = traced(64, 4);
    push(&mut a, 0..3);
    assert_eq!((all(&mut trace), trace.lost()), (vec![], 0));
    trace.set_on(true);
    push(&mut a, 3..9);
    push(&mut b, 0..5);
    a.rx(&mut Batch::with_capacity(8));
    let first: Vec<Option<u8>> = all(&mut trace).into_iter().map(|r| r.3).collect();
    assert_eq!((first, trace.lost()), (vec![Some(3), Some(4), Some(5), Some(6)], 2 + 5));
    trace.set_on(false);
    push(&mut a, 0..1);
    assert_eq!((trace.next(), trace.lost()), (None, 7));
}

#[test]
fn another_thread_reads_it_while_packets_pass() {
    let (mut a, mut b, mut trace) = traced(64, 16);
    trace.set_on(true);
    let path = std::thread::spawn(move || {
        let mut sent = 0;
        for _ in 0..2000 {
            sent += push(&mut a, 0..8) as u64;
            b.rx(&mut Batch::with_capacity(64));
        }
        sent
    });
    let (mut read, mut last) = (0, 0);
    while !path.is_finished() {
        while let Some(record) = trace.next() {
            assert!(record.call >= last && record.way == Way::Tx);
            (read, last) = (read + 1, record.call);
        }
        std::thread::yield_now();
    }
    let sent = path.join().unwrap();
    assert_eq!(read + all(&mut trace).len() as u64 + trace.lost(), sent);
}

#[test]
fn a_trace_without_end_is_refused() {
    let (a, _b, _) = traced(4, 1);
    let e = a.wrap(|ops| Ok(Box::new(Traced::new(ops, u32::MAX)?.0))).unwrap_err();
    assert!(e.code == Code::Memory && !e.fix.is_empty(), "{e}");
}
