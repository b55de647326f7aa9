//! The text of a post, and the statements in it, each with its line.
//!
//! A post may be the user's own copy, so everything that is looked for may be missing: that is an
//! error with the phrase, or with the line that is not as it should be.

use linerate_prof::{Code, Error, Result};

use crate::Post;
use crate::decimal::Decimal;

/// The largest text that is accepted as a post. The largest of the five has 7 KB.
const BYTES_MAX: usize = 1 << 20;
/// The longest statement in bytes.
const SAID_MAX: usize = 2000;

/// A post, both line by line and as continuous words.
#[derive(Debug)]
pub struct Text<'a> {
    /// The post's number, for errors.
    id: &'static str,
    lines: Vec<&'a str>,
    /// The post's words with one space between, without quotation marks of mail.
    flat: String,
    /// The offset in `flat` at which each line starts.
    starts: Vec<usize>,
}

/// A statement of a post.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement<T> {
    /// The line in which the statement begins; the first is 1.
    pub line: usize,
    /// The value of the statement.
    pub is: T,
}

impl<'a> Text<'a> {
    /// Returns the text of post `id`.
    ///
    /// # Errors
    /// `E-FILE` if it is too large to be a post.
    pub fn new(id: &'static str, text: &'a str) -> Result<Text<'a>> {
        if text.len() > BYTES_MAX {
            let why = format!("{} bytes are no post: at most {BYTES_MAX}", text.len());
            return Err(Error::new(Code::File, unreadable(id), why));
        }
        let lines: Vec<&str> = text.lines().collect();
        let mut flat = String::new();
        let mut starts = Vec::with_capacity(lines.len());
        for line in &lines {
            starts.push(flat.len());
            for word in unquoted(line).split_whitespace() {
                flat.extend([word, " "]);
            }
        }
        Ok(Text { id, lines, flat, starts })
    }

    /// Returns the lines from number `first` on, with their numbers.
    pub fn lines_from(&self, first: usize) -> impl Iterator<Item = (usize, &'a str)> {
        self.lines.iter().enumerate().skip(first.saturating_sub(1)).map(|(i, line)| (i + 1, *line))
    }

    /// Returns the first line at or after line `first` that contains `part`.
    ///
    /// # Errors
    /// `E-FILE` if none does.
    pub fn line_with(&self, first: usize, part: &str) -> Result<Statement<&'a str>> {
        let found = self.lines_from(first).find(|(_, line)| line.contains(part));
        found.map(|(line, is)| Statement { line, is }).ok_or_else(|| self.lacks(part))
    }

    /// Searches the continuous text for `phrase`, and returns the line of the first match.
    #[must_use]
    pub fn says(&self, phrase: &str) -> Option<usize> {
        self.flat.find(phrase).map(|at| self.line_at(at))
    }

    /// Returns the text between two phrases.
    ///
    /// # Errors
    /// `E-FILE` if they are not there in this order, with at most 2000 bytes between.
    pub fn between(&self, from: &str, to: &str) -> Result<Statement<&str>> {
        let start = self.end_of(from)?;
        let rest = self.flat.get(start..).unwrap_or("");
        let end = rest.find(to).filter(|end| *end <= SAID_MAX).ok_or_else(|| self.lacks(to))?;
        let is = rest.get(..end).unwrap_or("").trim();
        Ok(Statement { line: self.line_at(start), is })
    }

    /// Returns the number after a phrase.
    ///
    /// # Errors
    /// `E-FILE` if the phrase is not there, or no number follows it.
    pub fn number_after(&self, phrase: &str) -> Result<Statement<Decimal>> {
        let start = self.end_of(phrase)?;
        let word = self.flat.get(start..).and_then(|rest| rest.split_whitespace().next());
        self.number(start, word.unwrap_or(""))
    }

    /// Returns the number in front of a phrase.
    ///
    /// # Errors
    /// As [`Text::number_after`].
    pub fn number_before(&self, phrase: &str) -> Result<Statement<Decimal>> {
        let at = self.flat.find(phrase).ok_or_else(|| self.lacks(phrase))?;
        let head = self.flat.get(..at).unwrap_or("").trim_end();
        let word = head.rsplit(' ').next().unwrap_or("");
        self.number(head.len().saturating_sub(word.len()), word)
    }

    /// Builds the error for a fault in `line`.
    #[must_use]
    pub fn wrong(&self, line: usize, why: &str) -> Error {
        Error::new(Code::File, unreadable(self.id), format!("line {line}: {why}"))
    }

    fn number(&self, at: usize, word: &str) -> Result<Statement<Decimal>> {
        let line = self.line_at(at);
        let bare = word.trim_start_matches('(').trim_end_matches(['.', ',', ';', ')', '%']);
        let is = Decimal::parse(bare).ok_or_else(|| {
            let word: String = word.chars().take(40).collect();
            self.wrong(line, &format!("a number should stand here, not {word:?}"))
        })?;
        Ok(Statement { line, is })
    }

    /// Returns the offset of the text that follows `phrase`.
    fn end_of(&self, phrase: &str) -> Result<usize> {
        let at = self.flat.find(phrase).ok_or_else(|| self.lacks(phrase))?;
        // The blank after the phrase may be the end of its line. Skip it, so that the offset is in
        // the line of the next word.
        let end = at + phrase.len();
        Ok(end + usize::from(self.flat.get(end..).is_some_and(|rest| rest.starts_with(' '))))
    }

    /// Returns the line that contains byte `at` of the continuous words.
    fn line_at(&self, at: usize) -> usize {
        // Several lines may have the same start, because lines without words take no bytes. The
        // last of them contains the words.
        self.starts.partition_point(|start| *start <= at)
    }

    fn lacks(&self, phrase: &str) -> Error {
        let why =
            format!("it does not say {phrase:?} where it should, in {} lines", self.lines.len());
        let file = Post::named(self.id).map_or("", |post| post.file);
        Error::new(Code::File, unreadable(self.id), why)
            .fix(format!("compare the copy with tests/seeds/{file} in linerate's repository"))
    }
}

