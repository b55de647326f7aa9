//! Ratios, and what may be said of many of them.
