//! Tests of TAP interfaces, each in a network namespace of its own.

use std::time::{Duration, Instant};

use super::*;
use crate::packet::{Options, PacketSocket, RingSize, SendBatch};
use crate::vnet::VnetHdr;
use crate::wait::poll_readable;
use linerate_testing::{eventually, in_netns, ip};

const WAIT: Duration = Duration::from_secs(5);
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

fn frame(len: usize) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 1]);
    f.extend(ETHERTYPE);
    f.extend((f.len()..len).map(|i| i as u8));
    f
}

fn ours(data: &[u8]) -> bool {
    data.get(12..14) == Some(&ETHERTYPE)
}

fn write(tap: &Tap, frame: &[u8]) -> io::Result<usize> {
    let header = VnetHdr::NONE.to_bytes();
    let (head, tail) = frame.split_at(14);
    tap.write_vectored(&[IoSlice::new(&header), IoSlice::new(head), IoSlice::new(tail)])
}

/// Returns the next frame of these tests from the host, with its header.
fn read(tap: &Tap) -> (VnetHdr, Vec<u8>) {
    let deadline = Instant::now() + WAIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(poll_readable(&[tap.as_fd()], Some(left)).unwrap(), "nothing came");
        let (mut header, mut data) = ([0; VNET_HDR_BYTES], vec![0; 65_550]);
        let mut bufs = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut data)];
        let n = tap.read_vectored(&mut bufs).unwrap();
        data.truncate(n - VNET_HDR_BYTES);
        if ours(&data) {
            return (VnetHdr::from_bytes(header), data);
        }
    }
}

#[test]
fn frames_cross_between_the_descriptor_and_the_interface_both_ways() {
    in_netns(|| {
        let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
        ip("link set t0 mtu 9000 up");
        let interface = Interface::open("t0").unwrap();
        let options = Options { vnet_hdr: true, ..Options::default() };
        let (socket, mut ring) =
            PacketSocket::open(&interface, &options, &RingSize::default()).unwrap();
        let f = frame(5000);

        let header = VnetHdr::NONE.to_bytes();
        let parts = std::iter::once(&header[..]).chain(f.chunks(4)).map(IoSlice::new);
        let parts: Vec<_> = parts.collect();
        assert_eq!(tap.write_vectored(&parts), Err(Errno::MSGSIZE), "it would be cut");
        assert_eq!(write(&tap, &f), Ok(VNET_HDR_BYTES + f.len()));
        let mut got = None;
        while got.is_none() {
            assert!(poll_readable(&[socket.as_fd()], Some(WAIT)).unwrap(), "nothing came");
            while let Some(mut block) = ring.next_block() {
                while let Some(r) = block.next_frame() {
                    if ours(r.data) {
                        got = Some(r.data.to_vec());
                    }
                }
            }
        }
        assert_eq!(got.unwrap(), f);

        let mut batch = SendBatch::new();
        let mut sending = batch.start();
        assert!(sending.add(Some(&VnetHdr::NONE), [&f[..]]));
        assert_eq!(sending.flush(&socket), (1, None));
        assert_eq!(read(&tap), (VnetHdr::NONE, f));
    });
}

#[test]
fn the_offloads_obtained_are_told() {
    in_netns(|| {
        let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
        assert!(tap.offloads().csum && tap.offloads().tso, "{:?}", tap.offloads());
        let tap = Tap::open("t1", TapOffloads::NONE).unwrap();
        assert_eq!(tap.offloads(), TapOffloads::NONE);
        // Superframes without checksums are nothing the kernel offers; none is what is left.
        let wanted = TapOffloads { csum: false, ..TapOffloads::ALL };
        assert_eq!(Tap::open("t2", wanted).unwrap().offloads(), TapOffloads::NONE);
    });
}

#[test]
fn a_number_is_filled_in_and_the_interface_goes_with_its_descriptor() {
    in_netns(|| {
        let a = Tap::open("tap%d", TapOffloads::ALL).unwrap();
        let b = Tap::open("tap%d", TapOffloads::ALL).unwrap();
        assert_eq!(a.name().as_str(), "tap0");
        assert_eq!(b.name().as_str(), "tap1");
        assert!(a.created());
        drop(a);
        // A child of another test, between fork and exec, may hold the descriptor a moment.
        let deadline = Instant::now() + WAIT;
        while Interface::open("tap0").is_ok() {
            assert!(Instant::now() < deadline, "tap0 stayed");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(Interface::open("tap0").unwrap_err().code, Code::NoDevice);
        Interface::open("tap1").unwrap();
    });
}

#[test]
fn a_persistent_interface_is_attached_to_and_stays() {
    in_netns(|| {
        ip("tuntap add t0 mode tap");
        let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
        assert!(!tap.created());
        drop(tap);
        Interface::open("t0").unwrap();
    });
}

#[test]
fn an_interface_that_is_taken_is_busy() {
    in_netns(|| {
        let _tap = Tap::open("t0", TapOffloads::ALL).unwrap();
        assert_eq!(Tap::open("t0", TapOffloads::ALL).unwrap_err().code, Code::Busy);
        ip("link add v0 type veth peer name v1");
        let e = Tap::open("v0", TapOffloads::ALL).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.fix.contains("v0"), "{e}");
    });
}

