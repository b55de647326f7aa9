//! The bytes of a capture file: counted, buffered, and read in the file's byte order.
//!
//! ```text
//!  buf   [ used | current record or block | read ahead | free ]
//!               mark            at                    end
//! ```
//!
//! If the file has nothing more for now (`WouldBlock`), the current block is taken back to its
//! mark, so that it is read again, and whole, when there is more.

use std::io::{self, Read};
use std::ops::Range;

use super::{BLOCK_LEN_MAX, CaptureError, Fault};

/// The byte order of a file or section: that of the machine that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    pub fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    pub fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    pub fn u32s<const N: usize>(self, words: [[u8; 4]; N]) -> [u32; N] {
        words.map(|word| self.u32(word))
    }

    /// Returns the two 16-bit fields in a word, in the order of the file.
    pub fn halves(self, word: u32) -> (u16, u16) {
        let (high, low) = ((word >> 16) as u16, word as u16);
        match self {
            Order::Little => (low, high),
            Order::Big => (high, low),
        }
    }
}

/// A file that is being read.
///
/// `buf` holds at least one record or block. It grows to the largest one met, and never beyond
/// `BLOCK_LEN_MAX`.
#[derive(Debug)]
pub struct Input<R> {
    inner: R,
    buf: Vec<u8>,
    /// Position in the buffer at which reading resumes after the file had no more bytes for the
    /// moment.
    mark: usize,
    at: usize,
    end: usize,
    /// True if the file has ended. A FIFO could have more bytes from another writer, which are not
    /// read.
    ended: bool,
    /// Offset in the file of the first byte of the buffer.
    base: u64,
    /// Offset in the file of the current record or block, which errors name.
    start: u64,
}

impl<R: Read> Input<R> {
    pub fn new(inner: R) -> Self {
        let buf = vec![0; READ_LEN];
        Input { inner, buf, mark: 0, at: 0, end: 0, ended: false, base: 0, start: 0 }
    }

    /// Starts the next record or block, and returns its first `N` words; `None` at the end of the
    /// file.
    pub fn start<const N: usize>(&mut self) -> Result<Option<[[u8; 4]; N]>, CaptureError> {
        self.mark = self.at;
        self.start = self.base + self.at as u64;
        match self.have(N * 4)? {
            0 => Ok(None),
            _ => self.words().map(Some),
        }
    }

    /// Reads the next `N` words of the current record or block.
    pub fn words<const N: usize>(&mut self) -> Result<[[u8; 4]; N], CaptureError> {
        let range = self.take(N * 4)?;
        let mut words = [[0; 4]; N];
        words.as_flattened_mut().copy_from_slice(&self.buf[range]);
        Ok(words)
    }

    /// Takes the next `len` bytes of the current record or block; returns their range for
    /// [`Input::bytes`], valid until the next read beyond the range.
    pub fn take(&mut self, len: usize) -> Result<Range<usize>, CaptureError> {
        let found = self.have(len)?;
        if found < len {
            return Err(self.error(Fault::Truncated { want: len as u64, found: found as u64 }));
        }
        self.at += len;
        Ok(self.at - len..self.at)
    }

    /// Returns the bytes of a range that [`Input::take`] returned.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buf[range]
    }

    /// Skips up to `len` bytes, which are not read again; returns the number skipped, 0 at the end
    /// of the file.
    pub fn pass(&mut self, len: u32) -> Result<u32, CaptureError> {
        self.have(len.min(1) as usize)?;
        let passed = (self.end - self.at).min(len as usize);
        self.at += passed;
        self.keep();
        Ok(passed as u32) // at most len
    }

    /// Marks all bytes so far as consumed, so that they are not read again.
    pub fn keep(&mut self) {
        self.mark = self.at;
    }

    /// Returns `fault` as an error of the record or block that is being read.
    pub fn error(&self, fault: Fault) -> CaptureError {
        CaptureError { offset: self.start, fault }
    }

    /// Returns the offset in the file of the current record or block.
    pub fn record_offset(&self) -> u64 {
        self.start
    }

    /// Reads until the buffer has `len` more bytes or the file ends; returns the number of bytes it
    /// has.
    fn have(&mut self, len: usize) -> Result<usize, CaptureError> {
        if self.at + len > self.buf.len() {
            self.make_room(len)?;
        }
        while self.end - self.at < len && !self.ended {
            match self.inner.read(&mut self.buf[self.end..]) {
                Ok(0) => self.ended = true,
                // Limit the result: a faulty `Read` may return more than the requested number.
                Ok(n) => self.end = (self.end + n).min(self.buf.len()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.at = self.mark;
                    return Err(self.error(Fault::Io(e)));
                }
            }
        }
        Ok(len.min(self.end - self.at))
    }

    /// Makes the buffer long enough for `len` more bytes of the current block.
    fn make_room(&mut self, len: usize) -> Result<(), CaptureError> {
        self.buf.copy_within(self.mark..self.end, 0);
        self.base += self.mark as u64;
        self.at -= self.mark;
        self.end -= self.mark;
        self.mark = 0;
        let want = self.at + len;
        if want > BLOCK_LEN_MAX {
            // Callers check their own, tighter limits. This limit holds even if a caller forgets
            // its check.
            return Err(self.error(Fault::BlockLen(u32::try_from(want).unwrap_or(u32::MAX))));
        }
        if want > self.buf.len() {
            let len = want.next_power_of_two();
            self.buf.reserve_exact(len - self.buf.len());
            self.buf.resize(len, 0);
        }
        Ok(())
    }
}

impl<R> Input<R> {
    pub fn inner(&self) -> &R {
        &self.inner
    }

    pub fn inner_mut(&mut self) -> &mut R {
        &mut self.inner
    }

    #[cfg(test)]
    pub fn buffer_bytes(&self) -> usize {
        self.buf.capacity()
    }
}

/// Bytes requested in one read, unless a block is longer.
const READ_LEN: usize = 64 << 10;
const _: () = assert!(BLOCK_LEN_MAX.is_power_of_two() && READ_LEN <= BLOCK_LEN_MAX);
