//! Callers that are no ports: programs that say nothing, or anything; and many of them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use linerate_skb::DropReason;
use rustix::net::sockopt;

use super::super::hello::{HELLO_BYTES, Hello, READY, Refusal};
use super::super::meeting::{Meeting, Said};
use super::*;
use crate::{Health, HealthKind};

fn call(at: &str) -> TcpStream {
    let stream = TcpStream::connect((at, 7471)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Reads until the port hangs up.
fn is_hung_up_on(mut stream: TcpStream) -> bool {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Reads until the port hangs up; returns how many bytes came, and whether that took less than the
/// time of a meeting.
fn heard(mut stream: TcpStream) -> (usize, bool) {
    let (mut bytes, start) = (Vec::new(), Instant::now());
    // A connection that is reset has ended as well.
    let _ = stream.read_to_end(&mut bytes);
    (bytes.len(), start.elapsed() < Duration::from_secs(1))
}

/// Returns the hello of a caller that makes no connection.
fn hello(pair: u32) -> Hello {
    let (mtu_bytes, longest_bytes, queues) = (1024, 1024, 1);
    Hello { pair, mtu_bytes, longest_bytes, queues, gid: [9; 16], ..Hello::default() }
}

#[test]
fn connection_ends_after_ten_seconds_also_while_a_byte_is_not_acknowledged() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let meeting = Meeting::<SoftFabric>::called(1, stream).unwrap();
    let stream = &meeting.stream;
    assert_eq!(sockopt::tcp_user_timeout(stream), Ok(10_000));
    let questions = (sockopt::tcp_keepidle(stream), sockopt::tcp_keepintvl(stream));
    assert_eq!(questions, (Ok(Duration::from_secs(5)), Ok(Duration::from_secs(1))));
    let is_asked = (sockopt::socket_keepalive(stream), sockopt::tcp_keepcnt(stream));
    assert_eq!(is_asked, (Ok(true), Ok(5)));
    assert!(stream.nodelay().unwrap(), "an answer is not held back");
}

#[test]
fn refusal_is_a_byte_alone_in_place_of_a_hello() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for (said, why) in
        [(&b"F"[..], "as many peers as"), (b"FTP", "it hung up"), (b"", "it hung up")]
    {
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = listener.accept().unwrap().0;
        let mut meeting = Meeting::<SoftFabric>::called(1, stream).unwrap();
        caller.write_all(said).unwrap();
        drop(caller);
        let start = Instant::now();
        let ended = loop {
            match meeting.read() {
                Said::Nothing => assert!(start.elapsed() < Duration::from_secs(10)),
                Said::Ended(why) => break why,
                Said::Hello(_) | Said::Ready => panic!("it has said no hello"),
            }
        };
        assert!(ended.contains(why), "{said:?}: {ended}");
    }
}

#[test]
fn callers_that_are_no_ports_are_hung_up_on_and_a_port_joins_beside_them() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let at = address();
    let mut far = open(&format!("verbs:soft,listen={at},datagrams"), &pool);
    // More than may wait at once.
    let mut idle: Vec<TcpStream> = (0..40).map(|_| call(&at)).collect();
    assert_eq!(heard(idle.remove(0)), (0, true), "the oldest goes for another");
    let hello = hello(5);
    let mut strange = hello.bytes();
    strange[30] = 255;
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".repeat(8).as_slice(), &strange, &[0; HELLO_BYTES]] {
        let mut stream = call(&at);
        stream.write_all(bytes).unwrap();
        assert!(is_hung_up_on(stream));
    }
    // One that says it is ready twice, and one that says something else.
    for bytes in [&b"!!"[..], b"?"] {
        let mut stream = call(&at);
        stream.write_all(&hello.bytes()).unwrap();
        stream.write_all(bytes).unwrap();
        assert!(is_hung_up_on(stream));
    }
    let mut near = open(&format!("verbs:soft,connect={at},datagrams"), &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    assert!(idle.into_iter().all(is_hung_up_on), "after the time of a meeting");
}

