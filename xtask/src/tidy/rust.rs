//! Just enough of Rust's grammar to count lines of functions and to find words and tests.
//!
//! [`mask`] blanks comments, strings and characters, so that what is left can be searched as
//! plain text; everything else here expects masked text, whose offsets and lines are the file's.

/// The source with comments and literals blanked, line for line.
pub fn mask(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = opaque_end(&chars, at);
        if end == at {
            masked.push(chars[at]);
            at += 1;
            continue;
        }
        masked.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    masked
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn opaque_end(chars: &[char], at: usize) -> usize {
    let peek = |n: usize| chars.get(at + n).copied().unwrap_or('\0');
    let in_word = at > 0 && is_word(chars[at - 1]);
    match (peek(0), peek(1)) {
        ('/', '/') => find(chars, at, |c| c == '\n'),
        ('/', '*') => comment_end(chars, at),
        ('"', _) => string_end(chars, at + 1),
        ('b' | 'c', '"') if !in_word => string_end(chars, at + 2),
        ('r', '"' | '#') if !in_word => raw_end(chars, at, at + 1),
        ('b' | 'c', 'r') if !in_word && matches!(peek(2), '"' | '#') => raw_end(chars, at, at + 2),
        ('\'', '\\') => find(chars, at + 3, |c| c == '\'') + 1,
        // A lifetime has no closing quote two places on.
        ('\'', _) if peek(2) == '\'' => at + 3,
        _ => at,
    }
    .min(chars.len())
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|i| wanted(chars[*i])).unwrap_or(chars.len())
}

fn comment_end(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0_usize);
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while at < chars.len() {
        match chars[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of `r#"…"#` whose hashes start at `hashes`; `from` if it is a raw identifier.
fn raw_end(chars: &[char], from: usize, hashes: usize) -> usize {
    let open = find(chars, hashes, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return from;
    }
    let n = open - hashes;
    let closes = |at: &usize| {
        chars[*at] == '"' && chars[at + 1..].iter().take(n).filter(|c| **c == '#').count() == n
    };
    (open + 1..chars.len()).find(closes).map_or(chars.len(), |at| at + 1 + n)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every word of masked text with its offset in bytes; `r#gen` is the word `gen`.
pub fn words(masked: &str) -> impl Iterator<Item = (usize, &str)> {
    let words = masked.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(|word| {
        // `split` gives slices of `masked`, so the distance of their starts is an offset in it.
        (word.as_ptr() as usize - masked.as_ptr() as usize, word)
    });
    words.filter(|(at, word)| *word != "r" || !masked[at + 1..].starts_with('#'))
}

/// The line, counted from 1, of an offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// The line of the word `fn`.
    pub line: usize,
    /// From `fn` to the closing brace.
    pub lines: usize,
    /// Its attributes and visibility.
    pub before: &'a str,
}

impl Function<'_> {
    /// Whether it is a test that cargo runs.
    pub fn is_test(&self) -> bool {
        let marks = ["#[test]", "::test]", "::test("];
        marks.iter().any(|mark| self.before.contains(mark)) && !self.before.contains("#[ignore")
    }
}

/// Every function of masked text that has a body.
pub fn functions(masked: &str) -> Vec<Function<'_>> {
    let mut found = Vec::new();
    let mut words = words(masked).peekable();
    while let Some((at, word)) = words.next() {
        let Some(&(name_at, name)) = words.peek() else { break };
        // `fn(u8)` is a type, `fn $name` a macro's.
        let named = word == "fn" && matches!(masked[at + 2..name_at].trim(), "" | "r#");
        let Some(end) = named.then(|| body_end(masked, name_at)).flatten() else { continue };
        found.push(Function {
            name,
            line: line_of(masked, at),
            lines: masked[at..end].matches('\n').count() + 1,
            before: before(masked, at),
        });
    }
    found
}

