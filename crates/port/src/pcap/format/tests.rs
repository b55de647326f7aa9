//! Tests of both formats with separate encoders, hostile files, failing sinks, and tcpdump.

use std::io::{self, Cursor, Read, Write};
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::input::Order;
use super::*;

/// A packet in the form that tests compare: interface, time, original length, link type, bytes.
type Packet = (u32, Option<u64>, u32, u16, Vec<u8>);

/// Reads all packets up to the end or the first error, and returns the error.
fn read_all(file: &[u8]) -> (Vec<Packet>, Option<CaptureError>) {
    let mut packets = Vec::new();
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(e) => return (packets, Some(e)),
    };
    loop {
        match reader.next_record() {
            Ok(Some(r)) => {
                packets.push((r.interface, r.time_ns, r.orig_len, r.link_type.0, r.data.to_vec()))
            }
            Ok(None) => break,
            Err(e) => {
                assert!(matches!(reader.next_record(), Ok(None)), "an error comes once");
                return (packets, Some(e));
            }
        }
        assert!(reader.buffer_bytes() <= BLOCK_LEN_MAX);
    }
    (packets, None)
}

fn fault(file: &[u8]) -> (u64, String) {
    let error = read_all(file).1.expect("a bad file was read to its end");
    (error.offset, error.fault.to_string())
}

fn u16s(order: Order, fields: &[u16]) -> Vec<u8> {
    let bytes = |n: &u16| if order == Order::Big { n.to_be_bytes() } else { n.to_le_bytes() };
    fields.iter().flat_map(bytes).collect()
}

fn u32s(order: Order, fields: &[u32]) -> Vec<u8> {
    let bytes = |n: &u32| if order == Order::Big { n.to_be_bytes() } else { n.to_le_bytes() };
    fields.iter().flat_map(bytes).collect()
}

/// Makes a classic capture; each packet was 4 bytes longer than its captured part.
pub fn classic(
    order: Order,
    nanos: bool,
    (snaplen, link): (u32, u32),
    packets: &[(u32, u32, &[u8])],
) -> Vec<u8> {
    let magic = if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = u32s(order, &[magic]);
    file.extend(u16s(order, &[2, 4]));
    file.extend(u32s(order, &[0, 0, snaplen, link]));
    for (seconds, fraction, data) in packets {
        let len = data.len() as u32;
        file.extend(u32s(order, &[*seconds, *fraction, len, len + 4]));
        file.extend_from_slice(data);
    }
    file
}

fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let len = body.len() as u32 + 12;
    [u32s(order, &[kind, len]), body, u32s(order, &[len])].concat()
}

fn section(order: Order) -> Vec<u8> {
    let mut body = u32s(order, &[0x1a2b_3c4d]);
    body.extend(u16s(order, &[1, 0]));
    body.extend([0xff; 8]);
    body.extend(u16s(order, &[4, 5]));
    body.extend(b"tests\0\0\0"); // an option to pass over
    block(order, 0x0a0d_0d0a, &body)
}

fn interface(order: Order, link: u16, snaplen: u32, options: &[u8]) -> Vec<u8> {
    let mut body = u16s(order, &[link, 0]);
    body.extend(u32s(order, &[snaplen]));
    body.extend(options);
    block(order, 1, &body)
}

