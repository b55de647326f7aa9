//! Simulated experiments.
