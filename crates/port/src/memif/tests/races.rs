//! Queues of one port, each on its own thread, while the port's connection ends and begins again.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use linerate_skb::{DropReason, Local};
use linerate_sys::seqpacket::{self, Seqpacket};
use linerate_sys::unix::own_user;

use super::super::channel::Channel;
use super::super::closer::testing::{block, block_one};
use super::super::closer::{Closer, PENDING_OF_USER};
use super::super::config::Config;
use super::super::connector::Connector;
use super::super::endpoint::Endpoint;
use super::super::handshake::Ending;
use super::super::link::{Event, Link};
use super::super::listener::{CLOSING, Listener};
use super::super::message::Message;
use super::super::queue::MemifQueue;
use super::super::ring::ProtocolError;
use super::super::turn::{Protocol, Turn};
use super::hostile::settled;
use super::*;
use crate::host::RETRY;
use crate::host::testing::in_netns;
use crate::queue::Want;

const CONNECTIONS: u64 = 12;

fn queues(text: &str, pool: &Pool) -> (std::sync::Arc<Link>, Vec<MemifQueue>) {
    let config = Config::of(&crate::parse(text).unwrap()).unwrap();
    let rings = usize::from(config.rings);
    let link = Link::open(config, pool).unwrap();
    let queues = (0..rings).map(|i| MemifQueue::new(link.clone(), i, pool).unwrap()).collect();
    (link, queues)
}

/// Sends, receives and sleeps, as fast as it can.
fn run(mut queue: MemifQueue, pool: &Pool, stop: &AtomicBool) {
    let (mut mem, mut batch) = (pool.local_with(8), Batch::with_capacity(16));
    while !stop.load(Ordering::Relaxed) {
        queue.rx(&mut mem, &mut batch, 16);
        batch.consume(&mut mem);
        for _ in 0..4 {
            let Some(skb) = mem.alloc_copy(&[9; 200]) else { break };
            batch.push(skb).unwrap();
        }
        queue.xmit(&mut mem, &mut batch);
        batch.discard(DropReason::DEVICE_DOWN);
        if queue.arm(Want::Both) {
            std::thread::yield_now();
        }
    }
}

