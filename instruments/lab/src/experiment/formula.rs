//! Formula of a metric over a window: `cost_ns / packets`, `100 * hits / allocs`, `(alloc_ticks +
//! free_ticks) / packets`.
//!
//! ```text
//!  formula  [NUMBER *] sum [/ sum]
//!  sum      name | ( name {+ name | - name} )
//!  name     a letter or _, then letters, digits, _ and .; a hyphen between two of them belongs to
//!           the name (pmu.page-faults), so that a minus needs a space beside it
//! ```

use std::fmt;
use std::iter::Peekable;
use std::str::CharIndices;

use crate::settings::wrong;
use crate::window::Window;
use crate::{Error, Result};

/// Figures in one sum, so that a file cannot make a window's evaluation long.
const TERMS_MAX: usize = 32;

/// A constant, times a sum of figures, divided by a sum of figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// The constant; 1 unless said.
    pub scale: f64,
    /// Figures that are added, or taken away if false.
    pub over: Vec<(bool, String)>,
    /// Figures that are divided by; none: by 1.
    pub under: Vec<(bool, String)>,
}

impl Formula {
    /// Reads one.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with the formula and the column at which it stops to be one.
    pub fn parse(text: &str) -> Result<Formula> {
        let mut parser = Parser { text, rest: text.char_indices().peekable() };
        let scale = parser.scale()?;
        let over = parser.sum()?;
        let under = if parser.take('/') { parser.sum()? } else { Vec::new() };
        match parser.peek() {
            None => Ok(Formula { scale, over, under }),
            Some('+' | '-') => Err(parser.refuse("a sum is written in parentheses")),
            Some(_) if under.is_empty() => Err(parser.refuse("expected / or the end")),
            Some(_) => Err(parser.refuse("expected the end")),
        }
    }

    /// Computes the value over a window; returns `None` if a figure is missing or the divisor is 0.
    #[must_use]
    pub fn of(&self, window: &Window) -> Option<f64> {
        let sum = |terms: &[(bool, String)]| {
            terms.iter().try_fold(0.0, |sum, (plus, name)| {
                let figure = window.figure(name)?;
                Some(if *plus { sum + figure } else { sum - figure })
            })
        };
        let under = if self.under.is_empty() { 1.0 } else { sum(&self.under)? };
        let value = self.scale * sum(&self.over)? / under;
        (under != 0.0 && value.is_finite()).then_some(value)
    }

    /// The figures that it is made from.
    pub fn figures(&self) -> impl Iterator<Item = &str> {
        self.over.iter().chain(&self.under).map(|(_, name)| name.as_str())
    }
}

impl fmt::Display for Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.scale != 1.0 {
            write!(f, "{} * ", self.scale)?;
        }
        write_sum(f, &self.over)?;
        if !self.under.is_empty() {
            f.write_str(" / ")?;
            write_sum(f, &self.under)?;
        }
        Ok(())
    }
}

fn write_sum(f: &mut fmt::Formatter<'_>, terms: &[(bool, String)]) -> fmt::Result {
    if let [(true, name)] = terms {
        return f.write_str(name);
    }
    f.write_str("(")?;
    for (i, (plus, name)) in terms.iter().enumerate() {
        f.write_str(match (i, plus) {
            (0, _) => "",
            (_, true) => " + ",
            (_, false) => " - ",
        })?;
        f.write_str(name)?;
    }
    f.write_str(")")
}

struct Parser<'t> {
    text: &'t str,
    rest: Peekable<CharIndices<'t>>,
}

