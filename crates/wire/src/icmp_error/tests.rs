//! Tests of ICMP errors: their bytes, what they quote, and packets that have none.

use proptest::prelude::*;

use super::*;
use crate::testing::{fix_ipv4, tcp4_frame, udp4_frame, udp6_frame};
use crate::{icmp, ip, ipv4};

const ROUTER: [u8; 4] = [192, 0, 2, 254];
const ERRORS: [IcmpError; 3] =
    [IcmpError::TimeExceeded, IcmpError::Unreachable(1), IcmpError::TooBig(1400)];

fn udp4(payload: &[u8]) -> Vec<u8> {
    udp4_frame([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), payload)
}

/// Returns the router's address of the version that `frame` has.
fn router(frame: &[u8]) -> IpAddr {
    match ip(frame) {
        Ok(IpRef::V6(_)) => "fd00::fe".parse().unwrap(),
        _ => ROUTER.into(),
    }
}

/// Returns the frame with the error about `frame`; a refusal must change nothing.
fn answer(frame: &[u8], error: IcmpError) -> Result<Vec<u8>, Malformed> {
    let from = router(frame);
    let mut answer = vec![0xee; IcmpError::header_bytes(from)];
    answer.extend(frame);
    let before = answer.clone();
    let got = HeadMut::new(&mut answer, 0).push_icmp_error(from, error);
    assert_eq!(Head::new(frame, 0).check_icmp_error(from, error), got.map(|_| ()));
    assert!(got.is_ok() || answer == before, "a refused packet is unchanged");
    answer.truncate(got?);
    Ok(answer)
}

fn refused(frame: &[u8]) -> Malformed {
    answer(frame, IcmpError::TimeExceeded).unwrap_err()
}

#[test]
fn error_over_ipv4_has_the_bytes_of_the_standards() {
    let mut frame = udp4(b"hi");
    frame.splice(12..12, [0x81, 0, 0, 5]);
    let quoted = frame[18..].to_vec();
    frame.resize(64, 0x55); // Ethernet padding is not quoted
    for (error, message) in [
        (IcmpError::TimeExceeded, [11, 0, 0x09, 0x1e, 0, 0, 0, 0]),
        (IcmpError::Unreachable(3), [3, 3, 0x11, 0x1b, 0, 0, 0, 0]),
        (IcmpError::TooBig(1400), [3, 4, 0x0b, 0xa2, 0, 0, 0x05, 0x78]),
        (IcmpError::TooBig(70_000), [3, 4, 0x11, 0x1a, 0, 0, 0xff, 0xff]),
    ] {
        let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 5, 8, 0];
        expected.extend([0x45, 0xc0, 0, 58, 0, 0, 0x40, 0, 64, 1, 0x6d, 0x04]);
        expected.extend([192, 0, 2, 254, 10, 0, 0, 1]);
        expected.extend(message);
        expected.extend(&quoted);
        assert_eq!(answer(&frame, error).unwrap(), expected, "{error:?}");
    }
}

#[test]
fn error_over_ipv6_has_the_bytes_of_the_standards() {
    let frame = udp6_frame(b"hi");
    for (error, message) in [
        (IcmpError::TimeExceeded, [3, 0, 0x97, 0x2a, 0, 0, 0, 0]),
        (IcmpError::Unreachable(4), [1, 4, 0x99, 0x26, 0, 0, 0, 0]),
        (IcmpError::TooBig(70_000), [2, 0, 0x86, 0xb9, 0, 1, 0x11, 0x70]),
    ] {
        let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];
        expected.extend([0x60, 0, 0, 0, 0, 58, 58, 64, 0xfd]);
        expected.extend([0; 14]);
        expected.push(0xfe);
        expected.extend(&frame[22..38]);
        expected.extend(message);
        expected.extend(&frame[14..]);
        assert_eq!(answer(&frame, error).unwrap(), expected, "{error:?}");
    }
}

#[test]
fn as_much_is_quoted_as_the_least_mtu_takes() {
    for (frame, most, headers) in [(udp4 as fn(&[u8]) -> Vec<u8>, 576, 28), (udp6_frame, 1280, 48)]
    {
        let overhead = frame(&[]).len() - 14;
        for quoted in [most - headers - 1, most - headers, most - headers + 1, 1480] {
            let frame = frame(&vec![7; quoted - overhead]);
            let got = answer(&frame, IcmpError::TooBig(1300)).unwrap();
            assert_eq!(got.len(), 14 + most.min(headers + quoted));
            assert!(icmp(&got).unwrap().checksum_ok());
            assert!(frame[14..].starts_with(&got[14 + headers..]));
        }
    }
}

