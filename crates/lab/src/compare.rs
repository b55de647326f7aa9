//! Two runs or more beside each other, and what fails on a difference.
