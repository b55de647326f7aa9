//! Profiles and differences, set as text.
