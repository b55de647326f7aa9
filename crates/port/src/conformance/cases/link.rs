//! Cases for an interface that goes down, comes back, changes, or is deleted.

use std::time::Instant;

use linerate_skb::Code;

use super::life::reports_end_once;
use crate::conformance::bench::{Bench, Way};
use crate::conformance::end::BATCH;
use crate::conformance::traffic::{Packet, of_lengths};
use crate::conformance::{Ran, Rig};
use crate::queue::{Health, Want};

const NO_INTERFACE: Ran = Ran::DoesNotApply("its rig has no interface");

/// Sends packets to the near end until its state is as `wanted` requires; these packets may be
/// lost.
fn until(bench: &mut Bench, flow: u8, wanted: impl Fn(&Health) -> bool, what: &str) {
    let (mut arrivals, patience) = (bench.arrivals(&[]), bench.patience());
    let len = bench.limits.shortest_bytes.max(60);
    let deadline = Instant::now() + patience;
    for seq in 0.. {
        let end = &mut bench.ends()[0];
        if wanted(&end.health()) {
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "an interface was {what}, and health() is {:?}", end.health());
        // Check ten times a second, because a state may change without a notification.
        end.wait(Want::Frames, left.min(std::time::Duration::from_millis(100)));
        end.take(&mut arrivals, BATCH);
        let mut batch = bench.batch(&[Packet::new(flow, seq, len)]);
        bench.ends()[0].xmit(&mut batch);
        bench.discard(batch);
    }
}

/// Checks that a queue whose interface goes down reports this with a remedy and drops packets with
/// a reason, and that packets pass again when the interface is up.
pub fn an_interface_that_goes_down_is_followed(rig: &mut Rig) -> Ran {
    let Some(mut interface) = rig.take_interface() else { return NO_INTERFACE };
    let mut bench = rig.bench(Way::Forth);
    let len = bench.limits.shortest_bytes.max(60);
    for round in 0..2 {
        bench.exchange(&of_lengths(round * 3, [len; 20]));
        interface.down();
        until(&mut bench, round * 3 + 1, |health| *health != Health::Up, "taken down");
        let Health::Down(error) = bench.ends()[0].health() else {
            panic!("an interface was taken down, and health() is {:?}", bench.ends()[0].health())
        };
        assert!(!error.fix.is_empty(), "what is down has a remedy: {error}");
        interface.up();
        until(&mut bench, round * 3 + 1, |health| *health == Health::Up, "taken up");
    }
    bench.exchange(&of_lengths(7, [len; 20]));
    bench.close();
    Ran::Passed
}

/// Checks that a queue whose interface is deleted wakes its owner, fails, reports this once, and
/// drops packets with a reason.
pub fn a_deleted_interface_fails_for_good(rig: &mut Rig) -> Ran {
    let Some(mut interface) = rig.take_interface() else { return NO_INTERFACE };
    let mut bench = rig.bench(Way::Forth);
    let (mut arrivals, patience) = (bench.arrivals(&[]), bench.patience());
    let len = bench.limits.shortest_bytes.max(60);
    bench.exchange(&of_lengths(0, [len; 20]));
    let end = &mut bench.ends()[0];
    end.settle(&mut arrivals, patience);
    interface.delete();
    assert!(end.readable(patience), "an interface was deleted, and the poller is not woken");
    until(&mut bench, 1, |health| matches!(health, Health::Failed(_)), "deleted");
    let Health::Failed(error) = bench.ends()[0].health() else { unreachable!("as waited for") };
    assert_eq!(error.code, Code::NoDevice, "{error}");
    let mut batch = bench.batch(&of_lengths(2, [len; 8]));
    let sent = bench.ends()[0].xmit(&mut batch).packets;
    assert_eq!((sent, batch.len()), (0, 0), "packets sent, and kept, by a device that is gone");
    reports_end_once(&mut bench.ends()[0]);
    bench.close();
    Ran::Passed
}

/// Checks that after a change of the MTU, packets that fit still pass, and longer packets pass
/// complete or are dropped.
pub fn a_changed_mtu_cuts_no_packet(rig: &mut Rig) -> Ran {
    let Some(mut interface) = rig.take_interface() else { return NO_INTERFACE };
    let mut bench = rig.bench(Way::Forth);
    for (flow, mtu) in (0..).step_by(2).zip([9000, 600, 1500]) {
        interface.set_mtu(mtu);
        let fits = bench.longest().min(mtu + 14).min(1514);
        let lengths = [60, fits / 2, fits].map(|len| len.max(bench.limits.shortest_bytes));
        bench.exchange(&of_lengths(flow, lengths));
        // The port or the device may drop each of these packets; `Arrivals` detects one that was
        // cut.
        let packets = of_lengths(flow + 1, [mtu + 14, mtu + 15, mtu + 400, 9014]);
        let mut arrivals = bench.arrivals(&packets);
        let batch = bench.batch(&packets);
        bench.send(batch, &mut arrivals);
        // This packet is sent last and arrives last, whether the others were sent before or after
        // the change.
        let last = of_lengths(flow + 100, [60.max(bench.limits.shortest_bytes)]);
        arrivals.expect(&last);
        let batch = bench.batch(&last);
        bench.send(batch, &mut arrivals);
        let patience = bench.patience();
        bench.receiver().collect_until(&mut arrivals, |a| a.has(last[0].id), patience);
    }
    bench.close();
    Ran::Passed
}
