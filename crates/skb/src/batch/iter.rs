//! Iterators over the packets of a batch.
//!
//! Owner: the batch, which they borrow. They give packets one by one and not as a slice, in which a
//! packet could be moved away from its verdict.

use std::iter::FusedIterator;
use std::{fmt, slice};

use super::Batch;
use crate::skb::{Skb, Unique};

/// An iterator over the packets of a batch, in order: see [`Batch::iter`].
pub struct BatchIter<'a, S = Unique>(slice::Iter<'a, Skb<S>>);

/// An iterator over the packets of a batch, in order, that may change them: see
/// [`Batch::iter_mut`].
pub struct BatchIterMut<'a, S = Unique>(slice::IterMut<'a, Skb<S>>);

impl<'a, S> BatchIter<'a, S> {
    /// Returns an iterator over the live slots of a batch in state `S`.
    pub(super) fn of(live: &'a [u32]) -> BatchIter<'a, S> {
        // SAFETY: Skb is transparent over a non-zero u32, and live slots hold handles of skbs in
        // state S that the batch owns, none of which is 0; a shared borrow of the batch allows
        // shared borrows of them.
        let skbs = unsafe { &*(std::ptr::from_ref(live) as *const [Skb<S>]) };
        BatchIter(skbs.iter())
    }
}

impl<'a, S> BatchIterMut<'a, S> {
    /// Returns an iterator over the live slots of a batch in state `S`.
    pub(super) fn of(live: &'a mut [u32]) -> BatchIterMut<'a, S> {
        // SAFETY: as in `BatchIter::of`, from an exclusive borrow; every value of an Skb is a
        // non-zero u32 of a handle in state S, so that what is left in the slots is one.
        let skbs = unsafe { &mut *(std::ptr::from_mut(live) as *mut [Skb<S>]) };
        BatchIterMut(skbs.iter_mut())
    }
}

/// Forwards an iterator's calls to that of the slice.
macro_rules! iterates {
    ($iterator:ident, $item:ty) => {
        impl<'a, S> Iterator for $iterator<'a, S> {
            type Item = $item;

            #[inline]
            fn next(&mut self) -> Option<$item> {
                self.0.next()
            }

            #[inline]
            fn size_hint(&self) -> (usize, Option<usize>) {
                self.0.size_hint()
            }

            #[inline]
            fn nth(&mut self, n: usize) -> Option<$item> {
                self.0.nth(n)
            }

            #[inline]
            fn fold<B, F: FnMut(B, $item) -> B>(self, init: B, f: F) -> B {
                self.0.fold(init, f)
            }
        }

        impl<'a, S> DoubleEndedIterator for $iterator<'a, S> {
            #[inline]
            fn next_back(&mut self) -> Option<$item> {
                self.0.next_back()
            }
        }

        impl<S> ExactSizeIterator for $iterator<'_, S> {}
        impl<S> FusedIterator for $iterator<'_, S> {}

        impl<S> fmt::Debug for $iterator<'_, S> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($iterator))
                    .field("len", &self.len())
                    .finish_non_exhaustive()
            }
        }
    };
}

iterates!(BatchIter, &'a Skb<S>);
iterates!(BatchIterMut, &'a mut Skb<S>);

impl<S> Clone for BatchIter<'_, S> {
    fn clone(&self) -> Self {
        BatchIter(self.0.clone())
    }
}

impl<'a, S> IntoIterator for &'a Batch<S> {
    type Item = &'a Skb<S>;
    type IntoIter = BatchIter<'a, S>;

    #[inline]
    fn into_iter(self) -> BatchIter<'a, S> {
        self.iter()
    }
}

impl<'a, S> IntoIterator for &'a mut Batch<S> {
    type Item = &'a mut Skb<S>;
    type IntoIter = BatchIterMut<'a, S>;

    #[inline]
    fn into_iter(self) -> BatchIterMut<'a, S> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{numbered, numbers};

    #[test]
    fn a_loop_over_a_borrowed_batch_visits_what_iter_does() {
        let (_pool, mut mem, mut batch) = numbered(6, 6);
        batch.sent(2, &mut mem);
        let mut seen = Vec::new();
        for skb in &batch {
            seen.push(skb.data()[0]);
        }
        assert_eq!((seen, batch.len()), (numbers(&batch), 4));
        for skb in &mut batch {
            skb.data_mut()[0] += 10;
        }
        assert_eq!(numbers(&batch), [12, 13, 14, 15]);
        assert_eq!(
            batch.iter().rev().map(|skb| skb.data()[0]).collect::<Vec<_>>(),
            [15, 14, 13, 12]
        );
        let mut rest = batch.iter_mut();
        assert_eq!((rest.nth(1).map(|skb| skb.data()[0]), rest.len()), (Some(13), 2));
        batch.clear();
        assert_eq!((&batch).into_iter().count() + (&mut batch).into_iter().count(), 0);
    }
}
