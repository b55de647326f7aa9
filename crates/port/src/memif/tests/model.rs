//! A pair of ports under random steps, compared with a model of two sequences of numbers.

use linerate_skb::{Local, Skb};
use proptest::prelude::*;

use super::hostile::settled;
use super::peer::turn;
use super::*;

/// A step of the model. `true` selects the client's side.
#[derive(Debug, Clone, Copy)]
enum Do {
    Send(bool, usize),
    Receive(bool, usize),
    /// This side disconnects, and a new one connects.
    Renew(bool),
    /// The program takes frames from the pool until this number is left.
    Dry(usize),
    /// The program gives all these frames back.
    Wet,
}

fn any_step() -> impl Strategy<Value = Do> {
    prop_oneof![
        6 => (any::<bool>(), 1usize..40).prop_map(|(near, n)| Do::Send(near, n)),
        6 => (any::<bool>(), 0usize..64).prop_map(|(near, n)| Do::Receive(near, n)),
        1 => any::<bool>().prop_map(Do::Renew),
        1 => (0usize..4).prop_map(Do::Dry),
        2 => Just(Do::Wet),
    ]
}

struct Pair {
    pool: Pool,
    /// The texts of the client's port and the server's.
    texts: [String; 2],
    near: Opened,
    far: Opened,
    mem: Local,
    /// The number of the connection.
    epoch: u8,
    /// Numbers of packets sent on the present connection: by the client, by the server. The next
    /// field has those received.
    sent: [u32; 2],
    received: [u32; 2],
    taken: Batch,
}

const FRAMES: usize = 256;

impl Pair {
    fn new(sharing: &str) -> Pair {
        let pool = Pool::builder().frames(FRAMES as u32).trust(Trust::Exported).build().unwrap();
        let name = name();
        let texts = [
            format!("memif:{name},size=16,zerocopy={sharing}"),
            format!("memif:{name},role=server"),
        ];
        let mut far = open(&texts[1], &pool);
        let mut near = open(&texts[0], &pool);
        meet(&pool, &mut [&mut near, &mut far]);
        let (mem, taken) = (pool.local_with(4), Batch::with_capacity(FRAMES));
        let (sent, received) = ([0; 2], [0; 2]);
        Pair { pool, texts, near, far, mem, epoch: 0, sent, received, taken }
    }

    fn packet(&self, number: u32) -> Vec<u8> {
        let mut bytes = vec![self.epoch; 14 + (number as usize * 389) % 3000];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    fn step(&mut self, step: Do) {
        match step {
            Do::Send(near, n) => self.send(near, n),
            Do::Receive(near, n) => self.receive(near, n),
            Do::Renew(near) => self.renew(near),
            Do::Dry(left) => {
                let mut home = self.pool.local_with(0);
                home.alloc(&mut self.taken, FRAMES);
                for skb in (0..left).filter_map(|_| self.taken.pop()) {
                    drop::<Skb>(skb);
                }
            }
            Do::Wet => self.taken.clear(),
        }
    }

    fn send(&mut self, near: bool, n: usize) {
        let (mut batch, line) = (Batch::with_capacity(n), usize::from(!near));
        for number in (self.sent[line]..).take(n) {
            let bytes = self.packet(number);
            let Some(skb) = self.mem.alloc_copy(&bytes) else { break };
            batch.push(skb).unwrap();
        }
        let port = if near { &mut self.near } else { &mut self.far };
        let (all, moved) = (batch.len(), port.queues[0].xmit(&mut self.mem, &mut batch));
        assert_eq!(moved.packets + batch.len(), all);
        self.sent[line] += moved.packets as u32;
    }

    fn receive(&mut self, near: bool, n: usize) {
        // The model's line of the other side.
        let (mut out, line) = (Batch::with_capacity(64), usize::from(near));
        let port = if near { &mut self.near } else { &mut self.far };
        let moved = port.queues[0].rx(&mut self.mem, &mut out, n);
        assert_eq!((moved.packets, moved.packets <= n), (out.len(), true));
        for skb in out.iter() {
            let mut bytes = vec![0; skb.len()];
            assert_eq!(skb.copy_to(0, &mut bytes), bytes.len());
            assert!(self.received[line] < self.sent[line]);
            assert!(bytes == self.packet(self.received[line]), "lost, or another one");
            self.received[line] += 1;
        }
    }

    /// Closes one side, compares the other side's counters with the model, and connects again.
    fn renew(&mut self, near: bool) {
        let (leaves, stays, text) = match near {
            true => (&mut self.near, &mut self.far, &self.texts[0]),
            false => (&mut self.far, &mut self.near, &self.texts[1]),
        };
        let before = stays.queues[0].counters();
        drop(std::mem::replace(leaves, open("null:", &self.pool)));
        while stays.queues[0].health() == Health::Up {
            turn(stays, &mut self.mem);
        }
        let after = stays.queues[0].counters();
        let (incoming, missed) = (usize::from(!near), after.rx_missed - before.rx_missed);
        let known = u64::from(self.received[incoming]) + missed;
        assert_eq!(u64::from(self.sent[incoming]), known, "{missed} missed");
        if !near {
            // A client takes back what its server has not read. A server counts it as sent.
            let lost = after.tx_lost.packets - before.tx_lost.packets;
            assert_eq!(self.sent[0] as usize, self.received[0] as usize + lost, "{lost} lost");
        }
        *leaves = open(text, &self.pool);
        meet(&self.pool, &mut [leaves, stays]);
        self.epoch = self.epoch.wrapping_add(1);
        (self.sent, self.received) = ([0; 2], [0; 2]);
    }

    /// Waits until all packets in flight have arrived, and checks that every frame is back in the
    /// pool.
    fn end(mut self) {
        self.taken.clear();
        let start = Instant::now();
        while self.received != self.sent {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", (self.received, self.sent));
            for near in [true, false] {
                self.receive(near, 64);
                // A client takes back packets that were read when it sends.
                let port = if near { &mut self.near } else { &mut self.far };
                port.queues[0].xmit(&mut self.mem, &mut Batch::with_capacity(0));
            }
        }
        let Pair { pool, near, far, mem, taken, .. } = self;
        drop((near, far, mem, taken));
        settled(&pool);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_is_sent_is_received_once_and_in_order_and_every_frame_comes_home(
        sharing in prop_oneof![Just("yes"), Just("no")],
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let mut pair = Pair::new(sharing);
        steps.into_iter().for_each(|step| pair.step(step));
        pair.end();
    }
}
