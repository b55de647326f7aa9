//! A ring over memory of ours, in which the test plays the kernel, honest or not.

use super::*;

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u32 = 2;
const FIRST: usize = BLOCK_HDR_BYTES;
const MAC: usize = 96;

/// Returns a ring and the address of its memory.
fn ring(vnet: bool) -> (BlockRing, *mut u8) {
    let len = BLOCK_BYTES * BLOCKS as usize;
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a fresh anonymous mapping; the ring owns and unmaps it.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
    let base = base.unwrap();
    (BlockRing::over(base, BLOCK_BYTES, BLOCKS, vnet).unwrap(), base.cast())
}

/// Writes `value` into block `block`, as the kernel would.
fn put<T>(base: *mut u8, block: usize, at: usize, value: T) {
    assert!(at + size_of::<T>() <= BLOCK_BYTES);
    // SAFETY: inside the mapping, checked above; no frame of it is lent at this moment.
    unsafe { base.add(block * BLOCK_BYTES + at).cast::<T>().write_unaligned(value) };
}

fn status(base: *mut u8, block: usize) -> u32 {
    // SAFETY: inside the mapping and aligned.
    unsafe { base.add(block * BLOCK_BYTES + STATUS_AT).cast::<u32>().read() }
}

fn hand_over(base: *mut u8, block: usize, count: u32, first: u32) {
    put(base, block, COUNT_AT, count);
    put(base, block, FIRST_AT, first);
    put(base, block, STATUS_AT, libc::TP_STATUS_USER | libc::TP_STATUS_BLK_TMO);
}

fn header(mac: usize, snap: usize, next: usize) -> libc::tpacket3_hdr {
    // SAFETY: plain integers; all zeroes is a valid value.
    let mut hdr: libc::tpacket3_hdr = unsafe { std::mem::zeroed() };
    hdr.tp_mac = mac as u16;
    hdr.tp_snaplen = snap as u32;
    hdr.tp_len = snap as u32;
    hdr.tp_next_offset = next as u32;
    hdr.tp_status = libc::TP_STATUS_USER;
    hdr
}

/// Fills block `block` with `count` frames of 20 bytes, each filled with its number.
fn fill(base: *mut u8, block: usize, count: u8) {
    for i in 0..count {
        let at = FIRST + usize::from(i) * 128;
        put(base, block, at, header(MAC, 20, 128));
        put(base, block, at + MAC, [i; 20]);
    }
    hand_over(base, block, count.into(), FIRST as u32);
}

#[test]
fn a_block_of_the_kernel_is_not_read() {
    let (mut ring, base) = ring(false);
    fill(base, 0, 1);
    put(base, 0, STATUS_AT, libc::TP_STATUS_KERNEL);
    assert!(ring.next_block().is_none());
}

#[test]
fn reading_stops_in_the_middle_of_a_block_and_continues_there() {
    let (mut ring, base) = ring(false);
    fill(base, 0, 3);
    fill(base, 1, 1);
    let mut block = ring.next_block().unwrap();
    assert_eq!(block.next_frame().unwrap().data, [0; 20]);
    assert_eq!(block.next_frame().unwrap().data, [1; 20]);
    drop(block);
    assert_ne!(status(base, 0), libc::TP_STATUS_KERNEL);
    let mut block = ring.next_block().unwrap();
    assert_eq!(block.frames_left(), 1);
    assert_eq!(block.next_frame().unwrap().data, [2; 20]);
    assert!(block.next_frame().is_none());
    assert_ne!(status(base, 0), libc::TP_STATUS_KERNEL, "a frame may still be lent");
    drop(block);
    assert_eq!(status(base, 0), libc::TP_STATUS_KERNEL);
    ring.next_block().unwrap().release();
    assert_eq!(status(base, 1), libc::TP_STATUS_KERNEL);
    assert!(ring.next_block().is_none());
    fill(base, 0, 1);
    assert!(ring.next_block().is_some(), "the ring wraps");
    assert_eq!(ring.bad_blocks(), 0);
}

#[test]
fn a_forgotten_block_is_given_back_before_the_next() {
    let (mut ring, base) = ring(false);
    fill(base, 0, 1);
    let mut block = std::mem::ManuallyDrop::new(ring.next_block().unwrap());
    assert!(block.next_frame().is_some());
    assert!(ring.next_block().is_none());
    assert_eq!(status(base, 0), libc::TP_STATUS_KERNEL);
}

#[test]
fn an_empty_block_is_passed_over() {
    let (mut ring, base) = ring(false);
    hand_over(base, 0, 0, FIRST as u32);
    fill(base, 1, 1);
    let mut block = ring.next_block().unwrap();
    assert_eq!(block.next_frame().unwrap().data, [0; 20]);
    assert_eq!(status(base, 0), libc::TP_STATUS_KERNEL);
}

