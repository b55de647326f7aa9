//! Figures in pages that come from no document: they are marked as *reported, not kept*.

use super::render::{BEGIN, END};
use crate::tidy::Finding;

/// Text in a page that marks figures without a document: in the section of a table, or, with [`ALL`], before the first
/// section of the page.
const UNKEPT: &str = "reported, not kept";
const ALL: &str = "figures on this page are reported, not kept";

/// Finds tables of measured figures that are not rendered and not marked as having no document.
///
/// A figure is measured if it stands beside its interval or range, as in `1.43 [1.40, 1.54]`.
pub fn unsupported(path: &str, text: &str) -> Option<Finding> {
    if path != "README.md" && !path.starts_with("docs/") {
        return None;
    }
    let top = text.split("\n## ").next().unwrap_or_default().to_lowercase();
    let (all, mut inside, mut says_so) = (top.contains(ALL), false, false);
    for (i, line) in text.lines().enumerate() {
        inside = (inside || line.starts_with(BEGIN)) && line != END;
        says_so =
            all || (says_so && !line.starts_with('#')) || line.to_lowercase().contains(UNKEPT);
        if line.starts_with('|') && !inside && !says_so && has_interval(line) {
            let what = format!(
                "comes from no document, and nothing above it in its section says {UNKEPT:?}"
            );
            return Some(Finding::at(path, i + 1, what));
        }
    }
    None
}

/// Returns true if a line contains an interval such as `[1.40, 1.54]`.
fn has_interval(line: &str) -> bool {
    let numbers = |text: &str| {
        let parts: Vec<&str> = text.split(", ").collect();
        parts.len() == 2 && parts.iter().all(|part| part.replace('−', "-").parse::<f64>().is_ok())
    };
    line.split('[').skip(1).filter_map(|rest| rest.split(']').next()).any(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_table_names_its_document_or_says_that_there_is_none() {
        let table = "| x | 1.43 [1.40, 1.54] |\n";
        let of = |text: &str| unsupported("README.md", text).is_some();
        assert!(of(&format!("# a\n{table}")));
        assert!(!of(&format!("# a\nOn a Xeon (Reported, not kept):\n\n{table}")));
        assert!(of(&format!("# a\nreported, not kept\n# b\n{table}")), "another section");
        assert!(!of(&format!("{BEGIN}x -->\n{table}{END}\n")));
        assert!(!of("# a\n| x | [page](a.md) | 5 [frames, bytes] |\n"));
        let page = format!("# a\nAll figures on this page are reported, not kept.\n## b\n{table}");
        assert!(!of(&page) && of(&page.replace("All figures on this page are", "They are")));
        assert!(unsupported("docs/adr/other.md", table).is_some());
        assert!(unsupported("crates/x/README.md", table).is_none());
    }
}
