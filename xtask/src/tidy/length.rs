//! Files of at most 600 lines, functions of at most 70; the exceptions may only shrink.

use crate::ratchet::{self, Exception, Ratchet};
use crate::tidy::{Finding, Tree, rust};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;

/// Finds what is too long, and exceptions that are no longer needed.
pub fn check(tree: &Tree, ratchet: &Ratchet) -> Vec<Finding> {
    let mut files = Vec::new();
    let mut functions = Vec::new();
    for (path, text) in tree.ending(".rs") {
        files.push(Length { at: path.to_owned(), path, line: 0, lines: text.lines().count() });
        let masked = rust::mask(text);
        functions.extend(rust::functions(&masked).into_iter().map(|function| Length {
            at: format!("{path}::{}", function.name),
            path,
            line: function.line,
            lines: function.lines,
        }));
    }
    let files = judge(&files, &ratchet.files, FILE_LINES);
    [files, judge(&functions, &ratchet.functions, FUNCTION_LINES)].concat()
}

struct Length<'a> {
    at: String,
    path: &'a str,
    line: usize,
    lines: usize,
}

fn judge(lengths: &[Length<'_>], exceptions: &[Exception], rule: usize) -> Vec<Finding> {
    let allowed = |at: &str| {
        let exception = exceptions.iter().find(|exception| exception.at == at);
        exception.map_or(rule, |exception| exception.lines)
    };
    let too_long = lengths.iter().filter(|length| length.lines > allowed(&length.at));
    let mut found: Vec<Finding> = too_long
        .map(|length| {
            let what = format!("{} lines, {} allowed", length.lines, allowed(&length.at));
            Finding::at(length.path, length.line, what)
        })
        .collect();
    for exception in exceptions {
        let longest = lengths.iter().filter(|length| length.at == exception.at);
        let longest = longest.map(|length| length.lines).max().unwrap_or(0);
        if longest <= rule {
            let what = format!("the exception for {} is no longer needed", exception.at);
            found.push(Finding::of(ratchet::PATH, what));
        } else if longest < exception.lines {
            let what = format!("{} has {longest} lines now: tighten it", exception.at);
            found.push(Finding::of(ratchet::PATH, what));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, exceptions: &str) -> Vec<String> {
        let ratchet = Ratchet::parse(&format!("packages = 1\n{exceptions}")).unwrap();
        let tree = Tree::of(&[("crates/x/src/a.rs", text)]);
        check(&tree, &ratchet).iter().map(ToString::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "\n".repeat(lines - 2))
    }

    fn exception(lines: usize) -> String {
        let at = "at = \"crates/x/src/a.rs::f\"\nreason = \"one match\"\n";
        format!("[[function]]\n{at}lines = {lines}\n")
    }

    #[test]
    fn the_line_above_the_limit_is_found() {
        assert_eq!(found(&"\n".repeat(600), ""), [""; 0]);
        assert_eq!(found(&"\n".repeat(601), ""), ["crates/x/src/a.rs: 601 lines, 600 allowed"]);
        assert_eq!(found(&function(70), ""), [""; 0]);
        assert_eq!(found(&function(71), ""), ["crates/x/src/a.rs:1: 71 lines, 70 allowed"]);
    }

    #[test]
    fn an_exception_may_shrink_and_not_grow() {
        assert_eq!(found(&function(80), &exception(80)), [""; 0]);
        assert_eq!(found(&function(81), &exception(80)).len(), 1);
        assert!(found(&function(75), &exception(80))[0].contains("tighten"));
        assert!(found(&function(70), &exception(80))[0].contains("no longer needed"));
    }
}
