//! Operations on many frames at once, with the widest vectors that the CPU has.
//!
//! A build for any x86-64 has 16-byte vectors. One indirect call a batch buys it the 32-byte ones
//! of the machine that it runs on; docs/adr/0006 has the figures.

use crate::handle::{self, Common, FLAG};
use crate::meta::Meta;

/// A hot line as machine words.
#[repr(align(64))]
pub(crate) struct Line(pub [u64; 8]);

/// The table of hot lines, and the line of a new packet.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub table: *mut Meta,
    pub blank: &'a Line,
}

impl Lines<'_> {
    #[inline(always)]
    fn place(&self, handle: u32) -> *mut Meta {
        self.table.wrapping_add(handle::frame(handle) as usize)
    }

    /// Writes the blank line to the handle's frame.
    ///
    /// # Safety
    /// As [`Bulk::write`], of one handle.
    #[inline(always)]
    pub unsafe fn write(self, handle: u32) {
        // SAFETY: the caller guarantees that the frame's line is in the table and that no other
        // thread accesses it.
        unsafe { self.place(handle).cast::<[u64; 8]>().write(self.blank.0) }
    }
}

/// The operations for one kind of CPU.
pub(crate) struct Bulk {
    /// Writes the blank line to each handle's frame.
    ///
    /// # Safety
    /// Each handle's line lies in the table, and no other thread reads or writes it meanwhile.
    pub write: unsafe fn(Lines<'_>, &[u32]),
    /// Writes the lines as `write` does, and stores each frame's handle, with a tag, in a slot.
    ///
    /// # Safety
    /// As for `write`.
    pub begin: unsafe fn(Lines<'_>, &[u32], &mut [u32], u32),
    /// Returns the bits that all handles share.
    pub common: fn(&[u32]) -> Common,
    /// Returns a bit mask of those handles, of at most [`FLAGS_MAX`], that are flagged.
    pub flagged: fn(&[u32]) -> u64,
}

/// Most handles whose flags are tested in one call.
pub(crate) const FLAGS_MAX: usize = 64;

/// The operations in portable code, for any CPU.
pub(crate) static PORTABLE: Bulk = Bulk {
    write: portable_write,
    begin: portable_begin,
    common: Common::of,
    flagged: portable_flagged,
};

#[cfg(all(target_arch = "x86_64", not(miri)))]
static AVX2: Bulk =
    Bulk { write: avx2::write, begin: avx2::begin, common: avx2::common, flagged: avx2::flagged };

/// Returns the fastest operations that this CPU has.
pub(crate) fn best() -> &'static Bulk {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx2") {
        return &AVX2;
    }
    &PORTABLE
}

/// Writes the hot lines of free frames, on any CPU.
///
/// # Safety
/// As [`Bulk::write`].
unsafe fn portable_write(lines: Lines<'_>, frames: &[u32]) {
    for &h in frames {
        // SAFETY: the caller guarantees what `Bulk::write` requires.
        unsafe { lines.write(h) }
    }
}

/// Writes the hot lines of free frames and stores their handles, on any CPU.
///
/// # Safety
/// As [`Bulk::begin`].
unsafe fn portable_begin(lines: Lines<'_>, frames: &[u32], slots: &mut [u32], tag: u32) {
    // SAFETY: the caller guarantees what `Bulk::begin` requires.
    unsafe { portable_write(lines, frames) }
    for (slot, &frame) in slots.iter_mut().zip(frames) {
        *slot = handle::retag(frame, tag);
    }
}

