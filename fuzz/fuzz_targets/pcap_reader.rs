//! A capture contains the same packets whether it is read at once or in pieces. Any bytes are read
//! without a panic and within the reader's bounds.
#![no_main]

use std::io::{self, Read};

use libfuzzer_sys::fuzz_target;
use linerate_port::pcap::format::{PACKET_LEN_MAX, Reader, Step};

/// A reader that returns a few bytes at every other call.
struct Pieces<'a> {
    bytes: &'a [u8],
    len: usize,
    dry: bool,
}

impl Read for Pieces<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.dry = !self.dry;
        if self.dry {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = to.len().min(self.len);
        self.bytes.read(&mut to[..len])
    }
}

/// Returns the number of packets, a sum over all bytes read, and the error that ended reading.
fn read(mut reader: Reader<impl Read>) -> (u64, u64, Option<String>) {
    let (mut packets, mut sum) = (0, 0_u64);
    loop {
        match reader.step() {
            Ok(Step::Packet) => {
                let record = reader.current().expect("a step to a packet leads to one");
                assert!(record.data.len() <= PACKET_LEN_MAX);
                assert!(record.orig_len as usize >= record.data.len());
                packets += 1;
                let bytes = record.data.iter().map(|b| u64::from(*b));
                sum = bytes.fold(sum.wrapping_add(record.time_ns.unwrap_or(0)), |sum, b| {
                    sum.wrapping_mul(31).wrapping_add(b)
                });
            }
            Ok(Step::Blocked | Step::Busy) => {}
            Ok(Step::End) => return (packets, sum, None),
            Err(e) => {
                assert!(matches!(reader.step(), Ok(Step::End)), "an error comes once");
                return (packets, sum, Some(e.to_string()));
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let len = usize::from(bytes.last().copied().unwrap_or(1)) + 1;
    let whole = read(Reader::unread(bytes));
    let pieces = read(Reader::unread(Pieces { bytes, len, dry: false }));
    assert_eq!(whole, pieces);
});
