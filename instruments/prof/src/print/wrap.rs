//! Sentences, in lines that are no wider than a terminal.

/// Characters of a line: two less than a hundred, for whoever sets the whole in.
const WIDTH: usize = 98;
/// Additional indent of continued lines.
const HANG: usize = 4;

/// `text` in lines that begin with `inset`, each but the first further in. A word is never
/// cut: it may be a command to paste.
pub(crate) fn wrapped(inset: &str, text: &str) -> String {
    let mut out = inset.to_owned();
    let mut length = inset.chars().count();
    for (i, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if i > 0 && length + 1 + width > WIDTH {
            out.push('\n');
            out.push_str(inset);
            out.extend([' '; HANG]);
            length = inset.chars().count() + HANG;
        } else if i > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_broken_between_words_and_set_in() {
        assert_eq!(wrapped("  ", "short, and  as it is"), "  short, and  as it is");
        let text = wrapped("  ", &"word ".repeat(40));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(lines[0].starts_with("  word") && lines[1].starts_with("      word"), "{text}");
        let long = "x".repeat(150);
        assert_eq!(wrapped("", &format!("a {long} b")), format!("a\n    {long}\n    b"));
    }
}