fn portable_flagged(handles: &[u32]) -> u64 {
    let bits = handles.iter().take(FLAGS_MAX).zip(0..);
    bits.fold(0, |bits, (h, i)| bits | u64::from(h >> FLAG.ilog2()) << i)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_load_si256, _mm256_loadu_si256,
        _mm256_movemask_ps, _mm256_or_si256, _mm256_set1_epi32, _mm256_setzero_si256,
        _mm256_slli_epi32, _mm256_store_si256, _mm256_storeu_si256,
    };

    use super::{Common, FLAGS_MAX, Line, Lines, Meta, handle, portable_flagged};

    /// Returns the blank line in two registers.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(blank: &Line) -> [__m256i; 2] {
        let start = blank.0.as_ptr().cast::<__m256i>();
        // SAFETY: a line has 64 bytes and is aligned to 64 bytes, so both halves can be loaded.
        unsafe { [_mm256_load_si256(start), _mm256_load_si256(start.add(1))] }
    }

    /// Writes the hot line of one free frame.
    ///
    /// # Safety
    /// As [`super::Bulk::write`], of one handle.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn write_one(lines: Lines<'_>, halves: [__m256i; 2], handle: u32) {
        let place = lines.place(handle).cast::<__m256i>();
        // SAFETY: the caller guarantees that the frame's line is in the table and no other thread
        // accesses it; a line is aligned to its size.
        unsafe {
            _mm256_store_si256(place, halves[0]);
            _mm256_store_si256(place.add(1), halves[1]);
        }
    }

    /// Writes the lines of eight frames: first every first half, then every second half. The CPU
    /// then requests lines that another CPU has at the same time; if each line were written as a
    /// whole, its second store would delay the first store of the next line (docs/adr/0006).
    ///
    /// # Safety
    /// As [`super::Bulk::write`]; `frames` are indices of frames.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn write_eight(lines: Lines<'_>, halves: [__m256i; 2], frames: __m256i) {
        const { assert!(size_of::<Meta>() == 64 && (handle::INDEX as u64) << 6 <= u32::MAX as u64) };
        let mut offsets_bytes = [0u32; 8];
        let table = lines.table.cast::<u8>();
        // SAFETY: the array has 32 bytes, and the access needs no alignment.
        unsafe {
            let offsets = _mm256_slli_epi32::<6>(frames);
            _mm256_storeu_si256(offsets_bytes.as_mut_ptr().cast(), offsets);
        }
        for (half, value) in halves.into_iter().enumerate() {
            for offset in offsets_bytes {
                let place = table.wrapping_add(offset as usize).cast::<__m256i>();
                // SAFETY: the caller guarantees that the frames' lines are in the table and no
                // other thread accesses them; a line is aligned to its size.
                unsafe { _mm256_store_si256(place.wrapping_add(half), value) }
            }
        }
    }

    /// Writes the hot lines of free frames, with AVX2.
    ///
    /// # Safety
    /// As [`super::Bulk::write`].
    pub unsafe fn write(lines: Lines<'_>, frames: &[u32]) {
        // SAFETY: `best` has checked that the CPU has AVX2; the caller guarantees the rest.
        unsafe { write_all(lines, frames) }
    }

    /// Writes the hot lines of free frames and stores their handles, with AVX2.
    ///
    /// # Safety
    /// As [`super::Bulk::begin`].
    pub unsafe fn begin(lines: Lines<'_>, frames: &[u32], slots: &mut [u32], tag: u32) {
        // SAFETY: as in `write`.
        unsafe { begin_all(lines, frames, slots, tag) }
    }

    pub fn common(handles: &[u32]) -> Common {
        // SAFETY: `best` has checked that the CPU has AVX2.
        unsafe { common_of_all(handles) }
    }

    pub fn flagged(handles: &[u32]) -> u64 {
        // SAFETY: `best` has checked that the CPU has AVX2.
        unsafe { flagged_of_all(handles) }
    }

    #[target_feature(enable = "avx2")]
    fn flagged_of_all(handles: &[u32]) -> u64 {
        let (groups, rest) = handles[..handles.len().min(FLAGS_MAX)].as_chunks::<8>();
        let mut bits = portable_flagged(rest) << (groups.len() * 8 % FLAGS_MAX);
        for (i, group) in groups.iter().enumerate() {
            // SAFETY: the group has 32 bytes, and the load needs no alignment.
            let group = unsafe { _mm256_loadu_si256(group.as_ptr().cast()) };
            // The flag is the highest bit of a handle, which movemask reads as the sign.
            let signs = _mm256_movemask_ps(_mm256_castsi256_ps(group)) as u32;
            bits |= u64::from(signs) << (i * 8);
        }
        bits
    }

    #[target_feature(enable = "avx2")]
    unsafe fn write_all(lines: Lines<'_>, frames: &[u32]) {
        let halves = halves(lines.blank);
        for &h in frames {
            // SAFETY: the caller guarantees what `Bulk::write` requires.
            unsafe { write_one(lines, halves, h) }
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn begin_all(lines: Lines<'_>, frames: &[u32], slots: &mut [u32], tag: u32) {
        let (halves, index) = (halves(lines.blank), _mm256_set1_epi32(handle::INDEX as i32));
        let tags = _mm256_set1_epi32(tag as i32);
        let (groups, rest) = frames.as_chunks::<8>();
        let (slot_groups, last) = slots.as_chunks_mut::<8>();
        for (group, slots) in groups.iter().zip(slot_groups) {
            // SAFETY: both groups have 32 bytes, and the accesses need no alignment; the caller
            // guarantees the frames' lines, as for `write`.
            unsafe {
                let frames = _mm256_loadu_si256(group.as_ptr().cast());
                let frames = _mm256_and_si256(frames, index);
                let handles = _mm256_or_si256(frames, tags);
                _mm256_storeu_si256(slots.as_mut_ptr().cast(), handles);
                write_eight(lines, halves, frames);
            }
        }
        for (&frame, slot) in rest.iter().zip(last) {
            *slot = handle::retag(frame, tag);
            // SAFETY: the caller guarantees what `Bulk::begin` requires.
            unsafe { write_one(lines, halves, frame) }
        }
    }

    #[target_feature(enable = "avx2")]
    fn common_of_all(handles: &[u32]) -> Common {
        let (groups, rest) = handles.as_chunks::<8>();
        let (mut ors, mut ands) = (_mm256_setzero_si256(), _mm256_set1_epi32(-1));
        for group in groups {
            // SAFETY: the group has 32 bytes, and the load needs no alignment.
            let group = unsafe { _mm256_loadu_si256(group.as_ptr().cast()) };
            (ors, ands) = (_mm256_or_si256(ors, group), _mm256_and_si256(ands, group));
        }
        let (mut or, mut and) = ([0u32; 8], [0u32; 8]);
        // SAFETY: each array has 32 bytes, and the stores need no alignment.
        unsafe {
            _mm256_storeu_si256(or.as_mut_ptr().cast(), ors);
            _mm256_storeu_si256(and.as_mut_ptr().cast(), ands);
        }
        Common {
            or: or.iter().chain(rest).fold(0, |or, h| or | h),
            and: and.iter().chain(rest).fold(!0, |and, h| and & h),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_cpu_does_the_same() {
        // Words that differ, over words that are none of them.
        let blank = Line([1, 2, 3, 4, 5, 6, 7, 8]);
        for bulk in [&PORTABLE, best()] {
            for n in 0..70 {
                let mut table: Vec<Line> = (0..80).map(|_| Line([u64::MAX; 8])).collect();
                let lines = Lines { table: table.as_mut_ptr().cast(), blank: &blank };
                // Every other line, last first, with other cores' bits in the handles.
                let frames: Vec<u32> = (0..n).map(|i| handle::tag(3, i) | (78 - i)).collect();
                let mut slots = vec![0; n as usize];
                // SAFETY: the lines are in the table, which this function alone has.
                unsafe { (bulk.begin)(lines, &frames, &mut slots, handle::tag(9, 5)) };
                let expected: Vec<u32> = (0..n).map(|i| handle::tag(9, 5) | (78 - i)).collect();
                assert_eq!(slots, expected);
                let begun = |i: u32| i <= 78 && i > 78 - n;
                let line = |i: u32| if begun(i) { blank.0 } else { [u64::MAX; 8] };
                assert!((0..80).all(|i| table[i as usize].0 == line(i)), "{n}");
                let (a, b) = ((bulk.common)(&frames), Common::of(&frames));
                assert_eq!(a.or, b.or);
                assert_eq!(a.and, b.and);
            }
        }
    }

    #[test]
    fn every_flagged_handle_has_its_bit() {
        for bulk in [&PORTABLE, best()] {
            for n in 0..=FLAGS_MAX {
                for at in 0..n {
                    let mut handles = vec![7; n];
                    handles[at] |= FLAG;
                    handles[n / 2] |= FLAG;
                    assert_eq!((bulk.flagged)(&handles), 1 << at | 1 << (n / 2));
                }
                assert_eq!((bulk.flagged)(&vec![7; n]), 0);
            }
        }
    }
}
