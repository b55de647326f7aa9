//! Calls that a careless or hostile program can make in safe code, and that must do no harm.

use linerate_skb::{Batch, Data, Pool, Skb, Trust};
use linerate_sys::peer::{Access, PeerMemory};

#[test]
fn private_memory_is_given_out_to_be_read_only() {
    for trust in [Trust::Private, Trust::Exported] {
        let pool = Pool::builder().frames(4).trust(trust).build().unwrap();
        let file = pool.memory().unwrap().try_clone_to_owned().unwrap();
        let map = |access| PeerMemory::map(&file, 4 * 2048, access, false);
        assert!(map(Access::Read).is_ok());
        assert_eq!(map(Access::Write).is_ok(), trust == Trust::Exported);
    }
    let pool = Pool::builder().frames(4).data(Data::General).build().unwrap();
    assert!(pool.memory().is_none());
}

#[test]
fn a_packet_cannot_be_appended_to_itself() {
    let pool = Pool::builder().frames(4).build().unwrap();
    let mut skb = pool.local().alloc_copy(b"abc").unwrap();
    let alias = skb.share().into_unique();
    assert!(skb.append(alias).is_err());
    assert_eq!(skb.data(), b"abc");
}

#[test]
fn refusing_a_shared_fragment_does_not_write_to_it() {
    let pool = Pool::builder().frames(4).build().unwrap();
    let mut mem = pool.local();
    let mut head = mem.alloc_copy(b"abc").unwrap();
    let mut fragment = mem.alloc_copy(b"abc").unwrap();
    let shared = fragment.share();
    std::thread::scope(|s| {
        s.spawn(move || (0..50).for_each(|_| assert_eq!(shared.len(), 3)));
        s.spawn(move || {
            // Refused while the other thread has its handle, taken afterwards.
            let _ = head.append(fragment);
        });
    });
    assert!(pool.ledger().is_drained(), "{}", pool.ledger());
}

#[test]
fn a_thread_that_only_drops_does_not_keep_dead_pools_alive() {
    let (tx, rx) = std::sync::mpsc::channel::<Skb>();
    let (done, dropped) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for skb in rx {
            drop(skb);
            done.send(()).unwrap();
        }
    });
    for i in 0..40 {
        let pool = Pool::builder().frames(1024).build().unwrap_or_else(|e| panic!("pool {i}: {e}"));
        tx.send(pool.local().alloc_one().unwrap()).unwrap();
        dropped.recv().unwrap();
    }
    drop(tx);
    thread.join().unwrap();
}

#[test]
fn a_refused_push_changes_nothing() {
    let pool = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
    let mut skb = pool.local().alloc_copy(b"abc").unwrap();
    assert!(skb.push(4).is_none());
    assert_eq!((skb.len(), skb.headroom()), (3, pool.headroom()));
}

#[test]
fn a_commit_on_a_chain_puts_nothing_in_the_middle() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let mut mem = pool.local();
    let mut head = mem.alloc_copy(b"head").unwrap();
    assert!(head.append(mem.alloc_copy(b"tail").unwrap()).is_ok());
    head.commit(2);
    let mut all = [0; 16];
    let n = head.copy_to(0, &mut all);
    assert_eq!(&all[..n], b"headtail");
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(head).is_ok());
    batch.commit_from(0, 2);
    assert_eq!(batch.count_from(0).bytes, 8);
}

#[test]
fn work_of_a_thread_in_teardown_is_counted() {
    struct Last(std::cell::RefCell<Option<Skb>>);
    impl Drop for Last {
        fn drop(&mut self) {
            if let Some(mut skb) = self.0.borrow_mut().take() {
                drop(skb.share());
            }
        }
    }
    thread_local!(static LAST: Last = const { Last(std::cell::RefCell::new(None)) });
    let pool = Pool::builder().frames(256).build().unwrap();
    let (first, last) = (pool.local().alloc_one().unwrap(), pool.local().alloc_one().unwrap());
    let body = move || {
        // Registered before the thread cache, so destroyed after it.
        LAST.with(|l| *l.0.borrow_mut() = Some(last));
        drop(first);
    };
    std::thread::spawn(body).join().unwrap();
    let ledger = pool.ledger();
    assert!(ledger.is_drained(), "{ledger}");
}

#[test]
fn bytes_are_overwritten_in_every_kind_of_memory_and_across_frames() {
    for trust in [Trust::Private, Trust::Exported] {
        let pool = Pool::builder().frames(64).trust(trust).build().unwrap();
        let mut mem = pool.local();
        let mut skb = mem.alloc_copy(&[7; 5000]).unwrap();
        assert!(!skb.is_linear());
        let shared = skb.share();
        let new: Vec<u8> = (0..4000u32).map(|i| i as u8).collect();
        assert_eq!((skb.copy_from(100, &new), skb.copy_from(4990, &[1; 20])), (4000, 10));
        let mut back = [0; 5000];
        skb.copy_to(0, &mut back);
        assert!(back[..100] == [7; 100] && back[100..4100] == new && back[4990..] == [1; 10]);
        shared.copy_to(0, &mut back);
        assert_eq!(back, [7; 5000], "a copy was written");
        assert_eq!(skb.copy_from(5000, &[1]), 0);
    }
}