/// Other threads report violations by the peers of both sides at random moments, for any past or
/// present connection.
#[test]
fn a_connection_that_ends_at_any_moment_is_over_for_every_queue() {
    for sharing in ["yes", "no"] {
        let pool = Pool::builder().frames(1024).trust(Trust::Exported).build().unwrap();
        let name = name();
        let (server, far) = queues(&format!("memif:{name},role=server,rings=2"), &pool);
        let text = format!("memif:{name},size=64,rings=2,zerocopy={sharing}");
        let (client, near) = queues(&text, &pool);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let queues = near.into_iter().chain(far);
            let threads: Vec<_> =
                queues.map(|queue| scope.spawn(|| run(queue, &pool, &stop))).collect();
            let (start, ended) = (Instant::now(), |link: &Link| link.ended.load(Ordering::Relaxed));
            let (mut last, mut turns) = ([u32::MAX; 2], 0u32);
            while ended(&client) < CONNECTIONS && start.elapsed() < Duration::from_secs(60) {
                for (link, last) in [&client, &server].into_iter().zip(&mut last) {
                    // End every connection once, after different amounts of traffic.
                    let generation = link.generation();
                    turns = turns.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (0..turns >> 28).for_each(|_| std::thread::yield_now());
                    if *last != generation && turns >> 16 & 1 == 0 {
                        *last = generation;
                        link.disconnect(ProtocolError::Index, generation);
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
            // Join: the scope waits for the threads' closures, but not until their caches of frames
            // are empty.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert!(client.ended.load(Ordering::Relaxed) >= CONNECTIONS);
        drop((client, server));
        settled(&pool);
    }
}

/// Calls these queues until all have a peer.
fn until_all_up(queues: &mut [&mut MemifQueue], mem: &mut Local) {
    let (start, mut batch) = (Instant::now(), Batch::with_capacity(1));
    while queues.iter().any(|queue| queue.health() != Health::Up) {
        assert!(start.elapsed() < Duration::from_secs(10), "no connection");
        queues.iter_mut().for_each(|queue| _ = queue.rx(mem, &mut batch, 0));
    }
}

/// Waits until no ring has frames of the pool.
fn until_home(pool: &Pool) {
    let start = Instant::now();
    let is_lent = |(name, n): &(&str, u64)| *name == "device rings" && *n > 0;
    loop {
        let ledger = pool.ledger();
        if ledger.is_drained() && !ledger.holders().iter().any(is_lent) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{ledger}");
        std::thread::yield_now();
    }
}

/// Checks a control thread that cannot work while queues are closed. It has a namespace of its own,
/// so that it is not that of other tests.
#[test]
fn close_waits_for_a_late_control_thread_no_longer_than_its_caller_lets_it() {
    in_netns(|| {
        let pool = Pool::builder().frames(1024).trust(Trust::Exported).build().unwrap();
        let name = name();
        let (_server, mut far) = queues(&format!("memif:{name},role=server,rings=2"), &pool);
        let (client, mut near) = queues(&format!("memif:{name},size=64,rings=2"), &pool);
        let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(8));
        until_all_up(&mut near.iter_mut().chain(&mut far).collect::<Vec<_>>(), &mut mem);
        (0..2).for_each(|_| batch.push(mem.alloc_copy(&[1; 60]).unwrap()).unwrap());
        assert_eq!(far[0].xmit(&mut mem, &mut batch).packets, 2);
        let begun = Instant::now();
        client.locked(|| near.iter_mut().for_each(|queue| queue.close(begun)));
        // Without the limit each queue waits for a second.
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        let counters = near[0].counters();
        assert_eq!((counters.rx_missed, counters.driver.missed_unread), (2, 2));
        // The control thread ends the connection then, and has the frames returned.
        until_home(&pool);
    });
}

/// Checks the same with queues of one port, whose number must not multiply the least wait.
#[test]
fn queues_of_one_port_wait_for_a_late_control_thread_once() {
    const QUEUES: u32 = 16;
    in_netns(|| {
        let pool = Pool::builder().frames(1024).trust(Trust::Exported).build().unwrap();
        let name = name();
        let (_server, mut far) = queues(&format!("memif:{name},role=server,rings={QUEUES}"), &pool);
        let text = format!("memif:{name},size=8,rings={QUEUES}");
        let (client, mut near) = queues(&text, &pool);
        let all = &mut near.iter_mut().chain(&mut far).collect::<Vec<_>>();
        until_all_up(all, &mut pool.local());
        let begun = Instant::now();
        client.locked(|| near.iter_mut().for_each(|queue| queue.close(begun)));
        // A wait of 50 ms for each queue takes 800 ms.
        assert!(begun.elapsed() < Duration::from_millis(600), "{:?}", begun.elapsed());
        until_home(&pool);
    });
}

/// Checks a client that cannot connect, which leaves nothing to close at each attempt.
#[test]
fn attempts_to_connect_that_fail_leave_nothing_to_close() {
    let pool = Pool::builder().frames(256).trust(Trust::Exported).build().unwrap();
    let config = Config::of(&crate::parse(&format!("memif:{}", name())).unwrap()).unwrap();
    let (mut connector, closer) = (Connector::new(&config, &pool).unwrap(), Closer::alone());
    let mut waste = Vec::new();
    let event = connector.turn(&mut Turn { config: &config, waste: &mut waste, closer: &closer });
    assert!(matches!(event, Some(Event::Unreachable(_))) && waste.is_empty());
}

fn is_readable(fd: impl AsFd) -> bool {
    linerate_sys::wait::poll_readable(&[fd.as_fd()], Some(Duration::ZERO)).unwrap()
}

/// Returns the number of sockets of `n` clients without the secret that wait for closing threads:
/// none from Linux 6.16 on, where these sockets take no descriptors.
fn waiting(client: &Seqpacket, n: usize) -> usize {
    if client.refuses_descriptors() { 0 } else { n }
}

/// Checks sockets that the closing threads do not close, as if other clients of the user blocked
/// these threads.
#[test]
fn listener_is_not_woken_by_a_socket_that_waits_for_its_close() {
    let config = format!("memif:{},role=server", name());
    let config = Config::of(&crate::parse(&config).unwrap()).unwrap();
    let (mut listener, closer) = (Listener::new(&config).unwrap(), Closer::alone());
    // The third client takes the place of the first one.
    let clients = [(); 3].map(|()| Seqpacket::connect(&config.path).unwrap());
    let mut waste = Vec::new();
    let waiting = waiting(&clients[0], 3);
    let mut turn = Turn { config: &config, waste: &mut waste, closer: &closer };
    assert!(listener.turn(&mut turn).is_none());
    drop(clients);
    assert!(listener.turn(&mut turn).is_none() && turn.waste.len() == waiting);
    assert!(!is_readable(listener.watch()));
}

/// Checks a client whose user has used up its places after the client was accepted.
#[test]
fn message_of_a_client_is_not_received_while_many_descriptors_of_its_user_wait() {
    let config = format!("memif:{},role=server", name());
    let config = Config::of(&crate::parse(&config).unwrap()).unwrap();
    let (mut listener, mut closer) = (Listener::new(&config).unwrap(), Closer::alone());
    let client = Channel(Seqpacket::connect(&config.path).unwrap());
    let mut turn = |closer: &Closer| {
        listener.turn(&mut Turn { config: &config, waste: &mut Vec::new(), closer }).is_none()
    };
    assert!(turn(&closer));
    // As many as one message can have.
    let _blocked = block_one(&mut closer, own_user(), 253);
    client.send(&super::peer::init(), None).unwrap();
    assert!(turn(&closer));
    assert!(matches!(client.recv(&mut Vec::new()), Ok(Some(Message::Hello { .. }))));
    let mut told = client.recv(&mut Vec::new());
    if client.0.refuses_descriptors() {
        // The first message can bring none, and the next ones can.
        assert_eq!(told, Ok(Some(Message::Ack)));
        client.send(&Message::Ack, None).unwrap();
        assert!(turn(&closer));
        told = client.recv(&mut Vec::new());
    }
    assert_eq!(told, Ok(Some(Message::Disconnect(CLOSING.to_owned()))));
}

/// Checks that the socket of a refused client uses up no place of another client's objects.
#[test]
fn socket_that_takes_no_descriptors_is_closed_at_once() {
    let config = format!("memif:{},role=server", name());
    let config = Config::of(&crate::parse(&config).unwrap()).unwrap();
    let (mut listener, closer) = (Listener::new(&config).unwrap(), Closer::alone());
    let client = Channel(Seqpacket::connect(&config.path).unwrap());
    if !client.0.refuses_descriptors() {
        return eprintln!("skipped: no SO_PASSRIGHTS before Linux 6.16");
    }
    let mut waste = Vec::new();
    let mut turn = Turn { config: &config, waste: &mut waste, closer: &closer };
    assert!(listener.turn(&mut turn).is_none());
    client.send(&Message::Ack, None).unwrap();
    assert!(listener.turn(&mut turn).is_none() && waste.is_empty());
    // The greeting, and the reason.
    assert!((0..2).all(|_| matches!(client.recv(&mut Vec::new()), Ok(Some(_)))));
    assert!(client.recv(&mut Vec::new()).is_err(), "it is not closed");
}

/// Checks a client's socket that waits for a closing thread.
#[test]
fn connector_is_not_woken_by_a_socket_that_waits_for_its_close() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let config = format!("memif:{},zerocopy=no", name());
    let config = Config::of(&crate::parse(&config).unwrap()).unwrap();
    let server = seqpacket::Listener::bind(&config.path, 0o600).unwrap();
    let (mut connector, closer) = (Connector::new(&config, &pool).unwrap(), Closer::alone());
    let mut waste = Vec::new();
    let mut turn = Turn { config: &config, waste: &mut waste, closer: &closer };
    assert!(connector.turn(&mut turn).is_none());
    drop(server.accept().unwrap().expect("the client has connected"));
    let start = Instant::now();
    assert!(matches!(connector.turn(&mut turn), Some(Event::Ended(_))) && turn.waste.len() == 1);
    let is_woken = is_readable(connector.watch());
    // On a busy machine the time of the next attempt may have come.
    assert!(!is_woken || start.elapsed() >= Duration::from_millis(100));
}

/// Checks a client whose server's user has as many objects that wait as a user may have. Other
/// users have objects, too, so that two places are left.
#[test]
fn attempts_to_connect_to_a_refused_server_take_no_places_of_others() {
    const ATTEMPTS: usize = 3;
    let pool = Pool::builder().frames(256).build().unwrap();
    let config = format!("memif:{},zerocopy=no", name());
    let config = Config::of(&crate::parse(&config).unwrap()).unwrap();
    let _server = seqpacket::Listener::bind(&config.path, 0o600).unwrap();
    let (mut connector, mut closer) = (Connector::new(&config, &pool).unwrap(), Closer::alone());
    let mut blocked = block(&mut closer, own_user(), PENDING_OF_USER);
    for other in 1.. {
        // Before Linux 6.16 the socket of the first attempt takes one of the two places.
        let n = PENDING_OF_USER.min(closer.most - 2 - blocked.len());
        if n == 0 {
            break;
        }
        blocked.extend(block(&mut closer, own_user() + other, n));
    }
    let (start, mut waste, mut attempts) = (Instant::now(), Vec::new(), 0);
    while attempts < ATTEMPTS {
        assert!(start.elapsed() < Duration::from_secs(10), "{attempts} attempts");
        let event =
            connector.turn(&mut Turn { config: &config, waste: &mut waste, closer: &closer });
        assert!(matches!(event, None | Some(Event::Ended(_))));
        attempts += usize::from(event.is_some());
        waste.drain(..).for_each(|waste| closer.dispose(waste));
        std::thread::sleep(Duration::from_millis(1));
    }
    // A closing thread may not have closed the last socket yet.
    while closer.is_full(None, &[]) {
        assert!(start.elapsed() < Duration::from_secs(10), "no place is left");
        std::thread::yield_now();
    }
    drop(blocked);
}

/// Checks that the objects of a closed port's clients wait for the threads that their user may
/// have.
#[test]
fn client_of_a_closed_port_knows_it_before_its_socket_is_closed() {
    let config = format!("memif:{},role=server", name());
    let config = Config::of(&crate::parse(&config).unwrap()).unwrap();
    let (mut listener, closer) = (Listener::new(&config).unwrap(), Closer::alone());
    let clients = [(); 2].map(|()| Channel(Seqpacket::connect(&config.path).unwrap()));
    let mut waste = Vec::new();
    let mut turn = Turn { config: &config, waste: &mut waste, closer: &closer };
    assert!(listener.turn(&mut turn).is_none());
    listener.close(&mut turn);
    assert_eq!(waste.len(), waiting(&clients[0].0, 2));
    for client in clients {
        assert!(matches!(client.recv(&mut Vec::new()), Ok(Some(Message::Hello { .. }))));
        assert!(matches!(client.recv(&mut Vec::new()), Err(Ending::ByPeer(_))));
    }
}

/// Checks a reader, whose descriptor has a doorbell for each ring.
#[test]
fn all_doorbells_of_an_endpoint_are_read_at_once() {
    const BELLS: usize = 64;
    let config = Config::of_reader(&crate::parse(&format!("memif:{}", name())).unwrap()).unwrap();
    let mut end = Endpoint::new(Link::listen(config).unwrap(), 0..BELLS).unwrap();
    let bells = [(); BELLS].map(|()| EventFd::new().unwrap());
    bells.iter().for_each(|bell| end.watch(bell).unwrap());
    end.sleep(None);
    bells.iter().for_each(EventFd::signal);
    assert!(is_readable(&end));
    end.look();
    assert!(!is_readable(&end));
}

/// Checks a doorbell that the kernel refuses to watch, here because it is watched already.
#[test]
fn endpoint_wakes_by_itself_while_its_doorbell_is_not_watched() {
    let config = Config::of_reader(&crate::parse(&format!("memif:{}", name())).unwrap()).unwrap();
    let mut end = Endpoint::new(Link::listen(config).unwrap(), 0..1).unwrap();
    let bell = EventFd::new().unwrap();
    let attach = |end: &mut Endpoint| {
        while end.is_stale() {
            end.attach(|_| true, "no rings", "none");
        }
        end.set_belled(true, None);
    };
    attach(&mut end);
    end.watch(&bell).unwrap();
    assert!(end.watch(&bell).is_err());
    let start = Instant::now();
    end.sleep(None);
    let long = Some(Duration::from_secs(10));
    assert!(linerate_sys::wait::poll_readable(&[end.as_fd()], long).unwrap(), "it sleeps on");
    assert!(start.elapsed() >= RETRY, "it does not sleep");
    // While no packets are wanted, and on the next connection, only events wake it.
    end.set_belled(false, None);
    end.sleep(None);
    std::thread::sleep(2 * RETRY);
    assert!(!is_readable(&end));
    end.link.publish(Some(Event::Ended("told".into())), &mut Vec::new());
    attach(&mut end);
    end.sleep(None);
    std::thread::sleep(2 * RETRY);
    assert!(!is_readable(&end));
}

/// Checks a poller that is told of changes only: the bell of this one has rung, and does not wake
/// it again.
#[test]
fn queue_that_could_not_follow_its_connection_does_not_sleep() {
    let pool = Pool::builder().frames(256).trust(Trust::Exported).build().unwrap();
    let (link, mut queues) = queues(&format!("memif:{},rings=2", name()), &pool);
    let ended = || link.publish(Some(Event::Ended("told".into())), &mut Vec::new());
    ended();
    let armed = link.locked(|| queues[0].arm(Want::Frames));
    assert!(!armed, "it sleeps, and does not have the state of its connection");
    assert!(!queues[0].arm(Want::Frames), "the change is reported");
}

/// Checks queues of one connection that are closed one after the other, or at once by several
/// workers.
#[test]
fn queues_that_end_one_connection_wait_for_it_until_one_time() {
    let config = Config::of_reader(&crate::parse(&format!("memif:{}", name())).unwrap()).unwrap();
    let link = Link::listen(config).unwrap();
    let (now, later) = (Instant::now(), Instant::now() + Duration::from_millis(20));
    let until = link.least_until(1, now);
    assert!(until > now && link.least_until(1, later) == until);
    assert!(link.least_until(2, later) > until, "another connection");
}
