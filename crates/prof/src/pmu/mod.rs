//! The CPU's event counters.
