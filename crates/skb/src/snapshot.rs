//! Reading and writing bytes that a peer may write at the same time.
//!
//! Such bytes never become a `&[u8]`: a data race with a reference is undefined behaviour. They are
//! moved into memory of our own by [`linerate_sys::peer::copy`]. What comes out may mix two of the
//! peer's writes; it is then ours and does not change.
//!
//! Source: docs/adr/0001, docs/adr/0012; Rust unsafe-code-guidelines issues 152 and 607.

use linerate_sys::peer::copy;

/// Copies `to.len()` bytes from `from`.
///
/// # Safety
/// `from..from + to.len()` lies in one mapping that stays mapped; no Rust reference to it exists.
#[inline]
pub(crate) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    // SAFETY: the caller guarantees the range at `from`; `to` is exclusively borrowed.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) }
}

/// Copies `from` to `to`.
///
/// # Safety
/// `to..to + from.len()` lies in one mapping that stays mapped; no Rust reference to it exists.
#[inline]
pub(crate) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    // SAFETY: the caller guarantees the range at `to`; `from` is borrowed.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_is_copied_exactly() {
        let mut memory = [0u8; 64];
        let source: Vec<u8> = (1..=64).collect();
        for off in 0..16 {
            for len in 0..40 {
                memory.fill(0);
                let mut back = vec![0; len];
                let base = memory.as_mut_ptr();
                // SAFETY: off + len < 64, and `memory` is not borrowed meanwhile.
                unsafe {
                    copy_in(&source[..len], base.add(off));
                    copy_out(base.add(off), &mut back);
                }
                assert_eq!(back, source[..len]);
                assert!(memory[..off].iter().chain(&memory[off + len..]).all(|b| *b == 0));
            }
        }
    }
}
