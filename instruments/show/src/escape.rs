//! Escaping of text for an HTML page.

use crate::words::harmless;

/// Escapes `text` for an element or a quoted attribute. The result has no markup and no invisible
/// characters, and is valid in XML.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in harmless(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Escapes lines of text, each as [`escape`] does.
#[must_use]
pub fn escape_lines(text: &str) -> String {
    text.lines().map(|line| escape(line) + "\n").collect()
}

/// Escapes a JSON document for a script element, in which `<` must not occur.
#[must_use]
pub fn escape_json(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// Encodes a text as a `data:` URI of type `text/csv`.
#[must_use]
pub fn data_uri(text: &str) -> String {
    let mut uri = "data:text/csv;charset=utf-8,".to_owned();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b',' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_is_markup() {
        assert_eq!(escape("<a href='x'>&\"\u{7}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\\u{7}");
        assert_eq!(escape_lines("a\n<b>"), "a\n&lt;b&gt;\n");
        assert_eq!(escape_json(r#"{"a":"</script>"}"#), r#"{"a":"\u003c/script>"}"#);
        assert_eq!(data_uri("a,\"b\"\nµ"), "data:text/csv;charset=utf-8,a,%22b%22%0A%C2%B5");
    }
}
