//! Listings in prose such as a mail. A text may have several listings, each with a caption, and may
//! be quoted.
//!
//! ```text
//! > I have profiled …                 a paragraph of prose: the caption
//! >
//! > poll_idle [c0105280]: 121743      rows; a blank line among them is nothing, unless a row
//! >                                   behind it is one from before it: that is another listing
//! > schedule [c0114190]: 24853
//! >
//! > To eliminate …                    prose: the listing has ended
//! ```

use std::io::{self, BufRead};

use super::lines::{Line, Lines, unquoted};
use super::rows::{Budget, ListedRow, Rows};
use super::{Form, LINE_TOO_LONG, Read};
use crate::profile::{Event, Origin, Profile, Total};

/// The content of a line.
#[derive(Debug, PartialEq)]
pub(super) enum Parsed<'a> {
    /// A row of a listing.
    Row(ListedRow<'a>),
    /// The total according to the listing's source.
    Total(Total),
    /// An invalid row, with the reason.
    Broken(String),
    /// A line that is no part of a listing.
    Prose,
}

/// The reader of a form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Syntax {
    pub(super) form: Form,
    /// Parses a line, from which marks of quoting are removed. `inside` is true if the previous
    /// line was a row.
    pub(super) line: fn(&str, bool) -> Parsed<'_>,
    /// Returns the event of a listing from its caption, with a remark if necessary.
    pub(super) event: fn(&str) -> (Event, Option<String>),
}

/// Reads all listings in `input`.
pub(super) fn read(input: impl BufRead, syntax: Syntax, budget: Budget) -> io::Result<Read> {
    let mut lines = Lines::new(input);
    let mut listings = Listings {
        syntax,
        read: Read::new(syntax.form),
        budget,
        caption: Caption::default(),
        current: Listing::default(),
        inside: false,
        dropping: false,
    };
    while let Some((number, line)) = lines.next()? {
        match line {
            Line::Text(text) => listings.line(number, unquoted(text)),
            Line::TooLong => listings.broken(number, LINE_TOO_LONG.to_owned()),
        }
    }
    listings.finish();
    Ok(listings.read)
}

#[derive(Debug)]
struct Listings {
    syntax: Syntax,
    read: Read,
    budget: Budget,
    caption: Caption,
    current: Listing,
    /// True if the previous line was part of a listing.
    inside: bool,
    /// True inside a listing that is left out, because the limit of listings is reached.
    dropping: bool,
}

/// The listing that is being read.
#[derive(Debug, Default)]
struct Listing {
    rows: Rows,
    total: Option<Total>,
    /// True if the total came after the last blank line.
    total_is_late: bool,
    caption: String,
    /// True if the listing's total came last and equals the sum of its rows, so that the next row
    /// begins another listing.
    complete: bool,
    broken: u64,
}

impl Listings {
    fn line(&mut self, number: u64, text: &str) {
        match (self.syntax.line)(text, self.inside) {
            Parsed::Row(found) => self.row(number, found),
            Parsed::Total(total) => self.total(number, total),
            Parsed::Broken(why) => self.broken(number, why),
            Parsed::Prose if text.is_empty() => {
                self.caption.end();
                self.inside = false;
                self.current.rows.blank();
                self.current.total_is_late = false;
            }
            Parsed::Prose => {
                self.finish();
                self.inside = false;
                self.caption.add(text);
                self.read.prose_lines += 1;
            }
        }
    }

    fn row(&mut self, number: u64, found: ListedRow<'_>) {
        if self.current.complete {
            self.finish();
        } else if self.current.rows.is_from_before_the_blank(&found) {
            let next = self.current.split_off();
            self.finish();
            self.current = next;
        }
        if self.begin(number) {
            self.current.rows.add(&mut self.budget, found);
        }
    }

    fn total(&mut self, number: u64, total: Total) {
        if self.current.total.is_some() {
            self.finish();
        }
        if self.begin(number) {
            let rows = &self.current.rows;
            self.current.complete = !rows.is_empty() && rows.sum() == total.count;
            self.current.total = Some(total);
            self.current.total_is_late = true;
        }
    }

    /// Begins a listing if none is open. Returns false if there are too many listings.
    fn begin(&mut self, number: u64) -> bool {
        self.inside = true;
        if self.budget.profiles > 0 {
            if self.current.is_empty() {
                self.current.caption = self.caption.take();
            }
            return true;
        }
        self.current = Listing::default(); // rows split off the last stored listing
        if !std::mem::replace(&mut self.dropping, true) {
            self.read.listings_left_out.get_or_insert((0, number)).0 += 1;
        }
        false
    }

