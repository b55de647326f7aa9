//! Tests smoltcp at both ends of a ring: streams arrive complete, in packets and in superframes,
//! and the ledger has every packet.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use linerate::wire::{Mac, UdpEnds};
use linerate::{Batch, DropReason, Offload, Pool, Port, Skb, Trust, Vlan};
use linerate_smoltcp::Device;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device as _, PacketMeta, RxToken as _, TxToken as _};
use smoltcp::socket::tcp;
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv6Address};

const BYTES: usize = 2_000_000;

/// A stack with one TCP socket.
struct Stack {
    device: Device,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl Stack {
    fn new(port: Port, number: u8) -> Stack {
        let mut device = Device::new(port.into_queues().remove(0)).unwrap();
        let config = Config::new(EthernetAddress([2, 0, 0, 0, 0, number]).into());
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addrs| {
            addrs.push(IpCidr::new(IpAddress::v4(10, 0, 0, number), 24)).unwrap();
            addrs.push(IpCidr::new(v6(number), 64)).unwrap();
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 17]);
        let mut sockets = SocketSet::new(vec![]);
        let handle = sockets.add(tcp::Socket::new(buffer(), buffer()));
        Stack { device, interface, sockets, handle }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn poll(&mut self, now: Instant) {
        self.interface.poll(now, &mut self.device, &mut self.sockets);
        self.device.flush();
    }
}

fn v6(number: u8) -> IpAddress {
    Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, number.into()).into()
}

fn byte(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// Sends a stream to `address`; returns the longest packet that a device can send.
fn transfer(pool: &Pool, address: IpAddress) -> usize {
    let (a, b) = Port::pair(64, pool).unwrap();
    let (mut client, mut server) = (Stack::new(a, 1), Stack::new(b, 2));
    let longest = client.device.capabilities().segmentation.tcpv4.map_or(1514, |n| n.get());
    server.socket().listen(80).unwrap();
    let cx = client.interface.context();
    client
        .sockets
        .get_mut::<tcp::Socket<'_>>(client.handle)
        .connect(cx, (address, 80), 5000)
        .unwrap();
    let (mut now, mut sent, mut got) = (Instant::ZERO, 0, 0);
    while got < BYTES {
        // The test's own clock: lost packets are retransmitted without waiting.
        now += Duration::from_millis(1);
        assert!(now < Instant::from_secs(200), "{address}: {sent} sent and {got} received");
        if client.socket().can_send() {
            let fill = |room: &mut [u8]| {
                let n = room.len().min(BYTES - sent);
                room[..n].iter_mut().enumerate().for_each(|(i, to)| *to = byte(sent + i));
                (n, n)
            };
            sent += client.socket().send(fill).unwrap();
        }
        client.poll(now);
        server.poll(now);
        if server.socket().can_recv() {
            let take = |bytes: &mut [u8]| {
                let right =
                    bytes.iter().enumerate().all(|(i, byte_got)| *byte_got == byte(got + i));
                assert!(right, "behind {got}");
                (bytes.len(), bytes.len())
            };
            got += server.socket().recv(take).unwrap();
        }
    }
    assert_eq!(client.device.lost() + server.device.lost(), 0);
    longest
}

#[test]
fn a_stream_arrives_whole_in_packets_and_in_superframes() {
    for (jumbo, longest) in [(None, 1514), (Some((32, 65_536)), 65_280)] {
        for address in [IpAddress::v4(10, 0, 0, 2), v6(2)] {
            let pool = Pool::builder().frames(1024);
            let pool = jumbo.map_or(pool.clone(), |(n, bytes)| pool.jumbo(n, bytes));
            let pool = pool.build().unwrap();
            assert_eq!(transfer(&pool, address), longest);
            let ledger = pool.ledger();
            assert!(ledger.balanced() && ledger.in_flight == 0, "{ledger}");
            let packets = BYTES as u64 / 1400;
            // smoltcp has no superframes of IPv6.
            let whole = jumbo.is_none() || matches!(address, IpAddress::Ipv6(_));
            assert_eq!(ledger.consumed > packets / 2, whole, "{address} {ledger}");
        }
    }
}

#[test]
fn a_wrong_checksum_is_dropped_unless_it_never_was_on_a_wire() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut port, other) = Port::pair(64, &pool).unwrap();
    let mut device = Device::new(other.into_queues().remove(0)).unwrap();
    let [src, dst] = ["10.0.0.1:9", "10.0.0.2:9"].map(|text| text.parse::<SocketAddr>().unwrap());
    let ends = UdpEnds { src_mac: Mac([2; 6]), dst_mac: Mac([4; 6]), src, dst };
    let mut batch = Batch::with_capacity(4);
    port.alloc(&mut batch, 4);
    for (i, skb) in batch.iter_mut().enumerate() {
        let frame = skb.put(60).unwrap();
        ends.write(frame).unwrap();
        frame[59] = u8::from(i > 0);
    }
    let verdicts = [0, 0, 1, 2];
    for (skb, flags) in batch.iter_mut().zip(verdicts) {
        let left = Offload { flags, csum_start: 34, csum_offset: 6, ..Offload::NONE };
        skb.set_offload(left);
    }
    port.xmit(&mut batch);
    let mut seen = Vec::new();
    while let Some((packet, _)) = device.receive(Instant::ZERO) {
        seen.push(packet.consume(<[u8]>::len));
    }
    assert_eq!(seen, [60, 0, 60, 60]);
    drop((port, device, batch));
    assert_eq!(pool.ledger().dropped(DropReason::MALFORMED), 1);
    assert!(pool.ledger().balanced());
}