#[test]
fn error_about_a_packet_in_several_pieces_needs_only_the_quoted_piece() {
    let from = IpAddr::from(ROUTER);
    let frame = udp4(&[7; 1000]);
    for (here, expected) in [(14 + 548, Ok(14 + 576)), (14 + 547, Err(Malformed::Short))] {
        let mut bytes = [&[0; 28], &frame[..here]].concat();
        let before = bytes.clone();
        let head = HeadMut::new(&mut bytes, frame.len() - here);
        assert_eq!(head.push_icmp_error(from, IcmpError::TimeExceeded), expected);
        assert_eq!(bytes == before, expected.is_err());
    }
}

#[test]
fn no_error_is_about_an_error_and_one_is_about_an_echo() {
    for (protocol, types) in
        [(1, &[3, 4, 5, 11, 12, 19, 255][..]), (58, &[0, 1, 2, 3, 4, 127, 137])]
    {
        for &icmp_type in types {
            let mut frame = if protocol == 1 { udp4(b"hi") } else { udp6_frame(b"hi") };
            let (protocol_at, at) = if protocol == 1 { (23, 34) } else { (20, 54) };
            (frame[protocol_at], frame[at]) = (protocol, icmp_type);
            assert_eq!(refused(&frame), Malformed::NotAnswered, "{protocol} {icmp_type}");
            frame[at] = if protocol == 1 { 8 } else { 128 };
            assert!(answer(&frame, IcmpError::TimeExceeded).is_ok());
            // Without a type it could be an error.
            frame[if protocol == 1 { 17 } else { 19 }] = if protocol == 1 { 20 } else { 0 };
            assert_eq!(refused(&frame), Malformed::NotAnswered);
        }
    }
}