#[test]
fn places_that_the_kernel_has_not_written_are_passed_over() {
    for unwritten in [vec![0], vec![1, 2], vec![3], vec![0, 1, 2, 3]] {
        let (mut ring, base) = ring(true);
        fill(base, 0, 4);
        for i in &unwritten {
            // The lengths are those of an earlier round, or 0.
            let mut hdr = header(if i % 2 == 0 { 0 } else { MAC }, 20, 128);
            hdr.tp_status = libc::TP_STATUS_VLAN_VALID;
            put(base, 0, FIRST + i * 128, hdr);
        }
        let mut block = ring.next_block().unwrap();
        for i in (0..4).filter(|i| !unwritten.contains(i)) {
            assert_eq!(block.next_frame().unwrap().data, [i as u8; 20]);
            block.unread();
            assert_eq!(block.next_frame().unwrap().data, [i as u8; 20]);
        }
        assert_eq!(block.next_frame(), None);
        drop(block);
        assert_eq!((ring.bad_blocks(), ring.lost_frames()), (0, 0));
        assert_eq!(status(base, 0), libc::TP_STATUS_KERNEL);
    }
}

#[test]
fn every_field_is_where_the_kernel_puts_it() {
    let (mut ring, base) = ring(true);
    let mut hdr = header(MAC, 4, 0);
    hdr.tp_len = 9000;
    (hdr.tp_sec, hdr.tp_nsec) = (7, 8);
    hdr.tp_status |= libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
    (hdr.hv1.tp_vlan_tpid, hdr.hv1.tp_vlan_tci) = (0x88a8, 0x2005);
    let vnet = VnetHdr { gso_size: 1448, ..VnetHdr::NONE };
    put(base, 0, FIRST, hdr);
    put(base, 0, FIRST + PKTTYPE_AT, libc::PACKET_OTHERHOST);
    put(base, 0, FIRST + MAC - VNET_HDR_BYTES, vnet.to_bytes());
    put(base, 0, FIRST + MAC, *b"data");
    hand_over(base, 0, 1, FIRST as u32);
    let expected = RxFrame {
        data: b"data",
        len: 9000,
        vnet: Some(vnet),
        vlan: Some(Vlan { tpid: 0x88a8, tci: 0x2005 }),
        status: hdr.tp_status,
        pkttype: libc::PACKET_OTHERHOST,
        sec: 7,
        nsec: 8,
    };
    assert_eq!(ring.next_block().unwrap().next_frame(), Some(expected));
}

#[test]
fn a_frame_that_reaches_outside_its_block_ends_it_and_is_counted() {
    let end = BLOCK_BYTES - FIRST;
    let bad = [
        (header(MAC, end - MAC + 1, 0), FIRST),
        (header(MAC, usize::MAX, 0), FIRST),
        (header(u16::MAX.into(), 0, 0), FIRST),
        (header(0, 20, 0), FIRST),
        (header(libc::TPACKET3_HDRLEN + VNET_HDR_BYTES - 1, 20, 0), FIRST),
        (header(MAC, 20, 0), 0),
        (header(MAC, 20, 0), FIRST - 1),
    ];
    for (hdr, first) in bad {
        let (mut ring, base) = ring(true);
        put(base, 0, first, hdr);
        hand_over(base, 0, 5, first as u32);
        assert_eq!(ring.next_block().unwrap().next_frame(), None, "{hdr:?} at {first}");
        assert_eq!((ring.bad_blocks(), status(base, 0)), (1, libc::TP_STATUS_KERNEL));
        assert_eq!(ring.lost_frames(), 5);
    }
    let (mut ring, base) = ring(true);
    put(base, 0, FIRST, header(MAC, end - MAC, 0));
    hand_over(base, 0, 1, FIRST as u32);
    assert_eq!(ring.next_block().unwrap().next_frame().unwrap().data.len(), end - MAC);
}

#[test]
fn a_first_frame_outside_the_block_is_not_read() {
    for first in [BLOCK_BYTES as u32 - 67, BLOCK_BYTES as u32, u32::MAX] {
        let (mut ring, base) = ring(false);
        hand_over(base, 0, 1, first);
        assert_eq!(ring.next_block().unwrap().next_frame(), None);
        assert_eq!(ring.bad_blocks(), 1);
    }
}

#[test]
fn a_distance_that_leads_nowhere_ends_the_block() {
    for next in [0, FRAME_HDR_BYTES - 1, BLOCK_BYTES, u32::MAX as usize] {
        let (mut ring, base) = ring(false);
        put(base, 0, FIRST, header(MAC, 20, next));
        hand_over(base, 0, u32::MAX, FIRST as u32);
        let mut block = ring.next_block().unwrap();
        let read = std::iter::from_fn(|| block.next_frame().map(drop)).count();
        drop(block);
        assert!(read <= 1, "{next}: {read}");
        assert_eq!((ring.bad_blocks(), status(base, 0)), (1, libc::TP_STATUS_KERNEL));
    }
}

#[test]
fn a_count_beyond_what_a_block_can_hold_is_bounded_by_the_block() {
    let (mut ring, base) = ring(false);
    for at in (FIRST..BLOCK_BYTES - FRAME_HDR_BYTES).step_by(FRAME_HDR_BYTES) {
        put(base, 0, at, header(libc::TPACKET3_HDRLEN, 0, FRAME_HDR_BYTES));
    }
    hand_over(base, 0, u32::MAX, FIRST as u32);
    let mut block = ring.next_block().unwrap();
    let read = std::iter::from_fn(|| block.next_frame().map(drop)).count();
    drop(block);
    assert!(read <= BLOCK_BYTES / FRAME_HDR_BYTES);
    assert_eq!(ring.bad_blocks(), 1);
    assert_eq!(ring.lost_frames(), (BLOCK_BYTES / FRAME_HDR_BYTES) as u64);
}
