//! Two instruments held against each other.
