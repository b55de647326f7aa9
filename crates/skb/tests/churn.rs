//! Two cores that allocate, share, chain, copy, hand over and free packets in every way, while the
//! lengths of their hot lists change and a third thread reads the books. At the end the ledger is
//! exact to the packet, in pools of three kinds.
//!
//! Each side counts what it does by itself, and marks what it hands over, so that a frame that was
//! handed out twice shows in what arrives. A short run is a test like the others. `CHURN_COUNT`
//! is the number of packets: docs/campaigns.md has the command for a thousand million, and `cargo
//! xtask tsan` looks for races.
#![cfg(not(loom))]

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use linerate_ring::{Consumer, Heap, Producer, heap};
use linerate_skb::{Batch, Data, DropReason, Init, Ledger, Local, Pool, Release, Return, Skb};
use linerate_sys::thread::{allowed_cpus, is_filtered, pin_to_cpu};

/// Frames of the pool: few enough that it is empty now and then.
const FRAMES: u32 = 3071;
const JUMBO_FRAMES: u32 = 64;
const JUMBO_BYTES: u32 = 4096;
/// Most packets allocated at once.
const BURST: usize = 32;
/// Most packets in a batch: a burst, a large one, and a share of each.
const BATCH: usize = 2 * (BURST + 1);
const RING_LEN_DESCS: u32 = 512;
const HOT_LIST_LENS: [usize; 8] = [0, 1, 7, 64, 128, 1024, 1024, 2048];
/// Turns between two changes of the hot list.
const STEADY_TURNS: u64 = 256;
/// Above this a run is long: the books are read now and then, and not all the time.
const LONG: u64 = 100_000_000;
const WATCH: Duration = Duration::from_millis(1);
/// Interval of progress reports in a long run.
const REPORT: Duration = Duration::from_secs(5);

#[test]
fn after_a_churn_on_two_cores_the_ledger_is_exact() {
    let usual: u64 = if cfg!(miri) { 300 } else { 300_000 };
    let count = std::env::var("CHURN_COUNT").map_or(usual, |n| n.parse().expect("CHURN_COUNT"));
    let frames = Pool::builder().frames(FRAMES);
    let classes = frames.clone().jumbo(JUMBO_FRAMES, JUMBO_BYTES);
    // Tenths of the whole; the allocator takes its time.
    let pools = [
        (6, classes.clone()),
        (3, classes.init(Init::AtFree).return_to(Return::Home)),
        (1, frames.data(Data::General)),
    ];
    let (start, mut made, mut ledgers) = (Instant::now(), 0, Vec::new());
    for (tenths, builder) in pools {
        let pool = builder.build().unwrap();
        let done = churn(&pool, (count * tenths).div_ceil(10));
        let ledger = pool.ledger();
        assert_exact(&pool, &ledger, &done);
        made += done.made;
        ledgers.push(ledger);
    }
    let took_s = start.elapsed().as_secs_f64();
    let sum = ledgers.into_iter().reduce(|sum, ledger| sum.plus(&ledger)).unwrap();
    let starved = sum.starved;
    println!(
        "churn: {made} allocated and freed in {took_s:.1} s, {starved} times none left: {sum}"
    );
    assert!(made >= count);
}

/// Asserts that the ledger equals the counts of both sides, and that every frame was returned.
fn assert_exact(pool: &Pool, ledger: &Ledger, done: &Tally) {
    assert!(ledger.is_drained(), "{ledger}");
    assert_eq!(ledger.created, done.made - done.unused, "{ledger}");
    let went = (ledger.sent, ledger.consumed, ledger.dropped_total());
    assert_eq!(went, (done.sent, done.consumed, done.dropped), "{ledger}");
    let stats = pool.stats();
    let matrix = &stats.matrix;
    let ended = done.sent + done.consumed + done.dropped;
    assert_eq!(matrix.local() + matrix.remote() + matrix.unknown(), ended, "{stats}");
    assert_eq!(stats.blocks_bytes, 0);
    let (mut mem, mut all) = (pool.local_with(0), Batch::with_capacity(FRAMES as usize + 1));
    assert_eq!(mem.alloc(&mut all, FRAMES as usize + 1), FRAMES as usize);
    let jumbo: Vec<Skb> = std::iter::from_fn(|| mem.alloc_len(pool.jumbo_room())).collect();
    assert_eq!(jumbo.len(), pool.jumbo_frames());
}