#[test]
fn a_packet_whose_vlan_tag_stands_beside_its_bytes_is_dropped() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut port, other) = Port::pair(64, &pool).unwrap();
    let mut device = Device::new(other.into_queues().remove(0)).unwrap();
    let mut batch = Batch::with_capacity(3);
    port.alloc(&mut batch, 3);
    for (skb, tci) in batch.iter_mut().zip([None, Some(5), Some(0xe000)]) {
        skb.put(60).unwrap().fill(0);
        assert!(skb.set_vlan(tci.map(|tci| Vlan { tci, protocol: 0x8100 })));
    }
    port.xmit(&mut batch);
    let mut seen = Vec::new();
    while let Some((packet, _)) = device.receive(Instant::ZERO) {
        seen.push(packet.consume(<[u8]>::len));
    }
    assert_eq!(seen, [60, 0, 60]);
    drop((port, device, batch));
    assert_eq!(pool.ledger().dropped(DropReason::UNWANTED), 1);
}

#[test]
fn without_room_or_memory_smoltcp_is_told_to_wait() {
    // The ring is full, and so is the batch before it.
    let pool = Pool::builder().frames(512).build().unwrap();
    let (port, mut other) = Port::pair(8, &pool).unwrap();
    let mut device = Device::new(port.into_queues().remove(0)).unwrap();
    let mut sent = 0;
    while let Some(token) = device.transmit(Instant::ZERO) {
        token.consume(60, |frame| frame.fill(1));
        sent += 1;
        assert!(sent < 512, "there is no end");
    }
    let mut batch = Batch::with_capacity(64);
    other.rx(&mut batch);
    batch.clear();
    assert!(device.transmit(Instant::ZERO).is_some(), "there is room again");
    // A packet that came must wait for the room of its answer, and so must the program.
    while let Some(token) = device.transmit(Instant::ZERO) {
        token.consume(60, |frame| frame.fill(1));
    }
    let mut came = Batch::with_capacity(1);
    assert_eq!((other.alloc(&mut came, 1), other.xmit(&mut came)), (1, 1));
    assert!(device.receive(Instant::ZERO).is_none());
    let (start, time) = (std::time::Instant::now(), std::time::Duration::from_millis(20));
    assert_eq!(device.wait(Some(time)), Ok(false));
    assert!(start.elapsed() >= time);
    other.rx(&mut batch);
    batch.clear();
    assert_eq!(device.wait(Some(time)), Ok(true));
    assert!(device.receive(Instant::ZERO).is_some());
    // The program holds all frames of the pool.
    let held: Vec<Skb> = std::iter::from_fn(|| pool.local().alloc_one()).collect();
    device.transmit(Instant::ZERO).unwrap().consume(60, |frame| frame.fill(1));
    while device.transmit(Instant::ZERO).is_some_and(|token| {
        token.consume(60, |frame| frame.fill(1));
        true
    }) {}
    assert_eq!(device.lost(), 0);
    drop(held);
    drop((device, other, batch));
    assert!(pool.ledger().balanced(), "{}", pool.ledger());
}

#[test]
fn a_pool_that_cannot_do_is_refused_with_what_to_do() {
    let exported = Pool::builder().frames(64).trust(Trust::Exported).build().unwrap();
    let small = Pool::builder().frames(64).frame_size(512).build().unwrap();
    let of_room = |room: u32| Pool::builder().frames(64).headroom(2048 - room).build().unwrap();
    assert!(Device::new(Port::pair(8, &of_room(1514)).unwrap().0.into_queues().remove(0)).is_ok());
    for (pool, why, fix) in
        [(exported, "peer", "private"), (small, "1514", "2048"), (of_room(1513), "1513", "2048")]
    {
        let queue = Port::pair(8, &pool).unwrap().0.into_queues().remove(0);
        let e = Device::new(queue).unwrap_err();
        assert!(e.why.contains(why) && e.fix.contains(fix), "{e}");
    }
}

