//! Packets of several frames, and packets of several handles.
//!
//! The head's meta line has the totals and the last fragment; fragments are linked by `next`. Only
//! the head counts references: a chain is shared as a whole. All frames of a chain are of one umem.
//! A head with fragments, or with more than one handle, has [`FLAG`] set in every handle on it.

use std::sync::atomic::{Ordering, fence};

use crate::meta::Meta;
use crate::segments::{read_frame, write_frame};
use crate::thread;
use crate::umem::{FLAG, ID_SHIFT, Umem};

/// Most frames in a chain: a 64 KiB superframe in the smallest frames, and its headers.
pub(crate) const FRAMES_MAX: usize = 260;

fn line(umem: &Umem, handle: u32) -> &Meta {
    // SAFETY: the handle is of a live skb of the caller's or of a fragment of one, so the line is
    // initialised; it is written only by an exclusive owner, which the caller then is.
    unsafe { umem.meta(handle).as_ref() }
}

/// Bytes of packets that the caller owns.
#[inline]
pub(crate) fn bytes(handles: &[u32]) -> u64 {
    let length = |meta: &Meta| u64::from(meta.len + meta.data_len);
    match umem_of_all(handles) {
        // The rule; finding the umem once is worth half of the loop.
        Some(umem) => handles.iter().map(|&h| length(line(umem, h))).sum(),
        None => handles.iter().map(|&h| length(line(Umem::of(h), h))).sum(),
    }
}

/// The umem of all `handles`, if it is one; flags do not matter.
#[inline]
pub(crate) fn umem_of_all(handles: &[u32]) -> Option<&'static Umem> {
    let (or, and) = handles.iter().fold((0, !0), |(or, and), h| (or | h, and & h));
    let ids = |h: u32| (h & !FLAG) >> ID_SHIFT;
    (ids(or) == ids(and)).then(|| Umem::of(or))
}

/// Makes `bytes` of the tailroom data in packets that the caller owns, none flagged.
pub(crate) fn commit(umem: &Umem, handles: &[u32], bytes: usize) {
    let frame_bytes = umem.frame_bytes();
    for &h in handles {
        // SAFETY: an unflagged handle is the only one on its frame, and the caller owns it.
        let meta = unsafe { umem.meta(h).as_mut() };
        let room = frame_bytes - meta.off - meta.len;
        meta.len += bytes.min(room as usize) as u32;
    }
}

/// Counts one more handle on `head`.
pub(crate) fn retain(umem: &'static Umem, head: u32) {
    // As Arc does: handles that were forgotten, two billion of them, must not wrap the count.
    if line(umem, head).refs.fetch_add(1, Ordering::Relaxed) > u32::MAX / 2 {
        std::process::abort();
    }
    umem.extra.fetch_add(1, Ordering::Relaxed);
    thread::with_page(umem, |page| page.cloned.add(1));
}

/// Gives one handle on `head` up, and the frames if it was the last.
///
/// Not counted as a packet's end: see [`unlink`].
fn put_down(umem: &'static Umem, head: u32, mut keep: impl FnMut(&[u32])) {
    let refs = &line(umem, head).refs;
    if refs.load(Ordering::Acquire) != 1 {
        // Before the handle is given up: afterwards the umem may be gone.
        umem.extra.fetch_sub(1, Ordering::Relaxed);
        if refs.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // The others left between the two steps, each having taken one off `extra`.
        fence(Ordering::Acquire);
        umem.extra.fetch_add(1, Ordering::Relaxed);
    }
    let (mut next, frags) = (line(umem, head).next, line(umem, head).frags);
    umem.linked.fetch_sub(i64::from(frags), Ordering::Relaxed);
    // Fragments first, so that the head keeps the umem alive to the end.
    for _ in 0..frags {
        let this = next;
        next = line(umem, this).next;
        keep(&[this]);
    }
    keep(&[head & !FLAG]);
}

/// Frees a flagged handle whose packet has been counted: `keep` takes each frame that became free.
pub(crate) fn unlink(umem: &'static Umem, head: u32, keep: impl FnMut(&[u32])) {
    put_down(umem, head, keep);
}

/// Gives up a handle on a shared packet that lives on as a copy.
pub(crate) fn release(umem: &'static Umem, head: u32) {
    // The copy was allocated as one more packet; this handle's end balances it.
    thread::with_page(umem, |page| page.unused.add(1));
    put_down(umem, head, |frames| thread::keep(umem, frames));
}