fn option(order: Order, code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = u16s(order, &[code, value.len() as u16]);
    option.extend(value);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

fn enhanced(order: Order, id: u32, time: u64, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    let mut body = u32s(order, &[id, (time >> 32) as u32, time as u32, len, len]);
    body.extend(data);
    block(order, 6, &body)
}

/// Makes a file with sections of both byte orders and with every kind of block.
fn mixed() -> Vec<u8> {
    let mut file = Vec::new();
    for order in [Order::Little, Order::Big] {
        let seconds_2_10 = option(order, 9, &[0x8a]);
        let mut later = option(order, 2, b"veth0");
        later.extend(option(order, 9, &[9]));
        let offset = if order == Order::Big { 5i64.to_be_bytes() } else { 5i64.to_le_bytes() };
        later.extend(option(order, 14, &offset));
        later.extend(option(order, 0, &[]));
        file.extend(section(order));
        file.extend(interface(order, 1, 100, &seconds_2_10));
        file.extend(block(order, 0xbad, b"something of tomorrow"));
        file.extend(enhanced(order, 0, 1024 + 512, b"first"));
        file.extend(interface(order, 113, 0, &later));
        file.extend(enhanced(order, 1, 7, b""));
        let mut simple = u32s(order, &[200]);
        simple.extend([0x55; 100]);
        file.extend(block(order, 3, &simple));
        let mut obsolete = u16s(order, &[1, 9]);
        obsolete.extend(u32s(order, &[0, 8, 3, 60]));
        obsolete.extend(b"old");
        file.extend(block(order, 2, &obsolete));
    }
    file
}

#[test]
fn every_block_of_both_byte_orders_is_understood() {
    let (packets, error) = read_all(&mixed());
    assert!(error.is_none(), "{error:?}");
    let expected = |base: u32| {
        [
            (base, Some(1_500_000_000), 5, 1, b"first".to_vec()),
            (base + 1, Some(5_000_000_007), 0, 113, vec![]),
            (base, None, 200, 1, vec![0x55; 100]),
            (base + 1, Some(5_000_000_008), 60, 113, b"old".to_vec()),
        ]
    };
    assert_eq!(packets, [expected(0), expected(2)].concat());
}

#[test]
fn only_ethernet_passes_for_a_frame() {
    let file = mixed();
    let mut reader = Reader::new(&file[..]).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().ethernet().unwrap(), b"first");
    let cooked = reader.next_record().unwrap().unwrap().ethernet().unwrap_err();
    assert!(
        cooked.to_string().ends_with("link type 113 (LINUX_SLL), not Ethernet (1)"),
        "{cooked}"
    );
    assert_eq!(cooked.in_file("x.pcap").code, linerate_sys::Code::Capture);
}

#[test]
fn times_are_exact_in_every_resolution() {
    let order = Order::Little;
    let read = |resolution: u8, time: u64| {
        let options = option(order, 9, &[resolution]);
        let file =
            [section(order), interface(order, 1, 0, &options), enhanced(order, 0, time, b"x")]
                .concat();
        let (packets, error) = read_all(&file);
        packets.first().map(|p| p.1.unwrap()).ok_or(error.map(|e| e.fault.to_string()))
    };
    assert_eq!(read(0, 3), Ok(3_000_000_000));
    assert_eq!(read(6, 3), Ok(3_000));
    assert_eq!(read(9, u64::MAX), Ok(u64::MAX));
    assert_eq!(read(12, 5_999), Ok(5));
    assert_eq!(read(28, u64::MAX), Ok(1));
    assert_eq!(read(0x80, 2), Ok(2_000_000_000));
    assert_eq!(read(0xa0, 3 << 31), Ok(1_500_000_000));
    assert_eq!(read(0xc0, u64::MAX), Ok(999_999_999));
    assert_eq!(read(0, u64::MAX), Err(Some("a time before 1970 or after 2554".into())));
    for impossible in [29, 0x7f, 0xc1, 0xff] {
        assert!(read(impossible, 0).is_err(), "{impossible:#x}");
    }
}