/// Returns a device on one end of a ring, and the other end.
fn device(pool: &Pool, len: u32) -> (Device, Port) {
    let (port, other) = Port::pair(len, pool).unwrap();
    (Device::new(port.into_queues().remove(0)).unwrap(), other)
}

#[test]
fn capabilities_are_those_of_the_pool_and_the_mtu() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let mut plain = device(&pool, 8).0;
    let capabilities = plain.capabilities();
    assert_eq!((capabilities.max_transmission_unit, capabilities.max_burst_size), (1514, Some(64)));
    let checksums = &capabilities.checksum;
    let left = [checksums.tcp, checksums.udp].map(|one| matches!(one, Checksum::None));
    assert_eq!((left, capabilities.segmentation.tcpv4), ([true; 2], None));
    for (mtu, most) in [(500, 514), (9000, pool.data_room())] {
        plain.set_mtu(mtu);
        assert_eq!(plain.capabilities().max_transmission_unit, most);
    }
    let pool = Pool::builder().frames(64).headroom(0).jumbo(2, 4096).build().unwrap();
    let mut device = device(&pool, 8).0;
    for (mtu, longest) in [(2034, None), (2033, Some(4096))] {
        device.set_mtu(mtu);
        let capabilities = device.capabilities();
        assert_eq!(capabilities.max_transmission_unit, mtu + 14);
        let segments = capabilities.segmentation.tcpv4.map(|n| n.get());
        assert_eq!(segments, longest, "a superframe of two packets saves nothing");
    }
}

#[test]
fn a_device_keeps_a_frame_for_a_superframe_and_gives_it_back_unused() {
    let pool = Pool::builder().frames(64).jumbo(1, 65_536).build().unwrap();
    let (mut device, _other) = device(&pool, 8);
    assert!(pool.local().alloc_len(60_000).is_none(), "the device has the only one");
    assert!(device.transmit(Instant::ZERO).is_some());
    drop(device);
    let ledger = pool.ledger();
    assert_eq!((ledger.in_flight, ledger.consumed, ledger.dropped_total()), (0, 0, 0), "{ledger}");
    assert!(pool.local().alloc_len(60_000).is_some());
}

#[test]
fn a_device_that_gets_no_frame_for_superframes_sends_ordinary_packets() {
    let pool = Pool::builder().frames(64).jumbo(1, 65_536).build().unwrap();
    let (first, _other) = device(&pool, 8);
    let (mut second, _peer) = device(&pool, 8);
    assert!(first.capabilities().segmentation.tcpv4.is_some());
    assert!(second.capabilities().segmentation.tcpv4.is_none());
    second.transmit(Instant::ZERO).unwrap().consume(60, |_| ());
    assert_eq!((second.lost(), second.flush()), (0, 0));
}

#[test]
fn a_packet_s_headers_are_zero_before_smoltcp_writes_them() {
    let pool = Pool::builder().frames(2).build().unwrap();
    let mut used = Vec::new();
    while let Some(skb) = pool.local().alloc_copy(&[0xaa; 1000]) {
        used.push(skb);
    }
    assert!(!used.is_empty());
    drop(used);
    let (mut device, _other) = device(&pool, 8);
    let token = device.transmit(Instant::ZERO).unwrap();
    token.consume(60, |frame| assert_eq!(frame, [0; 60]));
}

#[test]
fn a_packet_in_several_frames_is_read_whole_and_one_without_a_frame_is_counted() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut device, mut other) = device(&pool, 8);
    let (mut batch, bytes) = (Batch::with_capacity(8), (0..3000).map(byte).collect::<Vec<_>>());
    assert!(batch.push(pool.local().alloc_copy(&bytes).unwrap()).is_ok());
    assert_eq!(other.xmit(&mut batch), 1);
    device.receive(Instant::ZERO).unwrap().0.consume(|packet| assert_eq!(packet, bytes));
    let token = device.transmit(Instant::ZERO).unwrap();
    assert_eq!(token.consume(3000, |frame| frame.len()), 3000, "longer than was promised");
    assert_eq!((device.lost(), device.flush()), (1, 0));
}

#[test]
fn a_superframe_is_left_to_the_port_with_its_segments() {
    let pool = Pool::builder().frames(64).jumbo(2, 65_536).build().unwrap();
    let (mut device, mut other) = device(&pool, 8);
    let mut token = device.transmit(Instant::ZERO).unwrap();
    let mut meta = PacketMeta::default();
    meta.segmentation_offload_size = NonZeroU16::new(1000);
    token.set_meta(meta);
    token.consume(54 + 5000, |frame| {
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0x13, 0xb0, 0, 0, 0, 0, 64, 6]);
        frame[46] = 0x50;
    });
    assert_eq!(device.flush(), 0);
    let mut batch = Batch::with_capacity(8);
    other.rx(&mut batch);
    let left: Vec<_> = batch.iter().map(|skb| (skb.len(), skb.offload().gso_size)).collect();
    assert_eq!(left, [(5054, 1000)]);
}

