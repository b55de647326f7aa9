//! A report on a post: its contents, parsed and recomputed.

use std::fmt;

use linerate_prof::agree::Judged;
use linerate_prof::diff::Diff;
use linerate_prof::print;
use linerate_show::table::Table;
use linerate_show::words::{WIDTH, wrapped};
use serde::Serialize;
use serde_json::Value;

use super::Post;

/// A post with its recomputed figures.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The post.
    #[serde(flatten)]
    pub post: &'static Post,
    /// The conditions of the post's measurements.
    pub taken: Vec<Fact>,
    /// The post's figures, in order of printing.
    pub parts: Vec<Part>,
    /// The post's figures beside our computed ones, which should be equal.
    pub checks: Vec<Check>,
    /// Errors and misleading statements in the post.
    pub errata: Vec<Erratum>,
    /// The post's tables, recomputed and printed in its own form.
    #[serde(skip)]
    pub as_posted: String,
}

/// A condition stated in the post.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// The subject of the condition: `kernel`.
    pub about: &'static str,
    /// The value of the condition.
    pub is: String,
    /// The line of the statement in the post; `None` if no line states it.
    pub line: Option<usize>,
}

/// A part of a report.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Part {
    /// A table of figures.
    Table(Table),
    /// A figure measured by two instruments.
    Headline(Held),
    /// A table from one of the profiler's printers.
    Profile(Printed),
    /// Remarks in sentences.
    Remarks {
        /// The subject of the remarks.
        title: String,
        /// Remarks, each printed separately.
        remarks: Vec<String>,
    },
}

/// A headline, with the comparison of its readings.
#[derive(Debug, Clone, Serialize)]
pub struct Held {
    /// The readings and the verdict, as JSON.
    #[serde(flatten)]
    document: Value,
    #[serde(skip)]
    text: String,
}

/// The output of one of the profiler's printers.
#[derive(Debug, Clone, Serialize)]
pub struct Printed {
    /// Short name, for files.
    pub name: &'static str,
    /// The title of the output.
    pub title: String,
    /// The output as a JSON document.
    pub document: Value,
    /// The output as text.
    #[serde(skip)]
    pub text: String,
    /// The output as CSV.
    #[serde(skip)]
    pub csv: String,
}

/// A figure of the post, with the recomputed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject of the check.
    pub what: String,
    /// The line of the statement.
    pub line: usize,
    /// The value in the post.
    pub posted: String,
    /// The computed value.
    pub computed: String,
    /// True if the values are equal.
    pub equal: bool,
}

/// An error or an imprecise statement in a post.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Erratum {
    /// The line of the statement; `None` if the error is an omission.
    pub line: Option<usize>,
    /// The statement of the post.
    pub says: String,
    /// The result from the post's own figures, with the arithmetic.
    pub gives: String,
}

impl Report {
    /// Returns an empty report.
    #[must_use]
    pub fn new(post: &'static Post) -> Report {
        Report {
            post,
            taken: Vec::new(),
            parts: Vec::new(),
            checks: Vec::new(),
            errata: Vec::new(),
            as_posted: String::new(),
        }
    }

    /// Adds a condition.
    pub fn taken(&mut self, about: &'static str, is: impl Into<String>, line: Option<usize>) {
        self.taken.push(Fact { about, is: is.into(), line });
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.parts.push(Part::Table(table));
    }

    /// Adds the output of a printer of the profiler.
    pub fn printed(&mut self, printed: Printed) {
        self.parts.push(Part::Profile(printed));
    }

    /// Adds sentences.
    pub fn remarks(&mut self, title: impl Into<String>, remarks: Vec<String>) {
        self.parts.push(Part::Remarks { title: title.into(), remarks });
    }

    /// Adds a headline that was judged.
    pub fn headline(&mut self, judged: &Judged<'_>) {
        // This cannot fail: every key is a string.
        let document = serde_json::to_value(judged).unwrap_or_default();
        self.parts.push(Part::Headline(Held { document, text: judged.to_string() }));
    }

    /// Adds a check of the post's value against our computed one.
    pub fn check<T: fmt::Display>(
        &mut self,
        what: impl Into<String>,
        line: usize,
        posted: T,
        computed: T,
    ) {
        let (posted, computed) = (posted.to_string(), computed.to_string());
        let equal = posted == computed;
        self.checks.push(Check { what: what.into(), line, posted, computed, equal });
    }

