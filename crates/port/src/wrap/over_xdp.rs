//! Tests of faults and captures over AF_XDP, where the pool keeps the frames that the device has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_skb::{Batch, DropReason, Pool};

use super::fault::{Fault, FaultStats, Faulty, Plan};
use super::tee::{Limits, Tee};
use super::testing::SharedFile;
use crate::host::testing::{
    LONG, assert_settled, bytes, eventually, in_netns_with_xdp, queue_in, stamped, veth,
};
use crate::pcap::format::Reader;
use crate::{Port, Queue, Want};

/// Returns the packets of a capture, as a reader returns them.
fn packets(capture: &SharedFile) -> Vec<Vec<u8>> {
    let file = capture.content();
    let mut reader = Reader::new(file.as_slice()).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push(record.data.to_vec());
    }
    packets
}

/// Returns an xdp port with faults, between a capture on the device's side and one on the program's
/// side.
fn between(
    text: &str,
    pool: &Pool,
    plan: &Plan,
    [device, program]: [&Tee; 2],
) -> (Queue, Arc<FaultStats>) {
    let mut stats = None;
    let port = Port::open_with(text, pool).unwrap();
    let port = port.wrap(|ops, _| device.wrap(ops, "device")).unwrap();
    let port = port.wrap(|ops, _| {
        let faulty = Faulty::new(ops, plan)?;
        stats = Some(faulty.stats());
        Ok(Box::new(faulty))
    });
    let port = port.unwrap().wrap(|ops, _| program.wrap(ops, "program")).unwrap();
    (port.into_queues().remove(0), stats.unwrap())
}

/// An end, with the packets that it has to send.
struct End {
    queue: Queue,
    unsent: Batch,
    made: u64,
    got: u64,
}

impl End {
    fn new(queue: Queue) -> End {
        End { queue, unsent: Batch::with_capacity(32), made: 0, got: 0 }
    }

    /// Sends up to packet number `most`, and receives waiting packets.
    fn step(&mut self, most: u64) {
        while self.made < most && self.unsent.spare() > 0 {
            let skb = self.queue.local().alloc_copy(&stamped(self.made, 90)).unwrap();
            self.unsent.push(skb).unwrap();
            self.made += 1;
        }
        self.queue.xmit(&mut self.unsent);
        let mut batch = Batch::with_capacity(64);
        self.got += self.queue.rx(&mut batch) as u64;
        batch.discard(DropReason::UNSENT);
    }

    /// Reclaims the frames whose transmission the device has completed.
    fn settle(&mut self) {
        eventually(|| {
            self.step(0);
            let ledger = self.queue.pool().ledger();
            ledger.held().iter().all(|(name, n)| !name.ends_with(" tx") || *n == 0)
        });
    }

    fn sleep(&mut self) {
        let want = if self.unsent.is_empty() { Want::Frames } else { Want::Both };
        self.queue.wait_for(want, Some(Duration::from_millis(2))).unwrap();
    }
}