    fn broken(&mut self, number: u64, why: String) {
        self.current.broken += 1;
        self.read.complain(number, why);
    }

    /// Ends the open listing, if there is one.
    fn finish(&mut self) {
        self.dropping = false;
        let listing = std::mem::take(&mut self.current);
        if !listing.is_empty() {
            self.budget.profiles -= 1; // not below 0: `begin` checks that one is left
            self.read.profiles.push(listing.into_profile(self.syntax));
        }
    }
}

impl Listing {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.total.is_none()
    }

    /// Splits off the rows after the last blank line as another listing.
    fn split_off(&mut self) -> Listing {
        let total = if self.total_is_late { self.total.take() } else { None };
        Listing { rows: self.rows.split_off(), total, ..Listing::default() }
    }

    fn into_profile(self, syntax: Syntax) -> Profile {
        let (event, of_event) = (syntax.event)(&self.caption);
        let mut profile = Profile::new(event, Origin::Listing);
        let (repeated, counted, broken) = (self.rows.repeated, self.rows.sum(), self.broken);
        let (rows, of_other) = self.rows.into_rows();
        (profile.rows, profile.total) = (rows, self.total);
        let lines = if broken == 1 { "line" } else { "lines" };
        let repeat = if repeated == 1 { "line repeats a row" } else { "lines repeat rows" };
        let remarks = [
            (!self.caption.is_empty()).then(|| format!("as captioned: {}", self.caption)),
            of_event,
            (broken > 0)
                .then(|| format!("{broken} malformed {lines} left out, the rest still read")),
            (repeated > 0).then(|| format!("{repeated} {repeat}, and the counts are added up")),
            profile
                .total
                .filter(|total| total.count < counted)
                .map(|_| format!("the rows sum to {counted}, more than the total that is given")),
        ];
        profile.remarks.extend(remarks.into_iter().flatten());
        if profile.total.is_none_or(|total| total.count != counted) {
            cut_off(&mut profile, of_other.is_some());
        }
        profile.remarks.extend(of_other);
        profile
    }
}

/// Infers the cut-off of a listing that does not state it. `other` is true if the last row sums up
/// rows beyond the limit of stored ones.
pub(super) fn cut_off(profile: &mut Profile, other: bool) {
    let least = profile.rows.iter().map(|row| row.count).min();
    let (below, why) = match (least, profile.rows.last()) {
        (_, Some(last)) if other => {
            (last.count.saturating_add(1), "any of those in the last row may have been")
        }
        // If there are rows of 0, the cut-off is 1: such a listing has every function with a count.
        (Some(least), _) => {
            (least.max(1), "inferred from the smallest row, the listing does not say")
        }
        (None, _) => (profile.total_count().saturating_add(1), "it lists none, only their total"),
    };
    profile.cutoff = Some(below);
    let say = format!("a function that is not listed was seen less than {below} times: {why}");
    profile.remarks.push(say);
}

/// The last paragraph of prose, of which the end, nearest to the listing, is stored.
#[derive(Debug, Default)]
struct Caption {
    text: String,
    ended: bool,
}

impl Caption {
    fn add(&mut self, line: &str) {
        if std::mem::take(&mut self.ended) {
            self.text.clear();
        }
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(line);
        if let Some(over) = self.text.len().checked_sub(CAPTION_MAX_BYTES) {
            let cut = self.text.ceil_char_boundary(over);
            self.text.replace_range(..cut, "");
        }
    }

