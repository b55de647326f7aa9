//! The two tables of post 004.

use linerate_prof::Result;

use super::super::{Statement, Text};
use crate::decimal::Decimal;

/// Number of CPUs of the machine, and of columns of the tables.
const CPUS: usize = 2;

const FREE_CYCLES: &str = "Avg cycles in __kfree_skb:";
const FREE_CALLS: &str = "# of times __kfree_skb called:";
const ALLOC_CALLS: &str = "# of times alloc_skb called:";

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
    let (first, second) = ([at, after.line], [after.line, usize::MAX]);
    let free = call(text, first, [FREE_CYCLES, FREE_CALLS])?;
    let alloc = call(text, first, ["Avg cycles in alloc_skb:", ALLOC_CALLS])?;
    let totals = cycles(text, first, "Total Avg Cycles")?;
    let patched = call(text, second, ["Avg cycles in alloc skb:", ALLOC_CALLS])?;
    let patched_free = match text.line_with(after.line, FREE_CYCLES) {
        Ok(_) => Some(call(text, second, [FREE_CYCLES, FREE_CALLS])?),
        Err(_) => None,
    };
    let kernel = |said: Statement<&str>, alloc, free| Kernel {
        title: said.is.trim().to_owned(),
        line: said.line,
        alloc,
        free,
    };
    Ok(Measured {
        before: kernel(before, alloc, Some(free)),
        after: kernel(after, patched, patched_free),
        totals,
    })
}

/// Parses the figures of a function, which follow two labels between two lines.
fn call(text: &Text<'_>, lines: [usize; 2], [of_cycles, of_calls]: [&str; 2]) -> Result<Call> {
    Ok(Call { cycles: cycles(text, lines, of_cycles)?.is, calls: calls(text, lines, of_calls)? })
}

/// Returns the numbers after `label`, one for each CPU. The label must be in or after the first of
/// `lines` and before the second.
fn cycles(text: &Text<'_>, lines: [usize; 2], label: &str) -> Result<Statement<Vec<Decimal>>> {
    let [from, to] = lines;
    let said = text.line_with(from, label)?;
    if said.line >= to {
        return Err(text.wrong(from, &format!("{label:?} should follow before line {to}")));
    }
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

fn calls(text: &Text<'_>, lines: [usize; 2], label: &str) -> Result<Vec<u64>> {
    let numbers = cycles(text, lines, label)?;
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

    #[test]
    fn a_label_that_is_missing_is_not_read_from_the_other_table() {
        let row = "# of times alloc_skb called: 235,478 2,060,422\n";
        assert!(POST.contains(row));
        let copy = POST.replace(row, "");
        let refused = measured(&Text::new("004", &copy).unwrap()).unwrap_err().why;
        assert_eq!(refused, format!("line 28: {ALLOC_CALLS:?} should follow before line 41"));
    }

    #[test]
    fn a_free_side_with_the_patch_is_read_if_the_copy_has_one() {
        let row = "# of times alloc_skb called: 1,226,594 1,213,327\n";
        assert!(POST.contains(row));
        let free = format!("{FREE_CYCLES} 1.50 2.50\n{FREE_CALLS} 3 4\n");
        let copy = POST.replace(row, &format!("{row}{free}"));
        let read = measured(&Text::new("004", &copy).unwrap()).unwrap();
        assert_eq!(read.after.free.unwrap().calls, [3, 4]);
    }
}