#[test]
fn queues_are_attached_and_detached() {
    in_netns(|| {
        let mut queues = Tap::open_queues("tap%d", TapOffloads::ALL, 3).unwrap();
        assert!(queues.iter().all(|q| q.created() && q.name().as_str() == "tap0"));
        ip("link set tap0 up");
        // Another of its own, which is attached and takes its share.
        let more = Tap::open_queues("tap0", TapOffloads::ALL, 1).unwrap();
        assert!(!more[0].created());
        let said = ip("-d link show tap0");
        assert!(said.contains("multi_queue numqueues 4 "), "{said}");
        // Each of them is the whole interface to the host, and so is the last one left.
        while let Some(queue) = queues.pop() {
            assert_eq!(write(&queue, &frame(60)), Ok(VNET_HDR_BYTES + 60));
        }
        assert_eq!(write(&more[0], &frame(60)), Ok(VNET_HDR_BYTES + 60));
        let e = Tap::open_queues("tap0", TapOffloads::ALL, 256).unwrap_err();
        assert_eq!(e.code, Code::Busy);
        assert!(e.why.contains("256 queues are taken"), "{e}");
    });
}

#[test]
fn queues_of_others_keep_the_length_of_their_headers() {
    in_netns(|| {
        let open = |name| Tap::open_queues(name, TapOffloads::ALL, 1);
        let other = open("m0").unwrap();
        set_header_bytes(&other[0].fd, 12).unwrap();
        let e = open("m0").unwrap_err();
        assert!(e.code == Code::Busy && e.why.contains("of 12 bytes"), "{e}");
        assert_eq!(header_bytes(&other[0].fd), Ok(12));
        // What an ended program has left belongs to no program.
        ip("tuntap add m1 mode tap multi_queue");
        set_header_bytes(&open("m1").unwrap()[0].fd, 12).unwrap();
        // Another test's child may have the descriptor until it is executed.
        eventually(|| {
            let again = open("m1");
            again.is_ok_and(|queues| header_bytes(&queues[0].fd) == Ok(VNET_HDR_BYTES as c_int))
        });
    });
}

#[test]
fn queues_of_others_with_another_frame_format_are_not_joined() {
    in_netns(|| {
        let formats = [
            (libc::IFF_NO_PI, "without an offload header"),
            (libc::IFF_VNET_HDR, "with packet information"),
            (0, "without an offload header"),
        ];
        for (i, (format, why)) in formats.into_iter().enumerate() {
            let name = IfName::new(&format!("m{i}")).unwrap();
            let other = open_device(&name).unwrap();
            attach_as(&other, &name, libc::IFF_TAP | libc::IFF_MULTI_QUEUE | format).unwrap();
            let before = flags(&other, &name).unwrap();
            let e = Tap::open_queues(name.as_str(), TapOffloads::ALL, 2).unwrap_err();
            assert!(e.code == Code::Busy && e.why.contains(why), "{e}");
            assert_eq!(flags(&other, &name), Ok(before));
        }
    });
}

#[test]
fn frames_without_an_offload_header_are_complete_and_cross_both_ways() {
    in_netns(|| {
        ip("tuntap add t0 mode tap");
        // What a program has left, which had offloads.
        drop(Tap::open("t0", TapOffloads::ALL).unwrap());
        let tap = Tap::open_plain("t0", 1).unwrap().remove(0);
        assert_eq!((tap.created(), tap.offloads()), (false, TapOffloads::NONE));
        assert_eq!(flags(&tap.fd, &tap.name).unwrap() & libc::IFF_VNET_HDR, 0);
        ip("link set t0 up");
        let interface = Interface::open("t0").unwrap();
        let options = Options { vnet_hdr: true, ..Options::default() };
        let (socket, mut ring) =
            PacketSocket::open(&interface, &options, &RingSize::default()).unwrap();
        let f = frame(1000);
        assert_eq!(tap.write_vectored(&[IoSlice::new(&f)]), Ok(f.len()));
        let mut got = None;
        while got.is_none() {
            assert!(poll_readable(&[socket.as_fd()], Some(WAIT)).unwrap(), "nothing came");
            while let Some(mut block) = ring.next_block() {
                while let Some(r) = block.next_frame() {
                    got = got.or(ours(r.data).then(|| r.data.to_vec()));
                }
            }
        }
        assert_eq!(got.unwrap(), f);
        // The kernel computes what the sender leaves to the device: the sum of the bytes behind it.
        let left = VnetHdr { flags: 1, csum_start: 34, csum_offset: 6, ..VnetHdr::NONE };
        let mut batch = SendBatch::new();
        let mut sending = batch.start();
        assert!(sending.add(Some(&left), [&f[..]]));
        assert_eq!(sending.flush(&socket), (1, None));
        let mut data = vec![0; 65_550];
        let data = loop {
            assert!(poll_readable(&[tap.as_fd()], Some(WAIT)).unwrap(), "nothing came");
            let n = tap.read_vectored(&mut [IoSliceMut::new(&mut data)]).unwrap();
            if ours(&data[..n]) {
                break &data[..n];
            }
        };
        assert!(data.len() == f.len() && data[..40] == f[..40] && data[42..] == f[42..]);
        assert_ne!(data[40..42], f[40..42], "the checksum is not filled in");
    });
}