#[test]
fn faults_over_xdp_are_accounted_for_and_captures_agree_with_them() {
    in_netns_with_xdp(|| {
        veth(1500);
        let ms = Duration::from_millis;
        let plan =
            Plan::new(3).rx(Fault::Drop, 9).rx(Fault::Duplicate, 8).rx(Fault::Stall(ms(1)), 9);
        let plan = plan.rx(Fault::Reorder { behind: 3 }, 7).rx(Fault::Delay(ms(1)), 40);
        let plan = plan.tx(Fault::Drop, 7).tx(Fault::Duplicate, 9).tx(Fault::Stall(ms(1)), 9);
        let plan = plan.tx(Fault::Reorder { behind: 5 }, 8).tx(Fault::Refuse { calls: 3 }, 6);
        let pools = [(); 2].map(|()| Pool::builder().frames(8192).build().unwrap());
        let tees = [(); 2].map(|()| Tee::new(Limits::default()).unwrap());
        let (a, stats) = between("xdp:v0,ring=256", &pools[0], &plan, [&tees[0], &tees[1]]);
        let (mut a, mut b) = (End::new(a), End::new(queue_in("xdp:v1,ring=256", &pools[1])));
        let files = [SharedFile::default(), SharedFile::default()];
        let writers = [0, 1].map(|i| tees[i].start(files[i].clone()).unwrap());
        let end = Instant::now() + 4 * LONG;
        // Send a few packets at a time, so that neither device has more than its rings can hold.
        for most in (0..=1000).step_by(50) {
            loop {
                a.step(most);
                b.step(most);
                let fate = stats.counts();
                let came = a.made + b.made + fate.duplicated - fate.dropped;
                if a.unsent.is_empty() && b.unsent.is_empty() && a.got + b.got == came {
                    break;
                }
                assert!(Instant::now() < end, "{} of {came} came: {fate:?}", a.got + b.got);
                a.sleep();
                b.sleep();
            }
        }
        let fate = stats.counts();
        assert!(fate.dropped > 0 && fate.duplicated > 0 && fate.reordered > 0, "{fate:?}");
        assert!(fate.delayed > 0 && fate.stalled > 0 && fate.refused > 0, "{fate:?}");
        a.settle();
        b.settle();
        let missed = [a.queue.counts().rx_missed, b.queue.counts().rx_missed];
        let copied_bytes = a.queue.driver_counts().copied_bytes.unwrap();
        drop((a.queue, b.queue));
        let (from, to) = (pools[0].ledger(), pools[1].ledger());
        pools.iter().for_each(assert_settled);
        assert_eq!((missed, to.sent, from.received), ([0, 0], 1000, 1000), "{from}\n{to}");
        // The device owns the frames that it sends, so that a duplicated packet must be sent as a
        // copy.
        let created = from.created - from.consumed;
        assert_eq!((from.sent, created), (b.got, 1000 + fate.duplicated), "{from}");
        assert!(copied_bytes > 0 && copied_bytes == 90 * from.consumed, "{copied_bytes}: {from}");
        assert_eq!(from.dropped(DropReason::INJECTED), fate.dropped, "{from}");
        // The capture below the faults has the packets of the devices, the one above them those of
        // the program.
        let [below, above] = writers.map(|writer| writer.finish().unwrap());
        assert_eq!((below, above), (1000 + b.got, 1000 + a.got));
        assert!(tees.iter().all(|tee| tee.counts().dropped == 0));
        for (file, count) in files.iter().zip([below, above]) {
            let packets = packets(file);
            assert_eq!(packets.len() as u64, count);
            assert!(packets.iter().all(|p| p.len() == 90 && p[..12] == stamped(0, 90)[..12]));
        }
    });
}

#[test]
fn a_corrupted_copy_of_a_packet_over_xdp_leaves_the_capture_below_as_it_was() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pools = [(); 2].map(|()| Pool::builder().frames(4096).build().unwrap());
        let tees = [(); 2].map(|()| Tee::new(Limits::default()).unwrap());
        let plan = Plan::new(1).rx(Fault::Corrupt, 1);
        let (a, stats) = between("xdp:v0,ring=256", &pools[0], &plan, [&tees[0], &tees[1]]);
        let (mut a, mut b) = (End::new(a), End::new(queue_in("xdp:v1,ring=256", &pools[1])));
        let files = [SharedFile::default(), SharedFile::default()];
        let writers = [0, 1].map(|i| tees[i].start(files[i].clone()).unwrap());
        let (mut batch, mut got) = (Batch::with_capacity(64), Vec::new());
        b.step(20);
        eventually(|| {
            a.queue.rx(&mut batch);
            got.extend(batch.drain().map(|skb| bytes(&skb)));
            b.step(20);
            got.len() == 20
        });
        b.settle();
        drop((a, b));
        assert_eq!(writers.map(|writer| writer.finish().unwrap()), [20, 20]);
        assert_eq!(stats.counts().corrupted, 20);
        let sent: Vec<_> = (0..20).map(|n| stamped(n, 90)).collect();
        assert_eq!((packets(&files[0]), packets(&files[1])), (sent.clone(), got));
        let flipped = |(a, b): (&u8, &u8)| (a ^ b).count_ones();
        for (packet, sent) in packets(&files[1]).iter().zip(&sent) {
            assert_eq!(packet.iter().zip(sent).map(flipped).sum::<u32>(), 1);
        }
        pools.iter().for_each(assert_settled);
    });
}