#[test]
fn a_wait_sends_what_is_left_and_frees_what_was_read() {
    let pool = Pool::builder().frames(64).build().unwrap();
    let (mut device, mut other) = device(&pool, 8);
    let (mut came, mut mem) = (Batch::with_capacity(8), pool.local());
    let now = Some(std::time::Duration::ZERO);
    for by_wait in [true, false] {
        assert!(came.push(mem.alloc_copy(&[0; 60]).unwrap()).is_ok());
        assert_eq!(other.xmit(&mut came), 1);
        let read = pool.ledger().consumed;
        let (received, answer) = device.receive(Instant::ZERO).unwrap();
        received.consume(|_| ());
        answer.consume(60, |frame| frame.fill(1));
        match by_wait {
            true => assert_eq!(device.wait(now), Ok(false)),
            false => assert_eq!(device.flush(), 0),
        }
        assert_eq!((other.rx(&mut came), pool.ledger().consumed), (1, read + 1), "{by_wait}");
        came.clear();
    }
    // Packets that cannot be sent are counted, and room for them ends the wait.
    for _ in 0..12 {
        device.transmit(Instant::ZERO).unwrap().consume(60, |frame| frame.fill(1));
    }
    assert_eq!(device.flush(), 4);
    let long = std::time::Duration::from_secs(20);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            other.rx(&mut came);
        });
        assert_eq!(device.wait(Some(long)), Ok(true));
    });
    assert!(start.elapsed() < long);
    assert_eq!(device.flush(), 0);
}

#[test]
fn packets_in_a_device_that_is_dropped_are_counted_as_stopped() {
    let pool = Pool::builder().frames(256).build().unwrap();
    let (a, mut b) = Port::pair(64, &pool).unwrap();
    let mut device = Device::new(a.into_queues().remove(0)).unwrap();
    let (mut mem, mut batch) = (pool.local(), Batch::with_capacity(3));
    while batch.spare() > 0 {
        assert!(batch.push(mem.alloc_copy(&[0; 60]).unwrap()).is_ok());
    }
    assert_eq!(b.xmit(&mut batch), 3);
    let (received, answer) = device.receive(Instant::ZERO).unwrap();
    received.consume(|frame| assert_eq!(frame.len(), 60));
    answer.consume(60, |frame| frame.fill(0));
    assert!(device.transmit(Instant::ZERO).is_some());
    drop(device);
    assert_eq!(
        pool.ledger().dropped(DropReason::STOPPED),
        3,
        "two that came, one that did not leave"
    );
    assert_eq!(pool.ledger().consumed, 1, "one that was read; the frame for the next is none");
}

/// Frames of 64 KiB are few, and received superframes may have taken all.
#[test]
fn packet_is_received_while_all_frames_of_superframes_are_taken() {
    let pool = Pool::builder().frames(512).jumbo(2, 65_536).build().unwrap();
    let (port, mut other) = Port::pair(8, &pool).unwrap();
    let mut device = Device::new(port.into_queues().remove(0)).unwrap();
    let mut came = Batch::with_capacity(1);
    assert!(came.push(pool.local().alloc_len(60_000).unwrap()).is_ok());
    device.transmit(Instant::ZERO).unwrap().consume(60_000, |frame| frame.fill(1));
    assert_eq!(device.flush(), 0);
    assert!(device.transmit(Instant::ZERO).is_none(), "no frame for a superframe");
    // smoltcp has data to send, so that its timeout is 0.
    let start = std::time::Instant::now();
    assert_eq!(device.wait(Some(std::time::Duration::ZERO)), Ok(false));
    assert!(start.elapsed() >= std::time::Duration::from_millis(1));
    other.xmit(&mut came);
    let (received, _) = device.receive(Instant::ZERO).unwrap();
    received.consume(|_| ());
    assert!(device.transmit(Instant::ZERO).is_some(), "the received frame is free");
}

#[test]
fn a_packet_in_memory_that_a_peer_can_write_is_read_from_a_copy() {
    let pool = |trust| Pool::builder().frames(64).trust(trust).build().unwrap();
    let (own, exported) = (pool(Trust::Private), pool(Trust::Exported));
    let (mut sender, receiver) = Port::pair(8, &own).unwrap();
    let mut device = Device::new(receiver.into_queues().remove(0)).unwrap();
    let mut batch = Batch::with_capacity(1);
    assert!(batch.push(exported.local().alloc_copy(&[7; 60]).unwrap()).is_ok());
    assert_eq!(sender.xmit(&mut batch), 1);
    let (packet, _) = device.receive(Instant::ZERO).unwrap();
    packet.consume(|bytes| assert_eq!(bytes, [7; 60]));
}
