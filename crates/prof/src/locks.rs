//! What locks cost.
