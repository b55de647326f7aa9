//! A peer made of fuzzed bytes: its messages, and its writes into shared memory while our side uses
//! it.
//!
//! For the fuzz targets and the tests. No socket and no other process: both handshakes are run as
//! they are, and the peer's stores are stores.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linerate_skb::{Batch, DropReason, Local, Pool, Trust};
use linerate_sys::peer::PeerMemory;
use linerate_sys::wait::EventFd;
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

use super::client_memory::ClientMemory;
use super::config::Config;
use super::copies::{Copies, Stop};
use super::handshake::{Client, Reply, Server, Step};
use super::message::{BYTES, Message};
use super::reader::fuzzing::Program;
use super::ring::{Checked, Desc, HEADER_BYTES, NEXT, ServerRing, Shared};
use super::rings::Rings;
use super::server::MappedRing;
use crate::spec::Spec;

/// Descriptors of the rings, as a power of two.
const POWER: u8 = 3;
const RING_BYTES: usize = super::ring::bytes(POWER);
/// Bytes in front of each fuzzed message: the descriptors that come with it, and their size.
const HEAD_BYTES: usize = 3;
/// The kinds of [`some_file`] that are memory which its owner cannot cut: only they become regions.
const REGIONS: [u64; 5] = [1, 2, 4, 5, 6];
/// Number of the kinds.
const KINDS: u64 = 13;
/// Number of frames in the pool of a run.
const FRAMES: usize = 64;
/// The 16-bit words of the header that a peer writes: flags, head, tail.
const WORDS: [usize; 3] = [4, 6, 64];

/// Runs both handshakes on a fuzzed peer's messages; returns how many were accepted.
///
/// The first byte of each says how many descriptors come with it, none to two, and, divided by
/// three, which: as they should be for 0, memory for a region and doorbells else, and otherwise
/// those of [`some_file`]. The two bytes behind it select the length of a file whose kind has any.
///
/// # Panics
/// If either machine does what it must not.
pub fn control(bytes: &[u8]) -> usize {
    let config = |text| Spec::parse(text, &["memif"]).and_then(|spec| Config::of(&spec));
    let (Ok(ours), Ok(theirs)) = (config("memif:x,rings=2"), config("memif:x,role=server,rings=2"))
    else {
        return 0;
    };
    let (mut client, mut server) = (Some(Client::new(&ours)), Some(Server::new(&theirs)));
    let mut taken = 0;
    for chunk in bytes.chunks(HEAD_BYTES + BYTES) {
        let mut padded = [0; HEAD_BYTES + BYTES];
        padded[..chunk.len()].copy_from_slice(chunk);
        let [count, size_low, size_high, said @ ..] = padded;
        let Some(message) = Message::decode(&said) else { continue };
        assert_kept(&message, &said);
        if let Some(machine) = &mut client {
            let region = || (Message::AddRegion { index: 0, bytes: 4096 }, memory());
            let step = machine.on(&message, &[]).and_then(|step| match step {
                Step::Make(limits) => {
                    let rings = 1..=2;
                    assert!(
                        rings.contains(&limits.from_client) && rings.contains(&limits.to_client)
                    );
                    assert!((1..=10).contains(&limits.power));
                    machine.offer(vec![region()])
                }
                step => Ok(step),
            });
            taken += usize::from(step.is_ok());
            client = client.filter(|_| step.is_ok());
        }
        if let Some(machine) = &mut server {
            let kind = (count / 3).checked_sub(1).map(u64::from);
            let size = u64::from(u16::from_le_bytes([size_low, size_high]));
            let file = |i: u8| match (kind, &message) {
                (Some(kind), _) => some_file(KINDS * size + (kind + u64::from(i)) % KINDS),
                (None, Message::AddRegion { .. }) => memory(),
                (None, _) => doorbell(),
            };
            let mut files = (0..count % 3).map(file).collect();
            let reply = machine.on(message.clone(), &mut files, &theirs);
            if let (Ok(_), Message::AddRegion { .. }, Some(kind)) = (&reply, &message, kind) {
                assert!(REGIONS.contains(&(kind % KINDS)), "a file of kind {kind} is a region");
            }
            taken += usize::from(reply.is_ok());
            if let Ok(Reply::Connected(rings)) = &reply {
                assert_eq!(rings.len(), 2);
            }
            server = server.filter(|_| matches!(reply, Ok(Reply::Ack)));
        }
    }
    taken
}

