//! Chains: packets of several frames, and packets with several handles.
//!
//! The head's meta line has the totals and the last fragment; fragments are linked by `next`. Only
//! the head counts references: a chain is shared as a whole. All frames of a chain are of one umem.
//! A head with fragments, or with more than one handle, has [`FLAG`] set in every handle on it.

use crate::handle::{self, Common, FLAG};
use crate::lanes::{self, lane};
use crate::meta::Meta;
use crate::page::{Fate, Page};
use crate::refs;
use crate::segments::{read_frame, write_frame};
use crate::thread;
use crate::umem::Umem;

/// Most frames in a chain: a superframe of 64 KiB with its headers, in the smallest frames.
pub const CHAIN_FRAMES_MAX: usize = 260;
/// Most bytes in a packet, so that lengths add up in 32 bits.
pub(crate) const PACKET_MAX_BYTES: u64 = 1 << 30;

fn line(umem: &Umem, handle: u32) -> &Meta {
    // SAFETY: the handle is of the caller's live skb, or of a fragment of it, so the line is
    // initialised. Only an exclusive owner writes the line, and that owner is the caller.
    unsafe { umem.meta(handle).as_ref() }
}

/// Returns the number of bytes in packets that the caller owns.
#[inline]
pub(crate) fn bytes(handles: &[u32]) -> u64 {
    let length = |meta: &Meta| u64::from(meta.len + meta.data_len);
    match umem_of_all(handles) {
        // The common case: all frames are of one umem. Looking it up once saves half of the loop's
        // time.
        Some(umem) => handles.iter().map(|&h| length(line(umem, h))).sum(),
        None => handles.iter().map(|&h| length(line(Umem::of(h), h))).sum(),
    }
}

/// Returns the umem of `handles` if it is the same for all; flags are ignored.
#[inline]
pub(crate) fn umem_of_all(handles: &[u32]) -> Option<&'static Umem> {
    Common::of(handles).umem().map(Umem::numbered)
}

/// Adds `bytes` of the tailroom to the data of each packet. The caller owns the packets, and no
/// handle is flagged.
pub(crate) fn commit(umem: &Umem, handles: &[u32], bytes: usize) {
    // A length beyond the frame is clipped below.
    let (same, bytes) = (umem.unflagged_bytes(), u32::try_from(bytes).unwrap_or(u32::MAX));
    for &h in handles {
        let frame_bytes = same.unwrap_or_else(|| umem.place(h).bytes);
        // SAFETY: an unflagged handle is the only one on its frame, and the caller owns it.
        let meta = unsafe { umem.meta(h).as_mut() };
        let room = frame_bytes - meta.off - meta.len;
        meta.len += bytes.min(room);
    }
}

/// Counts one more handle on the packet `head`.
pub(crate) fn retain(umem: &'static Umem, head: u32) {
    refs::add(&line(umem, head).refs, head & FLAG == 0);
    thread::with_page(umem, |page| {
        page.extra.add(1);
        page.cloned[handle::core(head)].add(1);
    });
}

/// Releases a flagged handle whose packet has been counted; returns the freed frames if it was the
/// last handle. Objects held by the packet are released first; `lived` is true if it was used as a
/// packet.
#[inline]
pub(crate) fn put_down(umem: &'static Umem, head: u32, page: &Page, lived: bool) -> Option<Freed> {
    let meta = line(umem, head);
    if !refs::release(&meta.refs, &page.extra) {
        return None;
    }
    let fragments = usize::from(meta.frags);
    page.linked.subtract(fragments as u64);
    if meta.lanes & (lane::SETTLED | lane::BEHIND) != 0 {
        release_all(umem, head, page, lived);
    }
    Some(Freed { umem, head, next: meta.next, fragments, done: false })
}

/// Releases the objects that the frames of a packet hold, after its last handle was released.
#[cold]
fn release_all(umem: &'static Umem, head: u32, page: &Page, lived: bool) {
    let mut this = head;
    for _ in 0..=line(umem, head).frags {
        let (lanes, next) = (line(umem, this).lanes, line(umem, this).next);
        if lanes & lane::SETTLED != 0 {
            // SAFETY: the last handle on the packet was released, and the packet's frames are freed
            // next.
            unsafe { lanes::settle(umem, this, page, lived && this == head) };
        }
        this = next;
    }
}

