//! Tests of both sides, with each other and with messages that they refuse.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};

use super::super::config::Config;
use super::super::message::{Message, RingPlace, VERSION};
use super::super::ring;
use super::super::rings::Rings;
use super::server::{DESCRIPTORS, doorbell};
use super::*;
use crate::spec::Spec;

fn config(text: &str) -> Config {
    Config::of(&Spec::parse(text, &["memif"]).unwrap()).unwrap()
}

fn bell() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

#[test]
fn a_doorbell_is_not_blamed_for_a_proc_that_is_hidden() {
    assert!(doorbell(&mut vec![bell()], DESCRIPTORS).is_ok());
    for mut none in [vec![], vec![memory(4096)]] {
        let refused = Ending::Refused("a doorbell that is not an eventfd");
        assert_eq!(doorbell(&mut none, DESCRIPTORS).err(), Some(refused));
    }
    let Some(Ending::Unfit(why)) = doorbell(&mut vec![bell()], "/nonexistent").err() else {
        panic!("of the peer's or none")
    };
    assert!(why.contains("/nonexistent: No such file") && why.ends_with("mount /proc"), "{why}");
}

#[test]
fn file_that_is_no_doorbell_is_left_to_the_closing_threads() {
    let mut fds = vec![memory(4096)];
    let reply = admitted().on(Message::AddRing(place(0, true)), &mut fds, &config(SERVER));
    assert!(matches!(reply, Err(Ending::Refused("a doorbell that is not an eventfd"))));
    assert_eq!(fds.len(), 1);
}

#[test]
fn regions_of_a_handshake_that_fails_at_its_end_stay_with_the_guest() {
    let mut server = admitted();
    // A place without a cookie has no ring.
    let none = RingPlace { offset: 1024, ..place(0, true) };
    let added = reply(&mut server, SERVER, Message::AddRing(none), vec![bell()]);
    assert!(matches!(added, Ok(Reply::Ack)));
    let connected = reply(&mut server, SERVER, Message::Connect, vec![]);
    assert!(matches!(connected, Err(Ending::Refused("a ring that does not exist"))));
    assert_eq!(server.mapped().len(), 1);
}

#[test]
fn ring_in_memory_that_cannot_be_written_is_refused_for_that() {
    let mut server = admitted();
    let file = memory(4096);
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let region = Message::AddRegion { index: 1, bytes: 4096 };
    assert!(matches!(reply(&mut server, SERVER, region, vec![read_only.into()]), Ok(Reply::Ack)));
    let ring = Message::AddRing(RingPlace { region: 1, ..place(0, true) });
    assert!(matches!(reply(&mut server, SERVER, ring, vec![bell()]), Ok(Reply::Ack)));
    let connected = reply(&mut server, SERVER, Message::Connect, vec![]);
    let why = "a ring in memory that is read-only";
    assert_eq!(connected.err(), Some(Ending::Refused(why)));
}

/// Returns a memory file that contains rings of 16 descriptors, one page apart.
fn memory(bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    for page in 0..bytes / 4096 {
        rustix::io::pwrite(&fd, &ring::COOKIE.to_ne_bytes(), page * 4096).unwrap();
    }
    fd
}

fn place(index: u16, from_client: bool) -> RingPlace {
    RingPlace { from_client, index, power: 4, ..RingPlace::default() }
}

/// Returns the reaction of a server with the options `text` to `message` with `fds`.
fn reply(
    server: &mut Server,
    text: &str,
    message: Message,
    mut fds: Vec<OwnedFd>,
) -> Result<Reply, Ending> {
    server.on(message, &mut fds, &config(text))
}

