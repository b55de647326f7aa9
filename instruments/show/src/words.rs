//! Sentences and names fitted to the width of a line, with unsafe characters escaped.

pub use linerate_sys::text::{harmless, wrapped_at};

/// Width of a screen in columns, for which all output is formatted.
pub const WIDTH: usize = 100;

/// Returns `text` in at most `letters`, with its middle removed, because a path begins with its
/// crate and ends with its function.
#[must_use]
pub fn elided(text: &str, letters: usize) -> String {
    let length = text.chars().count();
    if length <= letters {
        return text.to_owned();
    }
    let head = letters.saturating_sub(1) / 2;
    let tail = letters.saturating_sub(1) - head;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

/// Breaks text into lines of at most [`WIDTH`], the first after `first` and the others after
/// `next`. Each ends with a line break. A word longer than a line has a line of its own.
#[must_use]
pub fn wrapped(text: &str, first: &str, next: &str) -> String {
    wrapped_at(WIDTH, text, first, next)
}

/// Returns the number of columns on the screen, approximately: every character counts as one.
pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_start_and_its_end() {
        let name = "std::collections::hash::map::HashMap<K,V,S>::get_or_insert_with";
        assert_eq!(elided(name, 31), "std::collection…_or_insert_with");
        assert_eq!(elided("ＡＢＣＤ", 3), "Ａ…Ｄ");
        assert_eq!(elided("abc", 0), "…");
    }

    #[test]
    fn long_text_is_broken_between_words_and_indented() {
        let text = wrapped(&"word ".repeat(40), "* ", "  ");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 40);
        assert!(text.starts_with("* word") && text.contains("\n  word"), "{text}");
        let long = "x".repeat(200);
        assert_eq!(wrapped(&format!("a {long} b"), "", ""), format!("a\n{long}\nb\n"));
    }
}
