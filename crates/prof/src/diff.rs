//! What changed between two profiles, ranked.
