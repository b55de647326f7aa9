//! A process that forwards between AF_XDP ports is killed under load, many times: the kernel must
//! keep none of its programs, and the next process must start.

mod victim;

use std::time::{Duration, Instant};

use linerate_port::{Port, Want};
use linerate_skb::{Batch, Pool};
use linerate_sys::bpf;
use linerate_testing::{eventually, in_netns, ip, is_xdp_missing, unless};
use victim::Victim;

const ROUNDS: usize = 200;
/// Environment variable with the number of kills, for runs in which the usual number takes too
/// long.
const KILLS: &str = "LINERATE_TEST_KILLS";
const LONG: Duration = Duration::from_secs(10);
/// Environment variable that marks the process to be killed.
const VICTIM: &str = "LINERATE_TEST_VICTIM";

/// Returns the ids of our programs in the kernel.
fn programs() -> Vec<u32> {
    let is_ours = |id: &u32| bpf::program_name(*id).as_deref() == Some("linerate");
    bpf::program_ids().filter(is_ours).collect()
}

/// Runs in the process that is killed: forwards between v0 and w0 in both directions.
fn forward() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let open = |text: &str| Port::open_with(text, &pool).unwrap().into_queues().remove(0);
    let mut ends = [open("xdp:v0,ring=512"), open("xdp:w0,ring=512")];
    let mut batch = Batch::with_capacity(64);
    loop {
        let [v0, w0] = &mut ends;
        for (from, to) in [(0, 1), (1, 0)] {
            let (from, to) = if from < to { (&mut *v0, &mut *w0) } else { (&mut *w0, &mut *v0) };
            from.rx(&mut batch);
            to.xmit(&mut batch);
            batch.clear();
        }
        v0.wait(Some(Duration::from_micros(100))).unwrap();
    }
}

#[test]
fn a_killed_process_leaves_no_xdp_program() {
    if std::env::var_os(VICTIM).is_some() {
        return forward();
    }
    in_netns(|| {
        for pair in ["v0 type veth peer name v1", "w0 type veth peer name w1"] {
            ip(&format!("link add {pair}"));
        }
        for end in ["v0", "v1", "w0", "w1"] {
            ip(&format!("link set {end} up"));
        }
        // Those of other processes, which may run on.
        let others = programs();
        if unless(Port::open("xdp:v0"), is_xdp_missing).is_some() {
            kill_many(&others);
        }
    });
}

fn kill_many(others: &[u32]) {
    let gone = || programs().iter().all(|id| others.contains(id));
    eventually(gone);
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut source = Port::open_with("packet:v1", &pool).unwrap().into_queues().remove(0);
    let mut sink = Port::open_with("packet:w1", &pool).unwrap().into_queues().remove(0);
    let (mut batch, mut passed) = (Batch::with_capacity(64), 0);
    let rounds = std::env::var(KILLS).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let mut child = Victim::start("a_killed_process_leaves_no_xdp_program", VICTIM, "1");
        let deadline = Instant::now() + LONG;
        let before = passed;
        // Wait until packets pass, and kill the process while they do.
        while passed < before + 64 {
            assert!(Instant::now() < deadline, "round {round}: nothing passes");
            assert!(child.0.try_wait().unwrap().is_none(), "round {round}: it did not start");
            source.alloc(&mut batch, 64);
            for skb in batch.iter_mut() {
                skb.put(60).unwrap().fill(2);
            }
            source.xmit(&mut batch);
            batch.clear();
            sink.wait_for(Want::Frames, Some(Duration::from_millis(1))).unwrap();
            passed += sink.rx(&mut batch);
            batch.clear();
        }
        drop(child);
        eventually(gone);
    }
    for name in ["v0", "w0"] {
        assert!(!ip(&format!("link show {name}")).contains("prog/xdp"), "{name}");
    }
    drop((source, sink, batch));
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}
