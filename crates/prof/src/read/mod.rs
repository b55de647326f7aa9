//! Profiles that others made.