#[test]
fn classic_lengths_that_lie_are_named_with_their_offset() {
    let order = Order::Big;
    let good = classic(order, false, (96, 1), &[(1, 2, b"fine")]);
    let with = |fields: &[u32], data: usize| {
        let record = [u32s(order, fields), vec![0; data]].concat();
        fault(&[good.clone(), record].concat())
    };
    let says = |text: &str| (44, text.to_owned());
    let huge = "a packet of 4294967295 bytes; the maximum is 262144";
    assert_eq!(with(&[1, 2, u32::MAX, 97], 97), says(huge));
    assert_eq!(with(&[1, 2, 50, 97], 20), says("the file ends after 20 of 50 bytes"));
    assert_eq!(with(&[1, 2, 50], 0), says("the file ends after 12 of 16 bytes"));
    let late = "the fraction of a second is 1000000, a second or more";
    assert_eq!(with(&[1, 1_000_000, 0, 0], 0), says(late));

    let unlimited = classic(order, true, (0, 1), &[(1, 2, &[0; PACKET_LEN_MAX + 1])]);
    let (offset, text) = fault(&unlimited);
    assert_eq!((offset, &*text), (24, "a packet of 262145 bytes; the maximum is 262144"));
    let largest = classic(order, true, (0, 1), &[(1, 2, &[0; PACKET_LEN_MAX])]);
    assert_eq!(read_all(&largest).0.len(), 1);
}

#[test]
fn packet_above_the_snapshot_length_of_a_classic_capture_is_read() {
    let packets: [(u32, u32, &[u8]); 2] = [(1, 2, &[7; 97]), (3, 4, b"next")];
    let (read, error) = read_all(&classic(Order::Little, false, (96, 1), &packets));
    assert!(error.is_none(), "{error:?}");
    assert_eq!(read.iter().map(|packet| packet.4.len()).collect::<Vec<_>>(), [97, 4]);
}

#[test]
fn files_of_other_kinds_are_refused() {
    assert_eq!(fault(b""), (0, "the file ends after 0 of 4 bytes".into()));
    let gzip = "neither pcap nor pcapng: it starts with 1f 8b 08 00";
    assert_eq!(fault(b"\x1f\x8b\x08\x00rest"), (0, gzip.into()));
    let mut old = classic(Order::Little, false, (0, 1), &[]);
    old[6] = 3;
    assert_eq!(fault(&old), (0, "unknown version 2.3".into()));
    let mut new = section(Order::Big);
    new[13] = 2;
    assert_eq!(fault(&new), (0, "unknown version 2.0".into()));
    new[8] = 0;
    assert_eq!(fault(&new), (0, "no byte-order magic, found 00 2b 3c 4d".into()));
}

#[test]
fn block_lengths_that_lie_are_named_with_their_offset() {
    let order = Order::Little;
    let head = [section(order), interface(order, 1, 64, &[])].concat();
    let at = head.len() as u64;
    let with = |bytes: Vec<u8>| fault(&[head.clone(), bytes].concat());
    let says = |text: &str| (at, text.to_owned());
    for kind in [1, 2, 3, 6, 0xbad] {
        for len in [0, 8, 11, 13, 30, u32::MAX] {
            let text = format!("impossible block length {len}");
            assert_eq!(with([u32s(order, &[kind, len]), vec![0; 64]].concat()), says(&text));
        }
    }
    let huge = u32s(order, &[6, BLOCK_LEN_MAX as u32 + 4]);
    assert_eq!(with(huge), says("impossible block length 524292"));
    let unknown = u32s(order, &[0xbad, u32::MAX - 3]);
    assert_eq!(with(unknown), says("the file ends after 0 of 4294967280 bytes"));

    let mut torn = enhanced(order, 0, 1, b"packet");
    *torn.last_mut().unwrap() = 1;
    assert_eq!(with(torn), says("a block of length 40 ends with length 16777256"));
    assert_eq!(
        with(enhanced(order, 1, 1, b"")).1,
        "a packet from interface 1, which is undeclared"
    );
    let long = enhanced(order, 0, 1, &[0; 65]);
    assert_eq!(with(long), says("a packet of 65 bytes; the maximum is 64"));
    let over = block(order, 6, &u32s(order, &[0, 0, 0, 9, 9, 0, 0]));
    assert_eq!(with(over), says("a packet of 9 bytes in a block with 8"));
    let over = block(order, 3, &u32s(order, &[9, 0]));
    assert_eq!(with(over), says("a packet of 9 bytes in a block with 4"));
    for (kind, words) in [(1, 1), (2, 4), (3, 0), (6, 4)] {
        let short = block(order, kind, &vec![0; words * 4]);
        let text = format!("impossible block length {}", words * 4 + 12);
        assert_eq!(with(short), says(&text));
    }
}