/// An iterator over the frames of a packet whose last handle was released; the caller owns them.
///
/// Fragments first, so that the head keeps the umem alive to the end.
#[must_use]
pub(crate) struct Freed {
    umem: &'static Umem,
    head: u32,
    next: u32,
    fragments: usize,
    done: bool,
}

impl Iterator for Freed {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.fragments > 0 {
            let this = self.next;
            self.next = line(self.umem, this).next;
            self.fragments -= 1;
            return Some(this);
        }
        (!std::mem::replace(&mut self.done, true)).then_some(self.head & !FLAG)
    }
}

/// Releases one handle on a shared packet, after its owner got a copy of the packet instead.
pub(crate) fn release(head: u32) {
    // The copy was counted as one more packet, so this handle is counted as unused.
    thread::free_slow(&[head], Fate::Unused);
}

/// Returns the memory of a packet in bytes, over all its frames.
pub(crate) fn truesize(umem: &Umem, head: u32) -> usize {
    let (mut sum, mut this) = (0, head);
    for _ in 0..=line(umem, head).frags {
        sum += umem.truesize(this);
        this = line(umem, this).next;
    }
    sum
}

/// Appends `fragment`, with its own fragments, to `head`; returns the flagged head, or `None` if
/// the two cannot be joined.
pub(crate) fn append(umem: &'static Umem, head: u32, fragment: u32) -> Option<u32> {
    if !std::ptr::eq(umem, Umem::of(fragment)) {
        return None;
    }
    // Use shared references here: the owner of another handle may be reading either line, and both
    // handles may even refer to one frame.
    let alone = |handle| refs::is_only(&line(umem, handle).refs);
    let frags = |handle| usize::from(line(umem, handle).frags);
    let bytes = |handle| u64::from(line(umem, handle).len) + u64::from(line(umem, handle).data_len);
    let too_long = frags(head) + frags(fragment) + 2 > CHAIN_FRAMES_MAX
        || bytes(head) + bytes(fragment) > PACKET_MAX_BYTES;
    if !alone(head) || !alone(fragment) || too_long {
        return None;
    }
    // SAFETY: each of the caller's two skbs is the only handle on its frame, so they are two frames
    // and no other thread reads or writes their lines.
    let (h, f) = unsafe { (umem.meta(head).as_mut(), umem.meta(fragment).as_mut()) };
    let plain = fragment & !FLAG;
    match h.last {
        0 => h.next = plain,
        // SAFETY: `last` is the last fragment of a chain that only the caller owns.
        last => unsafe { umem.meta(last).as_mut() }.next = plain,
    }
    h.last = if f.last == 0 { plain } else { f.last };
    h.data_len += f.len + f.data_len;
    h.frags += 1 + f.frags;
    if f.lanes & (lane::SETTLED | lane::BEHIND) != 0 {
        h.lanes |= lane::BEHIND;
    }
    (f.last, f.data_len, f.frags) = (0, 0, 0);
    // The fragment is no longer a separate packet.
    thread::with_page(umem, |page| {
        page.linked.add(1);
        page.freed_one(Fate::Unused, fragment);
    });
    Some(head | FLAG)
}

/// Copies bytes of a chain, from offset `from`, into `to`; returns the number of bytes copied.
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

/// Overwrites bytes of a chain, from offset `at`; returns the number of bytes written.
pub(crate) fn copy_from(umem: &Umem, head: u32, at: usize, from: &[u8]) -> usize {
    let (mut skip, mut done, mut this) = (at, 0, head);
    for _ in 0..=line(umem, head).frags {
        let meta = line(umem, this);
        let len = meta.len as usize;
        if skip < len {
            let n = (len - skip).min(from.len() - done);
            write_frame(umem, this, meta.off as usize + skip, &from[done..done + n]);
            done += n;
        }
        skip = skip.saturating_sub(len);
        if done == from.len() {
            break;
        }
        this = meta.next;
    }
    done
}

