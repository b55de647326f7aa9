//! Whether a text is XML that a reader takes: as much of it as pictures use.

/// Walks through `xml`, or says what a reader would refuse, and where.
pub fn check(xml: &str) -> Result<(), String> {
    if let Some(c) = xml.chars().find(|&c| !is_char(c)) {
        return Err(format!("{c:?} is no character of XML"));
    }
    let (mut rest, mut open) = (xml, Vec::new());
    while let Some(at) = rest.find('<') {
        text(&rest[..at])?;
        rest = &rest[at..];
        let skipped = [("<?", "?>"), ("<!--", "-->"), ("<![CDATA[", "]]>"), ("<!DOCTYPE", ">")];
        if let Some((start, end)) = skipped.iter().find(|(start, _)| rest.starts_with(start)) {
            let after = rest.find(end).ok_or_else(|| format!("{start} is not closed"))?;
            rest = &rest[after + end.len()..];
            continue;
        }
        let end = tag_end(rest)?;
        let tag = &rest[1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name.trim_end()) {
                return Err(format!("</{name}> closes what is not open"));
            }
        } else if let Some(name) = element(tag)? {
            open.push(name);
        }
    }
    text(rest)?;
    if open.is_empty() { Ok(()) } else { Err(format!("not closed: {open:?}")) }
}

/// Source: XML 1.0, production 2; non-characters, which it only discourages, are none here.
fn is_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{fffd}' | '\u{10000}'..)
        && !matches!(c, '\u{7f}'..='\u{9f}')
}

/// Where the tag that `text` begins with ends: a `>` in an attribute does not end it.
fn tag_end(text: &str) -> Result<usize, String> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '>') => return Ok(at),
            _ => {}
        }
    }
    Err(format!("a tag is not closed: {text:.40}"))
}

/// The element's name, unless it is closed at once.
fn element(tag: &str) -> Result<Option<&str>, String> {
    let (body, empty) = tag.strip_suffix('/').map_or((tag, false), |body| (body, true));
    let name = body.split(char::is_whitespace).next().unwrap_or_default();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(format!("{name:?} is no element"));
    }
    let mut rest = body[name.len()..].trim();
    while !rest.is_empty() {
        let (attribute, after) = rest.split_once('=').ok_or_else(|| format!("no value: {rest}"))?;
        if !attribute.chars().all(|c| c.is_ascii_alphanumeric() || "-:_".contains(c)) {
            return Err(format!("{attribute:?} is no attribute"));
        }
        let quote = after.chars().next().filter(|c| "\"'".contains(*c));
        let quote = quote.ok_or_else(|| format!("no quotes: {after}"))?;
        let (value, after) =
            after[1..].split_once(quote).ok_or_else(|| format!("no end: {after}"))?;
        if value.contains('<') {
            return Err(format!("< in {value:?}"));
        }
        references(value)?;
        rest = after.trim_start();
    }
    Ok((!empty).then_some(name))
}

fn text(text: &str) -> Result<(), String> {
    if text.contains("]]>") {
        return Err("]]> in text".into());
    }
    references(text)
}

fn references(text: &str) -> Result<(), String> {
    for after in text.split('&').skip(1) {
        let name = after.split_once(';').map_or("", |(name, _)| name);
        let number = name.strip_prefix('#').map(|n| match n.strip_prefix('x') {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => n.parse().ok(),
        });
        let known = match number {
            Some(code) => code.and_then(char::from_u32).is_some_and(is_char),
            None => ["amp", "lt", "gt", "quot", "apos"].contains(&name),
        };
        if !known {
            return Err(format!("&{after:.20} is no reference"));
        }
    }
    Ok(())
}

#[test]
fn what_a_reader_would_refuse_is_refused() {
    assert_eq!(check("<?xml version=\"1.0\"?><a b='>'>&lt;<c/><![CDATA[<&]]></a>\n"), Ok(()));
    let bad = [
        "<a>",
        "</a>",
        "<a></b>",
        "<a>&nope;</a>",
        "<a>&</a>",
        "<a>&#0;</a>",
        "<a b=c/>",
        "<a b/>",
        "<a b=\"<\"/>",
        "<a>\u{ffff}</a>",
        "<a>\u{1b}</a>",
        "<a>]]></a>",
        "<a",
        "<1/>",
        "a<b",
    ];
    for xml in bad {
        assert!(check(xml).is_err(), "{xml:?}");
    }
}