/// Checks that a message is encoded to the bytes that it was decoded from, except for names, flags
/// without a meaning and what follows the fields; and that it is decoded to the same again.
fn assert_kept(message: &Message, said: &[u8; BYTES]) {
    let encoded = message.encode("");
    let mut said = *said;
    // Of a ring's flags only the first has a meaning.
    if let Message::AddRing(_) = message {
        let flags = u16::from_ne_bytes([said[2], said[3]]) & 1;
        said[2..4].copy_from_slice(&flags.to_ne_bytes());
    }
    let fields: &[(usize, usize)] = match message {
        Message::Hello { .. } => &[(0, 2), (34, 45)],
        Message::Init { .. } => &[(0, 33)],
        Message::AddRegion { .. } => &[(0, 12)],
        Message::AddRing(_) => &[(0, 15)],
        Message::Ack | Message::Connect | Message::Connected | Message::Disconnect(_) => &[(0, 2)],
    };
    for &(from, to) in fields {
        assert_eq!(encoded[from..to], said[from..to], "{message:?}");
    }
    let again = Message::decode(&encoded).map(|again| again.encode(""));
    assert_eq!(again, Some(encoded));
}

/// Returns a memory file of two pages that contains a ring.
fn memory() -> OwnedFd {
    memory_of(8192, MemfdFlags::ALLOW_SEALING)
}

/// Returns a memory file that contains a ring, sealed against truncation if it can be.
fn memory_of(bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("peer", flags).expect("a file");
    rustix::fs::ftruncate(&fd, bytes).expect("its length");
    rustix::io::pwrite(&fd, &super::ring::COOKIE.to_ne_bytes(), 0).expect("its cookie");
    let _ = rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK);
    fd
}

fn doorbell() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("a doorbell")
}

/// Returns a descriptor that a peer can send, selected by `kind`: memory of odd sizes, with holes,
/// with too many seals or not sealable, doorbells that block, pipes, sockets, folders, and closed
/// ends.
pub(super) fn some_file(kind: u64) -> OwnedFd {
    let sealed = |seals| {
        let fd = memory();
        rustix::fs::fcntl_add_seals(&fd, seals).expect("its seals");
        fd
    };
    let opened = |path, flags| rustix::fs::open(path, flags, Mode::empty()).expect("it is there");
    match kind % KINDS {
        0 => rustix::fs::memfd_create("empty", MemfdFlags::ALLOW_SEALING).expect("a file"),
        // A file of holes, for some values of `kind` longer than may be mapped. The next file has
        // any number of bytes.
        1 => memory_of(4096 << (kind >> 8 & 21), MemfdFlags::ALLOW_SEALING),
        2 => memory_of(1 + (kind >> 4 & 0xffff), MemfdFlags::ALLOW_SEALING),
        3 => memory_of(8192, MemfdFlags::empty()),
        4 => sealed(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
        5 => sealed(SealFlags::WRITE),
        6 => sealed(SealFlags::FUTURE_WRITE | SealFlags::SEAL),
        7 => {
            let fd = doorbell();
            rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).expect("it is full");
            fd
        }
        8 => opened("/dev/zero", OFlags::RDONLY),
        9 => opened("/", OFlags::PATH | OFlags::DIRECTORY),
        // The other end of the pipe or socket is closed.
        10 => rustix::pipe::pipe().expect("a pipe").1,
        11 => rustix::pipe::pipe().expect("a pipe").0,
        _ => UnixStream::pair().expect("two sockets").0.into(),
    }
}

/// The side that our code takes in [`rings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum We {
    Share,
    Read,
    CopyAsClient,
    CopyAsServer,
}

