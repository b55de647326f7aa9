//! Many lists of packets that share one array, so that a flow needs no memory of its own.
//!
//! ```text
//!  cells   [ skb next bytes note | skb next … | free next | … ]    as many as the discipline may hold
//!  list    head ────────────────► next ────► next ── tail
//! ```

use linerate_skb::Skb;

/// The index that ends a list.
pub(super) const NONE: u32 = u32::MAX;

/// A packet with the data that a discipline keeps about it.
#[derive(Debug)]
pub(super) struct Held {
    pub skb: Skb,
    pub bytes: u32,
    /// A number of the discipline: [`FqCodel`](super::FqCodel) notes the time at which the packet
    /// was enqueued, in nanoseconds, and [`FlowTbf`](super::FlowTbf) the bytes that are sent for
    /// it.
    pub note: u64,
}

#[derive(Debug)]
struct Cell {
    skb: Option<Skb>,
    next: u32,
    bytes: u32,
    note: u64,
}

/// One list of packets, in order of arrival.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
    pub packets: u32,
    pub bytes: u64,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, packets: 0, bytes: 0 }
    }
}

/// The array of cells from which all lists are built.
#[derive(Debug)]
pub(super) struct Shelf {
    cells: Box<[Cell]>,
    free: u32,
}

impl Shelf {
    /// Creates a shelf with cells for `packets`.
    pub fn new(packets: usize) -> Shelf {
        let packets = packets.clamp(1, NONE as usize - 1);
        let next = |i: usize| if i + 1 == packets { NONE } else { i as u32 + 1 };
        let cell = |i| Cell { skb: None, next: next(i), bytes: 0, note: 0 };
        Shelf { cells: (0..packets).map(cell).collect(), free: 0 }
    }

    /// Appends a packet to `list`.
    ///
    /// # Errors
    /// Returns the packet if there is no free cell.
    #[inline]
    pub fn push(&mut self, list: &mut List, held: Held) -> Result<(), Skb> {
        let i = self.free;
        let Some(cell) = self.cells.get_mut(i as usize) else { return Err(held.skb) };
        self.free = cell.next;
        *cell = Cell { skb: Some(held.skb), next: NONE, bytes: held.bytes, note: held.note };
        match self.cells.get_mut(list.tail as usize) {
            Some(last) => last.next = i,
            None => list.head = i,
        }
        list.tail = i;
        list.packets += 1;
        list.bytes += u64::from(held.bytes);
        Ok(())
    }

    /// Returns the length in bytes of the first packet of `list`, if there is one, and its note.
    #[inline]
    pub fn peek(&self, list: &List) -> Option<(u64, u64)> {
        self.cells.get(list.head as usize).map(|cell| (cell.bytes.into(), cell.note))
    }

    /// Removes and returns the first packet of `list`.
    #[inline]
    pub fn pop(&mut self, list: &mut List) -> Option<Held> {
        let i = list.head;
        let cell = self.cells.get_mut(i as usize)?;
        let skb = cell.skb.take()?;
        list.head = std::mem::replace(&mut cell.next, self.free);
        if list.head == NONE {
            list.tail = NONE;
        }
        self.free = i;
        list.packets -= 1;
        list.bytes -= u64::from(cell.bytes);
        Some(Held { skb, bytes: cell.bytes, note: cell.note })
    }
}

/// A list of flows, by their indices in an array; each flow stores the index of the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    pub head: u32,
    tail: u32,
}

impl Default for Chain {
    fn default() -> Chain {
        Chain { head: NONE, tail: NONE }
    }
}

/// A flow that can be in a [`Chain`].
pub(super) trait Link {
    /// Returns the field that stores the index of the next flow in the chain.
    fn next(&mut self) -> &mut u32;
}

impl Chain {
    pub fn is_empty(self) -> bool {
        self.head == NONE
    }

    /// Appends the flow with index `i`, which must be in no chain.
    pub fn push<F: Link>(&mut self, flows: &mut [F], i: u32) {
        if let Some(flow) = flows.get_mut(i as usize) {
            *flow.next() = NONE;
        }
        match flows.get_mut(self.tail as usize) {
            Some(last) => *last.next() = i,
            None => self.head = i,
        }
        self.tail = i;
    }

    /// Removes and returns the index of the first flow.
    pub fn pop<F: Link>(&mut self, flows: &mut [F]) -> Option<u32> {
        let i = self.head;
        self.head = *flows.get_mut(i as usize)?.next();
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(i)
    }
}
