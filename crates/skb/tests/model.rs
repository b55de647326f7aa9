//! A pool, its hot lists and its packets against a plain list of byte vectors.
//!
//! Whatever is done, in whatever order and on whatever thread: every packet holds what was put into
//! it, the ledger balances after each step, and at the end every frame is home.

use linerate_skb::{Batch, DropReason, Local, Pool, Shared, Skb};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// A packet of so many bytes, filled with the byte.
    Make {
        local: usize,
        len: usize,
        fill: u8,
    },
    /// A plain drop, here or on another thread.
    Drop {
        which: usize,
        elsewhere: bool,
    },
    /// Several at once: freed as sent by a local, perhaps not the one they came from.
    Send {
        local: usize,
        n: usize,
    },
    Discard {
        which: usize,
    },
    Share {
        which: usize,
    },
    Clone {
        which: usize,
    },
    Write {
        which: usize,
        fill: u8,
    },
    Append {
        head: usize,
        tail: usize,
    },
    Push {
        which: usize,
        bytes: usize,
    },
    Pull {
        which: usize,
        bytes: usize,
    },
    HotList {
        local: usize,
        len: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0usize..1000;
    let local = 0usize..3;
    prop_oneof![
        4 => (local.clone(), 0usize..3000, any::<u8>())
            .prop_map(|(local, len, fill)| Step::Make { local, len, fill }),
        2 => (which.clone(), any::<bool>())
            .prop_map(|(which, elsewhere)| Step::Drop { which, elsewhere }),
        1 => (local.clone(), 0usize..20).prop_map(|(local, n)| Step::Send { local, n }),
        1 => which.clone().prop_map(|which| Step::Discard { which }),
        1 => which.clone().prop_map(|which| Step::Share { which }),
        1 => which.clone().prop_map(|which| Step::Clone { which }),
        1 => (which.clone(), any::<u8>()).prop_map(|(which, fill)| Step::Write { which, fill }),
        1 => (which.clone(), which.clone()).prop_map(|(head, tail)| Step::Append { head, tail }),
        1 => (which.clone(), 1usize..300).prop_map(|(which, bytes)| Step::Push { which, bytes }),
        1 => (which, 1usize..300).prop_map(|(which, bytes)| Step::Pull { which, bytes }),
        1 => (local, 0usize..200).prop_map(|(local, len)| Step::HotList { local, len }),
    ]
}

/// The real thing on the left, what it must hold on the right.
struct World {
    pool: Pool,
    locals: Vec<Local>,
    unique: Vec<(Skb, Vec<u8>)>,
    shared: Vec<(Skb<Shared>, Vec<u8>)>,
}

impl World {
    fn new(frames: u32, hot_list_len: usize) -> World {
        let pool = Pool::builder().frames(frames).frame_size(1024).build().unwrap();
        let locals = (0..3).map(|_| pool.local_with(hot_list_len)).collect();
        World { pool, locals, unique: Vec::new(), shared: Vec::new() }
    }

    fn pick(&self, which: usize) -> Option<usize> {
        which.checked_rem(self.unique.len())
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Make { local, len, fill } => {
                let bytes = vec![fill; len];
                if let Some(skb) = self.locals[local].alloc_copy(&bytes) {
                    self.unique.push((skb, bytes));
                }
            }
            Step::Drop { which, elsewhere } => {
                let Some(i) = self.pick(which) else { return };
                let (skb, _) = self.unique.swap_remove(i);
                if elsewhere {
                    std::thread::scope(|s| s.spawn(move || drop(skb)).join().unwrap());
                }
            }
            Step::Send { local, n } => {
                let mut batch = Batch::with_capacity(20);
                for _ in 0..n.min(self.unique.len()) {
                    assert!(batch.push(self.unique.remove(0).0).is_ok());
                }
                let packets = batch.len();
                let moved = batch.send_prefix(&mut self.locals[local], |_| true);
                assert_eq!((moved.packets, batch.len()), (packets, 0));
            }
            Step::Discard { which } => {
                let Some(i) = self.pick(which) else { return };
                self.unique.swap_remove(i).0.discard(DropReason::NO_ROUTE);
            }
            Step::Share { which } => {
                let Some(i) = self.pick(which) else { return };
                let (skb, bytes) = &mut self.unique[i];
                self.shared.push((skb.share(), bytes.clone()));
            }
            Step::Clone { which } => match which.checked_rem(self.shared.len()) {
                Some(i) if which % 2 == 0 => {
                    let twin = self.shared[i].clone();
                    self.shared.push(twin);
                }
                Some(i) => drop(self.shared.swap_remove(i)),
                None => {}
            },
            Step::Write { which, fill } => {
                let Some(i) = self.pick(which) else { return };
                let (skb, bytes) = &mut self.unique[i];
                let data = skb.data_mut();
                data.fill(fill);
                let n = data.len();
                bytes[..n].fill(fill);
            }
            Step::Append { head, tail } => self.append(head, tail),
            Step::Push { which, bytes: n } => {
                let Some(i) = self.pick(which) else { return };
                let (skb, bytes) = &mut self.unique[i];
                if let Some(room) = skb.push(n) {
                    room.fill(0xaa);
                    bytes.splice(0..0, std::iter::repeat_n(0xaa, n));
                }
            }
            Step::Pull { which, bytes: n } => {
                let Some(i) = self.pick(which) else { return };
                let (skb, bytes) = &mut self.unique[i];
                if skb.pull(n) {
                    bytes.drain(..n);
                }
            }
            Step::HotList { local, len } => {
                self.locals[local].set_hot_list_len(len);
            }
        }
    }

    fn append(&mut self, head: usize, tail: usize) {
        if self.unique.len() < 2 {
            return;
        }
        let tail = tail % self.unique.len();
        let (fragment, more) = self.unique.swap_remove(tail);
        let head = head % self.unique.len();
        let (skb, bytes) = &mut self.unique[head];
        match skb.append(fragment) {
            Ok(()) => bytes.extend(more),
            Err(fragment) => self.unique.push((fragment, more)),
        }
    }

    fn check(&self) {
        let handles = self.unique.len() + self.shared.len();
        let ledger = self.pool.ledger();
        assert!(ledger.settled());
        assert_eq!((ledger.difference(), ledger.in_flight), (0, handles as u64), "{ledger}");
        for (skb, bytes) in &self.unique {
            assert_same(skb, bytes);
        }
        for (skb, bytes) in &self.shared {
            assert_same(skb, bytes);
        }
    }
}

fn assert_same<S>(skb: &Skb<S>, bytes: &[u8]) {
    assert_eq!(skb.len(), bytes.len());
    let mut copy = vec![0; bytes.len()];
    assert_eq!(skb.copy_to(0, &mut copy), bytes.len());
    assert!(copy == bytes);
    assert!(skb.segments().flatten().eq(bytes.iter()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn packets_keep_their_bytes_and_frames_come_home(
        frames in 1u32..200,
        hot_list_len in 0usize..100,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(frames, hot_list_len);
        for step in steps {
            world.apply(step);
            world.check();
        }
        let World { pool, locals, unique, shared } = world;
        drop((unique, shared, locals));
        let ledger = pool.ledger();
        prop_assert_eq!((ledger.difference(), ledger.in_flight), (0, 0));
        let mut mem = pool.local_with(0);
        let mut all = Batch::with_capacity(frames as usize + 1);
        prop_assert_eq!(mem.alloc(&mut all, frames as usize + 1), frames as usize);
    }
}
