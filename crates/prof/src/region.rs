//! Timers of stretches of code.