    fn end(&mut self) {
        self.ended = true;
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

/// Most bytes of a caption that are stored.
const CAPTION_MAX_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::kernprof;
    use super::*;

    fn text(text: &str) -> Read {
        within(text, Budget::default())
    }

    fn within(text: &str, budget: Budget) -> Read {
        read(text.as_bytes(), kernprof::SYNTAX, budget).unwrap()
    }

    #[test]
    fn quoted_rows_are_read_at_any_depth_and_with_any_line_end() {
        let plain = text("a [1]: 5\nb [2]: 4\n");
        assert_eq!(plain.profiles[0].rows.len(), 2);
        for quoted in [
            ">a [1]: 5\n>b [2]: 4\n",
            "> > a [1]: 5\r\n> > b [2]: 4\r\n",
            ">>> a [1]: 5\n>>>\tb [2]: 4",
        ] {
            assert_eq!(text(quoted), plain, "{quoted:?}");
        }
    }

    #[test]
    fn a_blank_line_among_rows_is_nothing_and_a_line_of_prose_ends_the_listing() {
        let read =
            text("one:\na [1]: 5\n>\n\nb [2]: 4\nand\nother words\n\ntwo:\n\nc [3]: 3\nbye\n");
        let listed: Vec<_> = read.profiles.iter().map(|p| p.rows.len()).collect();
        assert_eq!((listed.as_slice(), read.prose_lines), ([2, 1].as_slice(), 5));
        assert_eq!(read.profiles[0].remarks[0], "as captioned: one:");
        assert_eq!(read.profiles[1].remarks[0], "as captioned: two:");
    }

    #[test]
    fn a_row_that_is_repeated_is_added_up_and_the_smallest_is_the_cut_off() {
        let read = text("a [1]: 5\na [2]: 4\na [1]: 3\n");
        let rows: Vec<_> = read.profiles[0].rows.iter().map(|r| (r.address, r.count)).collect();
        assert_eq!(rows, [(Some(1), 8), (Some(2), 4)]);
        assert!(read.profiles[0].remarks[0].starts_with("1 line repeats a row"));
        assert_eq!(read.profiles[0].cutoff, Some(4));
        assert!(read.profiles[0].remarks[1].contains("less than 4 times: inferred"));
    }

    #[test]
    fn listings_beyond_the_budget_are_counted_and_told_of() {
        let many = "a [1]: 5\nb [2]: 3\nprose\n".repeat(5);
        let read = within(&many, Budget { profiles: 2, ..Budget::default() });
        assert_eq!((read.profiles.len(), read.complaints_total), (2, 0));
        let say = "3 listings left out, from line 7 on: 2 of a file are read";
        assert_eq!(read.left_out().as_deref(), Some(say));
        let blank = "a [1]: 5\n\n".repeat(5);
        let read = within(&blank, Budget { profiles: 2, ..Budget::default() });
        assert_eq!((read.profiles.len(), read.listings_left_out), (2, Some((1, 5))));
    }

    #[test]
    fn a_row_again_after_a_blank_line_begins_another_listing() {
        let counts = |text: &str| -> Vec<Vec<u64>> {
            let rows = |p: &Profile| p.rows.iter().map(|r| r.count).collect();
            super::super::parse(text.as_bytes(), None).unwrap().profiles.iter().map(rows).collect()
        };
        assert_eq!(counts("a [1]: 5\nb [2]: 4\n\na [1]: 3\nb [2]: 1\n"), [[5, 4], [3, 1]]);
        // Its first row need not be the one that tells.
        let later = "a [1]: 5\nb [2]: 4\n\nc [3]: 9\nb [2]: 3\na [1]: 1\n";
        assert_eq!(counts(later), [vec![5, 4], vec![9, 3, 1]]);
        let totals = "3 a 0.5\n2 b 0.5\n\n9 total 0.1\n4 c 0.5\n2 a 0.5\n";
        assert_eq!(counts(totals), [vec![3, 2], vec![4, 2]]);
        let of = super::super::parse(totals.as_bytes(), None).unwrap().profiles;
        assert_eq!((of[0].total, of[1].total_count()), (None, 9));
        // A list that is set with blank lines, and repeats nothing, is one.
        assert_eq!(counts("a [1]: 5\n\nb [2]: 4\n\nc [3]: 3\n"), [[5, 4, 3]]);
    }

    #[test]
    fn what_there_is_no_room_for_raises_the_cut_off_and_of_a_long_caption_the_end_is_kept() {
        let budget = Budget { functions: 1, ..Budget::default() };
        let read = within("a [1]: 9\nb [2]: 4\nc [3]: 4\n", budget);
        let profile = &read.profiles[0];
        assert_eq!((profile.counted(), profile.cutoff), (17, Some(9)));
        assert!(profile.remarks.last().unwrap().starts_with("2 lines of further functions"));
        let read = text(&format!("{}\nthe end:\na [1]: 5\n", "é".repeat(2000)));
        let caption = &read.profiles[0].remarks[0];
        assert!(caption.ends_with("the end:") && caption.len() < CAPTION_MAX_BYTES + 20);
    }

    #[test]
    fn a_line_beyond_the_bound_is_complained_of_and_the_next_is_read() {
        let read = text(&format!("a [1]: 5\n{} [2]: 4\nc [3]: 3\n", "b".repeat(70_000)));
        assert_eq!(read.profiles[0].rows.len(), 2);
        assert_eq!(read.complaints[0].to_string(), "line 2: it is longer than 65536 bytes");
    }
}