fn unreadable(id: &str) -> String {
    format!("cannot read post {id}")
}

/// Returns a line without mail's marks of quoting, such as `>`.
fn unquoted(line: &str) -> &str {
    line.trim_start_matches(|c: char| c == '>' || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str =
        "Title\n\n> > By inordinate, we mean\n> twice 7%\nin all 1,365,716 retrans\nx .\n";

    #[test]
    fn quotation_over_two_lines_is_found_with_its_line() {
        let text = Text::new("001", POST).unwrap();
        assert_eq!(
            text.between("inordinate, we", "7%").unwrap(),
            Statement { line: 3, is: "mean twice" }
        );
        let number = text.number_after("twice").unwrap();
        assert_eq!((number.line, number.is), (4, Decimal::whole(7)));
        let number = text.number_before("retrans").unwrap();
        assert_eq!((number.line, number.is), (5, Decimal::whole(1_365_716)));
        assert_eq!(text.says("Title By"), Some(1));
        assert_eq!(text.line_with(2, "in").unwrap().line, 3);
    }

    #[test]
    fn missing_phrase_is_an_error_that_names_it() {
        let text = Text::new("001", POST).unwrap();
        let why = |e: Error| e.why;
        assert!(why(text.between("Title", "nowhere").unwrap_err()).contains("nowhere"));
        assert!(why(text.number_after("nowhere").unwrap_err()).contains("nowhere"));
        assert!(why(text.number_after("Title").unwrap_err()).starts_with("line 3: "));
        assert!(why(text.number_after("x .").unwrap_err()).contains("not \"\""));
        assert!(why(text.number_before("Title").unwrap_err()).contains("line 1"));
        assert!(text.line_with(99, "Title").is_err());
        assert!(why(text.wrong(7, "odd")).contains("line 7: odd"));
        let fix = text.number_after("nowhere").unwrap_err().fix;
        assert!(fix.contains("tests/seeds/001_c0fbd8bbaa366728.txt"), "{fix}");
    }

    #[test]
    fn a_file_that_is_no_post_is_refused() {
        assert!(Text::new("001", &"x".repeat(BYTES_MAX + 1)).is_err());
        let nothing = Text::new("001", "").unwrap();
        assert!(nothing.number_after("").is_err() && nothing.number_before("x").is_err());
    }
}