#[test]
fn packets_to_groups_have_no_error_but_too_big_over_ipv6() {
    let with = |mut frame: Vec<u8>, at: usize, bytes: &[u8]| {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let (v4, v6) = (udp4(b"hi"), udp6_frame(b"hi"));
    for frame in [
        with(v4.clone(), 0, &[0xff; 6]),
        with(v4.clone(), 0, &[1, 0, 0x5e, 0, 0, 1]),
        with(v4.clone(), 30, &[224, 0, 0, 1]),
        with(v4, 30, &[255, 255, 255, 255]),
    ] {
        for error in ERRORS {
            assert_eq!(answer(&frame, error), Err(Malformed::NotAnswered));
        }
    }
    for frame in [
        with(v6.clone(), 0, &[0xff; 6]),
        with(v6.clone(), 0, &[0x33, 0x33, 0, 0, 0, 1]),
        with(v6, 38, &[0xff, 2]),
    ] {
        assert_eq!(refused(&frame), Malformed::NotAnswered);
        assert_eq!(answer(&frame, IcmpError::Unreachable(0)), Err(Malformed::NotAnswered));
        assert!(answer(&frame, IcmpError::TooBig(1400)).is_ok());
    }
}

#[test]
fn senders_that_are_no_single_host_get_no_error() {
    for src in [[0; 4], [0, 0, 0, 1], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
        let frame = udp4_frame(src.into(), [10, 0, 0, 2].into(), b"hi");
        for error in ERRORS {
            assert_eq!(answer(&frame, error), Err(Malformed::NotAnswered), "{src:?}");
        }
    }
    for src in ["::", "::1", "ff02::1"] {
        let mut frame = udp6_frame(b"hi");
        let addr: std::net::Ipv6Addr = src.parse().unwrap();
        frame[22..38].copy_from_slice(&addr.octets());
        for error in ERRORS {
            assert_eq!(answer(&frame, error), Err(Malformed::NotAnswered), "{src}");
        }
    }
    for mut frame in [udp4(b"hi"), udp6_frame(b"hi")] {
        frame[6] |= 1;
        for error in ERRORS {
            assert_eq!(answer(&frame, error), Err(Malformed::NotAnswered), "a group's MAC");
        }
    }
}

#[test]
fn later_fragments_other_protocols_and_mixed_versions_have_no_error() {
    let mut first = udp4(b"01234567");
    first[20] = 0x20;
    assert!(answer(&first, IcmpError::TimeExceeded).is_ok());
    first[21] = 1;
    assert_eq!(refused(&first), Malformed::Fragment);
    let mut first = udp6_frame(b"01234567");
    first.splice(54..54, [17, 0, 0, 1, 9, 9, 9, 9]);
    (first[19], first[20]) = (24, 44);
    assert!(answer(&first, IcmpError::TimeExceeded).is_ok());
    first[57] = 9;
    assert_eq!(refused(&first), Malformed::Fragment);
    let mut arp = udp4(b"hi");
    arp[13] = 6;
    assert_eq!(refused(&arp), Malformed::NotIp);

    let (v4, v6) = (udp4(b"hi"), udp6_frame(b"hi"));
    let check = |frame: &[u8], from: IpAddr| {
        Head::new(frame, 0).check_icmp_error(from, IcmpError::TimeExceeded)
    };
    assert_eq!(check(&v4, router(&v6)), Err(Malformed::NotIpv6));
    assert_eq!(check(&v6, router(&v4)), Err(Malformed::NotIpv4));
    let error = IcmpError::TimeExceeded;
    assert_eq!(
        HeadMut::new(&mut [0; 27], 0).push_icmp_error(router(&v4), error),
        Err(Malformed::Short)
    );
}

#[test]
fn quoted_packet_is_read_as_far_as_it_goes() {
    let tcp4 = tcp4_frame(&[1, 1, 1, 0], &[7; 700]);
    for (frame, protocol) in [
        (udp4(&[7; 700]), Protocol::UDP),
        (udp6_frame(&[7; 1400]), Protocol::UDP),
        (tcp4, Protocol::TCP),
    ] {
        let (error, whole) = (answer(&frame, IcmpError::TooBig(600)).unwrap(), ip(&frame).unwrap());
        let quoted = icmp(&error).unwrap().quoted().unwrap();
        assert_eq!((quoted.src(), quoted.dst()), (whole.src(), whole.dst()));
        assert_eq!((quoted.protocol(), quoted.ports()), (protocol, Some((1000, 2000))));
        assert!(whole.payload().starts_with(quoted.payload()) && quoted.behind() > 0);
    }
    // Old hosts quote the IP header and eight bytes, and lying ones less.
    let whole = udp4(&[7; 100]);
    for (len, expected) in
        [(28, Ok(Some((1000, 2000)))), (23, Ok(None)), (19, Err(Malformed::Short))]
    {
        let mut error = answer(&whole, IcmpError::Unreachable(3)).unwrap();
        error.truncate(42 + len);
        error[17] = (28 + len) as u8;
        fix_ipv4(&mut error);
        assert_eq!(icmp(&error).unwrap().quoted().map(|ip| ip.ports()), expected, "{len}");
    }
    let mut error = answer(&whole, IcmpError::Unreachable(3)).unwrap();
    error[34] = 8;
    assert_eq!(icmp(&error).unwrap().quoted().unwrap_err(), Malformed::NotIcmpError);
    (error[34], error[42]) = (11, 0x65);
    assert_eq!(icmp(&error).unwrap().quoted().unwrap_err(), Malformed::BadVersion);
    let mut later = udp4(b"01234567");
    later[21] = 1;
    assert_eq!(ip(&later).unwrap().ports(), None);
}

proptest! {
    #[test]
    fn every_error_has_right_checksums_and_quotes_the_packet(
        which in 0usize..3, payload in prop::collection::vec(any::<u8>(), 0..1500), error in 0usize..3,
        damage in prop::collection::vec((0usize..80, any::<u8>()), 0..4), more in 0usize..50,
    ) {
        let mut frame = match which {
            0 => udp4(&payload),
            1 => udp6_frame(&payload),
            _ => tcp4_frame(&[1, 1, 1, 0], &payload),
        };
        for (at, value) in damage {
            let at = at % frame.len();
            frame[at] = value;
        }
        frame.resize(frame.len() + more, 0xee);
        if let Ok(got) = answer(&frame, ERRORS[error]) {
            let (view, asked) = (icmp(&got).unwrap(), ip(&frame).unwrap());
            prop_assert!(view.checksum_ok() && ipv4(&got).map_or(true, |ip| ip.checksum_ok()));
            prop_assert_eq!((view.ip().dst(), view.ip().src()), (asked.src(), router(&frame)));
            let eth = crate::eth(&frame).unwrap();
            // A quote that is cut may end in the extension headers.
            let is_cut = view.payload().len() >= 548;
            let ports = view.quoted().map(|ip| ip.ports());
            prop_assert!(is_cut || ports == Ok(asked.ports()));
            prop_assert!(eth.payload().starts_with(view.payload()));
            let most = if view.is_v6() { 1280 } else { 576 };
            prop_assert!(crate::eth(&got).unwrap().payload().len() <= most);
            prop_assert_eq!(crate::eth(&got).unwrap().dst(), eth.src());
        }
    }
}

/// RFC 4884: the header gives the quote's length in words, and extensions follow it.
#[test]
fn extensions_after_a_quote_are_no_part_of_it() {
    let v6 = udp6_frame(&[7; 400]);
    for (frame, at, words, payload) in
        [(udp4(&[7; 400]), 14 + 20 + 5, 128 / 4, 128 - 20), (v6, 14 + 40 + 4, 128 / 8, 128 - 40)]
    {
        let mut error = answer(&frame, IcmpError::TimeExceeded).unwrap();
        let of = |error: &[u8]| icmp(error).unwrap().quoted().unwrap().payload().len();
        assert_eq!(of(&error), 8 + 400);
        error[at] = words;
        assert_eq!(of(&error), payload);
        error[at] = 255;
        assert_eq!(of(&error), 8 + 400, "longer than the message");
    }
}