/// Runs rings while a peer writes as `script` demands: each step of either side takes four bytes.
/// With an odd first byte, another thread repeats the peer's steps. Returns true if the peer
/// violated the protocol.
///
/// # Panics
/// If a frame or a packet is lost, or found twice, or a slot of the producer that we read from.
#[must_use]
pub fn rings(script: &[u8]) -> bool {
    let Some((&kind, script)) = script.split_first() else { return false };
    let (we, trust) = match kind >> 1 & 3 {
        0 => (We::Share, Trust::Exported),
        1 => (We::Read, Trust::Private),
        2 => (We::CopyAsClient, Trust::Private),
        _ => (We::CopyAsServer, Trust::Private),
    };
    let Ok(pool) = Pool::builder().frames(FRAMES as u32).trust(trust).build() else { return false };
    let Some((memory, mut rings)) = rings_of(we, &pool) else { return false };
    let program = match we {
        We::Read => rings.rx.take().and_then(|rx| rx.into_mapped()).and_then(Program::new),
        We::Share | We::CopyAsClient | We::CopyAsServer => None,
    };
    let mut us = Us {
        mem: pool.local_with(8),
        rings,
        program,
        copies: Copies::default(),
        batch: Batch::with_capacity(FRAMES),
    };
    let steps: Vec<[u8; 4]> = script.as_chunks().0.to_vec();
    let lied = match kind & 1 {
        0 => steps.iter().any(|step| match step[0] % 8 {
            0..3 => us.work(*step).is_err(),
            _ => {
                write(&memory, *step);
                false
            }
        }),
        _ => us.work_beside(&memory, &steps),
    };
    us.end(&pool);
    lied
}

struct Us {
    mem: Local,
    rings: Rings,
    /// The program that has the ring from the peer, if it reads in the peer's memory.
    program: Option<Program>,
    copies: Copies,
    batch: Batch,
}

impl Us {
    /// Executes one step of our side.
    fn work(&mut self, step: [u8; 4]) -> Checked<()> {
        if let Some(program) = &mut self.program {
            return program.work(step);
        }
        let [op, a, b, c] = step;
        let Rings { tx: Some(tx), rx: Some(rx) } = &mut self.rings else { return Ok(()) };
        match op % 8 {
            0 | 1 => {
                let budget = usize::from(a % 16);
                let (moved, lie) =
                    rx.receive(&mut self.copies, &mut self.mem, &mut self.batch, budget);
                assert!(moved.packets <= budget && moved.packets == self.batch.len());
                assert!(self.batch.iter().all(|skb| (1..=65_550).contains(&skb.len())));
                self.batch.consume(&mut self.mem);
                lie
            }
            _ => {
                tx.reap(&mut self.mem)?;
                let long = vec![b; usize::from(c) * 40 + 1];
                for _ in 0..a % 8 {
                    if let Some(skb) = self.mem.alloc_copy(&long) {
                        let _ = self.batch.push(skb);
                    }
                }
                let put = tx.put(&mut self.batch, &mut self.copies, &mut self.mem);
                tx.post();
                let stop = put.map(|(_, stop)| stop);
                assert!(stop.is_err() || self.batch.is_empty() || stop != Ok(Stop::Empty));
                self.batch.discard(DropReason::DEVICE_DOWN);
                stop.and_then(|_| tx.has_room()).map(|_| ())
            }
        }
    }

    /// Executes our steps while another thread executes those of the peer.
    fn work_beside(&mut self, memory: &PeerMemory, steps: &[[u8; 4]]) -> bool {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    steps.iter().filter(|step| step[0] % 8 > 2).for_each(|s| write(memory, *s));
                }
            });
            let mut ours = (0..4).flat_map(|_| steps.iter().filter(|step| step[0] % 8 < 3));
            let lied = ours.any(|step| self.work(*step).is_err());
            done.store(true, Ordering::Relaxed);
            // A scope does not wait for the end of a thread's destructors, whose memory a fuzzer
            // would report as lost.
            peer.join().expect("the peer's thread panicked");
            lied
        })
    }

    /// Closes the rings, and checks that every frame is accounted for.
    fn end(mut self, pool: &Pool) {
        if let Some(program) = self.program {
            program.end();
        }
        if let Some(mut rx) = self.rings.rx {
            rx.close(&mut self.mem);
        }
        if let Some(mut tx) = self.rings.tx {
            tx.close();
        }
        drop((self.batch, self.mem));
        let ledger = pool.ledger();
        assert!(ledger.is_drained(), "{ledger}");
        let lent = ledger.holders().iter().find(|(name, _)| *name == "device rings");
        assert_eq!(lent.map(|(_, n)| *n), Some(0), "{ledger}");
        let mut all: Batch = Batch::with_capacity(FRAMES);
        assert_eq!(pool.local_with(0).alloc(&mut all, FRAMES), FRAMES);
    }
}

