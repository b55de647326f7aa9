//! The highest rate that a path carries without loss, or with a little of it.
