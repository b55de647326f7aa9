//! The table of post 002.

use linerate_prof::Result;

use super::super::Text;
use crate::decimal::Decimal;

/// The table of the post.
#[derive(Debug)]
pub(super) struct Grid<'a> {
    /// Headings in the table, each with the number of blanks before it.
    headings: Vec<(&'a str, usize)>,
    pub(super) tests: Vec<Test<'a>>,
    pub(super) overall: Total<'a>,
    /// Line of the summary, and its numbers of better and worse tests.
    pub(super) summary: (usize, u64, u64),
}

/// A test, which is one row of the table.
#[derive(Debug)]
pub(super) struct Test<'a> {
    pub(super) line: usize,
    /// The heading above the row.
    pub(super) group: &'a str,
    pub(super) size_bytes: Decimal,
    pub(super) processes: Decimal,
    pub(super) org: Decimal,
    pub(super) new: Decimal,
    /// The change as posted.
    pub(super) posted: &'a str,
}

/// The last line of the table.
#[derive(Debug)]
pub(super) struct Total<'a> {
    pub(super) line: usize,
    pub(super) org: Decimal,
    pub(super) new: Decimal,
    /// The change as posted, without the per cent sign.
    pub(super) posted: &'a str,
}

impl Test<'_> {
    /// Returns the test's name as in the post.
    pub(super) fn label(&self) -> String {
        format!("Size:{} Procs:{}", self.size_bytes, self.processes)
    }
}

impl<'a> Grid<'a> {
    /// Returns the groups, in order.
    pub(super) fn groups(&self) -> impl Iterator<Item = &'a str> {
        self.headings.iter().map(|(name, _)| *name)
    }

    /// Returns the tests of a group.
    pub(super) fn of(&self, group: &str) -> impl Iterator<Item = &Test<'a>> {
        self.tests.iter().filter(move |test| test.group == group)
    }

    pub(super) fn indent_of(&self, group: &str) -> usize {
        self.headings.iter().find(|(name, _)| *name == group).map_or(0, |(_, indent)| *indent)
    }
}

/// Reads the table.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn grid<'a>(text: &Text<'a>) -> Result<Grid<'a>> {
    let head = text.line_with(1, "Test Case")?.line;
    let mut headings: Vec<(&str, usize)> = Vec::new();
    let mut tests = Vec::new();
    let mut end = None;
    for (line, row) in text.lines_from(head + 2) {
        let name = row.trim();
        if name.chars().all(|c| c == '-') {
            // A blank line, or the line of dashes below a heading, which is indented. A line of
            // dashes without indentation ends the table.
            if row.starts_with('-') {
                end = Some(line);
                break;
            }
        } else if name.starts_with("Size:") {
            let Some((group, _)) = headings.last() else {
                return Err(text.wrong(line, "a row under no heading"));
            };
            tests.push(test(line, group, row).map_err(|why| text.wrong(line, &why))?);
        } else {
            headings.push((name, row.len() - row.trim_start().len()));
        }
    }
    let end = end.ok_or_else(|| text.wrong(head, "the table has no end, a rule of -----"))?;
    if tests.is_empty() {
        return Err(text.wrong(head, "no row follows"));
    }
    let overall = total(text, end)?;
    let summary = summary(text, overall.line)?;
    Ok(Grid { headings, tests, overall, summary })
}

fn test<'a>(line: usize, group: &'a str, row: &'a str) -> std::result::Result<Test<'a>, String> {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let [size, processes, org, new, posted] = fields[..] else {
        return Err(format!("{} columns, and not 5", fields.len()));
    };
    let labelled = |field: &str, label| field.strip_prefix(label).and_then(whole);
    let expected = |what: &str, field: &str| format!("{what} should stand here, not {field:.40?}");
    Ok(Test {
        line,
        group,
        size_bytes: labelled(size, "Size:").ok_or_else(|| expected("Size:n", size))?,
        processes: labelled(processes, "Procs:").ok_or_else(|| expected("Procs:n", processes))?,
        org: whole(org).ok_or_else(|| expected("a whole number above 0", org))?,
        new: whole(new).ok_or_else(|| expected("a whole number above 0", new))?,
        posted,
    })
}

/// Returns a whole number above 0.
fn whole(field: &str) -> Option<Decimal> {
    Decimal::parse(field).filter(|number| number.as_count().is_some_and(|n| n > 0))
}

fn total<'a>(text: &Text<'a>, end: usize) -> Result<Total<'a>> {
    let said = text.line_with(end, "Overall:")?;
    let fields: Vec<&str> = said.is.split_whitespace().collect();
    let wrong = || text.wrong(said.line, "\"Overall: n n n%\" should stand here");
    let [_, org, new, posted] = fields[..] else { return Err(wrong()) };
    let (org, new) = whole(org).zip(whole(new)).ok_or_else(wrong)?;
    let posted = posted.strip_suffix('%').ok_or_else(wrong)?;
    Ok(Total { line: said.line, org, new, posted })
}

fn summary(text: &Text<'_>, from: usize) -> Result<(usize, u64, u64)> {
    let said = text.line_with(from, "[Summary:")?;
    let numbers: Vec<u64> =
        said.is.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [better, worse] => Ok((said.line, better, worse)),
        _ => Err(text.wrong(said.line, "two counts should stand here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "Test Case  ORG  NEW  % Change\n-----\n    TCP\n    ---\n";
    const TAIL: &str = "-----\nOverall: 10 20 100.00%\n [Summary: 1 Better cases, 0 worse]\n";

    fn read(body: &str) -> std::result::Result<usize, String> {
        let all = format!("{HEAD}{body}{TAIL}");
        let text = Text::new("002", &all).unwrap();
        grid(&text).map(|grid| grid.tests.len()).map_err(|e| e.why)
    }

    #[test]
    fn a_row_that_is_none_is_refused_with_its_line() {
        assert_eq!(read("Size:32 Procs:1 10 20 100.00\n"), Ok(1));
        for (row, why) in [
            ("Size:32 Procs:1 10 20\n", "line 5: 4 columns"),
            ("Size:32 Procs:x 10 20 1\n", "line 5: Procs:n should stand here, not \"Procs:x\""),
            ("\nSize:32 Procs:1 0 20 1\n", "line 6: a whole number above 0"),
            ("Size:32 Procs:1 10 2.5 1\n", "line 5: a whole number above 0"),
            ("", "line 1: no row follows"),
        ] {
            let refused = read(row).unwrap_err();
            assert!(refused.starts_with(why), "{row:?}: {refused}");
        }
    }

    #[test]
    fn a_table_without_a_heading_or_an_end_is_refused() {
        let refused = |text: &str| grid(&Text::new("002", text).unwrap()).unwrap_err().why;
        let bare = "Test Case\n-----\nSize:32 Procs:1 10 20 1\n";
        assert!(refused(bare).starts_with("line 3: a row under no heading"));
        assert!(refused(HEAD).starts_with("line 1: the table has no end"));
        let unsaid = format!("{HEAD}Size:32 Procs:1 10 20 1\n-----\nOverall: 10 20\n");
        assert!(refused(&unsaid).starts_with("line 7: "));
    }
}
