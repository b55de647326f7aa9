//! kernprof's listings: `function [address]: count`.
//!
//! Source: SGI's kernprof, as its output was posted: it names neither the event nor a total, and
//! the tail of the list is mostly cut off.

use super::lines::excerpt;
use super::listing::{Parsed, Syntax};
use super::rows::ListedRow;
use super::{Form, token};
use crate::profile::{Event, Unit};

pub(super) const SYNTAX: Syntax = Syntax { form: Form::Kernprof, line: parse, event };

fn parse(line: &str, inside: bool) -> Parsed<'_> {
    let Some((left, count)) = line.rsplit_once("]:") else { return Parsed::Prose };
    let Some((symbol, address)) = left.rsplit_once('[') else { return Parsed::Prose };
    let (symbol, count) = (symbol.trim_end(), count.trim_start());
    let counted = count.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    let named = token::is_name(symbol);
    match (token::address(address), token::count(count)) {
        (Ok(address), Ok(count)) if named => Parsed::Row(ListedRow {
            symbol,
            address: Some(address),
            object: None,
            count,
            load: None,
        }),
        (Ok(_), Ok(_)) => unless_prose(inside, format!("{} is not a function", excerpt(symbol))),
        (Err(why), _) => unless_prose(inside || named && counted, why),
        (_, Err(why)) => unless_prose(inside || counted, why),
    }
}

/// Returns an invalid row with the reason if `meant` is true, else prose. `meant` means that the
/// line was intended as a row.
fn unless_prose(meant: bool, why: String) -> Parsed<'static> {
    if meant { Parsed::Broken(why) } else { Parsed::Prose }
}

/// Returns the event of a listing from its caption: kernprof counts any event of the CPU, and does
/// not print which.
fn event(caption: &str) -> (Event, Option<String>) {
    let (name, unit) = match named_in(caption) {
        Some(name) => (name, Unit::Samples),
        None => ("unknown", Unit::Unknown),
    };
    let remark = (unit == Unit::Samples).then(|| format!("the event {name} is the caption's word"));
    (Event { name: name.to_owned(), unit, period: None, raw: None }, remark)
}

/// Returns the CPU event named in a text; `None` if the text names several events.
fn named_in(text: &str) -> Option<&str> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_event = |name: &&str| {
        name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
            && FAMILIES.iter().any(|family| name.starts_with(family))
    };
    let mut names = text.split(|c| !word(c)).filter(is_event);
    let first = names.next()?;
    names.all(|other| other == first).then_some(first)
}

/// Prefixes of events that the CPUs of kernprof's time could count.
///
/// Source: Intel, Software Developer's Manual vol. 3, performance events of the P6 family.
const FAMILIES: [&str; 14] = [
    "BR_",
    "BTB_",
    "BUS_",
    "CPU_CLK",
    "CYCLES_",
    "DATA_MEM_",
    "DCU_",
    "HW_INT",
    "IFU_",
    "ILD_",
    "INST_",
    "ITLB_",
    "L2_",
    "UOPS_",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::{Read, parse as read};

    fn text(rows: &str) -> Read {
        read(rows.as_bytes(), Some(SYNTAX.form)).unwrap()
    }

    #[test]
    fn a_row_has_a_function_its_address_and_a_count() {
        let read = text("poll_idle [c0105280]: 121743\n");
        let row = &read.profiles[0].rows[0];
        assert_eq!((row.symbol.as_str(), row.address), ("poll_idle", Some(0xc010_5280)));
        assert_eq!(row.count, 121_743);
        let read = text("<[T; 2] as core::fmt::Debug>::fmt [5630bdc7914a]: 7\n");
        assert_eq!(read.profiles[0].rows[0].symbol, "<[T; 2] as core::fmt::Debug>::fmt");
    }

    #[test]
    fn a_malformed_row_is_told_of_by_its_line_and_the_rest_is_read() {
        let bad = [
            ("fn [zz]: 12", "\"zz\" is not an address"),
            ("fn [c010]: 99999999999999999999", "does not fit in 64 bits"),
            ("fn [10000000000000000]: 1", "does not fit in 64 bits"),
            ("fn [c010]: -1", "\"-1\" is not a count"),
            ("fn [c010]: 12 ticks", "is not a count"),
            ("fn [c010]:", "\"\" is not a count"),
            ("[c010]: 12", "\"\" is not a function"),
        ];
        for (line, why) in bad {
            let read = text(&format!("a [1]: 1\n{line}\nb [2]: 2\n"));
            assert_eq!(read.profiles.len(), 1, "{line}");
            assert_eq!(read.profiles[0].rows.len(), 2, "{line}");
            assert_eq!((read.complaints_total, read.complaints[0].line), (1, 2), "{line}");
            assert!(read.complaints[0].why.contains(why), "{:?}", read.complaints);
            let said = read.profiles[0].remarks.iter().any(|r| r.contains("the rest still read"));
            assert!(said && read.left_out().unwrap().contains("the rest still read"));
        }
    }

    #[test]
    fn prose_with_brackets_is_prose() {
        for line in ["Re: [PATCH]: a driver", "as in [1], they say: 5", "see [1]: it is so"] {
            assert_eq!(parse(line, false), Parsed::Prose, "{line}");
        }
    }

    #[test]
    fn the_event_is_the_captions_word_or_unknown() {
        let name = |caption: &str| event(caption).0.name;
        assert_eq!(name("The L2_LINES_OUT profiling:"), "L2_LINES_OUT");
        assert_eq!(name("The L2_CACHE_LINES_OUT profiling:"), "L2_CACHE_LINES_OUT");
        assert_eq!(name("L2_LINES_OUT (not L2_LINES_IN):"), "unknown");
        assert_eq!(name("with CONFIG_SMP:"), "unknown");
        assert_eq!(event("").0.unit, Unit::Unknown);
    }
}