/// Returns the rings of both sides after the handshake, with the peer's view of the memory.
fn rings_of(we: We, pool: &Pool) -> Option<(Arc<PeerMemory>, Rings)> {
    let config = |text: &str| Spec::parse(text, &["memif"]).and_then(|s| Config::of(&s)).ok();
    let ours = match we {
        We::Share => config("memif:x,size=8")?,
        We::Read | We::CopyAsClient | We::CopyAsServer => {
            config("memif:x,size=8,zerocopy=no,buffer=256")?
        }
    };
    let theirs = config("memif:x,role=server")?;
    let (mut client, mut server) = (Client::new(&ours), Server::new(&theirs));
    let Ok(Step::Send(init, _)) = client.on(&server.hello(), &[]) else { return None };
    let Ok(Reply::Ack) = server.on(init, &mut Vec::new(), &theirs) else { return None };
    let Ok(Step::Make(limits)) = client.on(&Message::Ack, &[]) else { return None };
    let (made, messages) = ClientMemory::new(limits, &ours, pool).ok()?;
    let memory = made.memory.clone();
    let mut rings = match we {
        We::CopyAsServer => {
            for (message, fd) in messages {
                server.on(message, &mut vec![fd], &theirs).ok()?;
            }
            let connected = server.on(Message::Connect, &mut Vec::new(), &theirs);
            let Ok(Reply::Connected(rings)) = connected else { return None };
            // Post buffers, as a client does.
            let mut near = made.rings(&ours, pool);
            if let Some(rx) = &mut near[0].as_mut()?.rx {
                rx.refill(&mut pool.local_with(0), &mut Copies::default());
            }
            rings
        }
        We::Read => vec![Some(ring_to_read(&memory)?)],
        We::Share | We::CopyAsClient => made.rings(&ours, pool),
    };
    Some((memory, rings.pop()??))
}

/// Returns the client's ring as a reader has it, with a packet in each buffer; some continue in the
/// next buffer. Both regions are the client's own mapping, because Miri cannot map another.
fn ring_to_read(memory: &Arc<PeerMemory>) -> Option<Rings> {
    let shared = Shared::new(memory, 0, POWER)?;
    for slot in 0..shared.len() {
        let flags = if slot % 4 == 1 { NEXT } else { 0 };
        let offset = 2 * RING_BYTES as u32 + 256 * u32::from(slot);
        shared.set(slot, Desc { flags, region: 0, len: 60 + u32::from(slot), offset });
    }
    let regions = Arc::new([memory.clone(), memory.clone()]);
    let ring = MappedRing::new(ServerRing::new(shared), EventFd::new().ok()?, regions);
    Some(Rings { tx: None, rx: Some(Box::new(ring)) })
}