/// Runs the handshake of both sides; returns the limits for the client's rings, and the
/// server's rings.
fn meet(client: &str, server_text: &str) -> Result<(Limits, Vec<Option<Rings>>), Ending> {
    let (mut client, mut server) =
        (Client::new(&config(client)), Server::new(&config(server_text)));
    let (mut limits, mut to_client) = (None, server.hello());
    loop {
        let step = match client.on(&to_client, &[])? {
            Step::Make(made) => {
                limits = Some(made);
                let region = Message::AddRegion { index: 0, bytes: 4096 };
                let mut all = vec![(region, memory(4096))];
                for (n, from) in [(made.from_client, true), (made.to_client, false)] {
                    all.extend((0..n).map(|i| (Message::AddRing(place(i, from)), bell())));
                }
                client.offer(all)?
            }
            step => step,
        };
        let Step::Send(message, fd) = step else { panic!("before the server has mapped anything") };
        match reply(&mut server, server_text, message, fd.into_iter().collect())? {
            Reply::Ack => to_client = Message::Ack,
            Reply::Connected(rings) => {
                assert!(matches!(client.on(&Message::Connected, &[]), Ok(Step::Connected)));
                return Ok((limits.unwrap(), rings));
            }
        }
    }
}

#[test]
fn two_sides_agree_on_the_lesser_of_what_they_can() {
    let (limits, rings) = meet("memif:x,rings=3", "memif:x,role=server,rings=2").unwrap();
    assert_eq!((limits.from_client, limits.to_client), (2, 2));
    assert!(rings.iter().flatten().all(|rings| rings.tx.is_some() && rings.rx.is_some()));
    let (limits, rings) =
        meet("memif:x,rings=1,secret=s", "memif:x,role=server,rings=4,secret=s").unwrap();
    assert_eq!((limits.from_client, rings.iter().flatten().count()), (1, 1));
}