#[test]
fn options_that_lie_are_named() {
    let order = Order::Big;
    let with =
        |options: &[u8]| fault(&[section(order), interface(order, 1, 0, options)].concat()).1;
    assert_eq!(with(&u16s(order, &[2, 5])), "option 2 of impossible length 5");
    assert_eq!(with(&u16s(order, &[2, u16::MAX, 0, 0])), "option 2 of impossible length 65535");
    assert_eq!(with(&option(order, 9, b"12")), "option 9 of impossible length 2");
    assert_eq!(with(&option(order, 14, b"1234567")), "option 14 of impossible length 7");
    // Parsing a block that is full of empty options must end.
    let many = [1, 0, 0, 0].repeat(BLOCK_LEN_MAX / 4 - 5);
    let file = [section(order), interface(order, 1, 0, &many), enhanced(order, 0, 1, b"x")];
    assert_eq!(read_all(&file.concat()).0.len(), 1);
}

#[test]
fn interfaces_without_end_are_refused() {
    let one = [section(Order::Little), interface(Order::Little, 1, 0, &[])].concat();
    assert!(read_all(&one.repeat(INTERFACES_MAX)).1.is_none());
    assert_eq!(fault(&one.repeat(INTERFACES_MAX + 1)).1, "too many interfaces");
}

#[test]
fn a_file_cut_anywhere_keeps_the_packets_before_the_cut() {
    let order = Order::Big;
    for file in [mixed(), classic(order, false, (0, 1), &[(1, 2, b"one"), (3, 4, b"second")])] {
        let whole = read_all(&file).0;
        for len in 0..file.len() {
            let (packets, error) = read_all(&file[..len]);
            assert!(packets.len() < whole.len());
            assert_eq!(packets, whole[..packets.len()]);
            if let Some(error) = error {
                assert!(matches!(error.fault, Fault::Truncated { .. }), "{len}: {error}");
                assert!(error.offset < file.len() as u64);
            }
        }
    }
}

#[test]
fn a_hundred_thousand_damaged_files_cause_no_panic_and_no_growth() {
    let files = [mixed(), classic(Order::Big, true, (0, 1), &[(1, 2, b"one"), (3, 4, b"second")])];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    let mut errors = 0;
    for round in 0..100_000 {
        let mut file = files[round % 2].clone();
        for _ in 0..=random(4) {
            let at = random(file.len());
            file[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
        }
        if random(4) == 0 {
            file.truncate(random(file.len()));
        }
        errors += usize::from(read_all(&file).1.is_some());
    }
    // The test is useful only if some damage was detected and some was harmless.
    assert!((10_000..99_000).contains(&errors), "{errors}");
}

#[test]
fn a_failing_reader_is_reported_as_such() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let file = classic(Order::Little, false, (0, 1), &[(1, 2, b"one")]);
    let mut reader = Reader::new(Cursor::new(file).chain(Failing)).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    let error = reader.next_record().unwrap_err();
    let said = error.in_file("x");
    assert!(said.code == linerate_sys::Code::File && !said.fix.is_empty(), "{said}");
    let Fault::Io(e) = error.fault else { panic!("{error}") };
    assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
}

/// A stream that has one more byte in every second read.
struct Dripping<'a> {
    bytes: &'a [u8],
    dry: bool,
}

impl Read for Dripping<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.dry = !self.dry;
        if self.dry {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = to.len().min(1);
        self.bytes.read(&mut to[..len])
    }
}

