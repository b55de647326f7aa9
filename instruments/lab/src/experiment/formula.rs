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

use serde::{Serialize, Serializer};

use crate::Result;
use crate::settings::wrong;
use crate::window::Window;

/// Most figures in one sum, which bounds the time of an evaluation.
const TERMS_MAX: usize = 32;

/// A constant, times a sum of figures, divided by a sum of figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Formula {
    /// The constant factor, by default 1.
    pub scale: f64,
    /// Figures of the numerator: added if true, subtracted if false.
    pub over: Vec<(bool, String)>,
    /// Figures of the denominator; 1 if there are none.
    pub under: Vec<(bool, String)>,
}

impl Formula {
    /// Parses a formula.
    ///
    /// # Errors
    /// `E-EXPERIMENT` with the formula and what it lacks.
    pub fn parse(text: &str) -> Result<Formula> {
        let shown: String = text.chars().take(80).collect();
        let refuse = |why| wrong(0, format!("formula {shown:?}: {why}"));
        let (over, under) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let (scale, over) = match over.split_once('*') {
            Some((scale, over)) => (scale.trim().parse().unwrap_or(0.0), over),
            None => (1.0, over),
        };
        if !(scale > 0.0 && f64::is_finite(scale)) {
            return Err(refuse("expected a number above 0 before *"));
        }
        let under = under.map_or(Ok(Vec::new()), sum).map_err(refuse)?;
        Ok(Formula { scale, over: sum(over).map_err(refuse)?, under })
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

    /// Returns the figures in the formula.
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

impl Serialize for Formula {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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

/// Parses a name, or a sum of several names in parentheses.
fn sum(text: &str) -> std::result::Result<Vec<(bool, String)>, &'static str> {
    let Some(inner) = text.trim().strip_prefix('(') else {
        return Ok(vec![(true, name(text.trim())?)]);
    };
    // A minus must have blanks around it, because a name may contain a hyphen.
    let inner = inner.strip_suffix(')').ok_or("expected )")?.replace('+', " + ");
    let mut words = inner.split_whitespace();
    let mut terms = vec![(true, name(words.next().unwrap_or_default())?)];
    while let Some(sign) = words.next() {
        if terms.len() == TERMS_MAX {
            return Err("a sum has at most 32 figures");
        }
        let plus = sign == "+";
        if !plus && sign != "-" {
            return Err("expected + or - between two figures");
        }
        terms.push((plus, name(words.next().unwrap_or_default())?));
    }
    Ok(terms)
}

fn name(text: &str) -> std::result::Result<String, &'static str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    match begins && text.chars().all(inside) && !text.ends_with('-') {
        true => Ok(text.to_owned()),
        false => Err("expected a figure's name, or a sum of them in parentheses"),
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
    fn division_by_zero_and_missing_figures_give_no_value() {
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
    fn malformed_formula_is_refused_with_the_reason() {
        let (name, number) = ("expected a figure's name, or a sum", "expected a number above 0");
        let between = "expected + or - between two figures";
        for (text, expected) in [
            ("100 * hits allocs", name),
            ("a + b", name),
            ("(a + b", "expected )"),
            ("a / ", name),
            ("", name),
            ("a / b / c", name),
            ("0 * a", number),
            ("1e999 * a", number),
            ("1.2.3 * a", number),
            ("100 a", name),
            ("é / b", name),
            ("(a × b)", between),
            ("((a))", name),
        ] {
            let why = why(text);
            assert!(why.starts_with(&format!("formula {text:?}: {expected}")), "{why}");
        }
        let sum = |n| format!("({})", vec!["a"; n].join(" - "));
        assert!(why(&sum(1000)).ends_with("a sum has at most 32 figures"));
        assert_eq!(Formula::parse(&sum(32)).unwrap().over.len(), 32);
    }
}
