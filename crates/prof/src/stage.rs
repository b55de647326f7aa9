//! Whose cost a function is.