#[test]
fn a_stream_that_comes_byte_by_byte_reads_as_the_file_does() {
    let order = Order::Little;
    let unknown = block(order, 0xbad, &vec![7; BLOCK_LEN_MAX]); // longer than any buffer
    let long = classic(order, true, (0, 1), &[(1, 2, &[3; 70_000]), (3, 4, b"more")]);
    let skipping = [section(order), unknown, mixed()].concat();
    for file in [mixed(), long, skipping, mixed()[..300].to_vec(), b"no capture".to_vec()] {
        let mut reader = Reader::unread(Dripping { bytes: &file, dry: false });
        let mut packets = Vec::new();
        let error = loop {
            match reader.step() {
                Ok(Step::Packet) => {
                    let r = reader.current().unwrap();
                    let packet = (r.interface, r.time_ns, r.orig_len, r.link_type.0);
                    packets.push((packet.0, packet.1, packet.2, packet.3, r.data.to_vec()));
                }
                Ok(Step::Blocked | Step::Busy) => assert!(reader.current().is_none()),
                Ok(Step::End) => break None,
                Err(e) => break Some(e.to_string()),
            }
        };
        let (whole, whole_error) = read_all(&file);
        assert_eq!(error, whole_error.map(|e| e.to_string()));
        assert!(packets == whole);
    }
}

#[test]
fn a_stream_that_has_ended_is_not_asked_again() {
    // A dripping stream that has ended reports its end only in every second read, as a FIFO may.
    for file in [&b""[..], b"x", b"\n\r\r\n", &mixed()[..30], &mixed()[..50]] {
        let mut reader = Reader::unread(Dripping { bytes: file, dry: false });
        let steps = 2 * file.len() + 3;
        let error = (0..steps).find_map(|_| reader.step().err()).expect("it comes to an end");
        assert!(matches!(error.fault, Fault::Truncated { .. }), "{error}");
    }
}

#[test]
fn blocks_without_packets_do_not_keep_a_step_for_ever() {
    let empty = block(Order::Little, 0xbad, b"");
    let file = [section(Order::Little), empty.repeat(1000)].concat();
    let mut reader = Reader::new(&file[..]).unwrap();
    let steps: Vec<Step> = (0..10).map(|_| reader.step().unwrap()).collect();
    assert_eq!(steps[0], Step::Busy);
    assert_eq!(steps.last(), Some(&Step::End));
}

fn written(packets: &[(u32, u64, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file);
    assert_eq!(writer.add_interface("veth0").unwrap(), 0);
    assert_eq!(writer.add_interface("").unwrap(), 1);
    for (interface, time_ns, surplus, data) in packets {
        let orig_len = data.len() as u32 + surplus;
        writer.write(*interface, *time_ns, orig_len, data).unwrap();
    }
    writer.flush().unwrap();
    assert_eq!(writer.packets_whole(), packets.len() as u64);
    assert_eq!(writer.whole_len(), writer.sink().len() as u64);
    drop(writer);
    file
}

#[test]
fn the_writer_output_equals_the_golden_bytes() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file);
    writer.add_interface("eth0").unwrap();
    writer.write(0, 0x0102_0304_0506_0708, 9, b"hello").unwrap();
    drop(writer); // flushes
    #[rustfmt::skip]
    let golden = [
        0x0a, 0x0d, 0x0d, 0x0a,  28, 0, 0, 0,  0x4d, 0x3c, 0x2b, 0x1a,  1, 0, 0, 0,
        255, 255, 255, 255,  255, 255, 255, 255,  28, 0, 0, 0,

        1, 0, 0, 0,  40, 0, 0, 0,  1, 0, 0, 0,  0, 0, 0, 0,
        2, 0, 4, 0,  b'e', b't', b'h', b'0',  9, 0, 1, 0,  9, 0, 0, 0,  0, 0, 0, 0,
        40, 0, 0, 0,

        6, 0, 0, 0,  40, 0, 0, 0,  0, 0, 0, 0,  4, 3, 2, 1,  8, 7, 6, 5,
        5, 0, 0, 0,  9, 0, 0, 0,  b'h', b'e', b'l', b'l', b'o', 0, 0, 0,  40, 0, 0, 0,
    ];
    assert_eq!(file, golden);
}

