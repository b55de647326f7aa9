//! Names, made harmless and short.

use std::borrow::Cow;

/// `name` with what is not to be seen as such written out: line ends and escapes, with which a name
/// could forge rows or give orders to a terminal, and what turns the direction of writing.
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

/// `name`, harmless, in at most `width` characters: the middle of a long one is left out, since a
/// path begins with its crate and ends with its function.
pub(super) fn short(name: &str, width: usize) -> String {
    let name = harmless(name);
    let length = name.chars().count();
    if length <= width {
        return name.into_owned();
    }
    let kept = width.saturating_sub(1);
    let head = kept / 2;
    let start: String = name.chars().take(head).collect();
    let end: String = name.chars().skip(length - (kept - head)).collect();
    format!("{start}…{end}")
}

/// The file of `object`, without its folders.
pub(super) fn file_of(object: &str) -> &str {
    match object.rsplit('/').next() {
        Some(file) if !file.is_empty() => file,
        _ => object,
    }
}

/// What is not to be seen as such: what gives orders to a terminal or turns the direction of
/// writing, what is not to be seen at all, and what XML has no way to say, not even escaped.
fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
        || is_noncharacter(c)
}

/// Code points that will never be characters. Source: Unicode, chapter 23.7.
fn is_noncharacter(c: char) -> bool {
    matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe
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
    fn what_is_not_to_be_seen_or_not_to_be_said_is_written_out() {
        for c in ['\u{ffff}', '\u{fffe}', '\u{1ffff}', '\u{fdd0}', '\u{61c}', '\u{ad}', '\u{2066}']
        {
            assert_eq!(harmless(&format!("a{c}b")), format!("a{}b", c.escape_unicode()));
        }
        assert_eq!(harmless("ü→漢🦀\u{fffd}"), "ü→漢🦀\u{fffd}");
    }

    #[test]
    fn a_long_name_keeps_its_start_and_its_end() {
        let name = "std::collections::hash::map::HashMap<K,V,S>::get_or_insert_with";
        let short = short(name, 31);
        assert_eq!(short, "std::collection…_or_insert_with");
        assert_eq!(super::short("ＡＢＣＤ", 3), "Ａ…Ｄ");
        assert_eq!(super::short("abc", 0), "…");
    }
}