/// The counts of one side's work.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// Packets allocated, and handles made by sharing.
    made: u64,
    /// Handles among `made` that never counted as packets: freed unused, or appended as fragments.
    unused: u64,
    sent: u64,
    consumed: u64,
    dropped: u64,
    /// Packets that held an object.
    held: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.made += more.made;
        self.unused += more.unused;
        self.sent += more.sent;
        self.consumed += more.consumed;
        self.dropped += more.dropped;
        self.held += more.held;
    }
}

/// The number of releases: one for each packet that held this object and was freed.
#[derive(Default)]
struct ReleaseCount(AtomicU64);

impl Release for ReleaseCount {
    fn release(&self, _: usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The progress of both sides, for each other and for the watching thread.
#[derive(Default)]
struct Progress {
    made: [AtomicU64; 2],
    done: [AtomicBool; 2],
}

/// Marks its side as done, also if it panics, so that no thread waits for it for ever.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Lets two threads make `count` packets and free all of them; returns their counts.
fn churn(pool: &Pool, count: u64) -> Tally {
    let (to_one, from_zero) = heap(RING_LEN_DESCS).unwrap();
    let (to_zero, from_one) = heap(RING_LEN_DESCS).unwrap();
    let (progress, releases) = (Progress::default(), Arc::<ReleaseCount>::default());
    let mut done = Tally::default();
    std::thread::scope(|s| {
        let rings = [(0, to_one, from_one), (1, to_zero, from_zero)];
        let sides = rings.map(|(me, to, from)| {
            let (mem, releases, progress) = (pool.local(), releases.clone(), &progress);
            let run =
                move || Side::new(me, mem, to, from, releases).run(count.div_ceil(2), progress);
            s.spawn(run)
        });
        watch(pool, &progress, count);
        // Joined by hand: the scope would not wait for what the threads' caches still hold.
        sides.into_iter().for_each(|side| done += side.join().unwrap());
    });
    assert_eq!((releases.0.load(Ordering::Relaxed), Arc::strong_count(&releases)), (done.held, 1));
    done
}

/// Reads the books and turns sampling on and off until both sides are done; reports the progress
/// and the remaining time of a long run on stderr.
fn watch(pool: &Pool, progress: &Progress, count: u64) {
    let (start, mut next, mut looks) = (Instant::now(), REPORT, 0);
    while !progress.done.iter().all(|done| done.load(Ordering::Acquire)) {
        if count < LONG {
            std::thread::yield_now();
        } else {
            std::thread::sleep(WATCH);
        }
        looks += 1;
        pool.set_sampling([0, 1, 64][looks % 3]);
        // What moves may look unbalanced; it must never be more than can be said.
        let (ledger, stats) = (pool.ledger(), pool.stats());
        assert!(ledger.to_string().contains("in flight") && stats.to_string().contains("depot"));
        if start.elapsed() >= next {
            next += REPORT;
            let made: u64 = progress.made.iter().map(|n| n.load(Ordering::Relaxed)).sum();
            let rate = made as f64 / start.elapsed().as_secs_f64();
            let left_s = count.saturating_sub(made) as f64 / rate;
            eprintln!(
                "churn, {:?} {:?} {:?}: {made} of {count}, {:.1} M/s, {left_s:.0} s left",
                pool.data_from(),
                pool.init(),
                pool.return_to(),
                rate / 1e6
            );
        }
    }
}

struct Side {
    me: usize,
    mem: Local,
    to: Producer<Heap<u32>>,
    from: Consumer<Heap<u32>>,
    batch: Batch,
    /// Packets set aside while the batch is taken apart.
    aside: Batch,
    releases: Arc<ReleaseCount>,
    tally: Tally,
    random: u64,
    /// Mark of the last packet made, and of the last one that came.
    mark: u64,
    seen: u64,
}

impl Side {
    fn new(
        me: usize,
        mem: Local,
        to: Producer<Heap<u32>>,
        from: Consumer<Heap<u32>>,
        releases: Arc<ReleaseCount>,
    ) -> Side {
        let (batch, aside) = (Batch::with_capacity(BATCH), Batch::with_capacity(BATCH));
        let (tally, random) = (Tally::default(), 0x9e37_79b9_7f4a_7c15 ^ me as u64);
        Side { me, mem, to, from, batch, aside, releases, tally, random, mark: 0, seen: 0 }
    }

    fn run(mut self, count: u64, progress: &Progress) -> Tally {
        pin(self.me);
        let done = Done(&progress.done[self.me]);
        let mut turns = 0u64;
        while self.tally.made < count {
            if turns.is_multiple_of(STEADY_TURNS) {
                let which = self.pick(HOT_LIST_LENS.len());
                self.mem.set_hot_list_len(HOT_LIST_LENS[which]);
            }
            turns += 1;
            self.make();
            match self.pick(4) {
                0 => self.end(),
                _ => self.hand_over(),
            }
            self.wait_for_room();
            progress.made[self.me].store(self.tally.made, Ordering::Relaxed);
        }
        drop(done);
        // What the peer pushed before it said so is there when it is seen to have said so.
        while self.take_over() > 0 || !progress.done[1 - self.me].load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        while self.take_over() > 0 {}
        self.tally
    }

    /// Returns a number below `n`, from a xorshift generator: the same run each time on each side.
    fn pick(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * n as u64) >> 32) as usize
    }

