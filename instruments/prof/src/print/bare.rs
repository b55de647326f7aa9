//! Plain listings, as kernprof and readprofile print them: `function [address]: count`, and `ticks
//! function load` with the total first.

use std::fmt;

use super::{by_falling_count, harmless, load_of};
use crate::profile::{Load, Profile};

/// A profile as kernprof lists it, by falling count; equal counts stay in the profile's order.
///
/// It has no unit and no total, as the form. An unknown address is printed as 0, because parsers of
/// this form require an address.
#[derive(Debug, Clone, Copy)]
pub struct Kernprof<'a>(pub &'a Profile);

impl fmt::Display for Kernprof<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in by_falling_count(self.0) {
            let name = harmless(&row.symbol);
            let address = row.address.unwrap_or(0);
            writeln!(f, "{name} [{address:08x}]: {}", row.count)?;
        }
        Ok(())
    }
}

/// The value printed for an unknown load.
const UNKNOWN: &str = "0.0";

/// A profile as readprofile lists it: first the total, then all functions by falling ticks,
/// including idle and spinning ones; equal counts stay in the profile's order.
///
/// Bare, as the form is. Load is ticks for each byte of code: as the maker printed it, else
/// computed. One that is not known is `0.0`, with one digit where readprofile prints four: what
/// reads the form takes nothing but a number. That of the total is of all code of the kernel,
/// listed or not, which only the maker knows.
#[derive(Debug, Clone, Copy)]
pub struct Readprofile<'a>(pub &'a Profile);

impl fmt::Display for Readprofile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.0;
        let load = profile.total.and_then(|total| total.load).map(printed);
        writeln!(f, "{} total {}", profile.total_count(), known(load.as_deref()))?;
        for row in by_falling_count(profile) {
            let load = load_of(row);
            writeln!(f, "{} {} {}", row.count, harmless(&row.symbol), known(Some(&load)))?;
        }
        Ok(())
    }
}

fn known(load: Option<&str>) -> &str {
    load.filter(|load| *load != "n/a").unwrap_or(UNKNOWN)
}

/// Returns a load with its original digits.
pub(super) fn printed(load: Load) -> String {
    if !load.value.is_finite() {
        return "n/a".to_owned();
    }
    // An f64 has at most 17 significant digits, but a hostile profile may request 255.
    format!("{:.*}", usize::from(load.digits.min(17)), load.value)
}
