//! The two tables of post 004.

use linerate_prof::Result;

use super::super::{Statement, Text};
use crate::decimal::Decimal;

/// Number of CPUs of the machine, and of columns of the tables.
const CPUS: usize = 2;

/// Both tables of the post.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) before: Kernel,
    pub(super) after: Kernel,
    /// The totals of the first table, as posted.
    pub(super) totals: Statement<Vec<Decimal>>,
}

/// The figures of one kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The table's title in the post, with its line.
    pub(super) title: String,
    pub(super) line: usize,
    pub(super) alloc: Call,
    /// The figures of freeing; `None` if they were not posted.
    pub(super) free: Option<Call>,
}

/// A function's figures, CPU by CPU.
#[derive(Debug)]
pub(super) struct Call {
    /// Average cycles of a call, by CPU.
    pub(super) cycles: Vec<Decimal>,
    pub(super) calls: Vec<u64>,
}

impl Measured {
    /// Returns both kernels, with short names.
    pub(super) fn kernels(&self) -> [(&'static str, &Kernel); 2] {
        [("before", &self.before), ("with patch", &self.after)]
    }
}

/// Parses the tables.
///
/// # Errors
/// `E-FILE` with the line that is not as it should be.
pub(super) fn measured(text: &Text<'_>) -> Result<Measured> {
    let before = text.line_with(1, "Baseline on Linux")?;
    let at = before.line;
    let after = text.line_with(at, "Skbinit Patch:")?;
    let free = Call {
        cycles: cycles(text, at, "Avg cycles in __kfree_skb:")?.is,
        calls: calls(text, at, "# of times __kfree_skb called:")?,
    };
    let alloc = Call {
        cycles: cycles(text, at, "Avg cycles in alloc_skb:")?.is,
        calls: calls(text, at, "# of times alloc_skb called:")?,
    };
    let totals = cycles(text, at, "Total Avg Cycles")?;
    let patched = Call {
        cycles: cycles(text, after.line, "Avg cycles in alloc skb:")?.is,
        calls: calls(text, after.line, "# of times alloc_skb called:")?,
    };
    let kernel = |said: Statement<&str>, alloc, free| Kernel {
        title: said.is.trim().to_owned(),
        line: said.line,
        alloc,
        free,
    };
    Ok(Measured {
        before: kernel(before, alloc, Some(free)),
        after: kernel(after, patched, None),
        totals,
    })
}

/// Returns the numbers after `label`, one for each CPU.
fn cycles(text: &Text<'_>, from: usize, label: &str) -> Result<Statement<Vec<Decimal>>> {
    let said = text.line_with(from, label)?;
    let fields = said.is.trim().strip_prefix(label).unwrap_or("");
    let numbers: Option<Vec<Decimal>> = fields.split_whitespace().map(Decimal::parse).collect();
    let sound = |numbers: &Vec<Decimal>| {
        numbers.len() == CPUS && numbers.iter().all(|number| number.to_f64() > 0.0)
    };
    let is = numbers.filter(sound).ok_or_else(|| {
        text.wrong(said.line, &format!("{CPUS} numbers above 0 should follow {label:?}"))
    })?;
    Ok(Statement { line: said.line, is })
}

fn calls(text: &Text<'_>, from: usize, label: &str) -> Result<Vec<u64>> {
    let numbers = cycles(text, from, label)?;
    let whole: Option<Vec<u64>> = numbers.is.iter().map(|number| number.as_count()).collect();
    whole.ok_or_else(|| text.wrong(numbers.line, "a count of calls is a whole number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POST: &str = include_str!("../../posts/004_03deb15df39420f5.txt");

    #[test]
    fn a_row_that_is_not_two_numbers_is_refused_with_its_line() {
        for (from, to, why) in [
            ("64.05 203.39", "64.05", "line 33: 2 numbers"),
            ("127.54 228.95", "127.54 x", "line 34: 2 numbers"),
            ("235,478 2,060,422", "235,478.5 2,060,422", "line 39: a count of calls"),
            ("1,226,594 1,213,327", "1,226,594 0", "line 48: 2 numbers"),
        ] {
            assert!(POST.contains(from));
            let copy = POST.replace(from, to);
            let refused = measured(&Text::new("004", &copy).unwrap()).unwrap_err().why;
            assert!(refused.starts_with(why), "{refused}");
        }
    }
}