    /// Fills the batch with new packets, sometimes in a shape that takes more care to free.
    fn make(&mut self) {
        let want = 1 + self.pick(BURST);
        self.mem.alloc(&mut self.batch, want);
        if self.pick(8) == 0
            && let Some(large) = self.mem.alloc_len(JUMBO_BYTES as usize / 2)
        {
            self.batch.push(large).unwrap();
        }
        self.tally.made += self.batch.len() as u64;
        for skb in self.batch.iter_mut() {
            self.mark += 1;
            assert!(skb.put_slice(&(((self.me as u64) << 56) | self.mark).to_le_bytes()));
        }
        match self.pick(8) {
            0 => self.share(),
            1 => self.chain(),
            2 => self.copy(),
            3 => self.give_back(),
            4 => self.hold(),
            _ => {}
        }
    }

    /// Attaches an object to each packet.
    fn hold(&mut self) {
        for skb in self.batch.iter_mut() {
            assert!(skb.hold(self.releases.clone()).is_ok());
            self.tally.held += 1;
        }
    }

    /// Makes a second handle on each packet.
    fn share(&mut self) {
        for mut skb in self.batch.drain() {
            let twin = skb.share().into_unique();
            for skb in [skb, twin] {
                self.aside.push(skb).unwrap();
            }
            self.tally.made += 1;
        }
        std::mem::swap(&mut self.batch, &mut self.aside);
    }

    /// Makes chains of up to four frames.
    fn chain(&mut self) {
        let fragments = 1 + self.pick(3);
        while let Some(mut head) = self.batch.pop() {
            for fragment in self.batch.drain().take(fragments) {
                head.append(fragment).unwrap();
                self.tally.unused += 1;
            }
            self.aside.push(head).unwrap();
        }
        std::mem::swap(&mut self.batch, &mut self.aside);
    }

