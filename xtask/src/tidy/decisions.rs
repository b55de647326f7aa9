//! docs/decisions.md: every proposal has its proposer, what became of it, why, and where that is
//! told.

use crate::tidy::{Finding, Tree};

const LOG: &str = "docs/decisions.md";

/// Finds lines of the log that leave something out.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(LOG) else { return vec![Finding::of(LOG, "is missing")] };
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|')).skip(2);
    let mut found = Vec::new();
    let mut n = 0;
    for (i, row) in rows {
        n += 1;
        if let Err(what) = complete(row) {
            found.push(Finding::at(LOG, i + 1, what));
        }
    }
    if n == 0 {
        found.push(Finding::of(LOG, "has no decisions"));
    }
    found
}

/// A row of five columns, none of them empty, the third with its outcome, the last with a link.
fn complete(row: &str) -> Result<(), String> {
    let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [_, _, outcome, reason, link] = columns.as_slice() else {
        return Err(format!("has {} columns instead of 5", columns.len()));
    };
    if columns.iter().any(|column| column.is_empty()) {
        return Err("leaves a column empty".into());
    }
    if !["adopted", "dropped"].iter().any(|word| outcome.starts_with(word)) {
        return Err(format!("says `{outcome}` instead of adopted or dropped"));
    }
    // A figure, or a reason in words that are long enough to be one.
    if !reason.contains(|c: char| c.is_ascii_digit()) && reason.split_whitespace().count() < 8 {
        return Err(format!("decides by `{reason}`: neither a figure nor a reason"));
    }
    if !(link.starts_with('[') && link.ends_with(')')) {
        return Err("does not say where more is told".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| proposal | by | | what decided | where |\n|---|---|---|---|---|\n";

    fn check_row(row: &str) -> Vec<Finding> {
        check(&Tree::of(&[(LOG, &format!("{HEAD}{row}\n"))]))
    }

    #[test]
    fn a_decision_has_a_proposer_an_outcome_a_figure_and_a_page() {
        assert_eq!(check_row("| x | post 004 | adopted | 2.6 against 4.3 ticks | [6](a.md) |"), []);
        for bad in [
            "| x | post 004 | adopted | 2.6 against 4.3 ticks |",
            "| x | | adopted | 2.6 against 4.3 ticks | [6](a.md) |",
            "| x | post 004 | perhaps | 2.6 against 4.3 ticks | [6](a.md) |",
            "| x | post 004 | dropped | it is slow | [6](a.md) |",
            "| x | post 004 | dropped | 2.6 against 4.3 ticks | a page |",
        ] {
            assert_eq!(check_row(bad).len(), 1, "{bad}");
        }
        assert_eq!(check_row("").len(), 1, "an empty log");
    }
}