/// Copies the whole packet into new frames of the same classes; returns `None` if the pool has too
/// few free frames. Objects that the packet holds stay with the original.
pub(crate) fn copy(umem: &'static Umem, head: u32) -> Option<u32> {
    let n = usize::from(line(umem, head).frags) + 1;
    let mut fresh = [0u32; CHAIN_FRAMES_MAX];
    let fresh = fresh.get_mut(..n)?;
    let mut this = head;
    for got in 0..n {
        let Some(frame) = take_like(umem, this) else {
            for &frame in &fresh[..got] {
                put_back(umem, frame);
            }
            thread::with_page(umem, |page| page.starved.add(1));
            return None;
        };
        fresh[got] = frame;
        this = line(umem, this).next;
    }
    this = head;
    for i in 0..n {
        let from = line(umem, this);
        copy_frame(umem, this, fresh[i]);
        // SAFETY: the original is only read here, and only this function has the fresh frame.
        let meta = unsafe { umem.meta(fresh[i]).as_mut() };
        (meta.off, meta.len) = (from.off, from.len);
        meta.next = fresh.get(i + 1).copied().unwrap_or(0);
        if i == 0 {
            meta.last = if n > 1 { fresh[n - 1] } else { 0 };
            copy_fields(umem, this, fresh[i]);
        }
        this = from.next;
    }
    thread::with_page(umem, |page| {
        let fragments = n as u64 - 1;
        page.linked.add(fragments);
        // Count the frames as `alloc_copy` does: each is allocated, and a fragment is no packet.
        page.alloc.add(n as u64);
        page.freed[0].add(fragments);
        page.unused[0].add(fragments);
    });
    let plain = n == 1 && !umem.is_jumbo(fresh[0]);
    Some(if plain { fresh[0] } else { fresh[0] | FLAG })
}

/// Copies the fields that describe a whole packet from one head to another.
fn copy_fields(umem: &Umem, from: u32, to: u32) {
    let source = line(umem, from);
    // SAFETY: the caller allocated `to`, and no other owner has its handle.
    let (meta, cold) = unsafe { (umem.meta(to).as_mut(), umem.cold(to).as_mut()) };
    (meta.data_len, meta.frags) = (source.data_len, source.frags);
    (meta.packet_type, meta.priority) = (source.packet_type, source.priority);
    (meta.link, meta.snapped_bytes) = (source.link, source.snapped_bytes);
    (meta.cb, meta.lanes) = (source.cb, source.lanes & !(lane::SETTLED | lane::BEHIND));
    if meta.lanes != 0 {
        // SAFETY: the source is shared, so no handle writes its lanes; `from` and `to` are
        // different frames.
        let lanes = unsafe { umem.cold(from).as_ref() };
        (cold.stamp_ns, cold.offload, cold.mark) = (lanes.stamp_ns, lanes.offload, lanes.mark);
        (cold.hash, cold.vlan, cold.tc_index) = (lanes.hash, lanes.vlan, lanes.tc_index);
    }
}

/// Takes a free frame of the same class and size as another, initialised; returns `None` if there
/// is none.
fn take_like(umem: &'static Umem, like: u32) -> Option<u32> {
    let mut one = [0];
    let got = match umem.is_jumbo(like) {
        true => {
            let found = umem.take_jumbo(&mut one);
            if found > 0 {
                thread::with_page(umem, |page| page.refilled(found));
            }
            found
        }
        false => match thread::take(umem, &mut one) {
            0 => {
                let found = umem.take(0, &mut one);
                thread::with_page(umem, |page| page.refilled(found));
                found
            }
            n => n,
        },
    };
    if got == 0 {
        return None;
    }
    let frame = handle::retag(one[0], handle::tag(umem.id(), 0));
    let bytes = umem.place(like).bytes;
    // SAFETY: the frame was just taken from a free list, so it has no other owner.
    let begun = thread::with_page(umem, |page| unsafe { umem.begin_one(frame, bytes, page) });
    if !begun {
        umem.put_home(&[frame]);
        return None;
    }
    Some(frame)
}

/// Returns a frame that was taken for a copy to the free frames.
fn put_back(umem: &'static Umem, frame: u32) {
    match umem.is_jumbo(frame) {
        true => thread::keep_jumbo(umem, frame),
        false => thread::keep(umem, &[frame]),
    }
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
