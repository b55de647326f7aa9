//! Use of the memory bus, where it can be counted.
