//! Queues that another has: refused or lost with his socket or program named, silent meanwhile, and
//! had again when he leaves.

use std::os::fd::AsRawFd;
use std::time::Duration;

use linerate_skb::{Batch, Code, DropReason, Offload, Pool};
use linerate_sys::mem::{Huge, Region};
use linerate_sys::netif::Interface;
use linerate_sys::xdp::{Binding, Ring, XdpSocket};

use super::super::queue::tests::open;
use super::{frames, pass, pool, settle, wait_until_up};
use crate::host::testing::{
    assert_settled, assert_silent, eventually, in_netns_with_xdp, ip, queue, queue_in, send,
    stamped, veth,
};
use crate::{Health, Port, Queue};

/// Another program's socket on queue 0 of an interface, that no XDP program gives away.
struct Other {
    _socket: XdpSocket,
    _memory: Region,
}

impl Other {
    /// Takes the queue as soon as it is free.
    fn take(interface: &str) -> Other {
        let mut other = None;
        eventually(|| {
            other = Other::try_take(interface).ok();
            other.is_some()
        });
        other.unwrap()
    }

    fn try_take(interface: &str) -> rustix::io::Result<Other> {
        let interface = Interface::open(interface).unwrap().index();
        let socket = XdpSocket::new().unwrap();
        let memory = Region::new("linerate test", 64 * 2048, Huge::Never).unwrap();
        // SAFETY: the socket's rings are never mapped, so that no ring ever names a frame.
        unsafe { socket.register(&memory, 2048, 0) }.unwrap();
        for ring in [Ring::Fill, Ring::Completion, Ring::Rx, Ring::Tx] {
            socket.make(ring, 64).unwrap();
        }
        let binding = Binding { interface, queue: 0, zero_copy: false, several: false };
        socket.bind(&binding, None)?;
        Ok(Other { _socket: socket, _memory: memory })
    }
}

fn assert_taken_by_another(health: Health) {
    let Health::Down(e) = health else { panic!("{health:?}") };
    assert_eq!(e.code, Code::Busy);
    assert!(e.why.contains("another AF_XDP socket has this queue"), "{e}");
    assert!(e.fix.contains("ss -a --xdp -p"), "{e}");
}

/// Returns the number of frames of `pool` that rings of a device have.
fn lent(pool: &Pool) -> u64 {
    let ledger = pool.ledger();
    ledger.holders().iter().filter(|(name, _)| *name == "device rings").map(|(_, n)| *n).sum()
}

#[test]
fn a_queue_taken_by_another_socket_is_down_and_idle_until_it_is_free() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(8192);
        let (mut ops, mut packet) = (open("v0", &pool), queue("packet:v1"));
        assert!(lent(&pool) > 0);
        ops.lose_socket();
        let other = Other::take("v0");
        let mut xdp = Queue::new(Box::new(ops), pool.local());
        let fd = xdp.as_raw_fd();
        // The port tries again a hundred times a second, not more often.
        assert_silent(&mut xdp, 150);
        assert_taken_by_another(xdp.health());
        assert_eq!((lent(&pool), xdp.driver_counts().resets), (0, 1));
        assert_settled(&pool);

        send(&mut packet, &frames(10, 60), Offload::NONE);
        let mut batch = Batch::with_capacity(4);
        batch.push(xdp.local().alloc_copy(&stamped(0, 60)).unwrap()).unwrap();
        assert_eq!((xdp.xmit(&mut batch), batch.len(), xdp.rx(&mut batch)), (0, 0, 0));
        assert_eq!(pool.ledger().dropped(DropReason::DEVICE_DOWN), 1);
        assert_taken_by_another(xdp.health());

        drop(other);
        wait_until_up(&mut xdp);
        assert_eq!(xdp.as_raw_fd(), fd, "the descriptor is the same");
        assert!(lent(&pool) > 0);
        pass(&mut packet, &mut xdp, &frames(100, 60));
        pass(&mut xdp, &mut packet, &frames(100, 60));
        settle(&mut xdp);
        drop(xdp);
        assert_settled(&pool);
    });
}

#[test]
fn a_queue_that_is_dropped_while_another_has_it_gives_every_frame_back() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(8192);
        let mut ops = open("v0", &pool);
        ops.lose_socket();
        let _other = Other::take("v0");
        let mut xdp = Queue::new(Box::new(ops), pool.local());
        xdp.wait(Some(Duration::from_millis(20))).unwrap();
        xdp.rx(&mut Batch::with_capacity(4));
        drop(xdp);
        assert_eq!(lent(&pool), 0);
        assert_settled(&pool);
    });
}

#[test]
fn a_second_port_on_an_interface_is_refused_and_the_first_goes_on() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(16384);
        let mut first = queue_in("xdp:v0", &pool);
        let mut packet = queue("packet:v1");
        for text in ["xdp:v0", "xdp:v0,mode=generic", "xdp:v0,udp=7777"] {
            let e = Port::open_with(text, &pool).unwrap_err();
            assert_eq!(e.code, Code::Busy, "{text}: {e}");
            assert!(e.why.contains("\"linerate\" (id "), "{text}: {e}");
            assert!(e.fix.contains("close that port, or end its process"), "{text}: {e}");
            assert!(!e.fix.contains("xdp off"), "the kernel refuses it for a link: {e}");
            pass(&mut packet, &mut first, &frames(100, 60));
            pass(&mut first, &mut packet, &frames(100, 60));
        }
        settle(&mut first);
        drop(first);
        let mut second = queue_in("xdp:v0", &pool);
        pass(&mut packet, &mut second, &frames(100, 60));
        settle(&mut second);
        drop(second);
        assert_settled(&pool);
    });
}

#[test]
fn a_queue_that_has_another_socket_is_refused_until_he_leaves() {
    in_netns_with_xdp(|| {
        veth(1500);
        let pool = pool(8192);
        let other = Other::take("v0");
        // The interface has no XDP program, only another program's socket.
        let e = Port::open_with("xdp:v0", &pool).unwrap_err();
        assert_taken_by_another(Health::Down(e));
        // A child of another test may have the program's descriptors between its fork and its exec.
        eventually(|| !ip("link show v0").contains("prog/xdp"));
        assert_eq!(lent(&pool), 0);
        assert_settled(&pool);
        drop(other);
        drop(queue_in("xdp:v0", &pool));
        assert_settled(&pool);
    });
}
