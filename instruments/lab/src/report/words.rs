//! Words in a run's document and in its reports.

use linerate_show::number::{change, count, interval};
use linerate_show::words::harmless;

use crate::analysis::SAME_PCT;
use crate::record::{Effect, OverallRecord, Verdict};

/// Most letters of a name that are shown.
const NAME_MAX: usize = 120;

/// Largest margin that is printed, because a document may have any value.
const MARGIN_MAX_PCT: f64 = 1e6;

/// Most letters of a paragraph, and most paragraphs of a text, that are shown.
const PARAGRAPH_MAX: usize = 4000;
const PARAGRAPHS_MAX: usize = 20;

/// Most names that a sentence lists.
const NAMES_MAX: usize = 4;

/// Returns a text of a document, escaped and shortened.
pub(super) fn shown(text: &str) -> String {
    if text.chars().nth(4 * NAME_MAX).is_none() {
        return harmless(text).into_owned();
    }
    let start: String = text.chars().take(4 * NAME_MAX).collect();
    format!("{}…", harmless(&start))
}

/// Returns a name of a document, escaped and shortened.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(NAME_MAX) {
        Some((at, _)) => format!("{}…", harmless(text.get(..at).unwrap_or_default())),
        None => harmless(text).into_owned(),
    }
}

/// Returns the change of a line's sum and of its geometric mean, with their intervals; after the
/// mean, the reason if bounds leave both without one.
pub(super) fn overall_changes(line: &OverallRecord) -> (String, String) {
    let told = |pct: f64, ends: Option<(f64, f64)>| {
        let ends = ends.map_or_else(String::new, |ends| format!(" {}", interval(ends)));
        format!("{} %{ends}", change(pct))
    };
    let why = match line.censored {
        0 => String::new(),
        1 => " (no intervals: in 1 cell the change is a bound)".into(),
        cells => format!(" (no intervals: in {} cells the change is a bound)", n(cells)),
    };
    let mean = told(line.geomean_pct, line.geomean_ci95_pct);
    (told(line.sum_ratio_pct, line.sum_ci95_pct), format!("{mean}{why}"))
}

/// Counts the cells by verdict, without verdicts that do not occur, and those that counted nothing.
pub(super) fn counts(line: &OverallRecord) -> String {
    let OverallRecord { better, worse, same, unclear, nothing, .. } = line;
    let all = [
        (better, "better"),
        (worse, "worse"),
        (same, "same"),
        (unclear, "unclear"),
        (nothing, "counted nothing"),
    ];
    let told = all.iter().filter(|(cells, _)| **cells > 0);
    told.map(|(cells, word)| format!("{cells} {word}")).collect::<Vec<_>>().join(", ")
}

/// Formats the verdict on an effect; for `same`, with the margin.
pub(super) fn said(effect: &Effect) -> String {
    // A run that stores no margin was judged by its noise floor.
    let noise_pct = || effect.aa_half_width_pct.unwrap_or(0.0).max(SAME_PCT);
    within(effect.verdict, effect.same_pct.unwrap_or_else(noise_pct))
}

/// Returns `same ±1.0 %`; other verdicts without a margin.
pub(crate) fn within(said: Verdict, margin_pct: f64) -> String {
    let digits = usize::from(margin_pct.abs() < 100.0);
    match said {
        Verdict::Same if margin_pct < MARGIN_MAX_PCT => format!("same ±{margin_pct:.digits$} %"),
        other => other.as_str().into(),
    }
}

/// Splits a text into paragraphs at empty lines; any other white space becomes one blank.
pub(super) fn paragraphs(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in text.lines() {
        match (line.trim(), all.last_mut()) {
            ("", _) => all.push(String::new()),
            (words, Some(last)) => {
                for word in words.split_whitespace() {
                    last.extend([if last.is_empty() { "" } else { " " }, word]);
                }
            }
            (_, None) => {}
        }
    }
    all.retain(|paragraph| !paragraph.is_empty());
    let bounded = |paragraph: &String| match paragraph.char_indices().nth(PARAGRAPH_MAX) {
        Some((at, _)) => format!("{}…", harmless(paragraph.get(..at).unwrap_or_default())),
        None => harmless(paragraph).into_owned(),
    };
    all.iter().take(PARAGRAPHS_MAX).map(bounded).collect()
}

/// Formats the names of cells for a sentence, or only their number.
pub(super) fn cells(names: &[&str], all: usize) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        many if many.len() == all => "all cells".into(),
        few if few.len() <= NAMES_MAX => few.join(" · "),
        many => format!("{} of {} cells", n(many.len()), n(all)),
    }
}

/// Formats a count.
pub(super) fn n(count_of: usize) -> String {
    count(count_of as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_flows_and_an_empty_line_begins_a_paragraph() {
        assert_eq!(
            paragraphs("\nWhat does it\n  cost?\n\t\n\nAnd who pays?\n"),
            ["What does it cost?", "And who pays?",]
        );
        assert_eq!(paragraphs(" \n\n"), Vec::<String>::new());
    }

    #[test]
    fn few_cells_are_named_and_many_are_counted() {
        assert_eq!(cells(&["rate=max", "rate=fixed"], 9), "rate=max · rate=fixed");
        assert_eq!(cells(&["a", "b"], 2), "all cells");
        assert_eq!(cells(&["a", "b", "c", "d", "e"], 9), "5 of 9 cells");
    }
}
