//! The five posts, read by the same readers and printed by the same printers as a run of today.
