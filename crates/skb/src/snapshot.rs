//! Reading and writing bytes that a peer may be writing at the same moment.
//!
//! Such bytes never become a `&[u8]`: a data race with a reference is undefined behaviour. They are
//! moved by volatile accesses, one machine word at a time where alignment allows, into memory of
//! our own. What comes out may mix two of the peer's writes; it is then ours and does not change.
//!
//! Source: docs/adr/0001; Rust unsafe-code-guidelines issues 152 and 607.

const WORD: usize = size_of::<u64>();

/// Copies `to.len()` bytes from `from`.
///
/// # Safety
/// `from..from + to.len()` lies in one mapping that stays mapped; no Rust reference to it exists.
pub(crate) unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    let mut i = 0;
    while i < to.len() {
        // SAFETY: i < to.len(), so the address is inside the range that the caller vouches for; a
        // word is read only if it is aligned and ends inside the range.
        unsafe {
            let p = from.add(i);
            if p.addr() % WORD == 0 && to.len() - i >= WORD {
                to[i..i + WORD].copy_from_slice(&p.cast::<u64>().read_volatile().to_ne_bytes());
                i += WORD;
            } else {
                to[i] = p.read_volatile();
                i += 1;
            }
        }
    }
}

/// Copies `from` to `to`.
///
/// # Safety
/// `to..to + from.len()` lies in one mapping that stays mapped; no Rust reference to it exists.
pub(crate) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let mut i = 0;
    while i < from.len() {
        // SAFETY: as in `copy_out`.
        unsafe {
            let p = to.add(i);
            if let (0, Some(word)) = (p.addr() % WORD, from[i..].first_chunk::<WORD>()) {
                p.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
                i += WORD;
            } else {
                p.write_volatile(from[i]);
                i += 1;
            }
        }
    }
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
