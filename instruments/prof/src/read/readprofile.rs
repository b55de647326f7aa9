//! readprofile's listings: `ticks function load`, with a line for the total, and those of
//! `readprofile -v`, which have the function's address first.
//!
//! ```text
//!   36324 total                                      0.0210
//!   28044 default_idle                             584.2500
//! c0105280 default_idle                             28044 584.2500
//! ```
//!
//! The load is ticks for each byte of the function's code. Source: readprofile(8).

use super::lines::excerpt;
use super::listing::{Parsed, Syntax};
use super::rows::ListedRow;
use super::{Form, token};
use crate::profile::{Event, Load, Total, Unit};

pub(super) const SYNTAX: Syntax = Syntax { form: Form::Readprofile, line: parse, event };

fn parse(line: &str, inside: bool) -> Parsed<'_> {
    let Some((first, rest)) = line.split_once(char::is_whitespace) else {
        return row_or_prose(line, "", "", inside);
    };
    let (middle, last) = match rest.trim_start().rsplit_once(char::is_whitespace) {
        Some((middle, last)) => (middle.trim_end(), last),
        None => ("", rest.trim_start()),
    };
    match verbose(first, middle, last) {
        Some(parsed) => parsed,
        None => row_or_prose(first, middle, last, inside),
    }
}

/// Returns a row of `readprofile -v`, whose last two columns are ticks and load.
fn verbose<'a>(first: &'a str, middle: &'a str, load: &'a str) -> Option<Parsed<'a>> {
    // readprofile prints an address with 8 or 16 digits. No known listing has a count with that
    // many digits.
    let address = token::address(first).ok().filter(|_| first.len() == 8 || first.len() == 16)?;
    let (symbol, count) = middle.rsplit_once(char::is_whitespace)?;
    let (count, load) = (token::count(count).ok()?, token::load(load).ok()?);
    row_or_total(symbol.trim_end(), Some(address), count, load)
}

/// Returns a row, or the total; `None` if `symbol` is not a name.
fn row_or_total(symbol: &str, address: Option<u64>, count: u64, load: Load) -> Option<Parsed<'_>> {
    let load = Some(load);
    match symbol {
        "total" => Some(Parsed::Total(Total { count, load })),
        _ => token::is_name(symbol).then_some(Parsed::Row(ListedRow {
            symbol,
            address,
            object: None,
            count,
            load,
        })),
    }
}

fn row_or_prose<'a>(first: &'a str, symbol: &'a str, last: &'a str, inside: bool) -> Parsed<'a> {
    let why = match (token::count(first), token::load(last)) {
        (Ok(count), Ok(load)) => match row_or_total(symbol, None, count, load) {
            Some(parsed) => return parsed,
            None => Some(format!("{} is not a function", excerpt(symbol))).filter(|_| inside),
        },
        // Complain about a damaged count that is followed by a name and a load, if the line is
        // among rows or starts like a number.
        (Err(why), Ok(_)) if token::is_name(symbol) && (inside || numeric(first)) => Some(why),
        (Ok(_), Err(why)) => Some(why).filter(|_| inside),
        (Err(why), _) => Some(why).filter(|_| inside && numeric(first)),
    };
    why.map_or(Parsed::Prose, Parsed::Broken)
}