#[test]
fn a_port_has_as_many_peers_as_it_may_have() {
    let pool = Pool::builder().frames(8192).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let mut far = open(&format!("verbs:soft,listen={at},peers=1"), &pool);
    let text = format!("verbs:soft,connect={at}");
    let mut near = open(&text, &pool);
    meet(&pool, &mut [&mut near, &mut far]);
    let mut other = open(&text, &pool);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        other.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert_ne!(other.queues[0].health(), Health::Up);
    }
    drop(near);
    // The next call is answered.
    let start = Instant::now();
    while other.queues[0].health() != Health::Up {
        other.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        far.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn two_ports_cannot_listen_at_one_address() {
    let at = address();
    let pool = Pool::builder().frames(4096).build().unwrap();
    let _far = open(&format!("verbs:soft,listen={at}"), &pool);
    let spec = Spec::parse(&format!("verbs:soft,listen={at}"), &["verbs"]).unwrap();
    let config = Config::of(&spec).unwrap();
    let (fabrics, _nics): (Vec<_>, Vec<_>) = SoftFabric::open(&config, &pool).into_iter().unzip();
    let e = Control::start::<_, ()>(&config, fabrics, 1000).map(drop).unwrap_err();
    assert_eq!(e.code, linerate_skb::Code::Busy);
    assert!(e.fix.contains("ss -tlnp"), "{e}");
    let spec = Spec::parse("verbs:soft,listen=192.0.2.1", &["verbs"]).unwrap();
    let config = Config::of(&spec).unwrap();
    let (fabrics, _nics): (Vec<_>, Vec<_>) = SoftFabric::open(&config, &pool).into_iter().unzip();
    let e = Control::start::<_, ()>(&config, fabrics, 1000).map(drop).unwrap_err();
    assert_eq!(
        (e.code, e.fix.contains("ip -br address")),
        (linerate_skb::Code::System, true),
        "{e}"
    );
}

#[test]
fn a_caller_says_as_many_hellos_as_there_are_queues_and_from_one_address() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let at = address();
    let _far = open(&format!("verbs:soft,listen={at},datagrams,queues=2"), &pool);
    let said = |hellos: &[Hello]| {
        let mut stream = call(&at);
        let bytes: Vec<u8> = hellos.iter().flat_map(Hello::bytes).collect();
        stream.write_all(&bytes).unwrap();
        stream
    };
    let [first, second] = [5, 6].map(|pair| Hello { queues: 2, ..hello(pair) });
    assert_eq!(heard(said(&[hello(5)])), (1, true), "a refusal instead of hellos");
    assert_eq!(heard(said(&[first, Hello { gid: [8; 16], ..second }])), (2 * HELLO_BYTES, true));
    let mode = Hello { connection: Some(7), ..second };
    assert_eq!(heard(said(&[first, mode])), (2 * HELLO_BYTES + 1, true), "and a refusal");
    let queues = Hello { queues: 1, ..second };
    assert_eq!(heard(said(&[first, queues])), (2 * HELLO_BYTES + 1, true), "and a refusal");
    assert_eq!(heard(said(&[first])), (2 * HELLO_BYTES, false), "nothing before the second");
    let mut stream = said(&[first, second]);
    let mut bytes = [0; 2 * HELLO_BYTES + 1];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[2 * HELLO_BYTES], READY);
    // A third is none of the bytes that a port expects now.
    stream.write_all(&second.bytes()).unwrap();
    assert_eq!(heard(stream), (0, true));
}

#[test]
fn a_queue_that_closes_during_a_meeting_ends_it() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let (at, mut mem) = (address(), pool.local());
    let mut far = open(&format!("verbs:soft,listen={at},datagrams,queues=2"), &pool);
    let mut stream = call(&at);
    let hellos = [5, 6].map(|pair| Hello { queues: 2, ..hello(pair) }.bytes());
    stream.write_all(&hellos.concat()).unwrap();
    let mut bytes = [0; 2 * HELLO_BYTES + 1];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[2 * HELLO_BYTES], READY);
    drop(far.queues.remove(1));
    stream.write_all(&[READY]).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [Refusal::Closed as u8]);
    assert!(is_hung_up_on(stream));
    far.queues[0].rx(&mut mem, &mut Batch::with_capacity(1), 1);
    assert_eq!(far.queues[0].counters().driver.resets, 0, "no peer has joined, and none has gone");
    // The next caller is refused at its first hello.
    let mut stream = call(&at);
    stream.write_all(&hellos[0]).unwrap();
    assert_eq!(heard(stream), (1, true));
}

#[test]
fn a_caller_that_is_a_peer_already_is_told_so() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let at = address();
    let _far = open(&format!("verbs:soft,listen={at},datagrams"), &pool);
    let mut callers = [10, 10, 11].map(|pair| (call(&at), hello(pair)));
    let answers = callers.each_mut().map(|(caller, hello)| {
        caller.write_all(&hello.bytes()).unwrap();
        answer(caller)
    });
    assert_eq!(answers, [READY, Refusal::Twice as u8, READY]);
}

