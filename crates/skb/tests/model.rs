//! Compares a pool of any kind, its hot lists and its packets with plain lists of byte vectors.
//!
//! Three cores, each a thread with a hot list and a thread cache of its own, do whatever a program
//! can do, in any order: over frames and over the allocator's blocks, linear, in fragments and in
//! jumbo frames, private and exported, with every policy, until the pool is exhausted and after.
//! After each step every packet holds what was put into it, and the ledger balances; an allocation
//! fails only if the frames are elsewhere; at the end every frame is home.
#![cfg(not(any(loom, miri)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use linerate_skb::{
    Batch, Data, DropReason, Init, Local, Pool, Release, Return, Shared, Skb, Trust, Unique,
};
use proptest::prelude::*;

const CORES: usize = 3;
const FRAME_BYTES: u32 = 1024;
const HEADROOM_BYTES: u32 = 256;
const ROOM: usize = (FRAME_BYTES - HEADROOM_BYTES) as usize;
const WHY: DropReason = DropReason::NO_ROUTE;

/// The parameters of a pool under test.
#[derive(Debug, Clone)]
struct Kind {
    frames: u32,
    jumbo: u32,
    data: Data,
    init: Init,
    return_to: Return,
    trust: Trust,
    hot_list_len: usize,
}

fn kind() -> impl Strategy<Value = Kind> {
    // Few enough to be exhausted, or enough to be kept on lists of their own.
    let jumbo = || prop_oneof![0u32..4, 4u32..80];
    let memory = prop_oneof![
        2 => (Just(Data::Frames), Just(Trust::Private), jumbo()),
        1 => (Just(Data::Frames), Just(Trust::Exported), jumbo()),
        1 => (Just(Data::General), Just(Trust::Private), Just(0u32)),
    ];
    let init = prop_oneof![Just(Init::AtAlloc), Just(Init::AtFree)];
    let return_to = prop_oneof![Just(Return::Local), Just(Return::Home)];
    // The same for threads' caches.
    let frames = prop_oneof![1u32..40, 40u32..400];
    (frames, memory, init, return_to, hot_list_len()).prop_map(
        |(frames, (data, trust, jumbo), init, return_to, hot_list_len)| Kind {
            frames,
            jumbo,
            data,
            init,
            return_to,
            trust,
            hot_list_len,
        },
    )
}

/// Returns the lengths to choose from: many are too short for the packets that one batch frees.
fn hot_list_len() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0usize), 1usize..16, 16usize..200]
}

