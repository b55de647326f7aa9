//! kernprof's form: `function [address]: count`.

use std::fmt;

use super::names::harmless;
use crate::profile::Profile;

/// A profile as kernprof lists it, by falling count; equal counts stay in the profile's order.
///
/// Bare, as the form is: no unit, no total. An address that is not known is 0, as the kernel prints
/// one that it does not tell: what reads the form takes nothing else, and no function is there.
#[derive(Debug, Clone, Copy)]
pub struct Kernprof<'a>(pub &'a Profile);

impl fmt::Display for Kernprof<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in super::by_falling_count(self.0) {
            let name = harmless(&row.symbol);
            let address = row.address.unwrap_or(0);
            writeln!(f, "{name} [{address:08x}]: {}", row.count)?;
        }
        Ok(())
    }
}
