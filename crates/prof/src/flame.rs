//! Flame graphs.