/// Returns true if the text is meant as a number, even a damaged one.
fn numeric(text: &str) -> bool {
    text.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the event: readprofile shows the kernel's clock, unless a boot parameter changed it.
fn event(_caption: &str) -> (Event, Option<String>) {
    (Event { name: "clock".to_owned(), unit: Unit::Ticks, period: None, raw: None }, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::{Read, parse as read};

    fn text(rows: &str) -> Read {
        read(rows.as_bytes(), Some(SYNTAX.form)).unwrap()
    }

    #[test]
    fn the_total_may_come_first_or_last_and_is_no_row() {
        let first = text("  5 total  0.0001\n  3 default_idle  0.5000\n  2 schedule  0.1250\n");
        let last = text("3 default_idle 0.5000\n2 schedule 0.1250\n5 total 0.0001\n");
        assert_eq!(first.profiles, last.profiles);
        let profile = &first.profiles[0];
        assert_eq!(profile.total.map(|t| (t.count, t.load.unwrap().digits)), Some((5, 4)));
        assert_eq!((profile.rows.len(), profile.cutoff), (2, None));
        assert_eq!(profile.rows[0].bytes(), Some(6));
    }

    #[test]
    fn two_whole_listings_in_a_row_are_two() {
        let one = "3 a 0.5\n2 b 0.1\n5 total 0.01\n";
        let read = text(&format!("{one}{one}"));
        assert_eq!(read.profiles.len(), 2);
        assert_eq!(read.profiles[0], read.profiles[1]);
        let read = text("5 total 0.01\n3 a 0.5\n5 total 0.01\n4 a 0.5\n");
        let counts: Vec<_> = read.profiles.iter().map(|p| p.rows[0].count).collect();
        assert_eq!(counts, [3, 4]);
    }

    /// Checks a case found by fuzzing: a total without rows was accepted as a complete listing.
    #[test]
    fn a_cut_off_listing_says_below_what_it_was_cut_unless_it_has_rows_of_zero() {
        let read = text("9 total 0.1\n3 a 0.5\n2 b 0.1\n");
        assert_eq!(read.profiles[0].cutoff, Some(2));
        assert!(read.profiles[0].remarks[0].contains("inferred"));
        assert_eq!(text("9 total 0.1\n3 a 0.5\n0 b 0.0\n").profiles[0].cutoff, Some(1));
        let read = text("36324 total 0.0210\n");
        assert_eq!((read.profiles[0].rows.len(), read.profiles[0].cutoff), (0, Some(36_325)));
    }

    #[test]
    fn the_verbose_form_has_addresses() {
        let rows = "ffffffff81000000 do_one_initcall    7   0.0123\n\
                    00000000c0105280 default_idle 3 0.0625\n0000000000000000 total 10 0.0001\n";
        let read = text(rows);
        let profile = &read.profiles[0];
        assert_eq!(profile.rows[0].address, Some(0xffff_ffff_8100_0000));
        assert_eq!((profile.rows[1].symbol.as_str(), profile.rows[1].count), ("default_idle", 3));
        assert_eq!(profile.total.map(|t| t.count), Some(10));
        assert_eq!(profile.cutoff, None);
    }

    #[test]
    fn a_malformed_row_is_told_of_by_its_line_and_the_rest_is_read() {
        let bad = [
            ("12 a b c d", "\"d\" is not a load"),
            ("12 a b 0.5", "\"a b\" is not a function"),
            ("99999999999999999999 f 0.1", "does not fit in 64 bits"),
            ("-5 f 0.1", "\"-5\" is not a count"),
            ("5 f nan", "\"nan\" is not a load"),
            ("5 f 1e3", "is not a load"),
            ("5", "is not a load"),
            ("5x 0.1", "is not a count"),
        ];
        for (line, why) in bad {
            let read = text(&format!("1 a 0.1\n{line}\n2 b 0.1\n"));
            assert_eq!(read.profiles.len(), 1, "{line}");
            assert_eq!(read.profiles[0].rows.len(), 2, "{line}");
            assert_eq!((read.complaints_total, read.complaints[0].line), (1, 2), "{line}");
            assert!(read.complaints[0].why.contains(why), "{:?}", read.complaints);
        }
    }

    #[test]
    fn prose_with_figures_is_prose() {
        let lines = [
            "52 processes: 51 sleeping, 1 running, 0 zombie, 0 stopped",
            "124 MB/S, however, processor utilization, locking, etc. is far more",
            "2 to 3",
            "poll_idle 72241 121743 49502",
            "do_check_pgt_cache 584 494 -90",
            "CPU states: 0.0% user",
            "",
        ];
        for line in lines {
            assert_eq!(parse(line, false), Parsed::Prose, "{line}");
        }
    }
}