/// One past the closing brace of the body that follows `from`; none for a bare declaration.
fn body_end(masked: &str, from: usize) -> Option<usize> {
    let (mut round, mut curly) = (0_i32, 0_i32);
    for (i, c) in masked[from..].char_indices() {
        match c {
            '(' | '[' => round += 1,
            ')' | ']' => round -= 1,
            ';' if round == 0 && curly == 0 => return None,
            '{' => curly += 1,
            '}' if curly == 1 && round == 0 => return Some(from + i + 1),
            '}' => curly -= 1,
            _ => {}
        }
    }
    None
}

/// A module as its parent declares it.
#[derive(Debug, PartialEq, Eq)]
pub struct Module<'a> {
    /// Its name.
    pub name: &'a str,
    /// The offset of the word `mod`.
    pub at: usize,
    /// Whether its body follows; else it has a file.
    pub inline: bool,
    /// Whether it is compiled for tests only.
    pub for_tests: bool,
}

/// Every module that masked text declares.
pub fn modules(masked: &str) -> Vec<Module<'_>> {
    let mut found = Vec::new();
    let mut words = words(masked).peekable();
    while let Some((at, word)) = words.next() {
        let Some(&(name_at, name)) = words.peek() else { break };
        let after = masked[name_at + name.len()..].trim_start();
        if word != "mod" || !after.starts_with(['{', ';']) {
            continue;
        }
        let before = before(masked, at);
        let for_tests = self::words(before).any(|(_, word)| word == "test")
            && before.contains("#[cfg(")
            && !before.contains("not(test)");
        found.push(Module { name, at, inline: after.starts_with('{'), for_tests });
    }
    found
}

/// The text before the item at `at`, back to the end of the item before: attributes, visibility.
fn before(masked: &str, at: usize) -> &str {
    let start = masked[..at].rfind(['{', '}', ';']).map_or(0, |i| i + 1);
    &masked[start..at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_line_for_line() {
        let source =
            "a // fn\nb /* { /* } */ } */ c \"x\\\" {\ny\" d '{' e '\\'' f r#\"\" {\"# g\n";
        let masked = mask(source);
        assert_eq!(masked.split_whitespace().collect::<String>(), "abcdefg");
        assert_eq!(masked.lines().count(), source.lines().count());
        assert_eq!(masked.len(), source.len());
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_not_literals() {
        let source = "fn f<'a>(x: &'a str, r#type: u8) -> &'a str { x }";
        assert_eq!(mask(source), source);
        assert_eq!(mask("b'x' br\"{\" c\"{\" 'é'").trim(), "b");
    }

    #[test]
    fn a_function_is_measured_to_its_own_closing_brace() {
        let source = "trait T { fn none(&self) -> [u8; 4]; }\nfn a() {\n    if x { '}' }\n}\n\
                      const F: fn(u8) = b;\nfn r#b() {}\n";
        let masked = mask(source);
        let found = functions(&masked);
        let measured: Vec<_> = found.iter().map(|f| (f.name, f.line, f.lines)).collect();
        assert_eq!(measured, [("a", 2, 3), ("b", 6, 1)]);
    }

    #[test]
    fn only_what_cargo_runs_is_a_test() {
        let source = "#[test]\nfn a() {}\n#[test]\n#[ignore = \"slow\"]\nfn b() {}\nfn c() {}\n\
                      #[tokio::test(flavor = \"x\")]\nasync fn d() {}\n";
        let masked = mask(source);
        let tests: Vec<_> =
            functions(&masked).iter().filter(|f| f.is_test()).map(|f| f.name).collect();
        assert_eq!(tests, ["a", "d"]);
    }

    #[test]
    fn modules_are_told_by_their_bodies_and_attributes() {
        let masked =
            mask("mod r#a;\n#[cfg(all(test, x))]\nmod b {\n}\n#[cfg(not(test))]\nmod c;\n");
        let found = modules(&masked);
        let told: Vec<_> = found.iter().map(|m| (m.name, m.inline, m.for_tests)).collect();
        assert_eq!(told, [("a", false, false), ("b", true, true), ("c", false, false)]);
    }
}