    /// Shares each packet, writes it, which copies it, and drops the shared handle.
    fn copy(&mut self) {
        for skb in self.batch.iter_mut() {
            let twin = skb.share();
            // Without a frame to copy into there is nothing to write.
            if let [.., side] = skb.data_mut() {
                *side = self.me as u8;
            }
            drop(twin);
            self.tally.made += 1;
            self.tally.consumed += 1;
        }
    }

    /// Frees some packets as never used.
    fn give_back(&mut self) {
        let keep = self.pick(self.batch.len() + 1);
        self.tally.unused += (self.batch.len() - keep) as u64;
        match self.pick(2) {
            0 => self.batch.truncate(keep),
            _ => self.batch.truncate_to(keep, &mut self.mem),
        }
    }

    /// Frees the batch in one of the possible ways.
    fn end(&mut self) {
        const WHY: DropReason = DropReason::UNWANTED;
        let n = self.batch.len() as u64;
        match self.pick(8) {
            0 => self.batch.consume(&mut self.mem),
            1 => self.batch.clear(),
            2 => self.batch.drain().for_each(drop),
            3 => {
                let moved = self.batch.sent(n as usize, &mut self.mem);
                assert_eq!(moved.packets as u64, n);
                self.tally.sent += n;
                return;
            }
            4 => {
                let mut kept = 0;
                self.batch.retain(|_| {
                    kept += 1;
                    if kept % 2 == 0 { Ok(()) } else { Err(WHY) }
                });
                self.tally.dropped += n - self.batch.len() as u64;
                self.tally.consumed += self.batch.len() as u64;
                return self.batch.consume(&mut self.mem);
            }
            how => {
                self.tally.dropped += n;
                return match how {
                    5 => self.batch.discard(WHY),
                    6 => self.batch.discard_first(n as usize, WHY, &mut self.mem),
                    _ => self.batch.drain().for_each(|skb| skb.discard(WHY)),
                };
            }
        }
        self.tally.consumed += n;
    }

    /// Passes the batch to the peer; packets for which its ring has no room are dropped.
    fn hand_over(&mut self) {
        let n = self.to.push_slice(self.batch.handles());
        // SAFETY: the first n handles are in the ring, whose one consumer adopts each once.
        unsafe { self.batch.took(n) };
        self.tally.dropped += self.batch.len() as u64;
        self.batch.discard_first(BATCH, DropReason::TX_FULL, &mut self.mem);
    }

    /// Waits for the peer, but not for long: the peer may be waiting too, or have no CPU.
    fn wait_for_room(&mut self) {
        for _ in 0..1000 {
            while self.take_over() > 0 {}
            if self.to.free() as usize >= BATCH {
                break;
            }
            std::hint::spin_loop();
        }
    }

    /// Receives packets from the peer, verifies them and frees them; returns how many.
    fn take_over(&mut self) -> usize {
        let mut handles = [0; BURST];
        let n = self.from.pop_slice(&mut handles);
        // SAFETY: the peer gave each handle up with `took` of a batch of unique packets, and the
        // batch is empty.
        unsafe { self.batch.adopt(&handles[..n]) };
        let peer = 1 - self.me as u64;
        for mark in self.batch.iter().map(mark) {
            let (side, number) = (mark >> 56, mark & ((1 << 56) - 1));
            assert!(side == peer && number >= self.seen, "{mark:x} came after {:x}", self.seen);
            self.seen = number;
        }
        self.end();
        n
    }
}

fn mark(skb: &Skb) -> u64 {
    u64::from_le_bytes(skb.data()[..8].try_into().unwrap())
}

/// Pins each side to a CPU of its own, if there are two and no filter of system calls refuses it.
fn pin(side: usize) {
    if cfg!(miri) {
        return;
    }
    if let Ok(&[first, .., last]) = allowed_cpus().as_deref()
        && let Err(e) = pin_to_cpu([first, last][side])
    {
        assert!(is_filtered(&e), "{e}");
    }
}