#[test]
fn completions_without_a_request_are_counted_and_messages_of_wrong_lengths_are_malformed() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",datagrams,rx=64");
    let (port, longest) = (soft::last(), soft::MTU as u32 + 40);
    let room = pool.data_room() as u32 + 40;
    soft::invent(port);
    for bytes in [0, 53, room + 1, u32::MAX, 54, longest] {
        soft::fill(port, bytes);
    }
    let mut batch = Batch::with_capacity(64);
    near.queues[0].rx(&mut mem, &mut batch, 64);
    let lengths: Vec<usize> = batch.iter().map(linerate_skb::Skb::len).collect();
    assert_eq!(lengths, [14, soft::MTU]);
    batch.consume(&mut mem);
    let counters = near.queues[0].counters();
    assert_eq!((counters.driver.bad_descs, counters.rx_missed), (1, 0));
    let ledger = pool.ledger();
    assert_eq!((ledger.received, ledger.dropped(DropReason::MALFORMED)), (4, 4), "{ledger}");
    drop((near, far, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.balanced(), "{ledger}");
}

#[test]
fn messages_that_are_longer_than_the_port_s_longest_packet_are_dropped_as_too_long() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",packet_mtu=256,group=239.1.2.77,rx=64");
    let longest = near.obtained.packet_max_bytes;
    assert_eq!(longest, 274);
    for bytes in [1000, longest + 1, longest, pool.data_room()] {
        soft::fill(soft::last(), 40 + bytes as u32);
    }
    let mut batch = Batch::with_capacity(64);
    near.queues[0].rx(&mut mem, &mut batch, 64);
    let lengths: Vec<usize> = batch.iter().map(linerate_skb::Skb::len).collect();
    assert_eq!(lengths, [longest]);
    batch.consume(&mut mem);
    let ledger = pool.ledger();
    assert_eq!((ledger.received, ledger.dropped(DropReason::TOO_LONG)), (3, 3), "{ledger}");
    drop((near, far, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.balanced(), "{ledger}");
}

#[test]
fn datagrams_that_are_too_long_are_missed_and_end_nothing_unless_the_pair_fails_with_them() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let mut mem = pool.local();
    let (mut near, far) = joined(&pool, ",datagrams,rx=64");
    let (port, mut batch) = (soft::last(), Batch::with_capacity(64));
    for _ in 0..100 {
        soft::overfill(port);
        near.queues[0].rx(&mut mem, &mut batch, 64);
    }
    soft::fill(port, 54);
    near.queues[0].rx(&mut mem, &mut batch, 64);
    let (missed, health) = (near.queues[0].counters().rx_missed, near.queues[0].health_kind());
    assert_eq!((batch.len(), missed, health), (1, 100, HealthKind::Up));
    soft::overfill(port);
    soft::fail_datagrams(port);
    near.queues[0].rx(&mut mem, &mut batch, 64);
    let Health::Failed(error) = near.queues[0].health() else { panic!("the pair has failed") };
    assert!(error.why.contains("status 1"), "the cause and not its effect: {error}");
    batch.consume(&mut mem);
    drop((near, far, mem));
    let ledger = pool.ledger();
    assert!(ledger.is_drained() && ledger.balanced(), "{ledger}");
}

/// Reads the port's hello, and the byte behind it.
fn answer(stream: &mut TcpStream) -> u8 {
    let mut bytes = [0; HELLO_BYTES + 1];
    stream.read_exact(&mut bytes).unwrap();
    bytes[HELLO_BYTES]
}

#[test]
fn callers_at_once_get_no_more_places_than_there_are_and_hear_why() {
    let pool = Pool::builder().frames(4096).build().unwrap();
    let at = address();
    let _far = open(&format!("verbs:soft,listen={at},datagrams,peers=2"), &pool);
    let mut callers: Vec<TcpStream> = (0..4).map(|_| call(&at)).collect();
    for (n, caller) in callers.iter_mut().enumerate() {
        // The second says the same as the first.
        caller.write_all(&hello(10 + (n as u32).saturating_sub(1)).bytes()).unwrap();
    }
    let mut answers: Vec<_> = callers.iter_mut().map(answer).collect();
    answers.sort_unstable();
    let refused = [Refusal::Full, Refusal::Twice].map(|refusal| refusal as u8);
    // Two have places; of the others one is the same again, and one is too many, or both are too
    // many.
    let places = answers.iter().filter(|answer| **answer == READY).count();
    assert_eq!(places, 2, "{answers:?}");
    assert!(answers.iter().filter(|answer| refused.contains(answer)).count() == 2, "{answers:?}");
}
