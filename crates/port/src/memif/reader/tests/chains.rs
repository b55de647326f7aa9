//! Packets in several parts: many of them, and ones whose end has not arrived.

use super::*;

#[test]
fn a_packet_that_needs_the_place_of_what_is_held_gets_it() {
    let (mut reader, mut puppet, _) = reader_and_puppet(3);
    puppet.send(0, 1);
    let held = reader.frames(1).next().unwrap().hold();
    (0..7).for_each(|i| puppet.write(i, &[i as u8; 10], NEXT));
    puppet.post(7);
    assert_eq!(reader.frames(8).count(), 0);
    assert!(held.is_copied());
    assert_eq!(puppet.back(), 1);
    puppet.write(0, &[7; 10], 0);
    puppet.post(1);
    let long = reader.frames(8).next().map(|frame| bytes(&frame)).unwrap();
    assert_eq!(long, (0..80).map(|at| at / 10).collect::<Vec<u8>>());
    assert_eq!(held_bytes(&held), packet(0, 1500));
    assert_eq!(reader.counts().protocol_errors, 0);
}

#[test]
fn a_packet_of_more_parts_than_any_sender_makes_ends_the_connection() {
    for (parts, errors) in [(1024, 0), (1025, 1)] {
        let (mut reader, mut puppet, _) = reader_and_puppet(11);
        (0..parts).for_each(|i| {
            let slot = puppet.ring.free_slot(i) as u16;
            let flags = if i + 1 < parts { NEXT } else { 0 };
            let offset = BUFFERS_AT as u32;
            puppet.ring.shared.set(slot, Desc { flags, region: 0, len: u32::from(i == 0), offset });
        });
        puppet.post(parts);
        let mut frames = 0;
        until("a packet, or the end of the connection", || {
            frames += reader.frames(8).count();
            frames > 0 || reader.counts().protocol_errors > 0
        });
        assert_eq!((frames, reader.counts().protocol_errors), (1 - errors, errors as u64));
    }
}
