//! A process at one end of a memif port is killed under load, many times: the process at the other
//! end connects to the next one, and gets back every frame that the killed one had.

mod victim;

use std::process::Child;
use std::time::{Duration, Instant};

use linerate_port::{Port, Queue, Want};
use linerate_skb::{Batch, Local, Pool, Trust};
use linerate_testing::Scratch;
use victim::Victim;

const ROUNDS: u32 = 50;
/// Environment variable with the number of kills, for runs in which the usual number takes too
/// long.
const KILLS: &str = "LINERATE_TEST_KILLS";
const LONG: Duration = Duration::from_secs(20);
/// Environment variable that marks the process to be killed, with the text of its port.
const VICTIM: &str = "LINERATE_TEST_MEMIF_VICTIM";
/// Number of packets that come back before the other side is killed.
const PACKETS: u64 = 64;
const BYTES: usize = 60;

fn pool() -> Pool {
    Pool::builder().frames(2048).trust(Trust::Exported).build().unwrap()
}

fn open(text: &str, pool: &Pool) -> Queue {
    Port::open_with(text, pool).unwrap().into_queues().remove(0)
}

/// Runs in the process that is killed: sends every received packet back.
fn echo(text: &str) {
    let pool = pool();
    let mut queue = open(text, &pool);
    let mut batch = Batch::with_capacity(64);
    loop {
        queue.rx(&mut batch);
        queue.xmit(&mut batch);
        batch.clear();
        queue.wait(Some(Duration::from_micros(100))).unwrap();
    }
}

/// Sends numbered packets and receives until enough have come back: each unchanged, and none twice.
fn load(queue: &mut Queue, mem: &mut Local, child: &mut Child, round: u32) {
    let (mut batch, mut out) = (Batch::with_capacity(32), Batch::with_capacity(64));
    let (deadline, mut next, mut newest, mut back) = (Instant::now() + LONG, 0u64, None, 0);
    while back < PACKETS {
        assert!(Instant::now() < deadline, "round {round}: nothing comes back");
        assert!(child.try_wait().unwrap().is_none(), "round {round}: it ended by itself");
        for _ in 0..16 {
            let mut bytes = [round as u8; BYTES];
            bytes[..8].copy_from_slice(&next.to_ne_bytes());
            let Some(skb) = mem.alloc_copy(&bytes) else { break };
            let _ = batch.push(skb);
            next += 1;
        }
        queue.xmit(&mut batch);
        batch.clear();
        queue.wait_for(Want::Frames, Some(Duration::from_millis(1))).unwrap();
        back += queue.rx(&mut out) as u64;
        for skb in out.iter() {
            let mut bytes = [0; BYTES + 1];
            assert_eq!(skb.copy_to(0, &mut bytes), BYTES);
            let (number, rest) = bytes[..BYTES].split_first_chunk().unwrap();
            let number = u64::from_ne_bytes(*number);
            assert!(rest.iter().all(|byte| *byte == round as u8), "round {round}");
            assert!(number < next && newest < Some(number), "round {round}: {number}");
            newest = Some(number);
        }
        out.clear();
    }
}

/// Kills the process that opens `theirs` many times, and checks the port that `ours` opens.
fn kill_many(test: &str, ours: &str, theirs: &str) {
    if let Ok(text) = std::env::var(VICTIM) {
        return echo(&text);
    }
    let folder = Scratch::new();
    let at = |options: &str| format!("memif:{}/x.sock,{options}", folder.0.display());
    let pool = pool();
    let (mut queue, mut mem) = (open(&at(ours), &pool), pool.local());
    let rounds = std::env::var(KILLS).map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let mut child = Victim::start(test, VICTIM, &at(theirs));
        load(&mut queue, &mut mem, &mut child.0, round);
        drop(child);
        // The frames of the killed process are free again when the port has noticed its end.
        let (mut batch, start) = (Batch::with_capacity(64), Instant::now());
        while queue.health() == linerate_port::Health::Up {
            assert!(start.elapsed() < LONG, "round {round}: not seen to go");
            queue.wait_for(Want::Frames, Some(Duration::from_millis(10))).unwrap();
            queue.rx(&mut batch);
            batch.clear();
        }
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "round {round}: {ledger}");
        let left = std::fs::read_dir(&folder.0).unwrap().count();
        assert!(left <= 1, "round {round}: {left} files");
    }
    drop((queue, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
    let lent = ledger.holders().iter().find(|(name, _)| *name == "device rings");
    assert_eq!(lent.map(|(_, n)| *n), Some(0), "{ledger}");
    // A killed server leaves only its socket, which the next server replaces.
    for file in std::fs::read_dir(&folder.0).unwrap() {
        assert_eq!(file.unwrap().file_name(), "x.sock");
    }
}

#[test]
fn a_client_that_is_killed_is_followed_by_the_next() {
    kill_many(
        "a_client_that_is_killed_is_followed_by_the_next",
        "role=server",
        "role=client,size=64",
    );
}

#[test]
fn a_server_that_is_killed_is_followed_by_the_next() {
    kill_many(
        "a_server_that_is_killed_is_followed_by_the_next",
        "role=client,size=64",
        "role=server",
    );
}

#[test]
fn a_server_that_copies_and_is_killed_is_followed_by_the_next() {
    kill_many(
        "a_server_that_copies_and_is_killed_is_followed_by_the_next",
        "role=client,size=64,zerocopy=no",
        "role=server",
    );
}