#[derive(Debug, Clone)]
enum Step {
    /// A packet of so many bytes, filled with the byte, in as many frames as it takes.
    Copy {
        len: usize,
        fill: u8,
    },
    /// A packet as in `Copy`, but in one frame.
    Whole {
        len: usize,
        fill: u8,
    },
    /// Several packets in one call, each filled with one byte where the memory can be written.
    Bulk {
        n: usize,
        fill: u8,
    },
    Drop {
        which: usize,
    },
    Discard {
        which: usize,
    },
    /// Frees several packets at once, in one of the ways that a batch offers.
    End {
        n: usize,
        how: usize,
    },
    Share {
        which: usize,
    },
    Clone {
        which: usize,
    },
    DropShared {
        which: usize,
    },
    /// Makes a shared packet writable.
    Own {
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
    Put {
        which: usize,
        bytes: usize,
    },
    Trim {
        which: usize,
        bytes: usize,
    },
    Note {
        which: usize,
        note: u8,
    },
    Hold {
        which: usize,
    },
    HotList {
        len: usize,
    },
    Sample {
        every: u32,
    },
    /// Allocates every frame, and frees all of them.
    Exhaust {
        bulk: bool,
    },
}

fn step() -> impl Strategy<Value = (usize, Step)> {
    let (which, fill) = (0usize..1000, any::<u8>());
    let pick = || which.clone();
    let bytes = || (0usize..1000, 1usize..300);
    let step = prop_oneof![
        6 => (0usize..4000, fill).prop_map(|(len, fill)| Step::Copy { len, fill }),
        2 => (0usize..4000, fill).prop_map(|(len, fill)| Step::Whole { len, fill }),
        3 => (0usize..40, fill).prop_map(|(n, fill)| Step::Bulk { n, fill }),
        3 => pick().prop_map(|which| Step::Drop { which }),
        1 => pick().prop_map(|which| Step::Discard { which }),
        3 => (0usize..30, 0usize..8).prop_map(|(n, how)| Step::End { n, how }),
        2 => pick().prop_map(|which| Step::Share { which }),
        1 => pick().prop_map(|which| Step::Clone { which }),
        1 => pick().prop_map(|which| Step::DropShared { which }),
        1 => pick().prop_map(|which| Step::Own { which }),
        2 => (pick(), fill).prop_map(|(which, fill)| Step::Write { which, fill }),
        3 => (pick(), pick()).prop_map(|(head, tail)| Step::Append { head, tail }),
        1 => bytes().prop_map(|(which, bytes)| Step::Push { which, bytes }),
        1 => bytes().prop_map(|(which, bytes)| Step::Pull { which, bytes }),
        1 => bytes().prop_map(|(which, bytes)| Step::Put { which, bytes }),
        1 => bytes().prop_map(|(which, bytes)| Step::Trim { which, bytes }),
        1 => (pick(), fill).prop_map(|(which, note)| Step::Note { which, note }),
        1 => pick().prop_map(|which| Step::Hold { which }),
        1 => hot_list_len().prop_map(|len| Step::HotList { len }),
        1 => (0u32..4).prop_map(|every| Step::Sample { every }),
        1 => any::<bool>().prop_map(|bulk| Step::Exhaust { bulk }),
    ];
    (0..CORES, step)
}

type Job = Box<dyn FnOnce(&mut Local) + Send>;

/// A thread with access to the pool.
struct Core {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Core {
    fn new(pool: &Pool, hot_list_len: usize) -> Core {
        let mut mem = pool.local_with(hot_list_len);
        let (jobs, todo) = channel::<Job>();
        let thread = thread::spawn(move || todo.into_iter().for_each(|job| job(&mut mem)));
        Core { jobs, thread }
    }

