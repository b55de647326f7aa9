//! Text from other sources, made safe for terminals, and numbers formatted for people.

use std::borrow::Cow;

/// Returns `name` with unsafe characters escaped: newlines and terminal escapes, with which a name
/// could fake rows or control a terminal, and characters that change the writing direction.
#[must_use]
pub fn harmless(name: &str) -> Cow<'_, str> {
    if !name.chars().any(is_hostile) {
        return Cow::Borrowed(name);
    }
    let mut text = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        if is_hostile(c) { text.extend(c.escape_unicode()) } else { text.push(c) }
    }
    Cow::Owned(text)
}

/// Returns true for characters that must not be printed: those that control a terminal or the
/// writing direction, invisible ones, and those that XML cannot represent, even escaped.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
        || is_noncharacter(c)
}

/// Returns true for code points that will never be assigned to characters. Source: Unicode, chapter
/// 23.7.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe
}

/// Returns a number with commas between the thousands of its integer part.
#[must_use]
pub fn grouped(number: &str) -> String {
    let digits = number.trim_start_matches(['+', '-']);
    let (sign, _) = number.split_at(number.len() - digits.len());
    let (whole, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut text = String::from(sign);
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text + fraction
}

/// Describes the queues of a port or a device: `1 queue, number 0` or `4 queues, numbers 0 to 3`.
#[must_use]
pub fn queues(n: usize) -> String {
    match n {
        0 => "no queue".to_owned(),
        1 => "1 queue, number 0".to_owned(),
        n => format!("{n} queues, numbers 0 to {}", n - 1),
    }
}

/// Returns `1234567` as `1,234,567`.
#[must_use]
pub fn thousands(n: u64) -> String {
    grouped(&n.to_string())
}

/// Breaks text into lines of at most `width`, the first after `first` and the others after `next`.
/// Each ends with a line break. A word longer than a line has a line of its own.
#[must_use]
pub fn wrapped_at(width: usize, text: &str, first: &str, next: &str) -> String {
    let length = |text: &str| text.chars().count();
    let mut all = String::new();
    let mut line = String::from(first);
    let mut words = 0;
    for word in text.split_whitespace() {
        if words > 0 && length(&line) + 1 + length(word) > width {
            all.extend([line.trim_end(), "\n"]);
            line = String::from(next);
            words = 0;
        }
        line.extend([if words > 0 { " " } else { "" }, word]);
        words += 1;
    }
    all + line.trim_end() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_order_a_terminal_or_forge_a_row() {
        assert_eq!(harmless("ip_rcv"), "ip_rcv");
        assert_eq!(
            harmless("a\u{1b}[2Jb\nc\u{9b}d\u{202e}e"),
            "a\\u{1b}[2Jb\\u{a}c\\u{9b}d\\u{202e}e"
        );
    }

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        for c in ['\u{ffff}', '\u{fffe}', '\u{1ffff}', '\u{fdd0}', '\u{61c}', '\u{ad}', '\u{2066}']
        {
            assert_eq!(harmless(&format!("a{c}b")), format!("a{}b", c.escape_unicode()));
        }
        assert_eq!(harmless("ü→漢🦀\u{fffd}"), "ü→漢🦀\u{fffd}");
    }

    #[test]
    fn thousands_are_set_apart_in_the_whole_part_only() {
        for (number, expected) in [
            ("7", "7"),
            ("216", "216"),
            ("1234", "1,234"),
            ("-1365716", "-1,365,716"),
            ("+167", "+167"),
            ("18455.6216", "18,455.6216"),
        ] {
            assert_eq!(grouped(number), expected);
        }
        let whole = [0, 999, 1000, u64::MAX].map(thousands);
        assert_eq!(whole, ["0", "999", "1,000", "18,446,744,073,709,551,615"]);
    }
}
