//! Packets that cannot be sent as they lie, because they are in too many frames. The socket is not
//! bound, so nothing is sent.

use linerate_skb::{Batch, DropReason, Pool, Skb};

use super::super::tx::Tx;
use super::pool;
use super::told::socket;
use crate::host::Link;
use crate::host::testing::{in_netns_with_xdp, ip};

/// Returns a packet of `n` fragments of `bytes` each.
fn chain(pool: &Pool, n: usize, bytes: usize) -> Skb {
    let mut mem = pool.local();
    let mut skb = mem.alloc_copy(&vec![1; bytes]).unwrap();
    for _ in 1..n {
        skb.append(mem.alloc_copy(&vec![1; bytes]).unwrap()).unwrap();
    }
    skb
}

/// Sends packets on `lo`, by a socket that takes packets of at most `frames_max` frames.
fn sender(pool: &Pool, frames_max: usize) -> impl FnMut(Skb) -> (usize, u64) {
    let (mut socket, mut link) = (socket(pool.frame_size()), Link::open("lo").unwrap());
    socket.rings.tx_frames_max = frames_max;
    let (mut home, mut mem) = (pool.local_with(0), pool.local());
    let mut tx = Tx::new(pool.clone(), pool.tally("cut tx"));
    move |skb| {
        let mut batch = Batch::with_capacity(1);
        batch.push(skb).unwrap();
        let moved = tx.send(&mut socket, &mut link, &mut home, &mut mem, &mut batch);
        assert!(batch.is_empty());
        (moved.packets, tx.copied_bytes)
    }
}

#[test]
fn a_packet_of_more_frames_than_the_kernel_takes_is_copied_into_fewer() {
    in_netns_with_xdp(|| {
        ip("link set lo up");
        let pool = pool(256);
        let mut one = sender(&pool, 1);
        assert_eq!(one(chain(&pool, 19, 64)), (1, 19 * 64));
        assert_eq!(one(chain(&pool, 19, 100)), (0, 19 * 64), "longer than a frame");
        let mut several = sender(&pool, 17);
        assert_eq!(several(chain(&pool, 17, 64)), (1, 0));
        assert_eq!(several(chain(&pool, 18, 64)), (1, 18 * 64));
        assert_eq!(several(chain(&pool, 18, 200)), (1, 18 * 264), "in three frames");
        let most = 17 * pool.data_room();
        assert_eq!(several(chain(&pool, 32, most / 32 + 1)), (0, 18 * 264));
        let mut eight = sender(&pool, 8);
        assert_eq!(eight(chain(&pool, 8, 64)), (1, 0));
        assert_eq!(eight(chain(&pool, 9, 64)), (1, 9 * 64), "the limit of a device");
        assert_eq!(pool.ledger().dropped(DropReason::TOO_LONG), 2);
    });
}

#[test]
fn a_packet_longer_than_the_mtu_is_left_to_the_device() {
    in_netns_with_xdp(|| {
        ip("link set lo up");
        ip("link set lo mtu 1500");
        let pool = pool(256);
        let mut send = sender(&pool, 17);
        assert_eq!([1518, 1522, 1600].map(|len| send(chain(&pool, 1, len)).0), [1; 3]);
        assert_eq!(pool.ledger().dropped_total(), 0);
    });
}

#[test]
fn packets_in_the_ring_are_in_the_tally_as_soon_as_they_are_sent() {
    in_netns_with_xdp(|| {
        ip("link set lo up");
        let pool = pool(64);
        let mut send = sender(&pool, 1);
        send(chain(&pool, 1, 60));
        let held =
            pool.ledger().held().iter().find(|(name, _)| *name == "cut tx").map(|held| held.1);
        assert_eq!(held, Some(1));
    });
}
