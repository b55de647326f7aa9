//! Plain English in the sources: first words of summaries, and vague words for which the field has
//! a term.

use crate::ratchet;
use crate::tidy::{Finding, Tree};

/// First words of a subordinate clause. A function's summary starts with a verb in the third
/// person, a type's with a noun.
const OPENINGS: [&str; 11] = [
    "What", "Whatever", "Whether", "Who", "Whoever", "Whose", "Which", "Where", "How", "Of", "That",
];

/// Pronouns and phrases that are used instead of a noun of the field.
const VAGUE: [&str; 7] =
    ["whoever", "whomever", "nobody", "somebody", "anybody", "is told", "be had"];

/// First words that show that a function's summary does not begin with a verb.
const NOUNS: [&str; 6] = ["The", "A", "An", "As", "True", "Why"];

/// Finds summaries that begin with a clause, more vague words than `most`, and more summaries of
/// functions without a verb than `most_nouns`.
pub fn check(tree: &Tree, most: usize, most_nouns: usize) -> Vec<Finding> {
    let mut found = Vec::new();
    let (mut vague, mut nouns) = (0, 0);
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".rs")) {
        let mut before = "";
        for (i, line) in text.lines().map(str::trim).enumerate() {
            if let Some(word) = opening(before, line) {
                let what = format!("the summary opens with `{word}`: start with a verb or a noun");
                found.push(Finding::at(path, i + 1, what));
            }
            before = line;
            vague += vague_words(line);
        }
        nouns += noun_summaries(text);
    }
    if nouns > most_nouns {
        let what =
            format!("{nouns} functions' summaries without a verb, {most_nouns} allowed: {NOUNS:?}");
        found.push(Finding::of("crates, instruments, xtask", what));
    }
    if vague > most {
        let what = format!("{vague} vague words, {most} allowed: {}", VAGUE.join(", "));
        found.push(Finding::of("crates, instruments, xtask", what));
    }
    let warnings = lower("vague_words", vague, most) + &lower("noun_summaries", nouns, most_nouns);
    eprint!("{warnings}");
    found
}

/// Returns a warning if a limit of the ratchet can become tighter.
fn lower(limit: &str, is: usize, most: usize) -> String {
    match is < most {
        true => format!("warning: {}: {limit} can be {is} instead of {most}\n", ratchet::PATH),
        false => String::new(),
    }
}

/// Returns the first word of a summary that starts on `line`, if it is one of [`OPENINGS`].
fn opening(before: &str, line: &str) -> Option<&'static str> {
    let doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    if !doc(line) || doc(before) {
        return None;
    }
    let first = line[3..].trim_start().split(|c: char| !c.is_alphabetic()).next()?;
    OPENINGS.into_iter().find(|word| *word == first)
}

/// Returns the number of functions whose summaries begin with one of [`NOUNS`].
fn noun_summaries(text: &str) -> usize {
    let (mut first, mut count) = ("", 0);
    for line in text.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("/// ") {
            first =
                if first.is_empty() { doc.split(' ').next().unwrap_or_default() } else { first };
        } else if !line.starts_with("#[") && line != "///" {
            let is_fn = line.starts_with("fn ") || line.contains(" fn ");
            count += usize::from(is_fn && NOUNS.contains(&first));
            first = "";
        }
    }
    count
}

/// Returns the number of vague words in a line of comment or text.
fn vague_words(line: &str) -> usize {
    if !(line.contains("//") || line.contains('"')) {
        return 0;
    }
    let line = line.to_lowercase();
    VAGUE.iter().map(|word| line.matches(word).count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, most: usize) -> Vec<String> {
        let tree = Tree::of(&[("crates/x/src/lib.rs", text)]);
        check(&tree, most, 0).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn summary_that_opens_with_a_clause_is_found() {
        let [one] = &found("/// Whether it is.\n/// How it is.\nfn f() {}\n", 0)[..] else {
            panic!("one finding expected");
        };
        assert!(one.starts_with("crates/x/src/lib.rs:1: "), "{one}");
        assert_eq!(found("/// Returns whether it is.\nfn f() {}\n", 0), [""; 0]);
    }

    #[test]
    fn more_vague_words_than_allowed_are_found() {
        let text = "/// Frees it for nobody. Nobody asks.\nfn f() {}\n";
        assert_eq!(found(text, 2), [""; 0]);
        assert_eq!(found(text, 1).len(), 1);
        assert!(lower("vague_words", 2, 3).contains("vague_words can be 2"));
        assert_eq!(lower("vague_words", 3, 3), "");
    }

    #[test]
    fn summary_of_a_function_without_a_verb_is_found() {
        let text = "/// The sum.\n#[must_use]\npub fn sum() {}\n/// The sum.\nstruct Sum;\n";
        assert_eq!(found(text, 0).len(), 1);
        assert_eq!(found("/// Returns the sum.\n///\n/// The end.\nfn f() {}\n", 0), [""; 0]);
    }
}
