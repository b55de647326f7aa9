//! Texts that differ only in their numbers, told as one.

use linerate_show::number::grouped;

/// A text, and from where to where each number of it goes.
pub(super) struct Folded {
    /// The text before the first number, between numbers, and after the last.
    words: Vec<String>,
    ranges: Vec<(Number, Number)>,
}

/// The format of a number that differs between the texts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// `32 to 1,056`
    Range,
    /// `up to 1,056`
    Most,
}

#[derive(Clone)]
struct Number {
    text: String,
    value: f64,
}

impl Folded {
    /// Creates a folded text of `text` alone.
    pub fn new(text: &str) -> Folded {
        let mut folded = Folded { words: vec![String::new()], ranges: Vec::new() };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let before = folded.words.last().and_then(|words| words.chars().last());
            let number = number(before, rest);
            let (taken, left) = rest.split_at(number.map_or(c.len_utf8(), str::len));
            rest = left;
            match (number.and_then(|text| text.parse().ok()), folded.words.last_mut()) {
                (Some(value), _) => {
                    let number = Number { text: taken.to_owned(), value };
                    folded.ranges.push((number.clone(), number));
                    folded.words.push(String::new());
                }
                (None, Some(words)) => words.push_str(taken),
                (None, None) => {}
            }
        }
        folded
    }

    /// Returns the text without its numbers: texts with the same key are printed as one.
    pub fn key(&self) -> String {
        self.words.join("\0")
    }

    /// Takes another text of the same key in.
    pub fn take(&mut self, other: Folded) {
        for ((low, high), (least, most)) in self.ranges.iter_mut().zip(other.ranges) {
            if least.value < low.value {
                *low = least;
            }
            if most.value > high.value {
                *high = most;
            }
        }
    }

    /// Formats the words with their numbers.
    pub fn told(&self, numbers: Numbers) -> String {
        let mut text = String::new();
        for (i, words) in self.words.iter().enumerate() {
            text += words;
            let Some((low, high)) = self.ranges.get(i) else { continue };
            text += &match numbers {
                _ if low.value == high.value => low.text.clone(),
                Numbers::Range => format!("{} to {}", grouped(&low.text), grouped(&high.text)),
                Numbers::Most => format!("up to {}", grouped(&high.text)),
            };
        }
        text
    }
}

/// Returns the number that `rest` begins with, if it stands alone: neither part of a name, as in
/// `r0` and `len=256`, nor of a word, as in `64k`.
fn number(before: Option<char>, rest: &str) -> Option<&str> {
    if before.is_some_and(|c| c.is_alphanumeric() || "_=.-".contains(c)) {
        return None;
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let whole = digits(rest);
    let part = rest.get(whole..)?.strip_prefix('.').map_or(0, digits);
    let length = if part > 0 { whole + 1 + part } else { whole };
    let is_word = rest.get(length..)?.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    // A word begins right behind what was taken, or it would be a number that goes on.
    (whole > 0 && !is_word).then(|| rest.get(..length)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(texts: &[&str], numbers: Numbers) -> String {
        let mut all = texts.iter().map(|text| Folded::new(text));
        let mut first = all.next().unwrap();
        for other in all {
            assert_eq!(other.key(), first.key());
            first.take(other);
        }
        first.told(numbers)
    }

    #[test]
    fn numbers_that_differ_become_a_range_and_those_that_do_not_stay() {
        let texts =
            ["32 of 64 packets, 9.75 %", "1056 of 64 packets, 10.5 %", "7 of 64 packets, 9.75 %"];
        assert_eq!(folded(&texts, Numbers::Range), "7 to 1,056 of 64 packets, 9.75 to 10.5 %");
        assert_eq!(folded(&texts, Numbers::Most), "up to 1,056 of 64 packets, up to 10.5 %");
    }

    #[test]
    fn a_number_within_a_name_is_not_one() {
        for (one, other) in [("ring r0", "ring r1"), ("len=1", "len=2"), ("64k", "65k")] {
            assert_ne!(Folded::new(one).key(), Folded::new(other).key());
        }
        for text in ["", "µ1", "CPU 0, 1", "1.", "1.2.3", "[1]: 5%", "9".repeat(400).as_str()] {
            assert_eq!(folded(&[text], Numbers::Range), text);
        }
    }
}