/// Hangs `fragment` (and what hangs behind it) behind `head`; the flagged head, or `None` if the
/// two cannot be joined.
pub(crate) fn append(umem: &'static Umem, head: u32, fragment: u32) -> Option<u32> {
    if !std::ptr::eq(umem, Umem::of(fragment)) {
        return None;
    }
    // Through shared references: another handle's owner may be reading either line, and the two may
    // even be one.
    let alone = |handle| line(umem, handle).refs.load(Ordering::Acquire) == 1;
    let frags = |handle| usize::from(line(umem, handle).frags);
    if !alone(head) || !alone(fragment) || frags(head) + frags(fragment) + 2 > FRAMES_MAX {
        return None;
    }
    // SAFETY: each of the caller's two skbs is the only handle on its frame, so they are two frames
    // and nobody else reads or writes their lines.
    let (h, f) = unsafe { (umem.meta(head).as_mut(), umem.meta(fragment).as_mut()) };
    let plain = fragment & !FLAG;
    match h.last {
        0 => h.next = plain,
        // SAFETY: the last fragment of a chain that the caller owns.
        last => unsafe { umem.meta(last).as_mut() }.next = plain,
    }
    h.last = if f.last == 0 { plain } else { f.last };
    h.data_len += f.len + f.data_len;
    h.frags += 1 + f.frags;
    (f.last, f.data_len, f.frags) = (0, 0, 0);
    umem.linked.fetch_add(1, Ordering::Relaxed);
    // The fragment stops being a packet of its own.
    thread::with_page(umem, |page| page.unused.add(1));
    Some(head | FLAG)
}

/// Copies bytes of a chain from offset `from` on; returns how many there were.
pub(crate) fn copy_to(umem: &Umem, head: u32, from: usize, to: &mut [u8]) -> usize {
    let (mut skip, mut done, mut this) = (from, 0, head);
    for _ in 0..=line(umem, head).frags {
        let meta = line(umem, this);
        let len = meta.len as usize;
        if skip < len {
            let n = (len - skip).min(to.len() - done);
            read_frame(umem, this, meta.off as usize + skip, &mut to[done..done + n]);
            done += n;
        }
        skip = skip.saturating_sub(len);
        if done == to.len() {
            break;
        }
        this = meta.next;
    }
    done
}

/// A copy of the whole packet in frames of its own; `None` if the pool has too few.
pub(crate) fn copy(umem: &'static Umem, head: u32) -> Option<u32> {
    let source = line(umem, head);
    let n = usize::from(source.frags) + 1;
    let mut fresh = [0u32; FRAMES_MAX];
    let fresh = fresh.get_mut(..n)?;
    let mut got = thread::take(umem, fresh);
    got += umem.depot.take(&mut fresh[got..]);
    if got < n {
        if got > 0 {
            thread::keep(umem, &fresh[..got]);
        }
        thread::with_page(umem, |page| page.starved.add(1));
        return None;
    }
    let mut this = head;
    for i in 0..n {
        let from = line(umem, this);
        copy_frame(umem, this, fresh[i]);
        let mut meta = Meta::new(from.off);
        meta.len = from.len;
        meta.next = fresh.get(i + 1).copied().unwrap_or(0);
        if i == 0 {
            (meta.data_len, meta.frags) = (from.data_len, from.frags);
            meta.last = if n > 1 { fresh[n - 1] } else { 0 };
            (meta.stamp_ns, meta.stamped) = (from.stamp_ns, from.stamped);
            (meta.offload, meta.packet_type) = (from.offload, from.packet_type);
        }
        // SAFETY: the frame was just taken from a free list and is in no skb yet.
        unsafe { umem.meta(fresh[i]).write(meta) };
        this = from.next;
    }
    umem.linked.fetch_add(n as i64 - 1, Ordering::Relaxed);
    thread::with_page(umem, |page| page.alloc.add(1));
    Some(if n > 1 { fresh[0] | FLAG } else { fresh[0] })
}

/// Copies the data of one frame to the same place in another.
fn copy_frame(umem: &Umem, from: u32, to: u32) {
    let meta = line(umem, from);
    let (mut at, end) = (meta.off as usize, (meta.off + meta.len) as usize);
    let mut buffer = [0u8; 512];
    while at < end {
        let n = (end - at).min(buffer.len());
        read_frame(umem, from, at, &mut buffer[..n]);
        write_frame(umem, to, at, &buffer[..n]);
        at += n;
    }
}