impl Parser<'_> {
    /// `NUMBER *`, if it is there.
    fn scale(&mut self) -> Result<f64> {
        let Some('0'..='9' | '.') = self.peek() else { return Ok(1.0) };
        let refused = self.refuse("expected a number above 0");
        let word = self.word(|c, _| c.is_ascii_alphanumeric() || c == '.');
        let number = word.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
        let number = number.ok_or(refused)?;
        if self.take('*') { Ok(number) } else { Err(self.refuse("expected *")) }
    }

    /// A name, or several in parentheses.
    fn sum(&mut self) -> Result<Vec<(bool, String)>> {
        if !self.take('(') {
            return Ok(vec![(true, self.name()?)]);
        }
        let mut terms = vec![(true, self.name()?)];
        loop {
            let plus = match () {
                () if self.take(')') => return Ok(terms),
                () if terms.len() == TERMS_MAX => {
                    return Err(self.refuse(&format!("a sum has at most {TERMS_MAX} figures")));
                }
                () if self.take('+') => true,
                () if self.take('-') => false,
                () => return Err(self.refuse("expected +, - or )")),
            };
            terms.push((plus, self.name()?));
        }
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(c) if c.is_ascii_alphabetic() || c == '_' => Ok(self.word(|c, next| {
                let inside = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
                inside(c) || c == '-' && next.is_some_and(inside)
            })),
            _ => Err(self.refuse("expected a figure's name")),
        }
    }

    /// Characters as long as they belong to it, given each and the one behind it.
    fn word(&mut self, belongs: impl Fn(char, Option<char>) -> bool) -> String {
        let mut word = String::new();
        while let Some(&(at, c)) = self.rest.peek() {
            let next = self.text.get(at + c.len_utf8()..).and_then(|rest| rest.chars().next());
            if !belongs(c, next) {
                break;
            }
            word.push(c);
            self.rest.next();
        }
        word
    }

    fn take(&mut self, wanted: char) -> bool {
        self.peek() == Some(wanted) && self.rest.next().is_some()
    }

    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        while self.rest.next_if(|(_, c)| c.is_ascii_whitespace()).is_some() {}
        self.rest.peek().map(|(_, c)| *c)
    }

    /// Why it is none, at the next character.
    fn refuse(&mut self, why: &str) -> Error {
        let end = (self.text.len(), ' ');
        let (at, _) = self.rest.peek().copied().unwrap_or(end);
        let column = 1 + self.text.get(..at).map_or(0, |before| before.chars().count());
        let text: String = self.text.chars().take(80).collect();
        wrong(0, format!("formula {text:?}, column {column}: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(figures: &[(&str, f64)]) -> Window {
        let figures = figures.iter().map(|(name, value)| ((*name).to_owned(), *value));
        Window { packets: 4, figures: figures.collect(), ..Window::default() }
    }

    fn why(text: &str) -> String {
        Formula::parse(text).unwrap_err().why
    }

    #[test]
    fn a_formula_is_a_constant_times_a_sum_by_a_sum() {
        let window = window(&[("a", 3.0), ("b", 5.0), ("c", 1.0)]);
        let value = |text| Formula::parse(text).unwrap().of(&window);
        assert_eq!(value("100 * a / b"), Some(60.0));
        assert_eq!(value("(a + b) / packets"), Some(2.0));
        assert_eq!(value("a / (b - c - c)"), Some(1.0));
        assert_eq!(value("a"), Some(3.0));
        assert_eq!(value("1e3*(b - a)"), Some(2000.0));
    }

    #[test]
    fn what_is_divided_by_nothing_or_is_missing_is_no_value() {
        let window = window(&[("a", 3.0), ("zero", 0.0)]);
        let value = |text| Formula::parse(text).unwrap().of(&window);
        assert_eq!(value("a / zero"), None);
        assert_eq!(value("a / (a - a)"), None);
        assert_eq!(value("a / absent"), None);
        assert_eq!(value("zero / a"), Some(0.0));
    }

    #[test]
    fn a_formula_is_printed_as_it_is_read() {
        for text in [
            "cost_ns / packets",
            "100 * hits / allocs",
            "(a + b) / packets",
            "a / (b - c)",
            "0.5 * (a - b + c)",
            "pmu.page-faults / pmu.r1643",
        ] {
            let formula = Formula::parse(text).unwrap();
            assert_eq!(formula.to_string(), text);
            assert_eq!(Formula::parse(&formula.to_string()), Ok(formula));
        }
    }

    #[test]
    fn what_is_no_formula_is_refused_with_its_column() {
        let at = |column, why| format!("column {column}: {why}");
        for (text, expected) in [
            ("100 * hits allocs", at(12, "expected / or the end")),
            ("a + b", at(3, "a sum is written in parentheses")),
            ("(a + b", at(7, "expected +, - or )")),
            ("a / ", at(5, "expected a figure's name")),
            ("", at(1, "expected a figure's name")),
            ("a / b / c", at(7, "expected the end")),
            ("0 * a", at(1, "expected a number above 0")),
            ("1e999 * a", at(1, "expected a number above 0")),
            ("1.2.3 * a", at(1, "expected a number above 0")),
            ("100 a", at(5, "expected *")),
            ("é / b", at(1, "expected a figure's name")),
            ("(a × b)", at(4, "expected +, - or )")),
            ("((a))", at(2, "expected a figure's name")),
        ] {
            assert_eq!(why(text), format!("formula {text:?}, {expected}"));
        }
    }

    #[test]
    fn a_sum_without_end_is_cut() {
        let text = format!("({})", vec!["a"; 1000].join("+"));
        assert!(why(&text).ends_with("a sum has at most 32 figures"), "{}", why(&text));
        let text = format!("({})", vec!["a"; 32].join(" - "));
        assert_eq!(Formula::parse(&text).unwrap().over.len(), 32);
    }
}