    /// Adds an erratum.
    pub fn erratum(
        &mut self,
        line: impl Into<Option<usize>>,
        says: impl Into<String>,
        gives: impl Into<String>,
    ) {
        let erratum = Erratum { line: line.into(), says: says.into(), gives: gives.into() };
        self.errata.push(erratum);
    }

    /// Returns the tables as CSV, each with its name.
    pub fn csv(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Table(table) => Some((table.name, table.csv())),
            Part::Profile(printed) => Some((printed.name, printed.csv.clone())),
            Part::Headline(_) | Part::Remarks { .. } => None,
        })
    }

    /// Returns the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| !check.equal)
    }
}

impl Printed {
    /// Prints a ranked difference as text, JSON and CSV.
    #[must_use]
    pub fn diff(name: &'static str, title: impl Into<String>, diff: &Diff) -> Printed {
        Printed {
            name,
            title: title.into(),
            // This cannot fail: every key is a string.
            document: serde_json::to_value(print::json::Diff(diff)).unwrap_or_default(),
            text: print::Ranked::new(diff).to_string(),
            csv: print::csv::Ranked(diff).to_string(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = format!("{}  {}", self.post.id, self.post.title);
        writeln!(f, "{head}\n{}", "=".repeat(head.chars().count()))?;
        writeln!(f, "{}, {}, {}", self.post.author, self.post.list, self.post.date)?;
        if !self.taken.is_empty() {
            writeln!(f, "\nHow the figures were taken")?;
            self.taken.iter().try_for_each(|fact| write!(f, "{fact}"))?;
        }
        self.parts.iter().try_for_each(|part| write!(f, "\n{part}"))?;
        if !self.checks.is_empty() {
            writeln!(f, "\nComputed here, and held against what the post says")?;
            self.checks.iter().try_for_each(|check| write!(f, "{check}"))?;
        }
        if !self.errata.is_empty() {
            writeln!(f, "\nErrors and misleading statements in the post")?;
            self.errata.iter().try_for_each(|erratum| write!(f, "{erratum}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map_or(String::new(), |line| format!("  (line {line})"));
        let first = format!("  {:13}", self.about);
        f.write_str(&wrapped(&format!("{}{line}", self.is), &first, &" ".repeat(15)))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Table(table) => write!(f, "{}{table}", wrapped(&table.title, "", "")),
            Part::Profile(Printed { title, text, .. }) => {
                f.write_str(&wrapped(title, "", ""))?;
                text.lines().try_for_each(|line| write_line(f, line, "  "))
            }
            Part::Headline(held) => held.text.lines().try_for_each(|line| write_line(f, line, "")),
            Part::Remarks { title, remarks } => {
                f.write_str(&wrapped(title, "", ""))?;
                remarks.iter().try_for_each(|remark| f.write_str(&wrapped(remark, "  ", "    ")))
            }
        }
    }
}

/// Writes a formatted line; breaks it only if it is too long, with deeper indentation.
fn write_line(f: &mut fmt::Formatter<'_>, line: &str, indent: &str) -> fmt::Result {
    if indent.len() + line.chars().count() <= WIDTH {
        return writeln!(f, "{}", format!("{indent}{line}").trim_end());
    }
    let text = line.trim_start();
    let first = format!("{indent}{}", " ".repeat(line.len() - text.len()));
    f.write_str(&wrapped(text, &first, &format!("{first}    ")))
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Check { what, line, posted, computed, equal } = self;
        let text = match equal {
            true => format!("{what}: {computed} (line {line})"),
            false => format!("{what}: the post says {posted} (line {line}), computed {computed}"),
        };
        let verdict = if *equal { "  equal   " } else { "  FAILED  " };
        f.write_str(&wrapped(&text, verdict, &" ".repeat(10)))
    }
}

impl fmt::Display for Erratum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.map_or(String::new(), |line| format!(" (line {line})"));
        f.write_str(&wrapped(&format!("{}{line}", self.says), "  ! ", "    "))?;
        f.write_str(&wrapped(&self.gives, "    ", "    "))
    }
}