#[test]
fn the_writer_refuses_what_no_reader_would_take() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file);
    writer.add_interface("a").unwrap();
    let big = vec![0; PACKET_LEN_MAX + 1];
    for (interface, orig_len, data) in [(1, 1, &b"x"[..]), (0, 0, b"x"), (0, u32::MAX, &big)] {
        let error = writer.write(interface, 1, orig_len, data).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    assert!(writer.add_interface(&"n".repeat(256)).is_err());
    writer.write(0, 1, PACKET_LEN_MAX as u32, &big[1..]).unwrap();
    drop(writer);
    assert_eq!(read_all(&file).0.len(), 1);
}

#[test]
fn a_writer_that_is_given_up_writes_nothing_more() {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file);
    writer.add_interface("a").unwrap();
    writer.write(0, 1, 4, b"kept").unwrap();
    writer.flush().unwrap();
    writer.write(0, 1, 4, b"lost").unwrap();
    writer.give_up();
    assert!(writer.write(0, 1, 4, b"more").is_err() && writer.flush().is_err());
    assert_eq!(writer.packets_whole(), 1);
    drop(writer);
    assert!(read_all(&file).0.iter().map(|packet| &packet.4).eq([b"kept"]));
}

#[test]
fn tcpdump_reads_what_the_writer_writes() {
    let mut bytes = vec![2; 60];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]); // an EtherType for local experiments
    let frame = |n: u64| (0, 1_700_000_000_000_000_000 + n, 4, bytes.clone());
    let file = written(&(0..50).map(frame).collect::<Vec<_>>());
    let mut command = Command::new("tcpdump");
    command.args(["-r", "-", "-nn", "-e", "--nano"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return println!("skipped: tcpdump is not installed");
        }
        child => child.unwrap(),
    };
    child.stdin.take().unwrap().write_all(&file).unwrap();
    let output = child.wait_with_output().unwrap();
    let (text, said) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&text);
    let packets = text.lines().filter(|line| line.contains("length 64")).count();
    assert_eq!(packets, 50, "{text}{said}");
    assert!(text.contains(".000000049 "), "{text}");
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        packets in prop::collection::vec((0u32..2, any::<u64>(), 0u32..2000, payload()), 0..20),
    ) {
        let (read, error) = read_all(&written(&packets));
        prop_assert!(error.is_none());
        let expected = packets.into_iter().map(|(id, time, surplus, data)| {
            (id, Some(time), data.len() as u32 + surplus, 1, data)
        });
        prop_assert_eq!(read, expected.collect::<Vec<_>>());
    }

    #[test]
    fn classic_files_are_read_in_both_orders_and_resolutions(
        packets in prop::collection::vec((any::<u32>(), 0u32..1_000_000, payload()), 0..20),
        big: bool,
        nanos: bool,
    ) {
        let order = if big { Order::Big } else { Order::Little };
        let records: Vec<_> = packets.iter().map(|(s, f, data)| (*s, *f, &data[..])).collect();
        let (read, error) = read_all(&classic(order, nanos, (65_535, 1), &records));
        prop_assert!(error.is_none());
        let unit_ns = if nanos { 1 } else { 1000 };
        let expected = packets.into_iter().map(|(s, f, data)| {
            let time_ns = u64::from(s) * 1_000_000_000 + u64::from(f) * unit_ns;
            (0, Some(time_ns), data.len() as u32 + 4, 1, data)
        });
        prop_assert_eq!(read, expected.collect::<Vec<_>>());
    }
}