#[test]
fn queues_with_and_without_an_offload_header_do_not_mix() {
    in_netns(|| {
        let plain = Tap::open_plain("m0", 2).unwrap();
        assert!(plain.iter().all(|queue| queue.created()));
        let e = Tap::open_queues("m0", TapOffloads::ALL, 2).unwrap_err();
        assert!(e.code == Code::Busy && e.why.contains("without an offload header"), "{e}");
        assert_eq!(Tap::open_plain("m0", 2).unwrap().len(), 2);
        let other = Tap::open_queues("m1", TapOffloads::ALL, 2).unwrap();
        let e = Tap::open_plain("m1", 2).unwrap_err();
        assert!(e.code == Code::Busy && e.why.contains("queues with an offload header"), "{e}");
        assert_eq!(
            flags(&other[0].fd, &other[0].name).unwrap() & libc::IFF_VNET_HDR,
            libc::IFF_VNET_HDR
        );
        let name = IfName::new("m2").unwrap();
        let with_information = open_device(&name).unwrap();
        attach_as(&with_information, &name, libc::IFF_TAP | libc::IFF_MULTI_QUEUE).unwrap();
        let e = Tap::open_plain("m2", 2).unwrap_err();
        assert!(e.why.contains("with packet information before each frame"), "{e}");
    });
}

#[test]
fn nothing_is_said_about_queues_that_cannot_be_read() {
    let empty = NetFolder::at(std::path::Path::new("/dev")).unwrap();
    assert_eq!((is_alone(&empty), has_packet_info(&empty)), (None, false));
}

#[test]
fn a_tap_of_the_other_kind_is_an_error_that_says_how_to_make_it() {
    in_netns(|| {
        ip("tuntap add s0 mode tap");
        ip("tuntap add m0 mode tap multi_queue");
        ip("link add v0 type veth peer name v1");
        let open = |name, queues| match queues {
            1 => Tap::open(name, TapOffloads::ALL).unwrap_err(),
            n => Tap::open_queues(name, TapOffloads::ALL, n).unwrap_err(),
        };
        let commands = |fix: &str| -> Vec<String> {
            let (_, commands) = fix.split_once(": ip ").unwrap();
            commands.split(" && ip ").map(str::to_owned).collect()
        };
        let e = open("s0", 2);
        assert!(e.code == Code::Busy && e.why.contains("of one queue"), "{e}");
        for args in commands(&e.fix) {
            ip(&args);
        }
        Tap::open_queues("s0", TapOffloads::ALL, 2).unwrap();
        let e = open("m0", 1);
        assert!(e.code == Code::Busy && e.why.contains("multi-queue"), "{e}");
        for args in commands(&e.fix) {
            ip(&args);
        }
        Tap::open("m0", TapOffloads::ALL).unwrap();
        let e = open("v0", 2);
        assert!(e.code == Code::Busy && e.fix.contains("ip -d link show v0"), "{e}");
    });
}

#[test]
fn an_empty_tap_is_not_waited_for_and_one_that_is_down_takes_nothing() {
    in_netns(|| {
        let tap = Tap::open("t0", TapOffloads::ALL).unwrap();
        assert_eq!(write(&tap, &frame(60)), Err(Errno::IO));
        let mut byte = [0; 64];
        assert_eq!(tap.read_vectored(&mut [IoSliceMut::new(&mut byte)]), Err(Errno::AGAIN));
        let lie = VnetHdr { gso_type: 0x7f, gso_size: 1, ..VnetHdr::NONE }.to_bytes();
        ip("link set t0 up");
        let f = frame(60);
        let bufs = [IoSlice::new(&lie), IoSlice::new(&f)];
        assert_eq!(tap.write_vectored(&bufs), Err(Errno::INVAL));
    });
}