    /// Runs `job` on the core's thread and returns its result.
    fn run<R: Send + 'static>(&self, job: impl FnOnce(&mut Local) -> R + Send + 'static) -> R {
        let (done, result) = channel();
        let job = move |mem: &mut Local| done.send(job(mem)).expect("it is waited for");
        self.jobs.send(Box::new(job)).expect("the core runs");
        result.recv().expect("the core panicked")
    }
}

/// A packet, and what it must hold.
#[derive(Clone)]
struct Packet<S> {
    skb: S,
    bytes: Vec<u8>,
    mark: Option<u32>,
    note: u8,
}

/// A counter of an object's releases.
#[derive(Default)]
struct ReleaseCount(AtomicUsize);

impl Release for ReleaseCount {
    fn release(&self, truesize_bytes: usize) {
        assert!(truesize_bytes > 0);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct World {
    kind: Kind,
    pool: Pool,
    cores: Vec<Core>,
    unique: Vec<Packet<Skb>>,
    shared: Vec<Packet<Skb<Shared>>>,
    releases: Arc<ReleaseCount>,
    holds: usize,
}

impl World {
    fn new(kind: Kind) -> World {
        let builder = Pool::builder().frames(kind.frames).frame_size(FRAME_BYTES);
        let builder = builder.headroom(HEADROOM_BYTES).jumbo(kind.jumbo, 4 * FRAME_BYTES);
        let builder = builder.data(kind.data).init(kind.init).return_to(kind.return_to);
        let pool = builder.trust(kind.trust).build().unwrap();
        let cores = (0..CORES).map(|_| Core::new(&pool, kind.hot_list_len)).collect();
        let (unique, shared) = (Vec::new(), Vec::new());
        World { kind, pool, cores, unique, shared, releases: Arc::default(), holds: 0 }
    }

    fn apply(&mut self, core: usize, step: Step) {
        match step {
            Step::Copy { len, fill } => self.copy(core, len, fill),
            Step::Whole { len, fill } => self.whole(core, len, fill),
            Step::Bulk { n, fill } => self.bulk(core, n, fill),
            Step::Drop { which } => {
                let Some(packet) = self.take(which) else { return };
                self.cores[core].run(|_| drop(packet));
            }
            Step::Discard { which } => {
                let Some(packet) = self.take(which) else { return };
                self.cores[core].run(|_| packet.skb.discard(WHY));
            }
            Step::End { n, how } => self.end(core, n, how),
            Step::Share { .. }
            | Step::Clone { .. }
            | Step::DropShared { .. }
            | Step::Own { .. } => {
                self.share(core, step);
            }
            Step::Append { head, tail } => self.append(core, head, tail),
            Step::Write { which, .. }
            | Step::Push { which, .. }
            | Step::Pull { which, .. }
            | Step::Put { which, .. }
            | Step::Trim { which, .. }
            | Step::Note { which, .. } => {
                let Some(mut packet) = self.take(which) else { return };
                self.unique.push(self.cores[core].run(move |_| {
                    change(&mut packet, step);
                    packet
                }));
            }
            Step::Hold { which } => {
                let Some(mut packet) = self.take(which) else { return };
                let releases = self.releases.clone();
                let (packet, held) = self.cores[core].run(move |_| {
                    let held = packet.skb.hold(releases).is_ok();
                    (packet, held)
                });
                self.holds += usize::from(held);
                self.unique.push(packet);
            }
            Step::HotList { len } => {
                let applied = self.cores[core].run(move |mem| mem.set_hot_list_len(len));
                assert_eq!(applied, len.min(self.pool.frames()));
            }
            Step::Sample { every } => self.pool.set_sampling(every),
            Step::Exhaust { bulk } => self.exhaust(core, bulk),
        }
    }

    fn take(&mut self, which: usize) -> Option<Packet<Skb>> {
        Some(self.unique.swap_remove(which.checked_rem(self.unique.len())?))
    }

    /// Returns the number of ordinary frames that any core could allocate now.
    fn within_reach(&self) -> usize {
        let ledger = self.pool.ledger();
        let depot = ledger.holders().iter().find(|(name, _)| *name == "depot");
        // Of both classes: each jumbo frame there may be one of those counted.
        (depot.unwrap().1 as usize).saturating_sub(self.kind.jumbo as usize)
    }

    fn copy(&mut self, core: usize, len: usize, fill: u8) {
        let (reach, bytes) = (self.within_reach(), vec![fill; len]);
        let copied = bytes.clone();
        let needs = if self.kind.data == Data::General { 1 } else { len.div_ceil(ROOM).max(1) };
        match self.cores[core].run(move |mem| mem.alloc_copy(&copied)) {
            Some(skb) => self.unique.push(Packet { skb, bytes, mark: None, note: 0 }),
            None => assert!(needs > reach, "{needs} frames refused, {reach} in the depot"),
        }
    }

    fn whole(&mut self, core: usize, len: usize, fill: u8) {
        let reach = self.within_reach();
        let made = self.cores[core].run(move |mem| {
            let mut skb = mem.alloc_len(len)?;
            assert!(skb.is_linear() && skb.is_empty() && skb.tailroom() >= len);
            let put = skb.put_slice(&vec![fill; len]);
            Some((skb, put))
        });
        match made {
            Some((skb, put)) => {
                assert!(put || self.kind.trust == Trust::Exported);
                let bytes = vec![fill; if put { len } else { 0 }];
                self.unique.push(Packet { skb, bytes, mark: None, note: 0 });
            }
            None => {
                let ordinary = len <= ROOM || self.kind.data == Data::General;
                assert!(!ordinary || reach == 0, "refused, {reach} frames in the depot");
            }
        }
    }

    fn bulk(&mut self, core: usize, n: usize, fill: u8) {
        let reach = self.within_reach();
        let made = self.cores[core].run(move |mem| {
            let mut batch = Batch::with_capacity(40);
            let got = mem.alloc(&mut batch, n);
            assert!(got <= n && got == batch.len());
            batch.drain().collect::<Vec<Skb>>()
        });
        assert!(made.len() >= n.min(reach), "{} of {n}, {reach} in the depot", made.len());
        for mut skb in made {
            let bytes = if skb.put_slice(&[fill]) { vec![fill] } else { Vec::new() };
            self.unique.push(Packet { skb, bytes, mark: None, note: 0 });
        }
    }

    fn end(&mut self, core: usize, n: usize, how: usize) {
        let mut batch = Batch::with_capacity(30);
        while batch.len() < n
            && let Some(packet) = self.take(how * n)
        {
            batch.push(packet.skb).unwrap();
        }
        self.cores[core].run(move |mem| {
            let n = batch.len();
            match how {
                0 => batch.consume(mem),
                1 => assert_eq!(batch.sent(n, mem).packets, n),
                2 => batch.discard_first(n, WHY, mem),
                3 => batch.discard(WHY),
                4 => batch.truncate(0),
                5 => batch.truncate_to(0, mem),
                6 => batch.retain(|skb| if skb.len() % 2 == 0 { Ok(()) } else { Err(WHY) }),
                _ => assert_eq!(batch.send_prefix(mem, |_| true).packets, n),
            }
            // What is left is consumed here.
        });
    }

    fn share(&mut self, core: usize, step: Step) {
        match step {
            Step::Share { which } => {
                let Some(mut packet) = self.take(which) else { return };
                let (packet, skb) = self.cores[core].run(move |_| {
                    let shared = packet.skb.share();
                    (packet, shared)
                });
                let Packet { bytes, mark, note, .. } = &packet;
                let (bytes, mark, note) = (bytes.clone(), *mark, *note);
                self.shared.push(Packet { skb, bytes, mark, note });
                self.unique.push(packet);
            }
            Step::Clone { which } => {
                let Some(i) = which.checked_rem(self.shared.len()) else { return };
                let packet = self.shared.swap_remove(i);
                let twins = self.cores[core].run(move |_| [packet.clone(), packet]);
                self.shared.extend(twins);
            }
            Step::DropShared { which } => {
                let Some(i) = which.checked_rem(self.shared.len()) else { return };
                let packet = self.shared.swap_remove(i);
                self.cores[core].run(|_| drop(packet));
            }
            Step::Own { which } => {
                let Some(i) = which.checked_rem(self.shared.len()) else { return };
                let Packet { skb, bytes, mark, note } = self.shared.swap_remove(i);
                let own = |skb: Skb<Shared>| skb.try_unique().unwrap_or_else(Skb::into_unique);
                let skb = self.cores[core].run(move |_| own(skb));
                self.unique.push(Packet { skb, bytes, mark, note });
            }
            _ => unreachable!("not a step that shares"),
        }
    }

    fn append(&mut self, core: usize, head: usize, tail: usize) {
        if self.unique.len() < 2 {
            return;
        }
        let (Some(mut packet), Some(tail)) = (self.take(head), self.take(tail)) else { return };
        let (packet, refused) = self.cores[core].run(move |_| match packet.skb.append(tail.skb) {
            Ok(()) => {
                packet.bytes.extend(&tail.bytes);
                (packet, None)
            }
            Err(skb) => (packet, Some(Packet { skb, ..tail })),
        });
        self.unique.push(packet);
        self.unique.extend(refused);
    }

    /// Allocates every frame that this core can get, checks that further allocations fail, and
    /// allocates again after freeing.
    fn exhaust(&mut self, core: usize, bulk: bool) {
        let (reach, frames) = (self.within_reach(), self.pool.frames());
        let (got, more, again) = self.cores[core].run(move |mem| {
            let mut all = Batch::with_capacity(frames + 1);
            let got = mem.alloc(&mut all, frames + 1);
            let more = mem.alloc_one().is_some() || mem.alloc_copy(b"x").is_some();
            match bulk {
                true => all.consume(mem),
                false => all.drain().for_each(drop),
            }
            (got, more, mem.alloc_one().is_some())
        });
        assert!(got >= reach, "{got} frames, {reach} in the depot");
        assert!(!more, "more frames than all");
        assert_eq!(again, got > 0, "the pool did not recover");
    }

    fn check(&self) {
        let handles = self.unique.len() + self.shared.len();
        let ledger = self.pool.ledger();
        assert!(ledger.settled());
        assert_eq!((ledger.difference(), ledger.in_flight), (0, handles as u64), "{ledger}");
        let outstanding: i64 = ledger.outstanding().iter().map(|(_, packets)| packets).sum();
        assert_eq!(outstanding, handles as i64, "{ledger}");
        self.unique.iter().for_each(|packet| assert_same(packet, self.kind.trust));
        self.shared.iter().for_each(|packet| assert_same(packet, self.kind.trust));
    }

    /// Drops everything, and asserts that every frame is back and each held object was released
    /// once.
    fn leave(self) {
        let World { kind, pool, cores, unique, shared, releases, holds } = self;
        drop((unique, shared));
        for core in cores {
            drop(core.jobs);
            core.thread.join().unwrap();
        }
        let ledger = pool.ledger();
        assert_eq!((ledger.difference(), ledger.in_flight), (0, 0), "{ledger}");
        assert_eq!((releases.0.load(Ordering::Relaxed), Arc::strong_count(&releases)), (holds, 1));
        assert_eq!(pool.stats().blocks_bytes, 0);
        let mut mem = pool.local_with(0);
        let mut all = Batch::with_capacity(kind.frames as usize + 1);
        assert_eq!(mem.alloc(&mut all, kind.frames as usize + 1), kind.frames as usize);
        let jumbo: Vec<Skb> = std::iter::from_fn(|| mem.alloc_len(pool.jumbo_room())).collect();
        assert_eq!(jumbo.len(), kind.jumbo as usize);
    }
}

/// Applies `step` to a packet, and to the bytes that it must hold then.
fn change(packet: &mut Packet<Skb<Unique>>, step: Step) {
    let Packet { skb, bytes, mark, note } = packet;
    match step {
        Step::Write { fill, .. } => {
            let data = skb.data_mut();
            data.fill(fill);
            let n = data.len();
            bytes[..n].fill(fill);
        }
        Step::Push { bytes: n, .. } => {
            if let Some(room) = skb.push(n) {
                room.fill(0xaa);
                bytes.splice(0..0, std::iter::repeat_n(0xaa, n));
            }
        }
        Step::Pull { bytes: n, .. } => {
            if skb.pull(n) {
                bytes.drain(..n);
            }
        }
        Step::Put { bytes: n, .. } => {
            if let Some(room) = skb.put(n) {
                room.fill(0xbb);
                bytes.extend(std::iter::repeat_n(0xbb, n));
            }
        }
        Step::Trim { bytes: n, .. } => {
            if skb.trim(n) {
                bytes.truncate(n);
            }
        }
        Step::Note { note: n, .. } => {
            if skb.set_mark(u32::from(n)) {
                *mark = Some(u32::from(n));
            }
            if let Some(cb) = skb.cb_mut() {
                (cb[23], *note) = (n, n);
            }
        }
        _ => unreachable!("not a step that changes a packet"),
    }
}

fn assert_same<S>(packet: &Packet<Skb<S>>, trust: Trust) {
    let Packet { skb, bytes, mark, note } = packet;
    assert_eq!((skb.len(), skb.mark(), skb.cb()[23]), (bytes.len(), *mark, *note));
    let mut copy = vec![0; bytes.len()];
    assert_eq!(skb.copy_to(0, &mut copy), bytes.len());
    assert!(copy == *bytes);
    let lent = if trust == Trust::Private { &bytes[..] } else { &[] };
    assert!(skb.segments().flatten().eq(lent));
    assert!(lent.starts_with(skb.data()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn packets_keep_their_bytes_and_frames_come_home(
        kind in kind(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(kind);
        for (core, step) in steps {
            world.apply(core, step);
            world.check();
        }
        world.leave();
    }
}
