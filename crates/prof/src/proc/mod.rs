//! What the kernel says of the machine.
