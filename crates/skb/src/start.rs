//! Writing the hot lines of many frames at once.
//!
//! One indirect call a batch buys a build for any x86-64 the stores of the machine it runs on
//! (docs/adr/0006 has the figures).

use crate::handle;
use crate::meta::Meta;

/// Writes the hot line of each handle's frame, in the table at the pointer.
///
/// # Safety
/// Each handle's line lies in the table, and nobody else reads or writes it meanwhile; the CPU is
/// the one that [`best`] was asked on.
pub(crate) type WriteLines = unsafe fn(*mut Meta, &[u32], u32);

/// The way that suits this CPU.
pub(crate) fn best() -> WriteLines {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return avx2;
    }
    portable
}

/// # Safety
/// As [`WriteLines`].
unsafe fn portable(table: *mut Meta, handles: &[u32], headroom: u32) {
    // SAFETY: the caller's promise.
    unsafe { write(table, handles, headroom) }
}

/// # Safety
/// As [`WriteLines`], on a CPU with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(table: *mut Meta, handles: &[u32], headroom: u32) {
    // SAFETY: the caller's promise.
    unsafe { write(table, handles, headroom) }
}

/// # Safety
/// As [`WriteLines`].
#[inline(always)]
unsafe fn write(table: *mut Meta, handles: &[u32], headroom: u32) {
    let mut groups = handles.chunks_exact(16);
    for group in &mut groups {
        // All loaded before the first store: a load behind stores to addresses 4 KiB apart waits
        // for them, and whether it does depends on where the stack lies.
        let mut lines = [std::ptr::null_mut(); 16];
        for (line, &h) in lines.iter_mut().zip(group) {
            *line = table.wrapping_add(handle::frame(h) as usize);
        }
        for line in lines {
            // SAFETY: the caller's promise.
            unsafe { line.write(Meta::new(headroom)) }
        }
    }
    for &h in groups.remainder() {
        // SAFETY: the caller's promise.
        unsafe { table.wrapping_add(handle::frame(h) as usize).write(Meta::new(headroom)) }
    }
}