#[test]
fn server_refuses_wrong_id_or_secret_with_a_reason() {
    let refused = |client, server| match meet(client, server) {
        Err(Ending::Refused(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("taken"),
    };
    assert_eq!(refused("memif:x,id=1", "memif:x,role=server"), "id not found");
    let keen = "memif:x,role=server,secret=s";
    assert_eq!(refused("memif:x", keen), "incorrect secret");
    assert_eq!(refused("memif:x,secret=t", keen), "incorrect secret");
    assert!(meet("memif:x,secret=s", "memif:x,role=server").is_ok(), "who asks for none");
}

#[test]
fn zero_ends_a_secret_whatever_follows_it() {
    let text = "memif:x,role=server,secret=abc";
    let admitted = |secret: &[u8]| {
        let mut bytes = [0; 24];
        bytes[..secret.len()].copy_from_slice(secret);
        let init = Message::Init { version: VERSION, id: 0, mode: 0, secret: bytes };
        reply(&mut Server::new(&config(text)), text, init, vec![]).is_ok()
    };
    assert!(admitted(b"abc") && admitted(b"abc\0memif0/0") && admitted(b"abc\0\0\0x"));
    let others: [&[u8]; 6] = [b"", b"ab", b"ab\0c", b"abcd", b"\0abc", &[b'a'; 24]];
    assert!(others.into_iter().all(|secret| !admitted(secret)));
}

const SERVER: &str = "memif:x,role=server,rings=2";

/// Returns a server that has admitted a client with a region of 4096 bytes.
fn admitted() -> Server {
    let mut server = Server::new(&config(SERVER));
    let init = Message::Init { version: VERSION, id: 0, mode: 0, secret: [0; 24] };
    assert!(matches!(reply(&mut server, SERVER, init, vec![]), Ok(Reply::Ack)));
    let region = Message::AddRegion { index: 0, bytes: 4096 };
    assert!(matches!(reply(&mut server, SERVER, region, vec![memory(4096)]), Ok(Reply::Ack)));
    server
}

/// Returns the reason why a server with the options `text` refuses a region of `bytes` after
/// one of a page.
fn refused_region(text: &str, bytes: u64) -> Option<Ending> {
    let mut server = admitted();
    let region = Message::AddRegion { index: 1, bytes };
    reply(&mut server, text, region, vec![memory(4096)]).err()
}

#[test]
fn memory_of_a_client_is_bounded_before_it_is_mapped() {
    let Some(Ending::Refused(why)) = refused_region(SERVER, (4 << 30) + 1) else { panic!() };
    assert!(why.contains("4 GiB"));
    // The region is longer than the file, so it is refused for its size and not for a property
    // of the file.
    let Some(Ending::Unfit(why)) = refused_region(SERVER, 256 << 20) else { panic!() };
    assert_eq!(why, "regions of 257 MiB, 256 MiB allowed; say memory=257 to the server");
    let Some(Ending::Unfit(why)) = refused_region(SERVER, 1 << 20) else { panic!() };
    assert_eq!(why, "region 1: its file has 4096 bytes");
    assert_eq!(refused_region(SERVER, 4096), None);
}

#[test]
fn what_a_client_may_not_say_ends_the_connection() {
    let good = place(0, true);
    let ring = |place| (Message::AddRing(place), 1);
    let init = |version, mode| (Message::Init { version, id: 0, mode, secret: [0; 24] }, 0);
    for (message, fds) in [
        init(VERSION, 0),
        (Message::AddRegion { index: 0, bytes: 4096 }, 1),
        (Message::AddRegion { index: 2, bytes: 4096 }, 1),
        (Message::AddRegion { index: 1, bytes: 4096 }, 0),
        (Message::AddRegion { index: 1, bytes: 4096 }, 2),
        ring(RingPlace { index: 1, ..good }),
        ring(RingPlace { region: 1, ..good }),
        ring(RingPlace { power: 0, ..good }),
        ring(RingPlace { power: 15, ..good }),
        ring(RingPlace { power: 255, ..good }),
        ring(RingPlace { power: 8, ..good }),
        ring(RingPlace { private_bytes: 4, ..good }),
        ring(RingPlace { offset: 8, ..good }),
        ring(RingPlace { offset: 4096, ..good }),
        ring(RingPlace { offset: 0xffff_fff0, ..good }),
        (Message::AddRing(good), 0),
        (Message::Connect, 0),
        (Message::Connect, 1),
        (Message::Connected, 0),
        (Message::Ack, 0),
        (Server::new(&config("memif:x,role=server")).hello(), 0),
    ] {
        let is_region = matches!(message, Message::AddRegion { .. });
        let fds = (0..fds).map(|_| if is_region { memory(4096) } else { bell() }).collect();
        let said = format!("{message:?}");
        let reply = reply(&mut admitted(), SERVER, message, fds);
        assert!(matches!(reply, Err(Ending::Refused(_))), "{said}");
    }
    for (message, why) in
        [(init(0x0100, 0).0, "incompatible version"), (init(VERSION, 1).0, "only Ethernet mode")]
    {
        let mut server = Server::new(&config(SERVER));
        let refused = reply(&mut server, SERVER, message, vec![]).err();
        assert_eq!(refused, Some(Ending::Refused(why)));
    }
    let mut stranger = Server::new(&config(SERVER));
    let region = Message::AddRegion { index: 0, bytes: 4096 };
    assert!(reply(&mut stranger, SERVER, region, vec![memory(4096)]).is_err());
    let bye = reply(&mut admitted(), SERVER, Message::Disconnect("bye".into()), vec![]).err();
    assert_eq!(bye, Some(Ending::ByPeer("bye".into())));
}

#[test]
fn what_a_server_may_not_say_ends_the_connection() {
    let hello = Server::new(&config("memif:x,role=server")).hello();
    for message in [Message::Ack, Message::Connected, Message::Connect] {
        assert!(Client::new(&config("memif:x")).on(&message, &[]).is_err());
    }
    let mut client = Client::new(&config("memif:x"));
    assert!(matches!(client.on(&hello, &[]), Ok(Step::Send(Message::Init { .. }, None))));
    assert!(client.on(&hello, &[]).is_err());
    let mut client = Client::new(&config("memif:x"));
    assert!(client.on(&hello, &[bell()]).is_err());
    let old = Message::Hello {
        versions: (0x0100, 0x0100),
        region_max: 0,
        to_client_max: 0,
        from_client_max: 0,
        ring_power_max: 0,
    };
    assert_eq!(client.on(&old, &[]).unwrap_err(), Ending::Refused("incompatible version"));
}
