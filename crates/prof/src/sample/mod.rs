//! Samples of a running program.