/// Executes one write of the peer.
fn write(memory: &PeerMemory, [op, a, b, c]: [u8; 4]) {
    // Each of the client's rings begins on its own cache line, directly after the one before.
    let ring = usize::from(op >> 3 & 1) * RING_BYTES.next_multiple_of(64);
    let value = u16::from_ne_bytes([b, c]);
    match op % 8 {
        // Write an index that is likely to be valid.
        3 | 4 => {
            let at = ring + WORDS[usize::from(a) % WORDS.len()];
            if let Some([half]) = memory.half_words(at, 1) {
                half.fetch_add(value % 10, Ordering::AcqRel);
            }
        }
        // Write 16 bits of a descriptor: of flags, region, length or offset.
        5 | 6 => {
            let at = ring + HEADER_BYTES + 2 * usize::from(a % 64);
            if let Some([half]) = memory.half_words(at, 1) {
                half.store(value, Ordering::Relaxed);
            }
        }
        _ => {
            let at = ring + 2 * (usize::from(a) % (RING_BYTES / 2));
            if let Some([half]) = memory.half_words(at, 1) {
                half.store(value, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_peer_that_keeps_to_the_protocol_is_no_liar() {
        // Miri cannot map the file of a peer.
        for we in if cfg!(miri) { &[0, 4][..] } else { &[0, 4, 6] }.iter().copied() {
            // One packet was sent, taken and given back; none was received.
            let tail = if we == 6 { 1 } else { 2 };
            let give = [3, tail, if we == 6 { 0 } else { 1 }, 0];
            assert!(!rings(&[&[we][..], &[2, 1, 7, 5], &give, &[2, 0, 0, 0]].concat()), "{we}");
            let lie = [3, 2, 9, 0];
            let lied = rings(&[&[we][..], &[2, 1, 7, 5], &lie, &[2, 0, 0, 0]].concat());
            assert_eq!(lied, we != 6, "{we}");
        }
    }

    #[test]
    fn a_reader_takes_what_a_producer_sends_and_believes_no_lie() {
        let lies = |steps: &[[u8; 4]]| rings(&[&[2][..], steps.as_flattened()].concat());
        let send = |n: u8| [3, 1, n, 0];
        let take = |fates: u8| [0, 15, fates, 7];
        // Frames of each fate, and then so many held ones that some are copied.
        let release = [2, 0, 1, 7];
        let honest = [send(5), take(0xe4), release, send(3), take(0x55), send(5), take(0x55)];
        assert!(!lies(&honest));
        assert!(lies(&[send(9), take(0)]), "more than the ring has");
        assert!(lies(&[[5, 1, 2, 0], send(1), take(0)]), "another region");
        assert!(lies(&[[5, 3, 1, 0], send(1), take(0)]), "beyond the region");
        let mut endless: Vec<[u8; 4]> = (0..8).map(|slot| [5, 8 * slot, 1, 0]).collect();
        endless.extend([send(8), take(0)]);
        assert!(lies(&endless), "a packet without an end");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

        #[test]
        fn whatever_is_said_is_answered_or_the_end(
            messages in prop::collection::vec(
                (0u8..45, any::<[u8; 2]>(), 1u8..9, prop::collection::vec(0u8..4, 40)),
                0..20,
            ),
        ) {
            let mut said = Vec::new();
            for (fds, [size_low, size_high], kind, fields) in messages {
                let from = said.len();
                said.extend([fds, size_low, size_high, kind, 0]);
                said.extend(fields);
                said.resize(from + HEAD_BYTES + BYTES, 0);
            }
            control(&said);
        }

        #[test]
        fn whatever_a_peer_writes_nothing_is_lost(
            kind in 0u8..8,
            steps in prop::collection::vec(any::<[u8; 4]>(), 0..if cfg!(miri) { 20 } else { 60 }),
        ) {
            // Miri cannot run two threads of which one copies what the other writes: this is a data
            // race in the language, but defined by the machine.
            let kind = if cfg!(miri) { kind & 4 } else { kind };
            let script: Vec<u8> = [kind].into_iter().chain(steps.into_iter().flatten()).collect();
            let _ = rings(&script);
        }

        #[test]
        fn whatever_a_producer_writes_a_reader_gives_back_each_slot(
            beside in 0u8..2,
            steps in prop::collection::vec(
                prop_oneof![
                    4 => (1u8..4).prop_map(|n| [3, 1, n, 0]),
                    6 => (0u8..3, any::<[u8; 3]>()).prop_map(|(op, [a, b, c])| [op, a, b, c]),
                    1 => any::<[u8; 4]>(),
                ],
                0..if cfg!(miri) { 20 } else { 60 },
            ),
        ) {
            // As above, Miri runs no second thread.
            let kind = if cfg!(miri) { 2 } else { 2 | beside };
            let script: Vec<u8> = [kind].into_iter().chain(steps.into_iter().flatten()).collect();
            let _ = rings(&script);
        }
    }
}
