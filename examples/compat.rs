//! A receive ring in the kernel's own words (`linerate_skb::compat`): refill, receive, push and
//! pull headers, clone, and free on another CPU, as posts 000 and 004 describe it.

use std::sync::mpsc::sync_channel;
use std::thread;

use linerate_skb::compat::{
    dev_alloc_skb_refill, kfree_skb, skb_clone, skb_headlen, skb_pull, skb_push, skb_put, skb_trim,
};
use linerate_skb::{Batch, Pool, Skb};

const RING: usize = 256;
const ROUNDS: usize = 100;
const FRAME: [u8; 60] = [0x45; 60];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::builder().frames(4 * RING as u32).build()?;
    let mut mem = pool.local();
    let (tx, rx) = sync_channel::<Skb>(RING);
    let application = thread::spawn(move || rx.into_iter().map(kfree_skb).count());

    let mut ring = Batch::with_capacity(RING);
    let mut clones = 0;
    for _ in 0..ROUNDS {
        dev_alloc_skb_refill(&mut mem, &mut ring, RING);
        for mut skb in ring.drain() {
            skb_put(&mut skb, FRAME.len()).ok_or("no tailroom")?.copy_from_slice(&FRAME);
            skb_pull(&mut skb, 14).ok_or("no Ethernet header")?;
            skb_push(&mut skb, 14).ok_or("no headroom")?;
            skb_trim(&mut skb, 42);
            assert_eq!(skb_headlen(&skb), 42);
            let clone = skb_clone(&mut skb); // two handles, one frame
            clones += 1;
            kfree_skb(clone);
            tx.send(skb).map_err(|_| "the application ended")?; // freed on the other thread's CPU
        }
    }
    drop(tx);
    let freed = application.join().map_err(|_| "the application panicked")?;
    println!("{clones} cloned, {freed} freed by the application");
    println!("{}", pool.ledger());
    Ok(())
}
